//! `skillctl token`: tokens in the file that the daemon's `auth.tokens_file` names. The daemon keeps only hashes, and reads
//! the file again within seconds of a change.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use skilld_common::atomic_write::AtomicWrite;
use skilld_common::names::is_resource_id;

use crate::commands::partial_file::parent_directory;
use crate::output;

/// Number of random bytes in a token.
const SECRET_BYTES: usize = 32;
/// Longest time until a token expires: 100 years.
const LIFETIME_MAX: Duration = Duration::from_secs(100 * 31_557_600);
/// Position of the comment in a line: the words from there to its end.
const COMMENT_FIELD: usize = 5;

/// Create, list and revoke tokens in the daemon's file of tokens.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  (umask 077; sudo skillctl token create ci-1 --for-tenant billing --role user \\
      --file /etc/skilld/tokens > ci-1.token)
  skillctl token revoke ci-1 --file /etc/skilld/tokens")]
pub(crate) enum TokenCommand {
    Create(TokenCreate),
    List(TokenList),
    Revoke(TokenRevoke),
}

/// Make a token and print it once, to stdout. Its line for the file goes to --file, or else to stderr.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  (umask 077; sudo skillctl token create ci-1 --for-tenant billing --expires 90d \\
      --file /etc/skilld/tokens > ci-1.token)")]
pub(crate) struct TokenCreate {
    /// Id of the token: letters, digits, '-' and '.'. It names the principal in logs.
    #[arg(value_parser = parse_token_id)]
    id: String,
    /// Tenant of the token's bearer.
    #[arg(id = "for-tenant", long, value_name = "NAME", value_parser = parse_tenant)]
    tenant: String,
    /// Role of the token's bearer.
    #[arg(long, value_enum, default_value_t = TokenRole::User)]
    role: TokenRole,
    /// Time until the token expires, for instance 90d, at most 100 years; never if left out.
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    expires: Option<Duration>,
    /// Remark at the end of the line.
    #[arg(long, default_value = "", hide_default_value = true)]
    comment: String,
    /// File of tokens to append the line to; made with mode 0600 if it is missing.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// List the tokens of a file, without their hashes.
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  skillctl token list --file /etc/skilld/tokens"
)]
pub(crate) struct TokenList {
    /// File of tokens.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

/// Remove a token from a file. The daemon ends its streams within seconds.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl token revoke ci-1 --file /etc/skilld/tokens")]
pub(crate) struct TokenRevoke {
    /// Id of the token.
    id: String,
    /// File of tokens.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

/// Role of a token's bearer. Each includes the ones before it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TokenRole {
    Observer,
    User,
    Publisher,
    #[value(name = "tenant_admin")]
    TenantAdmin,
    Admin,
}

impl TokenCommand {
    /// Runs the command; it needs no daemon.
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        match self {
            Self::Create(create) => create.run(),
            Self::List(list) => list.run(),
            Self::Revoke(revoke) => revoke.run(),
        }
    }
}

impl TokenCreate {
    fn run(self) -> anyhow::Result<u8> {
        let mut secret = [0; SECRET_BYTES];
        if SystemRandom::new().fill(&mut secret).is_err() {
            bail!("the kernel gave no random bytes");
        }
        let token = format!("skt_{}_{}", self.id, BASE64URL_NOPAD.encode(&secret));
        let line = self.line(&token)?;
        match &self.file {
            Some(file) => append_line(file, &self.id, &line)?,
            None if output::is_json() => {}
            None => {
                output::print_note("add this line to the daemon's file of tokens:");
                // No remark: without the line the token can't be used, so --quiet does not suppress it.
                writeln!(io::stderr().lock(), "{line}")?;
            }
        }
        if output::is_json() {
            output::print_value(&json!({"id": self.id, "token": token, "line": line}))?;
        } else {
            output::print_text(&format!("{token}\n"))?;
        }
        Ok(0)
    }

    fn line(&self, token: &str) -> anyhow::Result<String> {
        if self.comment.contains(char::is_control) {
            bail!("a comment is one line");
        }
        let hash = HEXLOWER.encode(&Sha256::digest(token.as_bytes()));
        let role_value = self.role.to_possible_value();
        let role = role_value.as_ref().map_or("user", |value| value.get_name());
        let expires = match self.expires {
            None => "-".to_owned(),
            Some(after) => humantime::format_rfc3339_seconds(SystemTime::now() + after).to_string(),
        };
        let line = format!(
            "{} {hash} {} {role} {expires} {}",
            self.id, self.tenant, self.comment
        );
        Ok(line.trim_end().to_owned())
    }
}

