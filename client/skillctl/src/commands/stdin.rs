//! `skillctl stdin`: bytes for an exec that waits for them.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::Client;
use skilld_client::int64_from_count;
use skilld_client::v1::{ErrorReason, WriteStdinResponse};

use crate::commands::complete;
use crate::output;

/// Send our stdin to an exec that was started with -i, to its end and as it comes.
///
/// It goes behind what was written before. With --offset a second try writes nothing twice: what the exec has of it
/// is left out.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  echo 'print(1 + 1)' | skillctl stdin job-7/python
  skillctl stdin job-7/sort --eof < names.txt
  skillctl stdin job-7/sort --offset 0 --eof < names.txt")]
pub(crate) struct Stdin {
    /// Exec to write to.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// End of file after it.
    #[arg(long)]
    eof: bool,
    /// Offset of the first byte, counted from the first byte that was ever written. You must be the only one who
    /// writes.
    #[arg(long, value_name = "BYTES")]
    offset: Option<u64>,
}

impl Stdin {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut writer = match self.offset {
            Some(offset) => client.stdin_at(&self.exec, offset),
            None => client.stdin_end(&self.exec),
        };
        let copied = writer.copy(tokio::io::stdin()).await?;
        if self.eof {
            match writer.end().await {
                // What has taken everything and ended since waits for no end of file.
                Err(error) if copied > 0 && error.reason() == Some(ErrorReason::ExecNotRunning) => {
                }
                ended => ended?,
            }
        }
        let written = WriteStdinResponse {
            committed_offset: int64_from_count(writer.offset().unwrap_or_default()),
            ..WriteStdinResponse::default()
        };
        output::print_message(&written, "")
    }
}
