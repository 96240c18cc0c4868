//! Flags that say which daemon a command uses and with which credentials. The context and the variables of the
//! environment supply what the flags leave out.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use skilld_client::{Client, ConnectOptions, DEFAULT_ENDPOINT, TokenSource, environment_variable};

use crate::commands::context_file::{Context, ContextFile};

/// Daemon and credentials of a command, as its flags give them.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// Endpoint of the daemon: unix:/path, https://HOST:PORT or http://127.0.0.1:PORT [env: SKILLD_ENDPOINT] [default:
    /// unix:/run/skilld/skilld.sock].
    #[arg(long, global = true)]
    pub(crate) endpoint: Option<String>,
    /// Named endpoint and credentials, made with `skillctl context set` [env: SKILLD_CONTEXT].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// PEM file with the authorities that sign the daemon's certificate; the system's if left out [env:
    /// SKILLD_CA_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with this client's certificate [env: SKILLD_CERT_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) cert_file: Option<PathBuf>,
    /// PEM file with the certificate's key [env: SKILLD_KEY_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// File with the token [env: SKILLD_TOKEN with the token itself, else SKILLD_TOKEN_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Tenant that the command is about; other tenants than your own need the role admin [env: SKILLD_TENANT].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

impl ConnectionArgs {
    /// Connects to the daemon.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect_with(&self.options()?).await?)
    }

    /// Merges the flags, the context and the variables: each value comes from the first of them that has it. The
    /// variables come last, because they may hold the credentials of another daemon than the context's.
    pub(crate) fn options(&self) -> anyhow::Result<ConnectOptions> {
        let variables = ConnectOptions::from_environment();
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| environment_variable("SKILLD_ENDPOINT"));
        let context = self.chosen_context(endpoint.as_deref())?;
        let token_file = self.token_file.clone().or(context.token_file);
        let pairs = [
            (self.cert_file.clone(), self.key_file.clone()),
            (context.cert_file, context.key_file),
        ];
        // A key of another source would not fit the certificate.
        let pair = pairs
            .into_iter()
            .find(|(cert, key)| cert.is_some() || key.is_some());
        // The daemon judges a call with a token by the token alone, also if the connection has a certificate.
        let variable_token = variables.token.filter(|_| pair.is_none());
        let (cert_file, key_file) = pair.unwrap_or((variables.cert_file, variables.key_file));
        Ok(ConnectOptions {
            endpoint: endpoint
                .or(context.endpoint)
                .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            ca_file: self
                .ca_file
                .clone()
                .or(context.ca_file)
                .or(variables.ca_file),
            cert_file,
            key_file,
            token: token_file.map(TokenSource::File).or(variable_token),
            tenant: self.tenant.clone().or(context.tenant).or(variables.tenant),
        })
    }

    /// Returns the context that the user named, or the one in use; an empty one without either. `endpoint` is that of a
    /// flag or a variable. The file of contexts is read only if one of them may be needed.
    fn chosen_context(&self, endpoint: Option<&str>) -> anyhow::Result<Context> {
        let name = self.context.clone();
        let Some(name) = name.or_else(|| environment_variable("SKILLD_CONTEXT")) else {
            // With an explicit endpoint, the credentials of the current context must not be sent.
            return match endpoint {
                Some(_) => Ok(Context::default()),
                None => Ok(ContextFile::load()?.current()?.unwrap_or_default()),
            };
        };
        let context = ContextFile::load()?.find_usable(&name)?;
        if let (Some(given), Some(endpoint)) = (endpoint, &context.endpoint)
            && given != endpoint
        {
            bail!(
                "the context {name} is for {endpoint}, but --endpoint or SKILLD_ENDPOINT says {given}: leave one of them out"
            );
        }
        Ok(context)
    }
}
