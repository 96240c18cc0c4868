//! Needs of commands that run Python: modules, code in arguments and here documents, and `uv run`.

use super::{CommandReader, ShellCommand, ShellWord, read_install_command};
use crate::catalogue::preflight::{NeedKind, import_needs, python_requirements};

impl CommandReader {
    /// Reads the arguments of `uv run`: options, then a command.
    pub(super) fn uv_command<'a>(
        &mut self,
        args: &'a [ShellWord],
        line: usize,
    ) -> Option<&'a [ShellWord]> {
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

    pub(super) fn python(&mut self, command: &ShellCommand, args: &[ShellWord]) {
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
        let needs = import_needs::find_python_import_needs(code, line + offset);
        import_needs::add_needs(&mut self.found, needs);
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
}
