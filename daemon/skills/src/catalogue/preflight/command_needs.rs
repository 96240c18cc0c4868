//! Concludes from commands what they need: programs, packages, a network. Pure; see `shell_words.rs` for the commands.

use std::collections::HashSet;
use std::ops::Range;

use super::command_install::read_install_command;
use super::program_names::{is_builtin, is_program_name};
use super::shell_words::{Joint, ShellCommand, ShellScript, ShellWord, split_commands};
use super::{NeedKind, has_word, network_signs, node_imports, python_requirements};

/// Maximum depth of commands in arguments of commands, such as `bash -c "…"`.
const DEPTH_MAX: usize = 4;
/// Programs that run the command in their arguments.
const RUNNERS: &str =
    "builtin command doas env exec flock ionice nice nohup setsid stdbuf sudo time timeout xargs";
/// Maximum number of programs that run each other in one command, such as `sudo env timeout 5 x`.
const CHAIN_MAX: usize = 8;
/// Maximum number of programs of which each does for the others.
const ALTERNATIVES_MAX: usize = 8;
/// Options of such programs that take a value.
const RUNNER_OPTIONS: &str =
    "-C -E -I -L -P -S -c -d -e -g -i -k -n -o -p -s -u --adjustment --signal --user";
/// Commands after `||` that clean up or report, instead of doing the same in another way.
const REPORTERS: &str =
    "cat cp date die echo exit kill logger mkdir mv printf rm sed sleep tail tee touch";

/// Place in which a command stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandPlace {
    /// Script, which runs all of its commands.
    Script,
    /// Document, which also advises a person.
    Document,
}

/// Conclusion from a text: a kind, names of which any one suffices, and the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConcludedNeed {
    pub(super) kind: NeedKind,
    pub(super) names: Vec<String>,
    pub(super) line: usize,
}

/// Needs of commands so far.
struct CommandReader {
    place: CommandPlace,
    found: Vec<ConcludedNeed>,
    /// Programs that the text does without.
    optional: HashSet<String>,
    functions: HashSet<String>,
}

/// Returns the needs of shell text, whose first line has the number `line`, and adds the functions that it defines.
pub(super) fn find_command_needs(
    text: &str,
    line: usize,
    place: CommandPlace,
    functions: &mut HashSet<String>,
) -> Vec<ConcludedNeed> {
    let mut reader = CommandReader {
        place,
        found: Vec::new(),
        optional: HashSet::new(),
        functions: HashSet::new(),
    };
    reader.script(&split_commands(text, line), 0);
    let is_optional =
        |need: &ConcludedNeed| need.names.iter().any(|name| reader.optional.contains(name));
    let is_own = |need: &ConcludedNeed| {
        need.names
            .iter()
            .any(|name| reader.functions.contains(name))
    };
    let is_program =
        |need: &ConcludedNeed| need.kind == NeedKind::Binary || need.kind == NeedKind::Network;
    let is_dropped = |need: &ConcludedNeed| {
        need.names.is_empty() || (is_program(need) && (is_optional(need) || is_own(need)))
    };
    let found = reader
        .found
        .iter()
        .filter(|need| !is_dropped(need))
        .cloned()
        .collect();
    functions.extend(reader.functions);
    found
}

/// Returns the needs of one command that is given as a list of arguments.
pub(super) fn find_argument_needs(arguments: &[String], line: usize) -> Vec<ConcludedNeed> {
    let word = |text: &String| ShellWord {
        text: text.clone(),
        is_dynamic: text.is_empty(),
        is_quoted: true,
    };
    let command = ShellCommand {
        words: arguments.iter().map(word).collect(),
        line,
        next: Joint::End,
        fallback_for: None,
        is_condition: false,
        here_document: None,
    };
    let mut reader = CommandReader {
        place: CommandPlace::Script,
        found: Vec::new(),
        optional: HashSet::new(),
        functions: HashSet::new(),
    };
    reader.command(&command, 0);
    reader.found
}

impl CommandReader {
    fn script(&mut self, script: &ShellScript, depth: usize) {
        self.functions.extend(script.functions.iter().cloned());
        // Needs of each command, for a fallback that follows it.
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for command in &script.commands {
            let before = self.found.len();
            self.command(command, depth);
            let mut range = before..self.found.len();
            let first = command
                .fallback_for
                .and_then(|index| ranges.get(index).cloned());
            if let Some(first) = first
                && self.merge_fallback(command, first.clone(), before)
            {
                range = first;
            }
            ranges.push(range);
        }
    }

