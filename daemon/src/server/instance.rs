//! State directory: private, used by one daemon at a time, and bound to its place on the host.
//!
//! A daemon holds a lock on the directory itself while it runs, so that a missing or replaced file cannot admit a
//! second process. The `instance` file holds the instance's id, which containers carry as a label, and the binding.
//!
//! A daemon removes containers of its own id that its slots do not know. So two directories must never have the same
//! id: the daemon refuses a copied directory, and never gives a directory another id without being told to.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use skilld_common::atomic_write::AtomicWrite;

use crate::access::WorkspaceTokenKey;
use crate::error::{Chain, Error, Result};
use crate::host_paths::check_writable_directory;
use crate::workspace::slot_provisioning;
use directory_identity::DirectoryIdentity;

mod directory_identity;

/// Number of hex digits of an id: 48 random bits distinguish all instances that share an engine.
const ID_DIGITS: usize = 12;
/// Longest wait of a start for reports of `skilld --check` and `skilld doctor`. They lock the directory while they read
/// its small files, which takes long only on a disk that hangs.
const REPORT_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between attempts to take a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Lock of this process on its state directory, with the instance's id.
#[derive(Debug)]
pub(super) struct InstanceLock {
    pub(super) id: String,
    /// Lock on the state directory until this is dropped; the kernel releases it if the process dies.
    _directory: Flock<File>,
    /// Lock on the `instance` file, the only one that earlier versions take.
    _file: Flock<File>,
}

/// Parsed contents of the `instance` file.
#[derive(Debug, PartialEq, Eq)]
enum InstanceFileContents {
    Empty,
    Damaged,
    /// Id and binding; `binding` is `None` in a file of an earlier version, which did not bind directories.
    Known {
        id: String,
        binding: Option<DirectoryIdentity>,
    },
}

/// Locked and parsed `instance` file.
#[derive(Debug)]
struct InstanceFile {
    state_dir: PathBuf,
    path: PathBuf,
    lock: Flock<File>,
    contents: InstanceFileContents,
}

// === impl InstanceLock ===

impl InstanceLock {
    /// Creates the directory if needed, takes its lock, and reads or creates its id. Blocks the thread.
    ///
    /// # Errors
    /// [`Error`] if the directory cannot be used, another daemon uses it, it is a copy of another one, or its id is
    /// lost.
    pub(super) fn acquire(state_dir: &Path) -> Result<Self> {
        make_private_directories(state_dir)?;
        let directory = lock_directory(state_dir)?;
        let path = state_dir.join("instance");
        let exists = path.try_exists().map_err(io_error("look for", &path))?;
        if !exists {
            if has_slots(state_dir)? {
                return Err(lost_id_error(state_dir, "its instance file is missing"));
            }
            create_instance_file(state_dir, &path)?;
        }
        let file = InstanceFile::open(state_dir, path, FlockArg::LockExclusiveNonblock)?;
        let now = file.binding()?;
        let (id, recorded) = file.known_id(&now)?;
        if recorded.as_ref() != Some(&now) {
            tracing::info!(from = ?recorded.as_ref().map(|binding| &binding.path), to = now.path, "binding the state directory to its place");
            // Without the write, the recorded binding is as valid as before.
            if let Err(error) = file.write(&id, &now) {
                tracing::warn!(error = %Chain(&error), "the binding of the state directory could not be written");
            }
        }
        Ok(Self {
            id,
            _directory: directory,
            _file: file.lock,
        })
    }

    /// Checks that [`Self::acquire`] would succeed, and changes nothing. Returns `true` if a daemon runs on the
    /// directory. Blocks the thread.
    ///
    /// # Errors
    /// Those of [`Self::acquire`], except that another daemon uses the directory.
    pub(super) fn check(state_dir: &Path) -> Result<bool> {
        for dir in private_directories(state_dir) {
            check_private(&dir).map_err(|source| private_error(state_dir, &dir, source))?;
        }
        if !state_dir
            .try_exists()
            .map_err(io_error("look for", state_dir))?
        {
            return Ok(false);
        }
        // Shared, because two reports at the same time must not take each other for a daemon.
        let shared = FlockArg::LockSharedNonblock;
        let _directory = match try_lock(state_dir, state_dir, shared) {
            Err(error) if is_locked(&error) => return Ok(true),
            locked => locked?,
        };
        let path = state_dir.join("instance");
        if path.try_exists().map_err(io_error("look for", &path))? {
            let file = InstanceFile::open(state_dir, path, shared)?;
            file.known_id(&file.binding()?)?;
        } else if state_dir.join("slots").exists() && has_slots(state_dir)? {
            return Err(lost_id_error(state_dir, "its instance file is missing"));
        }
        Ok(false)
    }
}

