//! Listing of resources: files of the workspace and artifacts on the first page, files of skills on all pages.

use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, Resource};
use skilld_client::v1::{
    FileType, ListArtifactsRequest, ListFilesRequest, ListSkillFilesRequest, ListSkillsRequest,
    Reason,
};
use skilld_client::{Error, short_id, workspace_name};

use super::{Location, Scope, refused};

/// Skills whose files one page lists.
const SKILLS_PER_PAGE: i32 = 20;
/// Files of the workspace, and artifacts, that are listed at most: they are all on the first page.
const FILES_MAX: i32 = 1000;
/// Directories of the workspace whose files are listed.
const AREAS: [&str; 2] = ["out", "work"];

/// Where large uploads are kept under their digests; `work/inputs/` has links to them.
const UPLOADS: &str = "work/.skilld/";

/// Lists one page.
pub(crate) async fn list_resources(
    scope: Scope<'_>,
    cursor: Option<String>,
) -> Result<ListResourcesResult, ErrorData> {
    let mut resources = Vec::new();
    if cursor.is_none() && scope.has_workspace {
        for area in AREAS {
            add_workspace_files(scope, area, &mut resources).await?;
        }
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

async fn add_workspace_files(
    scope: Scope<'_>,
    area: &str,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let request = ListFilesRequest {
        workspace: workspace_name(&scope.session.workspace_id()),
        path: area.to_owned(),
        recursive: true,
        page_size: FILES_MAX,
        ..ListFilesRequest::default()
    };
    let page = match scope.client.list_files(request).await {
        Ok(page) => page,
        // A session that has run nothing has no workspace.
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(refused(&error)),
    };
    let files = page.files.into_iter();
    // A path that is not UTF-8 has no URI.
    let files = files.filter(|file| file.r#type() == FileType::File && file.path_bytes.is_empty());
    let files = files.filter(|file| !file.path.starts_with(UPLOADS));
    resources.extend(files.map(|file| {
        let uri = Location::Workspace(file.path.clone()).uri();
        Resource::new(uri, file.path).with_size(u64::try_from(file.size).unwrap_or(0))
    }));
    Ok(())
}

fn is_missing(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::WorkspaceNotFound | Reason::WorkspaceNotReady | Reason::FileNotFound)
    )
}

async fn add_artifacts(scope: Scope<'_>, resources: &mut Vec<Resource>) -> Result<(), ErrorData> {
    let request = ListArtifactsRequest {
        scope: Some(scope.session.scope()),
        page_size: FILES_MAX,
        ..ListArtifactsRequest::default()
    };
    let page = scope
        .client
        .list_artifacts(request)
        .await
        .map_err(|error| refused(&error))?;
    resources.extend(page.artifacts.into_iter().map(|artifact| {
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
