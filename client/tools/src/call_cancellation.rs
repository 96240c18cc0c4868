//! Cancels a running tool call. Dropping the call stops no command of trpc, so cancellation sends KillExec. KillExec
//! cannot find a command that the daemon has not started yet and that would start all the same, so the call goes on
//! until it ends or its command is killed.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::call_context::ToolAnswer;
use crate::exec_run::is_unknown_exec;
use crate::session::Session;
use crate::state::SessionState;
use crate::tool_definition::ToolCall;
use crate::tool_error::ToolError;
use crate::toolset::Toolset;
use skilld_client::{Error, exec_name, new_exec_id};

/// Longest search for the command of a cancelled call; a call that has started none by then is dropped. Shorter than
/// the grace period of programs that wait before they end.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Tools of all families whose calls start commands; calls of other tools leave nothing to kill.
const CANCELLABLE_TOOLS: [&str; 5] = [
    "run_skill_script",
    "skill_exec",
    "skill_run",
    "skills_tool",
    "workspace_exec",
];

/// Wait before the first repeated search; doubled each time up to `RETRY_MAX`.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Outcome of a call that may be cancelled.
#[derive(Debug)]
pub enum CancelOutcome {
    /// The call finished before it was cancelled.
    Finished(Result<ToolAnswer, ToolError>),
    /// The call was cancelled and its command has ended, or could not be ended for this reason.
    Cancelled(Result<(), ToolError>),
}

impl Toolset {
    /// Makes one call and cancels it when `cancelled` resolves. A cancelled call's command is killed, also one that
    /// starts only while the cancellation is in progress; its answer is dropped. Cancelling takes a command's grace
    /// period at most, and never more than 20 s.
    pub async fn call_cancellable(
        &self,
        session: &Session,
        state: &SessionState,
        mut call: ToolCall,
        cancelled: impl Future<Output = ()>,
    ) -> CancelOutcome {
        if call.id.is_empty() {
            // Without an id its command could not be found.
            call.id = new_exec_id();
        }
        let (tool, id) = (call.name.clone(), call.id.clone());
        let mut calling = pin!(self.call(session, state, call));
        tokio::select! {
            // An answer that has arrived counts more than the cancellation, which drops answers and what they change.
            biased;
            finished = &mut calling => return CancelOutcome::Finished(finished),
            () = cancelled => {}
        }
        if !CANCELLABLE_TOOLS.contains(&tool.as_str()) {
            return CancelOutcome::Cancelled(Ok(()));
        }
        // Answer of the daemon to the last KillExec.
        let silent =
            Status::deadline_exceeded(format!("no answer in {} s", SEARCH_TIMEOUT.as_secs()));
        let mut last_answer = Err(Error::from(silent).into());
        let ending = async {
            let mut retry = RETRY_FIRST;
            loop {
                tokio::select! {
                    biased;
                    _ = &mut calling => break,
                    killed = self.kill(session, &tool, &id) => match killed {
                        Ok(true) => return Ok(()),
                        Ok(false) => {}
                        Err(error) => last_answer = Err(error),
                    }
                }
                tokio::select! {
                    biased;
                    _ = &mut calling => break,
                    () = sleep(retry) => retry = (retry * 2).min(RETRY_MAX),
                }
            }
            // Its command may have started after the last search.
            self.cancel(session, &tool, &id).await
        };
        let ended = timeout(SEARCH_TIMEOUT, ending).await;
        CancelOutcome::Cancelled(ended.unwrap_or(last_answer))
    }

    /// Kills the command that a call started, by its tool and its id; OK if it started none. For callers that did not
    /// make the call. A call in progress may start its command later; [`call_cancellable`](Self::call_cancellable)
    /// prevents that.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon cannot be reached or refuses.
    pub async fn cancel(&self, session: &Session, tool: &str, call: &str) -> Result<(), ToolError> {
        self.kill(session, tool, call).await.map(drop)
    }

    /// Returns `true` if there was a command to kill.
    async fn kill(&self, session: &Session, tool: &str, call: &str) -> Result<bool, ToolError> {
        let exec = format!("{}/{}", session.workspace_id(), session.exec_id(tool, call));
        match self.inner.client.kill_exec(&exec_name(&exec)).await {
            Ok(_) => Ok(true),
            Err(error) if is_unknown_exec(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