/// Gives a copied state directory, or one whose id is lost, an id of its own, and removes its slots. Containers stay.
/// Changes nothing if the directory is not a copy. Returns a message that says what was done. Blocks the thread.
///
/// # Errors
/// [`Error`] if the directory cannot be used, if another daemon uses it, or if it is not bound yet: then an original
/// cannot be distinguished from a copy, and would lose its workspaces.
pub(super) fn adopt_copy(state_dir: &Path) -> Result<String> {
    make_private_directories(state_dir)?;
    let _directory = lock_directory(state_dir)?;
    let path = state_dir.join("instance");
    if !path.try_exists().map_err(io_error("look for", &path))? {
        let done = remove_slots(state_dir, None)?;
        create_instance_file(state_dir, &path)?;
        return Ok(done);
    }
    let file = InstanceFile::open(state_dir, path, FlockArg::LockExclusiveNonblock)?;
    let now = file.binding()?;
    let old = match &file.contents {
        InstanceFileContents::Known {
            id,
            binding: Some(recorded),
        } if now.copy_of(recorded).is_none() => {
            return Ok(format!(
                "{} is no copy: it stays instance {id}, and nothing was changed",
                state_dir.display()
            ));
        }
        InstanceFileContents::Known { id, binding: None } => {
            return Err(unbound_error(state_dir, id));
        }
        InstanceFileContents::Known {
            id,
            binding: Some(_),
        } => Some(id.clone()),
        InstanceFileContents::Empty | InstanceFileContents::Damaged => None,
    };
    // Remove the slots first: after an interruption here, the daemon still refuses the copy.
    let done = remove_slots(state_dir, old.as_deref())?;
    WorkspaceTokenKey::remove(state_dir)?;
    file.write(&new_id(), &now)?;
    Ok(done)
}

/// Removes the slots' directories, which belong to containers of the original instance, and returns a message about it.
fn remove_slots(state_dir: &Path, old: Option<&str>) -> Result<String> {
    let slots = state_dir.join("slots");
    let mut removed = 0_u32;
    for entry in std::fs::read_dir(&slots).map_err(io_error("list", &slots))? {
        slot_provisioning::erase_slot_dir(&entry.map_err(io_error("list", &slots))?.path())?;
        removed += 1;
    }
    let dir = state_dir.display();
    let containers = match old {
        Some(id) => format!(
            "containers of instance {id} were not touched: if its own state directory is gone for good, remove them with (docker, or podman)\n  \
             docker ps -aq --filter label=io.skilld.instance={id} | xargs -r docker rm -fv"
        ),
        None => "containers were not touched: `docker ps -a --filter label=io.skilld.instance` (or `podman`) lists those of all instances"
            .to_owned(),
    };
    Ok(format!(
        "{dir} has an id of its own now, and slots removed from it: {removed}; start skilld on it as usual\n{containers}"
    ))
}

// === impl InstanceFile ===

impl InstanceFile {
    fn open(state_dir: &Path, path: PathBuf, kind: FlockArg) -> Result<Self> {
        let mut lock = try_lock(&path, state_dir, kind)?;
        let mut bytes = Vec::new();
        lock.read_to_end(&mut bytes)
            .map_err(io_error("read", &path))?;
        Ok(Self {
            state_dir: state_dir.to_owned(),
            path,
            lock,
            contents: parse_instance(&String::from_utf8_lossy(&bytes)),
        })
    }

