//! Collects the files of one run: those that it made or changed and that the call requests. Only text that is shown is
//! kept of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_client::Error;
use skilld_client::v1::skipped_file::Reason;
use skilld_client::v1::{CollectSpec, CollectSummary, SaveAsArtifacts};

use super::field_error_translator::FieldErrorTranslator;
use super::run_result::{ArtifactFile, OutputFile, RunResult, SkippedFile};
use super::skill_command::RunArguments;
use crate::call_context::{CallContext, SessionContext};
use crate::output_buffer::whole_end;
use crate::output_collection::{self, CollectedOutput};

/// Maximum number of left-out files that a result names.
const SKIPPED_MAX: usize = 100;
/// End of the warning about further left-out files.
const MORE_SKIPPED: &str = "more files were left out than skipped_files names";
/// Glob of the files that commands leave as results.
const OUTPUT_GLOB: &str = "out/**";
/// Maximum number of files that are collected from `out/` when a call requests none.
const UNASKED_FILES_MAX: i64 = 20;
/// Maximum text of one file in a result, in bytes, whatever the call says.
const CONTENT_BYTES_MAX: i64 = 4 * 1024 * 1024;
/// Media type that a link is reported with.
const LINK_MIME_TYPE: &str = "inode/symlink";
/// Maximum size of a file that is saved, which is always saved whole, in bytes.
const SAVED_BYTES_MAX: i64 = 64 * 1024 * 1024;

/// Files to return, with limits on them and whether to save them as artifacts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Outputs {
    /// Globs of files to return, for instance `$OUTPUT_DIR/**` or `work/*.csv`.
    pub(super) globs: Vec<String>,
    /// Return the text of text files.
    pub(super) inline: bool,
    /// Save the files as artifacts, which outlive the workspace.
    pub(super) save: bool,
    /// Prefix for the names of artifacts.
    pub(super) name_template: String,
    /// Maximum number of files; 100 if it is left out.
    pub(super) max_files: i64,
    /// Maximum bytes of one file, which is cut there; 4 MiB if it is left out.
    pub(super) max_file_bytes: i64,
    /// Maximum bytes of all files together; 64 MiB if it is left out.
    pub(super) max_total_bytes: i64,
}

/// Files to collect after a run. Kept with the command if that goes on.
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
}

impl CollectPlan {
    /// Creates the plan for the files that the call and the host request.
    pub(super) fn new(call: CallContext<'_>, run: &RunArguments) -> Self {
        let wanted = call.tools.options.force_save_artifacts || run.save_as_artifacts;
        let has_nested_globs = run.output_files.is_empty();
        let asked = match (&run.outputs, has_nested_globs) {
            (_, false) => Outputs {
                globs: run.output_files.clone(),
                inline: true,
                ..Outputs::default()
            },
            (Some(outputs), true) => outputs.clone(),
            (None, true) => {
                return Self {
                    globs: vec![OUTPUT_GLOB.to_owned()],
                    max_files: UNASKED_FILES_MAX,
                    inline: !run.omit_inline_content,
                    unasked: true,
                    save: wanted.then(|| run.artifact_prefix.clone()),
                    ..Self::default()
                };
            }
        };
        let has_nested_prefix = !asked.name_template.is_empty();
        let prefix = match has_nested_prefix {
            true => asked.name_template,
            false => run.artifact_prefix.clone(),
        };
        let globs = asked.globs.iter().map(|glob| glob.trim());
        let globs = globs.filter(|glob| !glob.is_empty());
        let globs = globs.map(|glob| glob.strip_prefix("workspace://").unwrap_or(glob));
        Self {
            globs: globs.map(str::to_owned).collect(),
            max_files: asked.max_files.max(0),
            max_file_bytes: asked.max_file_bytes.max(0),
            max_total_bytes: asked.max_total_bytes.max(0),
            inline: asked.inline && !run.omit_inline_content,
            unasked: false,
            has_nested_globs,
            has_nested_prefix,
            save: (asked.save || wanted).then_some(prefix),
        }
    }

    /// Returns the names of the collection's fields in the call.
    pub(super) fn argument_names(&self) -> FieldErrorTranslator<'_> {
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

    /// Returns `true` if files are saved as artifacts.
    pub(super) fn saves(&self) -> bool {
        self.save.is_some() && !self.globs.is_empty()
    }

    /// Returns the name of the artifact that a file becomes; `None` if nothing is saved.
    fn artifact_name(&self, file: &str) -> Option<String> {
        let prefix = self.save.as_ref()?;
        Some(format!("{prefix}{file}"))
    }

    /// Returns the specification that the daemon checks before the command starts; `None` if the call requests no
    /// files.
    pub(super) fn planned_spec(&self, context: SessionContext<'_>) -> Option<CollectSpec> {
        let is_asked = !self.unasked || self.save.is_some();
        (is_asked && !self.globs.is_empty()).then(|| self.to_collect_spec(context, false))
    }

