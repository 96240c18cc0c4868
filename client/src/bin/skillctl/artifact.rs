//! `skillctl artifact`: named bytes with versions, kept beyond a workspace.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::{
    Artifact as Message, ArtifactScope, DeleteArtifactRequest, ListArtifactVersionsRequest,
    ListArtifactVersionsResponse, ListArtifactsRequest, ListArtifactsResponse, LoadArtifactRequest,
};
use skilld_client::{SaveTarget, split_version};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::context::Context;
use crate::files::FileContents;
use crate::interrupt::Interrupt;
use crate::output::Table;
use crate::partial::Partial;
use crate::progress::Bar;
use crate::{complete, remove, values};

/// Save, load, list and delete artifacts.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  skillctl artifact list --app shop --user ada")]
pub(crate) enum Artifact {
    #[command(visible_alias = "ls")]
    List(List),
    Save(Save),
    Load(Load),
    Versions(Versions),
    #[command(visible_alias = "rm")]
    Delete(Delete),
}

/// Application, user and session that artifacts belong to. A part that is left out is empty, which is a value like any other.
#[derive(Clone, Debug, Args)]
pub(crate) struct Scope {
    /// The application.
    #[arg(long, default_value = "")]
    app: String,
    /// The user.
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
    /// Its MIME type, if it is not to be found out.
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
    #[arg(value_name = "NAME[@VERSION]", value_parser = versioned, add = ArgValueCompleter::new(complete::artifacts))]
    name: Versioned,
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
    #[arg(add = ArgValueCompleter::new(complete::artifacts))]
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
    #[arg(value_name = "NAME[@VERSION]", value_parser = versioned, add = ArgValueCompleter::new(complete::artifacts))]
    name: Versioned,
    /// Delete all versions; needed where none is named.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    scope: Scope,
}

/// A name, and a version if it ends with `@` and digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Versioned {
    name: String,
    version: Option<i64>,
}

fn versioned(text: &str) -> Result<Versioned, String> {
    let text = text.strip_prefix("artifact://").unwrap_or(text);
    let (name, version) = split_version(text);
    let version = version.map(str::parse).transpose();
    Ok(Versioned {
        name: name.to_owned(),
        version: version.map_err(|_| "has a version that is too large")?,
    })
}

/// The resource name, also of an artifact whose own name begins with `artifacts/`.
fn resource(name: &str) -> String {
    format!("artifacts/{name}")
}

fn shown(artifact: &Message) -> String {
    let name = artifact.name.strip_prefix("artifacts/");
    name.unwrap_or(&artifact.name).to_owned()
}

impl From<Scope> for ArtifactScope {
    fn from(Scope { app, user, session }: Scope) -> Self {
        Self { app, user, session }
    }
}

impl Artifact {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        match self {
            Self::List(List { scope }) => list(context, scope.into()).await,
            Self::Save(save) => save.run(context).await,
            // What is not finished is removed when the copying is dropped.
            Self::Load(load) => Interrupt::new()?.race(load.run(context)).await?,
            Self::Versions(Versions { name, scope }) => {
                versions(context, &name, scope.into()).await
            }
            Self::Delete(delete) => delete.run(context).await,
        }
    }
}

