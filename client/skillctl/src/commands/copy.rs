//! `skillctl cp`: a file or directory between this host and a workspace.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::v1::{CollectOutputsRequest, ErrorReason, ReadFileRequest};
use skilld_client::{Client, CollectedFiles, Error, FileReader};

use crate::commands::collect::{self, CopyLimits};
use crate::commands::input_arg::{self, LocalInput};
use crate::commands::partial_file::{NEW_FILE_MODE, PartialFile, parent_directory};
use crate::commands::{complete, stage};
use crate::output::download::write_download;
use crate::output::{self, skip_notes, value_formats};
use crate::terminal::interrupt::InterruptSignals;

/// Copy a file or directory into a workspace or out of it.
///
/// One side is ID:PATH, with PATH relative to /workspace; the other is local, where `-` is stdin or stdout. A target
/// that ends with / is a directory to copy into, and so is a local directory that exists. A local name with a colon is
/// written ./NAME.
///
/// A directory is copied with everything in it, empty directories included; one that exists at the target is merged
/// with it. Modes and modification times are kept in both directions, outwards as far as your umask permits. FIFOs,
/// sockets and devices are left out with a remark, and outwards so are links that lead out of the copied directory.
///
/// If a local file can't be read, or a local file or directory is in the way of another kind, the rest is copied and
/// the exit code is 1.
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
    let target = match (path.ends_with('/'), source) {
        (true, "-") => bail!("stdin has no name: write {workspace}:{path}NAME"),
        (true, _) => {
            let name = input_arg::file_name(source).map_err(anyhow::Error::msg)?;
            format!("{path}{name}")
        }
        (false, _) => path.to_owned(),
    };
    let local = LocalInput {
        path: source.into(),
        target,
    };
    let staged = match local.send(client, workspace).await {
        Err(error) if is_directory(&error) && !local.path.is_dir() => {
            let advice = format!("{workspace}:{path}/ copies into a directory");
            return Err(anyhow::Error::from(error).context(advice));
        }
        staged => staged?,
    };
    if output::is_json() {
        output::print_value(&stage::local_json(&local, &staged))?;
    }
    skip_notes::check_readable(&staged)?;
    Ok(0)
}

/// Outcome of a copy out of a workspace.
struct CopyOutcome {
    files: usize,
    bytes: u64,
    skipped: usize,
    /// `true` if nothing was cut or missed.
    complete: bool,
}

async fn copy_out(
    client: &Client,
    workspace: &str,
    path: &str,
    target: &Path,
) -> anyhow::Result<u8> {
    let path = path.trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    if name == ".." {
        bail!("write the name of the directory instead of ..");
    }
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
    let copied = match client.read_file(request).await {
        Ok(reader) if to_stdout => {
            let total = u64::try_from(reader.header().size_bytes).ok();
            write_download(reader, path, total, &mut tokio::io::stdout()).await?;
            return Ok(0);
        }
        Ok(reader) => copy_file_out(reader, path, &place).await?,
        Err(error) if is_directory(&error) && to_stdout => {
            bail!(
                "{path} is a directory: `skillctl collect {workspace} '{path}/**' --tar -` writes an archive"
            )
        }
        Err(error) if is_directory(&error) || path.is_empty() => {
            // Relative to the workspace, with variables replaced: so are the names of what is in it.
            let resolved = error
                .failure()
                .and_then(|failure| failure.metadata.get("path"));
            let path = resolved.map_or(path, String::as_str);
            copy_directory_out(client, workspace, path, &place).await?
        }
        Err(error) => return Err(error.into()),
    };
    if output::is_json() {
        output::print_value(&json!({
            "from": format!("{workspace}:{path}"),
            "to": place.display().to_string(),
            "files": copied.files,
            "bytes": copied.bytes,
            "skipped": copied.skipped,
        }))?;
    }
    Ok(u8::from(!copied.complete))
}

fn is_directory(error: &Error) -> bool {
    error.reason() == Some(ErrorReason::WrongFileType)
}

/// Copies a file out of a workspace; it gets its local name when it is complete.
async fn copy_file_out(
    reader: FileReader,
    path: &str,
    place: &Path,
) -> anyhow::Result<CopyOutcome> {
    let file = reader.header().clone();
    let mode = match file.mode & 0o777 {
        0 => NEW_FILE_MODE,
        mode => mode,
    };
    let partial = PartialFile::create(place, mode)?;
    let total = u64::try_from(file.size_bytes).ok();
    let (_, bytes) = write_download(reader, path, total, &mut partial.writer()?).await?;
    if let Some(Ok(modified)) = file.modify_time.map(SystemTime::try_from) {
        partial.set_modified(modified)?;
    }
    partial.install()?;
    Ok(CopyOutcome {
        files: 1,
        bytes,
        skipped: 0,
        complete: true,
    })
}

/// Copies a directory out of a workspace. A new one gets its local name when it is complete; one that exists is merged
/// with the copy, file by file.
async fn copy_directory_out(
    client: &Client,
    workspace: &str,
    path: &str,
    place: &Path,
) -> anyhow::Result<CopyOutcome> {
    let glob = match path {
        "" => "**".to_owned(),
        path => value_formats::escape_glob(path),
    };
    let request = CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(collect::collect_spec(client, vec![glob], &CopyLimits::default()).await?),
    };
    let copied = if place.is_dir() {
        let copied = collect::copy_directory(client, request, path, place).await?;
        check_copied(&copied, path)?;
        copied
    } else {
        if place.symlink_metadata().is_ok() {
            bail!("{} exists and is not a directory", place.display());
        }
        let beside = parent_directory(place);
        let temporary = tempfile::Builder::new()
            .prefix(".skillctl-")
            .tempdir_in(beside)
            .with_context(|| format!("cannot write beneath {}", beside.display()))?;
        let made = temporary.path().join("copy");
        let copied = collect::copy_directory(client, request, path, &made).await?;
        check_copied(&copied, path)?;
        rename_directory(&made, place)
            .with_context(|| format!("cannot make {}", place.display()))?;
        copied
    };
    Ok(CopyOutcome {
        files: copied.files.len() + copied.links.len(),
        bytes: copied.bytes,
        skipped: copied.skipped.len() + copied.summary.skipped_files.len(),
        complete: collect::is_complete(&copied),
    })
}

/// Fails if the directory itself was not copied: it is a link, a special file or unreadable, or a part of its path is a
/// link, which a copy does not follow.
fn check_copied(copied: &CollectedFiles, path: &str) -> anyhow::Result<()> {
    let here = copied.skipped.iter().map(|skipped| &skipped.path);
    let there = copied
        .summary
        .skipped_files
        .iter()
        .map(|skipped| &skipped.path);
    if copied.summary.matched_count == 0 || here.chain(there).any(|skipped| skipped == path) {
        bail!("{path} was not copied: copy a directory by its own path, without links in it");
    }
    Ok(())
}

/// Moves a directory, whose mode may not permit the owner to write: a move to another parent changes its `..`.
fn rename_directory(from: &Path, to: &Path) -> io::Result<()> {
    let permissions = std::fs::metadata(from)?.permissions();
    let writable = Permissions::from_mode(permissions.mode() | 0o700);
    std::fs::set_permissions(from, writable)?;
    std::fs::rename(from, to)?;
    std::fs::set_permissions(to, permissions)
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
