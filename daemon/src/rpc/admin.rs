//! AdminService: pools, draining and problems.

use skilld_proto::v1 as pb;
use skilld_proto::v1::admin_service_server::AdminService;
use tonic::{Request, Response, Status};

use super::SharedDependencies;
use super::convert::page::Page;
use super::convert::workspace::limits_message;
use super::convert::{self, int32, int64};
use crate::audit::{AuditLog, AuditState};
use crate::engine::image_reference::ImageReference;
use crate::error::{DaemonProblem, Error, Result};
use crate::pool::Pool;
use crate::shutdown::RefusedWork;
use crate::workspace::host_problems;
use crate::workspace::image_check::{self, ImageReport};

/// Implementation of AdminService.
#[derive(Debug, Clone)]
pub struct AdminRpc(pub SharedDependencies);

impl AdminRpc {
    fn find_pool(&self, name: &str) -> Result<&std::sync::Arc<Pool>> {
        let id = convert::parse_pool_name("name", name)?;
        self.0.registry.pool(Some(&id))
    }
}

#[tonic::async_trait]
impl AdminService for AdminRpc {
    async fn list_pools(
        &self,
        request: Request<pb::ListPoolsRequest>,
    ) -> Result<Response<pb::ListPoolsResponse>, Status> {
        let request = request.get_ref();
        let page = Page::requested(request.page_size, &request.page_token)?;
        let all = self.0.registry.pools.values();
        let (pools, next_page_token) = page.take(all.map(|pool| pool_message(pool)));
        Ok(Response::new(pb::ListPoolsResponse {
            pools,
            next_page_token,
        }))
    }

    async fn get_pool(
        &self,
        request: Request<pb::GetPoolRequest>,
    ) -> Result<Response<pb::Pool>, Status> {
        Ok(Response::new(pool_message(
            self.find_pool(&request.get_ref().name)?,
        )))
    }

    async fn resize_pool(
        &self,
        request: Request<pb::ResizePoolRequest>,
    ) -> Result<Response<pb::Pool>, Status> {
        let request = request.into_inner();
        let pool = self.find_pool(&request.name)?;
        let max = pool.config.max;
        let target = request
            .warm_target
            .and_then(|target| usize::try_from(target).ok())
            .filter(|target| *target <= max);
        let Some(target) = target else {
            let why = format!("must be 0 to {max}, the pool's maximum");
            return Err(Error::invalid("warm_target", why).into());
        };
        pool.resize(target).await;
        Ok(Response::new(pool_message(pool)))
    }

    async fn drain(
        &self,
        request: Request<pb::DrainRequest>,
    ) -> Result<Response<pb::DrainResponse>, Status> {
        let pb::DrainRequest {
            remove_workspaces,
            refuse_execs,
        } = *request.get_ref();
        tracing::info!(remove_workspaces, refuse_execs, "draining on request");
        self.0
            .tasks
            .refuse(match refuse_execs || remove_workspaces {
                true => RefusedWork::Execs,
                false => RefusedWork::Workspaces,
            });
        let (workspaces, containers) = if remove_workspaces {
            let registry = self.0.registry.clone();
            // It completes also when the caller goes away: a pool that is half removed does not fill itself again.
            let removal = self
                .0
                .tasks
                .spawn(async move { registry.remove_all().await });
            removal
                .await
                .map_err(|error| Error::Internal(format!("drain: {error}")))??
        } else {
            (0, 0)
        };
        Ok(Response::new(pb::DrainResponse {
            removed_workspace_count: int32(workspaces),
            removed_container_count: int32(containers),
        }))
    }

    async fn undrain(
        &self,
        _request: Request<pb::UndrainRequest>,
    ) -> Result<Response<pb::UndrainResponse>, Status> {
        if self.0.tasks.drain.is_cancelled() {
            // The daemon is ending, which nothing takes back.
            return Err(Error::Draining.into());
        }
        tracing::info!("accepting new work again on request");
        self.0.registry.open_pools().await;
        self.0.tasks.accept_all();
        Ok(Response::new(pb::UndrainResponse {}))
    }

    async fn check_image(
        &self,
        request: Request<pb::CheckImageRequest>,
    ) -> Result<Response<pb::CheckImageResponse>, Status> {
        let request = request.into_inner();
        let reference =
            ImageReference::parse(&request.image).map_err(|why| Error::invalid("image", why))?;
        let pool = convert::requested_pool(&request.pool)?;
        let registry = &self.0.registry;
        let template = &registry.pool(pool.as_deref())?.config;
        tracing::info!(image = %reference, pool = template.name, "checking an image");
        let report = image_check::check_image(&registry.context, template, &reference).await?;
        Ok(Response::new(image_report_message(&report)))
    }

