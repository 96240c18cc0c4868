//! Table of all served methods, from the embedded descriptors and the API's table of roles. Timeouts and the server's stop depend on it.

use std::collections::{BTreeSet, HashMap};

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use skilld_proto::v1::FILE_DESCRIPTOR_SET;
use skilld_proto::{Effect, find_method};

use super::connections::CallPriority;
use crate::access::{MethodAccess, Role};
use crate::rpc::upload::STREAM_MESSAGE_BYTES_MAX;

/// Maximum size of a request to health or reflection in bytes. The former needs no credential.
const FOREIGN_MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Properties of one method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MethodProperties {
    pub(super) client_streams: bool,
    pub(super) server_streams: bool,
    /// `true` for skilld's services, `false` for health and reflection. A drain waits for the former.
    pub(super) is_skilld: bool,
    /// `true` if clients resume the call at an offset. A drain does not wait for it.
    pub(super) is_resumable: bool,
    /// `true` if the first message of the answer reports a started exec.
    pub(super) starts_exec: bool,
    /// `true` if the request has the command of an exec.
    pub(super) has_command: bool,
    /// Place of the name of the resource in the request.
    pub(super) resource_field: ResourceField,
    /// Access rule.
    pub(super) access: MethodAccess,
    /// Records in the audit log.
    pub(super) audit: AuditClass,
}

/// Place of the name of the resource that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceField {
    /// Field 1.
    Name,
    /// Field 1 of the message in field 1: a header, or a resource with new values.
    Nested,
    /// Field 1 is the id of a new workspace.
    NewWorkspace,
}

/// Records of a method in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditClass {
    /// No record: health and reflection.
    Unrecorded,
    /// Record of the end.
    Read,
    /// Records of begin and end. The call is refused while the log is enforced and cannot be written.
    Change,
    /// Records of begin and end. The call ends or removes something, which is never refused.
    Release,
    /// Records of [`Self::Change`] if the request saves artifacts, and of [`Self::Read`] otherwise.
    ChangeIfSaved,
}

impl AuditClass {
    /// Returns the class of a method of skilld by its effect. Without one it is taken for a change.
    fn of(effect: Option<Effect>) -> Self {
        match effect {
            Some(Effect::Read) => Self::Read,
            Some(Effect::Release) => Self::Release,
            Some(Effect::ChangeIfSaved) => Self::ChangeIfSaved,
            Some(Effect::Change) | None => Self::Change,
        }
    }
}

impl MethodProperties {
    /// Returns `true` if a call of this method may change something, which the first message of its answer reports.
    pub(super) fn reports_change(self) -> bool {
        matches!(self.audit, AuditClass::Change | AuditClass::Release)
    }

    /// Returns the maximum size in bytes of each message of a request, as it is sent; `None` if only the size of any
    /// message limits it.
    pub(super) fn message_bytes_max(self) -> Option<u64> {
        match (self.is_skilld, self.client_streams) {
            (false, _) => Some(FOREIGN_MESSAGE_BYTES_MAX),
            (true, true) => Some(STREAM_MESSAGE_BYTES_MAX),
            (true, false) => None,
        }
    }

    /// Returns how far a call of this method protects its connection from being closed for a new one.
    pub(super) fn priority(self) -> CallPriority {
        if self.is_skilld {
            CallPriority::Work
        } else {
            CallPriority::Watch
        }
    }
}

/// Methods that wait for an exec's output or for its input, for hours if need be. After UNAVAILABLE the client calls
/// again, with offsets.
const RESUMABLE: [&str; 4] = [
    "/skilld.v1.ExecService/AttachExec",
    "/skilld.v1.ExecService/PollExec",
    "/skilld.v1.ExecService/RunExec",
    "/skilld.v1.ExecService/StreamStdin",
];

/// Method that starts an exec and reports it with its first message.
const STARTS_EXEC: &str = "/skilld.v1.ExecService/RunExec";
/// Methods whose requests have the command of an exec, in the same fields.
const HAVE_COMMANDS: [&str; 2] = [STARTS_EXEC, "/skilld.v1.ExecService/StartExec"];

