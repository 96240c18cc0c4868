//! The state directory: private, used by one daemon at a time, and bound to its place. A daemon holds a lock on the
//! directory itself for its life, so that no missing or replaced file in it lets a second process in. The `instance` file
//! holds the id that containers carry as a label, and the binding.
//!
//! A daemon removes containers of its own id that its slots do not know. So an id must never be in two places: a copied
//! directory is refused, and a directory that had an id does not silently get another one.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::{Chain, Error, Result};
use crate::workspace::slot;
use binding::Binding;

mod binding;

/// Hex digits of an id: 48 random bits tell all instances that share an engine apart.
const ID_DIGITS: usize = 12;

/// A state directory in use by this process.
#[derive(Debug)]
pub(super) struct Instance {
    id: String,
    /// Lock on the state directory until this is dropped; the kernel releases it if the process dies.
    _directory: Flock<File>,
    /// Lock on the `instance` file, the only one that earlier versions take.
    _file: Flock<File>,
}

/// Contents of the `instance` file.
#[derive(Debug, PartialEq, Eq)]
enum Contents {
    Empty,
    Damaged,
    /// `binding` is `None` in a file from before directories were bound.
    Known {
        id: String,
        binding: Option<Binding>,
    },
}

/// A locked `instance` file.
#[derive(Debug)]
struct InstanceFile {
    state_dir: PathBuf,
    path: PathBuf,
    lock: Flock<File>,
    contents: Contents,
}

// === impl Instance ===

impl Instance {
    /// Makes the directory if needed, takes its lock, and reads or makes its id. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be used, another daemon uses it, it is a copy of another one, or its id is lost.
    pub(super) fn take(state_dir: &Path) -> Result<Self> {
        make_private(state_dir)?;
        let directory = try_lock(state_dir, state_dir)?;
        let path = state_dir.join("instance");
        let exists = path.try_exists().map_err(failed("look for", &path))?;
        if !exists {
            if has_slots(state_dir)? {
                return Err(refused(state_dir, "its instance file is missing"));
            }
            create(state_dir, &path)?;
        }
        let file = InstanceFile::open(state_dir, path)?;
        let now = file.binding()?;
        let (id, recorded) = match &file.contents {
            Contents::Empty => return Err(refused(state_dir, "its instance file is empty")),
            Contents::Damaged => {
                let why =
                    format!("its instance file does not hold the {ID_DIGITS} hex digits of an id");
                return Err(refused(state_dir, &why));
            }
            Contents::Known { id, binding } => (id.clone(), binding),
        };
        if let Some(recorded) = recorded
            && let Some(why) = now.copy_of(recorded)
        {
            return Err(is_copy(state_dir, &id, recorded, why));
        }
        if recorded.as_ref() != Some(&now) {
            tracing::info!(from = ?recorded.as_ref().map(|binding| &binding.path), to = now.path, "binding the state directory to its place");
            // What is written there still holds, or holds as little as before.
            if let Err(error) = file.write(&id, &now) {
                tracing::warn!(error = %Chain(&error), "the state directory's place was not noted");
            }
        }
        Ok(Self {
            id,
            _directory: directory,
            _file: file.lock,
        })
    }

    /// Stays the same over restarts.
    #[must_use]
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

/// Gives a copied state directory, or one whose id is lost, an id of its own, and empties its slots. Containers are not
/// touched. Changes nothing if the directory is no copy. Returns what was done, for people. Blocks.
///
/// # Errors
/// When the directory cannot be used, when another daemon uses it, or when it is not bound yet: then nothing tells an
/// original from a copy, and an original would lose its workspaces.
pub(super) fn adopt_copy(state_dir: &Path) -> Result<String> {
    make_private(state_dir)?;
    let _directory = try_lock(state_dir, state_dir)?;
    let path = state_dir.join("instance");
    if !path.try_exists().map_err(failed("look for", &path))? {
        let done = emptied(state_dir, None)?;
        create(state_dir, &path)?;
        return Ok(done);
    }
    let file = InstanceFile::open(state_dir, path)?;
    let now = file.binding()?;
    let old = match &file.contents {
        Contents::Known {
            id,
            binding: Some(recorded),
        } if now.copy_of(recorded).is_none() => {
            return Ok(format!(
                "{} is no copy: it stays instance {id}, and nothing was changed",
                state_dir.display()
            ));
        }
        Contents::Known { id, binding: None } => return Err(unbound(state_dir, id)),
        Contents::Known {
            id,
            binding: Some(_),
        } => Some(id.clone()),
        Contents::Empty | Contents::Damaged => None,
    };
    // The slots go first: a copy that was interrupted here is still refused.
    let done = emptied(state_dir, old.as_deref())?;
    file.write(&new_id(), &now)?;
    Ok(done)
}

/// Deletes the slots' directories, which belong to containers of the instance that was copied.
fn emptied(state_dir: &Path, old: Option<&str>) -> Result<String> {
    let slots = state_dir.join("slots");
    let mut removed = 0_u32;
    for entry in std::fs::read_dir(&slots).map_err(failed("list", &slots))? {
        slot::erase(&entry.map_err(failed("list", &slots))?.path())?;
        removed += 1;
    }
    let dir = state_dir.display();
    let containers = match old {
        Some(id) => format!(
            "containers of instance {id} were not touched: if its own state directory is gone for good, remove them with\n  \
             docker ps -aq --filter label=io.skilld.instance={id} | xargs -r docker rm -fv"
        ),
        None => "containers were not touched: `docker ps -a --filter label=io.skilld.instance` lists those of all instances"
            .to_owned(),
    };
    Ok(format!(
        "{dir} has an id of its own now, and slots removed from it: {removed}; start skilld on it as usual\n{containers}"
    ))
}

// === impl InstanceFile ===

impl InstanceFile {
    fn open(state_dir: &Path, path: PathBuf) -> Result<Self> {
        let mut lock = try_lock(&path, state_dir)?;
        let mut bytes = Vec::new();
        lock.read_to_end(&mut bytes)
            .map_err(failed("read", &path))?;
        Ok(Self {
            state_dir: state_dir.to_owned(),
            path,
            lock,
            contents: parse(&String::from_utf8_lossy(&bytes)),
        })
    }

