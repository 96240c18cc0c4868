//! Streamable HTTP on loopback. Hosts and browser origins other than loopback's are refused, so that no web page reaches
//! it through a name that leads here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::interrupt::Interrupt;
use crate::mcp::server::Server;
use crate::output;

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// Serves until the program is told to stop.
pub(crate) async fn serve(
    address: SocketAddr,
    server: &Server,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        anyhow::bail!("{address} is not on loopback; whoever reaches the server can use it");
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    output::note(&format!("serving http://{}/mcp", listener.local_addr()?));
    let stop = tokio_util::sync::CancellationToken::new();
    // Origins: none but loopback's. Hosts: loopback's by default.
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
        .with_cancellation_token(stop.child_token());
    let handler = server.clone();
    let service = StreamableHttpService::new(
        move || Ok::<_, io::Error>(handler.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            while connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            // Those that have ended are let go of as others come.
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, or gone before it was taken.
                tokio::task::yield_now().await;
                continue;
            };
            let service = TowerToHyperService::new(service.clone());
            connections.spawn(async move {
                // A client that breaks off is its own business.
                drop(
                    Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            });
        }
    };
    // The loop has no end of its own.
    let _: Result<(), _> = interrupt.race(accepting).await;
    stop.cancel();
    connections.shutdown().await;
    Ok(())
}
