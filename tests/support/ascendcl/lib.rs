//! A `libascendcl.so` over the simulated device, for tests that need AscendCL's own names and for child processes.
//! Links to it with the names `libacl_dvpp.so` and `libacl_dvpp_mpi.so` make it those libraries, too. `standin` lists
//! what it does and refuses.
//!
//! There is one machine for each process, made by `aclInit`:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `SIMASCEND_MEMORY` | bytes of each device | 24 GiB |
//! | `SIMASCEND_DEVICES` | number of devices | 1 |
//! | `SIMASCEND_SPEED` | bytes that a copy or a fill moves in a nanosecond | 1024 |
//! | `SIMASCEND_VMM` | `0`: no virtual memory, as on Ascend RC | 1 |
//! | `SIMASCEND_FAIL` | `call:n:code`, joined by `;`: the n-th call of the model's function of that name (`cuMemMap`) fails with that code, CUDA's or AscendCL's | none |
//! | `SIMASCEND_MISSING` | names of functions, joined by `,`, that are not exported | none |
//!
//! An invalid value makes `aclInit` fail with 100000 and print a line on stderr. The simulated clock follows the wall
//! clock. Freeing memory under pending work, and work out of bounds, print a line on stderr.

// This library does not use all of the model.
#[allow(dead_code)]
#[path = "../../../src/driver/sim/model/mod.rs"]
mod model;
mod standin;
#[path = "../libcuda/symbols.rs"]
mod symbols;

use std::env;
use std::sync::Arc;

use model::{Machine, MachineConfig};

fn number<T: std::str::FromStr>(name: &str, default: T) -> Result<T, String> {
    match env::var(name) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|_| format!("{name}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

fn fail(machine: &Machine, rule: &str) -> Option<bool> {
    let mut parts = rule.trim().split(':');
    let (call, n, code) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then(|| machine.fail_nth(Some(call), n, code))
}

fn make() -> Result<Arc<Machine>, String> {
    let defaults = MachineConfig::default();
    let machine = Machine::new(MachineConfig {
        devices: number("SIMASCEND_DEVICES", defaults.devices)?,
        memory: number("SIMASCEND_MEMORY", defaults.memory)?,
        bytes_per_ns: number("SIMASCEND_SPEED", defaults.bytes_per_ns)?,
        virtual_memory: number("SIMASCEND_VMM", 1)? != 0,
        ..defaults
    });
    let rules = env::var("SIMASCEND_FAIL").unwrap_or_default();
    for rule in rules.split(';').filter(|rule| !rule.is_empty()) {
        if fail(&machine, rule) != Some(true) {
            return Err(format!(
                "SIMASCEND_FAIL has {rule}, which is no call:n:code of the model"
            ));
        }
    }
    Ok(machine)
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = load;

extern "C" fn load() {
    standin::process::make_with(make);
    let missing = env::var("SIMASCEND_MISSING").unwrap_or_default();
    for name in missing.split(',').filter(|name| !name.is_empty()) {
        match standin::find(name, false).or_else(|| standin::find(name, true)) {
            Some(function) => symbols::hide_symbol(function),
            None => eprintln!("simascend: SIMASCEND_MISSING has {name}, which is no function here"),
        }
    }
}
