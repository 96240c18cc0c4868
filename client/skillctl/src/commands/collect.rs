//! `skillctl collect`: copies files that match globs out of a workspace, also for `run`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    ArtifactScope, CollectFormat, CollectOutputsRequest, CollectSpec, CollectSummary,
    SaveAsArtifacts, SkipReason, SkippedFile,
};
use skilld_client::{Client, CollectedFiles};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::commands::complete;
use crate::commands::partial_file::{NEW_FILE_MODE, PartialFile};
use crate::output::transfer_bar::TransferBar;
use crate::output::{self, skip_notes, value_formats};
use crate::terminal::interrupt::InterruptSignals;

/// Copy files out of a workspace.
///
/// Globs match paths relative to /workspace, ** across directories; the name of a file matches that file, also with
/// brackets or braces in it. A glob that matches nothing is named on stderr. Exits with 1 when nothing matches at all,
/// when a limit cut something, or when a local file or directory is in the way of another kind. Directories without a
/// file are left out; `skillctl cp` copies them too.
///
/// Modes and modification times are kept, as far as your umask permits.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl collect job-7 'out/**' 'work/*.log' --to results
  skillctl collect job-7 '$OUTPUT_DIR/**' --tar - | tar tz
  skillctl collect job-7 'out/**' --save --prefix reports/ --user ada")]
pub(crate) struct Collect {
    /// Workspace to copy from.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    #[arg(required = true, value_name = "GLOB")]
    globs: Vec<String>,
    /// Directory to write to, made if it is not there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    to: PathBuf,
    /// Write one archive instead, gzipped if its name ends with .gz or .tgz; - is stdout.
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    tar: Option<PathBuf>,
    #[command(flatten)]
    limits: CopyLimits,
    #[command(flatten)]
    save: Save,
}

/// Flags that save collected files as artifacts.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Save {
    /// Keep the files as artifacts too: whole ones only.
    #[arg(long, conflicts_with = "tar")]
    save: bool,
    /// Put before each path, which is the artifact's name; `user:` is shared by the user's sessions.
    #[arg(
        long,
        value_name = "P",
        default_value = "",
        hide_default_value = true,
        requires = "save"
    )]
    prefix: String,
    /// Application that owns the artifacts.
    #[arg(long, default_value = "", hide_default_value = true, requires = "save")]
    app: String,
    /// User that owns the artifacts.
    #[arg(long, default_value = "", hide_default_value = true, requires = "save")]
    user: String,
    /// Session that owns the artifacts.
    #[arg(long, default_value = "", hide_default_value = true, requires = "save")]
    session: String,
}

impl Save {
    fn request(self) -> Option<SaveAsArtifacts> {
        self.save.then_some(SaveAsArtifacts {
            prefix: self.prefix,
            scope: Some(ArtifactScope {
                app: self.app,
                user: self.user,
                session: self.session,
            }),
            request_id: String::new(),
        })
    }
}

/// Flags that limit a copy out of a workspace; the server's maximum applies where one is left out.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CopyLimits {
    /// Maximum number of files.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_files: Option<i64>,
    /// Files are cut at this size.
    #[arg(long, value_name = "SIZE", value_parser = value_formats::parse_size)]
    max_file_bytes: Option<i64>,
    /// Maximum size of all files together.
    #[arg(long, value_name = "SIZE", value_parser = value_formats::parse_size)]
    max_total_bytes: Option<i64>,
}

impl Collect {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        // What is not finished is removed when the copying is dropped.
        InterruptSignals::new()?
            .race(self.copy_files(client))
            .await?
    }

    async fn copy_files(self, client: &Client) -> anyhow::Result<u8> {
        let mut spec = collect_spec(client, self.globs, &self.limits).await?;
        spec.save_as_artifacts = self.save.request();
        let request = CollectOutputsRequest {
            workspace: self.id.clone(),
            spec: Some(spec),
        };
        let (matched, complete) = match &self.tar {
            Some(file) if file.as_os_str() == "-" && output::is_json() => {
                bail!("the archive goes to stdout: leave out -o json, or write it to a file")
            }
            Some(file) => {
                let summary = collect_archive(client, request, file).await?;
                (summary.matched_count, is_whole(&summary))
            }
            None => {
                let collected = collect_to_dir(client, request, &self.to).await?;
                print_collected(&collected)?;
                (collected.summary.matched_count, is_complete(&collected))
            }
        };
        if matched == 0 {
            output::note!("`skillctl ls {} out -R` lists the files in out/", self.id);
        }
        Ok(if complete { 0 } else { 1 })
    }
}

/// Returns the specification of a copy, with the server's maxima in place of its defaults: a user who copies by hand
/// wants everything.
pub(crate) async fn collect_spec(
    client: &Client,
    globs: Vec<String>,
    limits: &CopyLimits,
) -> anyhow::Result<CollectSpec> {
    let server = client.server_info().await?.limits.unwrap_or_default();
    Ok(CollectSpec {
        globs,
        max_files: limits.max_files.unwrap_or(server.collect_files_max),
        max_file_bytes: limits
            .max_file_bytes
            .unwrap_or(server.collect_file_bytes_max),
        max_total_bytes: limits
            .max_total_bytes
            .unwrap_or(server.collect_total_bytes_max),
        ..Default::default()
    })
}

