//! What skilld promises, end to end: a real daemon, real Docker, through the client. One module per topic.

#![expect(
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    reason = "an assertion, and a JSON value without the key, are how a test fails"
)]

mod badinput;
mod demo;
mod execs;
mod files;
mod kills;
mod pools;
mod servers;
mod skills;
mod workspaces;
