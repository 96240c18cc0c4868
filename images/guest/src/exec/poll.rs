//! Long poll of an exec's output. It waits until output settles, the exec ends, or the time is over, and returns what
//! is there. Only the exec and the clock wake it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_proto::v1;

use super::deadlines::sleep_until;
use super::output_piece::{self, OutputPiece, OutputReadOptions};
use super::reader_backpressure::{ReaderGuard, ReaderRpc};
use super::{Exec, ExecPhase, ExecState};
use crate::error::Error;

/// Limits of a poll request.
const BYTES_MAX: usize = 1024 * 1024;
const WAIT_MAX: Duration = Duration::from_secs(60);
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Minimum of `bytes_max` for TEXT, so that a character of each stream fits.
const TEXT_BYTES_MIN: usize = 8;
/// Bytes that suffice to find a piece: the length of the longest character.
const PROBE_BYTES: usize = 4;

/// Poll request with its options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollRequest {
    pub(crate) offsets: [u64; 2],
    pub(crate) style: OutputReadOptions,
    pub(crate) wait: Duration,
    pub(crate) settle: Duration,
    /// Maximum output of the response, in bytes.
    pub(crate) bytes_max: usize,
}

impl PollRequest {
    /// Answers once there is a result that no poll returned, the exec is closed, or there is enough output for a full response or a full window, output that has been quiet
    /// for the settle time, or when the wait is over.
    pub(crate) async fn answer(mut self, exec: Arc<Exec>) -> Result<v1::PollExecResponse, Error> {
        let least = match self.style.format {
            v1::OutputFormat::Text => TEXT_BYTES_MIN,
            v1::OutputFormat::Bytes | v1::OutputFormat::Unspecified => 1,
        };
        self.bytes_max = self.bytes_max.clamp(least, BYTES_MAX);
        let over = Instant::now() + self.wait.min(WAIT_MAX);
        let mut changed = exec.changed.subscribe();
        {
            let mut state = exec.state();
            output_piece::check_offsets(&state, self.offsets, self.style.gap_policy)?;
            state.acknowledge(self.offsets);
        }
        let (kind, format) = (ReaderRpc::Poll, self.style.format);
        let _guard = ReaderGuard::register(Arc::clone(&exec), kind, format, self.offsets);
        loop {
            changed.mark_unchanged();
            let now = Instant::now();
            let due_time = {
                let mut state = exec.state();
                let due_time = self
                    .due_time(&state, now)?
                    .map_or(over, |due_time| due_time.min(over));
                if due_time <= now {
                    state.is_exit_polled |= state.phase >= ExecPhase::Exited;
                    return self.collect(&state);
                }
                due_time
            };
            tokio::select! {
                // The exec owns the sender and outlives this poll.
                _ = changed.changed() => {}
                () = sleep_until(Some(due_time)) => {}
            }
        }
    }

    /// Returns the time at which the poll answers if nothing else happens; `None` without new output.
    fn due_time(&self, state: &ExecState, now: Instant) -> Result<Option<Instant>, Error> {
        // Between Exited and Closed, a client that polls on would otherwise get empty answers without pause.
        if state.phase == ExecPhase::Closed
            || (state.phase == ExecPhase::Exited && !state.is_exit_polled)
        {
            return Ok(Some(now));
        }
        let mut there = false;
        let mut sum = 0;
        for (stream, (window, at)) in state.windows.iter().zip(self.offsets).enumerate() {
            sum += window.held(at);
            if window.room(at) == 0 {
                return Ok(Some(now));
            }
            there |=
                output_piece::take_piece(state, stream, at, self.style, PROBE_BYTES)?.is_some();
        }
        if !there {
            return Ok(None);
        }
        if sum >= self.bytes_max as u64 {
            return Ok(Some(now));
        }
        let last = state.last_output.unwrap_or(now);
        Ok(Some(last + self.settle.min(SETTLE_MAX)))
    }

    /// Builds the response from the output that fits. Reserves half of the room for stderr if stderr needs it.
    fn collect(&self, state: &ExecState) -> Result<v1::PollExecResponse, Error> {
        let ([_, stderr], [_, at]) = (&state.windows, self.offsets);
        let mut left = self.bytes_max;
        let reserved = usize::try_from(stderr.held(at))
            .unwrap_or(left)
            .min(left / 2);
        let mut response = v1::PollExecResponse::default();
        let mut next = self.offsets;
        for (stream, at) in next.iter_mut().enumerate() {
            let keep = if stream == 0 { reserved } else { 0 };
            while left > keep {
                let taken = output_piece::take_piece(state, stream, *at, self.style, left - keep)?;
                let Some((piece, after)) = taken else {
                    break;
                };
                match piece {
                    OutputPiece::Output(output) => {
                        left -= usize::try_from(after - *at).unwrap_or(left).min(left);
                        response.outputs.push(output);
                    }
                    OutputPiece::Gap(gap) => response.gaps.push(gap),
                }
                *at = after;
            }
        }
        response.next_offsets = Some(v1::StreamOffsets::from_counts(next));
        response.set_state(state.phase.to_api_state());
        response.result = state.result();
        Ok(response)
    }
}
