//! Messages between guest and supervisor: datagrams of little-endian words. Both sides are the same binary, but
//! commands share the supervisor's uid, so the guest must cope with any report.

use std::time::Duration;

use nix::libc::c_int;

use crate::sys::{ExitStatus, SpawnStage};

/// Maximum size of a spec in the message itself, in bytes. Longer ones travel in a memfd.
pub(crate) const INLINE_MAX: usize = 48 * 1024;
/// Number of words in the header of a message to a supervisor.
pub(crate) const HEAD_WORDS: usize = 17;
/// Maximum size of a report, in bytes.
pub(crate) const REPORT_BYTES: usize = 64;
/// Maximum number of resource limits per launch.
pub(crate) const LIMITS_MAX: usize = 5;

const START: u64 = 1;
const SIGNAL: u64 = 2;
const KILL: u64 = 3;

const STARTED: u64 = 1;
const FAILED: u64 = 2;
const EXITED: u64 = 3;
const EMPTY: u64 = 4;

/// Program to run and its environment. No string contains a NUL.
#[derive(Debug, Default)]
pub(crate) struct LaunchSpec {
    pub(crate) cwd: String,
    /// Path of the program; empty to search for argv[0] in PATH.
    pub(crate) program: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<String>,
    /// Resource limits, at most [`LIMITS_MAX`].
    pub(crate) limits: Vec<(c_int, u64)>,
    /// Makes stdin, which is a terminal, the leader's controlling terminal.
    pub(crate) terminal: bool,
}

/// Recipients of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalTarget {
    Leader,
    Group,
    Tree,
}

/// Order to a busy supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SupervisorOrder {
    Signal {
        target: SignalTarget,
        signal: c_int,
    },
    /// Kills the tree until nothing is left.
    Kill,
}

/// Decoded message to a supervisor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SupervisorRequest {
    Start(LaunchHeader),
    Order(SupervisorOrder),
}

/// Header of a launch. Its strings follow in the message or in a memfd.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaunchHeader {
    pub(crate) body_bytes: usize,
    pub(crate) args: usize,
    pub(crate) envs: usize,
    pub(crate) limits: Vec<(c_int, u64)>,
    pub(crate) terminal: bool,
    /// `true` if the fourth descriptor is that of the commands' CPU group, after stdin, stdout and stderr.
    pub(crate) has_command_group: bool,
}

/// Report of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SupervisorReport {
    Started {
        pid: i32,
    },
    Failed {
        stage: SpawnStage,
        errno: i32,
    },
    /// The leader has exited.
    Exited {
        exit: ExitStatus,
        wall: Duration,
    },
    /// No process of the tree is left.
    Empty,
}

/// Encodes words as little-endian bytes.
fn pack_words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Decodes little-endian words and drops an incomplete last one.
fn unpack_words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().copied().map(u64::from_le_bytes).collect()
}

fn to_c_int(word: u64) -> Option<c_int> {
    c_int::try_from(word).ok()
}

impl LaunchSpec {
    /// Encodes the header, and the strings that follow it.
    pub(crate) fn encode(&self, has_command_group: bool) -> (Vec<u8>, Vec<u8>) {
        let mut body = Vec::with_capacity(4096);
        for text in [&self.cwd, &self.program]
            .into_iter()
            .chain(&self.argv)
            .chain(&self.env)
        {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        let mut words = [0; HEAD_WORDS];
        let numbers = [
            START,
            body.len() as u64,
            self.argv.len() as u64,
            self.env.len() as u64,
            u64::from(self.terminal),
            u64::from(has_command_group),
            self.limits.len().min(LIMITS_MAX) as u64,
        ];
        let limits = self.limits.iter().take(LIMITS_MAX);
        let pairs =
            limits.flat_map(|(resource, limit)| [u64::try_from(*resource).unwrap_or(0), *limit]);
        for (word, value) in words.iter_mut().zip(numbers.into_iter().chain(pairs)) {
            *word = value;
        }
        (pack_words(words), body)
    }
}

impl SupervisorOrder {
    /// Encodes the order.
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Kill => pack_words([KILL, 0, 0]),
            Self::Signal { target, signal } => {
                let target = match target {
                    SignalTarget::Leader => 0,
                    SignalTarget::Group => 1,
                    SignalTarget::Tree => 2,
                };
                pack_words([SIGNAL, target, u64::try_from(signal).unwrap_or(0)])
            }
        }
    }
}

