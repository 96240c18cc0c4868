//! Credentials of calls: a token in a header, and the tenant that an admin means.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;

use crate::Error;
use crate::environment::environment_variable;

/// Header with which an admin names the tenant that a call means.
const TENANT_HEADER: &str = "skilld-tenant";
/// Maximum size of a token, in bytes. Servers accept less in all headers together.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Source of the token that every call carries. `Debug` shows no token.
#[derive(Clone)]
pub enum TokenSource {
    /// The token itself, for instance from an environment variable.
    Token(String),
    /// File with the token. It is read again after it changed, so that it may be rotated.
    File(PathBuf),
}

/// Credentials of calls, as the channel adds them.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    token: Option<Token>,
    tenant: Option<MetadataValue<Ascii>>,
}

#[derive(Clone)]
enum Token {
    Fixed(MetadataValue<Ascii>),
    File(Arc<TokenFile>),
}

struct TokenFile {
    path: PathBuf,
    read: Mutex<(Option<SystemTime>, MetadataValue<Ascii>)>,
}

impl TokenSource {
    /// Returns the token of SKILLD_TOKEN, else that of the file SKILLD_TOKEN_FILE; `None` without either.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let token = environment_variable("SKILLD_TOKEN").map(Self::Token);
        token.or_else(|| {
            let file = environment_variable("SKILLD_TOKEN_FILE");
            file.map(|file| Self::File(PathBuf::from(file)))
        })
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Credentials {
    /// Reads the token.
    ///
    /// # Errors
    /// [`Error::Credential`] if it cannot be read or is no token.
    pub(crate) fn new(token: Option<&TokenSource>, tenant: Option<&str>) -> Result<Self, Error> {
        let token = token
            .map(|source| match source {
                TokenSource::Token(text) => header_of(text).map(Token::Fixed).map_err(|problem| {
                    let credential = "the token".to_owned();
                    Error::Credential {
                        credential,
                        problem,
                    }
                }),
                TokenSource::File(path) => {
                    let read =
                        read_token(path).map_err(|problem| credential_error(path, problem))?;
                    let (path, read) = (path.clone(), Mutex::new(read));
                    Ok(Token::File(Arc::new(TokenFile { path, read })))
                }
            })
            .transpose()?;
        let tenant = tenant
            .map(|tenant| {
                tenant.parse().map_err(|_| Error::Credential {
                    credential: format!("the tenant {tenant:?}"),
                    problem: "it is not a tenant's name".to_owned(),
                })
            })
            .transpose()?;
        Ok(Self { token, tenant })
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        let headers = request.metadata_mut();
        match &self.token {
            None => {}
            Some(Token::Fixed(header)) => {
                headers.insert("authorization", header.clone());
            }
            Some(Token::File(file)) => {
                headers.insert("authorization", file.header());
            }
        }
        if let Some(tenant) = &self.tenant {
            headers.insert(TENANT_HEADER, tenant.clone());
        }
        Ok(request)
    }
}

impl TokenFile {
    /// Returns the header with the file's token, read again if the file has changed. While the file has no token, for
    /// instance because it is being written, this is the last one.
    fn header(&self) -> MetadataValue<Ascii> {
        let mut read = self.read.lock();
        if modified(&self.path) != read.0
            && let Ok(token) = read_token(&self.path)
        {
            *read = token;
        }
        read.1.clone()
    }
}

fn credential_error(path: &Path, problem: String) -> Error {
    Error::Credential {
        credential: format!("the token file {}", path.display()),
        problem,
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

fn read_token(path: &Path) -> Result<(Option<SystemTime>, MetadataValue<Ascii>), String> {
    let modified = modified(path);
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Ok((modified, header_of(&text)?))
}

fn header_of(text: &str) -> Result<MetadataValue<Ascii>, String> {
    let token = text.trim();
    if token.is_empty() {
        return Err("it is empty".to_owned());
    }
    if token.len() > TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has no token: one line of printable characters without spaces".to_owned());
    }
    let mut header: MetadataValue<Ascii> = format!("Bearer {token}")
        .parse()
        .map_err(|_| "it is not a token".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(credentials: &mut Credentials) -> String {
        let request = credentials.call(tonic::Request::new(())).expect("a token");
        let header = request.metadata().get("authorization").expect("a header");
        header.to_str().expect("text").to_owned()
    }

    #[test]
    fn the_last_token_counts_while_its_file_is_written() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut second = 0;
        let mut write = |text: &str| {
            second += 1;
            std::fs::write(file.path(), text).expect("writes");
            let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
            file.as_file()
                .set_modified(modified)
                .expect("sets the time");
        };
        write("first\n");
        let source = TokenSource::File(file.path().to_owned());
        let mut credentials = Credentials::new(Some(&source), None).expect("a token");
        for (text, expected) in [
            ("first\n", "Bearer first"),
            ("", "Bearer first"),
            ("second\n", "Bearer second"),
        ] {
            write(text);
            assert_eq!(header(&mut credentials), expected);
        }
        drop(file);
        assert_eq!(header(&mut credentials), "Bearer second");
    }
}
