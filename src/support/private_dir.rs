//! The user's private directory, in which the processes of one user find each other.
//!
//! It is `XDG_RUNTIME_DIR/trtalloc`, or `/run/user/UID/trtalloc`, or `/tmp/trtalloc-UID`: the first whose parent exists and
//! is safe. It belongs to the process's effective user and only that user may enter it. A symbolic link is not followed.

use std::ffi::{CStr, CString};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::support::process;

/// An open private directory.
#[derive(Debug)]
pub struct PrivateDir {
    /// The directory itself, to open files in it.
    pub directory: OwnedFd,
    /// Where it is. Only its owner can move it or put another one in its place.
    pub path: PathBuf,
}

/// Opens the private directory, and makes it if it does not exist. The error is the reason in words.
pub fn private_dir() -> Result<PrivateDir, String> {
    let user = effective_user();
    // The environment is another user's where the process has gained rights.
    let named = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !process::has_gained_rights());
    let named = named.map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = PathBuf::from(format!("/run/user/{user}"));
    for parent in named.into_iter().chain([of_user]) {
        if let Some(directory) = open_directory(&parent).ok().filter(|open| is_private(open, 0o022)) {
            // The parent is the user's own. Where it takes no directory, the next one may.
            match inside(&directory, &parent, "trtalloc") {
                Err(Refused::NotMade(_)) => {}
                Err(Refused::NotPrivate(reason)) => return Err(reason),
                Ok(found) => return Ok(found),
            }
        }
    }
    let parent = Path::new("/tmp");
    let directory = open_directory(parent).map_err(|error| format!("/tmp: {error}"))?;
    inside(&directory, parent, &format!("trtalloc-{user}")).map_err(|refused| match refused {
        Refused::NotMade(reason) | Refused::NotPrivate(reason) => reason,
    })
}

/// The process's effective user.
pub fn effective_user() -> u32 {
    // SAFETY: only reads a value.
    unsafe { libc::geteuid() }
}

/// Opens a directory. The last part of the path is no symbolic link.
fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    open_directory_in(libc::AT_FDCWD, &terminated(path)?)
}

fn open_directory_in(parent: RawFd, name: &CStr) -> Result<OwnedFd, Error> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a terminated name and an open directory.
    let descriptor = unsafe { libc::openat(parent, name.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: a fresh descriptor, owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The path as a C string.
pub(in crate::support) fn terminated(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

/// Whether the directory belongs to the effective user, and nothing that `forbidden` names is allowed to others.
fn is_private(directory: &OwnedFd, forbidden: u32) -> bool {
    let status = status_of(directory.as_raw_fd());
    status.is_some_and(|status| status.st_uid == effective_user() && status.st_mode & forbidden == 0)
}

/// What `fstat` says of a descriptor; `None` where it is not open.
pub(in crate::support) fn status_of(descriptor: RawFd) -> Option<libc::stat> {
    // SAFETY: plain data, which the call fills.
    let mut status = unsafe { std::mem::zeroed::<libc::stat>() };
    // SAFETY: writes to a local. A descriptor that is not open is an error.
    (unsafe { libc::fstat(descriptor, &mut status) } == 0).then_some(status)
}

enum Refused {
    NotMade(String),
    NotPrivate(String),
}

fn inside(parent: &OwnedFd, at: &Path, name: &str) -> Result<PrivateDir, Refused> {
    let path = at.join(name);
    let refused = |error: Error| Refused::NotMade(format!("{}: {error}", path.display()));
    let text = terminated(Path::new(name)).map_err(refused)?;
    // SAFETY: a terminated name and an open directory.
    let made = unsafe { libc::mkdirat(parent.as_raw_fd(), text.as_ptr(), 0o700) } == 0;
    if !made {
        let error = Error::last_os_error();
        if error.raw_os_error() != Some(libc::EEXIST) {
            return Err(refused(error));
        }
    }
    match open_directory_in(parent.as_raw_fd(), &text) {
        Ok(directory) if is_private(&directory, 0o077) => Ok(PrivateDir { directory, path }),
        Ok(_) => Err(Refused::NotPrivate(format!(
            "{} is not this user's alone",
            path.display()
        ))),
        Err(error) => Err(Refused::NotPrivate(format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A fresh directory with only the user's rights.
    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("trtalloc-private-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn found(parent: &Path) -> Result<PathBuf, String> {
        let open = open_directory(parent).unwrap();
        match inside(&open, parent, "trtalloc") {
            Ok(found) => Ok(found.path),
            Err(Refused::NotMade(reason) | Refused::NotPrivate(reason)) => Err(reason),
        }
    }

    #[test]
    fn directory_is_made_once_for_its_owner_alone() {
        let parent = fresh("made");
        for _ in 0..2 {
            let path = found(&parent).unwrap();
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn links_files_and_open_directories_are_refused() {
        let parent = fresh("refused");
        let path = parent.join("trtalloc");
        std::os::unix::fs::symlink("/tmp", &path).unwrap();
        assert!(found(&parent).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(found(&parent).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        let reason = found(&parent).unwrap_err();
        assert!(reason.ends_with("trtalloc is not this user's alone"), "{reason}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(found(&parent), Ok(path));
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn process_has_a_private_directory() {
        let PrivateDir { directory, path } = private_dir().unwrap();
        assert!(is_private(&directory, 0o077), "{}", path.display());
    }
}
