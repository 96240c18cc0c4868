//! Texts and lists that variables of Python source may have. Pure.

use std::collections::HashSet;

use super::{
    ARGUMENTS_MAX, CallReader, CommandValue, PythonToken, VALUE_BYTES_MAX, VALUES_MAX, last_part,
};
use crate::catalogue::preflight::has_word;

impl CallReader<'_> {
    /// Returns `true` at `name =` and `name: type =`.
    pub(super) fn is_assignment(&self, at: usize) -> bool {
        self.value_of_assignment(at).is_some()
    }

    /// Returns the index at which an assigned value begins.
    pub(super) fn value_of_assignment(&self, at: usize) -> Option<usize> {
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

    pub(super) fn assign(&mut self, name: &str, at: usize) {
        let Some(value_at) = self.value_of_assignment(at) else {
            return;
        };
        let mut values = Vec::from_iter(self.value(value_at));
        // `a if x else b`, `a or b`
        for ahead in value_at..value_at + ARGUMENTS_MAX {
            match self.tokens.get(ahead) {
                Some((PythonToken::Name(name), _)) if name == "else" || name == "or" => {
                    values.extend(self.value(ahead + 1));
                }
                Some((PythonToken::Line(_), _)) | None => break,
                Some(_) => {}
            }
        }
        // An attribute is known in all functions.
        let scope = match name.contains('.') {
            true => self.scopes.first_mut(),
            false => self.scopes.last_mut(),
        };
        if let Some(scope) = scope.filter(|_| !values.is_empty()) {
            let known = scope
                .variables
                .entry(last_part(name).to_owned())
                .or_default();
            known.extend(values);
            known.truncate(VALUES_MAX);
        }
    }

    /// Reads `for name in values`.
    pub(super) fn loop_variable(&mut self, at: usize) {
        let (Some((PythonToken::Name(name), _)), true) =
            (self.tokens.get(at + 1), self.is_name(at + 2, "in"))
        else {
            return;
        };
        let values = match self.value(at + 3) {
            Some(CommandValue::List(programs, arguments)) => {
                programs.into_iter().chain(arguments).collect()
            }
            Some(CommandValue::Text(_)) => Vec::new(),
            None => match self.tokens.get(at + 3) {
                Some((PythonToken::Name(list), _)) => self.texts_of(list),
                _ => Vec::new(),
            },
        };
        let values = values.into_iter().filter(|text| !text.is_empty());
        let values = values.take(VALUES_MAX).map(CommandValue::Text).collect();
        if let Some(scope) = self.scopes.last_mut() {
            scope.variables.insert(name.clone(), values);
        }
    }

    /// Returns the values of a variable in the innermost scope that has it.
    pub(super) fn values_of(&self, variable: &str) -> &[CommandValue] {
        let name = last_part(variable);
        let mut scopes = self.scopes.iter().rev();
        let values = scopes.find_map(|scope| {
            let values = scope.variables.get(name).map(Vec::as_slice);
            let is_parameter = || scope.parameters.iter().any(|parameter| parameter == name);
            values.or_else(|| is_parameter().then_some(&[][..]))
        });
        values.unwrap_or_default()
    }

    /// Returns the programs that a variable may name, itself or at the beginning of a list.
    fn programs_of(&self, variable: &str) -> Vec<String> {
        if variable == "sys.executable" {
            return vec!["python3".to_owned()];
        }
        let programs = self
            .values_of(variable)
            .iter()
            .flat_map(|value| match value {
                CommandValue::List(programs, _) => programs.as_slice(),
                CommandValue::Text(text) => std::slice::from_ref(text),
            });
        let mut seen = HashSet::new();
        let programs = programs.filter(|text| !text.is_empty() && seen.insert(text.as_str()));
        programs.take(VALUES_MAX).cloned().collect()
    }

    /// Returns the texts that a variable, or a list in it, may have.
    pub(super) fn texts_of(&self, variable: &str) -> Vec<String> {
        let texts = self.values_of(variable).iter().flat_map(|value| {
            let (first, others) = match value {
                CommandValue::List(programs, arguments) => (programs.as_slice(), &arguments[..]),
                CommandValue::Text(text) => (std::slice::from_ref(text), &[][..]),
            };
            first.iter().chain(others)
        });
        let texts = texts.filter(|text| !text.is_empty()).take(VALUES_MAX);
        let mut seen = HashSet::new();
        texts
            .filter(|text| seen.insert(text.as_str()))
            .cloned()
            .collect()
    }

    /// Returns the command that begins at a token: a list, a text, `shlex.split(text)` or `shutil.which(text)`.
    pub(super) fn value(&self, at: usize) -> Option<CommandValue> {
        match self.tokens.get(at)? {
            (PythonToken::Text(text), _) if text.len() > VALUE_BYTES_MAX => None,
            (PythonToken::Text(text), _) => Some(CommandValue::Text(text.clone())),
            (PythonToken::Mark('[' | '('), _) => Some(self.list(at)),
            (PythonToken::Name(name), _)
                if has_word("shlex.split shutil.which str which", name) =>
            {
                match self.tokens.get(at + 2)? {
                    (PythonToken::Text(text), _) if text.len() <= VALUE_BYTES_MAX => {
                        Some(CommandValue::Text(text.clone()))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the texts of a list; an item that only a run knows is empty.
    pub(super) fn list(&self, at: usize) -> CommandValue {
        let mut items = vec![String::new()];
        let mut programs = Vec::new();
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
                    // Each use of a variable copies its list.
                    if let Some(item) = items.last_mut()
                        && item.len() + text.len() <= VALUE_BYTES_MAX
                    {
                        item.push_str(text);
                    }
                }
                PythonToken::Name(name) if depth == 1 && items.len() == 1 => {
                    programs.extend(self.programs_of(name));
                    programs.truncate(VALUES_MAX);
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
        let first = items.remove(0);
        if !first.is_empty() {
            programs = vec![first];
        }
        CommandValue::List(programs, items)
    }
}
