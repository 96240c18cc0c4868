//! Programs that Python source starts: lists and texts that it hands to `subprocess`, `os`, `shutil.which` or a function
//! of its own that does so. Pure: nothing runs, and source that cannot be understood yields nothing.

use std::collections::{HashMap, HashSet};

use super::command_needs::{CommandPlace, ConcludedNeed, find_argument_needs, find_command_needs};
use super::has_word;
use super::python_requirements::{LogicalLine, is_foreign_platform, split_logical_lines};
use super::python_tokens::{PythonToken, split_tokens};

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
    /// Program and arguments.
    List(Vec<String>),
    /// Text for a shell.
    Text(String),
}

/// Reader of the calls in one file.
struct CallReader<'a> {
    tokens: &'a [(PythonToken, usize)],
    foreign_lines: &'a HashSet<usize>,
    /// Functions of the file that hand their first parameter to a program.
    runners: HashSet<String>,
    scopes: Vec<FunctionScope>,
    optional: HashSet<String>,
    found: Vec<ConcludedNeed>,
}

/// Returns the needs of the programs that a file starts.
pub(super) fn find_program_calls(source: &str) -> Vec<ConcludedNeed> {
    let tokens = split_tokens(source);
    let foreign_lines = find_foreign_lines(source);
    let imports_run = source.contains("from subprocess import");
    let mut runners: HashSet<String> = HashSet::new();
    if imports_run {
        runners.extend(["run", "call"].map(str::to_owned));
    }
    // A function that calls a function that starts its parameter starts it, too.
    for _ in 0..CALL_DEPTH_MAX {
        let mut reader = CallReader {
            tokens: &tokens,
            foreign_lines: &foreign_lines,
            runners: runners.clone(),
            scopes: vec![FunctionScope::default()],
            optional: HashSet::new(),
            found: Vec::new(),
        };
        reader.read();
        if reader.runners.len() == runners.len() {
            let optional = &reader.optional;
            let is_optional =
                |need: &ConcludedNeed| need.names.iter().any(|name| optional.contains(name));
            reader
                .found
                .retain(|need| need.kind != super::NeedKind::Binary || !is_optional(need));
            return reader.found;
        }
        runners = reader.runners;
    }
    Vec::new()
}

