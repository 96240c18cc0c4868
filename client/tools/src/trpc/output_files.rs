//! Collects the files of one run: those that it made or changed and that the call requests. Only text that can be shown
//! is kept of them.

mod report;

use serde::{Deserialize, Serialize};
use skilld_client::Error;
use skilld_client::v1::{CollectSpec, RunOutputs, SaveAsArtifacts};

use super::field_error_translator::FieldErrorTranslator;
use super::file_text::decode_shown;
use super::run_arguments::{Outputs, RunArguments};
use super::run_result::{OutputFile, RunResult};
use crate::call_context::{CallContext, SessionContext};
use crate::output_buffer::whole_end;
use crate::output_collection::{self, CollectedOutput, CollectedOutputs};
use crate::skill_list_page::shorten;
use crate::workspace_path::without_skill_links;

/// Glob of the files that commands leave as results.
const OUTPUT_GLOB: &str = "out/**";
/// Maximum number of files that are collected from `out/` when a call requests none; as many as trpc-agent-go exports
/// then.
const UNASKED_FILES_MAX: i64 = 20;
/// Media type that a link is reported with.
const LINK_MIME_TYPE: &str = "inode/symlink";
/// Maximum size of a file that is saved, which is always saved whole, in bytes.
const SAVED_BYTES_MAX: i64 = 64 * 1024 * 1024;

/// Files to collect after a run. The session's state keeps the plan of a command that goes on, so the names of the
/// fields are part of a format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct CollectPlan {
    globs: Vec<String>,
    max_files: i64,
    max_file_bytes: i64,
    max_total_bytes: i64,
    /// `true` if the result holds the text of text files.
    inline: bool,
    /// `true` if the call requests no files: the result shows only the main output.
    unasked: bool,
    /// `true` if the globs are those of `outputs`, not of `output_files`.
    #[serde(default)]
    has_nested_globs: bool,
    /// `true` if the prefix is that of `outputs`, not `artifact_prefix`.
    #[serde(default)]
    has_nested_prefix: bool,
    /// Prefix of the artifacts that the files become; `None` to save nothing.
    save: Option<String>,
    /// `true` if the call asks to save the files, not only the host.
    #[serde(default)]
    is_save_asked: bool,
}

impl CollectPlan {
    /// Creates the plan for the files that the call and the host request. `outputs` and `output_files` without globs
    /// count as left out: some clients send empty ones with every call.
    pub(super) fn new(call: CallContext<'_>, run: &RunArguments) -> Self {
        let options = &call.tools.options;
        let omits = run
            .omit_inline_content
            .unwrap_or(options.omit_inline_content);
        let files = read_globs(&run.output_files);
        let has_nested_globs = files.is_empty();
        let asked = match (&run.outputs, has_nested_globs) {
            (Some(outputs), true) => outputs.clone(),
            (None, true) | (_, false) => Outputs {
                globs: files,
                inline: true,
                ..Outputs::default()
            },
        };
        let mut globs = read_globs(&asked.globs);
        let unasked = globs.is_empty();
        let mut max_files = asked.max_files.max(0);
        if unasked {
            globs.push(OUTPUT_GLOB.to_owned());
            if max_files == 0 {
                max_files = UNASKED_FILES_MAX;
            }
        }
        let has_nested_prefix = !asked.name_template.is_empty();
        let prefix = match has_nested_prefix {
            true => asked.name_template,
            false => run.artifact_prefix.clone(),
        };
        let is_save_asked = asked.save || run.save_as_artifacts;
        Self {
            globs,
            max_files,
            max_file_bytes: asked.max_file_bytes.max(0),
            max_total_bytes: asked.max_total_bytes.max(0),
            inline: (asked.inline || unasked) && !omits,
            unasked,
            has_nested_globs,
            has_nested_prefix,
            save: (is_save_asked || options.force_save_artifacts).then_some(prefix),
            is_save_asked,
        }
    }

