//! `skillctl cp`: a file or directory between this host and a workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::v1::{CollectOutputsRequest, ReadFileRequest, Reason};
use skilld_client::{Error, FileReader};
use tokio::io::AsyncWriteExt;

use crate::collect::{self, Limits};
use crate::context::Context;
use crate::input::{self, Local};
use crate::interrupt::Interrupt;
use crate::partial::Partial;
use crate::progress::Bar;
use crate::{complete, stage, values};

/// Copy a file or directory into a workspace or out of it.
///
/// One side is ID:PATH, with PATH relative to /workspace; the other is local, where `-` is stdin or stdout. A target that
/// ends with / is a directory to copy into, and so is a local directory that exists. A local name with a colon is written
/// ./NAME.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl cp sales.csv job-7:work/sales.csv
  skillctl cp job-7:out/report.md .
  skillctl cp job-7:out results
  skillctl cp job-7:out/report.md - | head -1")]
pub(crate) struct Cp {
    #[arg(value_name = "[ID:]SRC", add = ArgValueCompleter::new(complete::copy_sides))]
    source: String,
    #[arg(value_name = "[ID:]DEST", add = ArgValueCompleter::new(complete::copy_sides))]
    target: String,
}

impl Cp {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        // An unfinished copy is removed when it is dropped.
        Interrupt::new()?.race(self.copy(context)).await?
    }

    async fn copy(&self, context: &Context) -> anyhow::Result<u8> {
        match (in_workspace(&self.source), in_workspace(&self.target)) {
            (None, Some((workspace, path))) => upload(context, &self.source, workspace, path).await,
            (Some((workspace, path)), None) => {
                download(context, workspace, path, Path::new(&self.target)).await
            }
            (None, None) => bail!("one side must be in a workspace: write ID:PATH"),
            (Some(_), Some(_)) => bail!("one side must be local: copy in two steps"),
        }
    }
}

/// Splits `ID:PATH`; `None` for a local path, which has a slash before its first colon or no colon.
fn in_workspace(side: &str) -> Option<(&str, &str)> {
    side.split_once(':')
        .filter(|(id, _)| !id.is_empty() && !id.contains('/'))
}

async fn upload(
    context: &Context,
    source: &str,
    workspace: &str,
    path: &str,
) -> anyhow::Result<u8> {
    if path.is_empty() {
        bail!("write where in the workspace it goes: {workspace}:work/ or {workspace}:out/NAME");
    }
    let target = match path.strip_suffix('/') {
        Some(_) => format!(
            "{path}{}",
            input::file_name(source).map_err(anyhow::Error::msg)?
        ),
        None => path.to_owned(),
    };
    let local = Local {
        path: source.into(),
        target,
    };
    let staged = local.send(&context.client, workspace).await?;
    if context.output.is_json() {
        context.output.value(&stage::local_json(&local, &staged))?;
    }
    Ok(0)
}

async fn download(
    context: &Context,
    workspace: &str,
    path: &str,
    target: &Path,
) -> anyhow::Result<u8> {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    let to_stdout = target.as_os_str() == "-";
    if to_stdout && context.output.is_json() {
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
    let (files, bytes, complete) = match context.client.read_file(request).await {
        Ok(reader) if to_stdout => {
            write_all(reader, &mut tokio::io::stdout()).await?;
            return Ok(0);
        }
        Ok(reader) => {
            let partial = Partial::beside(&place)?;
            let bytes = write_all(reader, &mut partial.writer()?).await?;
            partial.keep()?;
            (1, bytes, true)
        }
        Err(error) if is_directory(&error) && to_stdout => {
            bail!(
                "{path} is a directory: `skillctl collect {workspace} '{path}/**' --tar -` writes an archive"
            )
        }
        Err(error) if is_directory(&error) || path.is_empty() => {
            download_directory(context, workspace, path, &place).await?
        }
        Err(error) => return Err(error.into()),
    };
    if context.output.is_json() {
        let from = format!("{workspace}:{path}");
        let to = place.display().to_string();
        context
            .output
            .value(&json!({"from": from, "to": to, "files": files, "bytes": bytes}))?;
    }
    Ok(u8::from(!complete))
}

fn is_directory(error: &Error) -> bool {
    error.reason() == Some(Reason::WrongFileType)
}

async fn write_all(
    mut reader: FileReader,
    writer: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> anyhow::Result<u64> {
    let bar = Bar::new(&reader.entry().path);
    let mut bytes = 0;
    while let Some(data) = reader.next().await? {
        writer.write_all(&data).await?;
        bytes += data.len() as u64;
        bar.add(data.len());
    }
    writer.flush().await?;
    Ok(bytes)
}

/// Copies a directory, which appears under its name when it is whole. Returns the files, their bytes, and whether nothing
/// was left out.
async fn download_directory(
    context: &Context,
    workspace: &str,
    path: &str,
    place: &Path,
) -> anyhow::Result<(usize, u64, bool)> {
    if place.symlink_metadata().is_ok() {
        bail!("{} exists: name a directory that does not", place.display());
    }
    let beside = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let temporary = tempfile::Builder::new()
        .prefix(".skillctl-")
        .tempdir_in(beside)
        .with_context(|| format!("cannot write beneath {}", beside.display()))?;
    let path = input::in_workspace(path);
    let glob = match path.is_empty() {
        true => "**".to_owned(),
        false => format!("{}/**", values::escape_glob(&path)),
    };
    let request = CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(collect::spec(&context.client, vec![glob], &Limits::default()).await?),
    };
    let collected = collect::to_dir(&context.client, request, temporary.path()).await?;
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
