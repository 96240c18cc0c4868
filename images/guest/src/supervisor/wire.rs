//! What guest and supervisor say to each other: datagrams of little-endian words. Both are the same
//! binary, but the supervisor shares its uid with tenants, so reports are decoded totally.

use std::time::Duration;

use nix::libc::c_int;

use crate::sys::{Exit, Stage};

/// Longer specs travel in a memfd.
pub(crate) const INLINE_MAX: usize = 48 * 1024;
/// The words that start a message to a supervisor.
pub(crate) const HEAD_WORDS: usize = 17;
/// Bytes of a report.
pub(crate) const REPORT_BYTES: usize = 64;
/// Rlimits that one launch can set.
pub(crate) const LIMITS_MAX: usize = 5;

const START: u64 = 1;
const SIGNAL: u64 = 2;
const KILL: u64 = 3;

const STARTED: u64 = 1;
const FAILED: u64 = 2;
const EXITED: u64 = 3;
const EMPTY: u64 = 4;

/// What to run. No string has a NUL in it.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    pub(crate) cwd: String,
    /// Path of the program; empty for what argv[0] leads to.
    pub(crate) program: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<String>,
    /// At most [`LIMITS_MAX`].
    pub(crate) limits: Vec<(c_int, u64)>,
    /// Stdin is a terminal that becomes the leader's.
    pub(crate) terminal: bool,
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Leader,
    Group,
    Tree,
}

/// What the guest asks of a busy supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Signal {
        target: Target,
        signal: c_int,
    },
    /// Until nothing is left.
    Kill,
}

/// A message to a supervisor, as it arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Start(Start),
    Order(Order),
}

/// The head of a launch; its strings follow, or are in a memfd.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) body_bytes: usize,
    pub(crate) args: usize,
    pub(crate) envs: usize,
    pub(crate) limits: Vec<(c_int, u64)>,
    pub(crate) terminal: bool,
    /// The descriptor after those of stdin, stdout and stderr is that of the commands' CPU group.
    pub(crate) has_command_group: bool,
}

/// What a supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Started {
        pid: i32,
    },
    Failed {
        stage: Stage,
        errno: i32,
    },
    /// The leader is gone.
    Exited {
        exit: Exit,
        wall: Duration,
    },
    /// Nothing is left of the tree.
    Empty,
}

fn pack<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn unpack(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().copied().map(u64::from_le_bytes).collect()
}

fn int(word: u64) -> Option<c_int> {
    c_int::try_from(word).ok()
}

impl Launch {
    /// Encodes the head, and the strings that follow it.
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
        (pack(words), body)
    }
}

impl Order {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Kill => pack([KILL, 0, 0]),
            Self::Signal { target, signal } => {
                let target = match target {
                    Target::Leader => 0,
                    Target::Group => 1,
                    Target::Tree => 2,
                };
                pack([SIGNAL, target, u64::try_from(signal).unwrap_or(0)])
            }
        }
    }
}

impl Request {
    /// Decodes the head of a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match *unpack(bytes).as_slice() {
            [KILL, ..] => Some(Self::Order(Order::Kill)),
            [SIGNAL, target, signal, ..] => {
                let target = match target {
                    0 => Target::Leader,
                    1 => Target::Group,
                    _ => Target::Tree,
                };
                let signal = int(signal)?;
                Some(Self::Order(Order::Signal { target, signal }))
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
                Some(Self::Start(Start {
                    body_bytes: usize::try_from(body).ok()?,
                    args: usize::try_from(args).ok()?,
                    envs: usize::try_from(envs).ok()?,
                    limits: limits.filter_map(|[r, v]| Some((int(*r)?, *v))).collect(),
                    terminal: terminal != 0,
                    has_command_group: command_group != 0,
                }))
            }
            _ => None,
        }
    }
}

impl Report {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Started { pid } => pack([STARTED, u64::try_from(pid).unwrap_or(0)]),
            Self::Failed { stage, errno } => {
                pack([FAILED, stage as u64, u64::try_from(errno).unwrap_or(0)])
            }
            Self::Exited { exit, wall } => pack([
                EXITED,
                u64::try_from(exit.code).unwrap_or(0),
                u64::from(exit.signaled),
                exit.user_us,
                exit.sys_us,
                exit.peak_bytes,
                u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            ]),
            Self::Empty => pack([EMPTY]),
        }
    }

    /// `None` for what no supervisor of ours would say.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match *unpack(bytes).as_slice() {
            [STARTED, pid] => Some(Self::Started { pid: int(pid)? }),
            [FAILED, stage, errno] => {
                let stage = match stage {
                    1 => Stage::Fork,
                    2 => Stage::Cwd,
                    3 => Stage::Limits,
                    4 => Stage::Exec,
                    5 => Stage::Terminal,
                    _ => return None,
                };
                let errno = int(errno)?;
                Some(Self::Failed { stage, errno })
            }
            [EXITED, code, signaled, user_us, sys_us, peak_bytes, wall] => {
                let exit = Exit {
                    code: int(code)?,
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
        let exit = Exit {
            code: 3,
            signaled: true,
            user_us: 5,
            sys_us: 6,
            peak_bytes: 7,
        };
        let wall = Duration::from_micros(8);
        for report in [
            Report::Started { pid: 42 },
            Report::Failed {
                stage: Stage::Cwd,
                errno: 2,
            },
            Report::Exited { exit, wall },
            Report::Empty,
        ] {
            let bytes = report.encode();
            assert!(bytes.len() <= REPORT_BYTES);
            assert_eq!(Report::decode(&bytes), Some(report));
            assert_eq!(Report::decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn launches_and_orders_survive_the_wire() {
        let launch = Launch {
            cwd: "/".into(),
            program: "/a".into(),
            argv: vec!["a".into(), String::new()],
            env: vec!["A=b".into()],
            limits: vec![(7, u64::MAX); LIMITS_MAX],
            terminal: true,
        };
        let (head, body) = launch.encode(true);
        let expected = Start {
            body_bytes: body.len(),
            args: 2,
            envs: 1,
            limits: vec![(7, u64::MAX); LIMITS_MAX],
            terminal: true,
            has_command_group: true,
        };
        assert_eq!(Request::decode(&head), Some(Request::Start(expected)));
        assert_eq!(body, b"/\0/a\0a\0\0A=b\0");
        let order = Order::Signal {
            target: Target::Group,
            signal: 15,
        };
        assert_eq!(
            Request::decode(&order.encode()),
            Some(Request::Order(order))
        );
    }
}
