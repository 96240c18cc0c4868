//! Packages that JavaScript and TypeScript import, found line by line. Pure.

use super::python_requirements::LocatedName;
use crate::parse::npm_specifier::package_of_specifier;

/// Modules that Node.js itself has.
#[rustfmt::skip]
const BUILTINS: &[&str] = &[
    "assert", "async_hooks", "buffer", "child_process", "cluster", "console", "constants", "crypto", "dgram",
    "diagnostics_channel", "dns", "domain", "events", "fs", "http", "http2", "https", "inspector", "module", "net",
    "os", "path", "perf_hooks", "process", "punycode", "querystring", "readline", "repl", "stream", "string_decoder",
    "sys", "timers", "tls", "trace_events", "tty", "url", "util", "v8", "vm", "wasi", "worker_threads", "zlib",
];
/// Beginnings of the lines in which `from` names a module.
const CLAUSES: [&str; 3] = ["import ", "import{", "export "];

/// Returns the packages that source imports by `import`, `export … from` and `require`, with their lines.
pub(super) fn find_imports(source: &str) -> Vec<LocatedName> {
    let lines = source.lines().enumerate();
    let specifiers = lines.flat_map(|(index, line)| {
        let specifiers = specifiers_of_line(line.trim_start()).into_iter();
        specifiers.map(move |specifier| (specifier, index + 1))
    });
    let packages = specifiers.filter_map(|(specifier, line)| {
        let top = specifier.split('/').next().unwrap_or_default();
        let is_url = specifier.contains(':') && !specifier.starts_with("npm:");
        (!is_url && !BUILTINS.contains(&top))
            .then(|| Some((package_of_specifier(specifier)?, line)))?
    });
    packages.collect()
}

/// Returns the specifiers in a line. Comments and imports of types name nothing that runs.
fn specifiers_of_line(line: &str) -> Vec<&str> {
    let is_skipped = ["//", "*", "/*", "import type ", "export type "];
    if is_skipped.iter().any(|begin| line.starts_with(begin)) {
        return Vec::new();
    }
    let required = line.match_indices("require(").filter_map(|(at, call)| {
        let (before, after) = line.split_at_checked(at)?;
        // In `x.require(` or a text it is another word.
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || "._$\"'`".contains(c));
        quoted_text(after.get(call.len()..)?).filter(|_| is_word)
    });
    let mut specifiers: Vec<&str> = required.collect();
    let begins_clause = CLAUSES.iter().any(|clause| line.starts_with(clause));
    // A clause of several lines ends with a brace, perhaps behind its last names.
    let end = line.trim_start_matches(|c: char| c.is_alphanumeric() || "_$, ".contains(c));
    if begins_clause || end.starts_with('}') {
        specifiers.extend(line.split("from").skip(1).filter_map(quoted_text));
        specifiers.extend(line.strip_prefix("import ").and_then(quoted_text));
    }
    specifiers
}

/// Returns the string literal that a text begins with.
fn quoted_text(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| "\"'`".contains(*c))?;
    text.get(1..)?.split_once(quote).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_those_of_import_export_and_require() {
        for (source, expected) in [
            (
                "const a = require('docx'), {b} = require(\"@s/b/c\");",
                &["docx", "@s/b"][..],
            ),
            (
                "import a from 'a1';\nimport {\n  b,\n} from 'b1';\nimport 'c1'",
                &["a1", "b1", "c1"],
            ),
            ("import { a,\n  b as c } from 'a1'", &["a1"]),
            ("f(`${x} from \"a\"`)", &[]),
            ("import{a}from\"a1\"; export * from 'b1'", &["a1", "b1"]),
            (
                "import type { A } from 'types'; export type { B } from 'types'",
                &[],
            ),
            (
                "import fs from 'fs'; require('node:path'); require('fs/promises')",
                &[],
            ),
            (
                "import x from './y.js'; require('..'); require(`${x}`)",
                &[],
            ),
            (
                "import x from 'https://x.example/y.js'; import y from 'npm:chalk@5'",
                &["chalk"],
            ),
            (
                "// require('a')\n* import 'b'\nx.require('c'); 'require('d')'",
                &[],
            ),
            ("const from = 'a'; // moved from 'b'", &[]),
        ] {
            let found = find_imports(source).into_iter();
            let names: Vec<String> = found.map(|(name, _)| name).collect();
            assert_eq!(names, expected, "{source}");
        }
    }
}
