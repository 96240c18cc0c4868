//! Programs that Python source starts: lists and texts that it hands to `subprocess`, `os`, `shutil.which` or a function
//! of its own that does so. Pure: nothing runs, and source that cannot be understood yields nothing.

use std::collections::{HashMap, HashSet};

use super::command_needs::{
    CommandPlace, ConcludedNeed, find_argument_needs, find_command_needs, without_optional,
};
use super::import_needs::{add_names, add_needs, find_python_import_needs, is_full};
use super::python_requirements::find_imports;
use super::python_tokens::{PythonToken, split_tokens};
use super::{NeedKind, has_word, network_signs};

use self::optional_lines::find_optional_lines;

mod optional_lines;
mod values;

/// Functions that start a program, or look for one.
const STARTERS: &str = "subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen \
    subprocess.getoutput subprocess.getstatusoutput sp.run sp.call sp.check_call sp.check_output sp.Popen os.system os.popen \
    asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_exec \
    shutil.which which Popen check_call check_output getoutput create_subprocess_exec create_subprocess_shell \
    pexpect.spawn os.execvp os.execlp os.spawnvp os.spawnlp distutils.spawn.find_executable find_executable";
/// Maximum number of arguments of one call or list that are read.
const ARGUMENTS_MAX: usize = 32;
/// Maximum number of texts that are known of one variable.
const VALUES_MAX: usize = 16;
/// Maximum length of a text that is read as a command, in bytes.
const VALUE_BYTES_MAX: usize = 2000;
/// Maximum number of commands that are read in one file, where each use of a variable repeats its commands.
const COMMANDS_MAX: usize = 10_000;
/// Number of functions that may lie between a call and `subprocess`.
const CALL_DEPTH_MAX: usize = 3;

/// Function whose parameters go to a program.
#[derive(Debug, Default)]
struct FunctionScope {
    name: String,
    indent: usize,
    parameters: Vec<String>,
    /// Commands by the name of the variable that holds them.
    variables: HashMap<String, Vec<CommandValue>>,
}

/// Beginning of a command.
#[derive(Debug, Clone)]
enum CommandValue {
    /// Program and arguments. Any one of the programs runs.
    List(Vec<String>, Vec<String>),
    /// Text for a shell.
    Text(String),
}

/// Reader of the calls in one file.
struct CallReader<'a> {
    tokens: &'a [(PythonToken, usize)],
    /// Lines that a script does without.
    optional_lines: &'a HashSet<usize>,
    /// Functions of the file that start the program in their first parameter.
    runners: HashSet<String>,
    /// Functions of the file that look for the program in their first parameter.
    probers: HashSet<String>,
    scopes: Vec<FunctionScope>,
    optional: HashSet<String>,
    found: Vec<ConcludedNeed>,
    /// Number of commands that were read.
    commands: usize,
}

/// Functions of Python itself that connect to other hosts.
const CONNECTORS: &str = "HTTPConnection HTTPSConnection urlopen urlretrieve";
/// Functions that import the module in their argument.
const IMPORTERS: &str = "__import__ import_module importlib.import_module";

/// Returns the needs of source whose first line has the number `line`: modules, programs and a network.
pub(super) fn find_python_needs(source: &str, line: usize) -> Vec<ConcludedNeed> {
    let mut calls = find_program_calls(source);
    if network_signs::names_only_this_host(source) {
        calls.retain(|need| need.kind != NeedKind::Network);
    }
    let mut needs = find_python_import_needs(source, line);
    needs.extend(calls.into_iter().map(|need| ConcludedNeed {
        line: line + need.line - 1,
        ..need
    }));
    needs
}

/// Returns the needs of the programs that a file starts.
pub(super) fn find_program_calls(source: &str) -> Vec<ConcludedNeed> {
    let tokens = split_tokens(source);
    let optional_lines = find_optional_lines(source);
    let imports_run = source.contains("from subprocess import");
    let mut runners: HashSet<String> = HashSet::new();
    if imports_run {
        runners.extend(["run", "call"].map(str::to_owned));
    }
    let mut probers = HashSet::new();
    // A function that calls a function that starts its parameter starts it, too.
    for depth in 1..=CALL_DEPTH_MAX {
        let mut reader = CallReader {
            tokens: &tokens,
            optional_lines: &optional_lines,
            runners: runners.clone(),
            probers,
            scopes: vec![FunctionScope::default()],
            optional: HashSet::new(),
            found: Vec::new(),
            commands: 0,
        };
        let probers_before = reader.probers.len();
        reader.read();
        let is_known =
            (reader.runners.len(), reader.probers.len()) == (runners.len(), probers_before);
        if is_known || depth == CALL_DEPTH_MAX {
            return without_optional(reader.found, &reader.optional);
        }
        (runners, probers) = (reader.runners, reader.probers);
    }
    Vec::new()
}

