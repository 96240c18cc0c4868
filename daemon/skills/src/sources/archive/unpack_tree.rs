//! Writes an unpacked archive to disk: the only place that checks names and writes files. An entry that no skill can
//! have is left out. One that would be written over another, or whose name leads up, fails the whole archive.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{
    UnpackedArchive, archive_error, entry_error, host_error, printable_name, read_error, with_entry,
};
use crate::content_store::content_hashing::{make_directory, stays_inside};
use crate::error::{Error, Result, read_chunk};
use crate::parse::problem::LeftOutEntries;
use crate::skill_path::{compose_path, find_case_clash};
use crate::skills_options::ArchiveBounds;

/// Maximum length of a name in bytes, as file systems have it.
const NAME_MAX: usize = 255;
/// Maximum length of a path in bytes: it must fit into PATH_MAX with a state directory before it.
const PATH_MAX: usize = 1024;
/// Maximum length of a link's target, in bytes.
pub(super) const TARGET_MAX: usize = 1024;
/// Folder that macOS puts into zip files.
const MACOS: &str = "__MACOSX";
/// File that macOS leaves in folders.
const FINDER: &str = ".DS_Store";
/// Problem of two entries of one path.
const TWICE: &str = "is there twice";

/// Entry of an archive, as its headers describe it.
#[derive(Debug)]
pub(super) struct ArchiveEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) kind: EntryKind<'a>,
    /// Announced size of its contents, in bytes.
    pub(super) size: u64,
}

/// Kind of an archive's entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum EntryKind<'a> {
    Directory,
    File {
        is_executable: bool,
    },
    Link {
        target: &'a [u8],
    },
    HardLink {
        target: &'a [u8],
    },
    /// An entry that no skill can have, and that has no contents. The text completes a sentence that begins with its
    /// name.
    Unsupported(&'static str),
    /// An entry that no skill can have, and that may have contents.
    UnsupportedFile(&'static str),
}

/// Meaning of an entry's name.
#[derive(Debug)]
enum EntryName {
    /// Path in the tree; empty for the top itself.
    Path(String),
    /// Name of a file that belongs to the system on which the archive was made.
    Litter,
    /// Name that no file of a skill can have; the text completes a sentence that begins with it.
    Unusable(&'static str),
}

/// Kind of the directory, file or link that already occupies a path of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Directory,
    File,
    Link,
}

/// Directory tree into which an archive is unpacked.
#[derive(Debug)]
pub(super) struct UnpackTree<'a> {
    into: &'a Path,
    pub(super) bounds: ArchiveBounds,
    /// Taken paths.
    nodes: BTreeMap<String, NodeKind>,
    /// Paths of entries that were left out.
    left_out_paths: HashSet<String>,
    /// Path and target of each link; made at the end, so that nothing is written through one.
    links: Vec<(String, String)>,
    left_out: LeftOutEntries,
    /// Number of entries that came, also of those that are left out.
    seen: u64,
    files: u64,
    bytes: u64,
    /// Buffer of [`UnpackTree::copy_contents`]: an archive may have many small entries.
    buffer: Vec<u8>,
}

/// File of the tree whose contents are being written.
#[derive(Debug)]
pub(super) struct UnpackedFile {
    file: File,
    path: String,
    size: u64,
}

impl UnpackedFile {
    /// Returns the path in the tree.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

impl<'a> UnpackTree<'a> {
    pub(super) fn new(into: &'a Path, bounds: ArchiveBounds) -> Self {
        Self {
            into,
            bounds,
            nodes: BTreeMap::new(),
            left_out_paths: HashSet::new(),
            links: Vec::new(),
            left_out: LeftOutEntries::default(),
            seen: 0,
            files: 0,
            bytes: 0,
            buffer: vec![0; 64 * 1024],
        }
    }

