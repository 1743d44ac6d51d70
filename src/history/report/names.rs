//! Names that fit into a line: of functions, and of stacks.

use std::borrow::Cow;
use std::collections::HashMap;

use super::model::{Report, ReportFrame};
use crate::history::symbols::NamedFrames;

/// How many characters a function and a file have in the name of a stack.
const FUNCTION: usize = 40;
const FILE: usize = 80;
/// How many frames the name of a stack has at most.
const FRAMES: usize = 4;
/// How many frames are compared at most for it.
const COMPARED: usize = 24;

impl Report {
    /// A name for each stack: the frame that names it (see [`Report::callers`]), and, for stacks that have this frame in
    /// common, the first frames outwards in which they differ. Different stacks have different names.
    pub fn stack_names(&self) -> Vec<String> {
        let callers = self.callers();
        let mut chosen: Vec<Vec<u32>> = callers.iter().map(|caller| caller.iter().copied().collect()).collect();
        let mut alike: HashMap<u32, Vec<u32>> = HashMap::new();
        for (stack, caller) in (0..).zip(&callers) {
            if let Some(caller) = caller {
                alike.entry(*caller).or_default().push(stack);
            }
        }
        for (caller, stacks) in alike {
            let outwards: Vec<Vec<u32>> = stacks
                .iter()
                .map(|stack| self.outward(*stack, Some(caller)).collect())
                .collect();
            tell_apart(&stacks, &outwards, 1, &mut chosen);
        }
        shorten(&mut chosen);
        let mut taken: HashMap<String, u32> = HashMap::new();
        let name = |frames: Vec<u32>| {
            if frames.is_empty() {
                return "no stack".to_owned();
            }
            let frames: Vec<String> = frames.iter().map(|frame| self.frame_name(*frame)).collect();
            let name = frames.join(" < ");
            // Stacks may differ in frames of a runtime alone.
            let count = taken.entry(name.clone()).or_default();
            *count += 1;
            match *count {
                1 => name,
                count => format!("{name} ({count})"),
            }
        };
        chosen.into_iter().map(name).collect()
    }

    /// A frame in one line: its function, without parameters and outer namespaces, its file and its line.
    pub fn frame_name(&self, frame: u32) -> String {
        let ReportFrame { filename, line, .. } = self.names.frames.all()[frame as usize];
        let name = self.function_name(frame);
        match (self.names.text(filename).rsplit('/').next().unwrap_or_default(), line) {
            ("", _) => name,
            (file, 0) => format!("{name} {}", cut(file, FILE)),
            (file, line) => format!("{name} {}:{line}", cut(file, FILE)),
        }
    }

    /// The function of a frame, without parameters and outer namespaces.
    pub fn function_name(&self, frame: u32) -> String {
        match self.names.text(self.names.frames.all()[frame as usize].name) {
            "" => "?".to_owned(),
            name => function(own_part(name), FUNCTION),
        }
    }
}

/// A name for each of some stacks whose frames have names.
pub(in crate::history) fn describe(frames: &NamedFrames, stacks: &[u32]) -> Vec<String> {
    let mut report = Report::default();
    let number = |stack: &u32| {
        let frames = frames.of(*stack).iter().map(|number| frames.frame(*number));
        let frames = frames
            .map(|frame| report.names.frame(&frame.name, &frame.filename, frame.line))
            .collect();
        report.names.stacks.number(frames)
    };
    let numbers: Vec<u32> = stacks.iter().map(number).collect();
    let names = report.stack_names();
    numbers
        .into_iter()
        .map(|number| names[number as usize].clone())
        .collect()
}

/// Adds to the frames of each of `stacks` those in which they differ, from the frame `at` outwards.
fn tell_apart(stacks: &[u32], outwards: &[Vec<u32>], at: usize, chosen: &mut [Vec<u32>]) {
    let mut open = vec![((0..stacks.len()).collect::<Vec<_>>(), at)];
    while let Some((group, from)) = open.pop() {
        let [first, others @ ..] = &group[..] else { continue };
        let first = &outwards[*first];
        let same = |other: &Vec<u32>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
        let Some(differs) = others.iter().map(|other| same(&outwards[*other])).min() else {
            continue;
        };
        let differs = differs.max(from);
        let mut parts: HashMap<Option<u32>, Vec<usize>> = HashMap::new();
        for stack in group {
            parts
                .entry(outwards[stack].get(differs).copied())
                .or_default()
                .push(stack);
        }
        for (frame, part) in parts {
            let Some(frame) = frame else { continue };
            let names = part.iter().map(|stack| stacks[*stack] as usize);
            names.for_each(|stack| chosen[stack].push(frame));
            if chosen[stacks[part[0]] as usize].len() < COMPARED {
                open.push((part, differs + 1));
            }
        }
    }
}

