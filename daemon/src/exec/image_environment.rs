//! Variables that an image sets by ENV, as far as commands get them. Pure. They come below all others, so what the
//! daemon sets itself wins, except that PATH gets the directories that the image adds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Default PATH of commands: Debian's search path for programs.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Maximum number of variables that commands get from an image; real images set fewer than 20.
const VARIABLES_MAX: usize = 100;
/// Maximum size of these variables in bytes, each with its `=` and a NUL.
const BYTES_MAX: usize = 32 << 10;
/// Variable by which an image names its directory of redirect wheels, with which pip and uv find the packages of the image
/// in a virtual environment.
const WHEELS: &str = "IMAGE_WHEELS";
/// Directories of a container that commands can write to, or that are not files of the image.
const FOREIGN_DIRS: [&str; 6] = ["workspace", "tmp", "dev", "proc", "sys", "run"];

/// Variables of an image that commands get. Values may be secrets, so they are never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEnvironment(BTreeMap<String, String>);

impl ImageEnvironment {
    /// Takes the variables of an image, given as `NAME=value`, that commands get. A name that no shell accepts, and
    /// variables over the limits, are left out.
    pub fn new(env: &[String]) -> Self {
        let mut taken = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in env.iter().filter_map(|pair| pair.split_once('=')) {
            let size = name.len() + value.len() + 2;
            let fits = taken.len() < VARIABLES_MAX && bytes + size <= BYTES_MAX;
            if name == "PATH" {
                let added: Vec<&str> = added_directories(value).collect();
                if !added.is_empty() && fits {
                    bytes += size;
                    taken.insert(name.to_owned(), added.join(":"));
                }
            } else if is_variable_name(name) && fits {
                bytes += size;
                taken.insert(name.to_owned(), value.to_owned());
            }
        }
        Self(taken)
    }

    /// Returns `true` if commands get no variable of the image.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the search path of commands: the directories that the image adds to its PATH, and then the default.
    pub fn path(&self) -> String {
        match self.0.get("PATH") {
            Some(added) => format!("{added}:{DEFAULT_PATH}"),
            None => DEFAULT_PATH.to_owned(),
        }
    }

    /// Returns the image's directory of redirect wheels. pip and uv take lists of directories, so a name with a separator
    /// is left out.
    pub fn wheels(&self) -> Option<&str> {
        let dir = self.0.get(WHEELS).map(String::as_str);
        dir.filter(|dir| is_image_directory(dir) && !dir.contains([' ', ',']))
    }

    /// Returns the variables as an image has them. [`Self::new`] takes all of them.
    pub fn pairs(&self) -> Vec<String> {
        let pairs = self.0.iter();
        pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    /// Returns the variables other than PATH.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let variables = self.0.iter().filter(|(name, _)| *name != "PATH");
        variables.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl std::fmt::Debug for ImageEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Returns the directories of a PATH that commands do not search anyway and that only the image can fill, each once.
fn added_directories(path: &str) -> impl Iterator<Item = &str> {
    let mut seen: Vec<&str> = DEFAULT_PATH.split(':').collect();
    path.split(':').filter(move |dir| {
        let is_new = is_image_directory(dir) && !seen.contains(dir);
        seen.push(*dir);
        is_new
    })
}

/// Returns `true` for an absolute path of the image, without `..`.
fn is_image_directory(dir: &str) -> bool {
    let mut parts = dir.split('/').filter(|part| !matches!(*part, "" | "."));
    let is_foreign = parts
        .clone()
        .next()
        .is_none_or(|first| FOREIGN_DIRS.contains(&first));
    dir.starts_with('/') && !is_foreign && parts.all(|part| part != "..")
}

/// Returns `true` for a name that shells accept and that is not one of the daemon's own for the guest.
fn is_variable_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name =
        name.bytes().all(is_inner) && !name.starts_with(|first: char| first.is_ascii_digit());
    is_name && !name.is_empty() && !name.starts_with("SKILLD_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_image(env: &[&str]) -> ImageEnvironment {
        let pairs: Vec<String> = env.iter().map(|&pair| pair.to_owned()).collect();
        ImageEnvironment::new(&pairs)
    }

    #[test]
    fn wheels_of_an_image_lie_in_its_own_files() {
        let wheels = |dir: &str| {
            let image = of_image(&[&format!("IMAGE_WHEELS={dir}")]);
            image.wheels().map(str::to_owned)
        };
        let dir = "/usr/share/skilld/wheels";
        assert_eq!(wheels(dir).as_deref(), Some(dir));
        for other in [
            "",
            "wheels",
            "/tmp/wheels",
            "/opt/../tmp",
            "/opt/a,/opt/b",
            "/opt/a b",
        ] {
            assert_eq!(wheels(other), None, "{other}");
        }
        assert_eq!(of_image(&[]).wheels(), None);
    }

    #[test]
    fn image_path_entries_come_first_unless_writable_by_commands() {
        for (path, expected) in [
            ("/usr/local/sbin:/usr/bin:/bin", ""),
            ("/opt/venv/bin:/usr/bin:/opt/venv/bin", "/opt/venv/bin:"),
            ("/usr/bin:/opt/a:/opt/b", "/opt/a:/opt/b:"),
            ("", ""),
            (":.:bin:../x::", ""),
            (
                "/workspace/work/bin:/tmp:/dev/shm:/proc/self/cwd:/run/x:/",
                "",
            ),
            ("//tmp/x:/./workspace:/opt/../tmp:/opt/ok", "/opt/ok:"),
        ] {
            let image = of_image(&[&format!("PATH={path}")]);
            assert_eq!(image.path(), format!("{expected}{DEFAULT_PATH}"), "{path}");
            assert_eq!(image.variables().count(), 0);
        }
    }

    #[test]
    fn variables_have_valid_names_and_are_bounded() {
        let image = of_image(&[
            "A=1=2",
            "B=",
            "1C=x",
            "D-E=x",
            "=x",
            "odd",
            "SKILLD_NONCE=x",
        ]);
        let taken: Vec<_> = image.variables().collect();
        assert_eq!(taken, [("A", "1=2"), ("B", "")]);
        assert_eq!(ImageEnvironment::new(&image.pairs()), image);
        let many: Vec<String> = (0..1000).map(|number| format!("V{number}=x")).collect();
        assert_eq!(ImageEnvironment::new(&many).0.len(), VARIABLES_MAX);
        let large = of_image(&[&format!("A={}", "x".repeat(BYTES_MAX)), "B=1"]);
        assert_eq!(large.variables().collect::<Vec<_>>(), [("B", "1")]);
    }

    #[test]
    fn values_are_not_shown() {
        let image = of_image(&["TOKEN=swordfish", "PATH=/opt/x"]);
        assert_eq!(format!("{image:?}"), "{\"PATH\", \"TOKEN\"}");
    }
}
