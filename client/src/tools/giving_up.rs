//! Giving a call up. A command's life is not its call's: it is ended by KillExec. One that the daemon has not started yet
//! KillExec cannot find, and it would start all the same: so the call goes on until one of the two is over.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::Status;

use super::{Answer, Call, Session, ToolError, Toolset, follow};
use crate::state::SessionState;
use crate::{Error, exec_name, new_exec_id};

/// What is given up is looked for no longer than this. A call that has not begun a command by then is dropped. Less than
/// programs wait before they end.
const WITHIN: Duration = Duration::from_secs(20);

/// The tools whose calls start commands; with all others nothing is to be ended.
const STARTING: [&str; 5] = [
    "run_skill_script",
    "skill_exec",
    "skill_run",
    "skills_tool",
    "workspace_exec",
];

/// Before it is looked for again; each time twice as long.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// How a call ended that could be given up.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Called(Result<Answer, ToolError>),
    /// It was given up. What it started has ended, or nobody knows for this reason.
    GivenUp(Result<(), ToolError>),
}

impl Toolset {
    /// Makes one call, and gives it up as soon as `given_up` is over: what it started is ended then, also what starts only
    /// while it is given up. That takes a command's grace at most, and never more than 20 s. Nothing of the call's answer
    /// counts then.
    pub async fn call_or_give_up(
        &self,
        session: &Session,
        state: &SessionState,
        mut call: Call,
        given_up: impl Future<Output = ()>,
    ) -> Ended {
        if call.id.is_empty() {
            // Without one nobody could find what it started.
            call.id = new_exec_id();
        }
        let (tool, id) = (call.name.clone(), call.id.clone());
        let mut calling = pin!(self.call(session, state, call));
        tokio::select! {
            biased;
            called = &mut calling => return Ended::Called(called),
            () = given_up => {}
        }
        if !STARTING.contains(&tool.as_str()) {
            return Ended::GivenUp(Ok(()));
        }
        // What the daemon said last when it was asked to end it.
        let silent = Status::deadline_exceeded(format!("no answer in {} s", WITHIN.as_secs()));
        let mut looked = Err(Error::from(silent).into());
        let ending = async {
            let mut again = AGAIN_FIRST;
            loop {
                tokio::select! {
                    biased;
                    _ = &mut calling => break,
                    killed = self.kill(session, &tool, &id) => match killed {
                        Ok(true) => return Ok(()),
                        Ok(false) => {}
                        Err(error) => looked = Err(error),
                    }
                }
                tokio::select! {
                    biased;
                    _ = &mut calling => break,
                    () = sleep(again) => again = (again * 2).min(AGAIN_MAX),
                }
            }
            // What it started last may have come after it was looked for.
            self.cancel(session, &tool, &id).await
        };
        let ended = timeout(WITHIN, ending).await;
        Ended::GivenUp(ended.unwrap_or(looked))
    }

    /// Ends what a call started, by its tool and its id. OK if it started nothing. For who did not make the call: one under
    /// way may start its command afterwards, which [`call_or_give_up`](Self::call_or_give_up) sees to.
    pub async fn cancel(&self, session: &Session, tool: &str, call: &str) -> Result<(), ToolError> {
        self.kill(session, tool, call).await.map(drop)
    }

    /// Whether there was something to end.
    async fn kill(&self, session: &Session, tool: &str, call: &str) -> Result<bool, ToolError> {
        let exec = format!("{}/{}", session.workspace_id(), session.exec_id(tool, call));
        match self.inner.client.kill_exec(&exec_name(&exec)).await {
            Ok(_) => Ok(true),
            Err(error) if follow::is_unknown(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
