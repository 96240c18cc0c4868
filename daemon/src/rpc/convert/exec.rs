//! Exec requests → checked specs. What a spec becomes in a workspace is decided in `exec.rs`.

use std::time::Duration;

use skilld_proto::v1 as pb;

use super::{Faults, duration, env};
use crate::config::ExecConfig;
use crate::error::{Error, Result};
use crate::exec::{arguments, script};

/// Most arguments.
pub const ARGV_MAX: usize = 4096;
/// Longest argument, and longest shell text, bytes: Linux's MAX_ARG_STRLEN.
pub const ARG_BYTES_MAX: usize = crate::exec::ARG_BYTES_MAX;
/// Arguments and environment together, bytes.
pub const ARGS_BYTES_MAX: usize = 1 << 20;
/// Most variables.
pub const ENV_MAX: usize = 1024;
/// Largest environment, bytes.
pub const ENV_BYTES_MAX: usize = 256 << 10;
/// Largest stdin that is given with the request, bytes.
pub const STDIN_BYTES_MAX: usize = 1 << 20;
/// Longest time between TERM and KILL.
const GRACE_MAX: Duration = Duration::from_secs(60);
/// Most rows, and most columns, of a terminal.
pub const TERMINAL_MAX: u32 = 10_000;
/// Longest TERM, bytes.
const TERM_BYTES_MAX: usize = 64;
/// Most entries of a list of programs.
pub const PROGRAMS_MAX: usize = 256;
/// Longest of them, bytes: Linux's PATH_MAX.
const PROGRAM_BYTES_MAX: usize = 4096;
/// Longest name of a skill, bytes.
const SKILL_BYTES_MAX: usize = 64;

/// Checks a spec on its own: everything that needs no workspace to look at.
///
/// # Errors
/// `Invalid` with every fault.
pub fn spec(spec: Option<pb::ExecSpec>, config: &ExecConfig) -> Result<pb::ExecSpec> {
    let spec = spec.ok_or_else(|| Error::invalid("spec", "is missing"))?;
    let mut faults = Faults::default();
    command(&mut faults, &spec);
    env(&mut faults, "spec.env", &spec.env, ENV_MAX, ENV_BYTES_MAX);
    if !spec.skill.is_empty() && !is_skill_name(&spec.skill) {
        faults.add("spec.skill", "is not a skill's name");
    }
    if let Some(pb::stdin::Source::Data(data)) =
        spec.stdin.as_ref().and_then(|stdin| stdin.source.as_ref())
        && data.len() > STDIN_BYTES_MAX
    {
        faults.add(
            "spec.stdin.data",
            format!(
                "{} bytes; at most {STDIN_BYTES_MAX}: stage a file instead",
                data.len()
            ),
        );
    }
    terminal(&mut faults, &spec);
    faults.take("spec.timeout", duration("spec.timeout", spec.timeout));
    faults.take(
        "spec.no_output_timeout",
        duration("spec.no_output_timeout", spec.no_output_timeout),
    );
    limits(&mut faults, spec.limits.as_ref());
    retain(&mut faults, spec.retain.as_ref(), config);
    enums(&mut faults, &spec);
    programs(&mut faults, spec.programs.as_ref());
    faults.finish()?;
    Ok(spec)
}

fn command(faults: &mut Faults, spec: &pb::ExecSpec) {
    match (spec.argv.is_empty(), spec.shell.is_empty(), &spec.script) {
        (true, true, None) => faults.add("spec.argv", "is empty: give argv, shell or script"),
        (false, false, _) => faults.add("spec.shell", "is given with argv: give one of them"),
        (false, _, Some(_)) | (_, false, Some(_)) => faults.add(
            "spec.script",
            "is given with argv or shell: give one of them; arguments of a script are in spec.script.argv",
        ),
        _ => {}
    }
    let env = spec
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    words(faults, "spec.argv", &spec.argv, env);
    if spec.argv.first().is_some_and(String::is_empty) {
        faults.add("spec.argv[0]", "is empty: it names the program");
    }
    text(faults, || "spec.shell".into(), &spec.shell);
    if let Some(given) = &spec.script {
        script(faults, spec, given, env);
    }
}

/// Checks words of a command line, that have to fit beside `env` bytes of environment.
fn words(faults: &mut Faults, field: &str, argv: &[String], env: usize) {
    if argv.len() > ARGV_MAX {
        let message = format!("{} arguments; at most {ARGV_MAX}", argv.len());
        faults.add(field, message);
        return;
    }
    for (index, arg) in argv.iter().enumerate() {
        text(faults, || format!("{field}[{index}]"), arg);
    }
    let bytes: usize = argv.iter().map(|arg| arg.len() + 1).sum();
    if bytes + env > ARGS_BYTES_MAX {
        let bytes = bytes + env;
        let message = format!("{bytes} bytes with the environment; at most {ARGS_BYTES_MAX}");
        faults.add(field, message);
    }
}

