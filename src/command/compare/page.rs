//! The comparison as a page: one file, which loads nothing and runs no script.

use super::{Answer, DeviceAnswer, KindWithStack};

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; max-width: 100%; display: block; overflow-x: auto; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 7rem; white-space: normal; overflow-wrap: anywhere; }
.more { color: light-dark(#b3261e, #ff8a80); } .less { color: light-dark(#1b6e3c, #80d8a0); }
li { margin: .6rem 0; } li p { margin: .1rem 0; font-weight: 600; } pre { margin: .3rem 0 .3rem 1rem; overflow-x: auto; }
@media (max-width: 42rem) {
  body { font-size: 14px; margin: 1rem auto; } ol { padding-left: 1.2rem; } li pre { margin-left: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
  table, thead, tbody { display: block; } th, td { padding: .15rem 0; white-space: normal; border: 0; }
  tr { display: flex; flex-wrap: wrap; gap: 0 .4rem; font-size: 13px; border-bottom: 1px solid #8884; padding: .2rem 0; }
  tr > * { flex: 1 1 0; min-width: 0; } tr > :first-child { flex: 1 0 100%; }
}
";

impl Answer {
    pub(super) fn page(&self) -> String {
        // Names are enough where they differ.
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let (mut old, mut new) = (escaped(&name(&self.old)), escaped(&name(&self.new)));
        if old == new {
            (old, new) = (escaped(&self.old), escaped(&self.new));
        }
        let devices: String = self.devices.iter().map(DeviceAnswer::page).collect();
        let nothing = match self.devices.is_empty() {
            true => "<p>No device has memory or events.</p>\n",
            false => "",
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{new} compared with {old}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>What {new} holds more than {old}</h1>\n{devices}{nothing}</body>\n</html>\n"
        )
    }
}

impl DeviceAnswer {
    fn page(&self) -> String {
        let header = [
            format!("Device {}", self.number),
            "old".into(),
            "new".into(),
            "more".into(),
        ];
        let mut page = section("held more", &self.more);
        page += &table(&header, self.totals.iter().map(|row| row.to_vec()), 3);
        if self.tables.iter().all(|table| table.rows.is_empty()) {
            return page + "<p>Nothing is held more or less.</p>\n";
        }
        page += &format!("<p>{}</p>\n", escaped(&self.lasting));
        for each in &self.tables {
            let mut header: Vec<String> = [each.title, "old", "new", "more", "blocks more"]
                .map(String::from)
                .into();
            header.extend(self.knows_lasting.then(|| "lasting".into()));
            let rows = each.rows.iter().map(|row| {
                let mut cells = vec![&row.name, &row.old, &row.new, &row.more, &row.blocks];
                cells.extend(self.knows_lasting.then_some(&row.lasting));
                cells.into_iter().cloned().collect()
            });
            page += &table(&header, rows, 3);
            if each.others > 0 {
                page += &format!("<p>and {} more</p>\n", each.others);
            }
        }
        format!(
            "<h2>Device {}</h2>\n{page}{}",
            self.number,
            section("held less", &self.less)
        )
    }
}

/// A table. The cells of the column `signed` begin with the sign of a difference.
fn table(header: &[String], rows: impl Iterator<Item = Vec<String>>, signed: usize) -> String {
    let head: String = header
        .iter()
        .map(|name| format!("<th>{}</th>", escaped(name)))
        .collect();
    let cell = |(at, text): (usize, &String)| {
        let class = match text.as_bytes().first() {
            Some(b'+') if at == signed => " class=\"more\"",
            Some(b'-') if at == signed => " class=\"less\"",
            _ => "",
        };
        format!("<td{class}>{}</td>", escaped(text))
    };
    let body: String = rows
        .map(|row| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()))
        .collect();
    format!("<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n")
}

fn section(title: &str, kinds: &[KindWithStack]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let item = |kind: &KindWithStack| {
        let frames: Vec<String> = kind.frames.iter().map(|frame| escaped(frame)).collect();
        let stack = match frames.is_empty() {
            true => String::new(),
            false => format!("<pre>{}</pre>", frames.join("\n")),
        };
        let began = match kind.began.is_empty() {
            true => String::new(),
            false => format!("<p>{}</p>", escaped(&kind.began)),
        };
        format!("<li>{}{began}{stack}</li>\n", escaped(&kind.words))
    };
    let items: String = kinds.iter().map(item).collect();
    format!("<h3>{title}, by name, stack and size</h3>\n<ol>\n{items}</ol>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
