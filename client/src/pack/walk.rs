//! Walk over a local file or directory that decides what goes into its archive. An upload keeps links and directories,
//! and leaves out what cannot be read, with a remark. A skill has files only: links within its folder become what they
//! lead to, what its rules name is ignored, and what cannot be read is an error.

use std::fs::{self, FileType, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use skilld_proto::v1::SkipReason;

use super::{ArchivePlan, IgnoreRules, PlannedEntry, ROOT_PATH, SkippedEntry, file_id};
use crate::Error;
use crate::error::io_error;

/// Maximum number of entries, more than any server takes; it ends a walk over `/`.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum depth of a skill's folders, which is the server's.
const DEPTH_MAX: usize = 32;
/// Maximum number of a skill's folders.
const FOLDERS_MAX: usize = 10_000;
/// Advice for a skill's folder that has too much.
const ADVICE: &str = "name what does not belong to it in .skillignore";

/// Limits of an archive. The defaults exceed what a skill needs; a server's own limits are in its `ServerInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Maximum number of files.
    pub files: u64,
    /// Maximum size of all files together in bytes, not compressed.
    pub bytes: u64,
}

impl Default for PackLimits {
    fn default() -> Self {
        Self {
            files: 20_000,
            bytes: 1 << 30,
        }
    }
}

/// Rules of a skill's folder.
#[derive(Debug)]
pub(crate) struct SkillRules {
    pub(crate) limits: PackLimits,
    pub(crate) ignored: IgnoreRules,
    /// Path of the folder without links; no link is followed out of it.
    pub(crate) real_root: PathBuf,
}

/// State of a walk.
#[derive(Default)]
struct Walk {
    plan: ArchivePlan,
    skill: Option<SkillRules>,
    /// Directories to list, each with its id. The last one comes next, so the walk is depth first.
    pending: Vec<(PathBuf, (u64, u64))>,
    /// Ids of the directory that is listed and of those around it, from the root on.
    ancestors: Vec<(u64, u64)>,
    folders: usize,
    bytes: u64,
}

impl ArchivePlan {
    /// Lists a file, or everything beneath a directory; a link given by name is followed. Without rules of a skill the
    /// plan is one of an upload, and has no entries if the root is neither file nor directory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the root cannot be read, [`Error::Pack`] for what makes a skill unfit for publication.
    pub(crate) fn walk(root: &Path, skill: Option<SkillRules>) -> Result<Self, Error> {
        let plan = Self {
            root: root.to_owned(),
            skill_root: skill.as_ref().map(|skill| skill.real_root.clone()),
            ..Self::default()
        };
        let mut walk = Walk {
            plan,
            skill,
            ..Walk::default()
        };
        let metadata = fs::metadata(root).map_err(io_error(root))?;
        if metadata.is_dir() {
            walk.pending.push((PathBuf::new(), file_id(&metadata)));
        }
        if walk.skill.is_none() && (metadata.is_dir() || metadata.is_file()) {
            let (local, path) = (root.to_owned(), PathBuf::from(ROOT_PATH));
            walk.plan.entries.push(PlannedEntry {
                local,
                path,
                metadata,
            });
        }
        while let Some((directory, id)) = walk.pending.pop() {
            walk.list_directory(&directory, id)?;
        }
        let mut plan = walk.plan;
        plan.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        plan.skipped.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(plan)
    }
}

impl Walk {
    fn list_directory(&mut self, directory: &Path, id: (u64, u64)) -> Result<(), Error> {
        let local = self.plan.root.join(directory);
        let listing = match fs::read_dir(&local) {
            Ok(listing) => listing,
            Err(error) => return self.skip_unreadable(directory, error),
        };
        self.ancestors.truncate(directory.components().count());
        self.ancestors.push(id);
        for entry in listing {
            let name = entry.map_err(io_error(&local))?.file_name();
            self.visit(directory.join(name))?;
            if self.plan.entries.len() + self.plan.skipped.len() > ENTRIES_MAX {
                let problem = format!("more than {ENTRIES_MAX} files");
                return Err(io_error(&self.plan.root)(io::Error::other(problem)));
            }
        }
        Ok(())
    }

    /// Adds one path to the plan, or to what is left out.
    fn visit(&mut self, path: PathBuf) -> Result<(), Error> {
        let local = self.plan.root.join(&path);
        let mut metadata = match fs::symlink_metadata(&local) {
            Ok(metadata) => metadata,
            Err(error) => return self.skip_unreadable(&path, error),
        };
        if let Some(skill) = &self.skill {
            if skill.ignored.has(&path, metadata.is_dir()) {
                return Ok(());
            }
            if metadata.is_symlink() {
                metadata = match skill.follow_link(&local) {
                    Ok(target) if skill.ignored.has(&path, target.is_dir()) => return Ok(()),
                    Ok(target) => target,
                    Err(problem) => {
                        self.skip(&path, SkipReason::LinkTarget, problem);
                        return Ok(());
                    }
                };
            }
        }
        if let Some(problem) = describe_special_file(metadata.file_type()) {
            self.skip(&path, SkipReason::FileType, problem);
            return Ok(());
        }
        // A file that may not be read would break off the stream that it is part of.
        if metadata.is_file()
            && let Err(error) = access(&local, Access::READ_OK)
        {
            return self.skip_unreadable(&path, error.into());
        }
        self.add(PlannedEntry {
            local,
            path,
            metadata,
        })
    }

