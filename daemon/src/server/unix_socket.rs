//! Unix socket to listen on. It is bound in a directory where no other user can replace it, never taken from a running
//! server, and removed at the end.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use skilld_common::frame_socket::FrameSocket;
use tokio::net::{UnixListener, UnixSocket};

use crate::access::PeerAddress;
use crate::error::{Error, Result};
use crate::host_paths::{check_writable_directory, nearest_existing};

/// Maximum number of connections that the kernel queues before they are accepted.
pub(super) const BACKLOG: u32 = 1024;

/// Bound socket. Dropping it removes the socket's file, unless another server has replaced it.
#[derive(Debug)]
pub(super) struct BoundUnixSocket {
    inner: UnixListener,
    _file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl BoundUnixSocket {
    /// Binds the socket. A socket file on which no server answers is replaced.
    ///
    /// # Errors
    /// [`Error`] if a server answers at the path, the path is not a socket, or another user could replace the socket. The
    /// message says what to do.
    pub(super) fn bind(path: &Path, mode: u32, group: Option<&str>) -> Result<Self> {
        let failed = |source| Error::io(format!("listen on {}", path.display()), source);
        if let Some(parent) = path.parent() {
            let mut builder = std::fs::DirBuilder::new();
            // A permissive umask must not make directories in which others could replace the socket.
            let made = builder.recursive(true).mode(0o755).create(parent);
            made.map_err(failed)?;
            refuse_shared_directories(parent, parent)?;
        }
        if is_stale_socket(path)? {
            tracing::info!(socket = %path.display(), "removing the socket of a server that is gone");
            std::fs::remove_file(path)
                .map_err(|source| Error::io(format!("remove {}", path.display()), source))?;
        }
        let socket = UnixSocket::new_stream().map_err(failed)?;
        socket.bind(path).map_err(failed)?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: file_identity(path).map_err(failed)?,
        };
        // No client can connect before `listen`, so the umask's mode gives nobody access.
        if let Some(group) = group {
            let gid = find_group(group)?;
            // The daemon's packages forbid chown, and their daemon already has the group of its clients.
            if std::fs::metadata(path).map_err(failed)?.gid() != gid {
                std::os::unix::fs::chown(path, None, Some(gid)).map_err(failed)?;
            }
        }
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        let inner = socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { inner, _file: file })
    }

    /// Checks that [`Self::bind`] would succeed, and changes nothing. Blocks. A socket of the daemon that `is_running`
    /// is not connected to, because a connection may cost one of its clients theirs.
    ///
    /// # Errors
    /// Those of [`Self::bind`].
    pub(super) fn check(path: &Path, group: Option<&str>, is_running: bool) -> Result<()> {
        let failed = |source| Error::io(format!("listen on {}", path.display()), source);
        if let Some(parent) = path.parent() {
            let existing = nearest_existing(parent).map_err(failed)?;
            refuse_shared_directories(existing, parent)?;
            check_writable_directory(parent).map_err(failed)?;
        }
        if let Some(group) = group {
            find_group(group)?;
        }
        if !is_running {
            is_stale_socket(path)?;
        }
        Ok(())
    }

    /// Waits for a connection, and returns it with its user.
    ///
    /// # Errors
    /// The failure of the accept, for instance without free descriptors.
    pub(super) async fn accept(&self) -> io::Result<(FrameSocket, PeerAddress)> {
        let (stream, _) = self.inner.accept().await?;
        let peer = stream.peer_cred()?;
        let (uid, gid, pid) = (peer.uid(), peer.gid(), peer.pid());
        let address = PeerAddress::Unix { uid, gid, pid };
        Ok((FrameSocket::new(stream)?, address))
    }
}

