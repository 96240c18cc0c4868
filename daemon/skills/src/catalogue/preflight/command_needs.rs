//! Concludes from commands what they need: programs, packages, a network. Pure; see `shell_words.rs` for the commands
//! and `shell_context.rs` for what is around them.

use std::collections::HashSet;
use std::ops::Range;

use self::shell_context::ShellContext;
use super::command_install::{fetched_package, read_install_command};
pub(super) use super::import_needs::ConcludedNeed;
use super::import_needs::{NAMES_MAX, add_needs};
use super::program_names::{is_builtin, is_program_name};
use super::shell_words::{
    CommentSign, Joint, ShellCommand, ShellScript, ShellWord, split_assignment, split_commands,
};
use super::{NeedKind, has_word, import_needs, network_signs};

mod python_commands;
mod shell_context;

/// Maximum depth of commands in arguments of commands, such as `bash -c "…"`.
const DEPTH_MAX: usize = 4;
/// Programs that run the command in their arguments.
const RUNNERS: &str = "builtin command doas env exec flock ionice nice nohup parallel setsid stdbuf sudo taskset time \
    timeout unbuffer watch xargs xvfb-run";
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

/// Needs of commands so far.
struct CommandReader {
    place: CommandPlace,
    found: Vec<ConcludedNeed>,
    /// Programs that the text does without.
    optional: HashSet<String>,
    context: ShellContext,
}

/// Returns the needs of shell text, whose first line has the number `line`, and adds the functions that it defines.
pub(super) fn find_command_needs(
    text: &str,
    line: usize,
    place: CommandPlace,
    functions: &mut HashSet<String>,
) -> Vec<ConcludedNeed> {
    let mut reader = CommandReader::new(place);
    reader.script(&split_commands(text, line), 0);
    let own = std::mem::take(&mut reader.context.functions);
    let is_program =
        |need: &ConcludedNeed| need.kind == NeedKind::Binary || need.kind == NeedKind::Network;
    let is_own = |need: &ConcludedNeed| need.names.iter().any(|name| own.contains(name));
    let mut found = reader.found;
    found.retain(|need| !(is_program(need) && is_own(need)));
    functions.extend(own);
    without_optional(found, &reader.optional)
}

/// Returns the needs without the programs that a text does without. Of several of which any one suffices, the last one
/// remains, which the text uses without a check.
pub(super) fn without_optional(
    mut needs: Vec<ConcludedNeed>,
    optional: &HashSet<String>,
) -> Vec<ConcludedNeed> {
    let is_optional = |name: &String| optional.contains(name.split(' ').next().unwrap_or_default());
    needs.retain_mut(|need| {
        let is_program = need.kind == NeedKind::Binary || need.kind == NeedKind::Network;
        need.names
            .sort_by_key(|name| is_program && is_optional(name));
        match need.names.as_slice() {
            [] => false,
            [name] => !(is_program && is_optional(name)),
            _ => true,
        }
    });
    needs
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
        is_negated: false,
        comment: None,
        keeps_output: false,
        here_document: None,
    };
    let mut reader = CommandReader::new(CommandPlace::Script);
    reader.command(&command, 0);
    reader.found
}

impl CommandReader {
    fn new(place: CommandPlace) -> Self {
        Self {
            place,
            found: Vec::new(),
            optional: HashSet::new(),
            context: ShellContext::default(),
        }
    }

    fn script(&mut self, script: &ShellScript, depth: usize) {
        // Needs of each command, for a fallback that follows it.
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut marks = script.marks.iter().peekable();
        for (index, command) in script.commands.iter().enumerate() {
            while let Some((_, mark)) = marks.next_if(|(before, _)| *before <= index) {
                self.mark(mark);
            }
            let before = self.found.len();
            if !self.is_aside(command) {
                self.context.count_command();
                self.command(command, depth);
            }
            let mut range = before..self.found.len();
            let first = command
                .fallback_for
                .and_then(|index| ranges.get(index).cloned());
            if let Some(first) = first
                && !(keeps_output(script, command) && is_no_operation(command))
                && self.merge_fallback(command, first.clone(), before)
            {
                range = first;
            }
            ranges.push(range);
        }
        for (_, mark) in marks {
            self.mark(mark);
        }
    }