    /// Returns the id, and the recorded binding if there is one.
    ///
    /// # Errors
    /// [`Error::Start`] if the id is lost, or the directory, whose binding is `now`, is a copy.
    fn known_id(&self, now: &DirectoryIdentity) -> Result<(String, Option<DirectoryIdentity>)> {
        let (id, binding) = match &self.contents {
            InstanceFileContents::Empty => {
                return Err(lost_id_error(&self.state_dir, "its instance file is empty"));
            }
            InstanceFileContents::Damaged => {
                let why =
                    format!("its instance file does not hold the {ID_DIGITS} hex digits of an id");
                return Err(lost_id_error(&self.state_dir, &why));
            }
            InstanceFileContents::Known { id, binding } => (id, binding),
        };
        if let Some(recorded) = binding
            && let Some(why) = now.copy_of(recorded)
        {
            return Err(copy_error(&self.state_dir, id, recorded, why));
        }
        Ok((id.clone(), binding.clone()))
    }

    /// Returns the directory's current binding.
    fn binding(&self) -> Result<DirectoryIdentity> {
        DirectoryIdentity::of_directory(&self.state_dir)
            .map_err(io_error("look at", &self.state_dir))
    }

    /// Overwrites the file in place, because the lock is on it. Its first line, the id, is complete at any moment.
    fn write(&self, id: &str, binding: &DirectoryIdentity) -> Result<()> {
        let text = format_instance(id, binding);
        let write = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
            file.sync_all()
        };
        write().map_err(io_error("write", &self.path))
    }
}

/// Takes the exclusive lock on a state directory. Waits for reports, which hold a shared one, but not for a daemon.
#[expect(
    clippy::disallowed_methods,
    reason = "flock reports no release, and waiting in it has no deadline"
)]
fn lock_directory(state_dir: &Path) -> Result<Flock<File>> {
    let begin = Instant::now();
    loop {
        let refused = match try_lock(state_dir, state_dir, FlockArg::LockExclusiveNonblock) {
            Err(error) if is_locked(&error) => error,
            locked => return locked,
        };
        let is_of_reports = try_lock(state_dir, state_dir, FlockArg::LockSharedNonblock).is_ok();
        if !is_of_reports || begin.elapsed() > REPORT_TIME_MAX {
            return Err(refused);
        }
        thread::sleep(LOCK_INTERVAL);
    }
}

/// Returns `true` if a lock was not taken because another process holds it.
fn is_locked(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
}

/// Takes a lock on a file or directory of a state directory, without waiting.
fn try_lock(path: &Path, state_dir: &Path, kind: FlockArg) -> Result<Flock<File>> {
    // Open for reading: a writable descriptor would keep an operator from remounting a failing disk read-only.
    let file = File::open(path).map_err(io_error("open", path))?;
    Flock::lock(file, kind).map_err(|(_, errno)| {
        let operation = if errno == Errno::EAGAIN {
            format!(
                "use the state directory {}: another skilld runs on it; stop that one, or give this one its own with \
                 --state-dir",
                state_dir.display()
            )
        } else {
            format!("lock {}", path.display())
        };
        Error::io(operation, errno.into())
    })
}