/// Method whose request has the id of a workspace in place of a name.
const CREATES_WORKSPACE: &str = "/skilld.v1.WorkspaceService/CreateWorkspace";

/// Returns where requests of a method have the name of their resource.
fn resource_field(file: &FileDescriptorProto, path: &str, input_type: &str) -> ResourceField {
    let input = input_type.rsplit('.').next();
    let message = file
        .message_type
        .iter()
        .find(|message| message.name.as_deref() == input);
    let mut fields = message.into_iter().flat_map(|message| &message.field);
    let first = fields.find(|field| field.number() == 1);
    match first.map(FieldDescriptorProto::r#type) {
        _ if path == CREATES_WORKSPACE => ResourceField::NewWorkspace,
        Some(Type::Message) => ResourceField::Nested,
        _ => ResourceField::Name,
    }
}

/// Table of all served methods by path.
#[derive(Debug)]
pub(super) struct MethodTable {
    by_path: HashMap<String, MethodProperties>,
    /// Full names of skilld's services, sorted.
    pub(super) services: BTreeSet<String>,
}

impl MethodTable {
    /// Reads the embedded descriptors.
    pub(super) fn new() -> Self {
        let mut methods = Self {
            by_path: HashMap::new(),
            services: BTreeSet::new(),
        };
        // Orchestrators ask for the health without a credential; reflection is for any principal.
        let reflection = MethodAccess::Role(Role::Observer);
        for (encoded, foreign_access) in [
            (FILE_DESCRIPTOR_SET, None),
            (
                tonic_health::pb::FILE_DESCRIPTOR_SET,
                Some(MethodAccess::Open),
            ),
            (
                tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
                Some(reflection),
            ),
            (
                tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
                Some(reflection),
            ),
        ] {
            // The build makes the descriptors, and a test decodes them.
            let set = FileDescriptorSet::decode(encoded).unwrap_or_default();
            methods.add(&set, foreign_access);
        }
        methods
    }