    /// Makes one need of a command and its fallback, whose needs begin at `second`. Returns `false` if the fallback
    /// does not do the same in another way.
    fn merge_fallback(
        &mut self,
        fallback: &ShellCommand,
        first: Range<usize>,
        second: usize,
    ) -> bool {
        let program = fallback.words.first().map_or("", |word| word.text.as_str());
        let is_program = |need: &&mut ConcludedNeed| need.kind == NeedKind::Binary;
        if matches!(program, "true" | ":") {
            for need in self
                .found
                .get_mut(first)
                .into_iter()
                .flatten()
                .filter(is_program)
            {
                need.names.clear();
            }
            return true;
        }
        let added = self.found.get(second..).unwrap_or_default().iter();
        let added = added.filter(|need| need.kind == NeedKind::Binary);
        let names: Vec<String> = added.flat_map(|need| need.names.clone()).collect();
        let firsts = self.found.get_mut(first).into_iter().flatten();
        // A fallback of a builtin, such as `test -f x || make x`, is a command like any other.
        let Some(need) = firsts.rev().find(is_program).filter(|_| !names.is_empty()) else {
            return false;
        };
        if has_word(REPORTERS, program) {
            return false;
        }
        for name in names {
            if !need.names.contains(&name) && need.names.len() < ALTERNATIVES_MAX {
                need.names.push(name);
            }
        }
        self.found.truncate(second);
        true
    }

    fn add(&mut self, kind: NeedKind, names: Vec<String>, line: usize) {
        if !names.is_empty() {
            self.found.push(ConcludedNeed { kind, names, line });
        }
    }

    fn command(&mut self, command: &ShellCommand, depth: usize) {
        let mut words = command.words.as_slice();
        for _ in 0..CHAIN_MAX {
            let Some((program, args)) = words.split_first() else {
                return;
            };
            let Some(rest) = self.program(command, program, args, depth) else {
                return;
            };
            words = rest;
        }
    }

    /// Adds the needs of one program. Returns the command that it runs, if it runs one.
    fn program<'a>(
        &mut self,
        command: &ShellCommand,
        program: &ShellWord,
        args: &'a [ShellWord],
        depth: usize,
    ) -> Option<&'a [ShellWord]> {
        let name = program_of_word(program)?;
        let is_probe = match name {
            "command" => args
                .first()
                .is_some_and(|arg| matches!(arg.text.as_str(), "-v" | "-V")),
            name => matches!(name, "which" | "type" | "hash"),
        };
        if is_probe {
            self.probe(command, args);
            return None;
        }
        if matches!(
            args.first().map(|arg| arg.text.as_str()),
            Some("=" | "==" | ":" | "->" | "|")
        ) {
            return None;
        }
        if let Some(installed) = read_install_command(name, args) {
            for (kind, names) in installed {
                self.add(kind, names, command.line);
            }
            return None;
        }
        if has_word(RUNNERS, name) {
            if !is_builtin(name) && name != "sudo" && name != "doas" {
                self.add(NeedKind::Binary, vec![name.to_owned()], command.line);
            }
            return Some(inner_command(name, args));
        }
        if is_builtin(name) {
            if name == "eval" || name == "trap" {
                self.inner_text(args.first(), command.line, depth);
            }
            return None;
        }
        if !is_program_name(name) {
            return None;
        }
        // What starts containers is advice for a person: no workspace can.
        if self.place == CommandPlace::Document && has_word("docker docker-compose podman", name) {
            return None;
        }
        self.add(NeedKind::Binary, vec![name.to_owned()], command.line);
        self.network(name, args, command.line);
        self.arguments(command, name, args, depth)
    }

    /// Adds what follows from the arguments of a program. Returns the command that it runs, if it runs one.
    fn arguments<'a>(
        &mut self,
        command: &ShellCommand,
        name: &str,
        args: &'a [ShellWord],
        depth: usize,
    ) -> Option<&'a [ShellWord]> {
        let value_of = |option: &str| {
            let at = args.iter().position(|arg| arg.text == option)?;
            args.get(at + 1)
        };
        match name {
            "bash" | "sh" | "zsh" | "dash" => {
                let text = value_of("-c").or(value_of("-lc"));
                self.inner_text(text, command.line, depth);
            }
            "find" => {
                let is_exec =
                    |arg: &ShellWord| matches!(arg.text.as_str(), "-exec" | "-execdir" | "-ok");
                let at = args.iter().position(is_exec)?;
                return args.get(at + 1..);
            }
            "uv" => return self.uv_command(args, command.line),
            "node" => {
                if let Some(code) = value_of("-e").or(value_of("-p")) {
                    self.imports_of_node(&code.text, command.line);
                }
                if let Some(code) = &command.here_document {
                    self.imports_of_node(code, command.line);
                }
            }
            name if name.starts_with("python") => self.python(command, args),
            _ => {}
        }
        None
    }

    /// Reads the arguments of `uv run`: options, then a command.
    fn uv_command<'a>(&mut self, args: &'a [ShellWord], line: usize) -> Option<&'a [ShellWord]> {
        let (first, mut rest) = args.split_first()?;
        if first.text != "run" {
            return None;
        }
        while let Some((option, after)) = rest
            .split_first()
            .filter(|(arg, _)| arg.text.starts_with('-'))
        {
            rest = after;
            if !matches!(
                option.text.as_str(),
                "--with" | "--python" | "-p" | "--project" | "--directory"
            ) {
                continue;
            }
            let (value, after) = rest.split_first()?;
            rest = after;
            let package = python_requirements::parse_requirement(&value.text);
            if let Some(package) = package.filter(|_| option.text == "--with" && !value.is_dynamic)
            {
                self.add(NeedKind::PythonPackage, vec![package], line);
            }
        }
        // Any other program comes from the project's environment.
        let is_python = |word: &&ShellWord| word.text.starts_with("python");
        rest.first().filter(is_python).map(|_| rest)
    }

    fn python(&mut self, command: &ShellCommand, args: &[ShellWord]) {
        let line = command.line;
        // Options end with the script, and those after it are its own.
        let option = args.iter().take_while(|arg| arg.text.starts_with('-'));
        let option = option
            .enumerate()
            .find(|(_, arg)| matches!(arg.text.as_str(), "-m" | "-c"));
        let (code, offset) = match option {
            Some((at, option)) => {
                let Some(value) = args.get(at + 1) else {
                    return;
                };
                if option.text == "-m" {
                    self.python_module(value, args.get(at + 2..).unwrap_or_default(), line);
                    return;
                }
                (value.text.as_str(), 0)
            }
            None => match &command.here_document {
                Some(code) => (code.as_str(), 1),
                None => return,
            },
        };
        for import in python_requirements::find_imports(code) {
            let line = line + offset + import.line - 1;
            self.add(NeedKind::PythonModule, import.names, line);
        }
    }

    fn python_module(&mut self, module: &ShellWord, args: &[ShellWord], line: usize) {
        if module.text == "pip" {
            for (kind, names) in read_install_command("pip", args).into_iter().flatten() {
                self.add(kind, names, line);
            }
            return;
        }
        let is_module = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let top = module.text.split('.').next().unwrap_or_default();
        if !module.is_dynamic && !top.is_empty() && is_module(top) {
            self.add(NeedKind::PythonModule, vec![top.to_owned()], line);
        }
    }

    fn imports_of_node(&mut self, code: &str, line: usize) {
        for import in node_imports::find_imports(code) {
            self.add(NeedKind::NodePackage, import.names, line + import.line - 1);
        }
    }

    /// Reads a check whether programs exist: with another way in case that one does not, the text can do without it.
    fn probe(&mut self, command: &ShellCommand, args: &[ShellWord]) {
        let names = args.iter().filter(|arg| !arg.text.starts_with('-'));
        for name in names.filter_map(program_of_word) {
            if command.is_condition || command.next == Joint::And {
                self.optional.insert(name.to_owned());
            } else if is_program_name(name) && !is_builtin(name) {
                self.add(NeedKind::Binary, vec![name.to_owned()], command.line);
            }
        }
    }

    fn network(&mut self, name: &str, args: &[ShellWord], line: usize) {
        let first = args.iter().find(|arg| !arg.text.starts_with('-'));
        let first = first.map_or("", |arg| arg.text.as_str());
        let is_local = |arg: &ShellWord| {
            ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"]
                .iter()
                .any(|host| arg.text.contains(host))
        };
        if network_signs::is_network_command(name, first) && !args.iter().any(is_local) {
            self.add(NeedKind::Network, vec![name.to_owned()], line);
        }
    }

    fn inner_text(&mut self, word: Option<&ShellWord>, line: usize, depth: usize) {
        if let Some(word) = word.filter(|_| depth < DEPTH_MAX) {
            self.script(&split_commands(&word.text, line), depth + 1);
        }
    }
}

