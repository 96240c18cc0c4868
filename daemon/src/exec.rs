//! What a command gets: argv, environment, working directory, effective limits. Pure: a checked spec and a
//! workspace's view in, the guest's request out. The guest adds nothing to it.

use std::collections::BTreeMap;
use std::time::Duration;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::config::ExecConfig;
use crate::error::{Error, Result};
use crate::paths::{self, Scope};

/// Where programs are looked for, as Debian has it.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Which rpc starts the exec; their defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Somebody reads from the start, so nothing need be lost.
    Run,
    /// Maybe nobody reads, so the program must not wait.
    Detached,
}

/// The workspace as far as commands are concerned.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Environment of every exec.
    pub env: &'a BTreeMap<String, String>,
    /// Names of staged skills.
    pub skills: &'a BTreeMap<String, String>,
    /// Bounds.
    pub config: &'a ExecConfig,
}

/// Turns a checked spec into what the guest starts.
///
/// # Errors
/// `SkillNotFound` when the skill is not staged; `PathEscapes` and `Invalid` for the working directory.
pub fn resolve(
    exec_id: String,
    digest: Vec<u8>,
    spec: pb::ExecSpec,
    start: Start,
    around: Surroundings<'_>,
) -> Result<guest::StartExecRequest> {
    let skill = match spec.skill.as_str() {
        "" => None,
        name if around.skills.contains_key(name) => Some(name.to_owned()),
        name => {
            let nearest = around.skills.keys().take(3).cloned().collect();
            let name = name.to_owned();
            return Err(Error::SkillNotStaged { name, nearest });
        }
    };
    let base = skill
        .as_ref()
        .map(|name| format!("skills/{name}"))
        .unwrap_or_default();
    let scope = Scope {
        base: &base,
        exec: Some(&exec_id),
        skill: skill.as_deref(),
    };
    let cwd = if spec.cwd.is_empty() {
        if skill.is_some() {
            paths::absolute(&base)
        } else {
            paths::WORK_DIR.to_owned()
        }
    } else {
        paths::absolute(&paths::resolve("spec.cwd", &spec.cwd, scope)?)
    };
    let spec = effective(spec, start, around.config);
    let env = environment(&exec_id, skill.as_deref(), around.env, &spec);
    let argv = if spec.shell.is_empty() {
        spec.argv.clone()
    } else {
        vec!["bash".to_owned(), "-c".to_owned(), spec.shell.clone()]
    };
    Ok(guest::StartExecRequest {
        exec_id,
        request_digest: digest.into(),
        argv,
        cwd,
        env,
        spec: Some(spec),
        format: pb::OutputFormat::Bytes.into(),
    })
}

/// Fills in defaults and cuts down to maxima; the client sees the result in Started.
fn effective(mut spec: pb::ExecSpec, start: Start, config: &ExecConfig) -> pb::ExecSpec {
    let given = |duration: Option<prost_types::Duration>| {
        duration.and_then(|given| Duration::try_from(given).ok())
    };
    let wire = |duration: Duration| prost_types::Duration::try_from(duration).ok();
    let timeout = given(spec.timeout)
        .unwrap_or(config.timeout_default)
        .min(config.timeout_max);
    spec.timeout = wire(timeout);
    spec.no_output_timeout =
        given(spec.no_output_timeout).and_then(|silence| wire(silence.min(config.timeout_max)));
    let or = |given: u32, default| if given == 0 { default } else { given };
    let asked = spec.retain.unwrap_or_default();
    let default = i64::try_from(config.retain_bytes_default).unwrap_or(i64::MAX);
    let or_default = |bytes: i64| if bytes == 0 { default } else { bytes };
    spec.retain = Some(pb::Retain {
        stdout_bytes: or_default(asked.stdout_bytes),
        stderr_bytes: or_default(asked.stderr_bytes),
        after_exit: wire(given(asked.after_exit).unwrap_or(config.retain_after_exit_default)),
    });
    if let Some(terminal) = &mut spec.terminal {
        terminal.rows = or(terminal.rows, 24);
        terminal.cols = or(terminal.cols, 80);
        if terminal.term.is_empty() {
            terminal.term = "xterm-256color".to_owned();
        }
    }
    if spec.on_full() == pb::OnFull::Unspecified {
        let default = match start {
            Start::Run => pb::OnFull::Block,
            Start::Detached => pb::OnFull::DropOldest,
        };
        spec.set_on_full(default);
    }
    if spec.on_disconnect() == pb::OnDisconnect::Unspecified {
        spec.set_on_disconnect(pb::OnDisconnect::Keep);
    }
    if spec.stragglers() == pb::Stragglers::Unspecified {
        spec.set_stragglers(pb::Stragglers::Kill);
    }
    spec
}

