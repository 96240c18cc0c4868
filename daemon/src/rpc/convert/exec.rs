//! Checks of exec requests, without a look at the workspace. `crate::exec` resolves the checked spec in a workspace,
//! and checks there what depends on it: the working directory, and lengths once placeholders are replaced.

use std::time::Duration;

use prost::Message;
use sha2::{Digest, Sha256};
use skilld_proto::v1 as pb;

use super::exec_io::check_offsets;
use super::skill::{skill_name, skill_part};
use super::violation_collector::environment_bytes;
use super::{ViolationCollector, file};
use crate::access::{PROGRAM_BYTES_MAX, PROGRAMS_MAX, RunPolicy, is_program};
use crate::config::ExecConfig;
use crate::error::Result;
use crate::exec::{narrow_programs, script, script_arguments};
use crate::exec_launch::ExecRequest;
use crate::skills;
use crate::workspace::WorkspaceId;

/// Maximum number of arguments.
pub const ARGV_MAX: usize = 4096;
/// Maximum length of one argument and of a shell text, in bytes: Linux's MAX_ARG_STRLEN.
pub const ARG_BYTES_MAX: usize = crate::exec::ARG_BYTES_MAX;
/// Maximum size of arguments and environment together, in bytes.
pub const ARGS_BYTES_MAX: usize = 1 << 20;
/// Maximum number of environment variables.
pub const ENV_MAX: usize = 1024;
/// Maximum size of the environment, in bytes.
pub const ENV_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a stdin that the request carries, in bytes.
pub const STDIN_BYTES_MAX: usize = 1 << 20;
/// Longest time that a request may have an ended exec kept, in memory that the workspace's commands share.
pub const RETAIN_AFTER_EXIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time between SIGTERM and SIGKILL.
const GRACE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of rows and of columns of a terminal.
pub const TERMINAL_MAX: u32 = 10_000;
/// Maximum length of the variable TERM, in bytes.
const TERM_BYTES_MAX: usize = 64;
/// Maximum length of a skill's name, in bytes.
const SKILL_BYTES_MAX: usize = 64;

/// Request for an exec, as RunExec and StartExec have it.
#[derive(Debug)]
pub struct RequestedExec<'a> {
    /// Name of the workspace; `None` for one with the id of the exec.
    pub workspace: Option<&'a str>,
    /// Id of the exec; empty to let the daemon choose one.
    pub exec_id: &'a str,
    /// Specification; `None` is a violation.
    pub spec: Option<pb::ExecSpec>,
    /// Format of the output in events.
    pub format: i32,
}

/// Checks a request for an exec, as far as that needs no workspace, and narrows it to the policy of the caller's tenant.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes`.
pub fn check_exec(
    requested: RequestedExec<'_>,
    policy: &RunPolicy,
    config: &ExecConfig,
) -> Result<ExecRequest> {
    let mut violations = ViolationCollector::default();
    let named = requested
        .workspace
        .map(|name| violations.workspace_name("parent", name));
    let is_new = requested.exec_id.is_empty();
    let exec_id = match requested.exec_id {
        "" => Some(uuid::Uuid::now_v7().to_string()),
        given => violations.id("exec_id", given),
    };
    let workspace = named.unwrap_or_else(|| exec_id.clone().map(WorkspaceId::new));
    let format = violations.known_enum("format", requested.format);
    if requested.spec.is_none() {
        violations.add("spec", "is missing");
    }
    let spec = requested.spec.map(|spec| {
        let mut spec = check_spec(&mut violations, spec, config);
        // A repeated request has the same plan, too.
        let digest = Sha256::digest(spec.encode_to_vec()).to_vec();
        // Only checked: the client collects, after the end.
        if let Some(planned) = spec.planned_collect.take() {
            let id = exec_id.as_deref().unwrap_or_default();
            violations.take(file::check_planned_collect(planned, id));
        }
        violations.take(policy.check_env("spec.env", &spec.env));
        violations.take(narrow_programs(&mut spec, policy));
        (spec, digest)
    });
    let checked = workspace.zip(exec_id).zip(format).zip(spec);
    let (((workspace, exec_id), format), (spec, digest)) = violations.finish_with(checked)?;
    Ok(ExecRequest {
        workspace,
        exec_id,
        is_new,
        digest,
        spec,
        format,
    })
}