/// Copies files of a workspace into a local directory, shows a progress bar, and notes on stderr what was left out.
pub(crate) async fn collect_to_dir(
    client: &Client,
    request: CollectOutputsRequest,
    dir: &Path,
) -> anyhow::Result<CollectedFiles> {
    let bar = TransferBar::new("collect");
    let collected = client.collect_to_dir(request, dir, bar.progress()).await?;
    drop(bar);
    warn_about_files(&collected);
    Ok(collected)
}

/// Copies a directory of a workspace, or merges it into a local one, as [`collect_to_dir`] collects.
pub(crate) async fn copy_directory(
    client: &Client,
    request: CollectOutputsRequest,
    path: &str,
    dir: &Path,
) -> anyhow::Result<CollectedFiles> {
    let bar = TransferBar::new("copy");
    let copied = client
        .copy_directory_out(request, path, dir, bar.progress())
        .await?;
    drop(bar);
    warn_about_files(&copied);
    Ok(copied)
}

/// Notes on stderr which files were left out.
pub(crate) fn warn_about_files(collected: &CollectedFiles) {
    skip_notes::note_skipped(&collected.skipped);
    warn_about_summary(&collected.summary);
}

/// Prints the names of collected files, links and artifacts, or the summary as JSON.
fn print_collected(collected: &CollectedFiles) -> anyhow::Result<u8> {
    let links = collected.links.iter().map(|link| link.path.clone());
    let files = collected
        .files
        .iter()
        .map(|file| file.display().to_string());
    let artifacts = collected.summary.artifacts.iter().cloned();
    let text = output::text_lines(files.chain(links).chain(artifacts));
    output::print_message(&collected.summary, &text)
}

/// Returns `true` if something matched, and all of it came whole, was written and, if requested, saved. Links that lead
/// out of the directory do not count.
pub(crate) fn is_complete(collected: &CollectedFiles) -> bool {
    is_whole(&collected.summary) && !collected.skipped.iter().any(|skipped| skipped.is_blocked)
}

fn is_whole(summary: &CollectSummary) -> bool {
    let saved = |skipped: &SkippedFile| {
        !matches!(
            skipped.reason(),
            SkipReason::NotSaved | SkipReason::QuotaExceeded
        )
    };
    summary.matched_count > 0
        && !summary.limits_hit
        && summary.truncated_paths.is_empty()
        && summary.skipped_files.iter().all(saved)
}

fn warn_about_summary(summary: &CollectSummary) {
    for path in &summary.truncated_paths {
        output::note!(
            "cut {path}: it is over --max-file-bytes or the daemon's limit for one file; \
             `skillctl cp` copies one file whole"
        );
    }
    skip_notes::note_skipped_entries(&summary.skipped_files, summary.skipped_files.len());
    for path in &summary.outside_paths {
        output::note!("not collected: {path} is outside of out/ and work/");
    }
    if summary.outside_paths_truncated {
        let files = if summary.outside_paths.is_empty() {
            "files"
        } else {
            "more files"
        };
        output::note!("not collected: perhaps {files} outside of out/ and work/");
    }
    for glob in &summary.unmatched_globs {
        output::note!("no file matches {glob}");
    }
    if summary.matched_count == 0 && summary.unmatched_globs.is_empty() {
        output::note!("no file matches");
    }
}

/// Copies files of a workspace into one archive, which gets its name when it is complete.
async fn collect_archive(
    client: &Client,
    mut request: CollectOutputsRequest,
    file: &Path,
) -> anyhow::Result<CollectSummary> {
    let gzipped = file
        .extension()
        .is_some_and(|extension| extension == "gz" || extension == "tgz");
    let format = if gzipped || file.as_os_str() == "-" {
        CollectFormat::TarGz
    } else {
        CollectFormat::Tar
    };
    if let Some(spec) = &mut request.spec {
        spec.set_format(format);
    }
    let summary = if file.as_os_str() == "-" {
        copy_archive(client, request, &mut tokio::io::stdout()).await?
    } else {
        let partial = PartialFile::create(file, NEW_FILE_MODE)?;
        let summary = copy_archive(client, request, &mut partial.writer()?).await?;
        if summary.matched_count > 0 {
            partial.install()?;
        }
        let text = format!("{} ({} files)\n", file.display(), summary.returned_count);
        output::print_message(&summary, &text)?;
        summary
    };
    warn_about_summary(&summary);
    Ok(summary)
}

async fn copy_archive(
    client: &Client,
    request: CollectOutputsRequest,
    writer: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<CollectSummary> {
    let mut messages = client.collect(request).await?;
    let bar = TransferBar::new("collect");
    while let Some(message) = messages.next().await? {
        match message.payload {
            Some(Payload::Data(data)) => {
                writer.write_all(&data).await?;
                bar.add(data.len());
            }
            Some(Payload::Summary(summary)) => {
                writer.flush().await?;
                return Ok(summary);
            }
            Some(Payload::File(_) | Payload::FileEnd(_)) | None => {}
        }
    }
    bail!("the server ended the archive without a summary: collect again")
}
