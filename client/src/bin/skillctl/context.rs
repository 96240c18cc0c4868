//! What every command has.

use skilld_client::Client;

use crate::output::Output;

/// A connection and a way to say something.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) output: Output,
}