    /// Checks and writes one entry.
    pub(super) fn add_entry(
        &mut self,
        entry: &ArchiveEntry<'_>,
        contents: &mut dyn Read,
    ) -> Result<()> {
        let Some(file) = self.start_entry(entry)? else {
            return Ok(());
        };
        let (path, written) = self.copy_contents(file, contents)?;
        if written == entry.size {
            return Ok(());
        }
        let is_short = written < entry.size;
        let problem = if is_short {
            "is cut off"
        } else {
            "is larger than announced"
        };
        Err(entry_error(&path, problem))
    }

    /// Checks one entry, and makes it except for its contents. Returns the file into which those belong; `None` if the
    /// entry is no file or is left out.
    pub(super) fn start_entry(&mut self, entry: &ArchiveEntry<'_>) -> Result<Option<UnpackedFile>> {
        self.seen += 1;
        // Of these no more than `entries` are kept. A usual archive leaves out one beside each file: macOS's `._x`.
        if self.seen > self.bounds.entries.saturating_mul(3) {
            return Err(self.too_many_entries());
        }
        let has_contents = matches!(
            entry.kind,
            EntryKind::File { .. } | EntryKind::UnsupportedFile(_)
        );
        if !has_contents && entry.size != 0 {
            return Err(entry_error(entry.name, "is no file and has contents"));
        }
        let path = match self.check_name(entry.name)? {
            EntryName::Path(path) => path,
            EntryName::Litter => return Ok(None),
            EntryName::Unusable(reason) => {
                return self.leave_out(entry.name, reason).map(|()| None);
            }
        };
        match entry.kind {
            EntryKind::Unsupported(reason) | EntryKind::UnsupportedFile(reason) => {
                self.leave_out(entry.name, reason)?;
            }
            EntryKind::Directory => {
                if !path.is_empty() && self.claim_path(&path, NodeKind::Directory)? {
                    self.make_directory(&path)?;
                }
            }
            EntryKind::Link { target } => self.add_link(&path, target)?,
            EntryKind::HardLink { target } => self.copy_file(&path, target)?,
            EntryKind::File { is_executable } => {
                check_size(
                    &self.bounds,
                    &path,
                    entry.size,
                    self.bytes.saturating_add(entry.size),
                )?;
                return self.start_file(path, is_executable).map(Some);
            }
        }
        Ok(None)
    }

    /// Leaves an entry out. Fails if another one has its path, which an absolute name has without its slash: a program
    /// that unpacks both may keep the contents of this one.
    fn leave_out(&mut self, name: impl AsRef<[u8]>, reason: &str) -> Result<()> {
        let name = name.as_ref();
        if let Ok(text) = str::from_utf8(name) {
            let path = name_parts(&compose_path(text)).join("/");
            if self.nodes.contains_key(&path) {
                return Err(entry_error(name, TWICE));
            }
            // No entry that is kept has a longer one.
            if path.len() <= PATH_MAX {
                self.left_out_paths.insert(path);
            }
        }
        self.left_out.add(printable_name(name), reason);
        Ok(())
    }

    /// Returns what an entry's name means. Fails if it leads up, if a NUL ends it for programs in C, if a backslash may
    /// separate folders in it, or if it is too deep.
    fn check_name(&self, given: &[u8]) -> Result<EntryName> {
        let unusable = |reason| Ok(EntryName::Unusable(reason));
        if given.split(|byte| *byte == b'/').any(|part| part == b"..") {
            return Err(entry_error(given, "has .. in its name"));
        }
        if given.contains(&0) {
            return Err(entry_error(given, "has a NUL in its name"));
        }
        let Ok(name) = str::from_utf8(given) else {
            return unusable("has a name that is not UTF-8");
        };
        if name.contains('\\') {
            return Err(entry_error(given, "has a backslash in its name"));
        }
        // macOS writes `é` as two characters, documents and commands as one.
        let name = &compose_path(name);
        if name.starts_with('/') {
            return unusable("has an absolute name");
        }
        if name.chars().any(char::is_control) {
            return unusable("has a control character in its name");
        }
        if name.len() > PATH_MAX {
            return unusable("has a path longer than 1024 bytes");
        }
        let parts = name_parts(name);
        if parts.iter().any(|part| part.len() > NAME_MAX) {
            return unusable("has a name longer than 255 bytes");
        }
        if parts.len() > self.bounds.depth {
            let problem = format!("is deeper than {} names", self.bounds.depth);
            return Err(entry_error(given, problem));
        }
        let is_litter = parts.first() == Some(&MACOS)
            || parts
                .last()
                .is_some_and(|name| *name == FINDER || name.starts_with("._"));
        Ok(match is_litter {
            true => EntryName::Litter,
            false => EntryName::Path(parts.join("/")),
        })
    }

