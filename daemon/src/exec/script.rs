//! A script of a skill: which program runs it. Chosen by the file's extension, else by its first line, of which only
//! the name counts: paths in it are another machine's. Never by the file's mode, and never with a shell's text.
//!
//! What is looked at is the slot's `skills/<name>/` on the host, which only the daemon writes; it is opened beneath
//! that folder, so the links that lead from it to the workspace lead nowhere here.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::interpreter;
use crate::beneath;
use crate::error::{Error, Result};
use crate::paths;
use crate::similar::similarity;

/// What errors name.
const FIELD: &str = "spec.script.path";
/// Folders within folders that are looked through for a similar name.
const DEPTH_MAX: usize = 32;
/// How much of a file its first line may take.
const FIRST_LINE_BYTES_MAX: u64 = 256;
/// Files that are looked through for one of a similar name.
const LISTED_MAX: usize = 2000;

/// A script that is there, and what runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Program and arguments before the script's path.
    pub interpreter: &'static [&'static str],
    /// Relative to the skill's root, normalised.
    pub path: String,
}

/// Normalises a script's path. Pure.
///
/// # Errors
/// `Invalid` when it does not stay in the skill's root or cannot be a path there.
pub fn normalise(path: &str) -> Result<String> {
    let invalid = |message: &str| Err(Error::invalid(FIELD, message));
    if path.is_empty() {
        return invalid("is empty");
    }
    let normal = match paths::in_skill(FIELD, path) {
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

/// Finds a script beneath a staged skill's root, and what runs it. Blocks.
///
/// # Errors
/// `ScriptNotFound` with similar names; `Invalid` when it leaves the skill, is no file, or nothing here can run it.
pub fn find(skill: &str, root: &Path, path: &str) -> Result<Program> {
    let path = normalise(path)?;
    let invalid = |message: String| Error::invalid(FIELD, message);
    let failed = |errno: Errno| Error::Io {
        operation: format!("open a script of {skill}"),
        source: errno.into(),
    };
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let dir = open(root, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
    let file = match beneath::open(&dir, Path::new(&path), OFlag::empty()) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ENOTDIR) => {
            return Err(Error::ScriptNotFound {
                nearest: nearest(root, &path),
                skill: skill.to_owned(),
                path,
            });
        }
        Err(Errno::EXDEV | Errno::ELOOP) => {
            return Err(invalid(format!("{path:?} leads out of the skill")));
        }
        Err(errno) => return Err(failed(errno)),
    };
    let file = File::from(file);
    let kind = file.metadata().map_err(|source| Error::Io {
        operation: format!("read a script of {skill}"),
        source,
    })?;
    if !kind.is_file() {
        return Err(invalid(format!("{path:?} is a folder, not a script")));
    }
    let interpreter =
        interpreter::by_extension(&path).or_else(|| interpreter::by_first_line(&first_line(file)));
    match interpreter {
        Some(interpreter) => Ok(Program { interpreter, path }),
        None => Err(invalid(format!(
            "nothing here runs {path:?}: its extension is none of {}, and its first line names no known \
             interpreter",
            interpreter::BY_EXTENSION
                .map(|(extension, _)| extension)
                .join(" ")
        ))),
    }
}

/// Empty when it cannot be read as text.
fn first_line(file: File) -> String {
    let mut bytes = Vec::new();
    if file
        .take(FIRST_LINE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .is_err()
    {
        return String::new();
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}

/// Files of the skill with a similar path, best first.
fn nearest(root: &Path, wanted: &str) -> Vec<String> {
    let mut files = Vec::new();
    list(root, "", 0, &mut files);
    let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_lowercase();
    let lower = wanted.to_lowercase();
    let score = |path: &String| {
        let same_name = if base(path) == base(wanted) { 1.0 } else { 0.0 };
        same_name + similarity(&path.to_lowercase(), &lower)
    };
    let mut scored: Vec<(f64, String)> =
        files.into_iter().map(|path| (score(&path), path)).collect();
    scored.retain(|(score, _)| *score >= 0.6);
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored.into_iter().take(3).map(|(_, path)| path).collect()
}

fn list(dir: &Path, at: &str, depth: usize, into: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else {
            continue;
        };
        if into.len() >= LISTED_MAX || depth > DEPTH_MAX {
            return;
        }
        let path = if at.is_empty() {
            name
        } else {
            format!("{at}/{name}")
        };
        if kind.is_dir() {
            list(&entry.path(), &path, depth + 1, into);
        } else if kind.is_file() {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests;
