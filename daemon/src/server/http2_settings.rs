//! HTTP/2 settings of every listener. tonic leaves most limits unlimited.

use std::time::Duration;

use crate::config::ServerConfig;

/// Maximum size of an HTTP/2 frame in bytes. The protocol's default of 16 KiB would cut a usual file chunk into 16.
pub(super) const FRAME_BYTES_MAX: u32 = (256 << 10) + 1024;
/// HTTP/2 receive window of one stream, in bytes. h2 ends a connection whose unread small frames cost half of its
/// window, at 256 bytes less the size of each. One stream of stdin that a program does not read stays below that with
/// frames of at least 16 bytes. More would be used by fast uploads from far away only.
const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2 receive window of one connection, in bytes: the most memory that one client can fill.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Interval between keep-alive pings on an idle connection. Together with `server.keepalive_timeout` it is the time in
/// which the daemon notices a vanished client.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Limit of HTTP/2 for the headers of a request, in bytes. It refuses a longer request with HTTP status 431. It ends
/// the connection beyond four times the limit, or seven frames (16 KiB each from most clients). The call layer refuses
/// calls at a lower limit, with a reason.
const HEADER_READ_BYTES: u32 = 64 << 10;
/// Number of streams that a client may have opened and reset before the daemon looks at them, for each that may be
/// open. A client may cancel all of its calls at once and make others; a peer that does so for ever exceeds it
/// (CVE-2023-44487).
const PENDING_RESETS_PER_STREAM: u32 = 2;
/// Maximum number of streams that a client made the server reset; beyond it the connection is closed (CVE-2025-8671).
/// tonic's default is no limit. HTTP/2 counts over the life of the connection, also what a good client causes now and
/// then: data for a call that has been answered.
const LOCAL_RESETS_MAX: usize = 1 << 14;

/// Makes a server builder with the HTTP/2 limits of the configuration.
pub(super) fn http2_builder(config: &ServerConfig) -> tonic::transport::Server {
    let pending_resets = config.streams_max.saturating_mul(PENDING_RESETS_PER_STREAM);
    let pending_resets = usize::try_from(pending_resets).unwrap_or(usize::MAX);
    tonic::transport::Server::builder()
        .max_concurrent_streams(config.streams_max)
        .http2_max_header_list_size(HEADER_READ_BYTES)
        .http2_max_pending_accept_reset_streams(Some(pending_resets))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES_MAX)
        // An adaptive window would replace the two windows above.
        .http2_adaptive_window(Some(false))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
}
