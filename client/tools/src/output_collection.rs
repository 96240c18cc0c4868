//! Collects the files that a command left. The daemon sends them in a stream, of which no more is kept than is shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_client::v1::SkipReason;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsRequest, CollectSpec, CollectSummary, CollectedFile, FileEnd,
};
use skilld_common::excerpts::join_first;

use crate::call_context::ToolsetContext;
use crate::session::Session;
use crate::skill_list_page::shorten;
use skilld_client::Error;
use tonic::Code;

/// Maximum size of the texts that are kept of all files of one collection, in bytes. Results have room for much less.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum size of the beginning that is kept of a file that is not UTF-8 text, in bytes: it tells whether the file is
/// text in another encoding.
const HEAD_BYTES_MAX: usize = 1024;
/// Paths that one warning names.
const NAMED_MAX: usize = 5;

/// Collected file or link with the text that was kept of it.
#[derive(Debug)]
pub(crate) struct CollectedOutput {
    pub(crate) file: CollectedFile,
    /// End of the file; `None` for a link.
    pub(crate) end: Option<FileEnd>,
    /// Beginning of the file: of text as much as was requested, of other files [`HEAD_BYTES_MAX`].
    pub(crate) text: Vec<u8>,
}

/// Files of a collection, and its summary.
pub(crate) type CollectedOutputs = (Vec<CollectedOutput>, CollectSummary);

/// Owner of saved artifacts: a request with another app, user or session does not find them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ArtifactOwner {
    pub(crate) app: String,
    pub(crate) user: String,
    pub(crate) session: String,
}

impl From<&Session> for ArtifactOwner {
    fn from(session: &Session) -> Self {
        Self {
            app: session.app.clone(),
            user: session.user.clone(),
            session: session.session.clone(),
        }
    }
}

/// Returns the warning about files that could not be collected: the output of their command must not be lost for that.
pub(crate) fn failure_warning(error: &Error) -> String {
    format!("its files could not be collected: {error}")
}

/// Returns a warning about the files that were asked to be saved and were not, if there are any.
pub(crate) fn unsaved_warning(summary: &CollectSummary) -> Option<String> {
    let unsaved = |reason| {
        matches!(
            reason,
            SkipReason::NotSaved
                | SkipReason::NotWhole
                | SkipReason::EmptyAfterFailure
                | SkipReason::QuotaExceeded
        )
    };
    let paths = skipped_paths(summary, unsaved);
    (!paths.is_empty()).then(|| format!("not saved as artifacts: {}", join_paths(&paths)))
}

/// Returns a warning about the files that a collection found and could not read, if there are any.
pub(crate) fn unread_warning(summary: &CollectSummary) -> Option<String> {
    let unread = |reason| {
        matches!(
            reason,
            SkipReason::FileType | SkipReason::Permission | SkipReason::IoError | SkipReason::Depth
        )
    };
    let paths = skipped_paths(summary, unread);
    let paths = (!paths.is_empty()).then(|| join_paths(&paths))?;
    Some(format!(
        "not listed, since they are no regular files, cannot be read or lie too deep: {paths}"
    ))
}

/// Returns the paths that a collection skipped for one of these reasons.
pub(crate) fn skipped_paths(
    summary: &CollectSummary,
    is_wanted: impl Fn(SkipReason) -> bool,
) -> Vec<&str> {
    summary
        .skipped_files
        .iter()
        .filter(|skipped| is_wanted(skipped.reason()))
        .map(|skipped| skipped.path.as_str())
        .collect()
}

/// Joins the first of some paths, long ones cut, and adds the number of the others.
pub(crate) fn join_paths(paths: &[&str]) -> String {
    join_first(paths.iter().map(|path| shorten(path)), NAMED_MAX)
}

