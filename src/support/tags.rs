//! Tags: names for allocations, such as an engine, a model or a framework. A thread has a tag for its allocations, or a
//! request brings one: that of a named adapter of TensorRT. A name is interned for the life of the process, and each pool
//! counts what each tag holds.

use std::borrow::Cow;
use std::cell::Cell;

use parking_lot::RwLock;

use crate::support::error::{Error, Result};
use crate::support::process;

/// A tag's number; 0 is none.
pub type Tag = u32;

/// The maximum number of names in one process.
pub(crate) const MAX_TAGS: usize = 1023;

/// The maximum length of a name, in bytes.
const MAX_TAG_BYTES: usize = 255;

static NAMES: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Tag> = const { Cell::new(0) };
}

/// Sets the name for this thread's allocations from now on. `None` or an empty name removes it.
pub fn set(name: Option<&str>) -> Result<()> {
    let tag = match name.filter(|name| !name.is_empty()) {
        Some(name) => intern(name)?,
        None => 0,
    };
    if tag != 0 {
        process::note_tags();
    }
    // A thread whose thread-locals were destroyed allocates without a tag.
    let _ = CURRENT.try_with(|current| current.set(tag));
    Ok(())
}

/// A name that may be a tag, from any bytes: what is not UTF-8 becomes U+FFFD, and a name that is too long is cut.
#[doc(hidden)]
pub fn readable(name: &[u8]) -> Cow<'_, str> {
    let name = String::from_utf8_lossy(name);
    if name.len() <= MAX_TAG_BYTES {
        return name;
    }
    let end = name.floor_char_boundary(MAX_TAG_BYTES);
    name[..end].to_owned().into()
}

/// A name for a line of text: control characters are escaped.
#[doc(hidden)]
pub fn printable(name: &str) -> String {
    let escaped = name.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    escaped.collect()
}

/// This thread's tag. No request reads it before the first one was set: see `process::is_instrumented`.
pub fn current() -> Tag {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

/// The number of a name. The name stays for the life of the process.
pub fn intern(name: &str) -> Result<Tag> {
    process::usable()?;
    if name.is_empty() || name.len() > MAX_TAG_BYTES {
        return Err(Error::InvalidArgument(format!(
            "a tag has 1 to {MAX_TAG_BYTES} bytes, not {}",
            name.len()
        )));
    }
    let known = |names: &[&str]| names.iter().position(|known| *known == name).map(|at| at as Tag + 1);
    if let Some(tag) = known(&NAMES.read()) {
        return Ok(tag);
    }
    let mut names = NAMES.write();
    if let Some(tag) = known(&names) {
        return Ok(tag);
    }
    if names.len() == MAX_TAGS {
        return Err(Error::InvalidArgument(format!("more than {MAX_TAGS} tags")));
    }
    names.push(Box::leak(name.into()));
    Ok(names.len() as Tag)
}

/// The name of a tag.
pub fn name(tag: Tag) -> Option<&'static str> {
    NAMES.read().get((tag as usize).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_has_one_number_and_a_thread_one_tag() {
        let one = intern("tags: one").unwrap();
        assert_eq!(intern("tags: one").unwrap(), one);
        assert_ne!(intern("tags: other").unwrap(), one);
        assert_eq!((name(one), name(0), name(u32::MAX)), (Some("tags: one"), None, None));
        set(Some("tags: one")).unwrap();
        assert_eq!(current(), one);
        std::thread::spawn(|| assert_eq!(current(), 0)).join().unwrap();
        assert!(set(Some(&"x".repeat(256))).is_err());
        assert_eq!(current(), one);
        set(Some("")).unwrap();
        assert_eq!(current(), 0);
    }
}
