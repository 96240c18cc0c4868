//! An exec's windows and readers against a model: everything that was ever written, and where each reader is.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use proptest::prelude::*;
use skilld_proto::count_from_int64;
use skilld_proto::v1;
use skilld_proto::v1::output_event::Content;

use super::output_piece::{self, OutputPiece, OutputReadOptions};
use super::reader_backpressure::{ReaderGuard, ReaderRpc};
use super::{Exec, ExecPhase, ExecState};
use crate::output_window::{CHUNK_BYTES, OutputBudget};

/// Event in the life of an exec.
#[derive(Debug, Clone)]
enum Step {
    /// The program writes so much to a stream, as far as it may.
    Write(usize, usize),
    /// A reader comes, this far into what is retained of each stream, in percent; a poll if so.
    Join(u64, bool),
    /// A reader ends.
    Leave(usize),
    /// A reader reads at most this many bytes of a stream.
    Read(usize, usize, usize),
    /// A poll acknowledges this much of what is retained, in percent.
    Acknowledge(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0usize..2;
    prop_oneof![
        4 => (stream.clone(), 1usize..=CHUNK_BYTES).prop_map(|(s, n)| Step::Write(s, n)),
        1 => (0u64..=100, any::<bool>()).prop_map(|(at, poll)| Step::Join(at, poll)),
        1 => any::<usize>().prop_map(Step::Leave),
        4 => (any::<usize>(), stream, 1usize..200_000).prop_map(|(r, s, n)| Step::Read(r, s, n)),
        1 => (0u64..=100).prop_map(Step::Acknowledge),
    ]
}

struct Model {
    exec: Arc<Exec>,
    budget: Arc<OutputBudget>,
    budget_max: u64,
    capacity: u64,
    block: bool,
    /// Everything that was written to each stream.
    written: [Vec<u8>; 2],
    readers: BTreeMap<u64, (ReaderGuard, [u64; 2])>,
    acknowledged: [u64; 2],
}

const STYLE: OutputReadOptions = OutputReadOptions {
    format: v1::OutputFormat::Bytes,
    gap_policy: v1::GapPolicy::Accept,
};

impl Model {
    fn new(block: bool, capacity: u64, budget_max: u64) -> Self {
        let budget = OutputBudget::new(budget_max);
        let bytes = i64::try_from(capacity).expect("small");
        let spec = v1::ExecSpec {
            retention: Some(v1::ExecRetention {
                stdout_bytes: bytes,
                stderr_bytes: bytes,
                after_exit: None,
            }),
            ..Default::default()
        };
        let text = String::new;
        let (exec, _controls) = Exec::new(text(), text(), Vec::new().into(), spec, None, &budget);
        exec.state().phase = ExecPhase::Running;
        Self {
            exec,
            budget,
            budget_max,
            capacity,
            block,
            written: Default::default(),
            readers: BTreeMap::new(),
            acknowledged: [0; 2],
        }
    }

    /// Returns offsets this far into the retained output of each stream.
    fn percent(&self, percent: u64) -> [u64; 2] {
        let state = self.exec.state();
        state
            .windows
            .each_ref()
            .map(|window| window.start() + (window.end() - window.start()) * percent / 100)
    }

    fn nth(&self, index: usize) -> Option<u64> {
        let count = self.readers.len();
        let key = self.readers.keys().nth(index.checked_rem(count)?);
        key.copied()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write(stream, most) => self.write(stream, most),
            Step::Join(percent, poll) => {
                let offsets = self.percent(percent);
                let kind = match poll {
                    true => ReaderRpc::Poll,
                    false => ReaderRpc::Attach,
                };
                let format = STYLE.format;
                let guard = ReaderGuard::register(Arc::clone(&self.exec), kind, format, offsets);
                self.readers.insert(guard.id, (guard, offsets));
            }
            Step::Leave(index) => {
                if let Some(id) = self.nth(index) {
                    self.readers.remove(&id);
                }
            }
            Step::Read(index, stream, most) => {
                if let Some(id) = self.nth(index) {
                    self.read(id, stream, most);
                }
            }
            Step::Acknowledge(percent) => {
                let offsets = self.percent(percent);
                self.exec.state().acknowledge(offsets);
                for (known, offset) in self.acknowledged.iter_mut().zip(offsets) {
                    *known = offset.max(*known);
                }
            }
        }
    }

