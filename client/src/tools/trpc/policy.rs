//! What may run, where the host says so. There is no shell then: a command is its words. Which file the first of them
//! leads to, and whether that may start, the workspace decides (`ExecSpec.programs`); here is what needs no look into it.
//!
//! The limits of this are in docs/tools-trpc.md: what an allowed program runs by itself is not seen.

use std::collections::BTreeMap;

use skilld_proto::v1::spawn_failure::Stage;
use skilld_proto::v1::{ExecResult, ExecSpec, Programs};

use crate::tools::{Options, ToolError};

/// Where bare names are looked up: directories of the image, which no command can write to. The daemon's own default.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Nothing is there and nobody can put something there. The daemon's own default is where commands write, and programs
/// load what lies in their home.
const HOME: &str = "/nonexistent";

/// Programs that run another program that their arguments name. Where some are denied these would be a way around.
const LAUNCHERS: [&str; 60] = [
    "ash",
    "awk",
    "bash",
    "busybox",
    "chroot",
    "choom",
    "chrt",
    "coreutils",
    "dash",
    "doas",
    "env",
    "find",
    "flock",
    "gawk",
    "gdb",
    "i386",
    "ionice",
    "ksh",
    "ld.so",
    "ldd",
    "linux32",
    "linux64",
    "make",
    "mawk",
    "nawk",
    "nice",
    "nohup",
    "nsenter",
    "original-awk",
    "parallel",
    "perl",
    "pkexec",
    "prlimit",
    "rbash",
    "run-parts",
    "runcon",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "setuidgid",
    "sg",
    "sh",
    "start-stop-daemon",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "taskset",
    "tcsh",
    "time",
    "timeout",
    "toybox",
    "uclampset",
    "unshare",
    "watch",
    "x86_64",
    "xargs",
    "zsh",
];

/// The same, which have no name in PATH.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// Whether the host restricts what runs.
pub(super) fn is_active(options: &Options) -> bool {
    !(options.allowed_commands.is_empty() && options.denied_commands.is_empty())
}

/// What the lists may say.
pub(super) fn check(options: &Options) -> Result<(), ToolError> {
    let problem = |problem: String| Err(ToolError::Options { problem });
    let lists = [
        ("allowed_commands", &options.allowed_commands),
        ("denied_commands", &options.denied_commands),
    ];
    for (list, entries) in lists {
        for entry in entries {
            let is_name = !entry.is_empty() && !entry.contains(char::is_whitespace);
            let is_path = entry.starts_with('/') && !entry.ends_with('/');
            let is_known = !entry.contains('/') || is_path || is_in_skill(entry);
            if !is_name || !is_known {
                return problem(format!(
                    "{list}: {entry:?} is neither a name, nor an absolute path, nor one in a skill's folder such as \
                     bin/NAME"
                ));
            }
        }
    }
    let ours = environment(options, Some(""));
    for name in &options.allowed_env {
        if ours.contains_key(name) {
            return problem(format!(
                "allowed_env: {name} is set to what restricted commands need"
            ));
        }
    }
    Ok(())
}

/// Returns `true` for a path relative to a skill's folder, such as `bin/NAME`.
fn is_in_skill(entry: &str) -> bool {
    let mut names = entry.split('/');
    entry.contains('/') && names.all(|name| !matches!(name, "" | "." | ".."))
}

/// Environment of what runs beneath a policy, over all that a call gives: nothing in it leads to where commands write.
fn environment(options: &Options, skill: Option<&str>) -> BTreeMap<String, String> {
    let given = |name: &str, or: &str| {
        let given = options.env.get(name).cloned();
        (name.to_owned(), given.unwrap_or_else(|| or.to_owned()))
    };
    let mut env = BTreeMap::from([
        given("PATH", PATH),
        given("HOME", HOME),
        given("PYTHONNOUSERSITE", "1"),
        given("PYTHONDONTWRITEBYTECODE", "1"),
    ]);
    if let Some(skill) = skill {
        let root = format!("/workspace/skills/{skill}");
        env.insert("SKILL_NAME".to_owned(), skill.to_owned());
        for name in [
            "SKILL_DIR",
            "SKILL_ROOT",
            "CLAUDE_PLUGIN_ROOT",
            "CLAUDE_SKILL_DIR",
            "PYTHONPATH",
        ] {
            env.insert(name.to_owned(), root.clone());
        }
        // The skill's own programs, which no command can change, after everything else: none takes the place of another.
        let path = env.entry("PATH".to_owned()).or_default();
        path.push_str(&format!(":{root}/bin"));
    }
    env
}

