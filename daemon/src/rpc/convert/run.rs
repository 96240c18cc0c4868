//! Checks of a RunExec that claims or prepares a workspace, stages or collects, before any of it happens.

use std::time::Duration;

use prost::Message;
use sha2::{Digest, Sha256};
use skilld_proto::guest::v1 as guest;
use skilld_proto::{count_from_int64, v1 as pb};

use super::exec::{RequestedExec, check_exec};
use super::exec_io::check_offsets;
use super::{ViolationCollector, exec_name, file, input, sha256_hex, workspace};
use crate::access::Caller;
use crate::artifacts::RequestedScope;
use crate::audit::SETUP_COMMANDS_MAX;
use crate::collect::SaveAs;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::exec_launch::ExecRequest;
use crate::inputs::InputSpec;
use crate::skills::SkillRef;
use crate::workspace::creation::WorkspaceRequest;

/// Idle timeout of a workspace that is deleted after its run, unless the request has one.
const TEMPORARY_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Checked RunExec.
#[derive(Debug)]
pub struct RunPlan {
    /// Workspace to claim; `None` to use an existing one.
    pub template: Option<TemplatePlan>,
    /// Exec to start.
    pub exec: ExecRequest,
    /// Skills to stage.
    pub skills: Vec<SkillRef>,
    /// Stages the skills as copies that commands can write.
    pub writable_skills: bool,
    /// Preparation of the workspace; `None` for none.
    pub setup: Option<SetupPlan>,
    /// Inputs to stage.
    pub inputs: Vec<InputSpec>,
    /// Scope of the artifacts that inputs name.
    pub scope: RequestedScope,
    /// Collection after the end; `None` to collect nothing.
    pub outputs: Option<OutputPlan>,
    /// Position that an earlier stream reached; `None` for a stream from the beginning.
    pub position: Option<ReachedPosition>,
}

/// Workspace that a run claims.
#[derive(Debug)]
pub struct TemplatePlan {
    /// Request for the workspace.
    pub create: WorkspaceRequest,
    /// The workspace stays after the run.
    pub keep: bool,
}

/// Preparation of a workspace.
#[derive(Debug)]
pub struct SetupPlan {
    /// Digest of all that it has, 64 hex digits.
    pub digest: String,
    /// Inputs to stage.
    pub inputs: Vec<InputSpec>,
    /// Commands, whose ids are chosen when they run.
    pub commands: Vec<ExecRequest>,
}

/// Collection after a run.
#[derive(Debug, Clone)]
pub struct OutputPlan {
    /// Request for the guest.
    pub request: guest::CollectRequest,
    /// Artifacts to save; `None` to save none.
    pub save_as: Option<SaveAs>,
    /// Leaves out the bytes of the files.
    pub omit_data: bool,
}

/// Position in the stream of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReachedPosition {
    /// Offsets of the output.
    pub offsets: pb::StreamOffsets,
    /// Number of complete files.
    pub file_count: u64,
    /// Number of bytes of the next file.
    pub file_bytes: u64,
}

