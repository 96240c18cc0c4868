//! Infers packages from what a skill's text installs and its scripts import. Pure.
//!
//! The text may name anything: a build leaves out what does not exist.

use super::python_requirements::likely_package_of;
use super::{Need, NeedKind};
use crate::parse::added_packages::{ADDED_PACKAGES_MAX, InferredPackages};
use crate::parse::environment_need::InferredRequirement;
use crate::parse::problem::Severity;

/// Modules of Python's standard library, of version 3.9 to 3.14, without those that begin with `_`.
#[rustfmt::skip]
const STANDARD_MODULES: &[&str] = &[
    "abc", "aifc", "annotationlib", "antigravity", "argparse", "array", "ast", "asynchat", "asyncio", "asyncore",
    "atexit", "audioop", "base64", "bdb", "binascii", "binhex", "bisect", "builtins", "bz2", "cProfile", "calendar",
    "cgi", "cgitb", "chunk", "cmath", "cmd", "code", "codecs", "codeop", "collections", "colorsys", "compileall",
    "compression", "concurrent", "configparser", "contextlib", "contextvars", "copy", "copyreg", "crypt", "csv",
    "ctypes", "curses", "dataclasses", "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest",
    "email", "encodings", "ensurepip", "enum", "errno", "faulthandler", "fcntl", "filecmp", "fileinput", "fnmatch",
    "formatter", "fractions", "ftplib", "functools", "gc", "genericpath", "getopt", "getpass", "gettext", "glob",
    "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http", "idlelib", "imaplib", "imghdr", "imp",
    "importlib", "inspect", "io", "ipaddress", "itertools", "json", "keyword", "lib2to3", "linecache", "locale",
    "logging", "lzma", "mailbox", "mailcap", "marshal", "math", "mimetypes", "mmap", "modulefinder", "msilib",
    "msvcrt", "multiprocessing", "netrc", "nis", "nntplib", "nt", "ntpath", "nturl2path", "numbers", "opcode",
    "operator", "optparse", "os", "ossaudiodev", "parser", "pathlib", "pdb", "pickle", "pickletools", "pipes",
    "pkgutil", "platform", "plistlib", "poplib", "posix", "posixpath", "pprint", "profile", "pstats", "pty", "pwd",
    "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random", "re", "readline",
    "reprlib", "resource", "rlcompleter", "runpy", "sched", "secrets", "select", "selectors", "shelve", "shlex",
    "shutil", "signal", "site", "smtpd", "smtplib", "sndhdr", "socket", "socketserver", "spwd", "sqlite3",
    "sre_compile", "sre_constants", "sre_parse", "ssl", "stat", "statistics", "string", "stringprep", "struct",
    "subprocess", "sunau", "symbol", "symtable", "sys", "sysconfig", "syslog", "tabnanny", "tarfile", "telnetlib",
    "tempfile", "termios", "textwrap", "this", "threading", "time", "timeit", "tkinter", "token", "tokenize",
    "tomllib", "trace", "traceback", "tracemalloc", "tty", "turtle", "turtledemo", "types", "typing", "unicodedata",
    "unittest", "urllib", "uu", "uuid", "venv", "warnings", "wave", "weakref", "webbrowser", "winreg", "winsound",
    "wsgiref", "xdrlib", "xml", "xmlrpc", "zipapp", "zipfile", "zipimport", "zlib", "zoneinfo",
];

/// Returns the packages that are concluded from a skill's text. Those of installation lines come first, because they
/// name packages and not modules.
pub(crate) fn infer_packages(needs: &[Need]) -> InferredPackages {
    let mut inferred = InferredPackages::default();
    let concluded = || {
        needs
            .iter()
            .filter(|need| need.severity == Severity::Warning)
    };
    let names = |kind: NeedKind| {
        let needs = concluded().filter(move |need| need.kind == kind);
        needs.flat_map(|need| need.names.iter())
    };
    let installed = names(NeedKind::PythonPackage).map(|name| InferredRequirement {
        requirement: name.clone(),
        module: String::new(),
    });
    let imported = names(NeedKind::PythonModule).filter(|module| !is_standard_module(module));
    let imported = imported.map(|module| InferredRequirement {
        requirement: likely_package_of(module),
        module: module.clone(),
    });
    inferred.python = installed.chain(imported).take(ADDED_PACKAGES_MAX).collect();
    let node = names(NeedKind::NodePackage).take(ADDED_PACKAGES_MAX);
    inferred.node = node.cloned().collect();
    inferred
}

fn is_standard_module(module: &str) -> bool {
    let top = module.split('.').next().unwrap_or_default();
    top.starts_with('_') || STANDARD_MODULES.binary_search(&top).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(kind: NeedKind, name: &str, severity: Severity) -> Need {
        Need {
            kind,
            names: vec![name.to_owned()],
            severity,
            source: String::new(),
        }
    }

    #[test]
    fn packages_are_inferred_from_installs_and_imports() {
        use NeedKind::{Binary, NodePackage, PythonModule, PythonPackage};
        let needs = [
            (PythonModule, "yaml"),
            (PythonModule, "json"),
            (PythonModule, "xml.etree"),
            (PythonModule, "__future__"),
            (PythonPackage, "simpy"),
            (NodePackage, "docx"),
            (Binary, "pandoc"),
        ]
        .map(|(kind, name)| need(kind, name, Severity::Warning));
        let stated = need(PythonPackage, "pandas", Severity::Error);
        let inferred = infer_packages(&[needs.as_slice(), &[stated]].concat());
        let python = inferred.python.iter();
        let python: Vec<_> = python
            .map(|package| (package.requirement.as_str(), package.module.as_str()))
            .collect();
        assert_eq!(python, [("simpy", ""), ("pyyaml", "yaml")]);
        assert_eq!(inferred.node, ["docx"]);
    }

    #[test]
    fn a_skill_infers_a_bounded_number_of_packages() {
        let needs: Vec<Need> = (0..300)
            .map(|number| {
                need(
                    NeedKind::PythonModule,
                    &format!("m{number}"),
                    Severity::Warning,
                )
            })
            .collect();
        assert_eq!(infer_packages(&needs).python.len(), ADDED_PACKAGES_MAX);
    }

    #[test]
    fn the_standard_modules_are_sorted() {
        assert!(STANDARD_MODULES.is_sorted());
    }
}
