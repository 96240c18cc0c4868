//! `skillctl mcp`: the skill tools as a server of the Model Context Protocol, on stdio or on loopback HTTP.

mod annotations;
mod content;
mod http;
mod kept_events;
mod resources;
mod server;
mod session_limit;
mod tool_change_listeners;
mod write_file_tool;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use rmcp::ServiceExt as _;
use rmcp::transport::async_rw::AsyncRwTransport;

use crate::commands::tool::ToolSelection;
use crate::terminal::interrupt::InterruptSignals;
use server::Server;
use skilld_client::Client;
use write_file_tool::MESSAGE_BYTES_MAX;

/// Serve the skill tools to an MCP client.
///
/// One server is one session, and one workspace: start one for each conversation. The workspace is deleted when the
/// server ends, unless --session-file keeps it or --workspace names one of yours.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl mcp
  skillctl mcp --family agent-zero --session-file chat.json
  skillctl mcp --http 127.0.0.1:7332

A client's configuration:
  {\"mcpServers\": {\"skills\": {\"command\": \"skillctl\", \"args\": [\"mcp\"]}}}")]
pub(crate) struct Mcp {
    #[command(flatten)]
    selection: ToolSelection,
    /// Serve streamable HTTP at this loopback address, path /mcp, instead of stdio; port 0 takes a free one. Whoever
    /// can connect to it can use it, all in one session.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// Link to saved artifacts and to large files in results. Some clients fail on such links.
    #[arg(long)]
    resource_links: bool,
}

impl Mcp {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut interrupt = InterruptSignals::new()?;
        let tools = self.selection.toolset(client)?;
        let session = self.selection.open_session()?;
        let server = Server::new(tools, client.clone(), session, self.resource_links);
        let served = match self.http {
            Some(address) => {
                let info = interrupt.race(client.server_info()).await??;
                let idle = http::idle_max(&info.limits.unwrap_or_default());
                http::serve_http(address, &server, idle, &mut interrupt).await
            }
            None => serve_stdio(&server, &mut interrupt).await,
        };
        let ended = server.end(&mut interrupt).await;
        served?;
        ended?;
        Ok(0)
    }
}

/// Serves until the client disconnects or a signal stops the program.
async fn serve_stdio(server: &Server, interrupt: &mut InterruptSignals) -> anyhow::Result<()> {
    let serving = async {
        let (stdin, stdout) = rmcp::transport::stdio();
        let transport = AsyncRwTransport::new_server(stdin, stdout);
        let running = server
            .clone()
            .serve(transport.with_max_line_length(MESSAGE_BYTES_MAX))
            .await
            .context("the client did not begin a session")?;
        running.waiting().await.context("the session broke off")?;
        Ok(())
    };
    // Being told to stop is how this program ends.
    interrupt.race(serving).await.unwrap_or(Ok(()))
}
