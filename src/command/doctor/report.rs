//! How findings are laid out: a heading, a line a finding, and under it what to do.

use std::fmt::Write;

/// Columns before a finding's text.
const INDENT: usize = 24;

/// Columns of what is written to be read as text.
const WIDTH: usize = 110;

/// Text under construction.
pub struct Report {
    text: String,
}

impl Report {
    pub fn new() -> Report {
        Report { text: String::new() }
    }

    /// Starts a part.
    pub fn section(&mut self, name: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(name);
    }

    /// What was found of `what`.
    pub fn found(&mut self, what: &str, found: &str) {
        let width = INDENT - 2;
        // What is longer than its column has a line of its own.
        if what.chars().count() >= width {
            self.line(&format!("  {what}"));
            self.line(&format!("{:INDENT$}{found}", ""));
        } else {
            self.line(&format!("  {what:<width$}{found}"));
        }
    }

    /// What to do about what was found last.
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

    fn line(&mut self, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{}", text.trim_end());
    }
}
