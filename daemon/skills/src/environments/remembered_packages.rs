//! Packages that PrepareSkill added to skills: one file for each tenant and skill, replaced whole. Blocking.
//!
//! ```text
//! STATE_DIR/skills/added/<tenant>/<SHA-256 of the skill's name>.json
//! ```
//!
//! A file stays until a request of its tenant replaces or forgets the packages, also while no root has the skill: a root
//! that cannot be read for a while loses nothing.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::content_store::{read_record, write_record};
use crate::error::{Error, Result, tolerate};
use crate::parse::added_packages::AddedPackages;

/// Maximum number of skills to which one tenant adds packages. A file has at most 500 KiB, and usually 200 bytes.
const SKILLS_MAX: usize = 1000;
/// Words for these skills in the message of the error.
const SKILLS: &str =
    "the number of skills to which the tenant added packages (forget those of another skill first)";

/// Packages that are remembered for tenants and skills.
#[derive(Debug)]
pub(crate) struct RememberedPackages {
    dir: PathBuf,
    /// Directory for files that are being written, on the same file system.
    temporary: PathBuf,
}

/// File of one tenant and skill.
#[derive(Debug, Serialize, Deserialize)]
struct PackagesFile {
    /// Name of the skill, for people.
    skill: String,
    packages: AddedPackages,
}

impl RememberedPackages {
    /// Makes the store in a directory, which need not exist.
    pub(crate) fn new(dir: PathBuf, temporary: PathBuf) -> Self {
        Self { dir, temporary }
    }

    /// Returns the packages that a tenant added to a skill; none if it added none.
    ///
    /// # Errors
    /// `Io`, also for a file that is not valid.
    pub(crate) fn find(&self, tenant: &str, skill: &str) -> Result<AddedPackages> {
        let path = self.path(tenant, skill);
        match read_record::<PackagesFile>(&path) {
            Ok(file) => Ok(file.packages),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(AddedPackages::default()),
            Err(error) => Err(Error::io(format!(
                "read the packages that were added to {skill} (`skillctl skill prepare {skill} --no-packages` \
                 forgets them) in {}",
                path.display()
            ))(error)),
        }
    }

    /// Replaces the packages that a tenant added to a skill. Without packages the file is removed.
    ///
    /// # Errors
    /// `LimitExceeded` if the tenant added packages to 1,000 other skills; `Io`.
    pub(crate) fn replace(&self, tenant: &str, skill: &str, packages: AddedPackages) -> Result<()> {
        let path = self.path(tenant, skill);
        let failed = Error::io(format!("write {}", path.display()));
        if packages.is_empty() {
            return tolerate(ErrorKind::NotFound, fs::remove_file(&path)).map_err(failed);
        }
        let directory = self.dir.join(tenant);
        let write = || {
            fs::create_dir_all(&directory)?;
            if !path.exists() && fs::read_dir(&directory)?.count() >= SKILLS_MAX {
                return Ok(false);
            }
            let file = PackagesFile {
                skill: skill.to_owned(),
                packages,
            };
            write_record(&self.temporary, &path, &file, || {}).map(|()| true)
        };
        match write().map_err(failed)? {
            true => Ok(()),
            false => Err(Error::LimitExceeded {
                what: SKILLS.to_owned(),
                limit: SKILLS_MAX as u64,
            }),
        }
    }

    fn path(&self, tenant: &str, skill: &str) -> PathBuf {
        let name = HEXLOWER.encode(&Sha256::digest(skill));
        self.dir
            .join(tenant)
            .join(Path::new(&name).with_extension("json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(text: &str) -> AddedPackages {
        let mut packages = AddedPackages::default();
        packages.add(text).expect("a package");
        packages
    }

    #[test]
    fn packages_belong_to_one_tenant_and_skill() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || RememberedPackages::new(dir.path().join("added"), dir.path().to_owned());
        open()
            .replace("a", "csv", packages("simpy"))
            .expect("written");
        open()
            .replace("a", "csv", packages("npm:docx"))
            .expect("written");
        open()
            .replace("b", "csv", packages("pandas"))
            .expect("written");
        let find = |tenant: &str, skill: &str| open().find(tenant, skill).expect("read").texts();
        assert_eq!(find("a", "csv"), ["npm:docx"]);
        assert_eq!(find("b", "csv"), ["pandas"]);
        for (tenant, skill) in [("c", "csv"), ("a", "pdf"), ("a", "../b/csv")] {
            assert_eq!(find(tenant, skill), [""; 0]);
        }
        open()
            .replace("a", "csv", AddedPackages::default())
            .expect("removed");
        open()
            .replace("a", "csv", AddedPackages::default())
            .expect("nothing to do");
        assert_eq!(find("a", "csv"), [""; 0]);
        assert_eq!(
            fs::read_dir(dir.path().join("added/a"))
                .expect("read")
                .count(),
            0
        );
    }

    #[test]
    fn a_broken_file_can_be_replaced_and_its_error_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let remembered = RememberedPackages::new(dir.path().join("added"), dir.path().to_owned());
        let replace = |packages| remembered.replace("a", "csv", packages).expect("written");
        replace(packages("simpy"));
        fs::write(remembered.path("a", "csv"), "{").expect("written");
        let error = remembered.find("a", "csv").expect_err("broken").to_string();
        assert!(
            error.contains("skillctl skill prepare csv --no-packages"),
            "{error}"
        );
        replace(AddedPackages::default());
        assert!(remembered.find("a", "csv").expect("read").is_empty());
    }

    #[test]
    fn one_tenant_adds_packages_to_1000_skills() {
        let dir = tempfile::tempdir().expect("a directory");
        let remembered = RememberedPackages::new(dir.path().join("added"), dir.path().to_owned());
        remembered
            .replace("a", "csv", packages("simpy"))
            .expect("written");
        for number in 1..SKILLS_MAX {
            let path = dir.path().join("added/a").join(number.to_string());
            fs::write(path, "{}").expect("written");
        }
        remembered
            .replace("a", "csv", packages("pandas"))
            .expect("replaced");
        let refused = remembered.replace("a", "pdf", packages("pandas"));
        assert!(matches!(
            refused,
            Err(Error::LimitExceeded { limit: 1000, .. })
        ));
        remembered
            .replace("b", "pdf", packages("pandas"))
            .expect("of another tenant");
    }
}
