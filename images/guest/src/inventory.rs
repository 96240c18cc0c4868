//! What the image offers to scripts: programs, Python's packages and modules, global packages of Node.js. Directories are
//! read and nothing is run. The daemon asks before anyone's command ran, and all of it is beneath the read-only root.
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
use std::time::{Duration, Instant};

use skilld_proto::guest::v1::{InventoryRequest, InventoryResponse};

/// Where commands find programs, if the daemon does not say.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Names per list.
const NAMES_MAX: usize = 20_000;
/// Bytes per list: all of them fit into one message.
const BYTES_MAX: usize = 700 << 10;
/// Entries of directories that are looked at, in all, and for how long.
const ENTRIES_MAX: usize = 200_000;
const TIME_MAX: Duration = Duration::from_secs(2);
/// Directories of PATH.
const DIRECTORIES_MAX: usize = 64;
/// Modules that are part of the interpreter and have no file.
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

/// Names, and how much room there is for more.
#[derive(Debug, Default)]
struct Names {
    names: BTreeSet<String>,
    bytes: usize,
}

impl Names {
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

#[derive(Debug)]
struct Look {
    entries: usize,
    until: Instant,
    programs: Names,
    packages: Names,
    modules: Names,
    node: Names,
}

/// Looks into the image.
pub(crate) async fn inventory(request: &InventoryRequest) -> InventoryResponse {
    let path = match request.path.as_str() {
        "" => PATH,
        path => path,
    };
    let mut look = Look {
        entries: 0,
        until: Instant::now() + TIME_MAX,
        programs: Names::default(),
        packages: Names::default(),
        modules: Names::default(),
        node: Names::default(),
    };
    let mut prefixes: BTreeSet<PathBuf> = BTreeSet::new();
    let directories = path.split(':').filter(|dir| dir.starts_with('/'));
    for dir in directories.map(Path::new).take(DIRECTORIES_MAX) {
        look.programs(dir);
        prefixes.extend(dir.parent().map(Path::to_path_buf));
        // Everything else of this process waits meanwhile.
        tokio::task::yield_now().await;
    }
    for prefix in prefixes {
        look.python(&prefix);
        tokio::task::yield_now().await;
        for modules in ["lib/node_modules", "share/nodejs", "lib/nodejs"] {
            look.node(&prefix.join(modules));
        }
    }
    if !look.modules.names.is_empty() {
        for module in BUILTIN {
            look.modules.add(module.to_owned());
        }
    }
    InventoryResponse {
        programs: look.programs.list(),
        python_packages: look.packages.list(),
        python_modules: look.modules.list(),
        node_packages: look.node.list(),
    }
}

impl Look {
    /// Names in a directory, as far as there is time; none if it cannot be read.
    fn names(&mut self, dir: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX || Instant::now() > self.until {
                break;
            }
            // What is not UTF-8 is nothing that a skill asks for.
            names.extend(entry.file_name().into_string());
        }
        names
    }

    fn programs(&mut self, dir: &Path) {
        for name in self.names(dir) {
            let runs = fs::metadata(dir.join(&name))
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
            if runs {
                self.programs.add(name);
            }
        }
    }

    fn python(&mut self, prefix: &Path) {
        let lib = prefix.join("lib");
        for version in self.names(&lib) {
            if !version.starts_with("python3") {
                continue;
            }
            let dir = lib.join(version);
            for modules in ["", "lib-dynload", "site-packages", "dist-packages"] {
                self.modules(&dir.join(modules));
            }
        }
    }

    fn modules(&mut self, dir: &Path) {
        for name in self.names(dir) {
            let distribution = [".dist-info", ".egg-info"]
                .into_iter()
                .find_map(|ending| name.strip_suffix(ending));
            if let Some(distribution) = distribution {
                // NAME-VERSION; a name has no hyphen of its own here.
                let name = distribution.split('-').next().unwrap_or(distribution);
                self.packages.add(normalised(name));
            } else if let Some(module) = module(&name, || dir.join(&name).is_dir()) {
                self.modules.add(module.to_owned());
            }
        }
    }

    fn node(&mut self, dir: &Path) {
        for name in self.names(dir) {
            if name.starts_with('@') {
                for package in self.names(&dir.join(&name)) {
                    self.node.add(format!("{name}/{package}"));
                }
            } else if !name.starts_with('.') {
                self.node.add(name);
            }
        }
    }
}

/// As PEP 503 has it.
fn normalised(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_lowercase()
}

/// The module that an entry is: a folder, a source file, or an extension such as `_x.cpython-311-x86_64-linux-gnu.so`.
fn module(name: &str, is_dir: impl Fn() -> bool) -> Option<&str> {
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

    async fn look(root: &Path) -> InventoryResponse {
        let path = format!("{0}/bin:{0}/none:relative", root.display());
        inventory(&InventoryRequest { path }).await
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
        let found = look(root).await;
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
        assert_eq!(look(dir.path()).await, InventoryResponse::default());
    }

    #[test]
    fn lists_are_bounded_in_number_and_bytes() {
        let (mut many, mut long) = (Names::default(), Names::default());
        for n in 0..NAMES_MAX + 10 {
            many.add(format!("{n}"));
            long.add(format!("{n:0>255}"));
        }
        assert_eq!(many.list().len(), NAMES_MAX);
        let bytes: usize = long.list().iter().map(String::len).sum();
        assert!((BYTES_MAX / 2..=BYTES_MAX).contains(&bytes), "{bytes}");
    }
}
