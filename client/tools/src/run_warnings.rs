//! Warnings about a run that neither its exit code nor its reason shows: processes that were killed for memory, and
//! writes into a skill's read-only folder. Pure; every family adds them to its results.

use skilld_client::v1::exec_result::Outcome;
use skilld_client::v1::{ExecResult, ExecSpec, ScriptCwd};

/// Folder of the staged skills in a workspace, with its last slash.
const SKILLS_FOLDER: &str = "/workspace/skills/";
/// Message of EROFS, in lower case.
const READ_ONLY_MESSAGE: &str = "read-only file system";
/// Warning about a failed write into a skill's folder.
const READ_ONLY_WARNING: &str = "skills are read-only: write to out/ or work/, or copy what must change to work/ first; the host can \
     permit writes by the option writable_skills";
/// Pairs of quotes around a path in a message.
const QUOTES: [(char, char); 4] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '\'')];

/// Returns the warnings about a run. `errors` is its output on stderr, or all of its output if it had a terminal.
pub(crate) fn describe_run(result: &ExecResult, spec: &ExecSpec, errors: &str) -> Vec<String> {
    let read_only = writes_into_skill(result, spec, errors);
    let read_only = read_only.then(|| READ_ONLY_WARNING.to_owned());
    oom_warning(result).into_iter().chain(read_only).collect()
}

/// Returns a warning if the kernel killed processes for memory during a run. A shell that goes on without a killed
/// child can exit with 0.
pub(crate) fn oom_warning(result: &ExecResult) -> Option<String> {
    let killed = match result.oom_kills {
        0 => return None,
        1 => "1 process was".to_owned(),
        kills => format!("{kills} processes were"),
    };
    Some(format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; use less memory at once, and run nothing beside it"
    ))
}

/// Returns `true` if a failed run reports that it could not write into a skill's folder.
fn writes_into_skill(result: &ExecResult, spec: &ExecSpec, errors: &str) -> bool {
    if result.outcome == Some(Outcome::ExitCode(0)) {
        return false;
    }
    let in_skill = starts_in_skill(spec);
    errors.lines().filter_map(read_only_path).any(|path| {
        // A path in `skills/` begins at the workspace's root.
        let in_folder = path.starts_with(SKILLS_FOLDER) || path.starts_with("skills/");
        in_folder || (in_skill && !path.starts_with('/'))
    })
}

/// Returns `true` if a command starts in a skill's folder, to which its relative paths then refer.
fn starts_in_skill(spec: &ExecSpec) -> bool {
    if let Some(script) = &spec.script {
        return matches!(script.cwd(), ScriptCwd::SkillRoot | ScriptCwd::ScriptDir);
    }
    match spec.cwd.as_str() {
        "" => !spec.skill.is_empty(),
        cwd if cwd.starts_with(['/', '$']) => {
            let folders = [SKILLS_FOLDER, "$SKILLS_DIR", "${SKILLS_DIR}", "$SKILL_DIR"];
            folders.iter().any(|folder| cwd.starts_with(folder))
        }
        // The folders out, work and inputs of a skill lead to the workspace's.
        cwd => {
            let first = cwd.split('/').find(|name| !matches!(*name, "" | "."));
            match spec.skill.as_str() {
                "" => first == Some("skills"),
                _ => !matches!(first, Some("out" | "work" | "inputs")),
            }
        }
    }
}

/// Returns the path in a line that reports EROFS: the quoted text after the message or before it, as interpreters and
/// tools print it, else the last word before it, as shells do.
fn read_only_path(line: &str) -> Option<&str> {
    // Lower case of ASCII only, so that positions stay the same.
    let at = line.to_ascii_lowercase().find(READ_ONLY_MESSAGE)?;
    let (before, rest) = line.split_at_checked(at)?;
    let after = rest.get(READ_ONLY_MESSAGE.len()..)?;
    let before = before.trim_end().trim_end_matches(':');
    // Node.js has the name of the error there.
    let word = before.split_whitespace().next_back();
    let word = word.filter(|word| *word != "EROFS");
    first_quoted(after)
        .or_else(|| last_quoted(before))
        .or(word)
        .filter(|path| !path.is_empty())
}

fn first_quoted(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([':', ',']).trim_start();
    // A rename or a copy has two paths, and fails at the second one.
    let text = text.rsplit_once(" -> ").map_or(text, |(_, to)| to);
    // Node.js names the system call before the path.
    let call_length = text.find(|char: char| !char.is_ascii_lowercase());
    let (call, rest) = text.split_at(call_length.unwrap_or_default());
    let text = if call.is_empty() {
        text
    } else {
        rest.trim_start()
    };
    QUOTES.iter().find_map(|(open, close)| {
        let inner = text.strip_prefix(*open)?;
        inner.split_once(*close).map(|(path, _)| path)
    })
}