/// Returns the lines that run on other systems only.
fn find_foreign_lines(source: &str) -> HashSet<usize> {
    let mut foreign = HashSet::new();
    let mut skipped: Option<usize> = None;
    let lines: Vec<LogicalLine> = split_logical_lines(source);
    for (index, line) in lines.iter().enumerate() {
        let statement = line.text.trim_start();
        if statement.is_empty() {
            continue;
        }
        let indent = line.text.len() - statement.len();
        if skipped.is_some_and(|skipped| indent > skipped) {
            let end = lines
                .get(index + 1)
                .map_or(line.number + 1, |next| next.number);
            foreign.extend(line.number..end);
            continue;
        }
        let is_branch = statement.starts_with("if ") || statement.starts_with("elif ");
        skipped = (is_branch && is_foreign_platform(line)).then_some(indent);
    }
    foreign
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
                PythonToken::Name(name) if line_start && self.is_assignment(at) => {
                    self.assign(&name.clone(), at);
                }
                PythonToken::Name(name)
                    if self.is_mark(at + 1, '(') && !self.foreign_lines.contains(line) =>
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

    /// Returns `true` at `name =` and `name: type =`.
    fn is_assignment(&self, at: usize) -> bool {
        self.value_of_assignment(at).is_some()
    }

    /// Returns the index at which an assigned value begins.
    fn value_of_assignment(&self, at: usize) -> Option<usize> {
        if self.is_mark(at + 1, '=') && !self.is_mark(at + 2, '=') {
            return Some(at + 2);
        }
        if !self.is_mark(at + 1, ':') {
            return None;
        }
        // An annotation is short and stands on one line.
        let ahead = (at + 2..at + 12).take_while(|at| {
            !matches!(self.tokens.get(*at), Some((PythonToken::Line(_), _)) | None)
        });
        ahead
            .into_iter()
            .find(|at| self.is_mark(*at, '='))
            .map(|at| at + 1)
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

    fn assign(&mut self, name: &str, at: usize) {
        let Some(value_at) = self.value_of_assignment(at) else {
            return;
        };
        let Some(value) = self.value(value_at) else {
            return;
        };
        if let Some(scope) = self.scopes.last_mut() {
            let values = scope.variables.entry(name.to_owned()).or_default();
            if values.len() < VALUES_MAX {
                values.push(value);
            }
        }
    }

    /// Returns the command that begins at a token: a list, a text, or `shlex.split(text)`.
    fn value(&self, at: usize) -> Option<CommandValue> {
        match self.tokens.get(at)? {
            (PythonToken::Text(text), _) => Some(CommandValue::Text(text.clone())),
            (PythonToken::Mark('[' | '('), _) => Some(CommandValue::List(self.list_items(at))),
            (PythonToken::Name(name), _) if name == "shlex.split" || name == "str" => {
                match self.tokens.get(at + 2)? {
                    (PythonToken::Text(text), _) => Some(CommandValue::Text(text.clone())),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the texts of a list; an item that only a run knows is empty.
    fn list_items(&self, at: usize) -> Vec<String> {
        let mut items = vec![String::new()];
        let mut depth = 0_usize;
        for (token, _) in self
            .tokens
            .get(at..)
            .unwrap_or_default()
            .iter()
            .take(ARGUMENTS_MAX * 4)
        {
            match token {
                PythonToken::Mark('[' | '(' | '{') => depth += 1,
                PythonToken::Mark(']' | ')' | '}') if depth <= 1 => break,
                PythonToken::Mark(']' | ')' | '}') => depth -= 1,
                PythonToken::Mark(',') if depth == 1 => items.push(String::new()),
                PythonToken::Text(text) if depth == 1 => {
                    if let Some(item) = items.last_mut() {
                        item.push_str(text);
                    }
                }
                PythonToken::Name(_)
                | PythonToken::Text(_)
                | PythonToken::Mark(_)
                | PythonToken::Line(_) => {}
            }
            if items.len() > ARGUMENTS_MAX {
                break;
            }
        }
        items
    }

    fn call(&mut self, name: &str, at: usize, is_condition: bool) {
        let bare = name.strip_prefix("self.").unwrap_or(name);
        let is_starter = has_word(STARTERS, name) || self.runners.contains(bare);
        if !is_starter {
            return;
        }
        let line = self.tokens.get(at).map_or(1, |(_, line)| *line);
        let mut argument = at + 2;
        while matches!(self.tokens.get(argument), Some((PythonToken::Line(_), _))) {
            argument += 1;
        }
        if name.ends_with("which") || name.ends_with("find_executable") {
            let is_alternative = self.is_name(at.wrapping_sub(1), "or");
            self.probe(argument, line, is_condition, is_alternative);
            return;
        }
        // `args=[…]`
        if let (Some((PythonToken::Name(_), _)), true) =
            (self.tokens.get(argument), self.is_mark(argument + 1, '='))
        {
            argument += 2;
        }
        let takes_arguments = name.ends_with("create_subprocess_exec");
        if let Some((PythonToken::Name(variable), _)) = self.tokens.get(argument)
            && !self.is_mark(argument + 1, '(')
        {
            self.variable(&variable.clone(), line);
        }
        let value = match takes_arguments {
            true => Some(CommandValue::List(self.list_items(at + 1))),
            false => self.value(argument),
        };
        if let Some(value) = value {
            self.start(&value, line);
        }
    }

    /// Adds what a variable holds; a parameter makes its function one that starts programs.
    fn variable(&mut self, variable: &str, line: usize) {
        let mut values = Vec::new();
        let mut runner = None;
        for scope in self.scopes.iter().rev() {
            values.extend(scope.variables.get(variable).into_iter().flatten().cloned());
            if scope
                .parameters
                .first()
                .is_some_and(|first| first == variable)
            {
                runner = Some(scope.name.clone());
            }
            if !values.is_empty() || runner.is_some() {
                break;
            }
        }
        self.runners.extend(runner);
        for value in values {
            self.start(&value, line);
        }
    }

    fn start(&mut self, value: &CommandValue, line: usize) {
        let needs = match value {
            CommandValue::List(arguments) => find_argument_needs(arguments, line),
            // A text without arguments is a name or a text for a shell; either way, it begins with the program.
            CommandValue::Text(text) => {
                find_command_needs(text, line, CommandPlace::Script, &mut HashSet::new())
            }
        };
        self.found.extend(needs);
    }

    /// Reads a search for a program.
    fn probe(&mut self, argument: usize, line: usize, is_condition: bool, is_alternative: bool) {
        let Some((PythonToken::Text(name), _)) = self.tokens.get(argument) else {
            return;
        };
        if let Some(first) = self.found.last_mut().filter(|_| is_alternative) {
            first.names.push(name.clone());
        } else if is_condition {
            self.optional.insert(name.clone());
        } else {
            self.found
                .extend(find_argument_needs(std::slice::from_ref(name), line));
        }
    }
}

/// Returns `true` if a line begins with a condition that is not negated.
fn is_positive_condition(head: &str) -> bool {
    let mut words = head.split(' ');
    matches!(words.next(), Some("if" | "elif")) && words.next() != Some("not")
}

#[cfg(test)]
mod tests;