    /// Returns the plan without what the daemon refuses of it, and a warning for each such part; none if nothing is
    /// left, or if the daemon refused something else.
    fn without_faults(&self, error: &Error) -> Option<(Self, Vec<String>)> {
        let failure = error.failure()?;
        let names = self.argument_names();
        let (mut rest, mut warnings) = (self.clone(), Vec::new());
        for violation in &failure.violations {
            let why = &violation.description;
            if let Some(glob) = names.glob(&violation.field) {
                rest.globs.retain(|kept| kept != glob);
                warnings.push(format!("{glob:?} was not collected: {why}"));
            } else if !violation.field.starts_with("spec.save_as_artifacts") {
                return None;
            } else if rest.save.take().is_some() {
                let name = names.name(&violation.field);
                warnings.push(format!("nothing was saved as an artifact: {name} {why}"));
            }
        }
        (!rest.globs.is_empty() && rest != *self).then_some((rest, warnings))
    }

    /// Returns the specification for the end of the command; `daemon_saves` if the daemon saves the files by itself.
    pub(super) fn to_collect_spec(
        &self,
        context: SessionContext<'_>,
        daemon_saves: bool,
    ) -> CollectSpec {
        // One byte more than is shown tells that there is more.
        let shown = i64::try_from(context.tools.options.primary_bytes_max);
        let unasked = shown.unwrap_or(CONTENT_BYTES_MAX) + 1;
        let save = self.save.clone().filter(|_| !daemon_saves);
        // The limit is the same whether the daemon or this call saves the files.
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
            skip_empty_after_failure: save.is_some(),
            save_as_artifacts: save.map(|prefix| SaveAsArtifacts {
                prefix,
                scope: Some(context.session.scope()),
            }),
            ..CollectSpec::default()
        }
    }

    /// Collects the files that an exec, named in full, left into its result. `daemon_saves` is `true` if the daemon
    /// saves the artifacts by itself.
    pub(super) async fn collect(
        &self,
        context: SessionContext<'_>,
        exec: &str,
        daemon_saves: bool,
        result: &mut RunResult,
    ) -> Result<(), Error> {
        if self.globs.is_empty() {
            return Ok(());
        }
        let text_max = match self.inline {
            true => usize::try_from(CONTENT_BYTES_MAX).unwrap_or(usize::MAX),
            false => 0,
        };
        let (mut plan, mut warnings) = (self.clone(), Vec::new());
        let (files, summary) = loop {
            let spec = plan.to_collect_spec(context, daemon_saves);
            match output_collection::collect_outputs(context.tools, exec, spec, text_max).await {
                Ok(collected) => break collected,
                Err(error) => {
                    // The other files are not lost for one glob that the daemon refuses only now.
                    let (rest, refused) = plan.without_faults(&error).ok_or(error)?;
                    warnings.extend(refused);
                    plan = rest;
                }
            }
        };
        // Only now: a caller that tries again after an error must not get them twice.
        result.warnings.extend(warnings);
        let files = files.into_iter();
        let files = files.filter_map(|file| plan.convert_file(file)).collect();
        plan.report(context, files, &summary, result);
        Ok(())
    }

    /// Converts a collected file for the result; `None` if its end was not received.
    fn convert_file(&self, collected: CollectedOutput) -> Option<OutputFile> {
        let CollectedOutput { file, end, text } = collected;
        if !file.link_target.is_empty() {
            return Some(OutputFile {
                reference: format!("workspace://{}", file.path),
                note: Some(format!("a link to {}", file.link_target)),
                name: file.path,
                mime_type: LINK_MIME_TYPE.to_owned(),
                ..OutputFile::default()
            });
        }
        let end = end?;
        let size_bytes = u64::try_from(file.size).unwrap_or_default();
        let is_cut = end.truncated || (text.len() as u64) < size_bytes;
        let (content, note) = match (self.inline, file.is_text) {
            (false, _) => (None, None),
            (true, false) => (None, Some("not text")),
            (true, true) => match whole_text(text, is_cut) {
                Some(text) => (Some(text), None),
                None => (None, Some("not UTF-8 text")),
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

    /// Adds collected files to a result, with warnings about the others.
    fn report(
        &self,
        context: SessionContext<'_>,
        mut files: Vec<OutputFile>,
        summary: &CollectSummary,
        result: &mut RunResult,
    ) {
        self.report_saved(context, summary, &mut files, result);
        let unchanged = self.unchanged_warning(summary, &files);
        let outside = output_collection::outside_warning(summary);
        result.warnings.extend(unchanged.into_iter().chain(outside));
        let mut skipped = summary.skipped.iter();
        let too_many = skipped.any(|skipped| skipped.reason() == Reason::MaxFiles);
        result.limits_hit = match self.unasked && self.save.is_none() {
            // Files were cut for the sake of the main output alone.
            true => too_many,
            false => summary.limits_hit || files.iter().any(|file| file.truncated),
        };
        if self.unasked && too_many {
            let (matched, returned) = (summary.matched, summary.returned);
            let warning = format!(
                "{returned} of {matched} files are named: ask for others with output_files"
            );
            result.warnings.push(warning);
        } else if result.limits_hit {
            let warning = "a limit kept files or parts of them out of the result: see truncated and skipped_files";
            result.warnings.push(warning.to_owned());
        }
        if result.has_failed() {
            // A link has no size of its own.
            let is_empty =
                |file: &OutputFile| file.size_bytes == 0 && file.mime_type != LINK_MIME_TYPE;
            let (empty, kept): (Vec<_>, Vec<_>) = files.into_iter().partition(is_empty);
            if !empty.is_empty() {
                let warning =
                    "empty files are left out since the command failed: see skipped_files";
                result.warnings.push(warning.to_owned());
            }
            for file in empty {
                let skipped = SkippedFile {
                    name: file.name,
                    reason: reason_name(Reason::EmptyAfterFailure),
                };
                if !result.skipped_files.contains(&skipped) {
                    result.skipped_files.push(skipped);
                }
            }
            files = kept;
        }
        let primary_max = context.tools.options.primary_bytes_max;
        result.primary_output = find_primary(&files, primary_max).cloned();
        if self.unasked {
            for file in &mut files {
                (file.content, file.note, file.truncated) = (None, None, false);
            }
        }
        result.output_files = files;
    }

    /// Reports which files became artifacts, and which were left out for what reason, also where the daemon saved them
    /// by itself.
    pub(super) fn report_saved(
        &self,
        context: SessionContext<'_>,
        summary: &CollectSummary,
        files: &mut [OutputFile],
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
        for file in files.iter_mut().filter(|file| file.artifact.is_none()) {
            let name = self.artifact_name(&file.name);
            let of_it = |artifact: &&ArtifactFile| Some(&artifact.name) == name.as_ref();
            let artifact = result.artifact_files.iter().find(of_it);
            file.artifact = artifact.map(|artifact| artifact.reference.clone());
        }
        let mut more = 0;
        for skipped in &summary.skipped {
            let reason = skipped.reason();
            let skipped = SkippedFile {
                name: skipped.path.clone(),
                reason: reason_name(reason),
            };
            // If the call asked for no files, their number is enough.
            let is_told = self.unasked && reason == Reason::MaxFiles;
            if is_told || result.skipped_files.contains(&skipped) {
                continue;
            }
            match result.skipped_files.len() < SKIPPED_MAX {
                true => result.skipped_files.push(skipped),
                false => more += 1,
            }
        }
        let is_said = result
            .warnings
            .iter()
            .any(|said| said.ends_with(MORE_SKIPPED));
        if more > 0 && !is_said {
            result.warnings.push(format!("{more} {MORE_SKIPPED}"));
        }
    }

    /// Returns a warning about files that the call requests and that the command did not change.
    fn unchanged_warning(&self, summary: &CollectSummary, files: &[OutputFile]) -> Option<String> {
        let paths = output_collection::skipped_paths(summary, |reason| reason == Reason::Unchanged);
        let is_asked = !self.unasked && summary.unchanged > 0;
        if !is_asked || (paths.is_empty() && !files.is_empty()) {
            return None;
        }
        let which = match paths.is_empty() {
            true => format!("all {} files that match", summary.unchanged),
            false => output_collection::join_paths(&paths),
        };
        Some(format!(
            "not changed by this command, and so not among output_files: {which}; read_file reads them"
        ))
    }
}

/// Returns the text of a file, without a character that was cut.
fn whole_text(mut bytes: Vec<u8>, is_cut: bool) -> Option<String> {
    if is_cut {
        bytes.truncate(whole_end(&bytes));
    }
    String::from_utf8(bytes).ok()
}

/// Returns the main output: of the texts that are whole, not blank and not too long the one whose name sorts first.
fn find_primary(files: &[OutputFile], bytes_max: usize) -> Option<&OutputFile> {
    let shown = |file: &&OutputFile| {
        let text = file.content.as_deref().unwrap_or_default();
        !file.truncated && !text.trim().is_empty() && text.len() <= bytes_max
    };
    files.iter().filter(shown).min_by_key(|file| &file.name)
}

/// Returns the name of a reason as results have it.
fn reason_name(reason: Reason) -> String {
    let name = reason.as_str_name();
    name.strip_prefix("REASON_").unwrap_or(name).to_owned()
}
