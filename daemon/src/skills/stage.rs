//! Staging: copies from the store into `slots/<slot>/skills/<name>`, which the container sees read-only.
//!
//! ```text
//! .stage-*/<name>            beside skills/, where the container cannot see it: being made
//!    │ rename
//! skills/.replaced-*-<name>  whole, and as deep as a skill, so that its links lead to the workspace
//!    │ exchanged in one step with
//! skills/<name>              what commands see; the one before is now .replaced-*, and stays while a command that
//!                            started with it runs: `sweep`
//! ```
//!
//! Only the daemon writes here, so no path on the way can be a tenant's.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::Staged;
use super::store::Store;
use crate::error::{Error, Result};
use crate::fault::{self, Point};

mod copy;
mod replaced;

use replaced::Replaced;
pub(super) use replaced::{any, sweep};

/// Of directories that are being prepared.
const PREPARED: &str = ".stage-";
/// Beside `skills/`: a file per staged skill, with its digest.
const DIGESTS: &str = "staged";

/// Publishes stored skills in `target`, all or none, and says which were there already.
pub(super) fn publish(
    store: &Store,
    target: &Path,
    mut skills: Vec<Staged>,
) -> Result<Vec<Staged>> {
    check_names(&skills)?;
    let failed = failed(target);
    let slot = target.parent().unwrap_or(target);
    // One at a time in a slot, so that the digests beside the skills stay true.
    let _turn = lock(target)?;
    let digests = slot.join(DIGESTS);
    for skill in &mut skills {
        let there = fs::read_to_string(digests.join(&skill.name))
            .is_ok_and(|digest| digest == skill.digest);
        skill.unchanged = there && target.join(&skill.name).is_dir();
    }
    let mut changed: Vec<&Staged> = skills.iter().filter(|skill| !skill.unchanged).collect();
    if changed.is_empty() {
        return Ok(skills);
    }
    changed.sort_by(|a, b| a.name.cmp(&b.name));
    changed.dedup_by(|a, b| a.name == b.name);
    remove_leftovers(slot).map_err(failed("clean"))?;
    // Not with its parents: a slot that is being removed must not come back.
    match fs::create_dir(&digests) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("prepare")(error));
        }
        _ => {}
    }
    let prepared = tempfile::Builder::new().prefix(PREPARED).tempdir_in(slot);
    let prepared = prepared.map_err(failed("prepare"))?;
    for skill in &changed {
        let (stored, to) = (store.dir(&skill.digest), prepared.path().join(&skill.name));
        copy::prepare(&stored, &to, &skill.name).map_err(failed("copy a skill to"))?;
    }
    fault::reach(Point::StagePrepared);
    let mut published = Vec::new();
    for skill in &changed {
        let place = Place::new(&digests, target, &skill.name);
        match place.publish(&prepared.path().join(&skill.name)) {
            Ok(replaced) => published.push((place, replaced)),
            Err(error) => {
                undo(published, prepared.path());
                return Err(failed("publish a skill in")(error));
            }
        }
    }
    fault::reach(Point::StagePublished);
    for skill in &changed {
        // Without it the next stage of the same skill copies again, which is all that it saves.
        if let Err(error) = fs::write(digests.join(&skill.name), &skill.digest) {
            tracing::warn!(skill = skill.name, %error, "digest of a staged skill was not noted");
        }
    }
    fault::reach(Point::StageNoted);
    Ok(skills)
}

/// A folder holds one version: two of one name in a request must be the same.
fn check_names(skills: &[Staged]) -> Result<()> {
    let mut digests: HashMap<&str, &str> = HashMap::new();
    for (index, skill) in skills.iter().enumerate() {
        let other = digests.insert(&skill.name, &skill.digest);
        if other.is_some_and(|other| other != skill.digest) {
            let message = format!(
                "is another version of {} than one before it; a workspace has one at a time, in skills/{}",
                skill.name, skill.name
            );
            return Err(Error::invalid(format!("skills[{index}]"), message));
        }
    }
    Ok(())
}

fn failed(target: &Path) -> impl Fn(&str) -> Box<dyn FnOnce(io::Error) -> Error> + use<> {
    let target = target.display().to_string();
    move |operation| {
        let operation = format!("{operation} {target}");
        Box::new(move |source| Error::Io { operation, source })
    }
}

/// Held until it is dropped.
fn lock(target: &Path) -> Result<File> {
    let failed = failed(target);
    let lock = File::open(target).map_err(failed("open"))?;
    lock.lock().map_err(failed("lock"))?;
    Ok(lock)
}

/// What a daemon that was killed while it staged left behind.
fn remove_leftovers(slot: &Path) -> io::Result<()> {
    for entry in fs::read_dir(slot)? {
        let entry = entry?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREPARED.as_bytes())
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Where one skill is published.
struct Place<'a> {
    target: &'a Path,
    name: &'a str,
    /// The file with its digest.
    digest: PathBuf,
}

impl<'a> Place<'a> {
    fn new(digests: &Path, target: &'a Path, name: &'a str) -> Self {
        let digest = digests.join(name);
        Self {
            target,
            name,
            digest,
        }
    }

    /// Gives a prepared folder its name. Returns where the one is that it changed places with, if there was one.
    fn publish(&self, prepared: &Path) -> io::Result<Option<PathBuf>> {
        let since = fs::metadata(&self.digest).and_then(|noted| noted.modified());
        match fs::remove_file(&self.digest) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let place = self.target.join(self.name);
        match rename(prepared, &place, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => return Ok(None),
            // EINVAL: this file system knows no flags.
            Err(Errno::EINVAL) if !place.exists() => {
                return fs::rename(prepared, &place).map(|()| None);
            }
            Err(Errno::EEXIST | Errno::EINVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        let replaced = Replaced::new(since, SystemTime::now());
        let aside = self.target.join(replaced.file_name(self.name));
        fs::rename(prepared, &aside)?;
        fault::reach(Point::StageReplacing);
        match exchange(&aside, &place, prepared) {
            Ok(()) => Ok(Some(aside)),
            Err(error) => {
                fs::rename(&aside, prepared)?;
                Err(error)
            }
        }
    }
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat2(AT_FDCWD, from, AT_FDCWD, to, flags)
}

/// Two folders change places; `free` is a path that neither has.
fn exchange(one: &Path, other: &Path, free: &Path) -> io::Result<()> {
    match rename(one, other, RenameFlags::RENAME_EXCHANGE) {
        Err(Errno::EINVAL) => {
            fs::rename(one, free)?;
            fs::rename(other, one)?;
            fs::rename(free, other)
        }
        done => Ok(done?),
    }
}

/// Puts back what was there before.
fn undo(published: Vec<(Place<'_>, Option<PathBuf>)>, prepared: &Path) {
    for (place, replaced) in published.into_iter().rev() {
        let (path, free) = (place.target.join(place.name), prepared.join(place.name));
        let undone = match replaced {
            Some(replaced) => exchange(&replaced, &path, &free)
                // What did not come to be goes with what was prepared.
                .and_then(|()| fs::rename(&replaced, &free)),
            None => fs::rename(&path, &free),
        };
        if let Err(error) = undone {
            tracing::error!(skill = place.name, %error, "cannot undo a failed staging");
        }
    }
}