    fn add(&mut self, entry: PlannedEntry) -> Result<(), Error> {
        let limits = self.skill.as_ref().map(|skill| skill.limits);
        if let Some(limits) = limits
            && !self.check_limits(&entry, limits)?
        {
            return Ok(());
        }
        let is_dir = entry.metadata.is_dir();
        if is_dir {
            let id = file_id(&entry.metadata);
            self.pending.push((entry.path.clone(), id));
        }
        if limits.is_none() || !is_dir {
            self.plan.entries.push(entry);
        }
        Ok(())
    }

    /// Checks an entry of a skill and counts it. Returns `false` if it is left out.
    fn check_limits(&mut self, entry: &PlannedEntry, limits: PackLimits) -> Result<bool, Error> {
        let (path, is_dir) = (&entry.path, entry.metadata.is_dir());
        if is_dir && self.ancestors.contains(&file_id(&entry.metadata)) {
            self.skip(
                path,
                SkipReason::LinkTarget,
                "is a link to a folder around it",
            );
            return Ok(false);
        }
        // The server refuses other names.
        let is_portable = |name: &&str| !name.chars().any(|c| c.is_control() || c == '\\');
        let Some(name) = path.to_str().filter(is_portable) else {
            let problem = "has a name that is not UTF-8, or a backslash or control character in it";
            self.skip(Path::new(&format!("{path:?}")), SkipReason::Name, problem);
            return Ok(false);
        };
        self.folders += usize::from(is_dir);
        self.bytes = self.bytes.saturating_add(entry.size());
        let problem = if is_dir && path.components().count() > DEPTH_MAX {
            format!("{name} is deeper than {DEPTH_MAX} folders")
        } else if self.folders > FOLDERS_MAX {
            format!("it has more than {FOLDERS_MAX} folders, links to folders followed")
        } else if !is_dir && self.plan.entries.len() as u64 >= limits.files {
            format!("it has more than {} files; {ADVICE}", limits.files)
        } else if self.bytes > limits.bytes {
            let size = match limits.bytes >> 20 {
                0 => format!("{} bytes", limits.bytes),
                mebibytes => format!("{mebibytes} MiB"),
            };
            format!("it has more than {size} in all, with {name}; {ADVICE}")
        } else {
            return Ok(true);
        };
        Err(Error::pack(&self.plan.root, problem))
    }

    /// Leaves a path out of an upload that the user may not read, or that is gone meanwhile. For a skill, for the root
    /// and for any other reason it is an error.
    fn skip_unreadable(&mut self, path: &Path, error: io::Error) -> Result<(), Error> {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        let is_gone = error.kind() == io::ErrorKind::NotFound && self.plan.skill_root.is_none();
        if path == Path::new("") || !(is_denied || is_gone) {
            return Err(io_error(&self.plan.root.join(path))(error));
        }
        if self.plan.skill_root.is_some() {
            let cure = "change its mode, or name it in .skillignore if it is no part of the skill";
            let problem = format!("{} cannot be read: {cure}", path.display());
            return Err(Error::pack(&self.plan.root, problem));
        }
        match is_denied {
            true => self.skip(path, SkipReason::Permission, "cannot be read"),
            false => self.skip(path, SkipReason::Gone, "is gone"),
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: SkipReason, skip_reason: impl Into<String>) {
        self.plan.skipped.push(SkippedEntry {
            path: path.display().to_string(),
            reason,
            skip_reason: skip_reason.into(),
        });
    }
}

/// Returns the reason why a FIFO, socket or device is left out; `None` for other kinds of files.
fn describe_special_file(kind: FileType) -> Option<&'static str> {
    if kind.is_fifo() {
        Some("is a FIFO")
    } else if kind.is_socket() {
        Some("is a socket")
    } else {
        (kind.is_char_device() || kind.is_block_device()).then_some("is a device")
    }
}

impl SkillRules {
    /// Returns the metadata of a link's target, or why the link is left out.
    fn follow_link(&self, link: &Path) -> Result<Metadata, String> {
        let shown = fs::read_link(link).unwrap_or_default();
        let resolved = fs::canonicalize(link).and_then(|real| Ok((fs::metadata(&real)?, real)));
        let problem = match resolved {
            Ok((target, real)) if real.starts_with(&self.real_root) => return Ok(target),
            Ok(_) => "out of the skill".to_owned(),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => "where nothing is".to_owned(),
                Some(Errno::LOOP) => "in a circle".to_owned(),
                _ => format!("which cannot be opened: {error}"),
            },
        };
        Err(format!("is a link to {}, {problem}", shown.display()))
    }
}