/// Checks a spec as far as that needs no workspace. Returns it with its texts in their normal forms.
fn check_spec(
    violations: &mut ViolationCollector,
    mut spec: pb::ExecSpec,
    config: &ExecConfig,
) -> pb::ExecSpec {
    check_skill(violations, &mut spec);
    spec.shell = normalise_shell_text(&spec.shell);
    check_command(violations, &spec);
    violations.environment("spec.env", &spec.env, ENV_MAX, ENV_BYTES_MAX);
    check_secret_env(violations, &spec);
    check_stdin(violations, &spec);
    check_terminal(violations, &spec);
    violations.positive_duration("spec.timeout", spec.timeout);
    violations.positive_duration("spec.no_output_timeout", spec.no_output_timeout);
    check_limits(violations, spec.limits.as_ref());
    check_retain(violations, spec.retention.as_ref(), config);
    violations.known_enum::<pb::OutputFullPolicy>("spec.on_full", spec.on_full);
    violations.known_enum::<pb::DisconnectPolicy>("spec.on_disconnect", spec.on_disconnect);
    violations.known_enum::<pb::StragglerPolicy>("spec.stragglers", spec.stragglers);
    check_programs(violations, spec.programs.as_ref());
    spec
}

/// Checks the name of the skill, and replaces it by that of its folder in the workspace.
fn check_skill(violations: &mut ViolationCollector, spec: &mut pb::ExecSpec) {
    if spec.skill.is_empty() {
        return;
    }
    let Some(name) = violations.take(skill_part("spec.skill", &spec.skill)) else {
        return;
    };
    let folder = skills::staged_folder(name);
    if !is_skill_name(&folder) {
        violations.add(
            "spec.skill",
            "can be no skill's name: it needs a letter or digit, and has no control characters and no part `..`",
        );
    }
    spec.skill = skill_name(&folder);
}

fn check_secret_env(violations: &mut ViolationCollector, spec: &pb::ExecSpec) {
    let count = spec.secret_env.len();
    if count > ENV_MAX {
        let message = format_args!("{count} names; at most {ENV_MAX}");
        violations.add("spec.secret_env", message);
        return;
    }
    for (index, name) in spec.secret_env.iter().enumerate() {
        if !spec.env.contains_key(name) {
            let field = format!("spec.secret_env[{index}]");
            violations.add(field, "is no variable in spec.env");
        }
    }
}

fn check_stdin(violations: &mut ViolationCollector, spec: &pb::ExecSpec) {
    let bytes = spec.stdin_data.len();
    if bytes > STDIN_BYTES_MAX {
        let message =
            format_args!("{bytes} bytes; at most {STDIN_BYTES_MAX}: stage a file instead");
        violations.add("spec.stdin_data", message);
    }
    if bytes > 0 && spec.open_stdin {
        let message = "is given with open_stdin: write it with StreamStdin";
        violations.add("spec.stdin_data", message);
    }
}

/// Returns a shell text as bash reads it: with the line ends of Linux, and without a byte order mark. `argv` stays as
/// it is.
fn normalise_shell_text(text: &str) -> String {
    text.strip_prefix('\u{feff}')
        .unwrap_or(text)
        .replace("\r\n", "\n")
}

fn check_command(violations: &mut ViolationCollector, spec: &pb::ExecSpec) {
    match (spec.argv.is_empty(), spec.shell.is_empty(), &spec.script) {
        (true, true, None) => {
            violations.add("spec.argv", "is empty: give argv, shell or script");
        }
        (false, false, _) => violations.add("spec.shell", "is given with argv: give one of them"),
        (false, _, Some(_)) | (_, false, Some(_)) => violations.add(
            "spec.script",
            "is given with argv or shell: give one of them; arguments of a script are in spec.script.argv",
        ),
        _ => {}
    }
    let env_bytes = environment_bytes(&spec.env);
    check_words(violations, "spec.argv", &spec.argv, env_bytes);
    if spec.argv.first().is_some_and(String::is_empty) {
        violations.add("spec.argv[0]", "is empty: it names the program");
    }
    check_word(violations, || "spec.shell".into(), &spec.shell);
    if let Some(script) = &spec.script {
        check_script(violations, spec, script, env_bytes);
    }
}

