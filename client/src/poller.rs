//! Reading an exec by polling: each answer goes on where the one before it ended.

use skilld_proto::v1::{ExecState, PollExecRequest, PollExecResponse, StreamOffsets};

use crate::names::exec_name;
use crate::{Client, Error};

/// Polls one exec, each byte once. For programs that want what there is so far, rather than a stream of events.
#[derive(Debug)]
pub struct Poller {
    client: Client,
    /// Its offsets are those that the last answer gave.
    request: PollExecRequest,
    ended: bool,
}

impl Poller {
    pub(crate) fn new(client: Client, mut request: PollExecRequest) -> Self {
        request.name = exec_name(&request.name);
        Self {
            client,
            request,
            ended: false,
        }
    }

    /// The next answer, which has no output if none came in the time that the request waits. The last one has the
    /// state CLOSED, the result and no output; none after it. Cancel safe: what was not handed over comes again.
    pub async fn next(&mut self) -> Result<Option<PollExecResponse>, Error> {
        if self.ended {
            return Ok(None);
        }
        let answer = self.client.poll_exec(self.request.clone()).await?;
        if let Some(next) = answer.next_offsets {
            self.request.offsets = Some(next);
        }
        let nothing = answer.output.is_empty() && answer.gaps.is_empty();
        self.ended = nothing && answer.state() == ExecState::Closed;
        Ok(Some(answer))
    }

    /// Where the next answer starts: all before it was handed over.
    #[must_use]
    pub fn offsets(&self) -> StreamOffsets {
        self.request.offsets.unwrap_or_default()
    }
}
