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

use super::{ResourceLocation, ResourceScope, resource_error};
use crate::output;

/// Skills whose files one page lists.
const SKILLS_PER_PAGE: i32 = 20;
/// Maximum number of resources of each kind that are listed: files of `out/`, files of `work/`, uploads, artifacts. The
/// newest of each are listed, all of them on the first page.
const LISTED_MAX: usize = 1000;
/// Maximum size of the URIs and names of the resources of each kind in bytes: some clients take no message over 16 MiB.
const LISTED_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of a listing of one skill's files in bytes; at most [`LISTED_MAX`] files are listed.
const SKILL_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of entries of one list that are looked at to find the newest. The daemon gives them in the order of their
/// paths or names.
const SCANNED_MAX: usize = 100_000;
/// Maximum number of pages of one list. The daemon may end a page early, but a list of empty pages would have no end.
const PAGES_MAX: usize = 100;
/// Largest pages that the daemon gives of files and of artifacts.
const FILES_PER_PAGE: i32 = 10_000;
const ARTIFACTS_PER_PAGE: i32 = 1000;

/// Directory of the files that a client or a user brought.
const INPUTS: &str = "work/inputs/";
/// Directory in which large uploads are kept under their digests; `work/inputs/` has links to them.
const UPLOADS: &str = "work/.skilld/";

/// Lists one page.
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

/// Progress through one list.
#[derive(Debug)]
struct PageScan {
    list: String,
    pages: usize,
    entries: usize,
}

impl PageScan {
    fn new(list: impl Into<String>) -> Self {
        Self {
            list: list.into(),
            pages: 0,
            entries: 0,
        }
    }

    /// Counts a page of so many entries. Returns the token of the next one, `None` after the last page or at a limit, which a
    /// remark on stderr names.
    fn next_page(&mut self, entries: usize, token: String) -> Option<String> {
        self.pages += 1;
        self.entries += entries;
        if token.is_empty() {
            return None;
        }
        if self.entries < SCANNED_MAX && self.pages < PAGES_MAX {
            return Some(token);
        }
        let Self { list, entries, .. } = self;
        output::note!(
            "resources/list looked at the first {entries} entries of {list} only: others may be missing"
        );
        None
    }
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
            file.r#type() == FileType::File
                && file.path_bytes.is_empty()
                && !file.path.starts_with(UPLOADS)
        };
        let files = files.into_iter().filter(is_listed);
        let (uploads, results): (Vec<_>, Vec<_>) =
            files.partition(|file| file.path.starts_with(INPUTS));
        self.results.extend(results);
        self.uploads.extend(uploads);
        keep_newest(&mut self.results, |file| file.mtime);
        keep_newest(&mut self.uploads, |file| file.mtime);
    }
}

/// Adds results, then uploads, so that many uploads hide no result.
async fn add_workspace_files(
    scope: ResourceScope<'_>,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let out = workspace_files(scope, "out").await?;
    let work = workspace_files(scope, "work").await?;
    for files in [out.results, work.results, work.uploads] {
        let files = files.into_iter().map(|file| {
            let uri = ResourceLocation::Workspace(file.path.clone()).uri();
            Resource::new(uri, file.path).with_size(u64::try_from(file.size).unwrap_or(0))
        });
        add_within_limit(resources, files, LISTED_BYTES_MAX);
    }
    Ok(())
}

/// Adds resources of one kind until their URIs and names reach `bytes_max`.
fn add_within_limit(
    resources: &mut Vec<Resource>,
    kind: impl Iterator<Item = Resource>,
    bytes_max: usize,
) {
    let mut bytes = 0;
    for resource in kind {
        bytes += resource.uri.len() + resource.name.len();
        if bytes > bytes_max {
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
    let mut request = ListFilesRequest {
        workspace: workspace_name(&scope.session.workspace_id()),
        path: directory.to_owned(),
        recursive: true,
        page_size: FILES_PER_PAGE,
        ..ListFilesRequest::default()
    };
    let (mut found, mut scan) = (WorkspaceFiles::default(), PageScan::new(directory));
    loop {
        let page = match scope.client.list_files(request.clone()).await {
            Ok(page) => page,
            // A session that has run nothing has no workspace.
            Err(error) if is_missing(&error) => return Ok(found),
            Err(error) => return Err(resource_error(&error)),
        };
        let next = scan.next_page(page.files.len(), page.next_page_token);
        found.add_page(page.files);
        let Some(token) = next else {
            return Ok(found);
        };
        request.page_token = token;
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
        Some(Reason::WorkspaceNotFound | Reason::WorkspaceNotReady | Reason::FileNotFound)
    )
}

async fn add_artifacts(
    scope: ResourceScope<'_>,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let mut request = ListArtifactsRequest {
        scope: Some(scope.session.scope()),
        page_size: ARTIFACTS_PER_PAGE,
        ..ListArtifactsRequest::default()
    };
    let (mut found, mut scan) = (Vec::new(), PageScan::new("the session's artifacts"));
    loop {
        let page = scope.client.list_artifacts(request.clone()).await;
        let page = page.map_err(|error| resource_error(&error))?;
        let next = scan.next_page(page.artifacts.len(), page.next_page_token);
        found.extend(page.artifacts);
        keep_newest(&mut found, |artifact: &Artifact| artifact.create_time);
        let Some(token) = next else {
            break;
        };
        request.page_token = token;
    }
    let found = found.into_iter().map(|artifact| {
        let name = artifact.name.strip_prefix("artifacts/");
        let name = name.unwrap_or(&artifact.name).to_owned();
        let uri = ResourceLocation::Artifact(name.clone(), Some(artifact.version)).uri();
        Resource::new(uri, format!("{name}, version {}", artifact.version))
            .with_mime_type(artifact.mime_type)
            .with_size(u64::try_from(artifact.size).unwrap_or(0))
    });
    add_within_limit(resources, found, LISTED_BYTES_MAX);
    Ok(())
}

async fn add_skill_files(
    scope: ResourceScope<'_>,
    skill: &str,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let mut request = ListSkillFilesRequest {
        name: skill.to_owned(),
        page_size: FILES_PER_PAGE,
        ..ListSkillFilesRequest::default()
    };
    let (mut found, mut scan) = (Vec::new(), PageScan::new(format!("skill {skill:?}")));
    while found.len() < LISTED_MAX {
        let page = scope
            .client
            .list_skill_files(request.clone())
            .await
            .map_err(|error| resource_error(&error))?;
        let next = scan.next_page(page.files.len(), page.next_page_token);
        found.extend(page.files);
        let Some(token) = next else {
            break;
        };
        request.page_token = token;
    }
    let listed = found.into_iter().take(LISTED_MAX).map(|file| {
        let uri = ResourceLocation::Skill(skill.to_owned(), file.path.clone()).uri();
        Resource::new(uri, format!("{skill}/{}", file.path))
            .with_mime_type(file.mime_type)
            .with_size(u64::try_from(file.size).unwrap_or(0))
    });
    add_within_limit(resources, listed, SKILL_BYTES_MAX);
    Ok(())
}