/// Returns the warning for files that a command left, or may have left, where nothing collects them.
pub(crate) fn outside_warning(summary: &CollectSummary) -> Option<String> {
    let paths: Vec<&str> = summary.outside_paths.iter().map(String::as_str).collect();
    let left = match (paths.is_empty(), summary.outside_paths_truncated) {
        (true, false) => return None,
        (true, true) => "perhaps left files".to_owned(),
        (false, false) => format!("left {}", join_paths(&paths)),
        (false, true) => format!("left {}, and perhaps more,", join_paths(&paths)),
    };
    Some(format!(
        "the command {left} outside of out/ and work/, where files are not collected: write to $OUTPUT_DIR"
    ))
}

/// Collects what an exec, named in full, made or changed. Of each text at most `text_max` bytes are kept. A collection
/// that breaks is requested once more: artifacts that it saved before are reported and not saved again.
pub(crate) async fn collect_outputs(
    tools: &ToolsetContext,
    exec: &str,
    spec: CollectSpec,
    text_max: usize,
) -> Result<CollectedOutputs, Error> {
    let request = CollectOutputsRequest {
        workspace: exec.split("/execs/").next().unwrap_or_default().to_owned(),
        spec: Some(CollectSpec {
            changed_since_exec: exec.to_owned(),
            until_exec_end: true,
            ..spec
        }),
    };
    match receive_outputs(tools, request.clone(), text_max).await {
        Err(error) if may_repeat(&error) => receive_outputs(tools, request, text_max).await,
        collected => collected,
    }
}

/// Returns `true` if the connection failed, not the request.
fn may_repeat(error: &Error) -> bool {
    error.failure().is_none_or(|failure| {
        // tonic answers with these for a connection that broke during the call; skilld's own errors have a reason.
        let is_broken = matches!(
            failure.code,
            Code::Unknown | Code::Internal | Code::Cancelled
        );
        matches!(failure.code, Code::Unavailable | Code::Aborted)
            || (is_broken && failure.reason.is_none())
    })
}

async fn receive_outputs(
    tools: &ToolsetContext,
    request: CollectOutputsRequest,
    text_max: usize,
) -> Result<CollectedOutputs, Error> {
    let mut messages = tools.client.collect(request).await?;
    let mut receiver = OutputReceiver::new(text_max);
    while let Some(message) = messages.next().await? {
        match message.payload {
            Some(Payload::File(file)) => receiver.begin(file),
            Some(Payload::Data(data)) => receiver.add(&data),
            Some(Payload::FileEnd(end)) => receiver.end(end),
            Some(Payload::Summary(summary)) => return Ok((receiver.files, summary)),
            // Of a newer server.
            None => {}
        }
    }
    Err(Error::Protocol {
        problem: "it ended the files without a summary".into(),
    })
}

/// Receiver of a stream of files.
#[derive(Debug)]
pub(crate) struct OutputReceiver {
    pub(crate) files: Vec<CollectedOutput>,
    /// Maximum size of the text that is kept of one file, in bytes.
    text_max: usize,
    /// Number of bytes that are still kept of all files.
    room: usize,
}

impl OutputReceiver {
    pub(crate) fn new(text_max: usize) -> Self {
        Self {
            files: Vec::new(),
            text_max,
            room: KEPT_BYTES_MAX,
        }
    }

    pub(crate) fn begin(&mut self, file: CollectedFile) {
        self.files.push(CollectedOutput {
            file,
            end: None,
            text: Vec::new(),
        });
    }

    pub(crate) fn add(&mut self, data: &[u8]) {
        let Some(last) = self.files.last_mut() else {
            return;
        };
        let max = match last.file.is_text {
            true => self.text_max,
            false => self.text_max.min(HEAD_BYTES_MAX),
        };
        let length = max.saturating_sub(last.text.len()).min(self.room);
        let kept = data.get(..length).unwrap_or(data);
        last.text.extend_from_slice(kept);
        self.room -= kept.len();
    }

    pub(crate) fn end(&mut self, end: FileEnd) {
        // A link may be closed like a file.
        if let Some(last) = self.files.last_mut()
            && last.file.link_target.is_empty()
        {
            last.end = Some(end);
        }
    }
}
