//! ExecService: runs commands. The workspace's task is asked once; then bytes flow from the guest to the
//! client without asking anyone.

use std::collections::BTreeMap;

use prost::Message;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_service_server::ExecService;
use tonic::{Request, Response, Status, Streaming};

use super::Shared;
use super::convert::{self, exec as wire, io};
use super::relay::{Relayed, relay};
use super::upload::{self, Bounds, upload};
use crate::collect::exit::Noted;
use crate::error::{Error, Result};
use crate::exec::{self, Start, Surroundings, script};
use crate::guest::fields;
use crate::workspace::{Grant, Workspace};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// Of what was collected, in a list of execs; the guest's own share of the message is 3 MiB at most.
const SUMMARIES_BYTES_MAX: usize = 512 << 10;

/// The service.
#[derive(Debug, Clone)]
pub struct Execs(pub Shared);

/// A request that may go to the guest.
struct Ready {
    grant: Grant,
    request: guest::StartExecRequest,
    name: String,
    /// Dropped once the guest was asked, whatever it answers: it may have started it, and that is followed then.
    noted: Option<Noted>,
}

impl Execs {
    /// Checks, gets leave, resolves.
    async fn prepare(
        &self,
        workspace: &str,
        exec_id: &str,
        spec: Option<pb::ExecSpec>,
        start: Start,
    ) -> Result<Ready> {
        let id = convert::workspace_name("workspace", workspace)?;
        let exec_id = match exec_id {
            "" => uuid::Uuid::now_v7().to_string(),
            given => convert::id("exec_id", given)?,
        };
        let spec = wire::spec(spec, &self.0.config.execs)?;
        if self.0.tasks.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let workspace = self.0.registry.get(&id)?;
        let grant = workspace.grant().await?;
        grant.check(&spec)?;
        let digest = {
            use sha2::Digest;
            sha2::Sha256::digest(spec.encode_to_vec()).to_vec()
        };
        let mut spec = spec;
        if let Some(planned) = spec.planned_collect.take() {
            convert::file::planned_collect(planned, &id, &exec_id, &self.0.config.files)?;
        }
        if let Some(collect) = &mut spec.collect {
            let files = &self.0.config.files;
            convert::file::collect_on_exit(collect, &id, &exec_id, &spec.skill, files)?;
            // It may be collected late, when others have written as well. An older guest can't tell these apart.
            collect.until_exec_end = grant.generation >= fields::SECOND;
        }
        let none = BTreeMap::new();
        let claim = grant.view.record.claim.as_ref();
        let skills = claim.map_or(&none, |claim| &claim.skills);
        let script = self.script(&workspace, &spec, skills).await?;
        let around = Surroundings {
            env: claim.map_or(&none, |claim| &claim.env),
            skills,
            script: script.as_ref(),
            config: &self.0.config.execs,
        };
        let mut request = exec::resolve(exec_id, digest, spec, start, around)?;
        let noted = self.note(&workspace, &mut request).await?;
        Ok(Ready {
            grant,
            request,
            name: id.name(),
            noted,
        })
    }

    /// Looks at the script of a spec, in the staged copy of its skill.
    async fn script(
        &self,
        workspace: &Workspace,
        spec: &pb::ExecSpec,
        skills: &BTreeMap<String, String>,
    ) -> Result<Option<script::Program>> {
        let (Some(script), Some(skill)) = (&spec.script, exec::staged(&spec.skill, skills)?) else {
            return Ok(None);
        };
        let (skill, path) = (skill.to_owned(), script.path.clone());
        let root = workspace.skills_dir().join(&skill);
        let find = move || script::find(&skill, &root, &path);
        self.0.tasks.blocking(find).await.map(Some)
    }

    /// Notes what is to be collected when it ends; it is kept until then.
    async fn note(
        &self,
        workspace: &Workspace,
        request: &mut guest::StartExecRequest,
    ) -> Result<Option<Noted>> {
        let Some(spec) = &mut request.spec else {
            return Ok(None);
        };
        let Some(collect) = spec.collect.clone() else {
            return Ok(None);
        };
        if let Some(retain) = &mut spec.retain {
            let least = self.0.config.files.collect_on_exit_timeout;
            let given = retain.after_exit.and_then(|given| given.try_into().ok());
            retain.after_exit = given.unwrap_or(least).max(least).try_into().ok();
        }
        let on_exit = &self.0.on_exit;
        let noted = on_exit.note(workspace, &request.exec_id, &collect).await;
        noted.map(Some)
    }

