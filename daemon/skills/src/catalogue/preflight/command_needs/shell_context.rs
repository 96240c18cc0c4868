//! Branches, functions and variables around a command, and what they say about the programs that a text looks for.
//!
//! A text does without a program if it goes on where the program is missing. It needs the program if it then fails. If
//! it looks for one program after the other and fails without all of them, any one suffices.

use std::collections::{HashMap, HashSet};

use super::{CommandReader, program_of_text};
use crate::catalogue::preflight::NeedKind;
use crate::catalogue::preflight::program_names::{is_builtin, is_program_name};
use crate::catalogue::preflight::shell_words::{
    Joint, ShellCommand, ShellMark, ShellWord, VALUES_MAX,
};

/// Maximum length of a value that is kept, in bytes.
const VALUE_BYTES_MAX: usize = 200;
/// Maximum number of programs that one command looks for. Each call of a function repeats them.
const PROBED_MAX: usize = 32;
/// Words in conditions and patterns that hold on other systems only.
const OTHER_SYSTEMS: [&str; 6] = ["cygwin", "darwin", "macos", "mingw", "msys", "windows"];

/// Open `if`.
#[derive(Debug, Default)]
pub(super) struct IfBlock {
    in_condition: bool,
    /// Programs that a condition looks for.
    present: Vec<String>,
    /// `true` if one condition looks for several of them.
    wants_all: bool,
    /// Programs that a negated condition looks for; of each list, any one suffices.
    absent: Vec<Vec<String>>,
    /// `true` if the next one belongs to the last list.
    is_joined: bool,
    /// `true` if the current condition looks for a program.
    has_probe: bool,
    /// `true` if another condition does not.
    has_other: bool,
    is_else: bool,
    is_other_system: bool,
    /// `Some(true)` if the current branch fails, `Some(false)` if it is left without a failure.
    fails: Option<bool>,
    line: usize,
}

/// Function whose body is being read.
#[derive(Debug, Default)]
struct OpenFunction {
    name: String,
    braces: usize,
    /// Number of needs before it.
    needs: usize,
    commands: usize,
    /// `true` if its last command ends the script with a failure.
    fails: bool,
    /// Programs that it only looks for.
    probe: Option<Vec<String>>,
}

/// Branches, functions and variables around a command.
#[derive(Debug, Default)]
pub(super) struct ShellContext {
    pub(super) functions: HashSet<String>,
    blocks: Vec<IfBlock>,
    braces: usize,
    open: Option<OpenFunction>,
    /// Functions that look for the programs in their arguments.
    probers: HashSet<String>,
    /// Functions that look for certain programs.
    probes: HashMap<String, Vec<String>>,
    /// Functions that end the script with a failure.
    failing: HashSet<String>,
    variables: HashMap<String, Vec<String>>,
    is_other_case: bool,
}

impl ShellContext {
    /// Returns the values that a word may have; `$1` where the function's caller gives it.
    pub(super) fn resolve(&self, word: &ShellWord) -> Vec<String> {
        if !word.is_dynamic {
            return vec![word.text.clone()];
        }
        let braced = || word.text.strip_prefix("${")?.strip_suffix('}');
        let Some(inner) = braced().or(word.text.strip_prefix('$')) else {
            return Vec::new();
        };
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let length = inner.find(|char| !is_name(char)).unwrap_or(inner.len());
        let (name, rest) = inner.split_at_checked(length).unwrap_or((inner, ""));
        if name.starts_with('1') || matches!(rest, "@" | "*") {
            return vec!["$1".to_owned()];
        }
        let mut values = self.variables.get(name).cloned().unwrap_or_default();
        let default = rest.strip_prefix(":-").or(rest.strip_prefix(":="));
        values.extend(default.or(rest.strip_prefix('-')).map(str::to_owned));
        values.retain(|value| !value.is_empty());
        values
    }

