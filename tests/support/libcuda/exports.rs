//! Hides functions that are newer than the simulated driver: their names are removed from the symbol table when the
//! library is loaded.

use crate::config::Config;
use crate::symbols::hide_symbol;
use crate::{capture, contexts, copies, devices, events, graphs, kernels, memory, streams};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = hide;

extern "C" fn hide() {
    // `cuInit` reports an invalid environment.
    let Ok(version) = Config::read().map(|config| config.version) else {
        return;
    };
    let all = [
        capture::SINCE,
        contexts::SINCE,
        copies::SINCE,
        devices::SINCE,
        events::SINCE,
        graphs::SINCE,
        kernels::SINCE,
        memory::SINCE,
        streams::SINCE,
    ];
    for (since, function) in all.into_iter().flatten() {
        if *since > version {
            hide_symbol(*function);
        }
    }
}