/// Checks that other users can't replace the socket, by removing it or by renaming a directory on its path. `directory`
/// exists: it is that of the socket, `parent`, or the closest one above that.
///
/// Above the socket's own directory only directories that every user can write to are refused: an operator who runs the
/// daemon with sudo from a home directory owns the directories above.
fn refuse_shared_directories(directory: &Path, parent: &Path) -> Result<()> {
    let failed = |source| {
        let shown = directory.display();
        let operation = format!("look at the directory {shown} of the socket");
        Error::io(operation, source)
    };
    let canonical = directory.canonicalize().map_err(failed)?;
    // Check both: a link on the path can be replaced as well as its target.
    for ancestor in directory.ancestors().chain(canonical.ancestors()) {
        let metadata = std::fs::metadata(ancestor).map_err(failed)?;
        let is_own = directory == parent && (ancestor == directory || ancestor == canonical);
        let Some(why) = shared_with(&metadata, is_own) else {
            continue;
        };
        let why = format!(
            "{} {why}, who could put a socket of their own in its place: chmod or chown it, or choose another path \
             with --listen",
            ancestor.display()
        );
        return Err(Error::start("the directory of the socket", why));
    }
    Ok(())
}

/// Describes which other users than root and the daemon's can replace files in a directory; `None` if no other user
/// can. `is_own` is `true` for the socket's own directory.
fn shared_with(directory: &Metadata, is_own: bool) -> Option<String> {
    let (uid, gid) = (
        nix::unistd::geteuid().as_raw(),
        nix::unistd::getegid().as_raw(),
    );
    let mode = directory.mode();
    if is_own && directory.uid() != uid && directory.uid() != 0 {
        return Some(format!("belongs to the user with uid {}", directory.uid()));
    }
    // In a sticky directory only root, its owner (checked above) and the socket's owner can rename or remove the socket.
    if mode & 0o1000 != 0 {
        return None;
    }
    if mode & 0o002 != 0 {
        return Some(format!(
            "has mode {:04o} and can be written to by all users",
            mode & 0o7777
        ));
    }
    // Members of the daemon's own group are its clients. The group bits also cover access control lists.
    if is_own && mode & 0o020 != 0 {
        let group = if directory.gid() == gid {
            "the daemon's own group, that of its clients,"
        } else {
            "the group"
        };
        return Some(format!(
            "has mode {:04o} and can be written to by {group} with gid {}",
            mode & 0o7777,
            directory.gid()
        ));
    }
    None
}

/// Returns the number of a group that is given by name or number.
fn find_group(group: &str) -> Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(group)
        .ok()
        .flatten()
        .ok_or_else(|| {
            let why = format!(
                "there is no group {group:?}: run `groupadd {group}`, or set another group"
            );
            Error::start("the group of the socket", why)
        })?;
    Ok(found.gid.as_raw())
}

/// Returns `true` if the path is the socket of a server that no longer runs; `false` if it does not exist.
fn is_stale_socket(path: &Path) -> Result<bool> {
    let refuse = |why: &str, kind: io::ErrorKind| {
        Error::io(format!("listen on {}: {why}", path.display()), kind.into())
    };
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(false);
    };
    if !metadata.file_type().is_socket() {
        let why = "the path is not a socket; move it away, or choose another path with --listen";
        return Err(refuse(why, io::ErrorKind::AlreadyExists));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io(
            format!(
                "connect to {} to see whether a server listens there; choose another path with --listen",
                path.display()
            ),
            error,
        )),
        Ok(_) => {
            let why = "another server answers there; stop it, or choose another path with --listen";
            Err(refuse(why, io::ErrorKind::AddrInUse))
        }
    }
}

fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_identity(&self.path).is_ok_and(|found| found == self.identity) {
            // If this fails, the next start removes the stale file.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().join("run/skilld.sock")
    }

    #[tokio::test]
    async fn the_socket_has_its_mode_and_goes_away() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let listener = BoundUnixSocket::bind(&path(&dir), 0o660, None).expect("bind");
        let mode = std::fs::metadata(path(&dir))
            .expect("metadata")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(listener);
        assert!(!path(&dir).exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_taken_over() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("run")).expect("directory");
        // Binding without unlinking leaves the file of a killed server.
        drop(std::os::unix::net::UnixListener::bind(path(&dir)).expect("bind"));
        assert!(path(&dir).exists());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // A process that another test has forked keeps a copy of the listener until it executes its program.
        while let Err(error) = BoundUnixSocket::bind(&path(&dir), 0o660, None) {
            let answers = error.to_string().contains("another server answers there");
            assert!(answers && std::time::Instant::now() < deadline, "{error}");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn directories_where_others_can_replace_the_socket_are_refused() {
        use std::os::unix::fs::chown;

        let dir = tempfile::tempdir().expect("temporary directory");
        let (above, run) = (dir.path().join("above"), dir.path().join("above/run"));
        std::fs::create_dir_all(&run).expect("directories");
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
        };
        let bind = || BoundUnixSocket::bind(&run.join("skilld.sock"), 0o660, None).map(drop);
        for (mode_above, mode, part) in [
            (0o755, 0o777, Some("can be written to by all users")),
            (0o777, 0o755, Some("can be written to by all users")),
            (0o755, 0o775, Some("by the daemon's own group")),
            (0o755, 0o755, None),
            // As /tmp: the socket's own owner alone can replace it.
            (0o1777, 0o1777, None),
            (0o755, 0o1775, None),
        ] {
            set(&above, mode_above);
            set(&run, mode);
            let checked = BoundUnixSocket::check(&run.join("skilld.sock"), None, false);
            let refused = bind().err().map(|error| error.to_string());
            assert_eq!(checked.err().map(|error| error.to_string()), refused);
            match part {
                None => assert_eq!(refused, None),
                Some(part) => {
                    let refused = refused.expect("refused");
                    assert!(refused.contains(part), "{refused}");
                    assert!(
                        refused.contains("chmod or chown it, or choose another"),
                        "{refused}"
                    );
                    assert!(!run.join("skilld.sock").exists(), "nothing was made");
                }
            }
        }
        // Directories that the daemon makes are not shared, whatever the umask.
        let deep = dir.path().join("made/deep/skilld.sock");
        BoundUnixSocket::check(&deep, None, false).expect("it can be made");
        assert!(!dir.path().join("made").exists(), "a check makes nothing");
        BoundUnixSocket::bind(&deep, 0o660, None).expect("made");
        if nix::unistd::geteuid().is_root() {
            set(&above, 0o755);
            set(&run, 0o775);
            chown(&run, None, Some(12345)).expect("chown");
            let refused = bind().expect_err("the group").to_string();
            assert!(refused.contains("by the group with gid 12345"), "{refused}");
            set(&run, 0o755);
            chown(&run, Some(12345), None).expect("chown");
            let refused = bind().expect_err("the owner").to_string();
            assert!(
                refused.contains("belongs to the user with uid 12345"),
                "{refused}"
            );
        }
    }

    #[tokio::test]
    async fn a_living_server_keeps_its_socket() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let _first = BoundUnixSocket::bind(&path(&dir), 0o660, None).expect("first");
        let error = BoundUnixSocket::bind(&path(&dir), 0o660, None)
            .expect_err("second")
            .to_string();
        assert!(error.contains("another server answers there"), "{error}");
        let checked = BoundUnixSocket::check(&path(&dir), None, false);
        assert_eq!(checked.expect_err("in use").to_string(), error);
        BoundUnixSocket::check(&path(&dir), None, true).expect("it is the daemon's own");
        assert!(path(&dir).exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_removed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("run")).expect("directory");
        std::fs::write(path(&dir), "precious").expect("write");
        let error = BoundUnixSocket::bind(&path(&dir), 0o660, None)
            .expect_err("file")
            .to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(path(&dir)).expect("still there"), b"precious");
    }

    #[tokio::test]
    async fn a_socket_that_another_server_bound_since_stays() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = BoundUnixSocket::bind(&path(&dir), 0o660, None).expect("first");
        std::fs::remove_file(path(&dir)).expect("remove");
        let _second = std::os::unix::net::UnixListener::bind(path(&dir)).expect("second");
        drop(first);
        assert!(path(&dir).exists());
    }
}