/// Checks a script, and what its arguments become.
fn script(faults: &mut Faults, spec: &pb::ExecSpec, script: &pb::Script, env: usize) {
    if spec.skill.is_empty() {
        faults.add("spec.skill", "is empty: a script is one of a staged skill");
    }
    faults.take("spec.script.path", script::normalise(&script.path));
    if pb::ScriptCwd::try_from(script.cwd).is_err() {
        faults.add("spec.script.cwd", "is not a value that this server knows");
    }
    words(faults, "spec.script.argv", &script.argv, 0);
    let made = faults.take("spec.script.args", arguments::arguments(script));
    for (name, _) in made
        .env
        .iter()
        .filter(|(name, _)| spec.env.contains_key(name))
    {
        let message = "is what an argument in spec.script.args becomes: give one of them";
        faults.add(format!("spec.env[{name:?}]"), message);
    }
    let variables = made.env.iter();
    let variables: usize = variables
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    // The raw ones were looked at above.
    let made = made.argv.get(script.argv.len()..).unwrap_or_default();
    words(faults, "spec.script.args", made, env + variables);
}

fn text(faults: &mut Faults, field: impl Fn() -> String, text: &str) {
    if text.len() > ARG_BYTES_MAX {
        faults.add(
            field(),
            format!("{} bytes; at most {ARG_BYTES_MAX}", text.len()),
        );
    }
    if text.contains('\0') {
        faults.add(field(), "has a NUL byte");
    }
}