/// Checks a RunExec that claims, stages or collects.
///
/// # Errors
/// `Invalid` with the violations of one part of the request; otherwise `PathEscapes` or `ReadOnly`.
pub fn check_run(
    caller: &Caller,
    mut request: pb::RunExecRequest,
    config: &Config,
) -> Result<RunPlan> {
    let position = check_position(request.position.take())?;
    if position.is_some() && request.exec_id.is_empty() {
        return Err(Error::invalid(
            "exec_id",
            "is empty: a position is one of an exec",
        ));
    }
    // A repeated request has all of it, except for the position.
    let digest = Sha256::digest(request.encode_to_vec());
    if request.workspace_template.is_some() && !request.parent.is_empty() {
        let problem = "is given with workspace_template: give one of them";
        return Err(Error::invalid("parent", problem));
    }
    let requested = RequestedExec {
        workspace: (request.workspace_template.is_none()).then_some(&*request.parent),
        exec_id: &request.exec_id,
        spec: request.spec,
        format: request.format,
    };
    let exec = ExecRequest {
        digest: digest.to_vec(),
        ..check_exec(requested, caller.run_policy(), &config.execs)?
    };
    let template = request.workspace_template.map(|template| {
        let key = sha256_hex(&digest);
        check_template(caller, template, &exec, key, config)
    });
    let skills = check_skills(&exec, request.skills, request.writable_skills)?;
    let scope = request.scope;
    let setup = request.setup.map(|setup| {
        let checked = check_setup(caller, &exec, setup, scope.clone(), config);
        checked.map_err(|error| error.map_fields(|field| format!("setup.{field}")))
    });
    let (inputs, scope) = check_inputs(&exec, request.inputs, scope)?;
    let outputs = request.outputs.map(|outputs| check_outputs(&exec, outputs));
    Ok(RunPlan {
        template: template.transpose()?,
        skills,
        writable_skills: request.writable_skills,
        setup: setup.transpose()?,
        inputs,
        scope,
        outputs: outputs.transpose()?,
        position,
        exec,
    })
}

fn check_position(position: Option<pb::RunPosition>) -> Result<Option<ReachedPosition>> {
    let Some(position) = position else {
        return Ok(None);
    };
    let mut violations = ViolationCollector::default();
    check_offsets(&mut violations, position.offsets);
    violations.not_negative("file_count", position.file_count);
    violations.not_negative("file_bytes", position.file_bytes);
    let checked = violations.finish();
    checked.map_err(|error| error.map_fields(|field| format!("position.{field}")))?;
    Ok(Some(ReachedPosition {
        offsets: position.offsets.unwrap_or_default(),
        file_count: count_from_int64(position.file_count),
        file_bytes: count_from_int64(position.file_bytes),
    }))
}

/// Checks a template, whose workspace has the id of the exec. A repeated request has the same key.
fn check_template(
    caller: &Caller,
    template: pb::WorkspaceTemplate,
    exec: &ExecRequest,
    key: String,
    config: &Config,
) -> Result<TemplatePlan> {
    use pb::create_workspace_request::Expiry;
    let has_idle_timeout = template.idle_timeout.is_some();
    let request = pb::CreateWorkspaceRequest {
        // One that the daemon chose is no name that the client knows.
        workspace_id: if exec.is_new {
            String::new()
        } else {
            exec.exec_id.clone()
        },
        pool: template.pool,
        labels: template.labels,
        idle_timeout: template.idle_timeout,
        expiry: template.max_lifetime.map(Expiry::MaxLifetime),
        env: template.env,
        limits: template.limits,
        allow_existing: false,
        request_id: key,
    };
    let mut create = workspace::check_create_workspace(caller, request, &config.workspaces)
        .map_err(in_template)?;
    create.id = exec.workspace.clone();
    if !template.keep && !has_idle_timeout {
        create.idle_timeout = create.idle_timeout.min(TEMPORARY_IDLE_TIMEOUT);
    }
    Ok(TemplatePlan {
        create,
        keep: template.keep,
    })
}

/// Puts the path of the template before the fields of violations.
fn in_template(error: Error) -> Error {
    error.map_fields(|field| format!("workspace_template.{field}"))
}

fn check_skills(exec: &ExecRequest, skills: Vec<String>, writable: bool) -> Result<Vec<SkillRef>> {
    if skills.is_empty() {
        return match writable {
            true => Err(Error::invalid("writable_skills", "needs skills")),
            false => Ok(Vec::new()),
        };
    }
    let request = pb::StageSkillsRequest {
        workspace: exec.workspace.name(),
        skills,
        writable,
    };
    file::check_stage_skills(&request).map(|(_, skills)| skills)
}

