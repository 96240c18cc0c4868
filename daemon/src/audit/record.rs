//! Records of decisions, as the daemon's layers make them. The types hold nothing that must not be written: no token,
//! no argv, no value of the environment, no content.
//!
//! Every text is bounded, and its characters are escaped when the line is written (`line.rs`).

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use skilld_proto::code_name;
use skilld_proto::v1::ErrorReason;
use tonic::{Code, Response};

use super::argv_key::ExecDescription;

/// Text of at most `BYTES` bytes. A longer one is cut at a character and ends with `…`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BoundedText<const BYTES: usize>(String);

/// W3C trace context: `00-<32 hex>-<16 hex>-<2 hex>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceParent(String);

/// Maximum number of commands in the setup of a RunExec: a record describes each.
pub const SETUP_COMMANDS_MAX: usize = 16;

/// Record of one decision about a call.
#[derive(Debug, Clone, Serialize)]
pub struct AuditRecord {
    /// Id of the request, which log lines have too.
    pub request_id: BoundedText<64>,
    /// Trace context of the client, if it sent one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// Authenticated identity; `None` if no authenticator accepted the client.
    #[serde(flatten)]
    pub principal: Option<AuditPrincipal>,
    /// Tenant that the call names, if it is not that of the principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_tenant: Option<BoundedText<64>>,
    /// Other end of the connection.
    #[serde(flatten)]
    pub peer: AuditPeer,
    /// Full path of the method, for instance `/skilld.v1.ExecService/RunExec`.
    pub method: BoundedText<128>,
    /// Resource name that the call is about, for instance `workspaces/job-7`; `None` if it names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<BoundedText<512>>,
    /// Command of a call that starts one, from [`super::AuditLog::describe_exec`].
    #[serde(flatten)]
    pub exec: Option<ExecDescription>,
    /// Commands of the setup of a RunExec, at most [`SETUP_COMMANDS_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<ExecDescription>,
    /// Decision and outcome, as far as the call has come.
    #[serde(skip)]
    pub stage: CallStage,
}

/// Resource that a call created, which its request may not name. Handlers put it into the extensions of their answer.
#[derive(Debug, Clone)]
pub struct CreatedResource(pub BoundedText<512>);

/// Authenticated identity of a client.
#[derive(Debug, Clone, Serialize)]
pub struct AuditPrincipal {
    /// Id of the principal.
    #[serde(rename = "principal")]
    pub id: BoundedText<256>,
    /// Tenant of the principal.
    pub tenant: BoundedText<64>,
    /// Authenticator that accepted the client, for instance `certificate`.
    pub via: &'static str,
}

/// Other end of a connection.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum AuditPeer {
    /// Process of this host, as the kernel reports it (SO_PEERCRED).
    Process {
        /// User.
        #[serde(rename = "peer_uid")]
        uid: u32,
        /// Process; `None` if it is in a PID namespace that the daemon does not see.
        #[serde(rename = "peer_pid", skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Several peers, which are not named.
    Several {},
    /// Client of a TCP listener.
    Address {
        /// Address and port.
        #[serde(rename = "peer_address")]
        address: SocketAddr,
    },
}

/// Stage of a call, with the decision about it.
#[derive(Debug, Clone, Copy)]
pub enum CallStage {
    /// The call is allowed, and begins now. A second record with the same request id has its outcome.
    Begin,
    /// The call was allowed and has ended, well or not.
    End(CallOutcome),
    /// The call was refused because of identity, role, tenant or quota, by a drain, or because it could not be
    /// recorded.
    Refusal(CallOutcome),
    /// Several calls of one peer were refused for the same reason.
    Refusals {
        /// Outcome of each. Its duration is the time in which they came.
        outcome: CallOutcome,
        /// Number of the calls.
        refusals: u64,
    },
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CallOutcome {
    /// gRPC code of the answer.
    #[serde(serialize_with = "write_code")]
    pub code: Code,
    /// Reason of a failure; `None` if the call succeeded.
    #[serde(
        serialize_with = "write_reason",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason: Option<ErrorReason>,
    /// Number of message bytes that the client sent.
    pub bytes_in: u64,
    /// Number of message bytes that the daemon sent.
    pub bytes_out: u64,
    /// Time from the request's headers to the end of the answer.
    #[serde(rename = "duration_us", serialize_with = "write_microseconds")]
    pub duration: Duration,
}

// === impl BoundedText ===

impl<const BYTES: usize> BoundedText<BYTES> {
    /// Takes a text and cuts it if it is too long.
    pub fn new(text: impl AsRef<str>) -> Self {
        const MARK: char = '…';
        let text = text.as_ref();
        if text.len() <= BYTES {
            return Self(text.to_owned());
        }
        let end = text.floor_char_boundary(BYTES.saturating_sub(MARK.len_utf8()));
        let kept = text.get(..end).unwrap_or_default();
        Self(format!("{kept}{MARK}"))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl CreatedResource ===

impl CreatedResource {
    /// Returns an answer with the name of what the call created, for the record of its end.
    pub fn attach<T>(name: impl AsRef<str>, mut answer: Response<T>) -> Response<T> {
        let created = Self(BoundedText::new(name));
        answer.extensions_mut().insert(created);
        answer
    }
}

// === impl TraceParent ===

impl TraceParent {
    /// Takes the value of a `traceparent` header; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        Self::is_well_formed(text).then(|| Self(text.to_owned()))
    }

    /// Returns `true` for the value of a well-formed `traceparent` header.
    pub fn is_well_formed(text: &str) -> bool {
        let mut parts = text.split('-');
        let is_valid = [2, 32, 16, 2].into_iter().all(|length| {
            let part = parts.next().unwrap_or_default();
            part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        is_valid && parts.next().is_none()
    }
}

// === impl CallStage ===

impl CallStage {
    /// Returns the name of the event.
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Begin => "call_began",
            Self::End(_) | Self::Refusal(_) => "call_ended",
            Self::Refusals { .. } => "calls_refused",
        }
    }

    /// Returns the name of the decision.
    pub(super) fn decision(self) -> &'static str {
        match self {
            Self::Begin | Self::End(_) => "allowed",
            Self::Refusal(_) | Self::Refusals { .. } => "refused",
        }
    }

    /// Returns the outcome; `None` if it is not known yet.
    pub(crate) fn outcome(self) -> Option<CallOutcome> {
        match self {
            Self::Begin => None,
            Self::End(outcome) | Self::Refusal(outcome) | Self::Refusals { outcome, .. } => {
                Some(outcome)
            }
        }
    }

    /// Returns the number of calls; `None` if the record is about one.
    pub(super) fn refusals(self) -> Option<u64> {
        match self {
            Self::Begin | Self::End(_) | Self::Refusal(_) => None,
            Self::Refusals { refusals, .. } => Some(refusals),
        }
    }
}

// === serde ===

fn write_code<S: Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&code_name(*code))
}

fn write_reason<S: Serializer>(
    reason: &Option<ErrorReason>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.map_or("", ErrorReason::error_info_name))
}

fn write_microseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