    /// Makes an empty file.
    fn start_file(&mut self, path: String, is_executable: bool) -> Result<UnpackedFile> {
        self.claim_path(&path, NodeKind::File)?;
        let target = self.into.join(&path);
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options
            .open(&target)
            .map_err(host_error("create", &target))?;
        // The archive's own mode is ignored but for this: no set-id, nothing unreadable.
        let mode = if is_executable { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(host_error("chmod", &target))?;
        self.files += 1;
        Ok(UnpackedFile {
            file,
            path,
            size: 0,
        })
    }

    /// Appends contents to a file.
    pub(super) fn write_contents(&mut self, open: &mut UnpackedFile, part: &[u8]) -> Result<()> {
        let count = part.len() as u64;
        open.size += count;
        self.bytes += count;
        check_size(&self.bounds, &open.path, open.size, self.bytes)?;
        let written = open.file.write_all(part);
        written.map_err(|error| host_error("write", &self.into.join(&open.path))(error))
    }

    /// Writes all of `contents` to a file. Returns its path and size.
    fn copy_contents(
        &mut self,
        mut open: UnpackedFile,
        contents: &mut dyn Read,
    ) -> Result<(String, u64)> {
        // After an error the whole archive fails, so that the buffer is not put back.
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let chunk = read_chunk(contents, &mut buffer)
                .map_err(|error| with_entry(read_error(error), open.path.as_bytes()))?;
            if chunk.is_empty() {
                self.buffer = buffer;
                return Ok((open.path, open.size));
            }
            self.write_contents(&mut open, chunk)?;
        }
    }

    fn add_link(&mut self, path: &str, target: &[u8]) -> Result<()> {
        let is_plain = |text: &&str| {
            !text.is_empty() && text.len() <= TARGET_MAX && !text.chars().any(char::is_control)
        };
        let Some(target) = str::from_utf8(target).ok().filter(is_plain) else {
            return self.leave_out(path, "is a link without a valid target");
        };
        self.claim_path(path, NodeKind::Link)?;
        self.links.push((path.to_owned(), compose_path(target)));
        self.files += 1;
        Ok(())
    }

    /// Adds another name for an earlier file, as a copy: shared inodes are no part of a skill.
    fn copy_file(&mut self, path: &str, target: &[u8]) -> Result<()> {
        let target = match self.check_name(target) {
            Ok(EntryName::Path(target)) => target,
            Ok(EntryName::Litter | EntryName::Unusable(_)) | Err(_) => String::new(),
        };
        if self.nodes.get(&target) != Some(&NodeKind::File) {
            let reason = "is a hard link to something that is no earlier file of the archive";
            return self.leave_out(path, reason);
        }
        let source = self.into.join(&target);
        let mut file = File::open(&source).map_err(host_error("open", &source))?;
        let metadata = file.metadata().map_err(host_error("read", &source))?;
        let size = metadata.len();
        check_size(&self.bounds, path, size, self.bytes.saturating_add(size))?;
        let is_executable = metadata.permissions().mode() & 0o111 != 0;
        let open = self.start_file(path.to_owned(), is_executable)?;
        self.copy_contents(open, &mut file).map(|_| ())
    }

