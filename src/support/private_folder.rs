//! The private folder in which the processes of one user find each other: only that user may enter it, and no symbolic
//! link leads there.
//!
//! It is `trtalloc` in XDG_RUNTIME_DIR or in /run/user/UID, else /tmp/trtalloc-UID.

use std::ffi::{CString, OsStr, OsString};
use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::support::process;

/// A place where the folder may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    base: PathBuf,
    name: String,
    /// The base belongs to the user alone, too.
    private_base: bool,
}

/// An open folder.
pub struct Folder {
    descriptor: OwnedFd,
}

impl Place {
    /// The places of a user, in the order in which they are tried. `runtime` is XDG_RUNTIME_DIR.
    pub fn of_user(user: u32, runtime: Option<OsString>) -> Vec<Place> {
        let in_base = |base: PathBuf| Place {
            base,
            name: "trtalloc".into(),
            private_base: true,
        };
        let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
        let mut places: Vec<Place> = runtime.into_iter().map(in_base).collect();
        places.push(in_base(format!("/run/user/{user}").into()));
        places.push(Place {
            base: "/tmp".into(),
            name: format!("trtalloc-{user}"),
            private_base: false,
        });
        places
    }

    /// Opens the folder, as `owner` has it. Its path begins at `root`, which is that of another process for a container.
    pub fn open(&self, root: BorrowedFd<'_>, owner: u32) -> Result<Folder> {
        self.open_in(&self.open_base(root, owner)?, owner)
    }

    /// As [`Place::open`], and makes the folder where it is missing. The caller is the owner.
    pub fn create(&self, root: BorrowedFd<'_>, owner: u32) -> Result<Folder> {
        let base = self.open_base(root, owner)?;
        let name = terminated(OsStr::new(&self.name))?;
        // SAFETY: an open folder and a terminated name.
        let made = unsafe { libc::mkdirat(base.as_raw_fd(), name.as_ptr(), 0o700) };
        if made != 0 && Error::last_os_error().kind() != ErrorKind::AlreadyExists {
            return Err(Error::last_os_error());
        }
        self.open_in(&base, owner)
    }

    fn open_base(&self, root: BorrowedFd<'_>, owner: u32) -> Result<OwnedFd> {
        let mut at = root.try_clone_to_owned()?;
        for component in self.base.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => at = open_folder(&at, name)?,
                Component::ParentDir | Component::Prefix(_) => return Err(ErrorKind::InvalidInput.into()),
            }
        }
        if self.private_base {
            check_private(&at, owner)?;
        }
        Ok(at)
    }

    fn open_in(&self, base: &OwnedFd, owner: u32) -> Result<Folder> {
        let descriptor = open_folder(base, OsStr::new(&self.name))?;
        check_private(&descriptor, owner)?;
        Ok(Folder { descriptor })
    }

    /// The first folder of this process's effective user that can be made, and its path. The error names the last place that
    /// was tried. XDG_RUNTIME_DIR counts for nothing where the process has gained rights: it is another user's then.
    pub fn create_first() -> std::result::Result<(Folder, PathBuf), String> {
        let user = effective_user();
        let root = root(Path::new("/")).map_err(|error| format!("/: {error}"))?;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !process::has_gained_rights());
        let mut failed = String::new();
        for place in Place::of_user(user, runtime) {
            match place.create(root.as_fd(), user) {
                Ok(folder) => return Ok((folder, place.path())),
                Err(error) => failed = format!("{}: {error}", place.path().display()),
            }
        }
        Err(failed)
    }

    /// The folder's path, for messages.
    pub fn path(&self) -> PathBuf {
        self.base.join(&self.name)
    }
}

impl From<Folder> for OwnedFd {
    fn from(folder: Folder) -> OwnedFd {
        folder.descriptor
    }
}

impl Folder {
    /// A path of a file in this folder that leads through no other folder.
    pub fn path_of(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.descriptor.as_raw_fd()).into()
    }

    /// The folder's content can be listed at this path.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()).into()
    }

    /// The state of a file in this folder; a symbolic link is not followed.
    pub fn status(&self, name: &str) -> Result<libc::stat> {
        let name = terminated(OsStr::new(name))?;
        let mut status = MaybeUninit::uninit();
        let (folder, flags) = (self.descriptor.as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: an open folder, a terminated name, and room on this frame.
        match unsafe { libc::fstatat(folder, name.as_ptr(), status.as_mut_ptr(), flags) } {
            // SAFETY: the call succeeded, so it wrote all of it.
            0 => Ok(unsafe { status.assume_init() }),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Removes a file of this folder.
    pub fn remove(&self, name: &str) -> Result<()> {
        let name = terminated(OsStr::new(name))?;
        // SAFETY: an open folder and a terminated name.
        match unsafe { libc::unlinkat(self.descriptor.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }
}

/// The root of this process, or of another one (`/proc/PID/root`).
pub fn root(path: &Path) -> Result<OwnedFd> {
    let path = terminated(path.as_os_str())?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a terminated path.
    owned(unsafe { libc::open(path.as_ptr(), flags) })
}

/// Opens a folder of a folder. A symbolic link is refused.
fn open_folder(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    let name = terminated(name)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: an open folder and a terminated name.
    owned(unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), flags) })
}

fn owned(descriptor: i32) -> Result<OwnedFd> {
    match descriptor {
        -1 => Err(Error::last_os_error()),
        // SAFETY: a fresh descriptor, owned here alone.
        descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
    }
}

/// The process's effective user.
pub(in crate::support) fn effective_user() -> u32 {
    // SAFETY: only reads a value.
    unsafe { libc::geteuid() }
}

/// The text as C has it.
pub(in crate::support) fn terminated(text: &OsStr) -> Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

/// The state of an open file.
pub(in crate::support) fn status_of(descriptor: RawFd) -> Result<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room on this frame. A descriptor that is not open is an error.
    match unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } {
        // SAFETY: the call succeeded, so it wrote all of it.
        0 => Ok(unsafe { status.assume_init() }),
        _ => Err(Error::last_os_error()),
    }
}

/// Refuses a folder that another user owns or may enter.
fn check_private(folder: &OwnedFd, owner: u32) -> Result<()> {
    let status = status_of(folder.as_raw_fd())?;
    match status.st_uid == owner && status.st_mode & 0o077 == 0 {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::PermissionDenied,
            "a folder that is not the user's alone",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn create(place: &Place) -> Result<PathBuf> {
        let root = root(Path::new("/"))?;
        place.create(root.as_fd(), effective_user()).map(|_| place.path())
    }

    #[test]
    fn folder_is_made_for_its_owner_alone_and_others_are_refused() {
        let base = std::env::temp_dir().join(format!("trtalloc-folder-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir(&base).unwrap();
        let rights = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let place = Place::of_user(effective_user(), Some(base.clone().into())).remove(0);
        rights(&base, 0o755);
        create(&place).unwrap_err();
        rights(&base, 0o700);
        for _ in 0..2 {
            let mode = std::fs::metadata(create(&place).unwrap()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        let folder = place.path();
        rights(&folder, 0o750);
        create(&place).unwrap_err();
        std::fs::remove_dir(&folder).unwrap();
        symlink("/tmp", &folder).unwrap();
        create(&place).unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        create(&place).unwrap_err();
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn every_process_has_a_folder() {
        let (_, path) = Place::create_first().unwrap();
        assert!(path.is_absolute());
    }
}
