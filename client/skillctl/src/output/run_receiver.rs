//! Receiver of what a run sends beside the events of its command. It notes problems of staged skills and writes files
//! into a directory.

use std::path::PathBuf;
use std::time::Instant;

use skilld_client::v1::StagedSkill;
use skilld_client::v1::exec_event::Event;
use skilld_client::{CollectedFiles, CollectionWriter, Error};

use crate::output;
use crate::output::transfer_bar::TransferBar;

/// Receiver of the events of a run that are not the exec's own.
#[derive(Debug, Default)]
pub(crate) struct RunReceiver {
    /// Directory of the files; `None` for a run that sends none.
    pub(crate) directory: Option<PathBuf>,
    /// Messages of problems that are not noted any more.
    pub(crate) noted: Vec<String>,
    /// `true` once the workspace of the run is known to exist.
    pub(crate) has_workspace: bool,
    /// Time at which the exec was known to have started.
    pub(crate) start: Option<Instant>,
    /// Time at which the exec was known to have ended.
    pub(crate) end: Option<Instant>,
    /// Files that were written; `None` before all of them have come.
    pub(crate) collected: Option<CollectedFiles>,
    writer: Option<(CollectionWriter, TransferBar)>,
}

impl RunReceiver {
    /// Takes an event. Returns `false` for one of the exec.
    pub(crate) async fn take(&mut self, event: &Event) -> Result<bool, Error> {
        match event {
            Event::Workspace(_) => self.has_workspace = true,
            Event::Staged(staged) => {
                // A repeated call finds the workspace and does not send its event again.
                self.has_workspace = true;
                note_skill_problems(&staged.skills, &self.noted);
            }
            Event::File(file) => {
                if let Some((writer, _)) = self.writer().await? {
                    writer.begin(file.clone()).await?;
                }
            }
            Event::FileData(data) => {
                if let Some((writer, bar)) = self.writer().await? {
                    writer.write(data).await?;
                    bar.add(data.len());
                }
            }
            Event::FileEnd(end) => {
                if let Some((writer, _)) = self.writer().await? {
                    writer.end(end).await?;
                }
            }
            Event::Summary(summary) => {
                self.writer().await?;
                if let (Some((writer, _)), Some(outputs)) = (self.writer.take(), &summary.outputs) {
                    self.collected = Some(writer.finish(outputs.clone()).await?);
                }
            }
            Event::Started(_) => {
                self.has_workspace = true;
                self.start = Some(Instant::now());
                return Ok(false);
            }
            Event::Closed(_) => {
                self.end = Some(Instant::now());
                return Ok(false);
            }
            Event::Output(_) | Event::Gap(_) | Event::Heartbeat(_) | Event::Exited(_) => {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn writer(&mut self) -> Result<Option<&mut (CollectionWriter, TransferBar)>, Error> {
        if let (None, Some(directory)) = (&self.writer, &self.directory) {
            let writer = CollectionWriter::open(directory).await?;
            self.writer = Some((writer, TransferBar::new("collect")));
        }
        Ok(self.writer.as_mut())
    }
}

/// Notes on stderr what staged skills lack, but for problems with these messages. They can be used all the same.
pub(crate) fn note_skill_problems(skills: &[StagedSkill], noted: &[String]) {
    let problems = skills.iter().flat_map(|skill| &skill.problems);
    let lines: Vec<String> = problems
        .filter(|problem| !noted.contains(&problem.message))
        .map(|problem| format!("{} ({})", problem.message, problem.code))
        .collect();
    output::print_text_notes(&lines);
}
