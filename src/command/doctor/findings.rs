//! The layout of findings: headings, a line for each finding, and advice below it.

use std::fmt::Write;

use trtalloc::tags::printable;

/// The column at which a finding's text begins.
const INDENT: usize = 24;

/// The width at which advice is wrapped.
const WIDTH: usize = 110;

/// The report so far.
pub struct Findings {
    text: String,
}

impl Findings {
    pub fn new() -> Findings {
        Findings { text: String::new() }
    }

    /// Begins a section.
    pub fn section(&mut self, name: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(name);
    }

    /// Adds the finding about `what`.
    pub fn found(&mut self, what: &str, found: &str) {
        let width = INDENT - 2;
        // A name longer than its column gets a line of its own.
        if what.chars().count() >= width {
            self.line(&format!("  {what}"));
            self.line(&format!("{:INDENT$}{found}", ""));
        } else {
            self.line(&format!("  {what:<width$}{found}"));
        }
    }

    /// Adds advice about the last finding.
    pub fn advice(&mut self, text: &str) {
        let mut line = format!("{:INDENT$}->", "");
        for word in text.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                line = format!("{:INDENT$}  ", "");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Names are from files of unknown origin.
    fn line(&mut self, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{}", printable(text.trim_end()));
    }
}
