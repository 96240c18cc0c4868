//! Inventory of the image: programs, Python packages and modules, and global Node.js packages. The scan reads
//! directories of the read-only image and runs nothing. The daemon requests it before the first command runs.
//!
//! ```text
//! PATH ─► programs;  each .../bin has a prefix
//! PREFIX/lib/python3* ─► the standard library, lib-dynload, {site,dist}-packages
//! PREFIX/lib/node_modules, PREFIX/share/nodejs, PREFIX/lib/nodejs ─► packages, @scope/package
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use skilld_proto::guest::v1::{InventoryRequest, InventoryResponse};

/// Search path for programs if the daemon names none.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Maximum number of names per list.
const NAMES_MAX: usize = 20_000;
/// Maximum size of one list, in bytes. All lists fit into one message.
const BYTES_MAX: usize = 700 << 10;
/// Maximum number of directory entries of a scan, many times that of large images: the daemon takes the lists for whole.
/// There is no limit of time, which a busy machine would reach.
const ENTRIES_MAX: usize = 200_000;
/// Maximum number of directories of PATH that are scanned.
const DIRECTORIES_MAX: usize = 64;
/// Python modules that are part of the interpreter and have no file.
const BUILTIN: [&str; 29] = [
    "__future__",
    "_thread",
    "array",
    "atexit",
    "binascii",
    "builtins",
    "cmath",
    "errno",
    "faulthandler",
    "fcntl",
    "gc",
    "grp",
    "itertools",
    "marshal",
    "math",
    "mmap",
    "posix",
    "pwd",
    "pyexpat",
    "select",
    "spwd",
    "sys",
    "syslog",
    "time",
    "unicodedata",
    "xxsubtype",
    "zlib",
    "_io",
    "_ast",
];

/// Bounded list of names.
#[derive(Debug, Default)]
struct NameList {
    names: BTreeSet<String>,
    bytes: usize,
}

impl NameList {
    fn add(&mut self, name: String) {
        let bytes = self.bytes + name.len() + 4;
        if self.names.len() < NAMES_MAX && bytes <= BYTES_MAX && self.names.insert(name) {
            self.bytes = bytes;
        }
    }

    fn list(self) -> Vec<String> {
        self.names.into_iter().collect()
    }
}

/// Scan of the image with its limits and results.
#[derive(Debug)]
struct InventoryScan {
    entries: usize,
    programs: NameList,
    packages: NameList,
    modules: NameList,
    node: NameList,
}

/// Scans the image for programs and packages.
pub(crate) async fn scan_image(request: &InventoryRequest) -> InventoryResponse {
    let path = match request.path.as_str() {
        "" => PATH,
        path => path,
    };
    let mut scan = InventoryScan {
        entries: 0,
        programs: NameList::default(),
        packages: NameList::default(),
        modules: NameList::default(),
        node: NameList::default(),
    };
    let mut prefixes: BTreeSet<PathBuf> = BTreeSet::new();
    let directories = path.split(':').filter(|dir| dir.starts_with('/'));
    for dir in directories.map(Path::new).take(DIRECTORIES_MAX) {
        scan.scan_programs(dir);
        prefixes.extend(dir.parent().map(Path::to_path_buf));
        // The scan blocks the guest's only thread, so other tasks get their turn after each directory.
        tokio::task::yield_now().await;
    }
    for prefix in prefixes {
        scan.scan_python(&prefix).await;
        for modules in ["lib/node_modules", "share/nodejs", "lib/nodejs"] {
            scan.scan_node_packages(&prefix.join(modules));
            tokio::task::yield_now().await;
        }
    }
    if !scan.modules.names.is_empty() {
        for module in BUILTIN {
            scan.modules.add(module.to_owned());
        }
    }
    InventoryResponse {
        programs: scan.programs.list(),
        python_packages: scan.packages.list(),
        python_modules: scan.modules.list(),
        node_packages: scan.node.list(),
    }
}

