//! Finds a script of a staged skill and its interpreter, by extension or shebang line. The file's mode does not matter,
//! and no shell command is built.
//!
//! The files are those of the slot's `skills/<name>/` on the host, which only the daemon writes. They are opened
//! beneath that folder, so links from a skill into the workspace do not resolve here. A writable copy is none of these
//! files: `exec_launch/writable_script.rs` finds its scripts through the guest.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use skilld_common::names::base_name;

use crate::error::{Error, Result};
use crate::name_similarity::{nearest_names, similarity};
use crate::openat2;
use crate::skills::interpreter;
use crate::workspace_paths;

/// Request field that errors about a script's path name.
const PATH_FIELD: &str = "spec.script.path";
/// Maximum depth of folders in the search for similar script names.
const SEARCH_DEPTH_MAX: usize = 32;
/// Maximum length of a script's first line, in bytes.
pub(crate) const FIRST_LINE_BYTES_MAX: u64 = 256;
/// Maximum number of files in the search for similar script names.
pub(crate) const SEARCHED_FILES_MAX: u32 = 2000;

/// Script of a staged skill, with its interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptProgram {
    /// Interpreter: the program and its arguments before the script's path. Empty for a script that the kernel starts by
    /// its first line.
    pub interpreter: &'static [&'static str],
    /// Path of the script, relative to the skill's root and normalised.
    pub path: String,
}

/// Normalises a script's path relative to the skill's root. Pure.
///
/// # Errors
///
/// `Invalid` if the path leaves the skill's root or cannot name a file there.
pub fn normalise_script_path(path: &str) -> Result<String> {
    let invalid = |message: &str| Err(Error::invalid(PATH_FIELD, message));
    if path.is_empty() {
        return invalid("is empty");
    }
    let normal = match workspace_paths::normalise_skill_path(PATH_FIELD, path) {
        Err(Error::LeavesSkill { .. }) => {
            return invalid("must be relative to the skill's root, without `..`");
        }
        normal => normal?,
    };
    if normal.is_empty() || path.ends_with('/') {
        return invalid("names a folder, not a script");
    }
    Ok(normal)
}

/// Finds a script beneath a staged skill's root, with its interpreter. Blocks.
///
/// # Errors
///
/// `ScriptNotFound`, with similar paths, if the skill has no such file. `Invalid` if the path leaves the skill or names
/// a folder, or if no interpreter is known for the file.
pub fn find_script(skill: &str, root: &Path, path: &str) -> Result<ScriptProgram> {
    let path = normalise_script_path(path)?;
    let failed = |errno: Errno| Error::io(format!("open a script of {skill}"), errno.into());
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let dir = open(root, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
    let file = match openat2::open_following_links(&dir, Path::new(&path), OFlag::empty()) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ENOTDIR) => {
            let mut files = Vec::new();
            list_files(root, "", 0, &mut files);
            return Err(Error::ScriptNotFound {
                nearest: similar_paths(files, &path),
                skill: skill.to_owned(),
                path,
            });
        }
        // The path itself has no `..`, so a link leads out (EXDEV), to an open file in /proc, or in a circle (ELOOP).
        Err(Errno::EXDEV | Errno::ELOOP) => {
            return Err(invalid_path(format!("{path:?} leads out of the skill")));
        }
        Err(errno) => return Err(failed(errno)),
    };
    let file = File::from(file);
    let kind = file
        .metadata()
        .map_err(|source| Error::io(format!("read a script of {skill}"), source))?;
    if !kind.is_file() {
        return Err(invalid_path(format!("{path:?} is a folder, not a script")));
    }
    choose_interpreter(path, &read_first_line(file))
}

/// Makes an error about the script's path in the request.
pub(crate) fn invalid_path(message: String) -> Error {
    Error::invalid(PATH_FIELD, message)
}

/// Returns a script with the interpreter for its extension, or else for its first line. A line that names another program
/// starts the script itself, as a command does that names its path: staging makes such files executable.
///
/// # Errors
///
/// `Invalid` if no interpreter is known for either.
pub(crate) fn choose_interpreter(path: String, first_line: &str) -> Result<ScriptProgram> {
    let interpreter = interpreter::interpreter_for_extension(&path)
        .or_else(|| interpreter::interpreter_for_shebang(first_line))
        .or_else(|| interpreter::is_direct(first_line).then_some(&[]));
    match interpreter {
        Some(interpreter) => Ok(ScriptProgram { interpreter, path }),
        None => Err(invalid_path(format!(
            "nothing here runs {path:?}: its extension is none of {}, and its first line names no \
             program: begin the file with `#!` and the path of its interpreter",
            interpreter::INTERPRETERS_BY_EXTENSION
                .map(|(extension, _)| extension)
                .join(" ")
        ))),
    }
}

/// Reads the first line of a script; returns an empty string if the file cannot be read.
fn read_first_line(file: File) -> String {
    let mut bytes = Vec::new();
    if file
        .take(FIRST_LINE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .is_err()
    {
        return String::new();
    }
    first_line(&bytes)
}

/// Returns the first line of a script's first bytes, without a byte order mark.
pub(crate) fn first_line(bytes: &[u8]) -> String {
    let line = interpreter::without_mark(bytes)
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}

/// Returns up to three of the skill's files that resemble `wanted`, best match first.
pub(crate) fn similar_paths(mut files: Vec<String>, wanted: &str) -> Vec<String> {
    let base = |path: &str| base_name(path).to_lowercase();
    let lower = wanted.to_lowercase();
    let score = |path: &String| {
        let same_name = if base(path) == base(wanted) { 1.0 } else { 0.0 };
        same_name + similarity(&path.to_lowercase(), &lower)
    };
    files.sort();
    let scored = files.into_iter().map(|path| (score(&path), path));
    nearest_names(scored.filter(|(score, _)| *score >= 0.6))
}

/// Collects the paths of regular files beneath `dir`, relative to the skill's root.
fn list_files(dir: &Path, at: &str, depth: usize, into: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else {
            continue;
        };
        if into.len() >= SEARCHED_FILES_MAX as usize || depth > SEARCH_DEPTH_MAX {
            return;
        }
        let path = if at.is_empty() {
            name
        } else {
            format!("{at}/{name}")
        };
        if kind.is_dir() {
            list_files(&entry.path(), &path, depth + 1, into);
        } else if kind.is_file() {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests;