    /// The exec as its guest describes it, with what was collected of it.
    async fn told(
        &self,
        workspace: &str,
        exec: Response<pb::Exec>,
    ) -> Result<Response<pb::Exec>, Status> {
        let id = convert::workspace_name("workspace", workspace)?;
        let mut exec = [exec.into_inner()];
        let collects = self.0.registry.get(&id)?;
        let on_exit = &self.0.on_exit;
        on_exit
            .tell(collects.collects(), &mut exec, usize::MAX)
            .await?;
        let [exec] = exec;
        Ok(Response::new(exec))
    }

    /// Leave to talk about an exec that exists: its workspace's name, its id.
    async fn find(&self, name: &str) -> Result<(Grant, String, String)> {
        let (workspace, exec) = convert::exec_name("name", name)?;
        let grant = self.0.registry.get(&workspace)?.grant().await?;
        Ok((grant, workspace.name(), exec))
    }
}

#[tonic::async_trait]
impl ExecService for Execs {
    type RunExecStream = Relayed<pb::ExecEvent>;
    type AttachExecStream = Relayed<pb::ExecEvent>;

    async fn run_exec(
        &self,
        request: Request<pb::RunExecRequest>,
    ) -> Result<Response<Self::RunExecStream>, Status> {
        let run = request.into_inner();
        let format = wire::format(run.format)?;
        let mut ready = self
            .prepare(&run.workspace, &run.exec_id, run.spec, Start::Run)
            .await?;
        ready.request.set_format(format);
        let mut guest = ready.grant.guest.clone();
        let stream = guest.run_exec(ready.request).await;
        drop(ready.noted);
        let stream = stream
            .map_err(|status| Error::from_guest(&ready.name, &status))?
            .into_inner();
        Ok(Response::new(relay(
            stream,
            ready.grant,
            ready.name,
            &self.0.relays,
        )))
    }

    async fn start_exec(
        &self,
        request: Request<pb::StartExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let start = request.into_inner();
        let ready = self
            .prepare(
                &start.workspace,
                &start.exec_id,
                start.spec,
                Start::Detached,
            )
            .await?;
        let mut guest = ready.grant.guest.clone();
        let exec = guest.start_exec(ready.request).await;
        drop(ready.noted);
        let exec = exec.map_err(|status| Error::from_guest(&ready.name, &status))?;
        self.told(&ready.name, exec).await
    }

    async fn attach_exec(
        &self,
        request: Request<pb::AttachExecRequest>,
    ) -> Result<Response<Self::AttachExecStream>, Status> {
        let attach = request.into_inner();
        let format = wire::format(attach.format)?;
        pb::Gaps::try_from(attach.gaps)
            .map_err(|_| Error::invalid("gaps", "is not a value that this server knows"))?;
        let (grant, workspace, exec_id) = self.find(&attach.name).await?;
        let request = guest::AttachExecRequest {
            exec_id,
            offsets: attach.offsets,
            format: format.into(),
            gaps: attach.gaps,
        };
        let stream = grant.guest.clone().attach_exec(request).await;
        let stream = stream
            .map_err(|status| Error::from_guest(&workspace, &status))?
            .into_inner();
        Ok(Response::new(relay(
            stream,
            grant,
            workspace,
            &self.0.relays,
        )))
    }

    async fn signal_exec(
        &self,
        request: Request<pb::SignalExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let signal = request.into_inner();
        if !(1..=64).contains(&signal.signal) {
            return Err(Error::invalid("signal", "must be 1 to 64").into());
        }
        pb::signal_exec_request::Target::try_from(signal.target)
            .map_err(|_| Error::invalid("target", "is not a value that this server knows"))?;
        let (grant, workspace, exec_id) = self.find(&signal.name).await?;
        let request = guest::SignalExecRequest {
            exec_id,
            signal: signal.signal,
            target: signal.target,
        };
        let exec = grant.guest.clone().signal_exec(request).await;
        Ok(exec.map_err(|status| Error::from_guest(&workspace, &status))?)
    }

    async fn kill_exec(
        &self,
        request: Request<pb::KillExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let kill = request.into_inner();
        let grace = wire::grace(kill.grace)?;
        let (grant, workspace, exec_id) = self.find(&kill.name).await?;
        let reason = pb::exec_result::Reason::KilledByClient.into();
        let request = guest::KillExecRequest {
            exec_id,
            grace,
            reason,
        };
        let exec = grant.guest.clone().kill_exec(request).await;
        let exec = exec.map_err(|status| Error::from_guest(&workspace, &status))?;
        self.told(&workspace, exec).await
    }

    async fn get_exec(
        &self,
        request: Request<pb::GetExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let (grant, workspace, exec_id) = self.find(&request.get_ref().name).await?;
        let exec = grant
            .guest
            .clone()
            .get_exec(guest::GetExecRequest { exec_id })
            .await;
        let exec = exec.map_err(|status| Error::from_guest(&workspace, &status))?;
        self.told(&workspace, exec).await
    }

