//! `SRC[=DEST]`: a local file that is sent, or a reference that the server fetches.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{InputSpec, StageFilesResponse, StageMode};
use skilld_client::{Client, Error, UploadTarget};

use crate::output::skip_notes;
use crate::output::transfer_bar::TransferBar;

/// Schemes of inputs that the server fetches.
const SCHEMES: [&str; 6] = ["artifact", "host", "workspace", "skill", "https", "http"];

/// Maximum size of one input within a request, in bytes; the daemon's maximum.
const DATA_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of all inputs within a request, in bytes: the daemon takes messages of at most 4 MiB.
const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;
/// Maximum number of local files within a request. The daemon takes 256 inputs, of which some are references.
const SPECS_MAX: usize = 128;

/// Argument `SRC[=DEST]`: an input and its destination in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A local file or directory, or `-` for stdin.
    Local(LocalInput),
    /// `artifact://`, `host://`, `workspace://`, `skill://` or a URL; `to` as the server takes it.
    Reference { from: String, to: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalInput {
    pub(crate) path: PathBuf,
    pub(crate) target: String,
}

/// Parses `SRC` or `SRC=DEST`. An existing file may have `=` in its name, and a `=` in a URL's query is part of the
/// URL.
pub(crate) fn parse_input(text: &str) -> Result<Input, String> {
    let (source, target) = match text.rsplit_once('=') {
        Some((source, target)) if !Path::new(text).exists() && !source.contains('?') => {
            (source, target)
        }
        Some(_) | None => (text, ""),
    };
    if let Some((scheme, _)) = source.split_once("://") {
        if !SCHEMES.contains(&scheme) {
            let known = SCHEMES.join("://, ");
            return Err(format!("{scheme}:// is not known; there are {known}://"));
        }
        let (from, to) = (source.to_owned(), target.to_owned());
        return Ok(Input::Reference { from, to });
    }
    if source.is_empty() {
        return Err("write SRC or SRC=DEST".to_owned());
    }
    let target = if !target.is_empty() && !target.ends_with('/') {
        target.to_owned()
    } else {
        let name = file_name(source)?;
        let directory = if target.is_empty() { "inputs/" } else { target };
        format!("{directory}{name}")
    };
    let path = source.into();
    Ok(Input::Local(LocalInput { path, target }))
}

/// Returns the last component of a local path.
pub(crate) fn file_name(local: &str) -> Result<String, String> {
    if local == "-" {
        return Err("stdin has no name: write -=DEST".to_owned());
    }
    let path = std::path::absolute(local).map_err(|error| error.to_string())?;
    let path = match path.file_name() {
        Some(_) => path,
        // `.` and `..`
        None => path.canonicalize().map_err(|error| error.to_string())?,
    };
    path.file_name()
        .and_then(|name| name.to_str())
        .map(ToOwned::to_owned)
        .ok_or_else(|| "has no name to go by: write SRC=DEST".to_owned())
}

impl Input {
    /// Returns `true` if the input is this program's stdin.
    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self, Self::Local(local) if local.path.as_os_str() == "-")
    }

    /// Returns the source of an input as the user wrote it, without the destination.
    fn source(&self) -> String {
        match self {
            Self::Local(local) => local.path.display().to_string(),
            Self::Reference { from, .. } => from.clone(),
        }
    }

    /// Returns the destination of an input, without a leading `work/`. For a reference its own name is used if no
    /// other input has it.
    fn place(&self) -> String {
        let to = match self {
            Self::Local(local) => local.target.clone(),
            Self::Reference { from, to } if to.is_empty() => format!("inputs/{}", last_name(from)),
            Self::Reference { from, to } if to.ends_with('/') => format!("{to}{}", last_name(from)),
            Self::Reference { to, .. } => to.clone(),
        };
        let relative = to.strip_prefix("/workspace/").unwrap_or(&to);
        let parts: Vec<&str> = relative
            .split('/')
            .filter(|part| !matches!(*part, "" | "."))
            .collect();
        let beneath = parts.strip_prefix(&["work"]).unwrap_or(&parts);
        beneath.join("/")
    }
}

/// Returns a target as a path relative to /workspace, with `inputs/` written out.
pub(crate) fn in_workspace(target: &str) -> String {
    let target = target.strip_prefix("/workspace/").unwrap_or(target);
    let parts: Vec<&str> = target
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    match parts.first() {
        Some(&"inputs") => format!("work/{}", parts.join("/")),
        Some(_) | None => parts.join("/"),
    }
}

/// Returns the last segment of a reference's name.
fn last_name(from: &str) -> &str {
    let (scheme, rest) = from.split_once("://").unwrap_or(("", from));
    let path = match scheme {
        "artifact" => {
            let name = rest.split('@').next().unwrap_or(rest);
            name.strip_prefix("user:").unwrap_or(name)
        }
        "http" | "https" => rest.split(['?', '#']).next().unwrap_or(rest),
        _ => rest,
    };
    let trimmed = path.trim_end_matches('/');
    trimmed.rsplit('/').next().unwrap_or(trimmed)
}

/// Checks that no local file has the destination of another input: one of the two would replace the other.
pub(crate) fn check_destinations(inputs: &[Input]) -> anyhow::Result<()> {
    let mut places: HashMap<String, &Input> = HashMap::new();
    for input in inputs {
        let place = input.place();
        let both_are_references = |other: &Input| {
            let reference = |input: &Input| matches!(input, Input::Reference { .. });
            reference(other) && reference(input)
        };
        let other = places.insert(place.clone(), input);
        // The server compares the destinations of references.
        if let Some(other) = other.filter(|other| !both_are_references(other)) {
            anyhow::bail!(
                "{} and {} both go to {place}: give one of them another DEST",
                other.source(),
                input.source()
            );
        }
    }
    Ok(())
}

