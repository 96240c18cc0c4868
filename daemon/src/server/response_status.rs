//! Statuses on the wire: in the trailers of a stream, or in the headers of a call that fails at once.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

/// Makes the last frame of a stream that ends with a status.
pub(super) fn status_trailers(status: &Status) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    if let Err(status) = status.add_header(&mut trailers) {
        tracing::error!(error = %status, "status does not fit into trailers");
    }
    write_uri_signs(&mut trailers);
    Frame::trailers(trailers)
}

/// Makes the answer of a call that fails at once.
pub(super) fn status_response(status: &Status) -> Response<Body> {
    let mut response = status.clone().into_http();
    write_uri_signs(response.headers_mut());
    response
}

/// Writes `?` and `#` of a status' message as they are: tonic encodes them, and the decoder of JavaScript's clients
/// (`decodeURI`) would leave `%3F` and `%23`.
pub(super) fn write_uri_signs(headers: &mut HeaderMap) {
    let Some(message) = headers.get_mut(Status::GRPC_MESSAGE) else {
        return;
    };
    // A percent sign is %25, so these are no other text.
    let plain = message.to_str().unwrap_or_default().replace("%3F", "?");
    if let Ok(plain) = HeaderValue::from_str(&plain.replace("%23", "#")) {
        *message = plain;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_question_marks_and_hashes() {
        let status = Status::not_found("out/what?.md #1 is 100%3F gone");
        let response = status_response(&status);
        let written = &response.headers()[Status::GRPC_MESSAGE];
        assert_eq!(written, "out/what?.md%20#1%20is%20100%253F%20gone");
        let read = Status::from_header_map(response.headers());
        assert_eq!(
            read.map(|read| read.message().to_owned()).as_deref(),
            Some(status.message())
        );
    }
}