/// Checks the words of a command line, which share the kernel's limit with `env_bytes` of environment.
fn check_words(
    violations: &mut ViolationCollector,
    field: &str,
    argv: &[String],
    env_bytes: usize,
) {
    if argv.len() > ARGV_MAX {
        let message = format_args!("{} arguments; at most {ARGV_MAX}", argv.len());
        violations.add(field, message);
        return;
    }
    for (index, arg) in argv.iter().enumerate() {
        check_word(violations, || format!("{field}[{index}]"), arg);
    }
    let bytes = argv.iter().map(|arg| arg.len() + 1).sum::<usize>() + env_bytes;
    if bytes > ARGS_BYTES_MAX {
        let message = format_args!("{bytes} bytes with the environment; at most {ARGS_BYTES_MAX}");
        violations.add(field, message);
    }
}

fn check_word(violations: &mut ViolationCollector, field: impl Fn() -> String, text: &str) {
    if text.len() > ARG_BYTES_MAX {
        let bytes = text.len();
        let message = format_args!(
            "{bytes} bytes; at most {ARG_BYTES_MAX}: pass long text on stdin or in a file"
        );
        violations.add(field(), message);
    }
    if text.contains('\0') {
        violations.add(field(), "has a NUL byte");
    }
}

/// Checks a script, and the command line and environment that its arguments become.
fn check_script(
    violations: &mut ViolationCollector,
    spec: &pb::ExecSpec,
    script: &pb::ExecScript,
    env_bytes: usize,
) {
    if spec.skill.is_empty() {
        violations.add("spec.skill", "is empty: a script is one of a staged skill");
    }
    violations.take(script::normalise_script_path(&script.path));
    violations.known_enum::<pb::ScriptCwd>("spec.script.cwd", script.cwd);
    check_words(violations, "spec.script.argv", &script.argv, 0);
    let made = violations
        .take(script_arguments::build_script_arguments(script))
        .unwrap_or_default();
    for (name, _) in &made.env {
        if spec.env.contains_key(name) {
            let message = "is what an argument in spec.script.args becomes: give one of them";
            violations.add(format!("spec.env[{name:?}]"), message);
        }
    }
    let env_bytes =
        env_bytes + environment_bytes(made.env.iter().map(|(name, value)| (name, value)));
    // The words of spec.script.argv come first and were checked above.
    let words = made.argv.get(script.argv.len()..).unwrap_or_default();
    check_words(violations, "spec.script.args", words, env_bytes);
}

fn is_skill_name(name: &str) -> bool {
    name.len() <= SKILL_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Checks a terminal: 0 rows or columns mean the default, and the type becomes the variable TERM.
fn check_terminal(violations: &mut ViolationCollector, spec: &pb::ExecSpec) {
    let Some(terminal) = &spec.terminal else {
        return;
    };
    violations.number_or("spec.terminal.rows", terminal.rows, 0, TERMINAL_MAX);
    violations.number_or("spec.terminal.cols", terminal.cols, 0, TERMINAL_MAX);
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    if terminal.term.len() > TERM_BYTES_MAX || !terminal.term.bytes().all(is_allowed) {
        let message = format_args!("must be at most {TERM_BYTES_MAX} bytes of `[A-Za-z0-9._+-]`");
        violations.add("spec.terminal.term", message);
    }
    if !spec.stdin_data.is_empty() {
        violations.add(
            "spec.stdin_data",
            "cannot be given with a terminal, which is its program's stdin: use open_stdin and WriteStdin",
        );
    }
}

/// Checks the new size of a terminal.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_terminal_size(rows: u32, cols: u32) -> Result<()> {
    let mut violations = ViolationCollector::default();
    for (field, size) in [("rows", rows), ("cols", cols)] {
        if !(1..=TERMINAL_MAX).contains(&size) {
            violations.add(field, format_args!("must be 1 to {TERMINAL_MAX}"));
        }
    }
    violations.finish()
}

fn check_limits(violations: &mut ViolationCollector, limits: Option<&pb::ExecLimits>) {
    let limits = limits.copied().unwrap_or_default();
    for (field, value) in [
        ("output_bytes", limits.output_bytes),
        ("cpu_seconds", limits.cpu_seconds),
        ("file_bytes", limits.file_bytes),
        ("open_files", limits.open_files),
        ("processes", limits.processes),
        ("address_space_bytes", limits.address_space_bytes),
    ] {
        violations.not_negative(&format!("spec.limits.{field}"), value);
    }
}