/// Creates the `instance` file of a new directory in one step, so that an empty file always means damage.
fn create_instance_file(state_dir: &Path, path: &Path) -> Result<()> {
    let create = || -> io::Result<()> {
        let binding = DirectoryIdentity::of_directory(state_dir)?;
        let text = format_instance(&new_id(), &binding);
        let written = AtomicWrite::new(state_dir, text.as_bytes(), 0o600)?.sync()?;
        match written.install_new(path) {
            // A daemon of an earlier version, which does not lock the directory, was faster; its lock on the file
            // decides.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    create().map_err(io_error("make", path))
}

fn format_instance(id: &str, binding: &DirectoryIdentity) -> String {
    format!("{id}\n{}", binding.to_lines())
}

fn parse_instance(text: &str) -> InstanceFileContents {
    if text.trim().is_empty() {
        return InstanceFileContents::Empty;
    }
    let (id, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (id, rest) = (id.trim(), rest.trim());
    if id.len() != ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return InstanceFileContents::Damaged;
    }
    let binding = DirectoryIdentity::parse(rest);
    if binding.is_none() && !rest.is_empty() {
        return InstanceFileContents::Damaged;
    }
    InstanceFileContents::Known {
        id: id.to_owned(),
        binding,
    }
}

fn copy_error(state_dir: &Path, id: &str, original: &DirectoryIdentity, why: &str) -> Error {
    let dir = state_dir.display();
    let why = format!(
        "{dir} is a copy of {original} ({why}), and a daemon on it would remove the containers of instance {id}; start \
         skilld on {original}, or give {dir} an id of its own and empty its slots with `skilld --state-dir {dir} \
         --adopt-copy`; docs/backup.md has more",
        original = original.path.trim_matches('"'),
    );
    Error::start("the state directory", why)
}

fn unbound_error(state_dir: &Path, id: &str) -> Error {
    let dir = state_dir.display();
    let why = format!(
        "{dir} is not bound to its place yet, so it may be the original of instance {id}, whose workspaces --adopt-copy \
         would give up; start skilld on it once without --adopt-copy to bind it, or, if it is a copy, remove \
         {dir}/instance and use --adopt-copy then; docs/backup.md has more"
    );
    Error::start("the state directory", why)
}

fn lost_id_error(state_dir: &Path, what: &str) -> Error {
    let dir = state_dir.display();
    let why = format!(
        "{dir}: {what}, and its containers would be left to nobody; write the id that they carry into {dir}/instance \
         (`docker ps -a --filter label=io.skilld.instance --format '{{{{.Names}}}} {{{{.Mounts}}}}'` shows it, as \
         skilld-ID-SLOT), restore the file, or give up its workspaces with `skilld --state-dir {dir} --adopt-copy`"
    );
    Error::start("the state directory", why)
}

fn io_error<'a>(verb: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
    move |source| Error::io(format!("{verb} {}", path.display()), source)
}

/// Returns `true` if the directory has slots of an earlier run.
fn has_slots(state_dir: &Path) -> Result<bool> {
    let slots = state_dir.join("slots");
    let mut entries = std::fs::read_dir(&slots).map_err(io_error("list", &slots))?;
    Ok(entries.next().is_some())
}

/// Returns the directories that a daemon makes before it takes its lock.
fn private_directories(state_dir: &Path) -> [PathBuf; 3] {
    [
        state_dir.to_owned(),
        state_dir.join("slots"),
        state_dir.join("skills"),
    ]
}

fn make_private_directories(state_dir: &Path) -> Result<()> {
    for dir in private_directories(state_dir) {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&dir);
        made.and_then(|()| make_private(&dir))
            .map_err(|source| private_error(state_dir, &dir, source))?;
    }
    Ok(())
}

/// Makes a directory private unless it is, so that a daemon starts on a read-only disk.
fn make_private(dir: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(dir)?.permissions().mode() & 0o7777;
    match mode {
        0o700 => Ok(()),
        _ => std::fs::set_permissions(dir, Permissions::from_mode(0o700)),
    }
}

/// Checks that this process may make a directory, and make it private.
fn check_private(dir: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::metadata(dir) else {
        return check_writable_directory(dir);
    };
    let uid = nix::unistd::geteuid();
    if metadata.mode() & 0o7777 == 0o700 || uid.is_root() || metadata.uid() == uid.as_raw() {
        return Ok(());
    }
    Err(Errno::EPERM.into())
}

fn private_error(state_dir: &Path, dir: &Path, source: io::Error) -> Error {
    if source.kind() != io::ErrorKind::PermissionDenied {
        return Error::io(format!("make {} private", dir.display()), source);
    }
    let why = format!(
        "this user may not make {dir} private ({source}); start skilld as root, or give it a directory of this user: \
         --state-dir \"${{XDG_STATE_HOME:-$HOME/.local/state}}/skilld\" (then its socket is skilld.sock in there), \
         or make {state_dir} this user's",
        dir = dir.display(),
        state_dir = state_dir.display(),
    );
    Error::start("the state directory", why)
}

/// Makes a random id from the end of a UUIDv7.
fn new_id() -> String {
    let uuid = uuid::Uuid::now_v7().simple().to_string();
    uuid.chars().skip(uuid.len() - ID_DIGITS).collect()
}

#[cfg(test)]
mod tests;
