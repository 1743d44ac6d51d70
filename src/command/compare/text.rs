//! The comparison as text.

use super::{Answer, DeviceAnswer, KindWithStack};
use crate::command::table::Table;

/// How many frames of a stack are shown. A page has all.
const FRAMES: usize = 8;

impl Answer {
    pub(super) fn text(&self) -> String {
        let mut text = format!("old     {}\nnew     {}\n", self.old, self.new);
        for device in &self.devices {
            text.push('\n');
            text += &device.text();
        }
        if self.devices.is_empty() {
            text += "\nno device has memory or events\n";
        }
        text
    }
}

impl DeviceAnswer {
    fn text(&self) -> String {
        let first = format!("device {}", self.number);
        let mut totals = Table::new(&[&first, "old", "new", "more"]);
        for row in &self.totals {
            totals.row(row.to_vec());
        }
        let mut text = totals.text();
        if self.tables.iter().all(|table| table.rows.is_empty()) {
            return text + "\nnothing is held more or less\n";
        }
        text += &format!("\n{}\n", self.lasting);
        for table in &self.tables {
            let mut header = vec![table.title, "old", "new", "more", "blocks more"];
            header.extend(self.knows_lasting.then_some("lasting"));
            let mut rows = Table::new(&header);
            for row in &table.rows {
                let mut cells = vec![
                    row.name.clone(),
                    row.old.clone(),
                    row.new.clone(),
                    row.more.clone(),
                    row.blocks.clone(),
                ];
                cells.extend(self.knows_lasting.then(|| row.lasting.clone()));
                rows.row(cells);
            }
            text.push('\n');
            text += &rows.text();
            if table.others > 0 {
                text += &format!("and {} more (--rows)\n", table.others);
            }
        }
        text + &section("held more", &self.more) + &section("held less", &self.less)
    }
}

fn section(title: &str, kinds: &[KindWithStack]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{title}, by name, stack and size\n");
    for kind in kinds {
        text += &format!("  {}\n", kind.words);
        if !kind.began.is_empty() {
            text += &format!("    {}\n", kind.began);
        }
        for frame in kind.frames.iter().take(FRAMES) {
            text += &format!("      {}\n", frame);
        }
        if kind.frames.len() > FRAMES {
            text += &format!("      and outer frames: {}\n", kind.frames.len() - FRAMES);
        }
    }
    text
}
