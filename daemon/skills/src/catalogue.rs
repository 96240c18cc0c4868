//! The catalogue: all skills of all sources as one immutable snapshot, made by one task, and what is answered from it.

mod assemble;
mod documents;
pub(crate) mod ingest;
pub mod preflight;
pub(crate) mod publish;
pub(crate) mod read;
pub(crate) mod scanner;
pub mod search;
pub mod skill;
pub mod snapshot;
mod suggest;
pub(crate) mod task;
mod watcher;