/// Leaves of each stack's frames the first, and as many of the last as it takes to differ from all others.
fn shorten(chosen: &mut [Vec<u32>]) {
    let mut open: Vec<usize> = (0..chosen.len()).filter(|stack| chosen[*stack].len() > 2).collect();
    for last in 1..FRAMES {
        let short = |frames: &[u32]| {
            let from = frames.len().saturating_sub(last).max(1);
            let mut short = frames[..1].to_vec();
            short.extend(&frames[from..]);
            short
        };
        let mut counts: HashMap<Vec<u32>, u32> = HashMap::new();
        for frames in chosen.iter().filter(|frames| !frames.is_empty()) {
            *counts.entry(short(frames)).or_default() += 1;
        }
        open.retain(|stack| {
            let short = short(&chosen[*stack]);
            let enough = counts[&short] == 1 || last + 1 == FRAMES;
            if enough {
                chosen[*stack] = short;
            }
            !enough
        });
    }
}

/// A function's name in at most about `most` characters. It loses its parameters first, then what is in angle brackets, then
/// the outer namespaces; the function itself stays.
fn function(name: &str, most: usize) -> String {
    let name = without_closures(name);
    let name = without_parameters(name);
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let name = without_arguments(name);
    let mut rest = name.as_str();
    let mut length = name.chars().count();
    while length > most {
        let Some(at) = next_segment(rest) else { break };
        rest = &rest[at..];
        length = rest.chars().count() + 3;
    }
    let text = if rest.len() < name.len() {
        format!("…::{rest}")
    } else {
        name.clone()
    };
    cut(&text, most).into_owned()
}

/// A text with at most so many characters, and an ellipsis where it had more.
pub(in crate::history::report) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((at, _)) => Cow::Owned(format!("{}…", &text[..at])),
        None => Cow::Borrowed(text),
    }
}

/// A function with its type or innermost namespace, which its file and line tell apart from others.
fn own_part(name: &str) -> &str {
    let name = without_parameters(without_closures(name));
    let (mut rest, mut before) = (name, name);
    while let Some(at) = next_segment(rest) {
        (before, rest) = (rest, &rest[at..]);
    }
    before
}

/// A closure is a part of its function.
fn without_closures(name: &str) -> &str {
    let mut name = name;
    while let Some(at) = name.rfind("::") {
        let last = &name[at + 2..];
        if !(last.starts_with("{{closure") || last.starts_with("{closure")) {
            break;
        }
        name = &name[..at];
    }
    name
}

/// Without the list of parameters at the end, and what follows it, as `const`.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    let tail = &name[end + 1..];
    if tail.contains("::") || tail.contains('>') {
        return name;
    }
    let mut depth = 0;
    for (at, c) in name[..=end].char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let head = name[..at].trim_end();
            // `operator()` is a name, and `(anonymous namespace)` alone is no list.
            return if head.is_empty() || head.ends_with("operator") || head.ends_with("::") {
                name
            } else {
                head
            };
        }
    }
    name
}

/// With an ellipsis between each pair of outer angle brackets. Those of operators and arrows stay.
fn without_arguments(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let (mut depth, mut before) = (0u32, ' ');
    for c in name.chars() {
        let operator = before == '-' && c == '>' || text.ends_with("operator") || text.ends_with("operator<");
        match c {
            '<' if !operator => {
                if depth == 0 {
                    text.push_str("<…");
                }
                depth += 1;
            }
            '>' if !operator && depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    text.push('>');
                }
            }
            _ if depth == 0 => text.push(c),
            _ => {}
        }
        before = c;
    }
    text
}

/// Where the name continues after its outermost namespace.
fn next_segment(name: &str) -> Option<usize> {
    let mut depth = 0u32;
    let bytes = name.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => return Some(at + 2),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::function;

    #[test]
    fn a_function_loses_its_parameters_first_and_itself_last() {
        for (name, most, short) in [
            ("main", 4, "main"),
            (
                "nvinfer1::Runtime::load(char const*, unsigned long)",
                60,
                "nvinfer1::Runtime::load",
            ),
            (
                "nvinfer1::Runtime::load(char const*, unsigned long) const",
                15,
                "…::load",
            ),
            (
                "(anonymous namespace)::run(std::function<void (int)>)",
                60,
                "(anonymous namespace)::run",
            ),
            ("Scratch::operator()(int) const", 60, "Scratch::operator()"),
            ("Scratch::operator()() const", 60, "Scratch::operator()"),
            ("operator new(unsigned long)", 60, "operator new"),
            ("server::serve::{{closure}}::{{closure}}", 60, "server::serve"),
            ("server::serve::{closure#0}", 60, "server::serve"),
            (
                "engine::Pool<std::vector<int>, float>::grow",
                25,
                "engine::Pool<…>::grow",
            ),
            ("<engine::Pool<u8> as core::ops::Drop>::drop", 12, "<…>::drop"),
            ("void cub::run<int>(int, float)", 60, "void cub::run<int>"),
            ("f<&operator<>(int)", 60, "f<&operator<>"),
            ("a_function_with_a_very_long_name", 10, "a_function…"),
            ("größe::größe::größe", 12, "…::größe"),
            ("", 5, ""),
        ] {
            assert_eq!(function(name, most), short, "{name}");
        }
    }
}
