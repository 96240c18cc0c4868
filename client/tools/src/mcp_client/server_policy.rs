//! Check of MCP servers against the host's options: a server that only a card names is not connected.

use std::sync::OnceLock;
use std::time::Duration;

use url::Url;

use super::{McpServer, ServerAddress};
use crate::tool_error::ToolError;
use crate::tool_options::McpOptions;

/// Deadline of a TCP connection.
const TCP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Permitted destination of a connection.
#[derive(Debug)]
pub(super) enum ConnectTarget {
    Url(Url),
    /// Program and arguments.
    Program(Vec<String>),
}

/// Returns the destination of a server if the options permit it, else an error that names the option.
pub(super) fn check_target(
    options: &McpOptions,
    server: &McpServer,
) -> Result<ConnectTarget, ToolError> {
    let refused = |problem: String| Err(server.failed(problem));
    match &server.at {
        ServerAddress::Url(url) => match check_url(&options.urls, url) {
            Ok(url) => Ok(ConnectTarget::Url(url)),
            Err(problem) => refused(problem),
        },
        ServerAddress::Named(name) => match options.servers.get(name) {
            Some(command) => Ok(ConnectTarget::Program(command.clone())),
            None => refused(format!(
                "it is a program, and the host's options (mcp.servers) have none of the name {name:?}"
            )),
        },
        ServerAddress::Program(command) if options.card_commands => Ok(ConnectTarget::Program(command.clone())),
        ServerAddress::Program(_) => refused(
            "its program is named by the skill's card, and the host's options (mcp.card_commands) do not allow that"
                .into(),
        ),
    }
}

/// Parses a URL and checks that it is at or beneath one of those that are listed.
fn check_url(listed: &[String], url: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).map_err(|error| format!("{url:?} is no URL: {error}"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(format!("{url:?} is not an http(s) URL"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(format!(
            "its URL at {} has credentials in it",
            parsed.host_str().unwrap_or_default()
        ));
    }
    let is_listed = listed
        .iter()
        .filter_map(|listed| Url::parse(listed).ok())
        .any(|listed| is_beneath(&listed, &parsed));
    if is_listed {
        return Ok(parsed);
    }
    Err(format!(
        "{url:?} is not among the servers that the host's options (mcp.urls) allow"
    ))
}

/// Returns `true` for a URL of the same scheme, host and port with the same path or one beneath it.
fn is_beneath(listed: &Url, url: &Url) -> bool {
    let above = listed.path().trim_end_matches('/');
    let rest = url.path().strip_prefix(above);
    listed.scheme() == url.scheme()
        && listed.host() == url.host()
        && listed.port_or_known_default() == url.port_or_known_default()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// HTTP client of all connections, made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct SharedHttpClient(OnceLock<Result<reqwest::Client, String>>);

impl SharedHttpClient {
    pub(super) fn client(&self) -> Result<reqwest::Client, String> {
        self.0.get_or_init(build_http_client).clone()
    }
}

/// Builds a client that follows no redirect, which could lead to an unlisted server, and uses no proxy of the
/// environment.
fn build_http_client() -> Result<reqwest::Client, String> {
    // If the application has chosen a provider, it is that one.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(TCP_CONNECT_TIMEOUT)
        .build()
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(at: ServerAddress) -> McpServer {
        McpServer {
            label: "s".into(),
            at,
        }
    }

    #[test]
    fn only_servers_at_or_beneath_a_listed_url_are_connected() {
        let listed = [
            "https://good.example/mcp".to_owned(),
            "http://127.0.0.1:8000".to_owned(),
        ];
        for url in [
            "https://good.example/mcp",
            "https://GOOD.example:443/mcp/a",
            "https://good.example/x/../mcp/b",
            "http://127.0.0.1:8000/any",
        ] {
            assert!(check_url(&listed, url).is_ok(), "{url}");
        }
        for url in [
            "https://good.example/mcpx",
            "https://good.example/mcp/../other",
            "https://good.example.evil.example/mcp",
            "https://good.example@evil.example/mcp",
            "https://user:secret@good.example/mcp",
            "http://good.example/mcp",
            "https://good.example:8443/mcp",
            "http://127.0.0.1:8001/any",
            "http://localhost:8000/any",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "good.example/mcp",
            "",
        ] {
            assert!(check_url(&listed, url).is_err(), "{url}");
        }
        let told = check_url(&listed, "https://user:secret@good.example/mcp");
        assert!(!told.expect_err("refused").contains("secret"));
    }

    #[test]
    fn default_options_connect_and_start_no_server() {
        let options = McpOptions::default();
        for at in [
            ServerAddress::Url("http://127.0.0.1:1/".into()),
            ServerAddress::Named("files".into()),
            ServerAddress::Program(vec!["true".into()]),
        ] {
            let error = check_target(&options, &server(at))
                .expect_err("refused")
                .to_string();
            assert!(error.contains("(mcp."), "{error}");
        }
    }

    #[test]
    fn a_named_program_is_the_hosts_and_never_the_cards() {
        let mut options = McpOptions::default();
        options
            .servers
            .insert("files".into(), vec!["host-program".into()]);
        let named = check_target(&options, &server(ServerAddress::Named("files".into())));
        assert!(
            matches!(named, Ok(ConnectTarget::Program(command)) if command == ["host-program"])
        );
        let by_card = server(ServerAddress::Program(vec!["card-program".into()]));
        assert!(check_target(&options, &by_card).is_err());
        options.card_commands = true;
        assert!(check_target(&options, &by_card).is_ok());
    }
}
