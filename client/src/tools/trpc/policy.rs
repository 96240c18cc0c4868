//! What may run, where the host says so. The program is resolved here, on every way to run something: there is no shell
//! then, a bare name is looked up in the image's own directories only, and a path is the path that it says.
//!
//! The limits of this are in docs/tools-trpc.md: what an allowed program runs by itself is not seen.

use std::collections::BTreeMap;

use crate::tools::{Options, ToolError};

/// Where bare names are looked up: directories of the image, which no command can write to. The daemon's own default.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Directories whose programs no command can have put there.
const READ_ONLY: [&str; 5] = ["/usr/", "/bin/", "/sbin/", "/opt/", "/workspace/skills/"];

/// Names in a skill's root that lead to where commands write.
const LINKS: [&str; 4] = ["out", "work", "inputs", ".venv"];

/// Programs that run another program that their arguments name. Where some are denied these would be a way around.
const LAUNCHERS: [&str; 34] = [
    "ash", "awk", "bash", "busybox", "chroot", "dash", "env", "exec", "find", "flock", "gdb",
    "ionice", "ksh", "ld.so", "make", "nice", "nohup", "nsenter", "parallel", "perl", "script",
    "setarch", "setsid", "sh", "stdbuf", "strace", "su", "sudo", "taskset", "time", "timeout",
    "unshare", "xargs", "zsh",
];

/// Variables that decide which program runs or what it loads.
const VARIABLES: [&str; 29] = [
    "PATH",
    "HOME",
    "ENV",
    "BASH_ENV",
    "PROMPT_COMMAND",
    "PS4",
    "SHELL",
    "SHELLOPTS",
    "BASHOPTS",
    "IFS",
    "CDPATH",
    "GLOBIGNORE",
    "OPENSSL_CONF",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5OPT",
    "PERL5LIB",
    "PERL5DB",
    "RUBYOPT",
    "RUBYLIB",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "JAVA_TOOL_OPTIONS",
];

/// The same, by how they begin.
const PREFIXES: [&str; 4] = ["LD_", "DYLD_", "BASH_FUNC_", "GIT_"];

/// Whether the host restricts what runs.
pub(super) fn is_active(options: &Options) -> bool {
    !(options.allowed_commands.is_empty() && options.denied_commands.is_empty())
}

/// What the lists may say.
pub(super) fn check(options: &Options) -> Result<(), ToolError> {
    let lists = [
        ("allowed_commands", &options.allowed_commands),
        ("denied_commands", &options.denied_commands),
    ];
    for (list, entries) in lists {
        for entry in entries {
            let is_name = !entry.is_empty() && !entry.contains(char::is_whitespace);
            let is_path = entry.starts_with('/') && !has_dots(entry);
            if !is_name || (entry.contains('/') && !is_path) {
                let problem = format!("{list}: {entry:?} is neither a name nor an absolute path");
                return Err(ToolError::Options { problem });
            }
        }
    }
    Ok(())
}

/// PATH of what runs beneath a policy.
pub(super) fn path(options: &Options) -> String {
    let given = options.env.get("PATH").cloned();
    given.unwrap_or_else(|| PATH.to_owned())
}

/// The arguments of a command, its program resolved and permitted. `base` is where a relative program lies; none where
/// the call named a working directory of its own.
pub(super) fn argv(
    tool: &'static str,
    options: &Options,
    command: &str,
    env: &BTreeMap<String, String>,
    base: Option<&str>,
) -> Result<Vec<String>, ToolError> {
    let refused = |problem: String| ToolError::CommandRefused { tool, problem };
    if let Some(name) = env.keys().find(|name| is_refused(name)) {
        let problem = format!("env must not set {name} while commands are restricted");
        return Err(refused(problem));
    }
    if let Some(problem) = unquoted(command) {
        return Err(refused(problem));
    }
    let words = shlex::split(command);
    let unbalanced =
        || refused("a quote or a backslash at the end of the command is left open".into());
    let mut words = words.ok_or_else(unbalanced)?.into_iter();
    let program = words.next().unwrap_or_default();
    let program = resolve(&program, base).map_err(refused)?;
    permit(options, &program).map_err(refused)?;
    Ok([program].into_iter().chain(words).collect())
}

/// A bare name as it is, a path in full.
fn resolve(program: &str, base: Option<&str>) -> Result<String, String> {
    if program.is_empty() {
        return Err("the command names no program".into());
    }
    if !program.contains('/') {
        return match program.contains('=') {
            true => Err(format!("{program:?} is no program; set variables with env")),
            false => Ok(program.to_owned()),
        };
    }
    if has_dots(program.trim_start_matches("./")) {
        return Err(format!("the program's path {program:?} has . or .. in it"));
    }
    match (program.starts_with('/'), base) {
        (true, _) => Ok(program.to_owned()),
        (false, Some(base)) => Ok(format!("{base}/{}", program.trim_start_matches("./"))),
        (false, None) => Err(format!(
            "{program:?} depends on cwd: give the program's absolute path while commands are restricted"
        )),
    }
}

fn permit(options: &Options, program: &str) -> Result<(), String> {
    let name = program.rsplit('/').next().unwrap_or(program);
    let base = |entry: &str| entry.rsplit('/').next().unwrap_or(entry) == name;
    if options.denied_commands.iter().any(|entry| base(entry)) {
        return Err(format!("command {program:?} is denied by denied_commands"));
    }
    // Bare names are bare names, paths are these paths: a file of the same name elsewhere is another program.
    if options
        .allowed_commands
        .iter()
        .any(|entry| entry == program)
    {
        return Ok(());
    }
    if !options.allowed_commands.is_empty() {
        return Err(format!("command {program:?} is not in allowed_commands"));
    }
    if LAUNCHERS.contains(&name) || name.starts_with("ld-linux") {
        return Err(format!(
            "command {program:?} runs other programs, and some are denied: run the program itself"
        ));
    }
    if program.contains('/') && !is_read_only(program) {
        return Err(format!(
            "command {program:?} lies where commands can write, and could be any program"
        ));
    }
    Ok(())
}

fn is_read_only(path: &str) -> bool {
    if !READ_ONLY.iter().any(|root| path.starts_with(root)) {
        return false;
    }
    let in_skill = path.strip_prefix("/workspace/skills/").unwrap_or_default();
    let place = in_skill.split('/').nth(1).unwrap_or_default();
    !LINKS.contains(&place)
}

fn has_dots(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "." | ".."))
}

fn is_refused(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    VARIABLES.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
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