/// Makes of a specification with the call's environment one that the lists permit, as far as that can be told here.
pub(super) fn restrict(
    tool: &'static str,
    options: &Options,
    command: &str,
    spec: &mut ExecSpec,
    skill: Option<&str>,
) -> Result<(), ToolError> {
    let refused = |problem: String| ToolError::CommandRefused { tool, problem };
    let mut names = spec.env.keys();
    if let Some(name) = names.find(|name| !options.allowed_env.contains(name)) {
        let problem = format!(
            "env must not set {name} while commands are restricted, unless the host permits it"
        );
        return Err(refused(problem));
    }
    spec.argv = words(command).map_err(refused)?;
    let program = spec.argv.first().map_or("", String::as_str);
    permit(options, program).map_err(refused)?;
    spec.env.extend(environment(options, skill));
    spec.programs = Some(programs(options, skill));
    Ok(())
}

/// The words of a command in which nothing needs a shell.
fn words(command: &str) -> Result<Vec<String>, String> {
    if let Some(problem) = unquoted(command) {
        return Err(problem);
    }
    let words = shlex::split(command);
    words.ok_or_else(|| "a quote or a backslash at the end of the command is left open".to_owned())
}

/// What the workspace is told of the lists.
fn programs(options: &Options, skill: Option<&str>) -> Programs {
    // Without a skill an entry in its folder leads nowhere. It is not left out: an empty list would permit everything.
    let root = skill.map_or(HOME.to_owned(), |skill| {
        format!("/workspace/skills/{skill}")
    });
    let absolute = |entry: &String| match is_in_skill(entry) {
        true => format!("{root}/{entry}"),
        false => entry.clone(),
    };
    let mut denied: Vec<String> = options.denied_commands.iter().map(absolute).collect();
    if options.allowed_commands.is_empty() {
        let others = LAUNCHERS.iter().chain(&LOADERS);
        denied.extend(others.map(|name| (*name).to_owned()));
    }
    Programs {
        allowed: options.allowed_commands.iter().map(absolute).collect(),
        denied,
    }
}

/// Whether the workspace let a command start.
pub(super) fn started(tool: &'static str, result: Option<&ExecResult>) -> Result<(), ToolError> {
    let failure = result.and_then(|result| result.spawn_failure.as_ref());
    match failure {
        Some(failure) if failure.stage() == Stage::Program => Err(ToolError::CommandRefused {
            tool,
            problem: format!("command {}", failure.message),
        }),
        _ => Ok(()),
    }
}

/// What names alone tell, so that nothing is staged and started for it.
fn permit(options: &Options, program: &str) -> Result<(), String> {
    if program.is_empty() {
        return Err("the command names no program".into());
    }
    if !program.contains('/') && program.contains('=') {
        return Err(format!("{program:?} is no program; set variables with env"));
    }
    let name = last(program);
    let denies = |entry: &String| entry == program || entry == name;
    if options.denied_commands.iter().any(denies) {
        return Err(format!("command {program:?} is denied by denied_commands"));
    }
    let mut allowed = options.allowed_commands.iter();
    if !options.allowed_commands.is_empty() {
        return match allowed.any(|entry| last(entry) == name) {
            true => Ok(()),
            false => Err(format!("command {program:?} is not in allowed_commands")),
        };
    }
    if LAUNCHERS.contains(&name) {
        return Err(format!(
            "command {program:?} runs other programs, and some are denied: run the program itself"
        ));
    }
    Ok(())
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What a shell would do something with, and nothing here does. In quotes it is text like any other.
fn unquoted(command: &str) -> Option<String> {
    let mut quote = None;
    let mut at_word = true;
    let mut chars = command.chars().peekable();
    while let Some(letter) = chars.next() {
        let next = chars.peek().copied();
        let special = match (quote, letter) {
            (Some('\''), '\'') | (Some('"'), '"') => {
                quote = None;
                false
            }
            (Some('"'), '$' | '`') => true,
            (Some('"') | None, '\\') => {
                chars.next();
                quote.is_none() && matches!(next, Some('\n' | '\r'))
            }
            (Some(_), _) => false,
            (None, '\'' | '"') => {
                quote = Some(letter);
                false
            }
            (None, '{') => next != Some('}'),
            (None, '~' | '#' | '!') => at_word,
            (None, other) => ";&|<>()$`*?[\n\r".contains(other),
        };
        if special {
            let hint = match quote {
                Some(_) => "use single quotes for it",
                None => "quote it if it is meant as text",
            };
            return Some(format!(
                "{letter:?} needs a shell, and there is none while commands are restricted; {hint}"
            ));
        }
        at_word = quote.is_none() && matches!(letter, ' ' | '\t');
    }
    None
}

#[cfg(test)]
mod tests;
