//! Table of the API's methods: the role that each requires, and its effect on what the server holds.

use crate::v1::PrincipalRole as Role;

/// Method of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Path of its calls, `/{package}.{service}/{method}`.
    pub path: &'static str,
    /// Lowest role that may call it.
    pub required_role: Role,
    /// Effect on what the server holds.
    pub effect: Effect,
}

/// Effect of a method on what the server holds, by which the audit log records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Reads.
    Read,
    /// Changes something: while the audit log is enforced and cannot be written, it fails with UNAVAILABLE
    /// (`AUDIT_UNAVAILABLE`).
    Change,
    /// Ends or removes something, which the audit log never prevents.
    Release,
    /// Changes something if its request saves artifacts, and reads otherwise.
    ChangeIfSaved,
}

/// Returns the entry of a method; `None` for a path that is not of the API.
#[must_use]
pub fn find_method(path: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.path == path)
}

/// Every method of the public API, in the order of the services' names. A contract test compares it with the .proto
/// files, whose comments name the role too.
pub const METHODS: &[Method] = &[
    // AccessService
    method(
        "/skilld.v1.AccessService/GetPrincipal",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.AccessService/CreateWorkspaceToken",
        Role::TenantAdmin,
        Effect::Change,
    ),
    // AdminService
    method(
        "/skilld.v1.AdminService/ListPools",
        Role::Admin,
        Effect::Read,
    ),
    method("/skilld.v1.AdminService/GetPool", Role::Admin, Effect::Read),
    method(
        "/skilld.v1.AdminService/ResizePool",
        Role::Admin,
        Effect::Change,
    ),
    method(
        "/skilld.v1.AdminService/Drain",
        Role::Admin,
        Effect::Release,
    ),
    method(
        "/skilld.v1.AdminService/Undrain",
        Role::Admin,
        Effect::Change,
    ),
    method(
        "/skilld.v1.AdminService/CheckImage",
        Role::Admin,
        Effect::Change,
    ),
    method(
        "/skilld.v1.AdminService/ListProblems",
        Role::Admin,
        Effect::Read,
    ),
    // ArtifactService
    method(
        "/skilld.v1.ArtifactService/SaveArtifact",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.ArtifactService/LoadArtifact",
        Role::User,
        Effect::Read,
    ),
    method(
        "/skilld.v1.ArtifactService/ListArtifacts",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.ArtifactService/ListArtifactVersions",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.ArtifactService/DeleteArtifact",
        Role::User,
        Effect::Release,
    ),
    // ExecService
    method("/skilld.v1.ExecService/RunExec", Role::User, Effect::Change),
    method(
        "/skilld.v1.ExecService/StartExec",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.ExecService/AttachExec",
        Role::User,
        Effect::Read,
    ),
    method("/skilld.v1.ExecService/PollExec", Role::User, Effect::Read),
    method(
        "/skilld.v1.ExecService/WriteStdin",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.ExecService/StreamStdin",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.ExecService/SignalExec",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.ExecService/KillExec",
        Role::User,
        Effect::Release,
    ),
    method(
        "/skilld.v1.ExecService/ResizeTerminal",
        Role::User,
        Effect::Change,
    ),
    method("/skilld.v1.ExecService/GetExec", Role::User, Effect::Read),
    method(
        "/skilld.v1.ExecService/ListExecs",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.ExecService/DeleteExec",
        Role::User,
        Effect::Release,
    ),
    // FileService
    method(
        "/skilld.v1.FileService/StageSkills",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.FileService/StageInputs",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.FileService/StageFiles",
        Role::User,
        Effect::Change,
    ),
    method("/skilld.v1.FileService/ListFiles", Role::User, Effect::Read),
    method("/skilld.v1.FileService/ReadFile", Role::User, Effect::Read),
    method(
        "/skilld.v1.FileService/CollectOutputs",
        Role::User,
        Effect::ChangeIfSaved,
    ),
    // ServerService
    method(
        "/skilld.v1.ServerService/GetServerInfo",
        Role::Observer,
        Effect::Read,
    ),
    // SkillService
    method(
        "/skilld.v1.SkillService/ListSkills",
        Role::Observer,
        Effect::Read,
    ),
    method("/skilld.v1.SkillService/GetSkill", Role::User, Effect::Read),
    method(
        "/skilld.v1.SkillService/GetSkillMaterial",
        Role::User,
        Effect::Read,
    ),
    method(
        "/skilld.v1.SkillService/SearchSkills",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.SkillService/ListSkillFiles",
        Role::User,
        Effect::Read,
    ),
    method(
        "/skilld.v1.SkillService/ReadSkillFile",
        Role::User,
        Effect::Read,
    ),
    method(
        "/skilld.v1.SkillService/PublishSkill",
        Role::Publisher,
        Effect::Change,
    ),
    method(
        "/skilld.v1.SkillService/DeleteSkill",
        Role::Publisher,
        Effect::Release,
    ),
    method(
        "/skilld.v1.SkillService/RefreshSkills",
        Role::Admin,
        Effect::Change,
    ),
    method(
        "/skilld.v1.SkillService/PreflightSkill",
        Role::User,
        Effect::Read,
    ),
    method(
        "/skilld.v1.SkillService/PrepareSkill",
        Role::User,
        Effect::Change,
    ),
    // TenantService
    method(
        "/skilld.v1.TenantService/GetTenantUsage",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.TenantService/ListTenantUsages",
        Role::Admin,
        Effect::Read,
    ),
    // WorkspaceService
    method(
        "/skilld.v1.WorkspaceService/CreateWorkspace",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.WorkspaceService/GetWorkspace",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.WorkspaceService/ListWorkspaces",
        Role::Observer,
        Effect::Read,
    ),
    method(
        "/skilld.v1.WorkspaceService/UpdateWorkspace",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.WorkspaceService/RenewWorkspace",
        Role::User,
        Effect::Change,
    ),
    method(
        "/skilld.v1.WorkspaceService/DeleteWorkspace",
        Role::User,
        Effect::Release,
    ),
];

const fn method(path: &'static str, required_role: Role, effect: Effect) -> Method {
    Method {
        path,
        required_role,
        effect,
    }
}
