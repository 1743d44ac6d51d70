//! The metrics of several processes as one text.

use std::collections::HashMap;
use std::fmt::Write;

/// The format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus's own text format, version 0.0.4.
    Prometheus,
}

impl Format {
    /// The type of the content, as HTTP names it.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Default)]
struct Family {
    name: String,
    /// gauge or counter.
    kind: String,
    unit: String,
    help: String,
    /// The labels and the value of each sample.
    samples: Vec<(String, String)>,
}

/// Families of metrics, each with the samples of all processes.
#[derive(Default)]
pub struct Exposition {
    families: Vec<Family>,
    /// Where each family is.
    places: HashMap<String, usize>,
}

impl Exposition {
    fn family(&mut self, name: &str) -> &mut Family {
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            self.families.push(Family {
                name: name.to_owned(),
                ..Family::default()
            });
            self.families.len() - 1
        });
        &mut self.families[place]
    }

    /// Adds a family with these samples.
    pub fn add(&mut self, name: &str, kind: &str, help: &str, samples: Vec<(String, String)>) {
        let family = self.family(name);
        (family.kind, family.help) = (kind.into(), help.into());
        family.unit = if name.ends_with("_bytes") { "bytes" } else { "" }.into();
        family.samples.extend(samples);
    }

    /// Adds what a process answered: for each allocator a line `# allocator N` and its OpenMetrics text. Adds nothing where
    /// the answer is anything else.
    #[must_use]
    pub fn add_answer(&mut self, pid: u32, answer: &str) -> bool {
        let Some(families) = parse(pid, answer) else {
            return false;
        };
        for from in families {
            let to = self.family(&from.name);
            if to.kind.is_empty() {
                (to.kind, to.unit, to.help) = (from.kind, from.unit, from.help);
            }
            to.samples.extend(from.samples);
        }
        true
    }

    /// The text.
    pub fn text(&self, format: Format) -> String {
        let mut text = String::new();
        for Family {
            name,
            kind,
            unit,
            help,
            samples,
        } in &self.families
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let _ = match format {
                Format::OpenMetrics => {
                    let _ = writeln!(text, "# TYPE {name} {kind}");
                    if !unit.is_empty() {
                        let _ = writeln!(text, "# UNIT {name} {unit}");
                    }
                    writeln!(text, "# HELP {name} {help}")
                }
                // Here a counter's name has its suffix.
                Format::Prometheus => {
                    writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")
                }
            };
            for (labels, value) in samples {
                let _ = match labels.is_empty() {
                    true => writeln!(text, "{name}{suffix} {value}"),
                    false => writeln!(text, "{name}{suffix}{{{labels}}} {value}"),
                };
            }
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// The families of an answer, with labels of the process and the allocator; none where it is not what the library writes.
fn parse(pid: u32, answer: &str) -> Option<Vec<Family>> {
    let mut families: Vec<Family> = Vec::new();
    let mut allocator = None;
    for line in answer.lines() {
        let comment = line
            .strip_prefix("# ")
            .map(|rest| rest.split_once(' ').unwrap_or((rest, "")));
        match (comment, allocator) {
            (Some(("allocator", number)), None) => allocator = Some(number.parse::<u32>().ok()?),
            (_, None) => return None,
            (Some(("EOF", "")), Some(_)) => allocator = None,
            (Some((what, rest)), Some(_)) => {
                let (name, rest) = rest.split_once(' ')?;
                if what == "TYPE" {
                    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
                    let known =
                        name.strip_prefix("trtalloc_")?.bytes().all(is_name) && ["gauge", "counter"].contains(&rest);
                    families.push(Family {
                        name: known.then(|| name.to_owned())?,
                        kind: rest.to_owned(),
                        ..Family::default()
                    });
                    continue;
                }
                let family = families.last_mut().filter(|family| family.name == name)?;
                match what {
                    "UNIT" if name.ends_with(&format!("_{rest}")) => family.unit = rest.into(),
                    "HELP" if !rest.contains(['\\', '\r']) => family.help = rest.into(),
                    _ => return None,
                }
            }
            (None, Some(allocator)) => {
                let family = families.last_mut()?;
                let suffix = if family.kind == "counter" { "_total" } else { "" };
                let rest = line
                    .strip_prefix(&family.name)?
                    .strip_prefix(suffix)?
                    .strip_prefix('{')?;
                let (labels, value) = rest.rsplit_once("} ")?;
                let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite())?;
                let is_number = value
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || b".e-".contains(&byte));
                if !are_labels(labels) || !is_number || number < 0.0 {
                    return None;
                }
                let labels = format!("pid=\"{pid}\",allocator=\"{allocator}\",{labels}");
                family.samples.push((labels, value.into()));
            }
        }
    }
    allocator.is_none().then_some(families)
}

