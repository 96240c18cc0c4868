//! Formats and rules that several programs of skilld share, so that they never differ.
//!
//! Each module is a cargo feature of its name. Nothing here knows a wire format, a configuration or another crate of
//! skilld.
//!
//! | module | contents | users |
//! |---|---|---|
//! | `atomic_write` | files that get their contents in one step | daemon, skills, skillctl |
//! | `audit_chain` | hashes and MACs of the audit log's lines, and their verification | daemon, skillctl |
//! | `excerpts` | first part of a long text or list, for messages | daemon, skills, tools, skillctl |
//! | `frame_socket` | byte stream over a Unix socket that carries HTTP/2 | guest, daemon |
//! | `mime` | media types of files | guest, daemon, skills |
//! | `names` | grammar of ids, last components of paths | guest, daemon, skills, tools, skillctl |
//! | `tar_reader` | entries of tar streams, as their bytes arrive | guest, skills |
//! | `text_decoding` | text of files in any encoding | skills, tools |
//! | `unix_time` | times as milliseconds since 1970 | daemon, skills |

#[cfg(feature = "atomic-write")]
pub mod atomic_write;
#[cfg(feature = "audit-chain")]
pub mod audit_chain;
#[cfg(feature = "excerpts")]
pub mod excerpts;
#[cfg(feature = "frame-socket")]
pub mod frame_socket;
#[cfg(feature = "mime")]
pub mod mime;
#[cfg(feature = "names")]
pub mod names;
#[cfg(feature = "tar-reader")]
pub mod tar_reader;
#[cfg(feature = "text-decoding")]
pub mod text_decoding;
#[cfg(feature = "unix-time")]
pub mod unix_time;
