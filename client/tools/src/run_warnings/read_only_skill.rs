//! Recognition of writes into a skill's read-only folder, by what programs print.

use skilld_client::v1::{ExecSpec, ScriptCwd};

/// Folder of the staged skills in a workspace, with its last slash.
const SKILLS_FOLDER: &str = "/workspace/skills/";
/// Message of EROFS, in lower case.
const READ_ONLY_MESSAGE: &str = "read-only file system";
/// Message of SQLite, which names no file, in lower case.
const DATABASE_MESSAGE: &str = "attempt to write a readonly database";
/// Beginning of what LibreOffice prints of a file that it could not write, before the URL of the file.
const OFFICE_MESSAGE: &str = "impl_store <file://";
/// Warning about a failed write into a skill's folder.
const READ_ONLY_WARNING: &str = "skills are read-only: write to out/ or work/, or copy what must change to work/ first; the host can \
     permit writes by the option writable_skills";
/// Pairs of quotes around a path in a message.
const QUOTES: [(char, char); 4] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '\'')];

/// Returns a warning if a run reports on one of its streams that it could not write into a skill's folder, or into a
/// database that may be there. The exit code does not matter: a pipeline ends with that of its last program.
pub(super) fn read_only_warning(spec: &ExecSpec, streams: &[&str]) -> Option<String> {
    let in_skill = starts_in_skill(spec);
    let lines = streams.iter().flat_map(|stream| stream.lines());
    let mut paths = lines.filter_map(|line| read_only_path(line).or_else(|| unstored_path(line)));
    let is_in_skill = paths.any(|path| {
        // A path in `skills/` begins at the workspace's root.
        let in_folder = path.starts_with(SKILLS_FOLDER) || path.starts_with("skills/");
        in_folder || (in_skill && !path.starts_with('/'))
    });
    if is_in_skill {
        return Some(READ_ONLY_WARNING.to_owned());
    }
    let mut lower_streams = streams.iter().map(|stream| stream.to_ascii_lowercase());
    let may_be_in_skill = in_skill && lower_streams.any(|stream| stream.contains(DATABASE_MESSAGE));
    may_be_in_skill
        .then(|| format!("if the database is in the skill's folder: {READ_ONLY_WARNING}"))
}

/// Returns the path of a file that LibreOffice says it could not write.
fn unstored_path(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(OFFICE_MESSAGE)?;
    let (path, message) = rest.split_once('>')?;
    message.contains("failed").then_some(path)
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
    let (beginning, rest) = line.split_at_checked(at)?;
    let after = rest.get(READ_ONLY_MESSAGE.len()..)?;
    let before = beginning.trim_end().trim_end_matches(':');
    // Node.js has the name of the error there.
    let word = before
        .split_whitespace()
        .next_back()
        .filter(|word| *word != "EROFS");
    first_quoted(after)
        .or_else(|| last_quoted(before))
        .or(word)
        .filter(|path| !path.is_empty())
}

