//! Files of skills as MCP resources: `skill://NAME/PATH`.

use data_encoding::BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::ErrorData;
use rmcp::model::{
    ErrorCode, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use skilld_client::tools::Options;
use skilld_client::v1::{ListSkillFilesRequest, ListSkillsRequest, ReadSkillFileRequest, Reason};
use skilld_client::{Client, Error, short_id};

/// Skills whose files one page lists.
const SKILLS_PER_PAGE: i32 = 20;

/// Bytes of a file that is read at most. A message of MCP holds it whole, and some clients take no line over 16 MiB.
const FILE_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// All but what a URI may hold as it is (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// One page: all files of some skills.
pub(crate) async fn list(
    client: &Client,
    options: &Options,
    cursor: Option<String>,
) -> Result<ListResourcesResult, ErrorData> {
    let page = client
        .list_skills(ListSkillsRequest {
            page_size: SKILLS_PER_PAGE,
            page_token: cursor.unwrap_or_default(),
            ..ListSkillsRequest::default()
        })
        .await
        .map_err(|error| refused(&error))?;
    let mut resources = Vec::new();
    for skill in page.skills.iter().filter(|skill| options.offers(skill)) {
        files(client, &short_id(&skill.name), &mut resources).await?;
    }
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = Some(page.next_page_token).filter(|token| !token.is_empty());
    Ok(listed)
}

async fn files(
    client: &Client,
    skill: &str,
    resources: &mut Vec<Resource>,
) -> Result<(), ErrorData> {
    let mut request = ListSkillFilesRequest {
        name: skill.to_owned(),
        page_size: 10_000,
        ..ListSkillFilesRequest::default()
    };
    loop {
        let page = client
            .list_skill_files(request.clone())
            .await
            .map_err(|error| refused(&error))?;
        resources.extend(page.files.into_iter().map(|file| {
            Resource::new(uri(skill, &file.path), format!("{skill}/{}", file.path))
                .with_mime_type(file.mime_type)
                .with_size(u64::try_from(file.size).unwrap_or(0))
        }));
        if page.next_page_token.is_empty() {
            return Ok(());
        }
        request.page_token = page.next_page_token;
    }
}

/// How the URIs are made.
pub(crate) fn templates() -> ListResourceTemplatesResult {
    ListResourceTemplatesResult::with_all_items(vec![
        ResourceTemplate::new("skill://{skill}/{+path}", "a file of a skill")
            .with_description("SKILL.md is its instructions; the other files are named there."),
    ])
}

/// Reads one file.
pub(crate) async fn read(
    client: &Client,
    options: &Options,
    asked: &str,
) -> Result<ReadResourceResponse, ErrorData> {
    let unknown = || ErrorData::resource_not_found(format!("there is no resource {asked}"), None);
    let (skill, path) = parts(asked).ok_or_else(unknown)?;
    if !options.shows(&skill) {
        return Err(unknown());
    }
    let mut reader = client
        .read_skill_file(ReadSkillFileRequest {
            name: skill,
            path,
            workspace_paths: true,
            ..ReadSkillFileRequest::default()
        })
        .await
        .map_err(|error| refused(&error))?;
    let file = reader.file().clone();
    if file.size > FILE_BYTES_MAX {
        return Err(ErrorData::invalid_params(
            format!(
                "{asked} has {} bytes, more than {FILE_BYTES_MAX}",
                file.size
            ),
            None,
        ));
    }
    let mut bytes = Vec::new();
    while let Some(data) = reader.next().await.map_err(|error| refused(&error))? {
        bytes.extend_from_slice(&data);
    }
    let contents = match String::from_utf8(bytes) {
        Ok(text) if file.is_text => ResourceContents::text(text, asked),
        Ok(text) => ResourceContents::blob(BASE64.encode(text.as_bytes()), asked),
        Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), asked),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(file.mime_type)]).into())
}

/// `skill://NAME/PATH`; what a URI cannot hold is percent-encoded.
fn uri(skill: &str, path: &str) -> String {
    let path = path
        .split('/')
        .map(|part| utf8_percent_encode(part, ESCAPED))
        .map(|part| part.to_string())
        .collect::<Vec<_>>()
        .join("/");
    format!("skill://{skill}/{path}")
}

fn parts(uri: &str) -> Option<(String, String)> {
    let (skill, path) = uri.strip_prefix("skill://")?.split_once('/')?;
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (!skill.is_empty() && !path.is_empty()).then(|| (skill.to_owned(), path.into_owned()))
}

fn refused(error: &Error) -> ErrorData {
    let code = match error.reason() {
        Some(Reason::SkillNotFound | Reason::FileNotFound) => ErrorCode::RESOURCE_NOT_FOUND,
        Some(Reason::InvalidRequest | Reason::PathEscapes | Reason::SkillInvalid) => {
            ErrorCode::INVALID_PARAMS
        }
        _ => ErrorCode::INTERNAL_ERROR,
    };
    ErrorData::new(code, error.to_string(), None)
}