fn is_skill_name(name: &str) -> bool {
    name.len() <= SKILL_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Its size may be left to the defaults; the name becomes a variable of the environment.
fn terminal(faults: &mut Faults, spec: &pb::ExecSpec) {
    let Some(terminal) = &spec.terminal else {
        return;
    };
    let sizes = [("rows", terminal.rows), ("cols", terminal.cols)];
    for (field, size) in sizes {
        if size > TERMINAL_MAX {
            let field = format!("spec.terminal.{field}");
            faults.add(field, format!("must be 0 to {TERMINAL_MAX}"));
        }
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    if terminal.term.len() > TERM_BYTES_MAX || !terminal.term.bytes().all(good) {
        let allowed = "`[A-Za-z0-9._+-]`";
        faults.add(
            "spec.terminal.term",
            format!("must be at most {TERM_BYTES_MAX} bytes of {allowed}"),
        );
    }
    let stdin = spec.stdin.as_ref().and_then(|stdin| stdin.source.as_ref());
    if matches!(stdin, Some(pb::stdin::Source::Data(_))) {
        faults.add(
            "spec.stdin.data",
            "cannot be given with a terminal, which is its program's stdin: use stdin.open and WriteStdin",
        );
    }
}

/// Checks the new size of a terminal.
///
/// # Errors
/// `Invalid` with every fault.
pub fn size(rows: u32, cols: u32) -> Result<()> {
    let mut faults = Faults::default();
    for (field, size) in [("rows", rows), ("cols", cols)] {
        if !(1..=TERMINAL_MAX).contains(&size) {
            faults.add(field, format!("must be 1 to {TERMINAL_MAX}"));
        }
    }
    faults.finish()
}

fn limits(faults: &mut Faults, limits: Option<&pb::ExecLimits>) {
    let limits = limits.copied().unwrap_or_default();
    let fields = [
        ("output_bytes", limits.output_bytes),
        ("cpu_seconds", limits.cpu_seconds),
        ("file_bytes", limits.file_bytes),
        ("open_files", limits.open_files),
        ("processes", limits.processes),
        ("address_space_bytes", limits.address_space_bytes),
    ];
    for (field, value) in fields {
        if value < 0 {
            faults.add(format!("spec.limits.{field}"), "must not be negative");
        }
    }
}

fn retain(faults: &mut Faults, retain: Option<&pb::Retain>, config: &ExecConfig) {
    let Some(retain) = retain else { return };
    for (field, value) in [
        ("stdout_bytes", retain.stdout_bytes),
        ("stderr_bytes", retain.stderr_bytes),
    ] {
        if !u64::try_from(value).is_ok_and(|value| value <= config.retain_bytes_max) {
            faults.add(
                format!("spec.retain.{field}"),
                format!("must be 0 to {}", config.retain_bytes_max),
            );
        }
    }
    let after = faults.take(
        "spec.retain.after_exit",
        duration("spec.retain.after_exit", retain.after_exit),
    );
    if after.unwrap_or(Duration::ZERO) > config.retain_after_exit_max {
        let max = humantime::format_duration(config.retain_after_exit_max);
        faults.add("spec.retain.after_exit", format!("must be at most {max}"));
    }
}

/// An entry that no program can be would permit nothing, or deny nothing, without a word.
fn programs(faults: &mut Faults, programs: Option<&pb::Programs>) {
    let Some(programs) = programs else { return };
    for (list, entries) in [("allowed", &programs.allowed), ("denied", &programs.denied)] {
        let field = format!("spec.programs.{list}");
        if entries.len() > PROGRAMS_MAX {
            let message = format!("{} entries; at most {PROGRAMS_MAX}", entries.len());
            faults.add(field, message);
            continue;
        }
        for (index, entry) in entries.iter().enumerate() {
            let is_one = !entry.contains('/') || (entry.starts_with('/') && !entry.ends_with('/'));
            let is_text = !entry.is_empty() && !entry.contains('\0');
            if !is_one || !is_text || entry.len() > PROGRAM_BYTES_MAX {
                let allowed = "a name without a slash or an absolute path";
                let message = format!("must be {allowed}, of at most {PROGRAM_BYTES_MAX} bytes");
                faults.add(format!("{field}[{index}]"), message);
            }
        }
    }
}

fn enums(faults: &mut Faults, spec: &pb::ExecSpec) {
    let known = [
        ("spec.on_full", pb::OnFull::try_from(spec.on_full).is_ok()),
        (
            "spec.on_disconnect",
            pb::OnDisconnect::try_from(spec.on_disconnect).is_ok(),
        ),
        (
            "spec.stragglers",
            pb::Stragglers::try_from(spec.stragglers).is_ok(),
        ),
    ];
    for (field, known) in known {
        if !known {
            faults.add(field, "is not a value that this server knows");
        }
    }
}

/// Checks an output format.
///
/// # Errors
/// `Invalid`.
pub fn format(format: i32) -> Result<pb::OutputFormat> {
    pb::OutputFormat::try_from(format)
        .map_err(|_| Error::invalid("format", "is not a value that this server knows"))
}

/// Checks a kill's grace: unset means the default, 0 is allowed.
///
/// # Errors
/// `Invalid`.
pub fn grace(given: Option<prost_types::Duration>) -> Result<Option<prost_types::Duration>> {
    let Some(given) = given else { return Ok(None) };
    match Duration::try_from(given) {
        Ok(grace) if grace <= GRACE_MAX => Ok(Some(given)),
        _ => Err(Error::invalid("grace", "must be 0 to 60 s")),
    }
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

    /// Fields that are refused, in order.
    fn faults(spec: pb::ExecSpec) -> Vec<String> {
        match super::spec(Some(spec), &config()) {
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
            skill: "s".into(),
            script: Some(pb::Script {
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
    fn what_arguments_become_is_checked_with_the_rest() {
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
    fn every_fault_is_named_at_once() {
        let spec = pb::ExecSpec {
            env: [("A B".to_owned(), String::new())].into(),
            skill: "../x".into(),
            timeout: Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            }),
            limits: Some(pb::ExecLimits {
                open_files: -1,
                ..Default::default()
            }),
            retain: Some(pb::Retain {
                stdout_bytes: i64::MAX,
                ..Default::default()
            }),
            on_full: 99,
            ..argv(&["a\0b"])
        };
        let expected = [
            "spec.argv[0]",
            "spec.env[\"A B\"]",
            "spec.skill",
            "spec.timeout",
            "spec.limits.open_files",
            "spec.retain.stdout_bytes",
            "spec.on_full",
        ];
        assert_eq!(faults(spec), expected);
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
        let data = pb::stdin::Source::Data(vec![0; STDIN_BYTES_MAX + 1].into());
        let stdin = Some(pb::Stdin { source: Some(data) });
        assert_eq!(
            faults(pb::ExecSpec {
                stdin,
                ..argv(&["x"])
            }),
            ["spec.stdin.data"]
        );
    }

    #[test]
    fn a_list_of_programs_has_names_and_absolute_paths() {
        let with = |entries: &[&str]| {
            let list: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
            let programs = Some(pb::Programs {
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
            terminal: Some(pb::Terminal {
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
        let data = pb::stdin::Source::Data(b"x".to_vec().into());
        let stdin = Some(pb::Stdin { source: Some(data) });
        let both = pb::ExecSpec {
            stdin,
            ..with(1, 1, "")
        };
        assert_eq!(faults(both), ["spec.stdin.data"]);
        assert!(size(1, 10_000).is_ok());
        for (rows, cols) in [(0, 1), (1, 0), (10_001, 1), (1, u32::MAX)] {
            assert!(size(rows, cols).is_err(), "{rows} {cols}");
        }
    }
}