/// Returns the name of the program that a command's first word means; `None` if it is known only when the command runs,
/// or is a path that is no folder of programs.
fn program_of_word(word: &ShellWord) -> Option<&str> {
    if word.is_dynamic {
        return None;
    }
    match word.text.rsplit_once('/') {
        None => Some(word.text.as_str()),
        Some((folder, name)) => {
            let is_bin =
                folder.starts_with('/') && (folder.ends_with("/bin") || folder.ends_with("/sbin"));
            (is_bin && !folder.contains("/venv") && !folder.contains("/.")).then_some(name)
        }
    }
}

/// Returns the command in the arguments of a program that runs one.
fn inner_command<'a>(program: &str, args: &'a [ShellWord]) -> &'a [ShellWord] {
    let mut rest = args;
    while let Some((arg, after)) = rest.split_first() {
        let is_variable = program == "env" && arg.text.contains('=');
        if !arg.text.starts_with('-') && !is_variable {
            break;
        }
        rest = after;
        let takes_value =
            has_word(RUNNER_OPTIONS, &arg.text) && !(program == "env" && arg.text == "-i");
        let takes_value = takes_value
            && !(program == "sudo" && matches!(arg.text.as_str(), "-E" | "-n" | "-i" | "-s"));
        if takes_value && program != "exec" && program != "command" {
            rest = rest.split_first().map_or(rest, |(_, after)| after);
        }
    }
    // `timeout 5 command`, `flock file command`
    match (program, rest.split_first()) {
        ("timeout" | "flock", Some((_, after))) => after,
        _ => rest,
    }
}

#[cfg(test)]
mod tests;