/// Whether this is `name="value",name="value"`, as the library writes them.
fn are_labels(mut text: &str) -> bool {
    for (name, first) in [("device=\"", true), ("tag=\"", false)] {
        match text.strip_prefix(name) {
            Some(rest) => text = rest,
            None => return !first && text.is_empty(),
        }
        let mut escaped = false;
        let end = text.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let Some(end) = end else { return false };
        text = &text[end + 1..];
        match text.strip_prefix(',') {
            Some(rest) if first => text = rest,
            _ => return text.is_empty(),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use trtalloc::support::stats::{Stats, TagStats, metrics};

    use super::*;

    fn answer(tag: &'static str) -> String {
        let stats = Stats {
            allocations: 7,
            wait_ns: 1_500_000_000,
            ..Stats::default()
        };
        let tag = TagStats {
            tag,
            allocated: 512,
            allocated_peak: 1024,
            limit: 0,
            allocations: 3,
            frees: 2,
            out_of_memory: 1,
        };
        let text = metrics(&[(0, stats, vec![tag]), (1, Stats::default(), Vec::new())]);
        format!(
            "# allocator 0\n{text}# allocator 2\n{}",
            metrics(&[(0, stats, Vec::new())])
        )
    }

    #[test]
    fn several_processes_are_one_text() {
        let mut all = Exposition::default();
        all.add("trtalloc_up", "gauge", "Up.", vec![("pid=\"4\"".into(), "1".into())]);
        assert!(all.add_answer(4, &answer("a \"} 1\" \\ \n,x=\"")));
        assert!(all.add_answer(5, &answer("b")));
        let text = all.text(Format::OpenMetrics);
        assert!(
            text.starts_with("# TYPE trtalloc_up gauge\n# HELP trtalloc_up Up.\ntrtalloc_up{pid=\"4\"} 1\n# TYPE ")
        );
        for part in [
            "# TYPE trtalloc_allocations counter\n# HELP trtalloc_allocations Requests that succeeded.\n\
             trtalloc_allocations_total{pid=\"4\",allocator=\"0\",device=\"0\"} 7\n\
             trtalloc_allocations_total{pid=\"4\",allocator=\"0\",device=\"1\"} 0\n\
             trtalloc_allocations_total{pid=\"4\",allocator=\"2\",device=\"0\"} 7\n\
             trtalloc_allocations_total{pid=\"5\",allocator=\"0\",device=\"0\"} 7\n",
            "# TYPE trtalloc_wait_seconds counter\n# UNIT trtalloc_wait_seconds seconds\n",
            "trtalloc_wait_seconds_total{pid=\"5\",allocator=\"2\",device=\"0\"} 1.5\n",
            "trtalloc_tag_allocated_bytes{pid=\"4\",allocator=\"0\",device=\"0\",tag=\"a \\\"} 1\\\" \\\\ \\n,x=\\\"\"} 512\n\
             trtalloc_tag_allocated_bytes{pid=\"5\",allocator=\"0\",device=\"0\",tag=\"b\"} 512\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1);
        let text = all.text(Format::Prometheus);
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
        let part = "# HELP trtalloc_allocations_total Requests that succeeded.\n# TYPE trtalloc_allocations_total counter\n\
                    trtalloc_allocations_total{pid=\"4\"";
        assert!(text.contains(part), "{text}");
    }

    #[test]
    fn answer_that_is_no_answer_adds_nothing() {
        let good = answer("b");
        let cut = good.len() - 1;
        assert!(parse(1, &good).is_some());
        for bad in [
            "nonsense",
            "# allocator 0\n",
            &good[..cut / 2],
            &good.replacen(" 7\n", " seven\n", 1),
            &good.replacen(" 7\n", " -7\n", 1),
            &good.replacen(" 7\n", " 7 123\n", 1),
            &good.replacen("device=\"0\"", "pid=\"0\"", 1),
            &good.replacen("device=\"0\"", "device=\"0", 1),
            &good.replacen("# TYPE trtalloc_", "# TYPE other_", 1),
            &good.replacen("# allocator 0\n", "", 1),
            &good.replacen(" counter\n", " histogram\n", 1),
        ] {
            let mut all = Exposition::default();
            assert!(!all.add_answer(1, bad), "{bad}");
            assert_eq!(all.text(Format::OpenMetrics), "# EOF\n");
        }
    }
}
