//! A process's socket: its name, and how it is made, found and removed.

use std::io::{Error, ErrorKind, Result};
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::private_folder::{self, Folder, Place};

/// How many clients may wait.
const BACKLOG: i32 = 16;

/// A file that refuses connections, and is as old as this, is of a process that has ended. Between its creation and the
/// moment when it accepts connections lie microseconds.
const STALE: Duration = Duration::from_secs(10);

/// The name of a process's file: its number and the inode of its namespace of process numbers, since several containers
/// may share a folder.
pub fn name(pid: u32, namespace: u64) -> String {
    format!("{pid}.{namespace}")
}

/// The process number and the namespace in a file's name.
pub fn parse(name: &str) -> Option<(u32, u64)> {
    let (pid, namespace) = name.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(pid) && digits(namespace)).then_some(())?;
    Some((pid.parse().ok()?, namespace.parse().ok()?))
}

/// The namespace of process numbers of `process`, a number or `self`.
pub fn namespace(process: &str) -> Result<u64> {
    let path = format!("/proc/{process}/ns/pid");
    match std::fs::metadata(&path) {
        Ok(status) => Ok(status.ino()),
        Err(error) => Err(Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

/// The file of this process. It remembers which one it made.
pub struct SocketFile {
    place: Place,
    name: String,
    owner: u32,
    inode: u64,
}

impl SocketFile {
    /// Makes the socket in the first folder where that is possible. The error names the last place that was tried.
    pub fn create(owner: u32) -> Result<(SocketFile, UnixListener)> {
        let name = name(std::process::id(), namespace("self")?);
        let root = private_folder::root(Path::new("/"))?;
        let mut failed = Error::from(ErrorKind::NotFound);
        for place in Place::of_user(owner, std::env::var_os("XDG_RUNTIME_DIR")) {
            let made = place.create(root.as_fd(), owner).and_then(|folder| {
                let listener = bind(&folder, &name)?;
                Ok((folder.status(&name)?.st_ino, listener))
            });
            match made {
                Ok((inode, listener)) => {
                    let file = SocketFile {
                        place,
                        name,
                        owner,
                        inode,
                    };
                    return Ok((file, listener));
                }
                Err(error) => failed = Error::new(error.kind(), format!("{}: {error}", place.path().display())),
            }
        }
        Err(failed)
    }

    /// Removes the file, if it is still the one that was made.
    pub fn remove(&self) {
        let removed = private_folder::root(Path::new("/")).and_then(|root| {
            let folder = self.place.open(root.as_fd(), self.owner)?;
            match folder.status(&self.name)?.st_ino == self.inode {
                true => folder.remove(&self.name),
                false => Ok(()),
            }
        });
        if let Err(error) = removed {
            tracing::debug!(%error, "the control socket's file could not be removed");
        }
    }
}

/// Makes the socket. A file that an earlier process with this number left is replaced.
fn bind(folder: &Folder, name: &str) -> Result<UnixListener> {
    let path = folder.path_of(name);
    let listener = match UnixListener::bind(&path) {
        // Another copy of the library in this process may serve it.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_refused(&path) => {
            folder.remove(name)?;
            UnixListener::bind(&path)?
        }
        other => other?,
    };
    listener.set_nonblocking(true)?;
    // SAFETY: an open socket.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(listener)
}

fn is_refused(path: &Path) -> bool {
    matches!(connect(path), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

/// Connects without waiting: where too many clients wait already, that is an error.
fn connect(path: &Path) -> Result<UnixStream> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain arguments.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: a fresh descriptor, owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: plain data, for which zeros are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.as_os_str().as_bytes();
    if path.len() >= address.sun_path.len() {
        return Err(ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address of that length on this frame.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => {
            let stream = UnixStream::from(socket);
            stream.set_nonblocking(false)?;
            Ok(stream)
        }
        _ => Err(Error::last_os_error()),
    }
}

/// What a file in a user's folder is.
pub enum Found {
    /// A process serves it.
    Served(UnixStream),
    /// No process serves it. The file may be removed where it was left by one that has ended.
    Refused,
}

/// Connects to the socket of that name. The file belongs to `owner`, and is no symbolic link.
pub fn open(folder: &Folder, name: &str, owner: u32) -> Result<Found> {
    let status = folder.status(name)?;
    if status.st_mode & libc::S_IFMT != libc::S_IFSOCK || status.st_uid != owner {
        return Err(Error::new(ErrorKind::PermissionDenied, "not a socket of that user"));
    }
    match connect(&folder.path_of(name)) {
        Ok(stream) => Ok(Found::Served(stream)),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Found::Refused),
        Err(error) => Err(error),
    }
}

/// Removes a file that refused a connection, if its process has ended. `namespace` is the caller's own.
pub fn remove_stale(folder: &Folder, name: &str, namespace: u64) -> Result<()> {
    let Some((pid, of)) = parse(name) else { return Ok(()) };
    let status = folder.status(name)?;
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(status.st_ctime.max(0) as u64);
    let is_old = changed.elapsed().is_ok_and(|age| age > STALE);
    let is_gone = of == namespace && !Path::new(&format!("/proc/{pid}")).exists();
    match is_old || is_gone {
        true => folder.remove(name),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_a_process_and_its_namespace() {
        assert_eq!(name(12, 4_026_531_836), "12.4026531836");
        assert_eq!(parse("12.4026531836"), Some((12, 4_026_531_836)));
        for other in ["", "12", "12.", ".5", "+1.5", "12.x", "12.5.6", "99999999999.1"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
