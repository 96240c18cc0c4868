//! Audit records of one call: its beginning, once its first message has arrived, and its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};
use skilld_proto::v1::{
    CollectOutputsRequest, ErrorReason, ExecSpec, RunExecRequest, StartExecRequest,
};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::methods::{AuditClass, MethodProperties, ResourceField};
use crate::access::{ConnectionPeer, PeerAddress, Principal, TENANT_HEADER, TenantName};
use crate::audit::{
    AuditFault, AuditLog, AuditPeer, AuditPrincipal, AuditRecord, BoundedText, CallOutcome,
    CallStage, CreatedResource, ExecDescription, SETUP_COMMANDS_MAX, TraceParent,
};
use crate::error::{Error, reason_of};
use crate::exec::script_arguments::build_script_arguments;

/// Kinds of names that a record may have. The first field of other requests may be anything, for instance a query.
const RESOURCE_KINDS: [&str; 4] = ["workspaces/", "skills/", "artifacts/", "pools/"];

/// Call whose records are written.
#[derive(Debug)]
pub(super) struct CallAudit {
    log: AuditLog,
    class: AuditClass,
    /// `true` for RunExec.
    starts_exec: bool,
    /// `true` for RunExec and StartExec.
    has_command: bool,
    resource_field: ResourceField,
    start: Instant,
    record: AuditRecord,
    subject: OnceLock<CallSubject>,
    created: OnceLock<CreatedResource>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// Audit of a call, shared by the bodies of its request and of its answer.
pub(super) type SharedCallAudit = Arc<CallAudit>;

/// Object and commands of a call, from its first message.
#[derive(Debug, Default)]
struct CallSubject {
    resource: Option<BoundedText<512>>,
    exec: Option<ExecDescription>,
    setup: Vec<ExecDescription>,
}

impl CallAudit {
    /// Makes the audit of a call. `principal` is `None` if no authenticator accepted it.
    pub(super) fn new(
        log: &AuditLog,
        (path, method): (&str, MethodProperties),
        request_id: &str,
        headers: &HeaderMap,
        peer: Option<&ConnectionPeer>,
        principal: Option<&Principal>,
    ) -> Self {
        let traceparent = headers
            .get("traceparent")
            .and_then(|value| TraceParent::parse(value.to_str().ok()?));
        let for_tenant = principal
            .and_then(|principal| named_tenant(headers).filter(|named| *named != principal.tenant));
        Self {
            log: log.clone(),
            class: method.audit,
            starts_exec: method.starts_exec,
            has_command: method.has_command,
            resource_field: method.resource_field,
            start: Instant::now(),
            record: AuditRecord {
                request_id: BoundedText::new(request_id),
                traceparent,
                principal: principal.map(|principal| AuditPrincipal {
                    id: BoundedText::new(principal.id.clone()),
                    tenant: BoundedText::new(principal.tenant.as_str()),
                    via: principal.via.as_str(),
                }),
                for_tenant: for_tenant.map(|tenant| BoundedText::new(tenant.as_str())),
                peer: audit_peer(peer),
                method: BoundedText::new(path),
                resource: None,
                exec: None,
                setup: Vec::new(),
                stage: CallStage::Begin,
            },
            subject: OnceLock::new(),
            created: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    /// Checks whether the call may begin although its record may be lost: reads, kills and deletions may. A call whose
    /// request decides is checked when that has arrived.
    ///
    /// # Errors
    /// [`Error::AuditUnavailable`].
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        match self.class {
            AuditClass::Change => self
                .log
                .check_writable()
                .map_err(|fault| unavailable(&fault)),
            AuditClass::Unrecorded
            | AuditClass::Read
            | AuditClass::Release
            | AuditClass::ChangeIfSaved => Ok(()),
        }
    }

    /// Takes the name of what the call created, which the record of its end has in place of the requested name.
    pub(super) fn set_created(&self, created: CreatedResource) {
        // The cell is empty: a call has one answer.
        drop(self.created.set(created));
    }

    /// Counts bytes of the request.
    pub(super) fn count_in(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of the answer.
    pub(super) fn count_out(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records the beginning of a call that changes something. `message` is its first one. The future is ready when the
    /// call may go on; `None` if it need not wait.
    pub(super) fn begin(
        &self,
        message: &[u8],
    ) -> Option<impl Future<Output = Result<(), Error>> + Send + use<>> {
        let (spec, setup) = self.decode_commands(message);
        let subject = CallSubject {
            resource: named_resource(message, self.resource_field).map(BoundedText::new),
            exec: spec.and_then(|spec| self.describe_exec(&spec)),
            // The handler refuses a setup with more.
            setup: setup
                .iter()
                .take(SETUP_COMMANDS_MAX)
                .filter_map(|spec| self.describe_exec(spec))
                .collect(),
        };
        // The cell is empty: a call has one first message.
        drop(self.subject.set(subject));
        let is_change = self.class == AuditClass::ChangeIfSaved && saves_artifacts(message);
        let class = if is_change {
            AuditClass::Change
        } else {
            self.class
        };
        let record = self.record_of(CallStage::Begin);
        match class {
            AuditClass::Change => {
                let recorded = self.log.record(record);
                Some(async move { recorded.await.map_err(|fault| unavailable(&fault)) })
            }
            AuditClass::Release => {
                self.log.submit(record);
                None
            }
            AuditClass::Unrecorded | AuditClass::Read | AuditClass::ChangeIfSaved => None,
        }
    }

    /// Makes the record of a call that was refused before it began.
    pub(super) fn refusal_record(&self, status: &Status) -> AuditRecord {
        let outcome = self.outcome(status.code(), reason_of(status));
        self.record_of(CallStage::Refusal(outcome))
    }

    /// Records the end of a call.
    pub(super) fn end(&self, code: Code, reason: Option<ErrorReason>) {
        let outcome = self.outcome(code, reason);
        // A stream that has sent something was allowed, however it ended.
        let was_refused = outcome.bytes_out == 0 && reason.is_some_and(is_refusal);
        self.log.submit(self.record_of(match was_refused {
            true => CallStage::Refusal(outcome),
            false => CallStage::End(outcome),
        }));
    }

    fn outcome(&self, code: Code, reason: Option<ErrorReason>) -> CallOutcome {
        CallOutcome {
            code,
            reason,
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            duration: self.start.elapsed(),
        }
    }

    fn record_of(&self, stage: CallStage) -> AuditRecord {
        let subject = self.subject.get();
        let requested = subject.and_then(|subject| subject.resource.as_ref());
        let created = self.created.get().map(|CreatedResource(name)| name);
        AuditRecord {
            resource: created.or(requested).cloned(),
            exec: subject.and_then(|subject| subject.exec.clone()),
            setup: subject.map_or_else(Vec::new, |subject| subject.setup.clone()),
            stage,
            ..self.record.clone()
        }
    }

    /// Returns the command of a request and those of its setup. Decodes the message that the handler decodes: a field
    /// that only the other request has must not hide the command.
    fn decode_commands(&self, message: &[u8]) -> (Option<ExecSpec>, Vec<ExecSpec>) {
        if self.starts_exec {
            let run = RunExecRequest::decode(message).unwrap_or_default();
            return (run.spec, run.setup.unwrap_or_default().commands);
        }
        let start = self
            .has_command
            .then(|| StartExecRequest::decode(message).unwrap_or_default());
        (start.and_then(|start| start.spec), Vec::new())
    }

    /// Describes a command; `None` if the handler refuses the arguments of its script.
    fn describe_exec(&self, spec: &ExecSpec) -> Option<ExecDescription> {
        if !spec.argv.is_empty() {
            return Some(self.log.describe_exec(&spec.argv));
        }
        if let Some(script) = &spec.script {
            let arguments = build_script_arguments(script).ok()?.argv;
            let command: Vec<String> = [script.path.clone()].into_iter().chain(arguments).collect();
            return Some(self.log.describe_exec(&command));
        }
        Some(self.log.describe_exec(&["bash", "-c", spec.shell.as_str()]))
    }
}

/// Returns `true` if a CollectOutputsRequest saves artifacts. The handler of a malformed one is never called.
fn saves_artifacts(message: &[u8]) -> bool {
    let request = CollectOutputsRequest::decode(message);
    let spec = request.ok().and_then(|request| request.spec);
    spec.is_some_and(|spec| spec.save_as_artifacts.is_some())
}

fn unavailable(fault: &AuditFault) -> Error {
    Error::AuditUnavailable {
        why: fault.to_string(),
    }
}

fn audit_peer(peer: Option<&ConnectionPeer>) -> AuditPeer {
    match peer.map(|peer| peer.address) {
        Some(PeerAddress::Tcp(address)) => AuditPeer::Address { address },
        Some(PeerAddress::Unix { uid, pid, .. }) => AuditPeer::Process {
            uid,
            pid: pid.and_then(|pid| u32::try_from(pid).ok()),
        },
        // Only tests call without a connection.
        None => AuditPeer::Process { uid: 0, pid: None },
    }
}

/// Returns `true` if a call that fails for this reason was not allowed.
fn is_refusal(reason: ErrorReason) -> bool {
    matches!(
        reason,
        ErrorReason::Unauthenticated
            | ErrorReason::PermissionDenied
            | ErrorReason::QuotaExceeded
            | ErrorReason::Draining
            | ErrorReason::AuditUnavailable
    )
}

fn is_resource(text: &str) -> bool {
    RESOURCE_KINDS.iter().any(|kind| text.starts_with(kind))
}

/// Returns the name of the resource that a request is about; `None` if it names none.
fn named_resource(message: &[u8], field: ResourceField) -> Option<String> {
    let mut values = values_of_field_1(message)?;
    let text = match field {
        ResourceField::Name | ResourceField::NewWorkspace => values.pop()?,
        // Messages are merged as if their encodings followed each other.
        ResourceField::Nested => values_of_field_1(&values.concat())?.pop()?,
    };
    let text = String::from_utf8(text).ok()?;
    let name = match field {
        ResourceField::NewWorkspace => format!("workspaces/{text}"),
        ResourceField::Name | ResourceField::Nested => text,
    };
    is_resource(&name).then_some(name)
}

/// Returns the values of field 1 of a message, of which a handler sees the last one; `None` if the message is malformed.
fn values_of_field_1(mut message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        if tag == 1 && wire_type == WireType::LengthDelimited {
            let mut bytes = Vec::new();
            let context = DecodeContext::default();
            prost::encoding::bytes::merge(wire_type, &mut bytes, &mut message, context).ok()?;
            values.push(bytes);
        } else {
            skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
        }
    }
    Some(values)
}

/// Returns the tenant that a request names; `None` if it names none, or the name is malformed.
fn named_tenant(headers: &HeaderMap) -> Option<TenantName> {
    TenantName::parse(headers.get(TENANT_HEADER)?.to_str().ok()?).ok()
}

/// Records the end of its call when it is dropped: with the status of the answer, or as cancelled without one.
#[derive(Debug)]
pub(super) struct AuditEndGuard {
    pub(super) call: SharedCallAudit,
    code: Option<Code>,
    reason: Option<ErrorReason>,
}

impl AuditEndGuard {
    pub(super) fn new(call: SharedCallAudit) -> Self {
        Self {
            call,
            code: None,
            reason: None,
        }
    }

    /// Takes the status of the answer.
    pub(super) fn set_status(&mut self, status: &Status) {
        self.code = Some(status.code());
        if status.code() != Code::Ok {
            self.reason = reason_of(status);
        }
    }
}

impl Drop for AuditEndGuard {
    fn drop(&mut self) {
        self.call
            .end(self.code.unwrap_or(Code::Cancelled), self.reason);
    }
}

#[cfg(test)]
mod tests {
    use skilld_proto::v1 as pb;

    use super::*;

    #[test]
    fn only_names_of_resources_are_taken_from_a_message() {
        let name = pb::GetWorkspaceRequest {
            name: "workspaces/job-7".to_owned(),
        };
        let search = pb::SearchSkillsRequest {
            query: "secret words".to_owned(),
            ..pb::SearchSkillsRequest::default()
        };
        let listing = pb::ListWorkspacesRequest {
            page_size: 7,
            ..pb::ListWorkspacesRequest::default()
        };
        let resource = |bytes: Vec<u8>| named_resource(&bytes, ResourceField::Name);
        assert_eq!(
            resource(name.encode_to_vec()).as_deref(),
            Some("workspaces/job-7")
        );
        assert_eq!(resource(search.encode_to_vec()), None);
        assert_eq!(resource(listing.encode_to_vec()), None);
        for malformed in [&b"\x0a\xff"[..], b"\xff", b"\x0a\x02\xff\xfe", b""] {
            let named = named_resource(malformed, ResourceField::Name);
            assert_eq!(named, None, "{malformed:?}");
        }
    }

    #[test]
    fn a_repeated_field_1_is_recorded_as_the_handler_reads_it() {
        let request = |name: &str| pb::GetWorkspaceRequest {
            name: name.to_owned(),
        };
        let (decoy, meant) = (request("workspaces/decoy"), request("workspaces/meant"));
        let bytes = [decoy.encode_to_vec(), meant.encode_to_vec()].concat();
        let handled = pb::GetWorkspaceRequest::decode(&bytes[..]).expect("decodes");
        assert_eq!(handled.name, "workspaces/meant");
        let resource = |bytes: &[u8]| named_resource(bytes, ResourceField::Name);
        assert_eq!(resource(&bytes), Some(handled.name));
        // The handler of a message whose end is malformed is never called.
        assert_eq!(resource(&[&bytes[..], b"\x0a\x7f"].concat()), None);
    }

    #[test]
    fn uploads_name_their_resource_in_their_header() {
        let upload = |workspace: &str, path: &str| {
            let header = pb::StageFilesHeader {
                workspace: workspace.to_owned(),
                path: path.to_owned(),
                ..pb::StageFilesHeader::default()
            };
            let payload = Some(pb::stage_files_request::Payload::Header(header));
            pb::StageFilesRequest { payload }.encode_to_vec()
        };
        let resource = |bytes: &[u8]| named_resource(bytes, ResourceField::Nested);
        assert_eq!(
            resource(&upload("workspaces/w", "a")).as_deref(),
            Some("workspaces/w")
        );
        // The handler merges repeated headers.
        let twice = [upload("workspaces/w", "a"), upload("", "b")].concat();
        let handled = pb::StageFilesRequest::decode(&twice[..]).expect("decodes");
        let seen = handled.encode_to_vec();
        assert_eq!(resource(&twice), resource(&seen));
        let created = pb::CreateWorkspaceRequest {
            workspace_id: "job-7".to_owned(),
            ..pb::CreateWorkspaceRequest::default()
        };
        let named = named_resource(&created.encode_to_vec(), ResourceField::NewWorkspace);
        assert_eq!(named.as_deref(), Some("workspaces/job-7"));
    }
}
