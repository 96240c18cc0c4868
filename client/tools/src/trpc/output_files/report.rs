//! Report of a collection in a run's result. It has the files within the result's budget, and a note or warning about
//! each that is left out, cut or not saved.

use skilld_client::v1::CollectSummary;
use skilld_client::v1::SkipReason;

use super::{CollectPlan, LINK_MIME_TYPE};
use crate::call_context::SessionContext;
use crate::output_collection::{self, join_paths};
use crate::result_budget::{cut_at_line, json_bytes};
use crate::tool_options::ToolOptions;
use crate::trpc::run_result::{ArtifactFile, OutputFile, RunResult, SkippedFile};

/// Size of a run's result up to which its files have their texts, in bytes of JSON. Results of sessions also have new
/// output.
const RUN_BYTES_MAX: usize = 64 * 1024;
/// Room for the warnings about files that do not fit, in bytes of JSON.
const WARNING_BYTES: usize = 1024;
/// Room for the note about a text that is cut, in bytes of JSON.
const NOTE_BYTES: usize = 128;
/// Shortest beginning of a text that is shown, in bytes of JSON.
const CONTENT_BYTES_MIN: usize = 256;
/// Maximum number of left-out files that a result names.
const SKIPPED_MAX: usize = 100;

impl CollectPlan {
    /// Adds collected files to a result, with warnings about the others.
    pub(super) fn report(
        &self,
        context: SessionContext<'_>,
        mut files: Vec<OutputFile>,
        summary: &CollectSummary,
        result: &mut RunResult,
    ) {
        self.report_saved(context, summary, result);
        let unmatched = self.unmatched_warning(summary);
        let unchanged = self.unchanged_warning(context, summary, &files);
        let outside = output_collection::outside_warning(summary);
        let warnings = unmatched.into_iter().chain(unchanged).chain(outside);
        result.warnings.extend(warnings);
        if result.has_failed() {
            files = leave_out_empty(files, result);
        }
        let options = &context.tools.options;
        result.primary_output = find_primary(&files, options.primary_bytes_max).cloned();
        for file in &mut files {
            if self.unasked {
                (file.content, file.note, file.truncated) = (None, None, false);
            } else if !self.inline {
                drop_content(file);
            }
        }
        if let Some(primary) = &mut result.primary_output {
            if !self.inline {
                drop_content(primary);
            } else if !self.unasked {
                drop_content(primary);
                primary.note = Some("its content is in output_files".to_owned());
            }
        }
        result.output_files = files;
        let is_cut = fit_files(options, result);
        self.report_limits(options, summary, is_cut, result);
    }

    /// Adds warnings about limits that kept files, or parts of them, out of a result. `is_cut` is `true` if it was that
    /// of the result itself.
    fn report_limits(
        &self,
        options: &ToolOptions,
        summary: &CollectSummary,
        is_cut: bool,
        result: &mut RunResult,
    ) {
        let mut skipped = summary.skipped_files.iter();
        let too_many = skipped.any(|skipped| skipped.reason() == SkipReason::MaxFiles);
        let is_limited = match self.unasked && self.save.is_none() {
            // Files were cut for the sake of the main output alone.
            true => too_many,
            false => summary.limits_hit || result.output_files.iter().any(|file| file.truncated),
        };
        result.limits_hit = is_limited || is_cut;
        if self.unasked && too_many {
            let (matched, returned) = (summary.matched_count, summary.returned_count);
            let warning = format!(
                "{returned} of {matched} files are named: ask for others with output_files"
            );
            result.warnings.push(warning);
        } else if result.limits_hit {
            let reading = describe_reading(options);
            result.warnings.push(format!(
                "a limit kept files or parts of them out of the result: see truncated, note and skipped_files; \
                 {reading} the rest"
            ));
        }
    }

    /// Reports which files became artifacts, and which were left out for what reason.
    fn report_saved(
        &self,
        context: SessionContext<'_>,
        summary: &CollectSummary,
        result: &mut RunResult,
    ) {
        let artifacts = summary.artifacts.iter();
        result.artifact_files = artifacts
            .filter_map(|name| ArtifactFile::parse(name))
            .collect();
        if !result.artifact_files.is_empty() {
            result.artifact_scope = Some(context.session.into());
        }
        let unsaved = output_collection::unsaved_warning(summary);
        result
            .warnings
            .extend(unsaved.filter(|_| self.save.is_some()));
        let mut more = 0;
        for skipped in &summary.skipped_files {
            let reason = skipped.reason();
            let skipped = SkippedFile {
                name: skipped.path.clone(),
                reason: reason_name(reason),
            };
            // If the call asked for no files, their number is enough.
            let is_only_counted = self.unasked && reason == SkipReason::MaxFiles;
            if is_only_counted || result.skipped_files.contains(&skipped) {
                continue;
            }
            match result.skipped_files.len() < SKIPPED_MAX {
                true => result.skipped_files.push(skipped),
                false => more += 1,
            }
        }
        if more > 0 {
            let warning = format!("{more} more files were left out than skipped_files names");
            result.warnings.push(warning);
        }
    }

