//! Check of the files of `[auth]` without a daemon, for reports about the configuration.

use std::path::PathBuf;

use super::tenants_file::{KnownNames, TenantsFile};
use super::tokens_file::TokensFile;
use super::web_token::WebTokenKeys;
use crate::config::Config;

/// Key of a file, and its path if it is valid, or else what is wrong with it.
pub(crate) type CheckedIdentityFile = (&'static str, Result<PathBuf, String>);

/// Loads every file of `[auth]`. Changes nothing. Blocks.
pub(crate) fn check_identity_files(config: &Config) -> Vec<CheckedIdentityFile> {
    let Some(auth) = &config.auth else {
        return Vec::new();
    };
    let known = KnownNames::of(config);
    let tenants = TenantsFile::load(&auth.tenants_file, &known);
    let tenants = tenants.map(|_| auth.tenants_file.clone());
    let mut files = vec![("auth.tenants_file", tenants)];
    if let Some(path) = &auth.tokens_file {
        let tokens = TokensFile::load(path).map(|_| path.clone());
        files.push(("auth.tokens_file", tokens));
    }
    if let Some(jwt) = &auth.jwt {
        let keys = WebTokenKeys::load(&jwt.jwks_file, jwt.algorithm);
        files.push(("auth.jwt.jwks_file", keys.map(|_| jwt.jwks_file.clone())));
    }
    files
}
