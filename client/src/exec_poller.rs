//! Reader of an exec that polls: each answer continues where the one before it ended.

use skilld_proto::v1::{ExecState, PollExecRequest, PollExecResponse, StreamOffsets};

use crate::resource_names::exec_name;
use crate::{Client, Error};

/// Poller of one exec, which returns each byte once. For programs that want the output so far rather than a stream.
#[derive(Debug)]
pub struct ExecPoller {
    client: Client,
    /// Next request; its offsets are those of the last answer.
    request: PollExecRequest,
    ended: bool,
}

impl ExecPoller {
    pub(crate) fn new(client: Client, mut request: PollExecRequest) -> Self {
        request.name = exec_name(&request.name);
        Self {
            client,
            request,
            ended: false,
        }
    }

    /// Returns the next answer, which has no output if none came in the time that the request waits. The last one has the
    /// state CLOSED, the result and no output; after it comes `None`. Cancel safe: what was not returned comes again.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn next(&mut self) -> Result<Option<PollExecResponse>, Error> {
        if self.ended {
            return Ok(None);
        }
        let answer = self.client.poll_exec(self.request.clone()).await?;
        if let Some(next) = answer.next_offsets {
            self.request.offsets = Some(next);
        }
        let nothing = answer.outputs.is_empty() && answer.gaps.is_empty();
        self.ended = nothing && answer.state() == ExecState::Closed;
        Ok(Some(answer))
    }

    /// Returns the offsets of the next answer: all output before them was returned.
    #[must_use]
    pub fn offsets(&self) -> StreamOffsets {
        self.request.offsets.unwrap_or_default()
    }
}
