//! Package index on the loopback interface: serves a directory as a simple index of Python (PEP 503), and its folder `npm`
//! at the paths of a registry for npm.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::{Options, binaries};

/// Maximum size of the head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Runs a Python program of this repository that writes packages into a directory. `options` follow the directory.
///
/// # Errors
/// When it fails; its output is in the error.
pub async fn make_packages(program: &str, directory: &Path, options: &[&str]) -> Result<()> {
    let made = Command::new("python3")
        .arg("-B")
        .arg(binaries::repository().join(program))
        .arg(directory)
        .args(options)
        .output()
        .await?;
    ensure!(made.status.success(), "{program}: {made:?}");
    Ok(())
}

/// Program that writes the wheels of the compatibility cases.
pub const MAKE_WHEELS: &str = "tests/skills-compat/wheelhouse/make_wheels.py";

/// Package index of a directory. Dropping the value stops it.
#[derive(Debug)]
pub struct PackageIndex {
    address: SocketAddr,
    shared: Arc<SharedState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct SharedState {
    directory: PathBuf,
    /// URL before the path of a file in the simple index; empty for files of this server.
    files_url: String,
    /// Paths that were requested, in order.
    requests: watch::Sender<Vec<String>>,
    /// `false` while files are held back.
    is_open: watch::Sender<bool>,
}

impl PackageIndex {
    /// Serves a directory.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn serve(directory: &Path) -> Result<Self> {
        Self::serve_with_files_at(directory, "").await
    }

    /// Serves a directory, and names another server for the files of its simple index.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn serve_with_files_at(directory: &Path, files_url: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(SharedState {
            directory: directory.to_owned(),
            files_url: files_url.to_owned(),
            requests: watch::Sender::default(),
            is_open: watch::Sender::new(true),
        });
        let mut tasks = JoinSet::new();
        let state = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(Arc::clone(&state).answer_request(stream));
            }
        });
        Ok(Self {
            address,
            shared,
            _tasks: tasks,
        })
    }

    /// Returns the host and port of the server.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Returns the URL of the server, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds the settings of a daemon whose builds get packages of Python from this index.
    #[must_use]
    pub fn for_python(&self, options: Options) -> Options {
        let url = format!("{}/simple", self.url());
        options
            .set("skills.package_index", &url)
            .set("skills.allow_private_addresses", "true")
    }

    /// Adds the settings of a daemon whose builds get packages of Node.js from this index.
    #[must_use]
    pub fn for_node(&self, options: Options) -> Options {
        let url = format!("{}/npm", self.url());
        options
            .set("skills.node_package_index", &url)
            .set("skills.allow_private_addresses", "true")
    }

    /// Returns the paths that were requested so far.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.borrow().clone()
    }

    /// Waits until a path with this ending was requested.
    pub async fn wait_for_request(&self, ending: &str) {
        let mut requests = self.shared.requests.subscribe();
        let is_requested = |paths: &Vec<String>| paths.iter().any(|path| path.ends_with(ending));
        // The sender lives as long as `self`.
        let _ = requests.wait_for(is_requested).await;
    }

    /// Holds the contents of files back until [`Self::release_files`]; pages of the index are answered.
    pub fn hold_files(&self) {
        self.shared.is_open.send_replace(false);
    }

    /// Sends the contents of files again.
    pub fn release_files(&self) {
        self.shared.is_open.send_replace(true);
    }
}

impl SharedState {
    /// Answers one request and closes the connection. A client that goes away early is no fault of the server.
    async fn answer_request(self: Arc<Self>, mut stream: TcpStream) {
        let Ok((method, path)) = read_request(&mut stream).await else {
            return;
        };
        self.requests.send_modify(|paths| paths.push(path.clone()));
        let body = match path.strip_prefix("/simple/") {
            Some(name) => self.simple_page(name.trim_end_matches('/')),
            None => self.file(&path).await,
        };
        let (status, body) = match body {
            Ok(body) => ("200 OK", body),
            Err(_) => ("404 Not Found", Vec::new()),
        };
        let kind = match path.ends_with('/') {
            true => "text/html",
            false => "application/octet-stream",
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream.write_all(head.as_bytes()).await;
        if sent.is_ok() && method != "HEAD" {
            let _ = stream.write_all(&body).await;
        }
        let _ = stream.shutdown().await;
    }

    /// Returns the page of a package in the simple index, with the hashes of its files.
    fn simple_page(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut page = String::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            let stem = file.split("-1.").next().unwrap_or_default();
            let is_python = file.ends_with(".whl") || file.ends_with(".tar.gz");
            if is_python && stem.replace('_', "-") == name {
                let bytes = std::fs::read(self.directory.join(&file))?;
                let digest: String = Sha256::digest(bytes)
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                let url = format!("{}/files/{file}#sha256={digest}", self.files_url);
                page += &format!("<a href=\"{url}\">{file}</a>\n");
            }
        }
        match page.is_empty() {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(page.into_bytes()),
        }
    }

    /// Returns a file of the directory: `/files/FILE`, or for `/npm/PACKAGE/-/FILE` one of its folder `npm`.
    async fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        let file = path.rsplit('/').next().unwrap_or_default();
        let folder = match path.starts_with("/npm/") {
            true => self.directory.join("npm"),
            false => self.directory.clone(),
        };
        let body = tokio::fs::read(folder.join(file)).await?;
        let mut is_open = self.is_open.subscribe();
        // The sender lives as long as `self`.
        let _ = is_open.wait_for(|is_open| *is_open).await;
        Ok(body)
    }
}

/// Reads the head of a request and returns its method and its path.
async fn read_request(stream: &mut TcpStream) -> Result<(String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < HEAD_BYTES_MAX, "the head is too long");
        ensure!(stream.read_buf(&mut head).await? > 0, "the head broke off");
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split(' ').map(str::to_owned);
    Ok((
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    ))
}