/// The documented minimum, then the workspace's, then the terminal's, then the exec's own: later ones win.
fn environment(
    exec_id: &str,
    skill: Option<&str>,
    workspace: &BTreeMap<String, String>,
    spec: &pb::ExecSpec,
) -> Vec<String> {
    let run_dir = format!("{}/{exec_id}", paths::RUNS_DIR);
    let mut env: BTreeMap<&str, String> = BTreeMap::from([
        ("HOME", paths::WORK_DIR.to_owned()),
        ("INPUTS_DIR", paths::INPUTS_DIR.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("OUTPUT_DIR", paths::OUTPUT_DIR.to_owned()),
        ("PATH", PATH.to_owned()),
        ("RUN_DIR", run_dir),
        ("SKILLS_DIR", paths::SKILLS_DIR.to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("USER", "skill".to_owned()),
        ("WORKSPACE_DIR", paths::WORKSPACE_DIR.to_owned()),
        ("WORK_DIR", paths::WORK_DIR.to_owned()),
    ]);
    if let Some(name) = skill {
        let dir = format!("{}/{name}", paths::SKILLS_DIR);
        env.insert("PATH", format!("{dir}/.venv/bin:{PATH}:{dir}/bin"));
        env.insert("VIRTUAL_ENV", format!("{dir}/.venv"));
        env.insert("SKILL_NAME", name.to_owned());
        env.insert("CLAUDE_SKILL_DIR", dir.clone());
        env.insert("SKILL_DIR", dir);
    }
    for (name, value) in workspace {
        env.insert(name, value.clone());
    }
    if let Some(terminal) = &spec.terminal {
        env.insert("TERM", terminal.term.clone());
    }
    for (name, value) in &spec.env {
        env.insert(name, value.clone());
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ExecConfig {
        let text = "execs.timeout_max = \"10m\"\n";
        crate::config::Config::from_toml(text)
            .expect("good")
            .config
            .execs
    }

    fn resolved(spec: pb::ExecSpec, start: Start) -> Result<guest::StartExecRequest> {
        let config = config();
        let env = BTreeMap::from([
            ("TEAM".to_owned(), "a".to_owned()),
            ("BOTH".to_owned(), "workspace".to_owned()),
        ]);
        let skills = BTreeMap::from([("csv-report".to_owned(), "sha256:0".to_owned())]);
        resolve(
            "e1".into(),
            vec![1],
            spec,
            start,
            Surroundings {
                env: &env,
                skills: &skills,
                config: &config,
            },
        )
    }

    fn shell(text: &str) -> pb::ExecSpec {
        pb::ExecSpec {
            shell: text.into(),
            ..Default::default()
        }
    }

    #[test]
    fn environment_is_the_documented_minimum() {
        let request = resolved(shell("env"), Start::Run).expect("good");
        let names: Vec<&str> = request
            .env
            .iter()
            .filter_map(|pair| Some(pair.split_once('=')?.0))
            .collect();
        let expected = [
            "BOTH",
            "HOME",
            "INPUTS_DIR",
            "LANG",
            "OUTPUT_DIR",
            "PATH",
            "RUN_DIR",
            "SKILLS_DIR",
            "TEAM",
            "TMPDIR",
            "USER",
            "WORKSPACE_DIR",
            "WORK_DIR",
        ];
        assert_eq!(names, expected);
        assert!(
            request
                .env
                .contains(&"RUN_DIR=/workspace/runs/e1".to_owned())
        );
        assert_eq!(request.argv, ["bash", "-c", "env"]);
    }

    #[test]
    fn a_skill_sets_cwd_and_its_variables() {
        let spec = pb::ExecSpec {
            skill: "csv-report".into(),
            ..shell("x")
        };
        let request = resolved(spec, Start::Run).expect("good");
        assert_eq!(request.cwd, "/workspace/skills/csv-report");
        for pair in [
            "SKILL_NAME=csv-report",
            "SKILL_DIR=/workspace/skills/csv-report",
            "CLAUDE_SKILL_DIR=/workspace/skills/csv-report",
            "VIRTUAL_ENV=/workspace/skills/csv-report/.venv",
        ] {
            assert!(request.env.contains(&pair.to_owned()), "{pair}");
        }
        let path = request
            .env
            .iter()
            .find(|pair| pair.starts_with("PATH="))
            .expect("PATH");
        assert!(
            path.starts_with("PATH=/workspace/skills/csv-report/.venv/bin:"),
            "{path}"
        );
        assert!(
            path.ends_with(":/workspace/skills/csv-report/bin"),
            "{path}"
        );
    }

    #[test]
    fn a_terminal_has_a_size_and_a_name() {
        let with = |terminal, env: &[(&str, &str)]| {
            let env = env
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            let spec = pb::ExecSpec {
                terminal,
                env: env.collect(),
                ..shell("x")
            };
            let request = resolved(spec, Start::Run).expect("good");
            let term = request
                .env
                .iter()
                .find_map(|pair| pair.strip_prefix("TERM="));
            let term = term.map(str::to_owned);
            (request.spec.expect("spec").terminal, term)
        };
        assert_eq!(with(None, &[]), (None, None));
        let (terminal, term) = with(Some(pb::Terminal::default()), &[]);
        let expected = pb::Terminal {
            rows: 24,
            cols: 80,
            term: "xterm-256color".into(),
        };
        assert_eq!(
            (terminal, term.as_deref()),
            (Some(expected), Some("xterm-256color"))
        );
        let given = pb::Terminal {
            rows: 7,
            cols: 9,
            term: "vt100".into(),
        };
        let (terminal, term) = with(Some(given.clone()), &[]);
        assert_eq!(
            (terminal.as_ref(), term.as_deref()),
            (Some(&given), Some("vt100"))
        );
        let (_, term) = with(Some(given), &[("TERM", "dumb")]);
        assert_eq!(term.as_deref(), Some("dumb"));
    }

    #[test]
    fn own_variables_win_over_the_workspaces() {
        let spec = pb::ExecSpec {
            env: [
                ("BOTH".into(), "own".into()),
                ("HOME".into(), "/tmp".into()),
            ]
            .into(),
            ..shell("x")
        };
        let request = resolved(spec, Start::Run).expect("good");
        assert!(request.env.contains(&"BOTH=own".to_owned()));
        assert!(request.env.contains(&"HOME=/tmp".to_owned()));
        assert_eq!(
            request
                .env
                .iter()
                .filter(|pair| pair.starts_with("BOTH="))
                .count(),
            1
        );
    }

    #[test]
    fn cwd_stays_in_the_workspace() {
        let cases = [
            ("", "/workspace/work"),
            ("out", "/workspace/out"),
            ("$WORK_DIR/x", "/workspace/work/x"),
            ("/workspace/out/a", "/workspace/out/a"),
            ("$RUN_DIR", "/workspace/runs/e1"),
        ];
        for (cwd, expected) in cases {
            let request = resolved(
                pb::ExecSpec {
                    cwd: cwd.into(),
                    ..shell("x")
                },
                Start::Run,
            )
            .expect(cwd);
            assert_eq!(request.cwd, expected, "{cwd}");
        }
        for cwd in ["..", "/etc", "a/../../..", "/workspace/../etc"] {
            let error = resolved(
                pb::ExecSpec {
                    cwd: cwd.into(),
                    ..shell("x")
                },
                Start::Run,
            )
            .expect_err(cwd);
            assert!(matches!(error, Error::PathEscapes { .. }), "{cwd}: {error}");
        }
    }

    #[test]
    fn defaults_and_clamps_are_visible() {
        let long = Some(prost_types::Duration {
            seconds: 100_000,
            nanos: 0,
        });
        let spec = pb::ExecSpec {
            timeout: long,
            ..shell("x")
        };
        let effective = resolved(spec, Start::Detached)
            .expect("good")
            .spec
            .expect("spec");
        assert_eq!(effective.timeout.map(|timeout| timeout.seconds), Some(600));
        assert_eq!(effective.on_full(), pb::OnFull::DropOldest);
        assert_eq!(effective.stragglers(), pb::Stragglers::Kill);
        assert_eq!(
            effective.retain.map(|retain| retain.stdout_bytes),
            Some(4 << 20)
        );
        let run = resolved(shell("x"), Start::Run)
            .expect("good")
            .spec
            .expect("spec");
        assert_eq!(run.on_full(), pb::OnFull::Block);
        assert_eq!(run.timeout.map(|timeout| timeout.seconds), Some(300));
    }

    #[test]
    fn a_skill_that_is_not_staged_is_not_found() {
        let error = resolved(
            pb::ExecSpec {
                skill: "other".into(),
                ..shell("x")
            },
            Start::Run,
        )
        .expect_err("not staged");
        assert!(matches!(error, Error::SkillNotStaged { .. }), "{error}");
    }
}
