//! A session in a file: whose it is and its state. Calls at the same time lose nothing of each other: each writes what
//! it changed over what the file says then, one at a time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use skilld_client::state::{Delta, SessionState};
use skilld_client::tools::Session;
use tempfile::NamedTempFile;

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
        let Some(file) = file else {
            return Ok(Self {
                file: None,
                session,
                state,
            });
        };
        let mut kept = Self {
            file: Some(file.to_owned()),
            session,
            state,
        };
        // Also when nothing changes: the next call must be of the same session.
        kept.change(&Delta::new())?;
        Ok(kept)
    }

    /// The session of a file that must be there.
    pub(crate) fn existing(file: &Path) -> anyhow::Result<Self> {
        let content = read(file)?.with_context(|| format!("there is no {}", file.display()))?;
        Ok(Self::of(Some(file.to_owned()), content))
    }

    fn of(file: Option<PathBuf>, content: Content) -> Self {
        Self {
            file,
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

    /// Changes the state, in the file too.
    pub(crate) fn change(&mut self, delta: &Delta) -> anyhow::Result<()> {
        let Some(file) = self.file.clone() else {
            self.state.apply(delta);
            return Ok(());
        };
        let directory = directory_of(&file);
        // The directory is what is locked: the file itself is replaced, and a lock of its own would be left behind.
        let lock = File::open(directory)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        lock.lock()
            .with_context(|| format!("cannot lock {}", directory.display()))?;
        if let Some(content) = read(&file)? {
            *self = Self::of(Some(file.clone()), content);
        }
        self.state.apply(delta);
        self.write(&file, directory)
            .with_context(|| format!("cannot write {}", file.display()))
    }

    fn write(&self, file: &Path, directory: &Path) -> io::Result<()> {
        let content = Content {
            app: self.session.app.clone(),
            user: self.session.user.clone(),
            session: self.session.session.clone(),
            agent: self.session.agent.clone(),
            state: self.state.clone(),
        };
        // Readable by its owner only: a state tells of a user's files.
        let mut temporary = NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut temporary, &content)?;
        temporary.write_all(b"\n")?;
        temporary.persist(file)?;
        Ok(())
    }

    /// Removes the file.
    pub(crate) fn forget(self) -> anyhow::Result<()> {
        if let Some(file) = self.file {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        Ok(())
    }
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
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    let content = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no session", file.display()))?;
    Ok(Some(content))
}
