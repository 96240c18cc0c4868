//! Command `skillctl health`: the probe of container engines and orchestrators. It sends no token, because the daemon's
//! health needs none.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use skilld_client::{Client, ConnectOptions};
use tokio::time::timeout;

use crate::commands::connection_args::ConnectionArgs;
use crate::output;

/// Maximum time that the probe waits for the daemon's answer, the connection included.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Ask the daemon for its health (grpc.health.v1), without a token. Exits with 1 unless it is SERVING.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl health")]
pub(crate) struct Health {
    /// Exit with 0 if the daemon answers at all, also with NOT_SERVING: for probes that restart it.
    #[arg(long)]
    live: bool,
}

impl Health {
    /// Asks the daemon and prints its status.
    pub(crate) async fn run(&self, connection: &ConnectionArgs) -> anyhow::Result<u8> {
        let options = ConnectOptions {
            token: None,
            tenant: None,
            ..connection.options()?
        };
        let asking = async { Client::connect_with(&options).await?.is_serving("").await };
        let Ok(answer) = timeout(ANSWER_WITHIN, asking).await else {
            let seconds = ANSWER_WITHIN.as_secs();
            bail!("the daemon does not answer within {seconds} s");
        };
        let is_serving = answer?;
        let status = match is_serving {
            true => "SERVING",
            false => "NOT_SERVING",
        };
        if output::is_json() {
            output::print_value(&json!({"status": status}))?;
        } else {
            output::print_text(&format!("{status}\n"))?;
        }
        Ok(u8::from(!is_serving && !self.live))
    }
}
