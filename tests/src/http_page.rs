//! Pages over plain HTTP: metrics of a daemon, answers of Prometheus.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Fetches a page over HTTP/1.0, whose end is that of the connection.
///
/// # Errors
/// When the server does not answer with status 200.
pub async fn fetch_page(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    ensure!(head.contains(" 200 "), "{path}: {answer}");
    Ok(body.to_owned())
}