    pub(super) fn set_variable(&mut self, name: &str, value: &ShellWord) {
        let values = self.resolve(value);
        let known = self.variables.entry(name.to_owned()).or_default();
        for value in values {
            if value.len() <= VALUE_BYTES_MAX && known.len() < VALUES_MAX && !known.contains(&value)
            {
                known.push(value);
            }
        }
    }

    pub(super) fn count_command(&mut self) {
        if let Some(open) = &mut self.open {
            open.commands += 1;
            open.fails = false;
        }
    }

    pub(super) fn is_other_system(&self) -> bool {
        let mut blocks = self.blocks.iter();
        self.is_other_case || blocks.any(|block| block.is_other_system && !block.in_condition)
    }

    /// Reads `exit`, `return`, `break` and `continue`.
    pub(super) fn leave(&mut self, how: &str, status: &str) {
        let fails = match how {
            "exit" => status != "0",
            "return" => !matches!(status, "" | "0"),
            _ => false,
        };
        match (self.blocks.last_mut(), &mut self.open) {
            (Some(block), _) => block.fails = block.fails.or(Some(fails)),
            (None, Some(open)) => open.fails = fails && how == "exit",
            (None, None) => {}
        }
    }

    /// Begins a text within a command. Returns the blocks around it.
    pub(super) fn enter_text(&mut self) -> Vec<IfBlock> {
        std::mem::take(&mut self.blocks)
    }

    pub(super) fn leave_text(&mut self, blocks: Vec<IfBlock>) {
        self.blocks = blocks;
    }
}

impl CommandReader {
    pub(super) fn mark(&mut self, mark: &ShellMark) {
        match mark {
            ShellMark::If => self.context.blocks.push(IfBlock {
                in_condition: true,
                ..IfBlock::default()
            }),
            ShellMark::Then => {
                if let Some(block) = self.context.blocks.last_mut() {
                    block.in_condition = false;
                    block.has_other |= !block.has_probe && !block.is_other_system;
                    block.fails = None;
                }
            }
            ShellMark::Elif | ShellMark::Else => {
                self.end_branch(true);
                if let Some(block) = self.context.blocks.last_mut() {
                    block.is_else = *mark == ShellMark::Else;
                    block.in_condition = !block.is_else;
                    (block.has_probe, block.is_joined) = (false, false);
                    block.is_other_system = false;
                }
            }
            ShellMark::Fi => {
                self.end_branch(false);
                self.context.blocks.pop();
            }
            ShellMark::Case(pattern) => {
                let pattern = pattern.as_ref().map(|pattern| pattern.to_lowercase());
                let is_other =
                    |pattern: String| OTHER_SYSTEMS.iter().any(|name| pattern.contains(name));
                self.context.is_other_case = pattern.is_some_and(is_other);
            }
            ShellMark::Function(name) => {
                self.context.functions.insert(name.clone());
                self.context.open = Some(OpenFunction {
                    name: name.clone(),
                    braces: self.context.braces,
                    needs: self.found.len(),
                    ..OpenFunction::default()
                });
            }
            ShellMark::OpenBrace => self.context.braces += 1,
            ShellMark::CloseBrace => self.close_brace(),
            ShellMark::Value(name, value) => self.context.set_variable(name, value),
        }
    }

    fn close_brace(&mut self) {
        let context = &mut self.context;
        context.braces = context.braces.saturating_sub(1);
        let Some(open) = context.open.take_if(|open| open.braces >= context.braces) else {
            return;
        };
        if open.fails {
            context.failing.insert(open.name.clone());
        }
        // The status of a function that only looks for programs tells whether they are there.
        if let (1, Some(names)) = (open.commands, open.probe) {
            self.found.truncate(open.needs);
            context.probes.insert(open.name, names);
        }
    }