    /// Reserves a path for an entry, and makes the directories above it. Returns `false` for a directory that exists.
    fn claim_path(&mut self, path: &str, node: NodeKind) -> Result<bool> {
        if path.is_empty() {
            return Err(entry_error(path, "has an entry with no name"));
        }
        for (at, _) in path.match_indices('/') {
            let above = path.get(..at).unwrap_or_default();
            match self.nodes.get(above) {
                Some(NodeKind::Directory) => {}
                Some(_) => {
                    return Err(entry_error(path, "is beneath a file or a link"));
                }
                None => {
                    self.insert_node(above, NodeKind::Directory)?;
                    self.make_directory(above)?;
                }
            }
        }
        match self.nodes.get(path) {
            None => self.insert_node(path, node).map(|()| true),
            Some(NodeKind::Directory) if node == NodeKind::Directory => Ok(false),
            Some(_) => Err(entry_error(path, TWICE)),
        }
    }

    fn insert_node(&mut self, path: &str, node: NodeKind) -> Result<()> {
        if self.left_out_paths.contains(path) {
            return Err(entry_error(path, TWICE));
        }
        self.nodes.insert(path.to_owned(), node);
        if self.nodes.len() as u64 > self.bounds.entries {
            return Err(self.too_many_entries());
        }
        Ok(())
    }

    fn too_many_entries(&self) -> Error {
        Error::LimitExceeded {
            what: "entries of the archive".to_owned(),
            limit: self.bounds.entries,
        }
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        let place = self.into.join(path);
        make_directory(&place).map_err(host_error("make", &place))
    }

    /// Makes the links, now that no file is written any more, and returns the result.
    pub(super) fn finish(mut self) -> Result<UnpackedArchive> {
        // A link beside the one folder, which is left out, does not make that folder a part of the skill.
        self.leave_out_links(None);
        let wrapper = self.wrapper();
        self.leave_out_links(wrapper.as_deref());
        if self.files == 0 {
            let left_out = self.left_out.appendix();
            return Err(archive_error(format!("has no files{left_out}")));
        }
        for (path, target) in &self.links {
            let place = self.into.join(path);
            symlink(target, &place).map_err(host_error("link", &place))?;
        }
        let root: PathBuf = match &wrapper {
            Some(wrapper) => self.into.join(wrapper),
            None => self.into.to_owned(),
        };
        Ok(UnpackedArchive {
            root,
            wrapper,
            files: self.files,
            entries: self.nodes.len() as u64,
            bytes: self.bytes,
            case_clash: find_case_clash(self.nodes.keys().map(Path::new)).map(|clash| *clash),
            left_out: self.left_out,
        })
    }

    /// Leaves out the links that lead out of the archive, or out of the one folder around everything.
    fn leave_out_links(&mut self, wrapper: Option<&str>) {
        for (path, target) in std::mem::take(&mut self.links) {
            let within = wrapper
                .and_then(|wrapper| path.strip_prefix(wrapper)?.strip_prefix('/'))
                .unwrap_or(&path);
            if stays_inside(Path::new(within), Path::new(&target)) {
                self.links.push((path, target));
                continue;
            }
            let target = printable_name(target.as_bytes());
            let reason = format!("is a link out of the archive, to {target}");
            self.left_out.add(printable_name(path.as_bytes()), reason);
            self.nodes.remove(&path);
            self.files -= 1;
        }
    }

    /// Returns the name of the only entry at the top, if that is a directory.
    fn wrapper(&self) -> Option<String> {
        let mut top = self.nodes.iter().filter(|(path, _)| !path.contains('/'));
        match (top.next(), top.next()) {
            (Some((path, NodeKind::Directory)), None) => Some(path.clone()),
            _ => None,
        }
    }
}

/// Returns the names in a path.
fn name_parts(path: &str) -> Vec<&str> {
    let parts = path.split('/');
    parts.filter(|part| !matches!(*part, "" | ".")).collect()
}

/// Checks the size of one file and that of all files against the bounds.
fn check_size(bounds: &ArchiveBounds, path: &str, size: u64, all: u64) -> Result<()> {
    let (what, limit) = if size > bounds.file_bytes {
        let what = format!("bytes of {}", printable_name(path.as_bytes()));
        (what, bounds.file_bytes)
    } else if all > bounds.bytes {
        ("bytes of all files".to_owned(), bounds.bytes)
    } else {
        return Ok(());
    };
    Err(Error::LimitExceeded { what, limit })
}