    /// Returns `true` for a command that runs on other systems only, or that a document calls optional. What is
    /// installed on another system is needed here, too.
    fn is_aside(&self, command: &ShellCommand) -> bool {
        let sign = command
            .comment
            .filter(|_| self.place == CommandPlace::Document);
        let installs = || {
            let is_sudo = |word: &&ShellWord| word.text == "sudo";
            let words = command.words.iter().skip_while(is_sudo).cloned();
            let words: Vec<ShellWord> = words.collect();
            words
                .split_first()
                .is_some_and(|(program, args)| read_install_command(&program.text, args).is_some())
        };
        match sign {
            Some(CommentSign::Optional) => true,
            Some(CommentSign::OtherSystem) => !installs(),
            None => self.context.is_other_system() && !installs(),
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
        let argument = fallback.words.get(1).map(|word| word.text.as_str());
        let goes_on = match program {
            "true" | ":" | "continue" | "break" => true,
            "return" | "exit" => argument == Some("0"),
            _ => false,
        };
        if goes_on {
            let firsts = self.found.get_mut(first).into_iter().flatten();
            let names = firsts
                .filter(is_program)
                .flat_map(|need| std::mem::take(&mut need.names));
            if !matches!(program, "true" | ":") {
                self.optional.extend(names);
            } else {
                names.for_each(drop);
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

    fn add(&mut self, kind: NeedKind, mut names: Vec<String>, line: usize) {
        names.truncate(NAMES_MAX);
        if !names.is_empty() {
            add_needs(&mut self.found, [ConcludedNeed { kind, names, line }]);
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
        if program.is_dynamic && program.text.to_lowercase().contains("sudo") {
            return Some(args);
        }
        let mut names = self.context.resolve(program);
        // `"${array[@]}"` is a program and its arguments.
        names.truncate(if program.text.contains("[@]") {
            1
        } else {
            ALTERNATIVES_MAX
        });
        let names: Vec<&str> = names
            .iter()
            .filter_map(|text| program_of_text(text))
            .collect();
        if let [name] = names.as_slice() {
            return self.named_program(command, name, args, depth);
        }
        let names = names.into_iter().filter(|name| is_program_name(name));
        let names = names.map(str::to_owned).collect();
        self.add(NeedKind::Binary, names, command.line);
        None
    }

    fn named_program<'a>(
        &mut self,
        command: &ShellCommand,
        name: &str,
        args: &'a [ShellWord],
        depth: usize,
    ) -> Option<&'a [ShellWord]> {
        let first = args.first().map_or("", |arg| arg.text.as_str());
        let is_probe = match name {
            "command" => matches!(first, "-v" | "-V"),
            name => matches!(name, "which" | "type" | "hash"),
        };
        if is_probe {
            self.probe(command, args);
            return None;
        }
        if self.call_function(command, name, args) || matches!(first, "=" | "==" | ":" | "->" | "|")
        {
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
            match name {
                "eval" | "trap" => self.inner_text(args.first(), command.line, depth),
                "declare" | "export" | "local" | "readonly" | "typeset" => {
                    for (name, value) in args.iter().filter_map(split_assignment) {
                        self.context.set_variable(name, &value);
                    }
                }
                "break" | "continue" | "exit" | "return" => self.context.leave(name, first),
                _ => {}
            }
            return None;
        }
        // What starts containers or opens windows is advice for a person: no workspace can.
        let is_advice = self.place == CommandPlace::Document
            && has_word("docker docker-compose open podman xdg-open", name);
        if !is_program_name(name) || is_advice {
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
                let is_text =
                    |arg: &ShellWord| arg.text.starts_with('-') && arg.text.ends_with('c');
                let text = args
                    .iter()
                    .position(is_text)
                    .and_then(|at| args.get(at + 1));
                self.inner_text(text, command.line, depth);
                if let Some(text) = &command.here_document {
                    let word = ShellWord {
                        text: text.clone(),
                        ..ShellWord::default()
                    };
                    self.inner_text(Some(&word), command.line + 1, depth);
                }
            }
            "find" => {
                let is_exec =
                    |arg: &ShellWord| matches!(arg.text.as_str(), "-exec" | "-execdir" | "-ok");
                let at = args.iter().position(is_exec)?;
                return args.get(at + 1..);
            }
            "uv" => return self.uv_command(args, command.line),
            "node" => {
                let options = ["-e", "-p", "-pe", "--eval", "--print"];
                if let Some(code) = options.into_iter().find_map(value_of) {
                    let needs = import_needs::find_node_import_needs(&code.text, command.line);
                    add_needs(&mut self.found, needs);
                }
                if let Some(code) = &command.here_document {
                    let needs = import_needs::find_node_import_needs(code, command.line + 1);
                    add_needs(&mut self.found, needs);
                }
            }
            name if name.starts_with("python") => self.python(command, args),
            _ => {}
        }
        None
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
        if let Some(package) = fetched_package(name, args) {
            self.add(NeedKind::Network, vec![format!("{name} {package}")], line);
        }
    }

    fn inner_text(&mut self, word: Option<&ShellWord>, line: usize, depth: usize) {
        if let Some(word) = word.filter(|_| depth < DEPTH_MAX) {
            let blocks = self.context.enter_text();
            self.script(&split_commands(&word.text, line), depth + 1);
            self.context.leave_text(blocks);
        }
    }
}

/// Returns the name of the program that the first word of a text means; `None` if it is known only when the command
/// runs, or is a path that is no folder of programs.
fn program_of_text(text: &str) -> Option<&str> {
    match text.rsplit_once('/') {
        None => text.split(' ').next(),
        Some((folder, name)) => {
            let is_bin =
                folder.starts_with('/') && (folder.ends_with("/bin") || folder.ends_with("/sbin"));
            (is_bin && !folder.contains("/venv") && !folder.contains("/.")).then_some(name)
        }
    }
}

/// Returns `true` for `true` and `:`.
fn is_no_operation(command: &ShellCommand) -> bool {
    let program = command.words.first().map(|word| word.text.as_str());
    matches!(program, Some("true" | ":"))
}

/// Returns `true` if a file keeps the output of the command that a fallback follows. It is used even if the command
/// reports a failure.
fn keeps_output(script: &ShellScript, fallback: &ShellCommand) -> bool {
    let first = fallback
        .fallback_for
        .and_then(|index| script.commands.get(index));
    first.is_some_and(|first| first.keeps_output)
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