    /// Adds the methods of a file set. `foreign_access` is `None` for skilld's own methods, whose rules are in the API's table.
    fn add(&mut self, set: &FileDescriptorSet, foreign_access: Option<MethodAccess>) {
        let is_skilld = foreign_access.is_none();
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let path = format!("/{name}/{}", method.name());
                    let declared = find_method(&path);
                    let role =
                        declared.and_then(|found| Role::from_number(found.required_role.into()));
                    let access = role.map_or(MethodAccess::Undeclared, MethodAccess::Role);
                    let method = MethodProperties {
                        client_streams: method.client_streaming(),
                        server_streams: method.server_streaming(),
                        is_skilld,
                        is_resumable: RESUMABLE.contains(&path.as_str()),
                        starts_exec: path == STARTS_EXEC,
                        has_command: HAVE_COMMANDS.contains(&path.as_str()),
                        resource_field: resource_field(file, &path, method.input_type()),
                        access: foreign_access.unwrap_or(access),
                        audit: match is_skilld {
                            true => AuditClass::of(declared.map(|found| found.effect)),
                            false => AuditClass::Unrecorded,
                        },
                    };
                    self.by_path.insert(path, method);
                }
                if is_skilld {
                    self.services.insert(name);
                }
            }
        }
    }

    /// Returns the method at a path, and the table's own copy of the path: the client's text goes no further.
    pub(super) fn get(&self, path: &str) -> Option<(&str, MethodProperties)> {
        self.by_path
            .get_key_value(path)
            .map(|(path, method)| (path.as_str(), *method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_say_what_streams() {
        let methods = MethodTable::new();
        let find = |path: &str| {
            let (_, method) = methods.get(path).expect("known");
            (
                method.client_streams,
                method.server_streams,
                method.is_skilld,
            )
        };
        assert_eq!(find("/skilld.v1.ExecService/RunExec"), (false, true, true));
        assert_eq!(
            find("/skilld.v1.FileService/StageFiles"),
            (true, false, true)
        );
        assert_eq!(
            find("/skilld.v1.ServerService/GetServerInfo"),
            (false, false, true)
        );
        assert_eq!(find("/grpc.health.v1.Health/Watch"), (false, true, false));
        assert_eq!(
            find("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
            (true, true, false)
        );
        assert!(methods.get("/skilld.v1.ExecService/Nothing").is_none());
        assert_eq!(methods.services.len(), 9);
        assert!(methods.get(STARTS_EXEC).expect("known").1.starts_exec);
        for path in HAVE_COMMANDS {
            assert!(methods.get(path).expect("known").1.has_command);
        }
        for path in RESUMABLE {
            assert!(methods.get(path).expect("known").1.is_resumable);
        }
        let resumable = methods
            .by_path
            .values()
            .filter(|method| method.is_resumable);
        assert_eq!(resumable.count(), RESUMABLE.len());
    }

    #[test]
    fn every_method_declares_its_role() {
        let methods = MethodTable::new();
        for (path, method) in &methods.by_path {
            assert_ne!(method.access, MethodAccess::Undeclared, "{path}");
            let is_health = path.starts_with("/grpc.health.v1.Health/");
            assert_eq!(method.access == MethodAccess::Open, is_health, "{path}");
        }
        let access = |path: &str| methods.get(path).expect("known").1.access;
        assert_eq!(
            access("/skilld.v1.AdminService/Drain"),
            MethodAccess::Role(Role::Admin)
        );
        assert_eq!(access(STARTS_EXEC), MethodAccess::Role(Role::User));
        let own = methods.by_path.values().filter(|method| method.is_skilld);
        assert_eq!(own.count(), skilld_proto::METHODS.len());
    }

    /// Returns the names of the methods of an audit class, sorted.
    fn of_class(class: AuditClass) -> Vec<String> {
        let methods = MethodTable::new();
        let of_class = |(path, method): (&String, &MethodProperties)| {
            let name = path.rsplit('/').next()?;
            (method.audit == class).then(|| name.to_owned())
        };
        let mut names: Vec<String> = methods.by_path.iter().filter_map(of_class).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn methods_that_change_something_declare_it() {
        assert_eq!(of_class(AuditClass::ChangeIfSaved), ["CollectOutputs"]);
        assert_eq!(
            of_class(AuditClass::Change),
            [
                "CheckImage",
                "CreateWorkspace",
                "CreateWorkspaceToken",
                "PrepareSkill",
                "PublishSkill",
                "RefreshSkills",
                "RenewWorkspace",
                "ResizePool",
                "ResizeTerminal",
                "RunExec",
                "SaveArtifact",
                "SignalExec",
                "StageFiles",
                "StageInputs",
                "StageSkills",
                "StartExec",
                "StreamStdin",
                "Undrain",
                "UpdateWorkspace",
                "WriteStdin",
            ]
        );
        assert_eq!(
            of_class(AuditClass::Release),
            [
                "DeleteArtifact",
                "DeleteExec",
                "DeleteSkill",
                "DeleteWorkspace",
                "Drain",
                "KillExec",
            ]
        );
    }

    #[test]
    fn methods_that_only_read_declare_it() {
        assert_eq!(
            of_class(AuditClass::Read),
            [
                "AttachExec",
                "GetExec",
                "GetPool",
                "GetPrincipal",
                "GetServerInfo",
                "GetSkill",
                "GetSkillMaterial",
                "GetTenantUsage",
                "GetWorkspace",
                "ListArtifactVersions",
                "ListArtifacts",
                "ListExecs",
                "ListFiles",
                "ListPools",
                "ListProblems",
                "ListSkillFiles",
                "ListSkills",
                "ListTenantUsages",
                "ListWorkspaces",
                "LoadArtifact",
                "PollExec",
                "PreflightSkill",
                "ReadFile",
                "ReadSkillFile",
                "SearchSkills",
            ]
        );
    }
}