fn check_retain(
    violations: &mut ViolationCollector,
    retain: Option<&pb::ExecRetention>,
    config: &ExecConfig,
) {
    let Some(retain) = retain else { return };
    let max = config.retain_bytes_max();
    violations.number_or("spec.retention.stdout_bytes", retain.stdout_bytes, 0, max);
    violations.number_or("spec.retention.stderr_bytes", retain.stderr_bytes, 0, max);
    let field = "spec.retention.after_exit";
    let after_exit = violations.positive_duration(field, retain.after_exit);
    if after_exit.is_some_and(|after_exit| after_exit > RETAIN_AFTER_EXIT_MAX) {
        let max = humantime::format_duration(RETAIN_AFTER_EXIT_MAX);
        violations.add(field, format_args!("must be at most {max}"));
    }
}

/// Checks the lists of programs. An entry that names no program would permit or deny nothing without a message.
fn check_programs(violations: &mut ViolationCollector, programs: Option<&pb::ExecPrograms>) {
    let Some(programs) = programs else { return };
    for (list, entries) in [("allowed", &programs.allowed), ("denied", &programs.denied)] {
        let field = format!("spec.programs.{list}");
        if entries.len() > PROGRAMS_MAX {
            let message = format_args!("{} entries; at most {PROGRAMS_MAX}", entries.len());
            violations.add(field, message);
            continue;
        }
        for (index, entry) in entries.iter().enumerate() {
            if !is_program(entry) {
                let message = format_args!(
                    "must be a name without a slash or an absolute path, of at most {PROGRAM_BYTES_MAX} bytes"
                );
                violations.add(format!("{field}[{index}]"), message);
            }
        }
    }
}

/// Checks the format of an output stream, its offsets, and the handling of gaps in it.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_attach(request: &pb::AttachExecRequest) -> Result<pb::OutputFormat> {
    let mut violations = ViolationCollector::default();
    let format = violations.known_enum("format", request.format);
    violations.known_enum::<pb::GapPolicy>("gap_policy", request.gap_policy);
    check_offsets(&mut violations, request.offsets);
    violations.finish_with(format)
}

/// Checks the signal and the target of a SignalExec.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_signal(request: &pb::SignalExecRequest) -> Result<()> {
    let mut violations = ViolationCollector::default();
    if !(1..=64).contains(&request.signal) {
        violations.add("signal", "must be 1 to 64");
    }
    violations.known_enum::<pb::signal_exec_request::Target>("target", request.target);
    violations.request_id("request_id", &request.request_id);
    violations.finish()
}

