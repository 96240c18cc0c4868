//! Listing of resources: files of the workspace and artifacts on the first page, files of skills on all pages.

use std::cmp::Reverse;

use futures::TryFutureExt as _;
use prost_types::Timestamp;
use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, Resource};
use skilld_client::v1::{
    Artifact, ErrorReason, FileEntry, FileType, ListArtifactsRequest, ListFilesRequest,
    ListSkillFilesRequest, ListSkillsRequest,
};
use skilld_client::{Error, short_id, workspace_name};

use super::{ResourceLocation, ResourceScope, json_bytes, resource_error};
use crate::output;

/// Maximum number of skills whose files one page lists: with the other kinds they keep within a message.
const SKILLS_PER_PAGE: i32 = 6;
/// Maximum number of resources of each kind that are listed: files of `out/`, files of `work/`, uploads, artifacts. The
/// newest of each are listed, all of them on the first page.
const LISTED_MAX: usize = 1000;
/// Maximum size of the resources of each kind, and of one skill, in bytes of JSON: a page has those of four kinds and of
/// some skills in one message.
const LISTED_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of entries of one list that are looked at to find the newest. The daemon gives them in the order of
/// their paths or names.
const SCANNED_MAX: usize = 100_000;
/// Maximum number of pages of one list. The daemon may end a page early, but a list of empty pages would have no end.
const PAGES_MAX: usize = 100;
/// Maximum number of entries in the daemon's pages of files and of artifacts.
const FILES_PER_PAGE: i32 = 10_000;
const ARTIFACTS_PER_PAGE: i32 = 1000;

/// Directory of the files that a client or a user brought.
const INPUTS: &str = "work/inputs/";
/// Directory in which large uploads are kept under their digests; `work/inputs/` has links to them.
const UPLOADS: &str = "work/.skilld/";

/// Lists one page of a client's resources.
pub(crate) async fn list_resources(
    scope: ResourceScope<'_>,
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
        .map_err(|error| resource_error(&error))?;
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

/// Reads a list page by page and hands the entries to `take`, until the last page or until `take` returns `false`. Ends
/// at a limit too, which a note on stderr names.
async fn scan_pages<T, Page>(
    list: &str,
    mut read: impl FnMut(String) -> Page,
    mut take: impl FnMut(Vec<T>) -> bool,
) -> Result<(), Error>
where
    Page: Future<Output = Result<(Vec<T>, String), Error>>,
{
    let (mut entries, mut token) = (0, String::new());
    for _ in 0..PAGES_MAX {
        let (page, next) = read(token).await?;
        entries += page.len();
        if !take(page) || next.is_empty() {
            return Ok(());
        }
        if entries >= SCANNED_MAX {
            break;
        }
        token = next;
    }
    output::note!(
        "resources/list looked at the first {entries} entries of {list} only: others may be missing"
    );
    Ok(())
}

/// Newest files of a directory of the workspace.
#[derive(Debug, Default)]
struct WorkspaceFiles {
    results: Vec<FileEntry>,
    uploads: Vec<FileEntry>,
}

impl WorkspaceFiles {
    /// Adds the files of a page, and drops all but the newest.
    fn add_page(&mut self, files: Vec<FileEntry>) {
        // A path that is not UTF-8 has no URI.
        let is_listed = |file: &FileEntry| {
            file.file_type() == FileType::File
                && file.raw_path.is_empty()
                && !file.path.starts_with(UPLOADS)
        };
        let (uploads, results): (Vec<_>, Vec<_>) = files
            .into_iter()
            .filter(is_listed)
            .partition(|file| file.path.starts_with(INPUTS));
        self.results.extend(results);
        self.uploads.extend(uploads);
        keep_newest(&mut self.results, |file| file.modify_time);
        keep_newest(&mut self.uploads, |file| file.modify_time);
    }
}

/// Adds the workspace's files as resources: results first, then uploads, so that many uploads hide no result.
async fn add_workspace_files(
    scope: ResourceScope<'_>,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let out = workspace_files(scope, "out").await?;
    let work = workspace_files(scope, "work").await?;
    for files in [out.results, work.results, work.uploads] {
        let listed = files.into_iter().map(|file| {
            let uri = ResourceLocation::Workspace(file.path.clone()).uri();
            Resource::new(uri, file.path).with_size(u64::try_from(file.size_bytes).unwrap_or(0))
        });
        add_within_limit(resources, listed);
    }
    Ok(())
}

/// Adds resources of one kind until they reach [`LISTED_BYTES_MAX`].
fn add_within_limit(resources: &mut Vec<Resource>, kind: impl Iterator<Item = Resource>) {
    let mut bytes = 0;
    for resource in kind {
        bytes += json_bytes(&resource);
        if bytes > LISTED_BYTES_MAX {
            let uri = &resource.uri;
            output::note!("resources/list ends before {uri}: the names are too long together");
            return;
        }
        resources.push(resource);
    }
}

/// Lists the newest files beneath a directory of the workspace; none if there is no workspace yet.
async fn workspace_files(
    scope: ResourceScope<'_>,
    directory: &'static str,
) -> Result<WorkspaceFiles, ErrorData> {
    let request = ListFilesRequest {
        parent: workspace_name(&scope.session.workspace_id()),
        path: directory.to_owned(),
        recursive: true,
        page_size: FILES_PER_PAGE,
        ..ListFilesRequest::default()
    };
    let read = |page_token| {
        let request = ListFilesRequest {
            page_token,
            ..request.clone()
        };
        let reading = scope.client.list_files(request);
        reading.map_ok(|page| (page.files, page.next_page_token))
    };
    let mut found = WorkspaceFiles::default();
    let take = |files| {
        found.add_page(files);
        true
    };
    match scan_pages(directory, read, take).await {
        // A session that has run nothing has no workspace.
        Err(error) if !is_missing(&error) => Err(resource_error(&error)),
        Ok(()) | Err(_) => Ok(found),
    }
}

/// Keeps the newest of some items, newest first; those of one time in the order in which they came.
fn keep_newest<T>(items: &mut Vec<T>, time: impl Fn(&T) -> Option<Timestamp>) {
    items.sort_by_key(|item| Reverse(time(item).map(|time| (time.seconds, time.nanos))));
    items.truncate(LISTED_MAX);
}

fn is_missing(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(
            ErrorReason::WorkspaceNotFound
                | ErrorReason::WorkspaceNotReady
                | ErrorReason::FileNotFound
        )
    )
}