    async fn list_execs(
        &self,
        request: Request<pb::ListExecsRequest>,
    ) -> Result<Response<pb::ListExecsResponse>, Status> {
        let list = request.into_inner();
        let id = convert::workspace_name("workspace", &list.workspace)?;
        let size = convert::page_size(list.page_size, PAGE_DEFAULT, PAGE_MAX)?;
        let after = match convert::page_token(&list.page_token)? {
            "" => String::new(),
            token => convert::id("page_token", token)?,
        };
        let workspace = self.0.registry.get(&id)?;
        let grant = workspace.grant().await?;
        let page_size = u32::try_from(size).unwrap_or(u32::MAX);
        let page = grant
            .guest
            .clone()
            .list_execs(guest::ListExecsRequest { after, page_size })
            .await;
        let mut page = page
            .map_err(|status| Error::from_guest(&id.name(), &status))?
            .into_inner();
        let on_exit = &self.0.on_exit;
        on_exit
            .tell(workspace.collects(), &mut page.execs, SUMMARIES_BYTES_MAX)
            .await?;
        let last = page.execs.last().filter(|_| page.more);
        let next_page_token = last
            .map(|exec| last_segment(&exec.name))
            .unwrap_or_default();
        Ok(Response::new(pb::ListExecsResponse {
            execs: page.execs,
            next_page_token,
        }))
    }

    async fn poll_exec(
        &self,
        request: Request<pb::PollExecRequest>,
    ) -> Result<Response<pb::PollExecResponse>, Status> {
        let checked = io::poll(request.get_ref())?;
        let (grant, workspace, exec_id) = self.find(&request.get_ref().name).await?;
        let request = guest::PollExecRequest { exec_id, ..checked };
        // The workspace is in use for as long as this waits.
        let answer = grant.guest.clone().poll_exec(request).await;
        Ok(answer.map_err(|status| Error::from_guest(&workspace, &status))?)
    }

    async fn write_stdin(
        &self,
        request: Request<pb::WriteStdinRequest>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let write = request.into_inner();
        let name = write.name.clone();
        let checked = io::write(write)?;
        let (grant, workspace, exec_id) = self.find(&name).await?;
        let request = guest::WriteStdinRequest { exec_id, ..checked };
        grant.check(&request)?;
        let written = grant.guest.clone().write_stdin(request).await;
        Ok(written.map_err(|status| Error::from_guest(&workspace, &status))?)
    }

    async fn stream_stdin(
        &self,
        request: Request<Streaming<pb::StreamStdinRequest>>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let mut client = request.into_inner();
        let limit = self.0.config.server.message_bytes_max as u64;
        let first = upload::first(&mut client, &self.0, "name").await?;
        let name = first.name.clone();
        let checked = io::first_write(first)?;
        let (grant, workspace, exec_id) = self.find(&name).await?;
        let first = guest::WriteStdinRequest { exec_id, ..checked };
        let check = move |next| io::next_write(next, &name);
        let bounds = Bounds {
            message_bytes_max: limit,
            patience: None,
        };
        let (stream, failure) = upload(first, client, bounds, check);
        let mut guest = grant.guest.clone();
        let written = guest.stream_stdin(stream);
        // Dropping `written` before its end resets the guest's stream; what came until then is written.
        tokio::select! {
            // An answer that is there counts.
            biased;
            written = written => Ok(written.map_err(|status| Error::from_guest(&workspace, &status))?),
            Ok(error) = failure => Err(error.into()),
            () = self.0.tasks.stop.cancelled() => {
                let doing = "writing to the exec's stdin";
                Err(Error::Stopped { doing }.into())
            }
        }
    }

    async fn resize_terminal(
        &self,
        request: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<()>, Status> {
        let resize = request.into_inner();
        wire::size(resize.rows, resize.cols)?;
        let (grant, workspace, exec_id) = self.find(&resize.name).await?;
        let request = guest::ResizeTerminalRequest {
            exec_id,
            rows: resize.rows,
            cols: resize.cols,
        };
        let resized = grant.guest.clone().resize_terminal(request).await;
        Ok(resized.map_err(|status| Error::from_guest(&workspace, &status))?)
    }

    async fn delete_exec(
        &self,
        request: Request<pb::DeleteExecRequest>,
    ) -> Result<Response<()>, Status> {
        let (grant, workspace, exec_id) = self.find(&request.get_ref().name).await?;
        let request = guest::DeleteExecRequest { exec_id };
        let deleted = grant.guest.clone().delete_exec(request).await;
        Ok(deleted.map_err(|status| Error::from_guest(&workspace, &status))?)
    }
}

fn last_segment(name: &str) -> String {
    name.rsplit('/').next().unwrap_or_default().to_owned()
}
