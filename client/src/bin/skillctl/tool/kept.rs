//! A session in a file: whose it is and its state. Calls at the same time lose nothing of each other: what each changed
//! is merged, one at a time, with what the others changed since it began.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::state::{Delta, SessionState};
use skilld_client::tools::{Session, Toolset};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};

/// Who has the file has it for one write.
const LOCKED_MAX: Duration = Duration::from_secs(10);

/// Before a file that was locked is tried again.
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    app: String,
    #[serde(default)]
    user: String,
    session: String,
    #[serde(default)]
    agent: String,
    #[serde(default)]
    state: SessionState,
}

/// A session, and the file that it is kept in if it is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    file: Option<PathBuf>,
    session: Session,
    state: SessionState,
}

impl Kept {
    /// The session of a file, a new one if there is no such file; without a file one that is not kept.
    pub(crate) fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let (session, state) = super::new_session();
        let new = Self {
            file: file.map(Path::to_owned),
            session,
            state,
        };
        let Some(file) = file else {
            return Ok(new);
        };
        loop {
            if let Some(content) = read(file)? {
                return Ok(Self::of(file, content));
            }
            // Also when nothing changes: the next call must be of the same session.
            let temporary = new.written(directory_of(file));
            let temporary = temporary.with_context(|| cannot("write", file))?;
            match temporary.persist_noclobber(file) {
                Ok(_) => return Ok(new),
                // Another call has just made it.
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.error).with_context(|| cannot("write", file)),
            }
        }
    }

    /// The session of a file that must be there.
    pub(crate) fn existing(file: &Path) -> anyhow::Result<Self> {
        let content = read(file)?.with_context(|| format!("there is no {}", file.display()))?;
        Ok(Self::of(file, content))
    }

    fn of(file: &Path, content: Content) -> Self {
        Self {
            file: Some(file.to_owned()),
            session: Session {
                app: content.app,
                user: content.user,
                session: content.session,
                agent: content.agent,
            },
            state: content.state,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }

    /// It outlives this program.
    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Changes the state as a call says that was given `base`, in the file too. Where the file cannot be written it is
    /// changed here all the same.
    pub(crate) async fn change(
        &mut self,
        tools: &Toolset,
        base: &SessionState,
        delta: &Delta,
    ) -> anyhow::Result<()> {
        let Some(file) = self.file.clone() else {
            self.merge(tools, base, delta);
            return Ok(());
        };
        let locked = lock(&file).await;
        let content = match &locked {
            Ok(Some(_)) => read(&file),
            Ok(None) | Err(_) => Ok(None),
        };
        if let Ok(Some(content)) = content {
            *self = Self::of(&file, content);
            self.merge(tools, base, delta);
        } else {
            self.merge(tools, base, delta);
            content?;
        }
        // Held until it is written.
        let _locked = locked?;
        let temporary = self.written(directory_of(&file));
        let temporary = temporary.with_context(|| cannot("write", &file))?;
        let written = temporary.persist(&file).map_err(|error| error.error);
        written.with_context(|| cannot("write", &file))?;
        Ok(())
    }

    fn merge(&mut self, tools: &Toolset, base: &SessionState, delta: &Delta) {
        let others = between(base, &self.state);
        let merged = tools.merge(&self.session, base, &others, delta);
        self.state = base.with(&merged);
    }

    /// A file of it that has no name yet. Readable by its owner only: a state tells of a user's files.
    fn written(&self, directory: &Path) -> io::Result<NamedTempFile> {
        let content = Content {
            app: self.session.app.clone(),
            user: self.session.user.clone(),
            session: self.session.session.clone(),
            agent: self.session.agent.clone(),
            state: self.state.clone(),
        };
        let mut temporary = NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut temporary, &content)?;
        temporary.write_all(b"\n")?;
        Ok(temporary)
    }

    /// Removes the file.
    pub(crate) fn forget(self) -> anyhow::Result<()> {
        if let Some(file) = self.file {
            fs::remove_file(&file).with_context(|| cannot("remove", &file))?;
        }
        Ok(())
    }
}

/// What must change in one state to make it another.
fn between(from: &SessionState, to: &SessionState) -> Delta {
    let mut delta = Delta::new();
    for (key, value) in to
        .iter()
        .filter(|(key, value)| from.get(key) != Some(*value))
    {
        delta.set(key, value.clone());
    }
    for (key, _) in from.iter().filter(|(key, _)| to.get(key).is_none()) {
        delta.set(key, Value::Null);
    }
    delta
}

/// The file with the lock that a change needs; none if it is not there. The lock is the file's own, which every change
/// replaces, so that nothing is left behind: it counts as long as the file has its name.
async fn lock(path: &Path) -> anyhow::Result<Option<File>> {
    let until = Instant::now() + LOCKED_MAX;
    loop {
        // Some file systems lock for writing only what is open for it.
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| cannot("open", path)),
        };
        match file.try_lock() {
            Ok(()) => {
                let (own, named) = (file.metadata()?, fs::metadata(path));
                if named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
                    return Ok(Some(file));
                }
            }
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOCK_AGAIN).await,
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!("{} is locked by another program", path.display());
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| cannot("lock", path));
            }
        }
    }
}

fn cannot(verb: &str, file: &Path) -> String {
    format!("cannot {verb} {}", file.display())
}

fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

fn read(file: &Path) -> anyhow::Result<Option<Content>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| cannot("read", file)),
    };
    let content = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no session", file.display()))?;
    Ok(Some(content))
}