/// Returns the references among the inputs for the server, which fetches them.
pub(crate) fn reference_specs(inputs: &[Input], mode: StageMode) -> Vec<InputSpec> {
    let references = inputs.iter().filter_map(|input| match input {
        Input::Local(_) => None,
        Input::Reference { from, to } => Some(InputSpec {
            content: Some(Content::Source(from.clone())),
            path: to.clone(),
            mode: mode.into(),
            ..InputSpec::default()
        }),
    });
    references.collect()
}

/// Reads the local files among the inputs for one request. Returns `None` if one of them has to be sent by itself:
/// stdin, a directory, an executable file, and files that are too large for a request.
pub(crate) fn local_specs(inputs: &[Input]) -> anyhow::Result<Option<Vec<InputSpec>>> {
    let (mut specs, mut total_bytes) = (Vec::new(), 0);
    for input in inputs {
        let Input::Local(local) = input else {
            continue;
        };
        if input.is_stdin() {
            return Ok(None);
        }
        let failed = || local.path.display().to_string();
        let metadata = std::fs::metadata(&local.path).with_context(failed)?;
        if !metadata.is_file() || metadata.mode() & 0o111 != 0 {
            return Ok(None);
        }
        // The size in the metadata may be wrong: a file can grow, and files of /proc have none.
        let mut data = Vec::new();
        let read = File::open(&local.path)
            .and_then(|file| file.take(DATA_BYTES_MAX + 1).read_to_end(&mut data));
        let bytes = read.with_context(failed)? as u64;
        total_bytes += bytes;
        if bytes > DATA_BYTES_MAX || total_bytes > REQUEST_BYTES_MAX {
            // An upload would send as many bytes as the metadata says.
            let path = local.path.display();
            anyhow::ensure!(
                metadata.len() > 0,
                "{path} has no size, as files of /proc: copy it to another file first"
            );
            return Ok(None);
        }
        specs.push(InputSpec {
            content: Some(Content::Data(data.into())),
            path: local.target.clone(),
            ..InputSpec::default()
        });
    }
    Ok((specs.len() <= SPECS_MAX).then_some(specs))
}

impl LocalInput {
    /// Sends a local file, a directory or stdin into a workspace, shows a progress bar, and notes on stderr what was
    /// left out.
    pub(crate) async fn send(
        &self,
        client: &Client,
        workspace: &str,
    ) -> Result<StageFilesResponse, Error> {
        let bar = TransferBar::new(&self.target);
        if self.path.as_os_str() == "-" {
            let mut target = UploadTarget::file(workspace, &self.target);
            target.progress = bar.progress();
            return client.upload(target, tokio::io::stdin()).await;
        }
        let staged = client
            .upload_path(workspace, &self.path, &self.target, bar.progress())
            .await?;
        drop(bar);
        let total = usize::try_from(staged.skipped_count).unwrap_or_default();
        skip_notes::note_skipped_entries(&staged.skipped_files, total);
        Ok(staged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Result<String, String> {
        match parse_input(text)? {
            Input::Local(local) => Ok(local.target),
            Input::Reference { from, to } => Ok(format!("{from} → {to}")),
        }
    }

    #[test]
    fn an_input_goes_to_inputs_unless_told_otherwise() {
        assert_eq!(target("/data/sales.csv").as_deref(), Ok("inputs/sales.csv"));
        assert_eq!(target("a.csv=work/b.csv").as_deref(), Ok("work/b.csv"));
        assert_eq!(target("a.csv=work/x/").as_deref(), Ok("work/x/a.csv"));
        assert_eq!(target("-=in.txt").as_deref(), Ok("in.txt"));
        assert!(target("-").is_err());
        assert!(target("").is_err());
        let directory = std::env::current_dir().expect("a current directory");
        let name = directory
            .file_name()
            .and_then(|name| name.to_str())
            .expect("has a name");
        assert_eq!(target("."), Ok(format!("inputs/{name}")));
    }

    #[test]
    fn a_local_file_never_replaces_another_input_of_its_command() {
        for (one, two, refused) in [
            ("artifact://a.csv@2", "/data/a.csv", true),
            ("artifact://user:x/a.csv", "/data/a.csv", true),
            ("https://x.example/y/a.csv?v=1", "a.csv", true),
            ("host:///srv/a.csv=out/b", "a.csv=/workspace/out/b", true),
            ("/data/a.csv", "/other/a.csv", true),
            ("/data/a.csv", "x=work/inputs/a.csv", true),
            ("artifact://a.csv@1", "artifact://a.csv@2", false),
            ("artifact://a.csv", "/data/b.csv", false),
            ("artifact://a.csv=out/", "/data/a.csv", false),
        ] {
            let inputs = [parse_input(one), parse_input(two)].map(|input| input.expect("an input"));
            assert_eq!(check_destinations(&inputs).is_err(), refused, "{one} {two}");
        }
    }

    #[test]
    fn a_reference_is_the_servers_to_fetch() {
        for (text, expected) in [
            ("artifact://report.pdf", "artifact://report.pdf → "),
            ("artifact://a@3=work/a.pdf", "artifact://a@3 → work/a.pdf"),
            ("host:///srv/data/=inputs/", "host:///srv/data/ → inputs/"),
            ("https://x.example/a?b=c", "https://x.example/a?b=c → "),
        ] {
            assert_eq!(target(text).as_deref(), Ok(expected), "{text}");
        }
        assert!(target("ftp://x/y").is_err_and(|error| error.contains("artifact://")));
    }
}
