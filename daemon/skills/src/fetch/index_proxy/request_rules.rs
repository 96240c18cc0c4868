//! Rules of a single request: its form and its target, the headers that are not passed on, and errors as responses.

use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use reqwest::Body;

use super::super::{FetchError, FetchErrorKind, WebUrl};

/// Headers that concern one connection only (RFC 9110, 7.6.1), and those that a proxy's client sends by old custom.
const HOP_HEADERS: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Request that is answered with an error.
#[derive(Debug)]
pub(super) struct RefusedRequest {
    status: StatusCode,
    pub(super) why: String,
}

// === impl RefusedRequest ===

impl RefusedRequest {
    /// Makes an error with the text of its body, one line.
    pub(super) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self {
            status,
            why: why.into(),
        }
    }

    /// Returns the response with the text as its body.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.why)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            let methods = HeaderValue::from_static("CONNECT, GET, HEAD");
            headers.insert(header::ALLOW, methods);
        }
        response
    }
}

impl From<FetchError> for RefusedRequest {
    fn from(error: FetchError) -> Self {
        let status = match &error.kind {
            FetchErrorKind::Url { .. } => StatusCode::BAD_REQUEST,
            FetchErrorKind::Address { .. } => StatusCode::FORBIDDEN,
            FetchErrorKind::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            FetchErrorKind::Downgrade { .. }
            | FetchErrorKind::Redirects { .. }
            | FetchErrorKind::Unreachable { .. }
            | FetchErrorKind::Status { .. }
            | FetchErrorKind::TooLarge { .. }
            | FetchErrorKind::Checksum { .. }
            | FetchErrorKind::File { .. }
            | FetchErrorKind::Client { .. } => StatusCode::BAD_GATEWAY,
        };
        let is_setting =
            matches!(&error.kind, FetchErrorKind::Address { refused } if refused.allowable);
        let advice = match is_setting {
            true => ": set skills.allow_private_addresses",
            false => "",
        };
        Self::new(status, format!("{error}{advice}"))
    }
}

/// Returns the URL that a request is about: its target, or `https://HOST:PORT/` for a tunnel.
pub(super) fn requested_url(request: &Request<Incoming>) -> Result<WebUrl, RefusedRequest> {
    let bad_request = |why: &str| Err(RefusedRequest::new(StatusCode::BAD_REQUEST, why));
    let (method, target) = (request.method(), request.uri());
    if ![Method::CONNECT, Method::GET, Method::HEAD].contains(method) {
        let why = format!("{method} is not proxied: use CONNECT, GET or HEAD");
        return Err(RefusedRequest::new(StatusCode::METHOD_NOT_ALLOWED, why));
    }
    if !request.body().is_end_stream() {
        return bad_request("a request with a body is not proxied: use a tunnel by CONNECT");
    }
    if method != Method::CONNECT {
        return match target.scheme_str() {
            Some("http") => Ok(target.to_string().parse()?),
            Some(_) => bad_request("only http:// URLs are proxied: use CONNECT for https"),
            None => bad_request("this is a proxy: the target must be an http:// URL"),
        };
    }
    match (target.authority(), target.path_and_query()) {
        (Some(authority), None) if authority.port().is_some() => {
            Ok(format!("https://{authority}/").parse()?)
        }
        _ => bad_request("the target of CONNECT must be HOST:PORT"),
    }
}

/// Removes the headers that concern one connection, also those that the message itself names.
pub(super) fn remove_hop_headers(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|names| names.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_HEADERS.iter().chain(&listed) {
        headers.remove(name);
    }
}
