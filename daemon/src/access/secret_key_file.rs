//! Files of secret keys in the state directory. Each is made once, of random bytes, and readable for the daemon's user
//! only.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ring::rand::{SecureRandom, SystemRandom};
use skilld_common::atomic_write::AtomicWrite;

use crate::error::{Error, Result};

/// Length of a key, in bytes: that of a SHA-256, as HMAC recommends.
const KEY_BYTES: usize = 32;

/// File of a secret key in the state directory.
#[derive(Debug)]
pub(crate) struct SecretKeyFile {
    /// Name of the file.
    pub(crate) name: &'static str,
    /// Purpose of the key, for messages.
    pub(crate) what: &'static str,
    /// Consequence of a new key, for messages.
    pub(crate) loss: &'static str,
}

impl SecretKeyFile {
    /// Reads the key of a state directory, and creates it if there is none. Blocks the thread.
    ///
    /// # Errors
    /// [`Error`] if the file can't be read or created, has another length, or may be read by other users.
    pub(crate) fn load_or_create(&self, state_dir: &Path) -> Result<[u8; KEY_BYTES]> {
        let path = state_dir.join(self.name);
        if !path.try_exists().map_err(key_error(&path))? {
            create_key(state_dir, &path).map_err(key_error(&path))?;
        }
        self.load(&path)
    }

    /// Checks the key of a state directory, if there is one. Blocks the thread.
    ///
    /// # Errors
    /// Those of [`Self::load_or_create`].
    pub(crate) fn check(&self, state_dir: &Path) -> Result<()> {
        let path = state_dir.join(self.name);
        if path.try_exists().map_err(key_error(&path))? {
            self.load(&path)?;
        }
        Ok(())
    }

    fn load(&self, path: &Path) -> Result<[u8; KEY_BYTES]> {
        let metadata = fs::metadata(path).map_err(key_error(path))?;
        let unusable = |why: String| Error::start(self.what, format!("{} {why}", path.display()));
        if metadata.mode() & 0o077 != 0 {
            let mode = metadata.mode() & 0o777;
            let why = format!("has mode {mode:04o}: other users must not read it; run chmod 600");
            return Err(unusable(why));
        }
        let key = fs::read(path).map_err(key_error(path))?;
        key.try_into().map_err(|key: Vec<u8>| {
            unusable(format!(
                "has {} bytes, not {KEY_BYTES}: restore it, or remove it to have a new one made, with which {}",
                key.len(),
                self.loss
            ))
        })
    }
}

fn key_error(path: &Path) -> impl Fn(io::Error) -> Error + use<'_> {
    move |source| Error::io(format!("read or create the key {}", path.display()), source)
}

/// Creates the key's file in one step, with mode 0600: it has its full length at any moment.
fn create_key(state_dir: &Path, path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    SystemRandom::new()
        .fill(&mut key)
        .map_err(|_| io::Error::other("the system has no random bytes"))?;
    let written = AtomicWrite::new(state_dir, &key, 0o600)?.sync()?;
    written.install_new(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_private_and_a_damaged_or_readable_one_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let file = SecretKeyFile {
            name: "key",
            what: "the key of a test",
            loss: "nothing is lost",
        };
        let made = file.load_or_create(dir.path()).expect("made");
        assert_eq!(file.load_or_create(dir.path()).expect("read again"), made);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
        let path = dir.path().join("key");
        let mode = fs::metadata(&path).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for damaged in [&b""[..], &[1; 31], &[1; 33]] {
            fs::write(&path, damaged).expect("write");
            let error = file.load_or_create(dir.path()).expect_err("damaged");
            assert!(error.to_string().contains("remove it"), "{error}");
        }
        fs::write(&path, made).expect("write");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("chmod");
        let error = file.load_or_create(dir.path()).expect_err("readable");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        let checked = file.check(dir.path()).expect_err("readable");
        assert_eq!(checked.to_string(), error.to_string());
        fs::remove_file(&path).expect("remove");
        file.check(dir.path()).expect("it can be made");
        assert!(!path.exists(), "a check makes nothing");
    }
}
