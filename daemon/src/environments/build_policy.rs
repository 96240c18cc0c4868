//! Digest of the build policy: where packages may come from, and what a build may do with them. It is part of an
//! environment's key, so an environment is not used any more once the policy differs from the one it was built with.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::config::environments::EnvironmentOptions;
use crate::error::{Chain, Error};
use crate::workspace::shared_slot_context::SharedSlotContext;

/// Part of every digest. It changes when builds produce something else, so that older environments are not used.
const RECIPE: &str = "3";

/// Build policy of the daemon.
#[derive(Debug, Default)]
pub(super) struct BuildPolicy {
    /// Latest digest, which counts while the wheelhouse cannot be read; `None` before the first one.
    latest: Mutex<Option<String>>,
}

impl BuildPolicy {
    /// Returns the digest of the policy as it is now, with the files of the wheelhouse; `None` if these could not be read
    /// yet.
    pub(super) async fn digest(&self, context: &SharedSlotContext) -> Option<String> {
        let config = Arc::clone(&context.config);
        let read = move || {
            policy_digest(&config.skills.environments)
                .map_err(|source| Error::io("list skills.wheelhouse", source))
        };
        let read = context.tasks.blocking(read).await;
        let mut latest = self.latest.lock();
        match read {
            Ok(digest) => *latest = Some(digest),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "environments are used as before");
            }
        }
        latest.clone()
    }
}

/// Computes the digest. Blocks.
fn policy_digest(options: &EnvironmentOptions) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        // The length keeps the end of one part from being read as the beginning of the next.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(RECIPE.as_bytes());
    for index in [&options.package_index, &options.node_package_index] {
        add(index.as_ref().map_or("", |index| &index.url).as_bytes());
    }
    add(format!("{:?}", options.package_hosts).as_bytes());
    add(&[options.source_builds.into()]);
    if let Some(wheelhouse) = &options.wheelhouse {
        add(wheelhouse.as_os_str().as_encoded_bytes());
        for file in list_wheels(wheelhouse)? {
            add(file.as_bytes());
        }
    }
    Ok(HEXLOWER.encode(&hash.finalize()))
}

/// Lists the files of a wheelhouse, sorted: name, size and time of the last change of each.
fn list_wheels(wheelhouse: &Path) -> io::Result<Vec<String>> {
    let describe = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        // A link may lead nowhere.
        let metadata = fs::metadata(entry.path()).or_else(|_| entry.metadata())?;
        let changed = metadata
            .modified()?
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(format!(
            "{:?} {} {}",
            entry.file_name(),
            metadata.len(),
            changed.as_nanos()
        ))
    };
    let mut files = fs::read_dir(wheelhouse)?
        .map(describe)
        .collect::<io::Result<Vec<String>>>()?;
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    fn digest(toml: &str) -> String {
        let config = Config::from_toml(toml).expect("configuration").config;
        policy_digest(&config.skills.environments).expect("read")
    }

    #[test]
    fn every_source_of_packages_changes_the_digest() {
        let wheels = tempfile::tempdir().expect("a directory");
        let settings = [
            String::new(),
            "skills.source_builds = true".to_owned(),
            "skills.package_index = \"https://a.example/simple\"".to_owned(),
            "skills.node_package_index = \"https://a.example/simple\"".to_owned(),
            "skills.package_hosts = [\"files.example\"]".to_owned(),
            format!("skills.wheelhouse = {:?}", wheels.path()),
        ];
        let digests = settings.iter().map(|toml| digest(toml));
        let different: HashSet<String> = digests.collect();
        assert_eq!(different.len(), settings.len());
        assert_eq!(digest("skills.builds_max = 7"), digest(""));
    }

    #[test]
    fn wheel_that_is_added_or_replaced_changes_the_digest() {
        let wheels = tempfile::tempdir().expect("a directory");
        let toml = format!("skills.wheelhouse = {:?}", wheels.path());
        let wheel = wheels.path().join("x-1.0-py3-none-any.whl");
        let empty = digest(&toml);
        fs::write(&wheel, "old").expect("written");
        let old = digest(&toml);
        assert_eq!(digest(&toml), old, "nothing has changed");
        fs::write(&wheel, "new").expect("written");
        let changed = fs::metadata(&wheel)
            .and_then(|metadata| metadata.modified())
            .expect("a time");
        let file = fs::File::options()
            .append(true)
            .open(&wheel)
            .expect("opened");
        file.set_modified(changed + Duration::from_secs(1))
            .expect("set");
        let new = digest(&toml);
        assert!(empty != old && old != new && new != empty);
    }
}
