//! Staging: copies from the store into `slots/<slot>/skills/<name>`, which the container sees read-only.
//!
//! Everything is prepared beside `skills/`, where the container cannot see it, and published by a rename each; a
//! newer version changes places with the older one, which goes once nothing refers to it by name. Only the
//! daemon writes here, so no path on the way can be a tenant's.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::Staged;
use super::content::make_directory;
use super::store::Store;
use crate::error::{Error, Result};

/// Links in a skill's root, so that what its document says works from there: (name, target).
const LINKS: [(&str, &str); 3] = [
    ("out", "../../out"),
    ("work", "../../work"),
    ("inputs", "../../work/inputs"),
];
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
    let failed = |operation: &str| {
        let operation = format!("{operation} {}", target.display());
        move |source| Error::Io { operation, source }
    };
    let slot = target.parent().unwrap_or(target);
    // One at a time in a slot, so that the digests beside the skills stay true.
    let lock = File::open(target).map_err(failed("open"))?;
    lock.lock().map_err(failed("lock"))?;
    let digests = slot.join(DIGESTS);
    for skill in &mut skills {
        let there = fs::read_to_string(digests.join(&skill.name))
            .is_ok_and(|digest| digest == skill.digest);
        skill.unchanged = there && target.join(&skill.name).is_dir();
    }
    if skills.iter().all(|skill| skill.unchanged) {
        return Ok(skills);
    }
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
    let changed: Vec<&Staged> = skills.iter().filter(|skill| !skill.unchanged).collect();
    for skill in &changed {
        prepare(
            &store.dir(&skill.digest),
            &prepared.path().join(&skill.name),
            &skill.name,
        )
        .map_err(failed("copy a skill to"))?;
    }
    for skill in &changed {
        match fs::remove_file(digests.join(&skill.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("stage")(error));
            }
            _ => {}
        }
    }
    let mut done: Vec<(&str, bool)> = Vec::new();
    for skill in &changed {
        match swap_in(
            &prepared.path().join(&skill.name),
            &target.join(&skill.name),
        ) {
            Ok(replaced) => done.push((&skill.name, replaced)),
            Err(error) => {
                undo(&done, prepared.path(), target);
                return Err(failed("publish a skill in")(error));
            }
        }
    }
    for skill in &changed {
        // Without it the next stage of the same skill copies again, which is all that it saves.
        if let Err(error) = fs::write(digests.join(&skill.name), &skill.digest) {
            tracing::warn!(skill = skill.name, %error, "digest of a staged skill was not noted");
        }
    }
    // Dropping `prepared` removes what was replaced.
    Ok(skills)
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

/// Makes the folder that a workspace gets: the stored files, and the links unless the skill has its own.
fn prepare(stored: &Path, to: &Path, name: &str) -> io::Result<()> {
    copy(stored, to)?;
    let venv = format!("../../work/.venvs/{name}");
    for (link, target) in LINKS.into_iter().chain([(".venv", venv.as_str())]) {
        match symlink(target, to.join(link)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Copies a stored directory; by reflink where the file system can. Never a hard link: a lock on a shared inode
/// would cross tenants.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    make_directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, target)?;
        } else {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Gives a prepared folder its name. True when it changed places with an older one.
fn swap_in(prepared: &Path, place: &Path) -> io::Result<bool> {
    let rename = |flags| renameat2(AT_FDCWD, prepared, AT_FDCWD, place, flags);
    match rename(RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => return Ok(false),
        // EINVAL: this file system knows no flags.
        Err(Errno::EINVAL) if !place.exists() => {
            return fs::rename(prepared, place).map(|()| false);
        }
        Err(Errno::EEXIST | Errno::EINVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    match rename(RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL) => {
            let away = prepared.with_extension("old");
            fs::rename(place, &away)?;
            fs::rename(prepared, place)?;
            fs::rename(&away, prepared)?;
            Ok(true)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Puts back what was there before.
fn undo(done: &[(&str, bool)], prepared: &Path, target: &Path) {
    for (name, replaced) in done.iter().rev() {
        let (kept, place) = (prepared.join(name), target.join(name));
        let undone = if *replaced {
            swap_in(&kept, &place).map(|_| ())
        } else {
            fs::rename(&place, &kept)
        };
        if let Err(error) = undone {
            tracing::error!(skill = name, %error, "cannot undo a failed staging");
        }
    }
}