    /// Returns the translator of the daemon's errors about the run. It knows the arguments that the globs and the
    /// prefix come from.
    pub(super) fn error_translator(&self) -> FieldErrorTranslator<'_> {
        FieldErrorTranslator {
            globs: &self.globs,
            globs_argument: match self.has_nested_globs {
                true => "outputs.globs",
                false => "output_files",
            },
            prefix_argument: match self.has_nested_prefix {
                true => "outputs.name_template",
                false => "artifact_prefix",
            },
            timeout: "timeout",
        }
    }

    /// Returns the specification that the daemon checks before the command starts; `None` if the call requests no
    /// files.
    pub(super) fn planned_spec(&self, context: SessionContext<'_>) -> Option<CollectSpec> {
        let is_asked = !self.unasked || self.save.is_some();
        is_asked.then(|| self.to_collect_spec(context))
    }

    /// Returns the specification for the end of the command.
    fn to_collect_spec(&self, context: SessionContext<'_>) -> CollectSpec {
        // One byte more than is shown tells that there is more.
        let shown = i64::try_from(context.tools.options.primary_bytes_max);
        let unasked = shown.unwrap_or(SAVED_BYTES_MAX) + 1;
        let max_file_bytes = match (self.max_file_bytes, &self.save) {
            (0, Some(_)) => SAVED_BYTES_MAX,
            (0, None) if self.unasked => unasked,
            (given, _) => given,
        };
        CollectSpec {
            globs: self.globs.clone(),
            max_files: self.max_files,
            max_file_bytes,
            max_total_bytes: self.max_total_bytes,
            skip_empty_after_failure: self.save.is_some(),
            save_as_artifacts: self.save.clone().map(|prefix| SaveAsArtifacts {
                prefix,
                scope: Some(context.session.scope()),
                request_id: String::new(),
            }),
            ..CollectSpec::default()
        }
    }

    /// Returns what a run is asked to collect after its command.
    pub(super) fn run_outputs(&self, context: SessionContext<'_>) -> RunOutputs {
        RunOutputs {
            spec: Some(self.to_collect_spec(context)),
            changed_only: true,
            omit_data: false,
        }
    }

    /// Collects the files that an exec, named in full, left into its result.
    pub(super) async fn collect(
        &self,
        context: SessionContext<'_>,
        exec: &str,
        result: &mut RunResult,
    ) -> Result<(), Error> {
        let text_max = context.tools.options.primary_bytes_max;
        let spec = self.to_collect_spec(context);
        let collected =
            output_collection::collect_outputs(context.tools, exec, spec, text_max).await?;
        self.add_files(context, collected, result);
        Ok(())
    }

    /// Adds collected files to a result.
    pub(super) fn add_files(
        &self,
        context: SessionContext<'_>,
        (files, summary): CollectedOutputs,
        result: &mut RunResult,
    ) {
        let other_text = match context.tools.options.offers_read_file() {
            true => "not plain UTF-8 text: read_file decodes it",
            false => "not plain UTF-8 text: a command can decode it",
        };
        let converted = files
            .into_iter()
            .filter_map(|file| convert_file(file, other_text))
            .collect();
        self.report(context, converted, &summary, result);
    }
}

/// Returns globs as the daemon takes them, without blank ones.
fn read_globs(given: &[String]) -> Vec<String> {
    let globs = given
        .iter()
        .filter(|glob| !glob.trim().is_empty())
        .map(|glob| match &*without_skill_links(glob) {
            "" => "**".to_owned(),
            glob => glob.to_owned(),
        });
    globs.collect()
}

/// Converts a collected file for the result, with the text that was kept of it; `None` if its end was not received.
/// `other_text` is the note about a text whose content is not shown.
fn convert_file(collected: CollectedOutput, other_text: &str) -> Option<OutputFile> {
    let CollectedOutput { file, end, text } = collected;
    if !file.link_target.is_empty() {
        return Some(OutputFile {
            reference: format!("workspace://{}", file.path),
            note: Some(format!("a link to {}", shorten(&file.link_target))),
            name: file.path,
            mime_type: LINK_MIME_TYPE.to_owned(),
            ..OutputFile::default()
        });
    }
    let end = end?;
    let size_bytes = u64::try_from(file.size_bytes).unwrap_or_default();
    let is_cut = end.truncated || (text.len() as u64) < size_bytes;
    let (content, note) = match file.is_text {
        false if decode_shown(&text, false).is_some() => (None, Some(other_text)),
        false => (None, Some("not text")),
        true => match whole_text(text, is_cut) {
            Some(text) => (Some(text), None),
            None => (None, Some(other_text)),
        },
    };
    Some(OutputFile {
        reference: format!("workspace://{}", file.path),
        name: file.path,
        truncated: if content.is_some() {
            is_cut
        } else {
            end.truncated
        },
        content,
        mime_type: file.mime_type,
        size_bytes,
        sha256: (!end.truncated).then_some(end.sha256),
        artifact: Some(end.artifact).filter(|artifact| !artifact.is_empty()),
        note: note.map(str::to_owned),
    })
}

/// Returns the text of a file, without a character that was cut.
fn whole_text(mut bytes: Vec<u8>, is_cut: bool) -> Option<String> {
    if is_cut {
        bytes.truncate(whole_end(&bytes));
    }
    String::from_utf8(bytes).ok()
}