    /// The same as the exec's task does.
    fn write(&mut self, stream: usize, most: usize) {
        let mut state = self.exec.state();
        let (room, needed) = if self.block {
            (state.room(stream), state.needed(stream))
        } else {
            (u64::MAX, u64::MAX)
        };
        let length = most.min(usize::try_from(room).unwrap_or(usize::MAX));
        let seed = self.written[stream].len();
        let data: Vec<u8> = (seed..seed + length)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()[stream])
            .collect();
        state.windows[stream].push(&mut BytesMut::from(data.as_slice()), needed);
        self.written[stream].extend_from_slice(&data);
    }

    fn read(&mut self, id: u64, stream: usize, most: usize) {
        let mut state = self.exec.state();
        let (_, at) = self.readers.get_mut(&id).expect("a reader");
        let from = at[stream];
        let taken =
            output_piece::take_piece(&state, stream, from, STYLE, most).expect("gaps are accepted");
        let written = &self.written[stream];
        let Some((piece, next)) = taken else {
            assert_eq!(from, written.len() as u64, "there is more");
            return;
        };
        match piece {
            OutputPiece::Output(output) => {
                let Some(Content::Data(data)) = output.content else {
                    panic!("bytes");
                };
                let whole = usize::try_from(from).expect("small");
                assert_eq!(count_from_int64(output.offset), from);
                assert!(!data.is_empty() && data.len() <= most.min(CHUNK_BYTES));
                assert!(written[whole..].starts_with(&data), "other bytes");
                assert_eq!(next, from + data.len() as u64);
            }
            OutputPiece::Gap(gap) => {
                assert!(!self.block, "a reader that is waited for loses nothing");
                let lost = [gap.start_offset, gap.end_offset].map(count_from_int64);
                assert_eq!(lost, [from, state.windows[stream].start()]);
                assert_eq!(next, lost[1]);
            }
        }
        at[stream] = next;
        let at = *at;
        state.readers.entry(id).and_modify(|reader| reader.at = at);
    }

    fn check(&self) {
        let state: &ExecState = &self.exec.state();
        let mut held = 0;
        for (stream, window) in state.windows.iter().enumerate() {
            let (start, end) = (window.start(), window.end());
            assert_eq!(end, self.written[stream].len() as u64);
            assert!(end - start <= self.capacity, "{start} to {end}");
            held += end - start;
            let positions = self.readers.values().map(|(_, at)| at[stream]);
            if let (true, Some(slowest)) = (self.block, positions.min()) {
                assert!(start <= slowest, "dropped though a reader needs it");
            }
            // Only what the budget or the capacity asks for is dropped.
            let pressed = self.capacity.min(CHUNK_BYTES as u64);
            if end <= pressed {
                assert_eq!(start, 0);
            }
        }
        assert_eq!(self.budget.used(), held);
        let most = self.budget_max.saturating_add(3 * CHUNK_BYTES as u64);
        assert!(held <= most, "{held} of {most}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_execs_windows_do_what_the_model_does(
        block in any::<bool>(),
        capacity in (CHUNK_BYTES as u64)..300_000,
        budget in prop_oneof![Just(u64::MAX), 0u64..400_000],
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(block, capacity, budget);
        let mut dropped = [0; 2];
        for step in &steps {
            let before = model.percent(0);
            let readers = model.readers.len();
            model.take(step);
            model.check();
            let after = model.percent(0);
            // Without a reader a BLOCKing exec drops what polls have acknowledged, and nothing else.
            if block && readers == 0 {
                for stream in [0, 1] {
                    let most = before[stream].max(model.acknowledged[stream]);
                    prop_assert!(after[stream] <= most, "{step:?}: {before:?} {after:?}");
                }
            }
            // What is written to one stream drops nothing of the other.
            if let Step::Write(stream, _) = step {
                prop_assert_eq!(before[1 - stream], after[1 - stream]);
            }
            dropped = after;
        }
        let budget = Arc::clone(&model.budget);
        prop_assert_eq!(model.percent(0), dropped);
        drop(model);
        prop_assert_eq!(budget.used(), 0);
    }
}
