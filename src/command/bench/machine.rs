//! Describes the machine. `benches/compare` includes this file by its path.

/// The processor, the number of cores that this process may use, and the kernel.
pub fn name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, {} cores, {}, Linux {}",
        processor(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        cores(),
        std::env::consts::ARCH,
        kernel.trim()
    )
}

/// How many threads can run at the same time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// Describes the first processor in /proc/cpuinfo: on x86 its name, family and model, on Arm its numbers.
fn processor(cpuinfo: &str) -> String {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let fields: Vec<(&str, &str)> = first.lines().filter_map(|line| line.split_once(':')).collect();
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim())
    };
    let named = |name: &str, words: &[(&str, &str)]| {
        let words = words
            .iter()
            .filter_map(|(key, word)| Some(format!("{word} {}", field(key)?)));
        format!("{name} ({})", words.collect::<Vec<_>>().join(", "))
    };
    match field("model name") {
        Some(name) => named(name, &[("cpu family", "family"), ("model", "model")]),
        None => named("processor", &[("CPU implementer", "implementer"), ("CPU part", "part")]),
    }
}
