//! The client library against a fake daemon in this process, over a real socket.

mod collecting;
mod resuming;
mod retrying;
mod uploading;
