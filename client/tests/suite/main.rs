//! The client library against a fake daemon in this process, over a real socket.

mod collections;
mod connection_attempts;
mod resumed_streams;
mod retries;
mod uploads;