fn first_quoted(text: &str) -> Option<&str> {
    let paths = text.trim_start_matches([':', ',']).trim_start();
    // A rename or a copy has two paths, and fails at the second one.
    let target = paths.rsplit_once(" -> ").map_or(paths, |(_, to)| to);
    // Node.js names the system call before the path.
    let call_length = target.find(|char: char| !char.is_ascii_lowercase());
    let (call, rest) = target.split_at(call_length.unwrap_or_default());
    let quoted = if call.is_empty() {
        target
    } else {
        rest.trim_start()
    };
    QUOTES.iter().find_map(|(open, close)| {
        let inner = quoted.strip_prefix(*open)?;
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
    use skilld_client::v1::ExecScript;

    use super::*;

    fn of_skill(cwd: &str) -> ExecSpec {
        ExecSpec {
            skill: "pdf".into(),
            cwd: cwd.into(),
            ..ExecSpec::default()
        }
    }

    /// Working directory, line of stderr, and `true` if the line is about a write into the skill.
    #[rustfmt::skip]
    const WRITES: [(&str, &str, bool); 27] = [
        ("", "bash: line 1: a.txt: Read-only file system", true),
        ("", "/bin/bash: line 1: a.txt: Read-only file system", true),
        ("scripts", "touch: cannot touch 'a b': Read-only file system", true),
        ("", "mkdir: cannot create directory ‘a’: Read-only file system", true),
        ("", "sh: 1: cannot create a: Read-only file system", true),
        ("", "sed: couldn't open temporary file ./sedX: Read-only file system", true),
        ("", "OSError: [Errno 30] Read-only file system: 'a.txt'", true),
        ("", "Error: EROFS: read-only file system, open 'a.txt'", true),
        ("$WORK_DIR", "Error: EROFS: read-only file system, mkdir '/workspace/skills/pdf/a'", true),
        ("", "Error: EROFS: read-only file system, mkdir '/etc/a'", false),
        ("", "Error: EROFS: read-only file system, rename '/tmp/a' -> '/workspace/skills/pdf/a'", true),
        ("", "Error: EROFS: read-only file system, write", false),
        ("out", "rm: cannot remove '/workspace/skills/pdf/a': Read-only file system", true),
        ("$WORK_DIR", "OSError: [Errno 30] Read-only file system: '/workspace/skills/pdf/a'", true),
        ("$SKILLS_DIR/pdf", "bash: line 1: a.txt: Read-only file system", true),
        // Elsewhere in the image, or not where the skill is.
        ("", "touch: cannot touch '/etc/a': Read-only file system", false),
        ("", "bash: line 1: /usr/a: Read-only file system", false),
        ("work", "bash: line 1: a.txt: Read-only file system", false),
        ("/workspace/out", "bash: line 1: a.txt: Read-only file system", false),
        ("", "bash: a.txt: Permission denied", false),
        ("", "Read-only file system", false),
        ("", "", false),
        ("$WORK_DIR", "Error: Please verify input parameters... (SfxBaseModel::impl_store <file:///workspace/skills/pdf/a.pdf> failed: 0x507(Error Area:Io Class:Access Code:7))", true),
        ("", "Error: Please verify input parameters... (SfxBaseModel::impl_store <file:///workspace/out/a.pdf> failed: 0xc10(Error Area:Io Class:Write Code:16))", false),
        ("", "convert /workspace/skills/pdf/a.docx as a Writer document", false),
        ("", "sqlite3.OperationalError: attempt to write a readonly database", true),
        ("$WORK_DIR", "sqlite3.OperationalError: attempt to write a readonly database", false),
    ];

    #[test]
    fn a_failed_write_into_a_skill_is_recognised_on_either_stream() {
        for (cwd, line, wanted) in WRITES {
            let printed = format!("one\n{line}\nlast");
            for streams in [["", printed.as_str()], [printed.as_str(), ""]] {
                let warning = read_only_warning(&of_skill(cwd), &streams);
                assert_eq!(warning.is_some(), wanted, "{cwd:?} {line}");
            }
        }
    }

    #[test]
    fn a_write_outside_of_any_skill_is_no_warning() {
        let spec = ExecSpec::default();
        let line = "bash: line 1: a.txt: Read-only file system";
        assert_eq!(read_only_warning(&spec, &[line]), None);
        // Except by a path that leads into one.
        let line = "bash: line 1: skills/pdf/a.txt: Read-only file system";
        let warning = read_only_warning(&spec, &[line]);
        assert_eq!(warning.as_deref(), Some(READ_ONLY_WARNING));
    }

    #[test]
    fn a_scripts_relative_paths_are_those_of_its_working_directory() {
        let line = "OSError: [Errno 30] Read-only file system: 'a.txt'";
        for (cwd, wanted) in [
            (ScriptCwd::Workspace, false),
            (ScriptCwd::SkillRoot, true),
            (ScriptCwd::ScriptDir, true),
        ] {
            let mut script = ExecScript::default();
            script.set_cwd(cwd);
            let spec = ExecSpec {
                script: Some(script),
                ..of_skill("")
            };
            let warning = read_only_warning(&spec, &[line]);
            assert_eq!(warning.is_some(), wanted, "{cwd:?}");
        }
    }
}