fn check_inputs(
    exec: &ExecRequest,
    inputs: Vec<pb::InputSpec>,
    scope: Option<pb::ArtifactScope>,
) -> Result<(Vec<InputSpec>, RequestedScope)> {
    if inputs.is_empty() {
        let scope = scope.unwrap_or_default();
        let scope = RequestedScope::parse("scope", &scope.app, &scope.user, &scope.session)?;
        return Ok((Vec::new(), scope));
    }
    let request = pb::StageInputsRequest {
        workspace: exec.workspace.name(),
        inputs,
        scope,
    };
    input::check_stage_inputs(request).map(|(_, inputs, scope)| (inputs, scope))
}

/// Checks a setup, whose scope of artifacts is that of the request.
fn check_setup(
    caller: &Caller,
    exec: &ExecRequest,
    setup: pb::WorkspaceSetup,
    scope: Option<pb::ArtifactScope>,
    config: &Config,
) -> Result<SetupPlan> {
    let mut content = setup.encode_to_vec();
    // Its artifacts are those of the scope.
    content.extend(scope.iter().flat_map(Message::encode_to_vec));
    let digest = sha256_hex(&content);
    let count = setup.commands.len();
    if count > SETUP_COMMANDS_MAX {
        let problem = format!("{count} commands; at most {SETUP_COMMANDS_MAX}");
        return Err(Error::invalid("commands", problem));
    }
    let workspace = exec.workspace.name();
    let commands = setup.commands.into_iter().enumerate().map(|(index, spec)| {
        let for_clients = [
            ("open_stdin", spec.open_stdin),
            ("terminal", spec.terminal.is_some()),
            ("planned_collect", spec.planned_collect.is_some()),
        ];
        if let Some((field, _)) = for_clients.iter().find(|(_, is_set)| *is_set) {
            let field = format!("commands[{index}].{field}");
            return Err(Error::invalid(
                field,
                "is not for a setup, which no client follows",
            ));
        }
        let requested = RequestedExec {
            workspace: Some(&workspace),
            exec_id: "",
            spec: Some(spec),
            format: pb::OutputFormat::Unspecified.into(),
        };
        let in_command = |field: &str| {
            let field = field.strip_prefix("spec.").unwrap_or(field);
            format!("commands[{index}].{field}")
        };
        check_exec(requested, caller.run_policy(), &config.execs)
            .map_err(|error| error.map_fields(in_command))
    });
    Ok(SetupPlan {
        digest,
        commands: commands.collect::<Result<_>>()?,
        inputs: check_inputs(exec, setup.inputs, scope)?.0,
    })
}

fn check_outputs(exec: &ExecRequest, outputs: pb::RunOutputs) -> Result<OutputPlan> {
    let Some(mut spec) = outputs.spec else {
        return Err(Error::invalid("outputs.spec", "is missing"));
    };
    let mut violations = ViolationCollector::default();
    let fields = [
        ("changed_since_exec", !spec.changed_since_exec.is_empty()),
        ("until_exec_end", spec.until_exec_end),
    ];
    for (field, _) in fields.iter().filter(|(_, is_set)| *is_set) {
        let message = "is set by the server: use outputs.changed_only";
        violations.add(format!("outputs.spec.{field}"), message);
    }
    if spec.skip_empty_after_failure && !outputs.changed_only {
        let field = "outputs.spec.skip_empty_after_failure";
        violations.add(field, "needs outputs.changed_only");
    }
    if !matches!(
        spec.format(),
        pb::CollectFormat::Unspecified | pb::CollectFormat::Files
    ) {
        violations.add("outputs.spec.format", "must be COLLECT_FORMAT_FILES");
    }
    let save_as =
        file::check_exec_collect(&mut violations, "outputs.spec", &mut spec, &exec.exec_id);
    violations.finish()?;
    if outputs.changed_only {
        spec.changed_since_exec = exec_name(&exec.workspace.name(), &exec.exec_id);
        spec.until_exec_end = true;
    }
    spec.save_as_artifacts = None;
    Ok(OutputPlan {
        request: guest::CollectRequest { spec: Some(spec) },
        save_as,
        omit_data: outputs.omit_data,
    })
}