async fn list(context: &Context, scope: ArtifactScope) -> anyhow::Result<u8> {
    let mut all = ListArtifactsResponse::default();
    let mut request = ListArtifactsRequest {
        scope: Some(scope),
        page_size: 1000,
        ..Default::default()
    };
    loop {
        let page = context.client.list_artifacts(request.clone()).await?;
        all.artifacts.extend(page.artifacts);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let text = |all: &ListArtifactsResponse| table(&all.artifacts);
    let ids = |all: &ListArtifactsResponse| all.artifacts.iter().map(shown).collect();
    context
        .output
        .list("ListArtifactsResponse", &all, ids, text)?;
    Ok(0)
}

async fn versions(context: &Context, name: &str, scope: ArtifactScope) -> anyhow::Result<u8> {
    let mut all = ListArtifactVersionsResponse::default();
    let mut request = ListArtifactVersionsRequest {
        name: resource(name),
        scope: Some(scope),
        page_size: 1000,
        ..Default::default()
    };
    loop {
        let page = context
            .client
            .list_artifact_versions(request.clone())
            .await?;
        all.artifacts.extend(page.artifacts);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let text = |all: &ListArtifactVersionsResponse| table(&all.artifacts);
    let ids = |all: &ListArtifactVersionsResponse| {
        let versions = all.artifacts.iter();
        let versions = versions.map(|found| format!("{}@{}", shown(found), found.version));
        versions.collect()
    };
    context
        .output
        .list("ListArtifactVersionsResponse", &all, ids, text)?;
    Ok(0)
}

fn table(artifacts: &[Message]) -> String {
    let mut table = Table::new(["NAME", "VERSION", "SIZE", "TYPE", "CREATED"]);
    for artifact in artifacts {
        table.row([
            shown(artifact),
            artifact.version.to_string(),
            values::bytes(u64::try_from(artifact.size).unwrap_or(0)),
            artifact.mime_type.clone(),
            values::time(artifact.create_time.as_ref()),
        ]);
    }
    table.text()
}

impl Save {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let bar = Bar::new(&self.name);
        let mut target = SaveTarget::new(&resource(&self.name), self.scope.into());
        target.mime_type = self.mime_type;
        target.sha256 = self.sha256;
        target.progress = bar.progress();
        let client = &context.client;
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
        context.output.message("Artifact", &saved, |saved| {
            format!("{}@{}\n", shown(saved), saved.version)
        })?;
        Ok(0)
    }
}

impl Load {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = LoadArtifactRequest {
            name: resource(&self.name.name),
            scope: Some(self.scope.into()),
            version: self.name.version,
        };
        if self.file.as_os_str() == "-" && context.output.is_json() {
            return print_json(context, request).await;
        }
        if self.file.as_os_str() == "-" {
            copy(context, request, &mut tokio::io::stdout()).await?;
            return Ok(0);
        }
        let partial = Partial::beside(&self.file)?;
        let loaded = copy(context, request, &mut partial.writer()?).await?;
        partial.keep()?;
        context.output.message("Artifact", &loaded, |loaded| {
            let (name, version) = (shown(loaded), loaded.version);
            format!("{name}@{version} → {}\n", self.file.display())
        })?;
        Ok(0)
    }
}

async fn print_json(context: &Context, request: LoadArtifactRequest) -> anyhow::Result<u8> {
    let mut reader = context.client.load_artifact(request).await?;
    let name = shown(reader.artifact());
    let mut contents = FileContents::default();
    while let Some(data) = reader.next().await? {
        contents.add(&data)?;
    }
    contents.print(context, &name)
}

async fn copy(
    context: &Context,
    request: LoadArtifactRequest,
    writer: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<Message> {
    let mut reader = context.client.load_artifact(request).await?;
    let bar = Bar::new(&shown(reader.artifact()));
    while let Some(data) = reader.next().await? {
        writer.write_all(&data).await?;
        bar.add(data.len());
    }
    writer.flush().await?;
    Ok(reader.artifact().clone())
}

impl Delete {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let Versioned { name, version } = self.name;
        match (version, self.all) {
            (None, false) => {
                anyhow::bail!("name a version, as in {name}@0, or say --all to delete every one")
            }
            (Some(_), true) => {
                anyhow::bail!("--all deletes every version: leave out the @ or the --all")
            }
            _ => {}
        }
        let request = DeleteArtifactRequest {
            name: resource(&name),
            scope: Some(self.scope.into()),
            version,
        };
        context.client.delete_artifact(request).await?;
        let deleted = version.map_or(name.clone(), |version| format!("{name}@{version}"));
        remove::print_deleted(context, &[deleted])?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_digits_after_the_last_at() {
        let check = |text: &str, name: &str, version| {
            let read = versioned(text).expect(text);
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
        assert!(versioned("a@99999999999999999999").is_err());
    }
}