    /// Returns a warning about requested names and patterns that match no file.
    fn unmatched_warning(&self, summary: &CollectSummary) -> Option<String> {
        let quoted: Vec<String> = summary
            .unmatched_globs
            .iter()
            .map(|glob| format!("{glob:?}"))
            .collect();
        let globs: Vec<&str> = quoted.iter().map(String::as_str).collect();
        let argument = self.error_translator().globs_argument;
        (!self.unasked && !globs.is_empty()).then(|| {
            let list = join_paths(&globs);
            format!("{argument}: no file matches {list}; paths are relative to the workspace")
        })
    }

    /// Returns a warning about files that the call requests and that the command did not change.
    fn unchanged_warning(
        &self,
        context: SessionContext<'_>,
        summary: &CollectSummary,
        files: &[OutputFile],
    ) -> Option<String> {
        let paths =
            output_collection::skipped_paths(summary, |reason| reason == SkipReason::Unchanged);
        let is_asked = (!self.unasked || self.is_save_asked) && summary.unchanged_count > 0;
        let is_beside_new = paths.is_empty() && !files.is_empty();
        if !is_asked || (is_beside_new && !self.is_save_asked) {
            return None;
        }
        let which = match paths.is_empty() {
            true if files.is_empty() => format!("all {} files that match", summary.unchanged_count),
            true => format!("{} of the files that match", summary.unchanged_count),
            false => join_paths(&paths),
        };
        let unsaved = match self.is_save_asked {
            true => ", and not saved either",
            false => "",
        };
        let saves = self.is_save_asked && context.tools.options.lists("workspace_save_artifact");
        let saving = match saves {
            true => ", workspace_save_artifact saves them",
            false => "",
        };
        let reading = describe_reading(&context.tools.options);
        Some(format!(
            "not changed by this command, and so not among output_files{unsaved}: {which}; {reading} them{saving}"
        ))
    }
}

/// Moves empty files of a command that failed to the skipped ones.
fn leave_out_empty(files: Vec<OutputFile>, result: &mut RunResult) -> Vec<OutputFile> {
    // A link has no size of its own.
    let is_empty = |file: &OutputFile| file.size_bytes == 0 && file.mime_type != LINK_MIME_TYPE;
    let (empty, kept): (Vec<_>, Vec<_>) = files.into_iter().partition(is_empty);
    if !empty.is_empty() {
        let warning = "empty files are left out since the command failed: see skipped_files";
        result.warnings.push(warning.to_owned());
    }
    for file in empty {
        let skipped = SkippedFile {
            name: file.name,
            reason: reason_name(SkipReason::EmptyAfterFailure),
        };
        if !result.skipped_files.contains(&skipped) {
            result.skipped_files.push(skipped);
        }
    }
    kept
}

/// Leaves out the text of a file and what is said about it.
fn drop_content(file: &mut OutputFile) {
    if file.mime_type != LINK_MIME_TYPE {
        (file.content, file.note) = (None, None);
        file.truncated = file.sha256.is_none();
    }
}

/// Returns the words about who reads a file that a result lacks, which go before its name.
fn describe_reading(options: &ToolOptions) -> &'static str {
    match options.offers_read_file() {
        true => "read_file reads",
        false => "a command can read",
    }
}

/// Cuts the texts of files so that the result keeps within its budget. Returns `true` if one was cut.
fn fit_files(options: &ToolOptions, result: &mut RunResult) -> bool {
    let contents: Vec<Option<String>> = result
        .output_files
        .iter_mut()
        .map(|file| file.content.take())
        .collect();
    let primary = result.primary_output.as_mut();
    let primary_text = primary.and_then(|primary| primary.content.take());
    let mut is_cut = false;
    let taken = json_bytes(result).saturating_add(WARNING_BYTES);
    let mut room = RUN_BYTES_MAX.saturating_sub(taken);
    if let (Some(primary), Some(text)) = (&mut result.primary_output, primary_text) {
        is_cut |= show_content(options, primary, text, &mut room);
    }
    for (file, content) in result.output_files.iter_mut().zip(contents) {
        if let Some(text) = content {
            is_cut |= show_content(options, file, text, &mut room);
        }
    }
    is_cut
}

