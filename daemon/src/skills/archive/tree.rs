//! What an archive becomes on disk: the only place that judges names and writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

pub(super) use super::super::content::make_directory;
use super::super::content::stays_inside;
use super::{Bounds, Refused, Unpacked};

/// Longest name that file systems take, bytes.
const NAME_MAX: usize = 255;
/// Longest path in an archive, bytes: it must fit into PATH_MAX with a state directory before it.
const PATH_MAX: usize = 1024;
/// Longest target of a link, bytes.
pub(super) const TARGET_MAX: usize = 1024;
/// A folder that macOS puts into zip files.
const MACOS: &str = "__MACOSX";
/// What Finder leaves in folders.
const FINDER: &str = ".DS_Store";

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Directory,
    File,
    Link,
}

/// The tree that is being unpacked.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    into: &'a Path,
    bounds: Bounds,
    /// By path in lower case, so that two names which differ in case only meet.
    nodes: BTreeMap<String, (String, Node)>,
    /// Path and target; made at the end.
    links: Vec<(String, String)>,
    /// Headers that were read.
    seen: u64,
    files: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(into: &'a Path, bounds: Bounds) -> Self {
        Self {
            into,
            bounds,
            nodes: BTreeMap::new(),
            links: Vec::new(),
            seen: 0,
            files: 0,
            bytes: 0,
            buffer: vec![0; 64 * 1024],
        }
    }

    /// Most entries that an archive may have.
    pub(super) fn entries_max(&self) -> u64 {
        self.bounds.entries
    }

    /// Counts one header of the archive, whatever it says.
    pub(super) fn count(&mut self) -> Result<(), Refused> {
        self.seen += 1;
        // A directory, its long name and its link's target are three headers of one entry.
        if self.seen > self.bounds.entries.saturating_mul(3) {
            return Err(self.too_many());
        }
        Ok(())
    }

    /// The path that an entry's name means; empty for the top itself, `None` for what is left out.
    pub(super) fn admit(&self, given: &[u8]) -> Result<Option<String>, Refused> {
        let refuse = |problem: &str| Err(Refused::entry(given, problem));
        let Ok(name) = str::from_utf8(given) else {
            return refuse("has a name that is not UTF-8");
        };
        if name.starts_with('/') {
            return refuse("has an absolute name");
        }
        if name.chars().any(char::is_control) || name.contains('\\') {
            return refuse("has a control character or a backslash in its name");
        }
        if name.len() > PATH_MAX {
            return refuse("has a path longer than 1024 bytes");
        }
        let names: Vec<&str> = name
            .split('/')
            .filter(|name| !name.is_empty() && *name != ".")
            .collect();
        if names.contains(&"..") {
            return refuse("has .. in its name");
        }
        if names.iter().any(|name| name.len() > NAME_MAX) {
            return refuse("has a name longer than 255 bytes");
        }
        if names.len() > self.bounds.depth {
            let problem = format!("is deeper than {} names", self.bounds.depth);
            return refuse(&problem);
        }
        let litter = names.first() == Some(&MACOS)
            || names
                .last()
                .is_some_and(|name| *name == FINDER || name.starts_with("._"));
        Ok((!litter).then(|| names.join("/")))
    }

    /// Adds a directory.
    pub(super) fn directory(&mut self, path: &str) -> Result<(), Refused> {
        if !path.is_empty() && self.claim(path, Node::Directory)? {
            self.make(path)?;
        }
        Ok(())
    }

    /// Adds a file with all that `contents` has; answers how much that was.
    pub(super) fn file(
        &mut self,
        path: &str,
        executable: bool,
        contents: &mut dyn Read,
    ) -> Result<u64, Refused> {
        self.claim(path, Node::File)?;
        let place = self.into.join(path);
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options
            .open(&place)
            .map_err(Refused::host("create", &place))?;
        let mut size: u64 = 0;
        loop {
            let count = match contents.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Refused::read(error).of(path)),
            };
            size += count as u64;
            self.bytes += count as u64;
            self.check_size(path, size, self.bytes)?;
            let chunk = self.buffer.get(..count).unwrap_or_default();
            file.write_all(chunk)
                .map_err(Refused::host("write", &place))?;
        }
        // Whatever the archive says: nothing but these two, and no set-id.
        let mode = if executable { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(Refused::host("chmod", &place))?;
        self.files += 1;
        Ok(size)
    }

    /// What a file says that it will have: refused before a byte of it is written.
    pub(super) fn expect(&self, path: &str, size: u64) -> Result<(), Refused> {
        self.check_size(path, size, self.bytes.saturating_add(size))
    }

    fn check_size(&self, path: &str, size: u64, all: u64) -> Result<(), Refused> {
        let (what, limit) = if size > self.bounds.file_bytes {
            let what = format!("bytes of {}", super::show(path.as_bytes()));
            (what, self.bounds.file_bytes)
        } else if all > self.bounds.bytes {
            ("bytes of all files".to_owned(), self.bounds.bytes)
        } else {
            return Ok(());
        };
        Err(Refused::Limit { what, limit })
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &[u8]) -> Result<(), Refused> {
        let refuse = |problem: &str| Err(Refused::entry(path, problem));
        let target = match str::from_utf8(target) {
            Ok(target) if !target.is_empty() && target.len() <= TARGET_MAX => target,
            _ => return refuse("is a link without a valid target"),
        };
        if target.chars().any(char::is_control) {
            return refuse("is a link without a valid target");
        }
        self.claim(path, Node::Link)?;
        self.links.push((path.to_owned(), target.to_owned()));
        self.files += 1;
        Ok(())
    }

    /// Adds another name for an earlier file, as a copy: shared inodes are no part of a skill.
    pub(super) fn hard_link(&mut self, path: &str, target: &[u8]) -> Result<(), Refused> {
        let Some(target) = self.admit(target).ok().flatten() else {
            return Err(Refused::entry(path, "is a hard link out of the archive"));
        };
        if self.nodes.get(&target.to_lowercase()) != Some(&(target.clone(), Node::File)) {
            let problem = "is a hard link to something that is no earlier file";
            return Err(Refused::entry(path, problem));
        }
        let source = self.into.join(&target);
        let mut file = File::open(&source).map_err(Refused::host("open", &source))?;
        let metadata = file.metadata().map_err(Refused::host("read", &source))?;
        self.expect(path, metadata.len())?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        self.file(path, executable, &mut file).map(|_| ())
    }

    /// Gives a path to an entry, and makes the directories above it. False for a directory that is there.
    fn claim(&mut self, path: &str, node: Node) -> Result<bool, Refused> {
        if path.is_empty() {
            return Err(Refused::entry(path, "has an entry with no name"));
        }
        for (at, _) in path.match_indices('/') {
            let above = path.get(..at).unwrap_or_default();
            match self.nodes.get(&above.to_lowercase()) {
                Some((there, Node::Directory)) if there == above => {}
                Some((there, Node::Directory)) => return Err(differ_in_case(above, there)),
                Some(_) => {
                    return Err(Refused::entry(path, "is beneath a file or a link"));
                }
                None => {
                    self.put(above, Node::Directory)?;
                    self.make(above)?;
                }
            }
        }
        match self.nodes.get(&path.to_lowercase()) {
            None => self.put(path, node).map(|()| true),
            Some((there, _)) if there != path => Err(differ_in_case(path, there)),
            Some((_, Node::Directory)) if node == Node::Directory => Ok(false),
            Some(_) => Err(Refused::entry(path, "is there twice")),
        }
    }

    fn put(&mut self, path: &str, node: Node) -> Result<(), Refused> {
        self.nodes
            .insert(path.to_lowercase(), (path.to_owned(), node));
        if self.nodes.len() as u64 > self.bounds.entries {
            return Err(self.too_many());
        }
        Ok(())
    }

    fn too_many(&self) -> Refused {
        Refused::Limit {
            what: "entries of the archive".to_owned(),
            limit: self.bounds.entries,
        }
    }

    fn make(&self, path: &str) -> Result<(), Refused> {
        let place = self.into.join(path);
        make_directory(&place).map_err(Refused::host("make", &place))
    }

    /// Makes the links, once nothing more is written.
    pub(super) fn finish(self) -> Result<Unpacked, Refused> {
        if self.files == 0 {
            return Err(Refused::whole("has no files"));
        }
        let wrapper = self.wrapper();
        for (path, target) in &self.links {
            let within = wrapper
                .as_ref()
                .and_then(|wrapper| path.strip_prefix(wrapper)?.strip_prefix('/'))
                .unwrap_or(path);
            if !stays_inside(Path::new(within), Path::new(target)) {
                let problem = format!("is a link out of the archive, to {target}");
                return Err(Refused::entry(path, problem));
            }
        }
        for (path, target) in &self.links {
            let place = self.into.join(path);
            symlink(target, &place).map_err(Refused::host("link", &place))?;
        }
        let root: PathBuf = match &wrapper {
            Some(wrapper) => self.into.join(wrapper),
            None => self.into.to_owned(),
        };
        Ok(Unpacked {
            root,
            wrapper,
            files: self.files,
            entries: self.nodes.len() as u64,
            bytes: self.bytes,
        })
    }

    /// The only entry at the top, if it is a directory.
    fn wrapper(&self) -> Option<String> {
        let mut top = self.nodes.values().filter(|(path, _)| !path.contains('/'));
        match (top.next(), top.next()) {
            (Some((path, Node::Directory)), None) => Some(path.clone()),
            _ => None,
        }
    }
}

impl Refused {
    /// Says of which entry it was, where that is not known yet.
    pub(super) fn of(self, path: &str) -> Self {
        match self {
            Self::Invalid { ref entry, problem } if entry.is_empty() => Self::entry(path, problem),
            Self::Invalid { .. } | Self::Limit { .. } | Self::Host(_) => self,
        }
    }
}

fn differ_in_case(path: &str, there: &str) -> Refused {
    let there = super::show(there.as_bytes());
    Refused::entry(path, format!("differs only in case from {there}"))
}
