//! Formats and rules that several programs of skilld share, so that they never differ.
//!
//! Each module is a cargo feature of its name. Nothing here knows a wire format, a configuration or another crate of
//! skilld.
//!
//! | module | contents | users |
//! |---|---|---|
//! | `frame_socket` | byte stream over a Unix socket that carries HTTP/2 | guest, daemon |
//! | `mime` | media types of files | guest, daemon, skills |

#[cfg(feature = "frame-socket")]
pub mod frame_socket;
#[cfg(feature = "mime")]
pub mod mime;
