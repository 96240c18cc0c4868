//! Client of the calls to Podman that bollard does not have. These are calls of Podman's own API, and calls of its
//! Docker API whose answers bollard can't parse. One connection per call, as short as the call.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;

use bollard::errors::Error as DockerError;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

/// Maximum size of a response, in bytes. A list of 1,000 containers has about 2 MiB.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Response with a success status, or Podman's message.
pub(super) type CallResult = Result<Bytes, DockerError>;

/// Error response of Podman, with the key of each of its APIs.
#[derive(Debug, Default, Deserialize)]
struct ErrorResponse {
    #[serde(default)]
    message: String,
}

/// Sends a request to the socket and returns the response body. `path` has the query; `body` is JSON, or empty.
///
/// The caller sets the deadline.
///
/// # Errors
///
/// [`DockerError::DockerResponseServerError`] with Podman's message for an error status; another variant if Podman did not
/// respond.
pub(super) async fn call_podman(
    socket: &str,
    method: Method,
    path: &str,
    body: String,
) -> CallResult {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        // Podman's server refuses HTTP/1.1 without a host, although a socket has none.
        .header(http::header::HOST, "podman")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = read_body(response.into_body()).await?;
        Ok::<_, DockerError>((status, body))
    };
    // The connection does the work of the exchange; it ends after it, or breaks and ends the exchange.
    let connection = async {
        drop(connection.await);
        std::future::pending::<Infallible>().await
    };
    let (status, body) = tokio::select! {
        done = exchange => done?,
        never = connection => match never {},
    };
    if status.is_success() {
        return Ok(body);
    }
    Err(error_response(status, &body))
}

fn error_response(status: StatusCode, body: &[u8]) -> DockerError {
    let parsed: ErrorResponse = serde_json::from_slice(body).unwrap_or_default();
    DockerError::DockerResponseServerError {
        status_code: status.as_u16(),
        message: parsed.message,
    }
}

/// Reads a response up to [`RESPONSE_BYTES_MAX`].
async fn read_body(mut body: Incoming) -> Result<Bytes, DockerError> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > RESPONSE_BYTES_MAX {
            let message = format!("the response has more than {RESPONSE_BYTES_MAX} bytes");
            return Err(std::io::Error::other(message).into());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.into())
}
