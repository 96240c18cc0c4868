//! Moves the output of an exec from its pipes or its terminal into the windows, as far as these have room.

use std::time::Instant;

use skilld_proto::v1::ExitReason;

use super::RunningExec;
use super::output_source::{OutputSource, would_block};
use crate::exec::writable_disks::reports_full_disk;
use crate::output_window::CHUNK_BYTES;

/// Maximum bytes read from one pipe before other tasks get their turn.
const TURN_BYTES: usize = 4 * CHUNK_BYTES;
/// Smallest read after which a program is expected to write on at once, in bytes. Lines are shorter.
const BULK_BYTES: usize = 4096;
/// Maximum number of reads in a row that find nothing, in one turn of a program that writes much. Each gives the program
/// the processor, so that readers get few large events instead of many small ones.
const EMPTY_READS_MAX: usize = 4;

impl RunningExec {
    /// Returns `true` if a stream is open and its window has room.
    pub(super) fn may_read(&self, stream: usize) -> bool {
        let open = self.sources.get(stream).is_some_and(Option::is_some);
        open && self.room(stream) > 0
    }

    /// Returns `true` if a stream is open and its window is full, so that the program waits or soon will.
    pub(super) fn is_blocked(&self) -> bool {
        let open = |stream: &usize| self.sources.get(*stream).is_some_and(Option::is_some);
        [0, 1]
            .iter()
            .any(|stream| open(stream) && self.room(*stream) == 0)
    }

    /// Returns how many bytes of a stream may be read now.
    pub(super) fn room(&self, stream: usize) -> u64 {
        // A pipe's last bytes are bounded by the pipe. They are read without a reader, or the exec would wait for one
        // forever. Output beyond the limit is discarded and always fits.
        let ends = |source: &OutputSource| source.left.is_some();
        let last = self
            .sources
            .get(stream)
            .and_then(Option::as_ref)
            .is_some_and(ends);
        if self.block && !last && self.output_left > 0 {
            self.exec.state().room(stream)
        } else {
            u64::MAX
        }
    }

    /// Moves the contents of a pipe into its window, for one turn.
    pub(super) async fn read(&mut self, stream: usize) {
        let mut moved = self.read_once(stream);
        let mut empty_reads = 0;
        // The runtime takes a pipe for empty after a read that did not fill the buffer.
        self.draining = moved >= BULK_BYTES;
        while self.draining && moved < TURN_BYTES && self.may_read(stream) {
            match self.read_once(stream) {
                0 if empty_reads == EMPTY_READS_MAX => break,
                0 => {
                    empty_reads += 1;
                    std::thread::yield_now();
                }
                read => {
                    empty_reads = 0;
                    moved += read;
                    // A program that writes single bytes would hold up all others for a whole turn.
                    if read < BULK_BYTES {
                        break;
                    }
                }
            }
        }
        self.draining = false;
        if moved > 0 {
            self.reset_silence_deadline();
            self.exec.notify_changed();
            if self.host.execs.budget.is_over() {
                self.host.execs.make_room();
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads once and returns the number of bytes; 0 if there are none now, or at the end.
    pub(super) fn read_once(&mut self, stream: usize) -> usize {
        let room = self.room(stream);
        let Some(slot) = self.sources.get_mut(stream) else {
            return 0;
        };
        let Some(source) = slot else {
            return 0;
        };
        let most = room
            .min(source.left.unwrap_or(u64::MAX))
            .min(CHUNK_BYTES as u64);
        let most = usize::try_from(most).unwrap_or(CHUNK_BYTES);
        if most == 0 {
            if source.left == Some(0) {
                *slot = None;
            }
            return 0;
        }
        self.scratch.reserve(CHUNK_BYTES);
        // The runtime may not have noticed yet the bytes that came before the end.
        let all = self.draining || source.left.is_some();
        let read = source.read(&mut self.scratch, most, all);
        let count = match &read {
            Ok(count) if *count > 0 => *count,
            Err(_) if would_block(&read) && source.left.is_none() => return 0,
            Ok(_) | Err(_) => {
                *slot = None;
                return 0;
            }
        };
        if count == CHUNK_BYTES {
            source.enlarge();
        }
        self.keep_output(stream, count as u64);
        count
    }

    /// Appends the bytes that were read to the window. Terminates the exec if they exceed the output limit.
    pub(super) fn keep_output(&mut self, stream: usize, count: u64) {
        if reports_full_disk(&self.scratch) {
            self.host.disks.add_full(&mut self.full_disks);
        }
        if count > self.output_left {
            let keep = usize::try_from(self.output_left).unwrap_or(usize::MAX);
            self.scratch.truncate(keep);
            if self.cause != Some(ExitReason::OutputLimit) {
                self.terminate(ExitReason::OutputLimit, self.settings.kill_grace);
            }
        }
        self.output_left -= count.min(self.output_left);
        let mut state = self.exec.state();
        state.last_output = Some(Instant::now());
        let needed = if self.block {
            state.needed(stream)
        } else {
            u64::MAX
        };
        if let Some(window) = state.windows.get_mut(stream) {
            window.push(&mut self.scratch, needed);
        }
    }
}
