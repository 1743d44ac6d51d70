//! Reads the JSON that a process sends: an object a line.

use serde_json::{Map, Value};
use trtalloc::error::{Error, Result};

/// An object. A process of another version may leave out a key.
#[derive(Debug)]
pub struct Object(Map<String, Value>);

impl Object {
    /// A number; 0 where there is none.
    pub fn number(&self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    /// A text; empty where there is none.
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The objects of a list; none where there is no list.
    pub fn list(&self, key: &str) -> Vec<Object> {
        let items = self.0.get(key).and_then(Value::as_array).into_iter().flatten();
        items
            .filter_map(|item| Some(Object(item.as_object()?.clone())))
            .collect()
    }
}

/// Reads one object a line.
pub fn lines(text: &str) -> Result<Vec<Object>> {
    let unread = |_| Error::Io("the process's answer cannot be read".into());
    let read = |line| serde_json::from_str(line).map(Object).map_err(unread);
    text.lines().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_sends_is_read() {
        let line = r#"{"allocator":0,"device":1,"reserved":18446744073709551615,"tags":[{"tag":"a \"b\" \\ \u000aü","limit":3},{}]}"#;
        let objects = lines(&format!("{line}\n{{}}\n")).unwrap();
        assert_eq!(objects.len(), 2);
        assert_eq!(
            (objects[0].number("device"), objects[0].number("reserved")),
            (1, u64::MAX)
        );
        let tags = objects[0].list("tags");
        assert_eq!(tags.len(), 2);
        assert_eq!((tags[0].text("tag"), tags[0].number("limit")), ("a \"b\" \\ \nü", 3));
        assert_eq!((objects[1].number("device"), objects[1].text("tag")), (0, ""));
        assert!(objects[1].list("tags").is_empty());
        let deep = r#"{"a":["#.repeat(1000);
        for other in ["{}}", "[]", "{\"a\":1,}", "{\"a\":\"\\u00\"}", &line[..40], &deep] {
            assert!(lines(other).is_err(), "{other}");
        }
    }
}
