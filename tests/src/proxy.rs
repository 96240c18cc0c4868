//! Proxy in front of a socket, Docker's or a daemon's. A test closes it to make the other side look stopped to clients of
//! the proxy only.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Socket of the local Docker.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// Proxy that forwards connections while it is open.
#[derive(Debug)]
pub struct Proxy {
    path: PathBuf,
    target: PathBuf,
    /// Task of the listener. Dropping it ends every connection.
    tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens at `path`, in front of the local Docker.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn open(path: &Path) -> Result<Self> {
        let host = std::env::var_os("DOCKER_HOST").and_then(|host| host.into_string().ok());
        let target = host
            .as_deref()
            .and_then(|host| host.strip_prefix("unix://"));
        Self::before(Path::new(target.unwrap_or(DOCKER_SOCKET)), path)
    }

    /// Listens at `path`, in front of the socket `target`, which need not be there yet.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn before(target: &Path, path: &Path) -> Result<Self> {
        let mut proxy = Self {
            path: path.to_owned(),
            target: target.to_owned(),
            tasks: JoinSet::new(),
        };
        proxy.reopen()?;
        Ok(proxy)
    }

    /// Ends every connection and forwards new ones again.
    ///
    /// # Errors
    /// When it cannot listen any more.
    pub async fn cut(&mut self) -> Result<()> {
        self.close().await?;
        self.reopen()
    }

    /// Returns the value of `engine.docker_host` that names the proxy.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Removes the socket and ends every connection, as if Docker had stopped.
    ///
    /// # Errors
    /// When the socket cannot be removed.
    pub async fn close(&mut self) -> Result<()> {
        std::fs::remove_file(&self.path).context("remove the proxy's socket")?;
        self.tasks.shutdown().await;
        Ok(())
    }

    /// Listens again, as if Docker had been started.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn reopen(&mut self) -> Result<()> {
        let listener = UnixListener::bind(&self.path).context("bind the proxy's socket")?;
        let target = self.target.clone();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward(near, target.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(())
    }
}

async fn forward(mut near: UnixStream, target: PathBuf) {
    // A connection that fails ends, as it would with Docker itself.
    if let Ok(mut far) = UnixStream::connect(&target).await {
        drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
    }
}
