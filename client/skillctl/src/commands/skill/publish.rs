//! `skillctl skill publish`, `delete` and `refresh`: changes which skills the daemon has.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::{ErrorReason, Problem, Skill, SkillState};
use skilld_client::{Client, Error, PackLimits, SkillArchive, short_id};

use super::problem_lines;
use crate::commands::{complete, remove};
use crate::output::transfer_bar::TransferBar;
use crate::output::{self, skip_notes, value_formats};

/// Problem code of a root that is still being fetched.
const PENDING: &str = "root.pending";

/// Publish a skill's folder or archive, so that everybody can stage it.
///
/// A folder is packed first: links within it become what they lead to. Left out with a remark are links that lead out
/// or nowhere, FIFOs, sockets and devices; without one the folders of version control, caches, node_modules, .venv,
/// what editors leave, and what a .skillignore in the folder names, in the language of .gitignore; `!name` there takes
/// something back in. An archive (tar, tar.gz, zip) is sent as it is, and the daemon leaves the same out of it.
///
/// The same content again changes nothing. Other content needs another version in the skill's front matter.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl skill publish ./csv-report\n  skillctl skill publish csv-report-1.2.tar.gz"
)]
pub(crate) struct Publish {
    #[arg(value_name = "DIR|ARCHIVE")]
    path: PathBuf,
    /// Name of the skill, which must be the one that its card or SKILL.md gives. If neither does, it is the name of the
    /// folder or file.
    #[arg(long)]
    name: Option<String>,
}

/// Delete what was published: one version, or all of them.
///
/// Workspaces keep what they have staged. Skills of configured roots are deleted there.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl skill delete csv-report@1.2\n  skillctl skill delete csv-report --all"
)]
pub(crate) struct Delete {
    /// name@version or name@sha256:DIGEST; name alone with --all.
    #[arg(add = ArgValueCompleter::new(complete::offer_skills))]
    name: String,
    /// Delete all versions; needed where none is named.
    #[arg(long)]
    all: bool,
}

impl Publish {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let default = PackLimits::default();
        let known = |limit: i64, default| {
            u64::try_from(limit)
                .ok()
                .filter(|it| *it > 0)
                .unwrap_or(default)
        };
        let limits = client
            .server_info()
            .await?
            .limits
            .map_or(default, |limits| PackLimits {
                files: known(limits.skill_files, default.files),
                bytes: known(limits.skill_bytes, default.bytes),
            });
        // Nothing else is under way meanwhile.
        let archive = match self.path.is_dir() {
            true => SkillArchive::pack(&self.path, limits)?,
            false => SkillArchive::open(&self.path)?,
        };
        skip_notes::note_skipped(archive.skipped());
        let bar = TransferBar::new(&format!("publishing {}", self.path.display()));
        let name = self.name.as_deref().unwrap_or_default();
        let mut published = client.publish_skill(name, &archive, bar.progress()).await;
        // Only the daemon knows whether the documents give the skill a name; if not, the file's is the next best.
        if name.is_empty() && published.as_ref().is_err_and(has_no_name) {
            let name = archive.file_name();
            published = client.publish_skill(name, &archive, bar.progress()).await;
        }
        drop(bar);
        let skill = match published {
            Ok(skill) => skill,
            // All is said; there is nothing yet that `skill show` could show.
            Err(error) if error.reason() == Some(ErrorReason::SkillInvalid) => {
                anyhow::bail!("{error}");
            }
            Err(error) => return Err(error.into()),
        };
        output::print_message(&skill, &skill_line(&skill))?;
        output::print_text_notes(&published_problems(&skill));
        Ok(0)
    }
}

/// Returns `true` if the documents of a skill give it no name.
fn has_no_name(error: &Error) -> bool {
    let mut violations = error
        .failure()
        .into_iter()
        .flat_map(|failure| &failure.violations);
    violations.any(|violation| violation.field == "name")
}

/// Describes a published skill on one line.
fn skill_line(skill: &Skill) -> String {
    let mut words = vec![short_id(&skill.name)];
    words.extend(Some(skill.version.clone()).filter(|version| !version.is_empty()));
    words.push(skill.digest.clone());
    let size = value_formats::format_size(skill.size_bytes);
    format!("{} ({} files, {size})\n", words.join(" "), skill.file_count)
}

/// Returns the problems of a published skill, with paths in what was published.
fn published_problems(skill: &Skill) -> Vec<String> {
    let shown = skill.problems.iter().map(|problem| Problem {
        subject: "SKILL.md".to_owned(),
        ..problem.clone()
    });
    let mut lines = problem_lines(&shown.collect::<Vec<_>>());
    if skill.state() == SkillState::Shadowed {
        lines.push("a configured root has this name and version too, and comes first".to_owned());
    }
    lines
}

impl Delete {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let name = &self.name;
        remove::check_all_flag(name.contains('@'), self.all, &format!("{name}@1.0"))?;
        client.delete_skill(name).await?;
        remove::print_deleted(std::slice::from_ref(name))?;
        Ok(0)
    }
}

/// Makes the daemon read all roots again; returns the exit code.
pub(crate) async fn refresh_skills(client: &Client) -> anyhow::Result<u8> {
    let refreshed = client.refresh_skills().await?;
    let text = format!(
        "{} loaded, {} rejected, {} shadowed\n",
        refreshed.loaded_count, refreshed.rejected_count, refreshed.shadowed_count
    );
    output::print_message(&refreshed, &text)?;
    output::print_text_notes(&problem_lines(&refreshed.problems));
    let failed =
        |problem: &Problem| problem.severity() == ProblemSeverity::Error || problem.code == PENDING;
    Ok(u8::from(refreshed.problems.iter().any(failed)))
}