impl CallReader<'_> {
    fn read(&mut self) {
        let mut at = 0;
        // First name of the current line, and whether an assignment follows it.
        let mut line_start = true;
        let mut head = String::new();
        while let Some((token, line)) = self.tokens.get(at) {
            match token {
                PythonToken::Line(indent) => {
                    self.leave_scopes(*indent, at);
                    line_start = true;
                    at += 1;
                    continue;
                }
                PythonToken::Name(name) if line_start && name == "def" => self.enter_function(at),
                PythonToken::Name(name) if name == "for" => self.loop_variable(at),
                PythonToken::Name(name) if line_start && self.is_assignment(at) => {
                    self.assign(&name.clone(), at);
                }
                PythonToken::Name(name)
                    if self.is_mark(at + 1, '(') && !self.optional_lines.contains(line) =>
                {
                    // `x if which("y") else z`
                    let is_condition =
                        is_positive_condition(&head) || self.is_name(at.wrapping_sub(1), "if");
                    self.call(name, at, is_condition);
                }
                PythonToken::Name(_) | PythonToken::Text(_) | PythonToken::Mark(_) => {}
            }
            if line_start {
                head = self.line_head(at);
            }
            line_start = false;
            at += 1;
        }
    }

    /// Returns the first names of a line.
    fn line_head(&self, at: usize) -> String {
        let mut head = String::new();
        for (token, _) in self.tokens.get(at..).unwrap_or_default().iter().take(2) {
            if let PythonToken::Name(name) = token {
                head.push_str(name);
                head.push(' ');
            }
        }
        head
    }

    fn is_mark(&self, at: usize, mark: char) -> bool {
        matches!(self.tokens.get(at), Some((PythonToken::Mark(found), _)) if *found == mark)
    }

    fn is_name(&self, at: usize, name: &str) -> bool {
        matches!(self.tokens.get(at), Some((PythonToken::Name(found), _)) if found == name)
    }

    fn leave_scopes(&mut self, indent: usize, at: usize) {
        let is_blank = matches!(
            self.tokens.get(at + 1),
            Some((PythonToken::Line(_), _)) | None
        );
        while !is_blank
            && self.scopes.len() > 1
            && self
                .scopes
                .last()
                .is_some_and(|scope| indent <= scope.indent)
        {
            self.scopes.pop();
        }
    }

    fn enter_function(&mut self, at: usize) {
        let Some((PythonToken::Name(name), _)) = self.tokens.get(at + 1) else {
            return;
        };
        let mut parameters = Vec::new();
        let mut depth = 0_usize;
        let mut expected = true;
        for (token, _) in self
            .tokens
            .get(at + 2..)
            .unwrap_or_default()
            .iter()
            .take(256)
        {
            match token {
                PythonToken::Mark('(' | '[' | '{') => depth += 1,
                PythonToken::Mark(')' | ']' | '}') if depth <= 1 => break,
                PythonToken::Mark(')' | ']' | '}') => depth -= 1,
                PythonToken::Mark(',') if depth == 1 => expected = true,
                PythonToken::Name(name) if expected && depth == 1 => {
                    expected = false;
                    parameters.push(name.clone());
                }
                PythonToken::Name(_)
                | PythonToken::Text(_)
                | PythonToken::Mark(_)
                | PythonToken::Line(_) => {}
            }
        }
        parameters.retain(|name| name != "self" && name != "cls");
        // The indentation is that of the line before.
        let before = self.tokens.get(..at).unwrap_or_default().iter().rev();
        let indent = before.take(2).find_map(|(token, _)| match token {
            PythonToken::Line(indent) => Some(*indent),
            PythonToken::Name(_) | PythonToken::Text(_) | PythonToken::Mark(_) => None,
        });
        self.scopes.push(FunctionScope {
            name: name.clone(),
            indent: indent.unwrap_or(0),
            parameters,
            variables: HashMap::new(),
        });
    }

    fn call(&mut self, name: &str, at: usize, is_condition: bool) {
        let bare = last_part(name);
        let line = self.tokens.get(at).map_or(1, |(_, line)| *line);
        let is_own =
            |names: &HashSet<String>| names.contains(name.strip_prefix("self.").unwrap_or(name));
        let is_probe = bare == "which" || bare == "find_executable" || is_own(&self.probers);
        let argument = self.argument(at);
        if has_word(CONNECTORS, bare) {
            self.conclude(NeedKind::Network, &format!("{bare}()"), line);
        } else if has_word(IMPORTERS, name) {
            if let Some((PythonToken::Text(module), _)) = self.tokens.get(argument) {
                let imports = find_imports(&format!("import {module}"));
                let modules: Vec<String> =
                    imports.into_iter().flat_map(|found| found.names).collect();
                for module in modules {
                    self.conclude(NeedKind::PythonModule, &module, line);
                }
            }
        } else if is_probe {
            self.probe(at, argument, line, is_condition);
        } else if has_word(STARTERS, name) || is_own(&self.runners) {
            self.start_argument(name, at, argument, line);
        }
    }

    fn conclude(&mut self, kind: NeedKind, name: &str, line: usize) {
        let names = vec![name.to_owned()];
        add_needs(&mut self.found, [ConcludedNeed { kind, names, line }]);
    }

    /// Returns the index of the first argument's value: after `(`, `*` and `args=`.
    fn argument(&self, at: usize) -> usize {
        let mut argument = at + 2;
        while matches!(
            self.tokens.get(argument),
            Some((PythonToken::Line(_) | PythonToken::Mark('*'), _))
        ) {
            argument += 1;
        }
        let is_keyword = matches!(self.tokens.get(argument), Some((PythonToken::Name(_), _)));
        match is_keyword && self.is_mark(argument + 1, '=') {
            true => argument + 2,
            false => argument,
        }
    }

    fn start_argument(&mut self, name: &str, at: usize, argument: usize, line: usize) {
        let takes_arguments = name.ends_with("create_subprocess_exec");
        match self.tokens.get(argument) {
            Some(_) if takes_arguments => {}
            Some((PythonToken::Name(variable), _)) if !self.is_mark(argument + 1, '(') => {
                self.variable(variable, line);
            }
            // `command.split()`, `shlex.split(command)`
            Some((PythonToken::Name(method), _)) if method.ends_with(".split") => {
                let variable = match self.tokens.get(argument + 2) {
                    Some((PythonToken::Name(variable), _)) => variable,
                    _ => method.strip_suffix(".split").unwrap_or(method),
                };
                self.variable(variable, line);
            }
            // A function that starts a program of its parameter: `[name, *arguments]`
            Some((PythonToken::Mark('['), _)) => {
                if let Some((PythonToken::Name(variable), _)) = self.tokens.get(argument + 1) {
                    let runner = self.function_of_parameter(variable);
                    self.runners.extend(runner);
                }
            }
            _ => {}
        }
        let value = match takes_arguments {
            true => Some(self.list(at + 1)),
            false => self.value(argument),
        };
        if let Some(value) = value {
            self.start(&value, line);
        }
    }

    /// Returns the function whose first parameter a variable is, if nothing else was assigned to it.
    fn function_of_parameter(&self, variable: &str) -> Option<String> {
        let scope = self.scopes.last()?;
        let is_first = scope
            .parameters
            .first()
            .is_some_and(|first| first == variable);
        (is_first && !scope.variables.contains_key(variable)).then(|| scope.name.clone())
    }

    /// Adds what a variable holds; a parameter makes its function one that starts programs.
    fn variable(&mut self, variable: &str, line: usize) {
        let runner = self.function_of_parameter(variable);
        self.runners.extend(runner);
        for at in 0..VALUES_MAX {
            let Some(value) = self.values_of(variable).get(at).cloned() else {
                return;
            };
            self.start(&value, line);
        }
    }

    fn start(&mut self, value: &CommandValue, line: usize) {
        if self.commands >= COMMANDS_MAX || is_full(&self.found) {
            return;
        }
        self.commands += match value {
            CommandValue::List(programs, _) => programs.len(),
            CommandValue::Text(_) => 1,
        };
        let needs = match value {
            CommandValue::List(programs, arguments) => start_any(programs, arguments, line),
            // A text without arguments is a name or a text for a shell; either way, it begins with the program.
            CommandValue::Text(text) => {
                find_command_needs(text, line, CommandPlace::Script, &mut HashSet::new())
            }
        };
        add_needs(&mut self.found, needs);
    }

    /// Reads a search for a program, or for those in a variable.
    fn probe(&mut self, at: usize, argument: usize, line: usize, is_condition: bool) {
        let names = match self.tokens.get(argument) {
            Some((PythonToken::Text(name), _)) => vec![name.clone()],
            Some((PythonToken::Name(variable), _)) => {
                let prober = self.function_of_parameter(variable);
                self.probers.extend(prober);
                // `any(which(name) for name in names)`
                let ahead = (argument + 1..argument + ARGUMENTS_MAX)
                    .find(|at| self.is_name(*at, "for") && self.is_name(*at + 1, variable));
                let variable = variable.clone();
                if let Some(ahead) = ahead {
                    self.loop_variable(ahead);
                }
                self.texts_of(&variable)
            }
            _ => return,
        };
        let is_any =
            is_condition || self.is_checked_later(at) || self.is_name(at.wrapping_sub(2), "any");
        if self.is_name(at.wrapping_sub(1), "or")
            && let Some(first) = self.found.last_mut()
        {
            add_names(first, names);
        } else if is_any && names.len() == 1 {
            self.optional.extend(names);
        } else if is_any {
            self.optional.extend(names.iter().cloned());
            add_needs(&mut self.found, start_any(&names, &[], line));
        } else {
            for name in names {
                add_needs(&mut self.found, start_any(&[name], &[], line));
            }
        }
        // `which("a") or "b"`
        if let (true, Some((PythonToken::Text(other), _)), Some(first)) = (
            self.is_name(argument + 2, "or"),
            self.tokens.get(argument + 3),
            self.found.last_mut(),
        ) {
            add_names(first, [other.clone()]);
        }
    }

    /// Returns `true` for `x = which(…)` before `if x:`.
    fn is_checked_later(&self, at: usize) -> bool {
        let Some((PythonToken::Name(variable), _)) = self.tokens.get(at.wrapping_sub(2)) else {
            return false;
        };
        let mut ahead = self
            .tokens
            .get(at..)
            .unwrap_or_default()
            .iter()
            .take(ARGUMENTS_MAX);
        let line = ahead.position(|(token, _)| matches!(token, PythonToken::Line(_)));
        let Some(line) = line.filter(|_| self.is_mark(at.wrapping_sub(1), '=')) else {
            return false;
        };
        self.is_name(at + line + 1, "if")
            && self.is_name(at + line + 2, variable)
            && self.is_mark(at + line + 3, ':')
    }
}

/// Returns the needs of a command of which any one of several programs runs.
pub(super) fn start_any(
    programs: &[String],
    arguments: &[String],
    line: usize,
) -> Vec<ConcludedNeed> {
    let command = |program: &String| -> Vec<ConcludedNeed> {
        let command: Vec<String> = std::iter::once(program).chain(arguments).cloned().collect();
        find_argument_needs(&command, line)
    };
    let Some((first, others)) = programs.split_first() else {
        return Vec::new();
    };
    let mut needs = command(first);
    let names = others
        .iter()
        .flat_map(command)
        .filter(|need| need.kind == NeedKind::Binary);
    let names: Vec<String> = names.flat_map(|need| need.names).collect();
    match needs.first_mut() {
        Some(need) if need.kind == NeedKind::Binary => add_names(need, names),
        _ => {}
    }
    needs
}

/// Returns the last part of a dotted name.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns `true` if a line begins with a condition that is not negated.
fn is_positive_condition(head: &str) -> bool {
    let mut words = head.split(' ');
    matches!(words.next(), Some("if" | "elif")) && words.next() != Some("not")
}

#[cfg(test)]
mod tests;
