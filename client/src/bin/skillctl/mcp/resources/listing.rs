//! Listing of resources: files of the workspace and artifacts on the first page, files of skills on all pages.

use std::cmp::Reverse;

use prost_types::Timestamp;
use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, Resource};
use skilld_client::v1::{
    Artifact, FileEntry, FileType, ListArtifactsRequest, ListFilesRequest, ListSkillFilesRequest,
    ListSkillsRequest, Reason,
};
use skilld_client::{Error, short_id, workspace_name};

use super::{Location, Scope, refused};

/// Skills whose files one page lists.
const SKILLS_PER_PAGE: i32 = 20;
/// Maximum number of resources of each kind that are listed: files of `out/`, files of `work/`, uploads, artifacts. The
/// newest of each are listed, all of them on the first page.
const LISTED_MAX: usize = 1000;
/// Maximum number of entries of one kind that are looked at to find the newest.
const SCANNED_MAX: usize = 100_000;
/// Largest pages that the daemon gives of files and of artifacts.
const FILES_PER_PAGE: i32 = 10_000;
const ARTIFACTS_PER_PAGE: i32 = 1000;

/// Directory of the files that a client or a user brought.
const INPUTS: &str = "work/inputs/";
/// Directory in which large uploads are kept under their digests; `work/inputs/` has links to them.
const UPLOADS: &str = "work/.skilld/";

/// Lists one page.
pub(crate) async fn list_resources(
    scope: Scope<'_>,
    cursor: Option<String>,
) -> Result<ListResourcesResult, ErrorData> {
    let mut resources = Vec::new();
    if cursor.is_none() && scope.has_workspace {
        add_workspace_files(scope, &mut resources).await?;
        add_artifacts(scope, &mut resources).await?;
    }
    let page = scope
        .client
        .list_skills(ListSkillsRequest {
            page_size: SKILLS_PER_PAGE,
            page_token: cursor.unwrap_or_default(),
            ..ListSkillsRequest::default()
        })
        .await
        .map_err(|error| refused(&error))?;
    for skill in page
        .skills
        .iter()
        .filter(|skill| scope.options.offers(skill))
    {
        add_skill_files(scope, &short_id(&skill.name), &mut resources).await?;
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = Some(page.next_page_token).filter(|token| !token.is_empty());
    Ok(listed)
}

/// Adds results, then uploads, so that many uploads hide no result.
async fn add_workspace_files(
    scope: Scope<'_>,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let out = workspace_files(scope, "out").await?;
    let work = workspace_files(scope, "work").await?.into_iter();
    let (uploads, work) = work.partition(|file| file.path.starts_with(INPUTS));
    for files in [out, work, uploads] {
        let files = newest(files, |file: &FileEntry| file.mtime);
        resources.extend(files.map(|file| {
            let uri = Location::Workspace(file.path.clone()).uri();
            Resource::new(uri, file.path).with_size(u64::try_from(file.size).unwrap_or(0))
        }));
    }
    Ok(())
}

/// Lists the files beneath a directory of the workspace; none if there is no workspace yet.
async fn workspace_files(scope: Scope<'_>, directory: &str) -> Result<Vec<FileEntry>, ErrorData> {
    let mut request = ListFilesRequest {
        workspace: workspace_name(&scope.session.workspace_id()),
        path: directory.to_owned(),
        recursive: true,
        page_size: FILES_PER_PAGE,
        ..ListFilesRequest::default()
    };
    let (mut found, mut scanned) = (Vec::new(), 0);
    loop {
        let page = match scope.client.list_files(request.clone()).await {
            Ok(page) => page,
            // A session that has run nothing has no workspace.
            Err(error) if is_missing(&error) => return Ok(found),
            Err(error) => return Err(refused(&error)),
        };
        scanned += page.files.len();
        let files = page.files.into_iter();
        // A path that is not UTF-8 has no URI.
        let files =
            files.filter(|file| file.r#type() == FileType::File && file.path_bytes.is_empty());
        found.extend(files.filter(|file| !file.path.starts_with(UPLOADS)));
        if page.next_page_token.is_empty() || scanned >= SCANNED_MAX {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
    }
}

/// Returns the newest of some items, newest first; those of one time in the order in which they came.
fn newest<T>(mut items: Vec<T>, time: impl Fn(&T) -> Option<Timestamp>) -> impl Iterator<Item = T> {
    items.sort_by_key(|item| Reverse(time(item).map(|time| (time.seconds, time.nanos))));
    items.into_iter().take(LISTED_MAX)
}

fn is_missing(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::WorkspaceNotFound | Reason::WorkspaceNotReady | Reason::FileNotFound)
    )
}

async fn add_artifacts(scope: Scope<'_>, resources: &mut Vec<Resource>) -> Result<(), ErrorData> {
    let mut request = ListArtifactsRequest {
        scope: Some(scope.session.scope()),
        page_size: ARTIFACTS_PER_PAGE,
        ..ListArtifactsRequest::default()
    };
    let mut found = Vec::new();
    loop {
        let page = scope.client.list_artifacts(request.clone()).await;
        let page = page.map_err(|error| refused(&error))?;
        found.extend(page.artifacts);
        if page.next_page_token.is_empty() || found.len() >= SCANNED_MAX {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let found = newest(found, |artifact: &Artifact| artifact.create_time);
    resources.extend(found.map(|artifact| {
        let name = artifact.name.strip_prefix("artifacts/");
        let name = name.unwrap_or(&artifact.name).to_owned();
        let uri = Location::Artifact(name.clone(), Some(artifact.version)).uri();
        Resource::new(uri, format!("{name}, version {}", artifact.version))
            .with_mime_type(artifact.mime_type)
            .with_size(u64::try_from(artifact.size).unwrap_or(0))
    }));
    Ok(())
}

async fn add_skill_files(
    scope: Scope<'_>,
    skill: &str,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let mut request = ListSkillFilesRequest {
        name: skill.to_owned(),
        page_size: 10_000,
        ..ListSkillFilesRequest::default()
    };
    loop {
        let page = scope
            .client
            .list_skill_files(request.clone())
            .await
            .map_err(|error| refused(&error))?;
        resources.extend(page.files.into_iter().map(|file| {
            let uri = Location::Skill(skill.to_owned(), file.path.clone()).uri();
            Resource::new(uri, format!("{skill}/{}", file.path))
                .with_mime_type(file.mime_type)
                .with_size(u64::try_from(file.size).unwrap_or(0))
        }));
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}
