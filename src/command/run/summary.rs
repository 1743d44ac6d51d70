//! The summary that `run` prints on its last line.

use trtalloc::support::run_statistics::ProcessFigures;

use crate::command::doctor::{NOT_CAUGHT, version_in_words};
use crate::command::table::size;

/// Summarises the statistics of all processes in one line.
pub fn line(all: &[ProcessFigures], refused: bool) -> String {
    let users: Vec<&ProcessFigures> = all.iter().filter(|figures| figures.version != 0).collect();
    let who = match users.len() {
        0 => "no TensorRT was seen".into(),
        count => {
            let mut names: Vec<_> = users.iter().map(|figures| version_in_words(figures.version)).collect();
            names.sort();
            names.dedup();
            format!("{} was used by {}", names.join(", "), processes(count))
        }
    };
    let sum = |figure: fn(&ProcessFigures) -> u64| all.iter().map(figure).sum::<u64>();
    let (attached, left) = (sum(|f| f.attached.into()), sum(|f| f.left.into()));
    let mut parts = vec![who];
    if left > 0 {
        parts.push(format!(
            "{left} of its {} objects kept its own allocator",
            attached + left
        ));
    }
    if attached > 0 && sum(|f| f.allocations) + sum(|f| f.out_of_memory) == 0 {
        parts.push("no memory was requested: no engine was run, or the program set an allocator of its own".into());
    } else if sum(|f| f.allocations) + sum(|f| f.out_of_memory) > 0 {
        let maximum = |figure: fn(&ProcessFigures) -> u64| size(all.iter().map(figure).max().unwrap_or(0));
        let each = if all.len() > 1 { " of one process" } else { "" };
        parts.push(format!(
            "peak{each} {} in use, {} reserved; {} allocations, {} refused",
            maximum(|f| f.allocated_peak),
            maximum(|f| f.reserved_peak),
            sum(|f| f.allocations),
            sum(|f| f.out_of_memory),
        ));
    }
    let cut = all.iter().filter(|figures| !figures.ended).count();
    if cut > 0 {
        parts.push(format!(
            "{} did not exit by itself, so its figures are of shortly before",
            processes(cut)
        ));
    }
    // Where nothing could be injected, a line before says so.
    if users.is_empty() && !refused {
        parts.push(format!("what cannot be seen: {NOT_CAUGHT}"));
    }
    parts.join("; ")
}

fn processes(count: usize) -> String {
    match count {
        1 => "one process".into(),
        _ => format!("{count} processes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_summarises_all_processes() {
        let nothing = format!("no TensorRT was seen; what cannot be seen: {NOT_CAUGHT}");
        assert_eq!(line(&[], false), nothing);
        assert_eq!(line(&[], true), "no TensorRT was seen");
        let one = ProcessFigures {
            pid: 1,
            version: 101_601,
            attached: 2,
            ended: true,
            allocated_peak: 3 << 20,
            reserved: 0,
            reserved_peak: 4 << 20,
            allocations: 7,
            ..ProcessFigures::default()
        };
        assert_eq!(
            line(&[one], false),
            "TensorRT 10.16.1 was used by one process; peak 3.0 MiB in use, 4.0 MiB reserved; 7 allocations, 0 refused"
        );
        let other = ProcessFigures {
            version: 120_000,
            attached: 0,
            left: 1,
            ended: false,
            allocations: 0,
            allocated_peak: 0,
            reserved_peak: 0,
            ..one
        };
        assert_eq!(
            line(&[one, other], false),
            "TensorRT 10.16.1, TensorRT 12.0.0 was used by 2 processes; 1 of its 3 objects kept its own allocator; peak of one \
             process 3.0 MiB in use, 4.0 MiB reserved; 7 allocations, 0 refused; one process did not exit by itself, so its \
             figures are of shortly before"
        );
        let idle = ProcessFigures { allocations: 0, ..one };
        assert_eq!(
            line(&[idle], false),
            "TensorRT 10.16.1 was used by one process; no memory was requested: no engine was run, or the program set an \
             allocator of its own"
        );
        // Every request was refused.
        let refused = ProcessFigures {
            version: 0,
            attached: 0,
            allocations: 0,
            out_of_memory: 2,
            allocated_peak: 0,
            reserved_peak: 0,
            ..one
        };
        let said =
            "no TensorRT was seen; peak 0 B in use, 0 B reserved; 0 allocations, 2 refused; what cannot be seen: ";
        assert!(line(&[refused], false).starts_with(said), "{}", line(&[refused], false));
        // The program created the allocator itself, or uses it for something other than TensorRT.
        let without = ProcessFigures { version: 0, ..one };
        assert!(line(&[without], false).starts_with("no TensorRT was seen; peak 3.0 MiB in use"));
    }
}