    /// The place where the directory is now.
    fn binding(&self) -> Result<Binding> {
        Binding::of(&self.state_dir).map_err(failed("look at", &self.state_dir))
    }

    /// Replaces the contents in place: the lock is on this file. Its first line, the id, is whole at any moment.
    fn write(&self, id: &str, binding: &Binding) -> Result<()> {
        let text = text(id, binding);
        let write = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
            file.sync_all()
        };
        write().map_err(failed("write", &self.path))
    }
}

/// Takes the exclusive lock on a file or directory of a state directory, without waiting.
fn try_lock(path: &Path, state_dir: &Path) -> Result<Flock<File>> {
    // For reading: the lock must not keep an operator from making a failing disk read-only.
    let file = File::open(path).map_err(failed("open", path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        let operation = if errno == Errno::EAGAIN {
            format!(
                "use the state directory {}: another skilld runs on it; stop that one, or give this one its own with \
                 --state-dir",
                state_dir.display()
            )
        } else {
            format!("lock {}", path.display())
        };
        Error::Io {
            operation,
            source: errno.into(),
        }
    })
}

/// Makes the file of a new directory, as a whole: one that is empty has been emptied by somebody.
fn create(state_dir: &Path, path: &Path) -> Result<()> {
    let create = || -> io::Result<()> {
        let binding = Binding::of(state_dir)?;
        let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
        file.write_all(text(&new_id(), &binding).as_bytes())?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            // A daemon of a version that does not lock the directory was faster; its lock on the file decides.
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    };
    create().map_err(failed("make", path))
}

fn text(id: &str, binding: &Binding) -> String {
    format!("{id}\n{}", binding.to_lines())
}

fn parse(text: &str) -> Contents {
    if text.trim().is_empty() {
        return Contents::Empty;
    }
    let (id, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (id, rest) = (id.trim(), rest.trim());
    if id.len() != ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Contents::Damaged;
    }
    let binding = Binding::parse(rest);
    if binding.is_none() && !rest.is_empty() {
        return Contents::Damaged;
    }
    Contents::Known {
        id: id.to_owned(),
        binding,
    }
}

fn is_copy(state_dir: &Path, id: &str, original: &Binding, why: &str) -> Error {
    let dir = state_dir.display();
    Error::Start {
        what: "the state directory",
        why: format!(
            "{dir} is a copy of {original} ({why}), and a daemon on it would remove the containers of instance {id}; start \
             skilld on {original}, or give {dir} an id of its own and empty its slots with `skilld --state-dir {dir} \
             --adopt-copy`; docs/backup.md has more",
            original = original.path.trim_matches('"'),
        ),
    }
}

fn unbound(state_dir: &Path, id: &str) -> Error {
    let dir = state_dir.display();
    Error::Start {
        what: "the state directory",
        why: format!(
            "{dir} is not bound to its place yet, so it may be the original of instance {id}, whose workspaces --adopt-copy \
             would give up; start skilld on it once without --adopt-copy to bind it, or, if it is a copy, remove \
             {dir}/instance and use --adopt-copy then; docs/backup.md has more"
        ),
    }
}

fn refused(state_dir: &Path, what: &str) -> Error {
    let dir = state_dir.display();
    Error::Start {
        what: "the state directory",
        why: format!(
            "{dir}: {what}, and its containers would be left to nobody; write the id that they carry into {dir}/instance \
             (`docker ps -a --filter label=io.skilld.instance --format '{{{{.Names}}}} {{{{.Mounts}}}}'` shows it, as \
             skilld-ID-SLOT), restore the file, or give up its workspaces with `skilld --state-dir {dir} --adopt-copy`"
        ),
    }
}

fn failed<'a>(verb: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
    move |source| Error::Io {
        operation: format!("{verb} {}", path.display()),
        source,
    }
}

/// Returns `true` if slots of an earlier run are there.
fn has_slots(state_dir: &Path) -> Result<bool> {
    let slots = state_dir.join("slots");
    let mut entries = std::fs::read_dir(&slots).map_err(failed("list", &slots))?;
    Ok(entries.next().is_some())
}

fn make_private(state_dir: &Path) -> Result<()> {
    let dirs = [
        state_dir.to_owned(),
        state_dir.join("slots"),
        state_dir.join("skills"),
    ];
    for dir in dirs {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&dir);
        made.and_then(|()| std::fs::set_permissions(&dir, Permissions::from_mode(0o700)))
            .map_err(|source| Error::Io {
                operation: format!("make {} private", dir.display()),
                source,
            })?;
    }
    Ok(())
}

/// The random end of a UUIDv7.
fn new_id() -> String {
    let uuid = uuid::Uuid::now_v7().simple().to_string();
    uuid.chars().skip(uuid.len() - ID_DIGITS).collect()
}

#[cfg(test)]
mod tests;
