//! Selects the scripts of a skill, runs them with `--help` and judges how they end.

use std::time::Duration;

use anyhow::Result;
use skilld_client::v1::{
    ErrorReason, ExecScript, ExecSpec, ExitReason as EndReason, ScriptCwd, SkillFile, SkillFileKind,
};
use skilld_client::{Client, Error};
use skilld_tests::exec::{Outcome, run};

use crate::report::one_line;

/// Time that a script has for `--help`.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Beginnings of the lines in which interpreters and shells name what is missing.
const MISSING: [&str; 5] = [
    "ModuleNotFoundError:",
    "ImportError:",
    "Error: Cannot find module",
    "Error [ERR_MODULE_NOT_FOUND]:",
    "Can't locate ",
];

/// Outcome of `--help`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScriptOutcome {
    /// The script printed its help or its usage.
    Started,
    /// A module, a program or the interpreter is missing, or the script did not end.
    Broken(String),
    /// The script ended with an error that does not come from its environment. Many scripts know no `--help`.
    Unclear(String),
}

/// Returns `true` if a file may be a script: by its kind or its mode. A package's marker file is none.
pub(crate) fn is_candidate(file: &SkillFile) -> bool {
    let is_marker = file.path.ends_with("__init__.py");
    let is_executable = file.mode & 0o111 != 0;
    file.is_text && !is_marker && (file.kind() == SkillFileKind::Script || is_executable)
}

/// Runs a script with `--help` and no stdin. Returns `None` for a file that is not executable and has no known
/// interpreter.
pub(crate) async fn try_script(
    client: &Client,
    workspace: &str,
    skill: &str,
    file: &SkillFile,
) -> Result<Option<ScriptOutcome>> {
    let mut script = ExecScript {
        path: file.path.clone(),
        argv: vec!["--help".to_owned()],
        ..Default::default()
    };
    script.set_cwd(ScriptCwd::SkillRoot);
    let spec = ExecSpec {
        skill: skill.to_owned(),
        script: Some(script),
        timeout: Some(TIMEOUT.try_into()?),
        ..Default::default()
    };
    match run(client, workspace, spec).await {
        Ok(outcome) => Ok(Some(judge(&outcome))),
        Err(error) => match error.downcast_ref::<Error>().and_then(Error::failure) {
            Some(failure) if failure.reason == Some(ErrorReason::InvalidRequest) => {
                let why = "its first line names no known interpreter".to_owned();
                Ok((file.mode & 0o111 != 0).then_some(ScriptOutcome::Broken(why)))
            }
            _ => Err(error),
        },
    }
}

/// Judges an ended `--help`.
fn judge(outcome: &Outcome) -> ScriptOutcome {
    use ScriptOutcome::{Broken, Started, Unclear};
    let (stdout, stderr) = (outcome.text(), outcome.error_text());
    if outcome.reason() == EndReason::SpawnFailed {
        let failure = outcome.result.spawn_failure.clone().unwrap_or_default();
        return Broken(one_line(&format!("can't start: {}", failure.message)));
    }
    if outcome.reason() == EndReason::Timeout {
        return Broken(format!("did not end within {} s", TIMEOUT.as_secs()));
    }
    if outcome.exit_code() == Some(0) {
        return Started;
    }
    let lines = || stderr.lines().chain(stdout.lines());
    if let Some(line) = lines().find(|line| line.contains("attempted relative import")) {
        return Unclear(format!("module of a package: {}", one_line(line)));
    }
    let names_missing = |line: &&str| {
        MISSING
            .iter()
            .any(|start| line.trim_start().starts_with(start))
            || line.contains("command not found")
    };
    if let Some(line) = lines().find(names_missing) {
        return Broken(one_line(line));
    }
    if lines().any(|line| line.trim_start().to_lowercase().starts_with("usage")) {
        return Started;
    }
    let end = match (outcome.exit_code(), outcome.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => format!("{:?}", outcome.reason()),
    };
    match lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => Unclear(format!("{end}: {}", one_line(line))),
        None => Unclear(end),
    }
}

#[cfg(test)]
mod tests {
    use skilld_client::Outcome as End;
    use skilld_client::v1::ExecResult;

    use super::*;

    fn ended(code: i32, stderr: &str) -> Outcome {
        Outcome {
            stderr: stderr.as_bytes().to_vec(),
            result: ExecResult::new(EndReason::Exited, Some(End::ExitCode(code))),
            ..Default::default()
        }
    }

    #[test]
    fn help_and_usage_are_starts_and_missing_modules_are_not() {
        let broken = |text: &str| ScriptOutcome::Broken(text.to_owned());
        let unclear = |text: &str| ScriptOutcome::Unclear(text.to_owned());
        for (code, stderr, expected) in [
            (0, "", ScriptOutcome::Started),
            (2, "usage: x.py [-h]\nx.py: error", ScriptOutcome::Started),
            (1, "Usage: run.sh FILE\n", ScriptOutcome::Started),
            (
                1,
                "Traceback …\nModuleNotFoundError: No module named 'torch'\n",
                broken("ModuleNotFoundError: No module named 'torch'"),
            ),
            (
                127,
                "x.sh: line 2: gh: command not found\nusage: x\n",
                broken("x.sh: line 2: gh: command not found"),
            ),
            (
                1,
                "ImportError: attempted relative import with no known parent package",
                unclear(
                    "module of a package: ImportError: attempted relative import with no known parent package",
                ),
            ),
            (
                1,
                "a\nno file --help\x1b[0m\n\n",
                unclear("exit code 1: no file --help [0m"),
            ),
            (3, "", unclear("exit code 3")),
        ] {
            assert_eq!(judge(&ended(code, stderr)), expected, "{stderr}");
        }
    }

    #[test]
    fn scripts_are_found_by_kind_or_mode() {
        let file = |path: &str, kind: SkillFileKind, mode: u32, is_text: bool| {
            let mut file = SkillFile {
                path: path.to_owned(),
                mode,
                is_text,
                ..Default::default()
            };
            file.set_kind(kind);
            is_candidate(&file)
        };
        assert!(file("scripts/a.py", SkillFileKind::Script, 0o644, true));
        assert!(file("run", SkillFileKind::Other, 0o755, true));
        assert!(!file(
            "scripts/__init__.py",
            SkillFileKind::Script,
            0o644,
            true
        ));
        assert!(!file("bin/program", SkillFileKind::Other, 0o755, false));
        assert!(!file(
            "references/a.md",
            SkillFileKind::Reference,
            0o644,
            true
        ));
    }
}
