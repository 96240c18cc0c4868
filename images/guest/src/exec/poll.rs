//! A long poll: waits for output to settle, for the end, or for its time to be over, and hands over what there is.
//! It is woken by the exec and by the clock, and looks at nothing in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_proto::v1;

use super::piece::{self, Piece, Style};
use super::readers::{ReaderGuard, ReaderKind};
use super::run::deadlines::sleep_until;
use super::{Exec, Phase, State};
use crate::error::Error;

/// Bounds of what a request may say.
const BYTES_MAX: usize = 1024 * 1024;
const WAIT_MAX: Duration = Duration::from_secs(60);
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Of TEXT at least, so that a character of each stream fits.
const TEXT_BYTES_MIN: usize = 8;
/// Enough to see whether there is anything to hand over: the longest character.
const PROBE_BYTES: usize = 4;

/// What a poll asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Poll {
    pub(crate) offsets: [u64; 2],
    pub(crate) style: Style,
    pub(crate) wait: Duration,
    pub(crate) settle: Duration,
    /// Of output, in all.
    pub(crate) bytes_max: usize,
}

impl Poll {
    /// Answers when there is a result, when as much is there as may be handed over or retained, when output has been
    /// quiet for the settle time, or when the wait is over.
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
            piece::check(&state, self.offsets, self.style.gaps)?;
            state.acknowledge(self.offsets);
        }
        let (kind, format) = (ReaderKind::Poll, self.style.format);
        let _guard = ReaderGuard::register(Arc::clone(&exec), kind, format, self.offsets);
        loop {
            changed.mark_unchanged();
            let now = Instant::now();
            let due = {
                let state = exec.state();
                let due = self.due(&state, now)?;
                let due = due.map_or(over, |due| due.min(over));
                if due <= now {
                    return self.collect(&state);
                }
                due
            };
            tokio::select! {
                // The sender lives in the exec, which this has.
                _ = changed.changed() => {}
                () = sleep_until(Some(due)) => {}
            }
        }
    }

    /// When this is answered if nothing else happens; `None` if nothing has happened yet.
    fn due(&self, state: &State, now: Instant) -> Result<Option<Instant>, Error> {
        if state.phase >= Phase::Exited {
            return Ok(Some(now));
        }
        let mut there = false;
        let mut sum = 0;
        for (stream, (window, at)) in state.windows.iter().zip(self.offsets).enumerate() {
            sum += window.held(at);
            if window.room(at) == 0 {
                return Ok(Some(now));
            }
            there |= piece::take(state, stream, at, self.style, PROBE_BYTES)?.is_some();
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

    /// What is there, as far as it fits. stdout leaves half of the room to stderr if that needs it.
    fn collect(&self, state: &State) -> Result<v1::PollExecResponse, Error> {
        let ([_, stderr], [_, at]) = (&state.windows, self.offsets);
        let mut left = self.bytes_max;
        let reserved = usize::try_from(stderr.held(at)).unwrap_or(left);
        let reserved = reserved.min(left / 2);
        let mut response = v1::PollExecResponse::default();
        let mut next = self.offsets;
        for (stream, at) in next.iter_mut().enumerate() {
            let keep = if stream == 0 { reserved } else { 0 };
            while left > keep {
                let taken = piece::take(state, stream, *at, self.style, left - keep)?;
                let Some((piece, after)) = taken else {
                    break;
                };
                match piece {
                    Piece::Output(output) => {
                        left -= usize::try_from(after - *at).unwrap_or(left).min(left);
                        response.output.push(output);
                    }
                    Piece::Gap(gap) => response.gaps.push(gap),
                }
                *at = after;
            }
        }
        let [stdout, stderr] = next;
        response.next_offsets = Some(v1::StreamOffsets { stdout, stderr });
        response.set_state(state.phase.api());
        response.result = state.result();
        Ok(response)
    }
}
