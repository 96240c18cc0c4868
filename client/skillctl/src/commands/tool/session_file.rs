//! File of a session: its names and its state. Calls at the same time lose nothing of each other: the changes of each are
//! merged, one call at a time, with the changes of the others since it began.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_common::atomic_write::AtomicWrite;
use skilld_tools::state::{SessionState, StateDelta};
use skilld_tools::{Session, Toolset};
use tokio::time::{Instant, sleep};

use crate::commands::partial_file::parent_directory;

/// Longest wait for the lock of a session file, which is held for one write.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Wait before another try to lock the file.
const LOCK_RETRY_WAIT: Duration = Duration::from_millis(10);

/// Content of a session file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionFileContent {
    app: String,
    #[serde(default)]
    user: String,
    session: String,
    #[serde(default)]
    agent: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    workspace: String,
    #[serde(default)]
    state: SessionState,
}

/// Session, and its file if it has one.
#[derive(Debug)]
pub(crate) struct SessionFile {
    file: Option<PathBuf>,
    pub(crate) session: Session,
    state: SessionState,
}

impl SessionFile {
    /// Opens the session of a file, or makes both; without a file, makes a session that is not kept.
    ///
    /// # Errors
    /// If the file cannot be read or made, or is that of a session in another place than `workspace`: the id of an
    /// existing workspace, or empty for one of the session's own.
    pub(crate) fn open(file: Option<&Path>, workspace: &str) -> anyhow::Result<Self> {
        let opened = Self::open_or_create(file, workspace)?;
        if let (Some(file), other) = (file, &opened.session.workspace)
            && !workspace.is_empty()
            && other != workspace
        {
            let file = file.display();
            let place = match other.as_str() {
                "" => "a workspace of its own",
                other => other,
            };
            anyhow::bail!("{file} is a session in {place}, not in {workspace}: give another file");
        }
        Ok(opened)
    }

    fn open_or_create(file: Option<&Path>, workspace: &str) -> anyhow::Result<Self> {
        let (mut session, state) = super::new_session();
        workspace.clone_into(&mut session.workspace);
        let new = Self {
            file: file.map(Path::to_owned),
            session,
            state,
        };
        let Some(file) = file else {
            return Ok(new);
        };
        loop {
            if let Some(content) = read_content(file)? {
                return Ok(Self::from_content(file, content));
            }
            // Also when nothing changes: the next call must be of the same session.
            let written = new.write_temporary(file);
            match written.and_then(|written| written.install_new(file)) {
                Ok(()) => return Ok(new),
                // Another call has just made it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| cannot_message("write", file));
                }
            }
        }
    }

    /// Opens the session of a file that must exist.
    pub(crate) fn open_existing(file: &Path) -> anyhow::Result<Self> {
        let content =
            read_content(file)?.with_context(|| format!("there is no {}", file.display()))?;
        Ok(Self::from_content(file, content))
    }

    fn from_content(file: &Path, content: SessionFileContent) -> Self {
        Self {
            file: Some(file.to_owned()),
            session: Session {
                app: content.app,
                user: content.user,
                session: content.session,
                agent: content.agent,
                workspace: content.workspace,
            },
            state: content.state,
        }
    }

    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }

    /// Returns `true` if the session outlives this program.
    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Merges the changes of a call that began with the state `base`, also in the file. If the file cannot be written, the
    /// state in memory changes all the same.
    pub(crate) async fn merge_delta(
        &mut self,
        tools: &Toolset,
        base: &SessionState,
        delta: &StateDelta,
    ) -> anyhow::Result<()> {
        let Some(file) = self.file.clone() else {
            self.merge(tools, base, delta);
            return Ok(());
        };
        let locked = lock_file(&file).await;
        let content = match &locked {
            Ok(Some(_)) => read_content(&file),
            Ok(None) | Err(_) => Ok(None),
        };
        if let Ok(Some(content)) = content {
            *self = Self::from_content(&file, content);
            self.merge(tools, base, delta);
        } else {
            self.merge(tools, base, delta);
            content?;
        }
        // Held until it is written.
        let _locked = locked?;
        self.write_temporary(&file)
            .and_then(|written| written.install(&file))
            .with_context(|| cannot_message("write", &file))
    }

    fn merge(&mut self, tools: &Toolset, base: &SessionState, delta: &StateDelta) {
        let others = state_difference(base, &self.state);
        let merged = tools.merge(&self.session, base, &others, delta);
        self.state = base.with(&merged);
    }

    /// Writes the session to a temporary file beside `file`. Only its owner can read it: a state names a user's files.
    fn write_temporary(&self, file: &Path) -> io::Result<AtomicWrite> {
        let content = SessionFileContent {
            app: self.session.app.clone(),
            user: self.session.user.clone(),
            session: self.session.session.clone(),
            agent: self.session.agent.clone(),
            workspace: self.session.workspace.clone(),
            state: self.state.clone(),
        };
        let mut json = serde_json::to_vec_pretty(&content)?;
        json.push(b'\n');
        AtomicWrite::new(parent_directory(file), &json, 0o600)
    }

    /// Removes the file.
    pub(crate) fn forget(self) -> anyhow::Result<()> {
        if let Some(file) = self.file {
            fs::remove_file(&file).with_context(|| cannot_message("remove", &file))?;
        }
        Ok(())
    }
}

/// Returns the change that makes one state another.
fn state_difference(from: &SessionState, to: &SessionState) -> StateDelta {
    let mut delta = StateDelta::new();
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

/// Locks the file for a change; `None` if it does not exist. The lock is on the file itself, which every change replaces,
/// so no lock file is left behind; it counts as long as the file has its name.
async fn lock_file(path: &Path) -> anyhow::Result<Option<File>> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        // Some file systems lock for writing only what is open for it.
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| cannot_message("open", path)),
        };
        match file.try_lock() {
            Ok(()) => {
                let (own, named) = (file.metadata()?, fs::metadata(path));
                if named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
                    return Ok(Some(file));
                }
            }
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOCK_RETRY_WAIT).await,
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!("{} is locked by another program", path.display());
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| cannot_message("lock", path));
            }
        }
    }
}

fn cannot_message(verb: &str, file: &Path) -> String {
    format!("cannot {verb} {}", file.display())
}

/// Reads a session file; `None` if it does not exist.
fn read_content(file: &Path) -> anyhow::Result<Option<SessionFileContent>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| cannot_message("read", file)),
    };
    let content = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no session", file.display()))?;
    Ok(Some(content))
}
