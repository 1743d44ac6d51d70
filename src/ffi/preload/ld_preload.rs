//! Whether the dynamic linker preloaded this library.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::dynamic_linker;

/// Whether this library is in the `LD_PRELOAD` with which the process was started, or in `/etc/ld.so.preload`.
/// Changes that the program has made to its environment since concern only its children.
pub fn is_preloaded() -> bool {
    let Some(own) = dynamic_linker::own_path() else {
        return false;
    };
    let started_with = match std::fs::read("/proc/self/environ") {
        Ok(environment) if is_intact(&environment) => variable(&environment).map(<[u8]>::to_owned),
        _ => std::env::var_os("LD_PRELOAD").map(|value| value.as_bytes().to_owned()),
    };
    let system = std::fs::read("/etc/ld.so.preload").unwrap_or_default();
    names(&started_with.unwrap_or_default(), &own) || names(&system, &own)
}

/// Whether the initial environment was not overwritten. Servers that show their state as their name (Python's
/// setproctitle, nginx) move their variables and write over the memory.
fn is_intact(environment: &[u8]) -> bool {
    let entries = environment.strip_suffix(&[0]).unwrap_or(environment);
    environment.is_empty() || entries.split(|&byte| byte == 0).all(|entry| entry.contains(&b'='))
}

fn variable(environment: &[u8]) -> Option<&[u8]> {
    environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="))
}

/// Whether one of the libraries in `list` is the file `own`. The loader searches for a name without a slash, and puts words
/// of its own in place of `$LIB` and the like. Then only the names of the files are compared.
fn names(list: &[u8], own: &Path) -> bool {
    list.split(|byte| byte.is_ascii_whitespace() || *byte == b':')
        .filter(|item| !item.is_empty())
        .map(|item| Path::new(OsStr::from_bytes(item)))
        .any(|item| match item.as_os_str().as_bytes() {
            bytes if !bytes.contains(&b'/') || bytes.contains(&b'$') => own.file_name() == item.file_name(),
            _ => match (item.canonicalize(), own.canonicalize()) {
                (Ok(item), Ok(own)) => item == own,
                _ => item == own,
            },
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_is_found_among_others_unless_overwritten() {
        let environment = b"A=1\0XLD_PRELOAD=/no\0LD_PRELOAD=/a b:/c\0LD_PRELOAD_2=x\0";
        assert_eq!(variable(environment), Some(&b"/a b:/c"[..]));
        assert_eq!(variable(b"LD_PRELOAD\0"), None);
        assert_eq!(variable(b""), None);
        assert!(is_intact(environment) && is_intact(b"A=\0") && is_intact(b""));
        for overwritten in [&b"\0\0\0"[..], b"server: idle\0\0\0", b"idle\0A=1\0", b"A=1\0\0"] {
            assert!(!is_intact(overwritten), "{overwritten:?}");
        }
    }

    #[test]
    fn library_is_recognized_by_path_or_name() {
        let own = Path::new("/opt/lib/libtrtalloc.so.0");
        for list in [
            &b"/opt/lib/libtrtalloc.so.0"[..],
            b"/x.so:/opt/lib/libtrtalloc.so.0",
            b" /x.so  libtrtalloc.so.0\n",
            b"/opt/$LIB/libtrtalloc.so.0",
            b"/x.so ${ORIGIN}/../lib/libtrtalloc.so.0",
        ] {
            assert!(names(list, own), "{}", String::from_utf8_lossy(list));
        }
        for list in [
            &b""[..],
            b":: ",
            b"/other/libtrtalloc.so.0",
            b"libtrtalloc.so",
            b"./libtrtalloc.so.0",
            b"/opt/$LIB/libtrtalloc.so",
        ] {
            assert!(!names(list, own), "{}", String::from_utf8_lossy(list));
        }
        // One file under two paths.
        let here = std::env::current_exe().unwrap();
        let same = here.parent().unwrap().join(".").join(here.file_name().unwrap());
        assert!(names(same.as_os_str().as_bytes(), &here));
    }
}
