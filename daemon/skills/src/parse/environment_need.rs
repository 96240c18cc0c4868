//! Packages that a skill needs beyond its image. Pure.
//!
//! | word | packages |
//! |---|---|
//! | stated | those that the skill's files name |
//! | added | those that the operator or a tenant names for the skill |
//! | certain | both of these: a build installs all of them, or fails |
//! | inferred | those that only the skill's text shows: a build leaves out what it cannot install |

use std::sync::{Arc, OnceLock};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// Code of the warning about packages that are installed, and may not work or differ tomorrow.
pub const ENVIRONMENT_WARNING: &str = "environment.warning";
/// Maximum number of folders of one skill with Node.js packages.
pub(crate) const NODE_PROJECTS_MAX: u32 = 8;

/// Need of a skill for packages that its image may lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentNeed {
    /// Checked lines of a requirements.txt, sorted, without duplicates.
    pub requirements: Vec<String>,
    /// Folders of the skill with a package.json that names packages: the root first, then by path; at most 8.
    pub node_projects: Vec<NodeProject>,
    /// Requirements that were inferred, which are among the others: a build leaves out what it cannot install of them.
    pub inferred: Vec<InferredRequirement>,
    /// The need without the inferred packages; `None` if none were inferred.
    pub certain: Option<Arc<Self>>,
    /// Parts of the need that are refused, and what else is noteworthy. The environment has the other parts.
    pub problems: Vec<Problem>,
    /// Packages of the index without which programs of the skill fail: path of the package.json, and name.
    pub(crate) node_packages: Vec<(String, String)>,
    /// Digests of what a build reads, once they were computed.
    digests: OnceLock<NeedDigests>,
}

/// Digests of a need, 64 hex digits each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NeedDigests {
    /// Digest of everything that a build reads.
    whole: String,
    /// Digest of the Node.js projects.
    node: String,
}

/// Folder of a skill with a package.json that names packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeProject {
    /// Folder relative to the skill's root; empty for the root.
    pub folder: String,
    /// Content of its package.json without refused dependencies.
    pub package_json: Vec<u8>,
    /// Content of its package-lock.json or npm-shrinkwrap.json; empty if it has none, so that npm resolves.
    pub lock: Vec<u8>,
    /// Files of packages in the skill's own folder that it names: path relative to the skill's root, and content.
    pub local_files: Vec<(String, Vec<u8>)>,
    /// `true` if packages were added that the lock does not name.
    pub has_added: bool,
}

/// Python package that a skill's text shows it to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InferredRequirement {
    /// Line of the requirement among the others.
    pub requirement: String,
    /// Module that a script imports, and that the image may have by another package; empty for an installation line.
    pub module: String,
}

impl EnvironmentNeed {
    /// Returns `true` if the skill needs no environment.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && self.node_projects.is_empty()
    }

    /// Returns a copy without its digest, for changes.
    pub(super) fn unhashed(&self) -> Self {
        Self {
            digests: OnceLock::new(),
            ..self.clone()
        }
    }

    /// Returns the number of bytes that the need takes in memory, without the little that every need takes.
    pub(crate) fn size(&self) -> usize {
        let requirements = self.requirements.iter().map(String::len);
        let projects = self.node_projects.iter().map(NodeProject::size);
        let names = self.node_packages.iter();
        let names = names.map(|(path, name)| path.len() + name.len());
        let certain = self.certain.as_ref().map_or(0, |certain| certain.size());
        requirements.chain(projects).chain(names).sum::<usize>() + certain
    }

    /// Returns the digest of everything that a build reads, 64 hex digits. Computed once, because a lock file may have
    /// 8 MiB; the fields must not change afterwards.
    pub fn digest(&self) -> String {
        self.digests().whole.clone()
    }

    /// Returns the digest of the Node.js projects alone.
    pub(crate) fn node_digest(&self) -> String {
        self.digests().node.clone()
    }

    fn digests(&self) -> &NeedDigests {
        self.digests.get_or_init(|| {
            let node = hash_parts(self.node_projects.iter().flat_map(NodeProject::parts));
            let requirements = self.requirements.join("\n");
            let inferred = self.inferred.iter();
            let inferred = inferred
                .flat_map(|package| [package.requirement.as_bytes(), package.module.as_bytes()]);
            let parts = [requirements.as_bytes(), node.as_bytes()];
            let whole = hash_parts(parts.into_iter().chain(inferred));
            NeedDigests { whole, node }
        })
    }
}

fn hash_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The length keeps the end of one part from being read as the beginning of the next.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    HEXLOWER.encode(&hash.finalize())
}

impl NodeProject {
    fn size(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// Returns everything that a build reads, and an empty part after the local files: none of these has an empty path.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let files = self.local_files.iter();
        [self.folder.as_bytes(), &self.package_json, &self.lock]
            .into_iter()
            .chain(files.flat_map(|(path, content)| [path.as_bytes(), content]))
            .chain([if self.has_added {
                b"added".as_slice()
            } else {
                &[]
            }])
            .chain([[].as_slice()])
    }
}
