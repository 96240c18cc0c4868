//! Files and artifacts that the daemon sends: printed, or written to a local file.

use futures::TryStreamExt;
use serde_json::json;
use skilld_client::Download;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::output::transfer_bar::TransferBar;
use crate::output::{self, proto_json, value_formats};

/// Maximum size of a file in a JSON object, in bytes.
const JSON_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Prints a file on stdout, byte for byte; in JSON `{"path": …, "text": …, "base64": …}`. Returns the exit code.
pub(crate) async fn print_download<H>(mut file: Download<H>, path: &str) -> anyhow::Result<u8> {
    if !output::is_json() {
        // Without a bar, which would stand between the lines on a terminal.
        let mut stdout = tokio::io::stdout();
        while let Some(data) = file.next().await? {
            stdout.write_all(&data).await?;
        }
        stdout.flush().await?;
        return Ok(0);
    }
    let mut bytes = Vec::new();
    while let Some(data) = file.next().await? {
        bytes.extend_from_slice(&data);
        if bytes.len() as u64 > JSON_FILE_BYTES_MAX {
            anyhow::bail!(
                "the file has more than {}: leave out -o json, and its bytes are printed as they are",
                value_formats::format_bytes(JSON_FILE_BYTES_MAX)
            );
        }
    }
    let (text, base64) = proto_json::from_bytes(&bytes);
    output::print_value(&json!({"path": path, "text": text, "base64": base64}))?;
    Ok(0)
}

/// Writes a download and shows a progress bar with `name`; returns the file's metadata and the number of bytes. `total`
/// is the expected number of bytes, if it is known.
pub(crate) async fn write_download<H>(
    file: Download<H>,
    name: &str,
    total: Option<u64>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<(H, u64)> {
    let bar = TransferBar::new(name);
    if let Some(total) = total {
        bar.set_total(total);
    }
    let (header, mut data) = file.into_parts();
    let mut bytes = 0;
    while let Some(data) = data.try_next().await? {
        writer.write_all(&data).await?;
        bytes += data.len() as u64;
        bar.add(data.len());
    }
    writer.flush().await?;
    Ok((header, bytes))
}
