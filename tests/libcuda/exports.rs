//! An older driver does not export what came later: such names are taken out of the symbol table when the library is loaded.

use crate::config::Config;
use crate::symbols::take_out;
use crate::{capture, contexts, copies, devices, events, graphs, kernels, memory, streams};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = hide;

extern "C" fn hide() {
    // What cannot be read is said by `cuInit`.
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
            take_out(*function);
        }
    }
}