    /// Ends a branch. The block goes on with another one, or ends.
    fn end_branch(&mut self, goes_on: bool) {
        let Some(block) = self.context.blocks.last_mut() else {
            return;
        };
        let fails = block.fails.take();
        let absent = std::mem::take(&mut block.absent);
        let is_needed = fails.unwrap_or(!goes_on);
        let line = block.line;
        let mut needed = Vec::new();
        match is_needed {
            true => needed.extend(absent),
            false => self.optional.extend(absent.into_iter().flatten()),
        }
        if !goes_on {
            let present = std::mem::take(&mut block.present);
            match block.is_else && fails == Some(true) && !block.has_other {
                true if block.wants_all => {
                    needed.extend(present.into_iter().map(|name| vec![name]));
                }
                true => {
                    if present.len() > 1 {
                        self.optional.extend(present.iter().cloned());
                    }
                    needed.push(present);
                }
                false => self.optional.extend(present),
            }
        }
        for names in needed {
            self.add(NeedKind::Binary, names, line);
        }
    }

    /// Reads a call of a function that the text defines, and a test of the system. Returns `true` if nothing else is
    /// to be concluded from the command.
    pub(super) fn call_function(
        &mut self,
        command: &ShellCommand,
        name: &str,
        args: &[ShellWord],
    ) -> bool {
        let is_test = matches!(name, "[" | "[[" | "test");
        let is_own = self.context.functions.contains(name);
        if command.is_condition && (is_test || is_own) {
            let is_other = |text: &str| {
                let text = text.to_lowercase();
                OTHER_SYSTEMS.iter().any(|system| text.contains(system))
            };
            let is_denied = command.is_negated || args.iter().any(|arg| arg.text == "!=");
            let names_other = is_other(name) || args.iter().any(|arg| is_other(&arg.text));
            if let Some(block) = self.context.blocks.last_mut() {
                block.is_other_system |= names_other && !is_denied;
            }
        }
        if self.context.probers.contains(name) {
            self.probe(command, args);
        } else if let Some(names) = self.context.probes.get(name) {
            self.look_for(command, names.clone());
        } else if self.context.failing.contains(name) {
            self.context.leave("exit", "");
        }
        is_test || is_own
    }

    /// Reads a check whether programs exist.
    pub(super) fn probe(&mut self, command: &ShellCommand, args: &[ShellWord]) {
        let args = args.iter().filter(|arg| !arg.text.starts_with('-'));
        let args = args.take(PROBED_MAX);
        let values: Vec<String> = args.flat_map(|arg| self.context.resolve(arg)).collect();
        if let Some(open) = self
            .context
            .open
            .as_ref()
            .filter(|_| values.iter().any(|value| value == "$1"))
        {
            let name = open.name.clone();
            self.context.probers.insert(name);
        }
        let names = values.iter().filter_map(|value| program_of_text(value));
        let names = names.filter(|name| is_program_name(name) && !is_builtin(name));
        let names = names.take(PROBED_MAX).map(str::to_owned);
        self.look_for(command, names.collect());
    }

    fn look_for(&mut self, command: &ShellCommand, names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        let block = self
            .context
            .blocks
            .last_mut()
            .filter(|block| block.in_condition);
        match (block, command.is_negated) {
            (Some(block), is_negated) if command.is_condition => {
                block.has_probe = true;
                block.line = command.line;
                if !is_negated {
                    block.wants_all |= command.next == Joint::And;
                    block.present.extend(names);
                    return;
                }
                match block.absent.last_mut().filter(|_| block.is_joined) {
                    Some(last) => last.extend(names),
                    None => block
                        .absent
                        .extend(names.into_iter().map(|name| vec![name])),
                }
                block.is_joined = command.next == Joint::And;
            }
            (_, is_negated) if (command.next == Joint::And) != is_negated => {
                self.optional.extend(names);
            }
            (_, false) if command.is_condition => self.optional.extend(names),
            _ => {
                if let Some(open) = &mut self.context.open {
                    open.probe = Some(names.clone());
                }
                for name in names {
                    self.add(NeedKind::Binary, vec![name], command.line);
                }
            }
        }
    }
}
