//! Tables in plain text.

use std::fmt::Write;

/// Rows under a header.
pub struct Table {
    rows: Vec<Vec<String>>,
    words: bool,
}

impl Table {
    /// A table with these column names. The first column is aligned left, the others, which hold figures, right.
    pub fn new(header: &[&str]) -> Table {
        Table {
            rows: vec![header.iter().map(|name| name.to_string()).collect()],
            words: false,
        }
    }

    /// A table with all columns aligned left.
    pub fn words(header: &[&str]) -> Table {
        Table {
            words: true,
            ..Table::new(header)
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, one line for each row.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for (column, cell) in self.rows.iter().flat_map(|row| row.iter().enumerate()) {
            widths[column] = widths[column].max(cell.chars().count());
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let wide = widths[column];
                // Writing to a String cannot fail.
                let _ = match column {
                    0 => write!(line, "{cell:<wide$}"),
                    _ if self.words => write!(line, "  {cell:<wide$}"),
                    _ => write!(line, "  {cell:>wide$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Bytes as MiB with one decimal.
pub fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1u64 << 20) as f64)
}

/// Formats bytes in a readable unit.
pub fn size(bytes: u64) -> String {
    trtalloc::history::report::bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["what", "n"]);
        table.row(vec!["a".into(), "1000".into()]);
        table.row(vec!["longer".into(), "2".into()]);
        assert_eq!(table.text(), "what       n\na       1000\nlonger     2\n");
    }

    #[test]
    fn sizes_have_a_readable_unit() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(24 << 30), "24.0 GiB");
        assert_eq!(mib(3 << 19), "1.5");
    }
}
