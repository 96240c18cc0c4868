//! `skillctl artifact`: named bytes with versions, kept beyond a workspace.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::{
    Artifact as Message, ArtifactScope, DeleteArtifactRequest, ListArtifactVersionsRequest,
    ListArtifactsRequest, LoadArtifactRequest,
};
use skilld_client::{Client, SaveTarget, split_version};

use crate::commands::command_group::command_group;
use crate::commands::partial_file::{NEW_FILE_MODE, PartialFile};
use crate::commands::{complete, remove};
use crate::output::download::{print_download, write_download};
use crate::output::transfer_bar::TransferBar;
use crate::output::{self, value_formats};
use crate::terminal::interrupt::InterruptSignals;

command_group! {
    /// Save, load, list and delete artifacts.
    #[command(after_help = "Example:\n  skillctl artifact list --app shop --user ada")]
    Artifact {
        #[command(visible_alias = "ls")]
        List(List),
        Save(Save),
        Load(Load),
        Versions(Versions),
        #[command(visible_alias = "rm")]
        Delete(Delete),
    }
}

/// Application, user and session that artifacts belong to. A part that is left out is empty, which is a value like any
/// other.
#[derive(Clone, Debug, Args)]
pub(crate) struct Scope {
    /// Application that owns the artifact.
    #[arg(long, default_value = "")]
    app: String,
    /// User that owns the artifact.
    #[arg(long, default_value = "")]
    user: String,
    /// The session; it does not matter for names that begin with user:.
    #[arg(long, default_value = "")]
    session: String,
}

/// List the newest version of each artifact.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl artifact list --app shop --user ada --session s1")]
pub(crate) struct List {
    #[command(flatten)]
    scope: Scope,
}

/// Save a file as the next version of an artifact.
///
/// NAME is a relative path; with user: before it all sessions of the user share the artifact. Prints the name with its
/// version.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl artifact save report.pdf ./report.pdf --app shop --user ada
  skillctl artifact save report.pdf out/report.pdf --workspace job-7
  date | skillctl artifact save user:last-run -")]
pub(crate) struct Save {
    name: String,
    /// A local file, or - for stdin; with --workspace a file of that workspace.
    file: String,
    /// Take FILE from this workspace; its bytes do not come here.
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// MIME type; detected if left out.
    #[arg(long, value_name = "TYPE/SUBTYPE", default_value = "")]
    mime_type: String,
    /// Refuse the bytes if this is not theirs: 64 hex digits.
    #[arg(long, value_name = "HEX", default_value = "")]
    sha256: String,
    #[command(flatten)]
    scope: Scope,
}

/// Write the bytes of an artifact to stdout or into a file.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl artifact load report.pdf report.pdf --app shop --user ada
  skillctl artifact load user:last-run@0")]
pub(crate) struct Load {
    /// The newest version, or the one after the last @.
    #[arg(value_name = "NAME[@VERSION]", value_parser = parse_artifact, add = ArgValueCompleter::new(complete::offer_artifacts))]
    name: ArtifactVersion,
    /// The local file to write, which appears when it is whole; - is stdout.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    scope: Scope,
}

/// List the versions of an artifact, oldest first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl artifact versions report.pdf --app shop --user ada")]
pub(crate) struct Versions {
    #[arg(add = ArgValueCompleter::new(complete::offer_artifacts))]
    name: String,
    #[command(flatten)]
    scope: Scope,
}

/// Delete one version of an artifact, or all of them.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl artifact delete report.pdf@2 --app shop --user ada
  skillctl artifact delete report.pdf --all --app shop --user ada")]
pub(crate) struct Delete {
    #[arg(value_name = "NAME[@VERSION]", value_parser = parse_artifact, add = ArgValueCompleter::new(complete::offer_artifacts))]
    name: ArtifactVersion,
    /// Delete all versions; needed where none is named.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    scope: Scope,
}

/// Name of an artifact on the command line, and its version if the name ends with `@` and digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ArtifactVersion {
    name: String,
    version: Option<i64>,
}

/// Parses an artifact's name on the command line, `NAME` or `NAME@VERSION`.
fn parse_artifact(text: &str) -> Result<ArtifactVersion, String> {
    let text = text.strip_prefix("artifact://").unwrap_or(text);
    let (name, version) = split_version(text);
    let version = version
        .map(str::parse)
        .transpose()
        .map_err(|_| "has a version that is too large")?;
    Ok(ArtifactVersion {
        name: name.to_owned(),
        version,
    })
}

/// Returns the resource name of an artifact, `artifacts/NAME`; NAME may itself begin with `artifacts/`.
fn resource_name(name: &str) -> String {
    format!("artifacts/{name}")
}