impl InventoryScan {
    /// Returns the names in a directory, within the number that is left. Empty if the directory cannot be read.
    fn list_names(&mut self, dir: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                break;
            }
            // Skills cannot ask for names that are not UTF-8.
            names.extend(entry.file_name().into_string());
        }
        names
    }

    fn scan_programs(&mut self, dir: &Path) {
        for name in self.list_names(dir) {
            let runs = fs::metadata(dir.join(&name))
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
            if runs {
                self.programs.add(name);
            }
        }
    }

    async fn scan_python(&mut self, prefix: &Path) {
        let lib = prefix.join("lib");
        for version in self.list_names(&lib) {
            if !version.starts_with("python3") {
                continue;
            }
            let dir = lib.join(version);
            for modules in ["", "lib-dynload", "site-packages", "dist-packages"] {
                self.scan_modules(&dir.join(modules));
                tokio::task::yield_now().await;
            }
        }
    }

    fn scan_modules(&mut self, dir: &Path) {
        for name in self.list_names(dir) {
            let distribution = [".dist-info", ".egg-info"]
                .into_iter()
                .find_map(|ending| name.strip_suffix(ending));
            if let Some(distribution) = distribution {
                // The entry is called NAME-VERSION, and a name has no hyphen of its own here.
                let name = distribution.split('-').next().unwrap_or(distribution);
                self.packages.add(normalise_package_name(name));
            } else if let Some(module) = module_name(&name, || dir.join(&name).is_dir()) {
                self.modules.add(module.to_owned());
            }
        }
    }

    fn scan_node_packages(&mut self, dir: &Path) {
        for name in self.list_names(dir) {
            if name.starts_with('@') {
                for package in self.list_names(&dir.join(&name)) {
                    self.node.add(format!("{name}/{package}"));
                }
            } else if !name.starts_with('.') {
                self.node.add(name);
            }
        }
    }
}

/// Normalises a package name as PEP 503 defines it.
fn normalise_package_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_lowercase()
}

/// Returns the module that a directory entry provides: a folder, a source file, or an extension such as
/// `_x.cpython-311-x86_64-linux-gnu.so`.
fn module_name(name: &str, is_dir: impl Fn() -> bool) -> Option<&str> {
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    let is_module = match ending {
        "" => stem != "__pycache__" && is_dir(),
        "py" => true,
        ending => ending.ends_with("so"),
    };
    let identifier = |c: char| c.is_alphanumeric() || c == '_';
    (is_module && !stem.is_empty() && stem.chars().all(identifier)).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, mode: u32) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(&path, "").expect("write");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    async fn scan(root: &Path) -> InventoryResponse {
        let path = format!("{0}/bin:{0}/none:relative", root.display());
        scan_image(&InventoryRequest { path }).await
    }

    #[tokio::test]
    async fn an_image_is_looked_into_without_running_anything() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path();
        write(root, "bin/jq", 0o755);
        write(root, "bin/notes.txt", 0o644);
        fs::create_dir(root.join("bin/folder")).expect("mkdir");
        std::os::unix::fs::symlink("jq", root.join("bin/jq2")).expect("symlink");
        std::os::unix::fs::symlink("nothing", root.join("bin/broken")).expect("symlink");
        for path in [
            "lib/python3.11/json/__init__.py",
            "lib/python3.11/csv.py",
            "lib/python3.11/__pycache__/csv.pyc",
            "lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so",
            "lib/python3/dist-packages/yaml/__init__.py",
            "lib/python3/dist-packages/PyYAML-6.0.dist-info/METADATA",
            "lib/python3/dist-packages/zope.interface-5.egg-info",
            "lib/python3/dist-packages/Foo__Bar-1.0-py3.11.egg-info",
            "lib/python3/dist-packages/distutils-precedence.pth",
            "lib/python2.7/gone.py",
            "lib/node_modules/commander/package.json",
            "lib/node_modules/@types/node/package.json",
            "lib/node_modules/.bin/x",
            "share/nodejs/semver/package.json",
        ] {
            write(root, path, 0o644);
        }
        let found = scan(root).await;
        assert_eq!(found.programs, ["jq", "jq2"]);
        assert_eq!(
            found.python_packages,
            ["foo-bar", "pyyaml", "zope-interface"]
        );
        assert_eq!(found.node_packages, ["@types/node", "commander", "semver"]);
        let modules = found.python_modules;
        for module in ["json", "csv", "_json", "yaml", "sys", "time"] {
            assert!(
                modules.contains(&module.to_owned()),
                "{module}: {modules:?}"
            );
        }
        for none in [
            "gone",
            "__pycache__",
            "PyYAML-6",
            "distutils-precedence",
            "dist-packages",
        ] {
            assert!(!modules.contains(&none.to_owned()), "{none}");
        }
    }

    #[tokio::test]
    async fn an_image_without_anything_has_nothing() {
        let dir = tempfile::tempdir().expect("temp dir");
        assert_eq!(scan(dir.path()).await, InventoryResponse::default());
    }

    #[test]
    fn lists_are_bounded_in_number_and_bytes() {
        let (mut many, mut long) = (NameList::default(), NameList::default());
        for n in 0..NAMES_MAX + 10 {
            many.add(format!("{n}"));
            long.add(format!("{n:0>255}"));
        }
        assert_eq!(many.list().len(), NAMES_MAX);
        let bytes: usize = long.list().iter().map(String::len).sum();
        assert!((BYTES_MAX / 2..=BYTES_MAX).contains(&bytes), "{bytes}");
    }
}