    async fn list_problems(
        &self,
        request: Request<pb::ListProblemsRequest>,
    ) -> Result<Response<pb::ListProblemsResponse>, Status> {
        let request = request.get_ref();
        let page = Page::requested(request.page_size, &request.page_token)?;
        let pools = self.0.registry.pools.values();
        let of_pools = pools.filter_map(|pool| pool.snapshot().problem);
        let mut problems: Vec<_> = of_pools.map(problem_message).collect();
        let of_host = host_problems::find_problems(&self.0.registry.context).await;
        problems.extend(of_host.into_iter().map(problem_message));
        let skills = self
            .0
            .skills
            .of_daemon()
            .problems()
            .await
            .map_err(Error::from)?;
        problems.extend(convert::skill::problem_messages(&skills));
        let files = self.0.access.problems.list();
        problems.extend(files.into_iter().map(problem_message));
        let audit = self.0.audit.as_ref().and_then(audit_problem);
        problems.extend(audit.map(problem_message));
        let builds = self.0.environments.problems();
        problems.extend(convert::skill::problem_messages(&builds));
        let (problems, next_page_token) = page.take(problems.into_iter());
        Ok(Response::new(pb::ListProblemsResponse {
            problems,
            next_page_token,
        }))
    }
}

fn problem_message(problem: DaemonProblem) -> pb::Problem {
    pb::Problem {
        severity: severity_message(problem.is_error).into(),
        code: problem.code.into(),
        subject: problem.subject,
        message: problem.message,
        line: 0,
        detect_time: convert::timestamp_message(problem.time),
    }
}

fn severity_message(is_error: bool) -> pb::ProblemSeverity {
    match is_error {
        true => pb::ProblemSeverity::Error,
        false => pb::ProblemSeverity::Warning,
    }
}

fn image_report_message(report: &ImageReport) -> pb::CheckImageResponse {
    let findings = report.findings.iter().map(|finding| pb::ImageFinding {
        severity: severity_message(finding.is_error).into(),
        code: finding.code.to_owned(),
        message: finding.message.clone(),
    });
    let image = report.image.clone().unwrap_or_default();
    let probes = report.probes.clone().unwrap_or_default();
    let has_run = report.probes.is_some();
    pb::CheckImageResponse {
        findings: findings.collect(),
        usable: report.findings.iter().all(|finding| !finding.is_error),
        image_id: image.id,
        size_bytes: int64(image.size_bytes),
        repo_digests: image.repo_digests,
        start_duration: has_run
            .then(|| convert::duration_message(probes.boot_time))
            .flatten(),
        program_count: has_run.then_some(int32(probes.programs.len())),
        python_version: probes.python.unwrap_or_default(),
        python_package_count: has_run.then_some(int32(probes.python_packages)),
        node_package_count: has_run.then_some(int32(probes.node_packages)),
    }
}

/// Returns the problem of an audit log that cannot be written to its path.
fn audit_problem(audit: &AuditLog) -> Option<DaemonProblem> {
    let (code, fault) = match &*audit.state().borrow() {
        AuditState::Healthy => return None,
        AuditState::OldFile(fault) => ("audit.old_file", fault.to_string()),
        AuditState::Failed(fault) => ("audit.unwritable", fault.to_string()),
    };
    Some(DaemonProblem {
        code,
        is_error: true,
        subject: "audit.file".to_owned(),
        message: format!("{fault}; {} records are lost so far", audit.lost()),
        time: audit.state_since(),
    })
}

fn pool_message(pool: &Pool) -> pb::Pool {
    let (config, stats) = (&pool.config, pool.snapshot());
    pb::Pool {
        name: convert::pool_name(&config.name),
        image: config.image.clone(),
        image_id: pool
            .image()
            .map(|image| image.id.clone())
            .unwrap_or_default(),
        oci_runtime: config.oci_runtime.clone().unwrap_or_default(),
        warm_target: int32(stats.warm_target),
        workspaces_max: int32(config.max),
        warm: int32(stats.warm),
        booting: int32(stats.booting),
        claimed: int32(stats.claimed),
        waiting: int32(stats.waiting),
        limits: Some(limits_message(config.limits())),
        problem: stats
            .problem
            .map(|problem| problem.message)
            .unwrap_or_default(),
    }
}
