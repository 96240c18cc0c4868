//! `skillctl version`: shows the version of this program and of the daemon.

use serde_json::json;

use crate::commands::connection_args::ConnectionArgs;
use crate::output;
use crate::output::error_report::error_message;

/// Prints both versions. Succeeds without a daemon, whose version is then left out.
pub(crate) async fn print_versions(connection: &ConnectionArgs) -> anyhow::Result<u8> {
    let asked = async { anyhow::Ok(connection.connect().await?.server_info().await?) };
    let daemon = match asked.await {
        Ok(info) => Some(info.version),
        Err(error) => {
            output::print_note(&error_message(&error));
            None
        }
    };
    let client = env!("CARGO_PKG_VERSION");
    if output::is_json() {
        output::print_value(&json!({"client": client, "daemon": daemon}))?;
        return Ok(0);
    }
    let daemon_line = daemon
        .map(|daemon| format!("skilld {daemon}\n"))
        .unwrap_or_default();
    output::print_text(&format!("skillctl {client}\n{daemon_line}"))?;
    Ok(0)
}