async fn add_artifacts(
    scope: ResourceScope<'_>,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let read = |page_token| {
        let request = ListArtifactsRequest {
            scope: Some(scope.session.scope()),
            page_size: ARTIFACTS_PER_PAGE,
            page_token,
        };
        let reading = scope.client.list_artifacts(request);
        reading.map_ok(|page| (page.artifacts, page.next_page_token))
    };
    let mut found = Vec::new();
    let take = |artifacts| {
        found.extend(artifacts);
        keep_newest(&mut found, |artifact: &Artifact| artifact.create_time);
        true
    };
    let scanned = scan_pages("the session's artifacts", read, take).await;
    match scanned {
        // The token of one workspace reads no artifacts.
        Err(error) if error.reason() == Some(ErrorReason::PermissionDenied) => return Ok(()),
        scanned => scanned.map_err(|error| resource_error(&error))?,
    }
    let listed = found.into_iter().map(|artifact| {
        let name = artifact
            .name
            .strip_prefix("artifacts/")
            .unwrap_or(&artifact.name)
            .to_owned();
        let uri = ResourceLocation::Artifact(name.clone(), Some(artifact.version)).uri();
        Resource::new(uri, format!("{name}, version {}", artifact.version))
            .with_mime_type(artifact.mime_type)
            .with_size(u64::try_from(artifact.size_bytes).unwrap_or(0))
    });
    add_within_limit(resources, listed);
    Ok(())
}

async fn add_skill_files(
    scope: ResourceScope<'_>,
    skill: &str,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let read = |page_token| {
        let request = ListSkillFilesRequest {
            parent: skill.to_owned(),
            page_size: FILES_PER_PAGE,
            page_token,
            ..ListSkillFilesRequest::default()
        };
        let reading = scope.client.list_skill_files(request);
        reading.map_ok(|page| (page.files, page.next_page_token))
    };
    let mut found = Vec::new();
    let take = |files| {
        found.extend(files);
        found.len() < LISTED_MAX
    };
    match scan_pages(&format!("skill {skill:?}"), read, take).await {
        Ok(()) => {}
        // The skill vanished after it was listed.
        Err(error) if error.reason() == Some(ErrorReason::SkillNotFound) => return Ok(()),
        Err(error) => return Err(resource_error(&error)),
    }
    let listed = found.into_iter().take(LISTED_MAX).map(|file| {
        let uri = ResourceLocation::Skill(skill.to_owned(), file.path.clone()).uri();
        Resource::new(uri, format!("{skill}/{}", file.path))
            .with_mime_type(file.mime_type)
            .with_size(u64::try_from(file.size_bytes).unwrap_or(0))
    });
    add_within_limit(resources, listed);
    Ok(())
}