/// Checks the grace period of a KillExec: `None` means the default, 0 kills at once.
///
/// # Errors
/// `Invalid`.
pub fn check_kill_grace(grace: Option<prost_types::Duration>) -> Result<()> {
    let mut violations = ViolationCollector::default();
    violations.duration_within("grace", grace, Duration::ZERO, GRACE_MAX);
    violations.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn config() -> ExecConfig {
        let text = "execs.timeout_max = \"10m\"\n";
        crate::config::Config::from_toml(text)
            .expect("good")
            .config
            .execs
    }

    fn requested(spec: pb::ExecSpec) -> RequestedExec<'static> {
        RequestedExec {
            workspace: Some("workspaces/w"),
            exec_id: "",
            spec: Some(spec),
            format: 0,
        }
    }

    fn check(spec: pb::ExecSpec) -> Result<pb::ExecSpec> {
        check_exec(requested(spec), &RunPolicy::default(), &config()).map(|checked| checked.spec)
    }

    fn faults(spec: pb::ExecSpec) -> Vec<String> {
        faults_of(requested(spec))
    }

    /// Fields that are refused, in order.
    fn faults_of(requested: RequestedExec<'_>) -> Vec<String> {
        match check_exec(requested, &RunPolicy::default(), &config()) {
            Ok(_) => vec![],
            Err(Error::Invalid(violations)) => violations
                .into_iter()
                .map(|violation| violation.field)
                .collect(),
            Err(other) => vec![other.to_string()],
        }
    }

    fn argv(args: &[&str]) -> pb::ExecSpec {
        pb::ExecSpec {
            argv: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn a_spec_has_exactly_one_command() {
        assert_eq!(faults(argv(&["true"])), Vec::<String>::new());
        assert_eq!(
            faults(pb::ExecSpec {
                shell: "echo hi".into(),
                ..Default::default()
            }),
            Vec::<String>::new()
        );
        assert_eq!(faults(pb::ExecSpec::default()), ["spec.argv"]);
        assert_eq!(
            faults(pb::ExecSpec {
                shell: "x".into(),
                ..argv(&["x"])
            }),
            ["spec.shell"]
        );
        assert_eq!(faults(argv(&[""])), ["spec.argv[0]"]);
    }

    fn script(path: &str) -> pb::ExecSpec {
        pb::ExecSpec {
            skill: "skills/s".into(),
            script: Some(pb::ExecScript {
                path: path.into(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_script_is_one_of_a_skill_and_the_only_command() {
        assert_eq!(faults(script("scripts/x.py")), Vec::<String>::new());
        let mut nameless = script("x.py");
        nameless.skill.clear();
        assert_eq!(faults(nameless), ["spec.skill"]);
        let mut both = script("x.py");
        both.shell = "x".into();
        assert_eq!(faults(both), ["spec.script"]);
        let mut both = script("x.py");
        both.argv = vec!["x".into()];
        assert_eq!(faults(both), ["spec.script"]);
        for path in ["", "../x", "/x", "a\\b"] {
            assert_eq!(faults(script(path)), ["spec.script.path"], "{path}");
        }
    }

    #[test]
    fn converted_arguments_are_checked_with_the_rest() {
        let arg = |key: &str, text: String| pb::ScriptArg {
            key: key.into(),
            value: Some(prost_types::Value {
                kind: Some(prost_types::value::Kind::StringValue(text)),
            }),
            literal: String::new(),
        };
        let with = |args: Vec<pb::ScriptArg>| {
            let mut spec = script("x.py");
            spec.env = [("SKILL_ARG_A".into(), "x".into())].into();
            if let Some(script) = &mut spec.script {
                script.args = args;
                script.argv = vec!["\0".into()];
                script.cwd = 99;
            }
            faults(spec)
        };
        let always = ["spec.script.cwd", "spec.script.argv[0]"];
        assert_eq!(with(vec![]), always);
        assert_eq!(
            with(vec![arg("a", "y".into())]),
            [always[0], always[1], "spec.env[\"SKILL_ARG_A\"]"]
        );
        let large = |n: usize| arg(&format!("k{n}"), "x".repeat(120 << 10));
        assert_eq!(
            with((0..5).map(large).collect()),
            [always[0], always[1], "spec.script.args"]
        );
    }

    #[test]
    fn a_skill_is_used_in_the_folder_of_its_name() {
        for (skill, folder) in [
            ("deploy", Some("deploy")),
            ("acme:deploy", Some("acme--deploy")),
            ("acme--deploy", Some("acme--deploy")),
            ("acme:../deploy", None),
            ("a:b:c", Some("a-b-c")),
            ("parent/child", Some("parent-child")),
            ("My Skill", Some("my-skill")),
            ("数据报表", Some("skill-ef1c3801")),
            ("数据报表\0", None),
        ] {
            let spec = pb::ExecSpec {
                skill: format!("skills/{skill}"),
                ..argv(&["true"])
            };
            let checked = check(spec).ok().map(|spec| spec.skill);
            let expected = folder.map(|folder| format!("skills/{folder}"));
            assert_eq!(checked, expected, "{skill}");
        }
    }

    #[test]
    fn line_ends_of_windows_count_as_line_ends_of_a_shell_text() {
        for (shell, read) in [
            ("cd work\r\nls\r\n", "cd work\nls\n"),
            ("\u{feff}ls", "ls"),
            ("printf 'a\rb'", "printf 'a\rb'"),
        ] {
            let spec = pb::ExecSpec {
                shell: shell.into(),
                ..Default::default()
            };
            let checked = check(spec).expect("good");
            assert_eq!(checked.shell, read, "{shell:?}");
        }
        let words = argv(&["printf", "a\r\nb"]);
        let checked = check(words.clone()).expect("good");
        assert_eq!(checked.argv, words.argv);
    }

    #[test]
    fn a_variable_that_no_program_can_be_given_is_refused_by_name() {
        let with = |bytes: usize| {
            faults(pb::ExecSpec {
                env: [("A".to_owned(), "x".repeat(bytes))].into(),
                ..argv(&["true"])
            })
        };
        assert_eq!(with(ARG_BYTES_MAX - 2), Vec::<String>::new());
        assert_eq!(with(ARG_BYTES_MAX - 1), ["spec.env[\"A\"]"]);
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let spec = pb::ExecSpec {
            env: [("A B".to_owned(), String::new())].into(),
            secret_env: vec!["A B".to_owned(), "B".to_owned()],
            skill: "skills/../x".into(),
            timeout: Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            }),
            limits: Some(pb::ExecLimits {
                open_files: -1,
                ..Default::default()
            }),
            retention: Some(pb::ExecRetention {
                stdout_bytes: i64::MAX,
                ..Default::default()
            }),
            on_full: 99,
            planned_collect: Some(pb::CollectSpec::default()),
            ..argv(&["a\0b"])
        };
        let requested = RequestedExec {
            workspace: Some("workspaces/a b"),
            exec_id: "a b",
            format: 99,
            ..requested(spec)
        };
        let expected = [
            "parent",
            "exec_id",
            "format",
            "spec.skill",
            "spec.argv[0]",
            "spec.env[\"A B\"]",
            "spec.secret_env[1]",
            "spec.timeout",
            "spec.limits.open_files",
            "spec.retention.stdout_bytes",
            "spec.on_full",
            "spec.planned_collect.globs",
        ];
        assert_eq!(faults_of(requested), expected);
        let requested = RequestedExec {
            workspace: Some(""),
            exec_id: "",
            spec: None,
            format: 0,
        };
        assert_eq!(faults_of(requested), ["parent", "spec"]);
        assert_eq!(
            faults(pb::ExecSpec {
                skill: "bare".into(),
                ..argv(&["x"])
            }),
            ["spec.skill"]
        );
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(
            faults(argv(&["x".repeat(ARG_BYTES_MAX + 1).as_str()])),
            ["spec.argv[0]"]
        );
        let many = vec!["x"; ARGV_MAX + 1];
        assert_eq!(faults(argv(&many)), ["spec.argv"]);
        let hostile = vec!["\0"; 10 * ARGV_MAX];
        assert_eq!(faults(argv(&hostile)), ["spec.argv"]);
        let large = "x".repeat(ARG_BYTES_MAX);
        assert_eq!(faults(argv(&[large.as_str(); 9])), ["spec.argv"]);
        let with_stdin = |bytes, open_stdin| pb::ExecSpec {
            stdin_data: vec![0; bytes].into(),
            open_stdin,
            ..argv(&["x"])
        };
        let large = faults(with_stdin(STDIN_BYTES_MAX + 1, false));
        assert_eq!(large, ["spec.stdin_data"]);
        assert_eq!(faults(with_stdin(1, true)), ["spec.stdin_data"]);
    }

    #[test]
    fn a_list_of_programs_has_names_and_absolute_paths() {
        let with = |entries: &[&str]| {
            let list: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
            let programs = Some(pb::ExecPrograms {
                allowed: list.clone(),
                denied: list,
            });
            faults(pb::ExecSpec {
                programs,
                ..argv(&["x"])
            })
        };
        assert_eq!(
            with(&["ls", "[", "/usr/bin/wc", "a b"]),
            Vec::<String>::new()
        );
        for entry in ["", "bin/x", "./x", "/usr/bin/", "a\0b", &"x".repeat(4097)] {
            let fields = ["spec.programs.allowed[0]", "spec.programs.denied[0]"];
            assert_eq!(with(&[entry]), fields, "{entry:?}");
        }
        let fields = ["spec.programs.allowed", "spec.programs.denied"];
        assert_eq!(with(&["x"; PROGRAMS_MAX + 1]), fields);
    }

    #[test]
    fn a_terminal_has_a_size_and_a_name_and_no_other_stdin() {
        let with = |rows, cols, term: &str| pb::ExecSpec {
            terminal: Some(pb::ExecTerminal {
                rows,
                cols,
                term: term.into(),
            }),
            ..argv(&["x"])
        };
        assert_eq!(faults(with(0, 0, "")), Vec::<String>::new());
        assert_eq!(
            faults(with(10_000, 1, "screen.xterm-256color+x_1")),
            Vec::<String>::new()
        );
        assert_eq!(
            faults(with(10_001, u32::MAX, "a b")),
            [
                "spec.terminal.rows",
                "spec.terminal.cols",
                "spec.terminal.term"
            ]
        );
        assert_eq!(faults(with(1, 1, &"x".repeat(65))), ["spec.terminal.term"]);
        let both = pb::ExecSpec {
            stdin_data: "x".into(),
            ..with(1, 1, "")
        };
        assert_eq!(faults(both), ["spec.stdin_data"]);
        assert!(check_terminal_size(1, 10_000).is_ok());
        for (rows, cols) in [(0, 1), (1, 0), (10_001, 1), (1, u32::MAX)] {
            assert!(check_terminal_size(rows, cols).is_err(), "{rows} {cols}");
        }
    }
}
