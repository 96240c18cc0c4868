//! Command policy of the host, which decides what a command of the model may start. A restricted command runs without a
//! shell: it is its words. The daemon and the guest decide which file the first word leads to, whether it may start,
//! and its environment (`ExecSpec.programs`); this module splits the command and lets a model's call set only the
//! variables that the host permits.
//!
//! The limits of this are in docs/tools-trpc.md: what an allowed program runs by itself is not seen.

use skilld_client::v1::{ExecPrograms, ExecSpec};
use skilld_common::names::base_name;

use crate::call_context::CallContext;
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Variables that the daemon sets to what restricted commands need. A call that sets one would lead programs to where
/// commands write.
const RESERVED_VARIABLES: [&str; 10] = [
    "CLAUDE_PLUGIN_ROOT",
    "CLAUDE_SKILL_DIR",
    "HOME",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "SKILL_DIR",
    "SKILL_NAME",
    "SKILL_ROOT",
];
/// Directory that does not exist, for entries in a skill's folder while no skill runs.
const NO_SKILL: &str = "/nonexistent";

/// Returns `true` if the host restricts commands.
pub(super) fn is_active(options: &ToolOptions) -> bool {
    !(options.allowed_commands.is_empty() && options.denied_commands.is_empty())
}

/// Checks the host's lists of programs and variables.
pub(super) fn check_lists(options: &ToolOptions) -> ToolResult<()> {
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
    let mut permitted = options.allowed_env.iter();
    if let Some(name) = permitted.find(|name| RESERVED_VARIABLES.contains(&name.as_str())) {
        return problem(format!(
            "allowed_env: {name} is set to what restricted commands need"
        ));
    }
    Ok(())
}

/// Returns `true` for a path relative to a skill's folder, such as `bin/NAME`.
fn is_in_skill(entry: &str) -> bool {
    let mut names = entry.split('/');
    entry.contains('/') && names.all(|name| !matches!(name, "" | "." | ".."))
}

/// Sets the command of a specification that has the call's environment: its words and the host's lists if commands are
/// restricted, else the text for a shell.
///
/// # Errors
///
/// [`ToolError::CommandRefused`] for a command that the lists cannot permit, so that nothing is staged for it.
pub(super) fn set_command(
    call: CallContext<'_>,
    command: &str,
    spec: &mut ExecSpec,
) -> ToolResult<()> {
    let options = &call.tools.options;
    if !is_active(options) {
        command.clone_into(&mut spec.shell);
        return Ok(());
    }
    restrict_command(options, command, spec).map_err(|problem| ToolError::CommandRefused {
        tool: call.tool,
        problem,
    })
}

fn restrict_command(
    options: &ToolOptions,
    command: &str,
    spec: &mut ExecSpec,
) -> Result<(), String> {
    let mut names = spec.env.keys();
    if let Some(name) = names.find(|name| !options.allowed_env.contains(name)) {
        return Err(format!(
            "env must not set {name} while commands are restricted, unless the host permits it"
        ));
    }
    // As for a shell: line ends of Windows are line ends, and those around a command, or a byte order mark before it,
    // mean nothing.
    let command = command.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    spec.argv = split_words(command.trim_matches('\n'))?;
    check_name(options, spec.argv.first().map_or("", String::as_str))?;
    // The folder of the skill is known once the skill is staged: `prepared_run` then sets the list again.
    spec.programs = list_programs(options, None);
    Ok(())
}

/// Returns the lists for the daemon; `None` if commands are not restricted. `skill` is the one that the command runs
/// in.
pub(super) fn list_programs(options: &ToolOptions, skill: Option<&str>) -> Option<ExecPrograms> {
    // Without a skill an entry in its folder leads nowhere. It is not left out: an empty list would permit everything.
    let root = match skill {
        Some(skill) => format!("/workspace/skills/{skill}"),
        None => NO_SKILL.to_owned(),
    };
    let absolute = |entry: &String| match is_in_skill(entry) {
        true => format!("{root}/{entry}"),
        false => entry.clone(),
    };
    is_active(options).then(|| ExecPrograms {
        allowed: options.allowed_commands.iter().map(absolute).collect(),
        denied: options.denied_commands.iter().map(absolute).collect(),
    })
}

/// Splits a command in which nothing needs a shell into its words.
fn split_words(command: &str) -> Result<Vec<String>, String> {
    if let Some(problem) = shell_problem(command) {
        return Err(problem);
    }
    let words = shlex::split(command);
    words.ok_or_else(|| "a quote or a backslash at the end of the command is left open".to_owned())
}

/// Checks a program by its name alone.
fn check_name(options: &ToolOptions, program: &str) -> Result<(), String> {
    if program.is_empty() {
        return Err("the command names no program".into());
    }
    if !program.contains('/') && program.contains('=') {
        return Err(format!("{program:?} is no program; set variables with env"));
    }
    let name = base_name(program);
    let denies = |entry: &String| entry == program || entry == name;
    if options.denied_commands.iter().any(denies) {
        return Err(format!("command {program:?} is denied by denied_commands"));
    }
    let allowed = &options.allowed_commands;
    if allowed.is_empty() || allowed.iter().any(|entry| base_name(entry) == name) {
        return Ok(());
    }
    Err(format!("command {program:?} is not in allowed_commands"))
}

/// Returns an error about the first unquoted shell operator of a command, which would have no effect without a shell.
fn shell_problem(command: &str) -> Option<String> {
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