impl TokenList {
    fn run(self) -> anyhow::Result<u8> {
        let text = read_tokens(&self.file)?;
        let tokens: Vec<Vec<&str>> = token_lines(&text)
            .map(|line| line.split_whitespace().collect())
            .collect();
        let field = |token: &[&str], index: usize| match index {
            COMMENT_FIELD => token.get(index..).unwrap_or_default().join(" "),
            _ => token.get(index).copied().unwrap_or_default().to_owned(),
        };
        if output::is_json() {
            let list = tokens.iter().map(|token| {
                json!({
                    "id": field(token, 0), "tenant": field(token, 2), "roles": field(token, 3),
                    "expires": field(token, 4), "comment": field(token, COMMENT_FIELD),
                })
            });
            output::print_value(&json!({"tokens": list.collect::<Vec<_>>()}))?;
            return Ok(0);
        }
        let id = |token: &Vec<&str>| field(token, 0);
        let row = |token: &Vec<&str>| [0, 2, 3, 4, COMMENT_FIELD].map(|index| field(token, index));
        let header = ["ID", "TENANT", "ROLES", "EXPIRES", "COMMENT"];
        output::print_text(&output::list_text(&tokens, id, header, row))?;
        Ok(0)
    }
}

impl TokenRevoke {
    fn run(self) -> anyhow::Result<u8> {
        let _lock = lock_directory(&self.file)?;
        let text = read_tokens(&self.file)?;
        if !has_token(&text, &self.id) {
            bail!("{} has no token {:?}", self.file.display(), self.id);
        }
        let is_other = |line: &&str| line.split_whitespace().next() != Some(self.id.as_str());
        let kept: Vec<&str> = text.lines().filter(is_other).collect();
        let text = kept.iter().map(|line| format!("{line}\n"));
        replace_file(&self.file, &text.collect::<String>())?;
        let revoked = json!({"revoked": self.id});
        output::print_outcome(&revoked, &format!("revoked {}", self.id))?;
        Ok(0)
    }
}

fn parse_token_id(text: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if (1..=63).contains(&text.len()) && text.bytes().all(is_valid) {
        return Ok(text.to_owned());
    }
    Err("an id has 1 to 63 letters, digits, '-' and '.'".to_owned())
}

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match lifetime <= LIFETIME_MAX {
        true => Ok(lifetime),
        false => Err("a token expires within 100 years".to_owned()),
    }
}

/// Locks the directory of a file, so that two commands at once lose no change. The lock ends with the returned value.
fn lock_directory(file: &Path) -> anyhow::Result<File> {
    let directory = parent_directory(file);
    let lock = || -> io::Result<File> {
        let opened = File::open(directory)?;
        opened.lock()?;
        Ok(opened)
    };
    lock().with_context(|| format!("cannot lock {}", directory.display()))
}

/// Checks a tenant as the daemon does, which refuses the whole file otherwise.
fn parse_tenant(text: &str) -> Result<String, String> {
    if is_resource_id(text) {
        return Ok(text.to_owned());
    }
    Err(
        "a tenant has 1 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends"
            .to_owned(),
    )
}

fn append_line(file: &Path, id: &str, line: &str) -> anyhow::Result<()> {
    let _lock = lock_directory(file)?;
    let mut text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    if has_token(&text, id) {
        bail!(
            "{} has a token {id:?} already: revoke it first, or choose another id",
            file.display()
        );
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    replace_file(file, &format!("{text}{line}\n"))
}

/// Replaces the file in one step, so that the daemon never reads half of it.
fn replace_file(file: &Path, text: &str) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let written = AtomicWrite::new(parent_directory(file), text.as_bytes(), 0o600)?;
        if let Ok(old) = std::fs::metadata(file) {
            // The daemon may run as another user, who has to be able to read it.
            let new = written.as_file();
            std::os::unix::fs::fchown(new, Some(old.uid()), Some(old.gid()))?;
            new.set_permissions(old.permissions())?;
        }
        written.sync()?.install(file)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

fn read_tokens(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn token_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn has_token(text: &str, id: &str) -> bool {
    token_lines(text).any(|line| line.split_whitespace().next() == Some(id))
}
