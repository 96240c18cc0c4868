//! A socket in front of the server whose connections break after a number of bytes.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

pub(crate) fn start(tasks: &mut JoinSet<()>, server: PathBuf, path: PathBuf, cuts: Vec<u64>) {
    let listener = UnixListener::bind(path).expect("a socket");
    tasks.spawn(async move {
        let mut cuts = cuts.into_iter();
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let cut = cuts.next().unwrap_or(u64::MAX);
            let server = server.clone();
            connections.spawn(async move {
                // Broken connections are what this is for.
                drop(carry(client, &server, cut).await);
            });
        }
    });
}

async fn carry(mut client: UnixStream, server: &Path, cut: u64) -> io::Result<()> {
    let mut server = UnixStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (reader, mut to_server) = server.split();
    let mut from_server = reader.take(cut);
    tokio::select! {
        up = tokio::io::copy(&mut from_client, &mut to_server) => up?,
        down = tokio::io::copy(&mut from_server, &mut to_client) => down?,
    };
    to_client.flush().await
}