/// Returns the name of an artifact without the `artifacts/` of its resource name.
fn bare_name(artifact: &Message) -> String {
    let name = artifact.name.strip_prefix("artifacts/");
    name.unwrap_or(&artifact.name).to_owned()
}

/// Returns the reference of one version of an artifact, `NAME@VERSION`.
fn versioned_name(artifact: &Message) -> String {
    format!("{}@{}", bare_name(artifact), artifact.version)
}

impl From<Scope> for ArtifactScope {
    fn from(Scope { app, user, session }: Scope) -> Self {
        Self { app, user, session }
    }
}

const HEADER: [&str; 5] = ["NAME", "VERSION", "SIZE", "TYPE", "CREATED"];

fn artifact_row(artifact: &Message) -> [String; 5] {
    [
        bare_name(artifact),
        artifact.version.to_string(),
        value_formats::format_size(artifact.size_bytes),
        artifact.mime_type.clone(),
        value_formats::format_time(artifact.create_time.as_ref()),
    ]
}

impl List {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListArtifactsRequest {
            scope: Some(self.scope.into()),
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        output::print_list(&all, &all.artifacts, bare_name, HEADER, artifact_row)
    }
}

impl Versions {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListArtifactVersionsRequest {
            parent: resource_name(&self.name),
            scope: Some(self.scope.into()),
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        output::print_list(&all, &all.artifacts, versioned_name, HEADER, artifact_row)
    }
}

impl Save {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let bar = TransferBar::new(&self.name);
        let mut target = SaveTarget::new(&resource_name(&self.name), self.scope.into());
        target.mime_type = self.mime_type;
        target.sha256 = self.sha256;
        target.progress = bar.progress();
        let saved = match &self.workspace {
            Some(workspace) => {
                client
                    .save_artifact_from(target, workspace, &self.file)
                    .await?
            }
            None if self.file == "-" => client.save_artifact(target, tokio::io::stdin()).await?,
            None => {
                let path = Path::new(&self.file);
                let failed = || format!("cannot read {}", path.display());
                let file = tokio::fs::File::open(path).await.with_context(failed)?;
                let about = file.metadata().await.with_context(failed)?;
                anyhow::ensure!(
                    !about.is_dir(),
                    "{} is a directory: save its files, or an archive of it",
                    path.display()
                );
                target.total = about.is_file().then_some(about.len());
                client.save_artifact(target, file).await?
            }
        };
        drop(bar);
        let text = format!("{}\n", versioned_name(&saved));
        output::print_message(&saved, &text)
    }
}

impl Load {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        // An unfinished file is removed when the future that writes it is dropped.
        InterruptSignals::new()?.race(self.load(client)).await?
    }

    async fn load(self, client: &Client) -> anyhow::Result<u8> {
        let request = LoadArtifactRequest {
            name: resource_name(&self.name.name),
            scope: Some(self.scope.into()),
            version: self.name.version,
        };
        let artifact = client.load_artifact(request).await?;
        let name = bare_name(artifact.header());
        let total = u64::try_from(artifact.header().size_bytes).ok();
        let to_stdout = self.file.as_os_str() == "-";
        if to_stdout && output::is_json() {
            return print_download(artifact, &name).await;
        }
        if to_stdout {
            write_download(artifact, &name, total, &mut tokio::io::stdout()).await?;
            return Ok(0);
        }
        let partial = PartialFile::create(&self.file, NEW_FILE_MODE)?;
        let (loaded, _) = write_download(artifact, &name, total, &mut partial.writer()?).await?;
        partial.install()?;
        let text = format!("{} → {}\n", versioned_name(&loaded), self.file.display());
        output::print_message(&loaded, &text)
    }
}

impl Delete {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let ArtifactVersion { name, version } = self.name;
        remove::check_all_flag(version.is_some(), self.all, &format!("{name}@0"))?;
        let request = DeleteArtifactRequest {
            name: resource_name(&name),
            scope: Some(self.scope.into()),
            version,
            allow_missing: false,
        };
        client.delete_artifact(request).await?;
        let deleted = version.map_or(name.clone(), |version| format!("{name}@{version}"));
        remove::print_deleted(&[deleted])?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_digits_after_the_last_at() {
        let check = |text: &str, name: &str, version| {
            let read = parse_artifact(text).expect(text);
            assert_eq!(
                (read.name.as_str(), read.version),
                (name, version),
                "{text}"
            );
        };
        check("a", "a", None);
        check("a@0", "a", Some(0));
        check("artifact://d/a@12", "d/a", Some(12));
        check("a@b", "a@b", None);
        check("a@", "a@", None);
        check("a@1@2", "a@1", Some(2));
        assert!(parse_artifact("a@99999999999999999999").is_err());
    }
}