impl SupervisorRequest {
    /// Decodes the header of a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match *unpack_words(bytes).as_slice() {
            [KILL, ..] => Some(Self::Order(SupervisorOrder::Kill)),
            [SIGNAL, target, signal, ..] => {
                let target = match target {
                    0 => SignalTarget::Leader,
                    1 => SignalTarget::Group,
                    _ => SignalTarget::Tree,
                };
                let signal = to_c_int(signal)?;
                Some(Self::Order(SupervisorOrder::Signal { target, signal }))
            }
            [
                START,
                body,
                args,
                envs,
                terminal,
                command_group,
                limits,
                ref pairs @ ..,
            ] => {
                let (pairs, _) = pairs.as_chunks::<2>();
                let limits = usize::try_from(limits).ok()?;
                let limits = pairs.iter().take(limits.min(LIMITS_MAX));
                Some(Self::Start(LaunchHeader {
                    body_bytes: usize::try_from(body).ok()?,
                    args: usize::try_from(args).ok()?,
                    envs: usize::try_from(envs).ok()?,
                    limits: limits
                        .filter_map(|[r, v]| Some((to_c_int(*r)?, *v)))
                        .collect(),
                    terminal: terminal != 0,
                    has_command_group: command_group != 0,
                }))
            }
            _ => None,
        }
    }
}

impl SupervisorReport {
    /// Encodes the report.
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Started { pid } => pack_words([STARTED, u64::try_from(pid).unwrap_or(0)]),
            Self::Failed { stage, errno } => {
                pack_words([FAILED, stage as u64, u64::try_from(errno).unwrap_or(0)])
            }
            Self::Exited { exit, wall } => pack_words([
                EXITED,
                u64::try_from(exit.code).unwrap_or(0),
                u64::from(exit.signaled),
                exit.user_us,
                exit.sys_us,
                exit.peak_bytes,
                u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            ]),
            Self::Empty => pack_words([EMPTY]),
        }
    }

    /// Decodes a report; `None` if no supervisor sends such a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match *unpack_words(bytes).as_slice() {
            [STARTED, pid] => Some(Self::Started {
                pid: to_c_int(pid)?,
            }),
            [FAILED, stage, errno] => {
                let stage = match stage {
                    1 => SpawnStage::Fork,
                    2 => SpawnStage::Cwd,
                    3 => SpawnStage::Limits,
                    4 => SpawnStage::Exec,
                    5 => SpawnStage::Terminal,
                    _ => return None,
                };
                let errno = to_c_int(errno)?;
                Some(Self::Failed { stage, errno })
            }
            [EXITED, code, signaled, user_us, sys_us, peak_bytes, wall] => {
                let exit = ExitStatus {
                    code: to_c_int(code)?,
                    signaled: signaled != 0,
                    user_us,
                    sys_us,
                    peak_bytes,
                };
                let wall = Duration::from_micros(wall);
                Some(Self::Exited { exit, wall })
            }
            [EMPTY] => Some(Self::Empty),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_wire() {
        let exit = ExitStatus {
            code: 3,
            signaled: true,
            user_us: 5,
            sys_us: 6,
            peak_bytes: 7,
        };
        let wall = Duration::from_micros(8);
        for report in [
            SupervisorReport::Started { pid: 42 },
            SupervisorReport::Failed {
                stage: SpawnStage::Cwd,
                errno: 2,
            },
            SupervisorReport::Exited { exit, wall },
            SupervisorReport::Empty,
        ] {
            let bytes = report.encode();
            assert!(bytes.len() <= REPORT_BYTES);
            assert_eq!(SupervisorReport::decode(&bytes), Some(report));
            assert_eq!(SupervisorReport::decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn launches_and_orders_survive_the_wire() {
        let launch = LaunchSpec {
            cwd: "/".into(),
            program: "/a".into(),
            argv: vec!["a".into(), String::new()],
            env: vec!["A=b".into()],
            limits: vec![(7, u64::MAX); LIMITS_MAX],
            terminal: true,
        };
        let (head, body) = launch.encode(true);
        let expected = LaunchHeader {
            body_bytes: body.len(),
            args: 2,
            envs: 1,
            limits: vec![(7, u64::MAX); LIMITS_MAX],
            terminal: true,
            has_command_group: true,
        };
        assert_eq!(
            SupervisorRequest::decode(&head),
            Some(SupervisorRequest::Start(expected))
        );
        assert_eq!(body, b"/\0/a\0a\0\0A=b\0");
        let order = SupervisorOrder::Signal {
            target: SignalTarget::Group,
            signal: 15,
        };
        assert_eq!(
            SupervisorRequest::decode(&order.encode()),
            Some(SupervisorRequest::Order(order))
        );
    }
}
