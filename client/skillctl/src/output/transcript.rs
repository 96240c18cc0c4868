//! Transcript of an exec for one JSON object: its output and its end.

use serde_json::{Map, Value, json};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{ExecResult, OutputStream};
use skilld_client::v1::{GapEvent, OutputEvent};

use crate::output::{exec_result, proto_json, value_formats};

/// Bytes of one stream that the object holds at most; the rest is dropped and `truncated` is set. Base64 and text make
/// about two and a half times as much of them.
const STREAM_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Returns the bytes of a piece of output.
pub(crate) fn output_bytes(piece: &OutputEvent) -> &[u8] {
    match &piece.content {
        Some(Content::Data(data)) => data,
        Some(Content::Text(text)) => text.as_bytes(),
        None => &[],
    }
}

/// Output and result of one exec.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    gaps: Vec<Value>,
    result: Option<ExecResult>,
}

impl Transcript {
    /// Adds one event of the exec.
    pub(crate) fn add(&mut self, event: &Event) {
        match event {
            Event::Output(piece) => self.add_output(piece),
            Event::Gap(gap) => self.add_gap(gap),
            Event::Exited(_) | Event::Closed(_) => {
                exec_result::take_ending(&mut self.result, event);
            }
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
    }

    /// Adds one piece of output.
    pub(crate) fn add_output(&mut self, piece: &OutputEvent) {
        let bytes = output_bytes(piece);
        let stream = match piece.stream() {
            OutputStream::Stderr => &mut self.stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.stdout,
        };
        let room = STREAM_BYTES_MAX.saturating_sub(stream.len());
        stream.extend(bytes.iter().take(room));
        self.truncated |= bytes.len() > room;
    }

    /// Adds lost output.
    pub(crate) fn add_gap(&mut self, gap: &GapEvent) {
        let stream = value_formats::enum_words(gap.stream().as_str_name(), "OUTPUT_STREAM_");
        self.gaps.push(json!({
            "stream": stream,
            "startOffset": gap.start_offset.to_string(),
            "endOffset": gap.end_offset.to_string(),
        }));
    }

    /// Returns `true` if any output was collected.
    pub(crate) fn has_output(&self) -> bool {
        !self.stdout.is_empty() || !self.stderr.is_empty()
    }

    /// Returns the object for an exec with this name. `result` is null while the exec runs.
    pub(crate) fn into_json(self, name: &str) -> anyhow::Result<Map<String, Value>> {
        let mut object = Map::new();
        object.insert("exec".into(), name.into());
        let result = match &self.result {
            Some(result) => proto_json::from_message(result)?,
            None => Value::Null,
        };
        object.insert("result".into(), result);
        for (key, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let (text, base64) =
                proto_json::from_bytes(whole_characters(bytes, bytes.len() == STREAM_BYTES_MAX));
            object.insert(key.into(), text);
            object.insert(format!("{key}Base64"), base64);
        }
        object.insert("truncated".into(), self.truncated.into());
        object.insert("gaps".into(), self.gaps.into());
        Ok(object)
    }
}

/// Leaves out a character that the limit cut in two.
fn whole_characters(bytes: &[u8], truncated: bool) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if truncated && error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).unwrap_or(bytes)
        }
        Ok(_) | Err(_) => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: OutputStream, data: &[u8]) -> OutputEvent {
        OutputEvent {
            stream: stream.into(),
            content: Some(Content::Data(data.to_vec().into())),
            ..Default::default()
        }
    }

    #[test]
    fn output_is_text_only_where_it_is_utf8() {
        let mut transcript = Transcript::default();
        transcript.add_output(&piece(OutputStream::Stdout, "\u{fc}".as_bytes()));
        transcript.add_output(&piece(OutputStream::Stderr, b"\xff"));
        let object = transcript.into_json("workspaces/w/execs/x").expect("json");
        assert_eq!(object["stdout"], "\u{fc}");
        assert_eq!(object["stdoutBase64"], "w7w=");
        assert_eq!(object["stderr"], Value::Null);
        assert_eq!(object["stderrBase64"], "/w==");
        assert_eq!(object["truncated"], false);
    }

    #[test]
    fn output_beyond_the_limit_is_dropped_and_reported() {
        let mut transcript = Transcript::default();
        transcript.add_output(&piece(OutputStream::Stdout, b"x"));
        let rest = "\u{fc}".repeat(STREAM_BYTES_MAX / 2);
        transcript.add_output(&piece(OutputStream::Stdout, rest.as_bytes()));
        let object = transcript.into_json("workspaces/w/execs/x").expect("json");
        assert_eq!(object["truncated"], true);
        let text = object["stdout"].as_str().expect("text");
        assert_eq!(text.len(), STREAM_BYTES_MAX - 1);
    }
}
