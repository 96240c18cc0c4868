//! The listening socket: bound without stealing it from a living server, removed at the end, and accepting no
//! more connections at once than configured.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use crate::config::ServerConfig;
use crate::error::{Error, Result};

/// Connections that the kernel holds while none is accepted.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept. Descriptors that ran out come back when connections close, not sooner.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket. Its file is removed when this is dropped, if it is still ours.
#[derive(Debug)]
pub(super) struct Listener {
    inner: UnixListener,
    _file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Listener {
    /// Binds. A socket file on which nobody answers is taken over; one on which somebody does, and any other
    /// kind of file, is an error.
    ///
    /// # Errors
    /// When the path cannot be had, with what to do.
    pub(super) fn bind(path: &Path, mode: u32) -> Result<Self> {
        let failed = |source| Error::Io {
            operation: format!("listen on {}", path.display()),
            source,
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        clear(path)?;
        let socket = UnixSocket::new_stream().map_err(failed)?;
        socket.bind(path).map_err(failed)?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(path).map_err(failed)?,
        };
        // Nobody can connect before listen, so nobody gets in while the mode is still the umask's.
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        let inner = socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { inner, _file: file })
    }

    /// Connections as they come. Never ends by itself, and never yields an error: accepting goes on after one.
    /// `cut` ends all of them at once.
    pub(super) fn connections(
        self,
        config: &ServerConfig,
        cut: CancellationToken,
    ) -> impl Stream<Item = std::result::Result<Connection, Infallible>> + use<> {
        let permits = Arc::new(Semaphore::new(config.connections_max));
        let deadline = config.handshake_timeout;
        futures::stream::unfold(
            (self, permits, cut),
            move |(listener, permits, cut)| async move {
                // Closed by nobody.
                let permit = Arc::clone(&permits).acquire_owned().await.ok()?;
                let stream = listener.accept().await;
                let connection = Connection::new(stream, permit, deadline, cut.clone());
                Some((Ok(connection), (listener, permits, cut)))
            },
        )
    }

    async fn accept(&self) -> UnixStream {
        let mut failing = false;
        loop {
            match self.inner.accept().await {
                Ok((stream, _)) => {
                    if let Ok(peer) = stream.peer_cred() {
                        tracing::debug!(
                            pid = peer.pid(),
                            uid = peer.uid(),
                            gid = peer.gid(),
                            "connection"
                        );
                    }
                    return stream;
                }
                Err(error) => {
                    // Once per streak: it fails twenty times a second while descriptors are short.
                    if !failing {
                        tracing::warn!(error = %error, "connections cannot be accepted");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Removes a socket that a dead server left behind.
fn clear(path: &Path) -> Result<()> {
    let refuse = |why: &str, kind: io::ErrorKind| Error::Io {
        operation: format!("listen on {}: {why}", path.display()),
        source: kind.into(),
    };
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        let why = "there is something that is not a socket; move it away, or choose another path with --listen";
        return Err(refuse(why, io::ErrorKind::AlreadyExists));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(socket = %path.display(), "removing the socket of a server that is gone");
            std::fs::remove_file(path).map_err(|source| Error::Io {
                operation: format!("remove {}", path.display()),
                source,
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::Io {
            operation: format!(
                "find out who listens on {}; choose another path with --listen",
                path.display()
            ),
            source: error,
        }),
        Ok(_) => {
            let why = "another server answers there; stop it, or choose another path with --listen";
            Err(refuse(why, io::ErrorKind::AddrInUse))
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // What is left behind is found stale by the next start.
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
        let listener = Listener::bind(&path(&dir), 0o660).expect("bind");
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
        Listener::bind(&path(&dir), 0o660).expect("taken over");
    }

    #[tokio::test]
    async fn a_living_server_keeps_its_socket() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let _first = Listener::bind(&path(&dir), 0o660).expect("first");
        let error = Listener::bind(&path(&dir), 0o660)
            .expect_err("second")
            .to_string();
        assert!(error.contains("another server answers there"), "{error}");
        assert!(path(&dir).exists());
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_never_removed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("run")).expect("directory");
        std::fs::write(path(&dir), "precious").expect("write");
        let error = Listener::bind(&path(&dir), 0o660)
            .expect_err("file")
            .to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(path(&dir)).expect("still there"), b"precious");
    }

    #[tokio::test]
    async fn a_socket_that_another_server_bound_since_stays() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = Listener::bind(&path(&dir), 0o660).expect("first");
        std::fs::remove_file(path(&dir)).expect("remove");
        let _second = std::os::unix::net::UnixListener::bind(path(&dir)).expect("second");
        drop(first);
        assert!(path(&dir).exists());
    }
}
