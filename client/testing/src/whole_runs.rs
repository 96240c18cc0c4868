//! RunExec of the fake that claims a workspace, stages and collects.

use futures::{StreamExt, stream};
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::file_service_server::FileService;
use skilld_client::v1::workspace_service_server::WorkspaceService;
use skilld_client::v1::{
    CollectSummary, CreateWorkspaceRequest, RunExecRequest, RunPosition, StageInputsRequest,
    StageSkillsRequest, StagedEvent, SummaryEvent, WorkspaceTemplate,
};
use skilld_client::{count_from_int64, int64_from_count};
use tonic::{Request, Status};

use super::FakeServices;
use super::execs::Events;
use super::program::event;

impl FakeServices {
    /// Does what a request says. Returns its events; the last one deletes a workspace that is not kept.
    pub(super) async fn run_whole(&self, request: RunExecRequest) -> Result<Events, Status> {
        let mut first = Vec::new();
        let mut parent = request.parent.clone();
        let template = request.workspace_template.clone();
        if let Some(template) = &template {
            parent = format!("workspaces/{}", request.exec_id);
            let exec = format!("{parent}/execs/{}", request.exec_id);
            let is_new = !self.lock().execs.contains_key(&exec);
            if is_new {
                first.push(self.claim(template, &request.exec_id).await?);
            }
        }
        let is_claimed = !first.is_empty();
        let begun = self.begin_run(&parent, &request, &mut first).await;
        if begun.is_err() && is_claimed {
            self.lock().workspaces.remove(&parent);
        }
        let (name, events) = begun?;
        let is_temporary = template.is_some_and(|template| !template.keep);
        let (state, ended) = (self.clone(), self.clone());
        let last = stream::once(async move { stream::iter(state.finish_run(&name, &request)) });
        let deletion = stream::once(async move {
            // Only once the connection has taken the last event.
            tokio::task::yield_now().await;
            if is_temporary {
                ended.lock().close_workspace(&parent);
            }
            stream::empty()
        });
        let own = |next| Ok(event(0, next));
        let first = stream::iter(first).map(own);
        let last = last.flatten().map(own).chain(deletion.flatten());
        Ok(first.chain(events).chain(last).boxed())
    }

    async fn claim(&self, template: &WorkspaceTemplate, id: &str) -> Result<Event, Status> {
        let request = CreateWorkspaceRequest {
            workspace_id: id.to_owned(),
            pool: template.pool.clone(),
            labels: template.labels.clone(),
            env: template.env.clone(),
            limits: template.limits,
            ..Default::default()
        };
        let claimed = self.create_workspace(Request::new(request)).await?;
        Ok(Event::Workspace(claimed.into_inner()))
    }

    /// Stages and starts, unless the exec exists. Returns its name and its events.
    async fn begin_run(
        &self,
        parent: &str,
        request: &RunExecRequest,
        first: &mut Vec<Event>,
    ) -> Result<(String, Events), Status> {
        let mut name = format!("{parent}/execs/{}", request.exec_id);
        let position = request.position.unwrap_or_default();
        if request.position.is_none() {
            let is_known = self.lock().execs.contains_key(&name);
            if !(is_known || request.skills.is_empty() && request.inputs.is_empty()) {
                let staged = self.stage_all(parent, request).await?;
                first.push(Event::Staged(staged));
            }
            let spec = request.spec.clone().unwrap_or_default();
            name = self.start(parent, &request.exec_id, spec)?;
        }
        let events = self.events(&name, position.offsets.unwrap_or_default())?;
        Ok((name, events))
    }

    async fn stage_all(
        &self,
        parent: &str,
        request: &RunExecRequest,
    ) -> Result<StagedEvent, Status> {
        let mut staged = StagedEvent::default();
        if !request.skills.is_empty() {
            let skills = StageSkillsRequest {
                workspace: parent.to_owned(),
                skills: request.skills.clone(),
                writable: request.writable_skills,
            };
            let skills = self.stage_skills(Request::new(skills)).await?;
            staged.skills = skills.into_inner().skills;
        }
        let inputs = StageInputsRequest {
            workspace: parent.to_owned(),
            inputs: request.inputs.clone(),
            scope: request.scope.clone(),
        };
        staged.inputs = self.bring(&inputs)?.inputs;
        Ok(staged)
    }

    /// Returns the files and the summary of a run that has ended.
    fn finish_run(&self, name: &str, request: &RunExecRequest) -> Vec<Event> {
        let running = self.running(name).ok();
        let result = running.and_then(|running| Self::so_far(&running).2);
        let result = result.unwrap_or_default();
        let mut summary = SummaryEvent {
            warnings: result.warnings(),
            ..Default::default()
        };
        let mut events = Vec::new();
        let outputs = request.outputs.as_ref();
        if let Some(outputs) = outputs.filter(|_| result.spawn_failure.is_none()) {
            let mut state = self.lock();
            state.collect_spec.clone_from(&outputs.spec);
            summary.outputs = Some(CollectSummary::default());
            let mut position = request.position.unwrap_or_default();
            let messages = state.collected.iter();
            for payload in messages.filter_map(|message| message.payload.clone()) {
                let is_data = matches!(payload, Payload::Data(_));
                if let Payload::Summary(outputs) = payload {
                    summary.outputs = Some(outputs);
                } else if !(is_data && outputs.omit_data) {
                    events.extend(skip_received(&mut position, payload));
                }
            }
        }
        events.push(Event::Summary(summary));
        events
    }
}

/// Returns the event of a file's message; `None` if it comes before a position, which moves.
fn skip_received(position: &mut RunPosition, payload: Payload) -> Option<Event> {
    let is_new = position.file_count == 0;
    let (event, is_end) = match payload {
        Payload::File(file) => {
            let is_end = !file.has_end();
            (Event::File(file), is_end)
        }
        Payload::Data(data) => {
            let sent = count_from_int64(position.file_bytes).min(data.len() as u64);
            let sent = usize::try_from(sent).expect("small");
            if is_new {
                position.file_bytes -= int64_from_count(sent as u64);
            }
            if is_new && sent == data.len() {
                return None;
            }
            (Event::FileData(data.slice(sent..)), false)
        }
        Payload::FileEnd(end) => (Event::FileEnd(end), true),
        Payload::Summary(_) => return None,
    };
    position.file_count -= i64::from(is_end && !is_new);
    is_new.then_some(event)
}
