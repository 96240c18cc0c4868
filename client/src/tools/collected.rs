//! Files that a command left, as the daemon hands them over: in a stream, of which no more is kept than is to be shown.

use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{
    CollectOutputsRequest, CollectSpec, CollectSummary, CollectedFile, FileEnd,
};

use crate::Error;
use crate::tools::Inner;

/// One file.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) file: CollectedFile,
    /// None of a link.
    pub(crate) end: Option<FileEnd>,
    /// The beginning of a text.
    pub(crate) text: Vec<u8>,
}

/// Returns the warning for files that a command left where nothing collects them.
pub(crate) fn outside_warning(summary: &CollectSummary) -> Option<String> {
    let (first, rest) = summary.outside.split_first()?;
    let more = match rest.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "the command left {first}{more} outside of out/ and work/, where files are not collected: write to \
         $OUTPUT_DIR"
    ))
}

/// Collects what an exec, named in full, made or changed. Of each text at most `text_max` bytes are kept.
pub(crate) async fn collect(
    tools: &Inner,
    exec: &str,
    spec: CollectSpec,
    text_max: usize,
) -> Result<(Vec<Collected>, CollectSummary), Error> {
    let request = CollectOutputsRequest {
        workspace: exec.split("/execs/").next().unwrap_or_default().to_owned(),
        spec: Some(CollectSpec {
            changed_since_exec: exec.to_owned(),
            until_exec_end: true,
            ..spec
        }),
    };
    let mut messages = tools.client.collect(request).await?;
    let mut files: Vec<Collected> = Vec::new();
    while let Some(message) = messages.next().await? {
        match (message.payload, files.last_mut()) {
            (Some(Payload::File(file)), _) => files.push(Collected {
                file,
                end: None,
                text: Vec::new(),
            }),
            (Some(Payload::Data(data)), Some(last)) if last.file.is_text => {
                let room = text_max.saturating_sub(last.text.len());
                last.text.extend(data.iter().take(room));
            }
            // A link may be closed like a file.
            (Some(Payload::FileEnd(end)), Some(last)) if last.file.link_target.is_empty() => {
                last.end = Some(end);
            }
            (Some(Payload::Summary(summary)), _) => return Ok((files, summary)),
            // Nothing is one of a newer server's.
            (Some(Payload::Data(_) | Payload::FileEnd(_)) | None, _) => {}
        }
    }
    Err(Error::protocol("it ended the files without a summary"))
}