fn last_quoted(text: &str) -> Option<&str> {
    QUOTES.iter().find_map(|(open, close)| {
        let inner = text.strip_suffix(*close)?;
        inner.rsplit_once(*open).map(|(_, path)| path)
    })
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::Script;

    use super::*;

    fn failed() -> ExecResult {
        ExecResult {
            outcome: Some(Outcome::ExitCode(1)),
            ..ExecResult::default()
        }
    }

    fn of_skill(cwd: &str) -> ExecSpec {
        ExecSpec {
            skill: "pdf".into(),
            cwd: cwd.into(),
            ..ExecSpec::default()
        }
    }

    /// Working directory, line of stderr, and `true` if the line is about a write into the skill.
    const WRITES: [(&str, &str, bool); 22] = [
        ("", "bash: line 1: a.txt: Read-only file system", true),
        ("", "/bin/bash: line 1: a.txt: Read-only file system", true),
        (
            "scripts",
            "touch: cannot touch 'a b': Read-only file system",
            true,
        ),
        (
            "",
            "mkdir: cannot create directory ‘a’: Read-only file system",
            true,
        ),
        ("", "sh: 1: cannot create a: Read-only file system", true),
        (
            "",
            "sed: couldn't open temporary file ./sedX: Read-only file system",
            true,
        ),
        (
            "",
            "OSError: [Errno 30] Read-only file system: 'a.txt'",
            true,
        ),
        (
            "",
            "Error: EROFS: read-only file system, open 'a.txt'",
            true,
        ),
        (
            "$WORK_DIR",
            "Error: EROFS: read-only file system, mkdir '/workspace/skills/pdf/a'",
            true,
        ),
        (
            "",
            "Error: EROFS: read-only file system, mkdir '/etc/a'",
            false,
        ),
        (
            "",
            "Error: EROFS: read-only file system, rename '/tmp/a' -> '/workspace/skills/pdf/a'",
            true,
        ),
        ("", "Error: EROFS: read-only file system, write", false),
        (
            "out",
            "rm: cannot remove '/workspace/skills/pdf/a': Read-only file system",
            true,
        ),
        (
            "$WORK_DIR",
            "OSError: [Errno 30] Read-only file system: '/workspace/skills/pdf/a'",
            true,
        ),
        (
            "$SKILLS_DIR/pdf",
            "bash: line 1: a.txt: Read-only file system",
            true,
        ),
        // Elsewhere in the image, or not where the skill is.
        (
            "",
            "touch: cannot touch '/etc/a': Read-only file system",
            false,
        ),
        ("", "bash: line 1: /usr/a: Read-only file system", false),
        ("work", "bash: line 1: a.txt: Read-only file system", false),
        (
            "/workspace/out",
            "bash: line 1: a.txt: Read-only file system",
            false,
        ),
        ("", "bash: a.txt: Permission denied", false),
        ("", "Read-only file system", false),
        ("", "", false),
    ];

    #[test]
    fn a_failed_write_into_a_skill_is_recognised_by_what_programs_print() {
        for (cwd, line, wanted) in WRITES {
            let warnings = describe_run(&failed(), &of_skill(cwd), &format!("one\n{line}\nlast"));
            let warned = warnings == [READ_ONLY_WARNING];
            assert_eq!(warned, wanted, "{cwd:?} {line}: {warnings:?}");
        }
    }

    #[test]
    fn a_write_that_did_not_fail_the_run_or_was_elsewhere_is_no_warning() {
        let done = ExecResult {
            outcome: Some(Outcome::ExitCode(0)),
            ..ExecResult::default()
        };
        let line = "bash: line 1: a.txt: Read-only file system";
        assert!(describe_run(&done, &of_skill(""), line).is_empty());
        // Outside of any skill, except by a path that leads into one.
        assert!(describe_run(&failed(), &ExecSpec::default(), line).is_empty());
        let line = "bash: line 1: skills/pdf/a.txt: Read-only file system";
        let warnings = describe_run(&failed(), &ExecSpec::default(), line);
        assert_eq!(warnings, [READ_ONLY_WARNING]);
    }

    #[test]
    fn a_scripts_relative_paths_are_those_of_its_working_directory() {
        let line = "OSError: [Errno 30] Read-only file system: 'a.txt'";
        for (cwd, wanted) in [
            (ScriptCwd::Workspace, 0),
            (ScriptCwd::SkillRoot, 1),
            (ScriptCwd::ScriptDir, 1),
        ] {
            let mut script = Script::default();
            script.set_cwd(cwd);
            let spec = ExecSpec {
                script: Some(script),
                ..of_skill("")
            };
            let warnings = describe_run(&failed(), &spec, line);
            assert_eq!(warnings.len(), wanted, "{cwd:?}");
        }
    }

    #[test]
    fn processes_that_were_killed_for_memory_are_a_warning_whatever_the_exit_code_is() {
        for (oom_kills, code, begins) in [
            (1, 0, "1 process was killed for memory"),
            (3, 137, "3 processes were killed for memory"),
        ] {
            let result = ExecResult {
                outcome: Some(Outcome::ExitCode(code)),
                oom_kills,
                ..ExecResult::default()
            };
            let warnings = describe_run(&result, &ExecSpec::default(), "");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].starts_with(begins), "{warnings:?}");
        }
        assert_eq!(oom_warning(&failed()), None);
    }
}
