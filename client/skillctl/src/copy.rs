//! `skillctl cp`: a file or directory between this host and a workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::v1::{CollectOutputsRequest, ReadFileRequest, Reason};
use skilld_client::{Client, Error};

use crate::collect::{self, CopyLimits};
use crate::download::write_download;
use crate::input_arg::{self, LocalInput};
use crate::interrupt::InterruptSignals;
use crate::partial_file::{PartialFile, parent_directory};
use crate::{complete, output, stage, value_formats};

/// Copy a file or directory into a workspace or out of it.
///
/// One side is ID:PATH, with PATH relative to /workspace; the other is local, where `-` is stdin or stdout. A target
/// that ends with / is a directory to copy into, and so is a local directory that exists. A local name with a colon is
/// written ./NAME.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl cp sales.csv job-7:work/sales.csv
  skillctl cp job-7:out/report.md .
  skillctl cp job-7:out results
  skillctl cp job-7:out/report.md - | head -1")]
pub(crate) struct Cp {
    #[arg(value_name = "[ID:]SRC", add = ArgValueCompleter::new(complete::offer_copy_sides))]
    source: String,
    #[arg(value_name = "[ID:]DEST", add = ArgValueCompleter::new(complete::offer_copy_sides))]
    target: String,
}

impl Cp {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        // An unfinished copy is removed when it is dropped.
        InterruptSignals::new()?.race(self.copy(client)).await?
    }

    async fn copy(&self, client: &Client) -> anyhow::Result<u8> {
        match (in_workspace(&self.source), in_workspace(&self.target)) {
            (None, Some((workspace, path))) => copy_in(client, &self.source, workspace, path).await,
            (Some((workspace, path)), None) => {
                copy_out(client, workspace, path, Path::new(&self.target)).await
            }
            (None, None) => bail!("one side must be in a workspace: write ID:PATH"),
            (Some(_), Some(_)) => bail!("one side must be local: copy in two steps"),
        }
    }
}

/// Splits a side of a copy, `ID:PATH`, into workspace and path; `None` for a local path, which has a slash before its
/// first colon or no colon.
fn in_workspace(side: &str) -> Option<(&str, &str)> {
    side.split_once(':')
        .filter(|(id, _)| !id.is_empty() && !id.contains('/'))
}

async fn copy_in(client: &Client, source: &str, workspace: &str, path: &str) -> anyhow::Result<u8> {
    if path.is_empty() {
        bail!("write where in the workspace it goes: {workspace}:work/ or {workspace}:out/NAME");
    }
    let target = match path.strip_suffix('/') {
        Some(_) => format!(
            "{path}{}",
            input_arg::file_name(source).map_err(anyhow::Error::msg)?
        ),
        None => path.to_owned(),
    };
    let local = LocalInput {
        path: source.into(),
        target,
    };
    let staged = local.send(client, workspace).await?;
    if output::is_json() {
        output::print_value(&stage::local_json(&local, &staged))?;
    }
    Ok(0)
}

async fn copy_out(
    client: &Client,
    workspace: &str,
    path: &str,
    target: &Path,
) -> anyhow::Result<u8> {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    let to_stdout = target.as_os_str() == "-";
    if to_stdout && output::is_json() {
        bail!("the file goes to stdout: leave out -o json, or use `skillctl cat`");
    }
    let request = ReadFileRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        ..ReadFileRequest::default()
    };
    let place = match target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/") {
        true => target.join(name),
        false => target.to_owned(),
    };
    let (files, bytes, complete) = match client.read_file(request).await {
        Ok(reader) if to_stdout => {
            write_download(reader, path, &mut tokio::io::stdout()).await?;
            return Ok(0);
        }
        Ok(reader) => {
            let partial = PartialFile::create(&place)?;
            let (_, bytes) = write_download(reader, path, &mut partial.writer()?).await?;
            partial.install()?;
            (1, bytes, true)
        }
        Err(error) if is_directory(&error) && to_stdout => {
            bail!(
                "{path} is a directory: `skillctl collect {workspace} '{path}/**' --tar -` writes an archive"
            )
        }
        Err(error) if is_directory(&error) || path.is_empty() => {
            copy_directory_out(client, workspace, path, &place).await?
        }
        Err(error) => return Err(error.into()),
    };
    if output::is_json() {
        let from = format!("{workspace}:{path}");
        let to = place.display().to_string();
        output::print_value(&json!({"from": from, "to": to, "files": files, "bytes": bytes}))?;
    }
    Ok(u8::from(!complete))
}

fn is_directory(error: &Error) -> bool {
    error.reason() == Some(Reason::WrongFileType)
}

/// Copies a directory out of a workspace; it gets its local name when it is complete. Returns the files, their bytes,
/// and whether nothing was left out.
async fn copy_directory_out(
    client: &Client,
    workspace: &str,
    path: &str,
    place: &Path,
) -> anyhow::Result<(usize, u64, bool)> {
    if place.symlink_metadata().is_ok() {
        bail!("{} exists: name a directory that does not", place.display());
    }
    let beside = parent_directory(place);
    let temporary = tempfile::Builder::new()
        .prefix(".skillctl-")
        .tempdir_in(beside)
        .with_context(|| format!("cannot write beneath {}", beside.display()))?;
    let path = input_arg::in_workspace(path);
    let glob = match path.is_empty() {
        true => "**".to_owned(),
        false => format!("{}/**", value_formats::escape_glob(&path)),
    };
    let request = CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(collect::collect_spec(client, vec![glob], &CopyLimits::default()).await?),
    };
    let collected = collect::collect_to_dir(client, request, temporary.path()).await?;
    let made: PathBuf = temporary.path().join(&path);
    if !made.is_dir() {
        bail!("{path} has no files to copy");
    }
    std::fs::rename(&made, place).with_context(|| format!("cannot make {}", place.display()))?;
    let complete = collect::is_complete(&collected);
    let files = collected.files.len() + collected.links.len();
    Ok((files, collected.bytes, complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_with_a_colon_before_any_slash_is_in_a_workspace() {
        for (side, expected) in [
            ("job-7:out/a", Some(("job-7", "out/a"))),
            ("job-7:", Some(("job-7", ""))),
            ("./a:b", None),
            ("a", None),
            ("-", None),
            (":a", None),
        ] {
            assert_eq!(in_workspace(side), expected, "{side}");
        }
    }
}