/// Shows the text of a file, or its beginning, as far as there is room. Returns `true` if that is not all of what was
/// kept of it.
fn show_content(
    options: &ToolOptions,
    file: &mut OutputFile,
    text: String,
    room: &mut usize,
) -> bool {
    // The field's name, quotes and a comma.
    let available = room.saturating_sub("\"content\":\"\",".len() + NOTE_BYTES);
    let cut = cut_at_line(&text, available).map(str::len);
    let mut shown = text;
    if let Some(length) = cut {
        if available < CONTENT_BYTES_MIN {
            file.truncated = false;
            let reading = describe_reading(options);
            let note = format!("its text is left out for want of room: {reading} it");
            file.note = Some(note);
            *room = room.saturating_sub(NOTE_BYTES);
            return true;
        }
        file.truncated = true;
        shown.truncate(length);
    }
    if file.truncated {
        file.note = Some(describe_rest(options, &shown, file.size_bytes));
    }
    *room = room.saturating_sub(json_bytes(&shown) + NOTE_BYTES);
    file.content = Some(shown);
    cut.is_some()
}

/// Describes how to read on after the beginning of a file.
fn describe_rest(options: &ToolOptions, shown: &str, size_bytes: u64) -> String {
    let line = shown.matches('\n').count() + 1;
    let byte = shown.rsplit('\n').next().map_or(0, str::len);
    let rest = match (options.offers_read_file(), byte) {
        (true, 0) => format!("read_file goes on with start_line {line}"),
        (true, byte) => format!("read_file goes on with start_line {line} and start_byte {byte}"),
        (false, _) => format!("a command can read on from line {line}"),
    };
    format!("{} of {size_bytes} bytes: {rest}", shown.len())
}

/// Returns the main output: of the texts that are whole, not blank and not too long the first one. Files come in the
/// order of their names, hidden ones and caches last.
fn find_primary(files: &[OutputFile], bytes_max: usize) -> Option<&OutputFile> {
    let shown = |file: &&OutputFile| {
        let text = file.content.as_deref().unwrap_or_default();
        !file.truncated && !text.trim().is_empty() && text.len() <= bytes_max
    };
    files.iter().find(shown)
}

/// Returns the name of a reason as results have it.
fn reason_name(reason: SkipReason) -> String {
    reason.short_name().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &str) -> OutputFile {
        OutputFile {
            name: name.to_owned(),
            reference: format!("workspace://{name}"),
            content: Some(content.to_owned()),
            size_bytes: content.len() as u64,
            sha256: Some("5a".repeat(32)),
            ..OutputFile::default()
        }
    }

    #[test]
    fn texts_share_the_room_in_their_order_and_say_how_to_read_on() {
        let line = format!("{}\n", "x".repeat(99));
        let mut result = RunResult {
            output_files: ["a", "b", "c"]
                .map(|name| file(name, &line.repeat(400)))
                .into(),
            ..RunResult::default()
        };
        assert!(fit_files(&ToolOptions::default(), &mut result));
        assert!(json_bytes(&result) <= RUN_BYTES_MAX);
        let [a, b, c] = result.output_files.as_slice() else {
            panic!("{result:?}");
        };
        assert_eq!(
            (a.content.as_deref(), a.truncated),
            (Some(&*line.repeat(400)), false)
        );
        let shown = b.content.as_deref().expect("its beginning");
        assert!(b.truncated && shown.ends_with("x\n"));
        let lines = shown.lines().count();
        let note = format!(
            "{} of 40000 bytes: read_file goes on with start_line {}",
            shown.len(),
            lines + 1
        );
        assert_eq!(b.note.as_deref(), Some(&*note));
        assert_eq!((&c.content, c.truncated), (&None, false));
        assert!(
            c.note
                .as_deref()
                .is_some_and(|note| note.ends_with("read_file reads it"))
        );
    }

    #[test]
    fn a_long_line_goes_on_at_a_byte() {
        let mut result = RunResult {
            primary_output: Some(file("out/a.json", &"é".repeat(100_000))),
            ..RunResult::default()
        };
        assert!(fit_files(&ToolOptions::default(), &mut result));
        let primary = result.primary_output.expect("is kept");
        let shown = primary.content.expect("its beginning").len();
        let note = format!(
            "{shown} of 200000 bytes: read_file goes on with start_line 1 and start_byte {shown}"
        );
        assert_eq!(primary.note, Some(note));
    }
}
