//! The task that owns a slot: it alone changes the slot's state, record and container.
//!
//! One loop over everything that can happen: a command from a handle, the guest's connection gone, a
//! timer, the daemon's stop. Each becomes an [`Event`]; `state.rs` says what follows. The task never
//! touches a byte of output or of a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::{Chain, Error, Result};
use crate::guest::{Link, Socket};
use crate::pool::Pool;
use crate::workspace::lease::{Lease, from_unix_ms, unix_ms};
use crate::workspace::record::{self, Claim, Phase, Record};
use crate::workspace::slot::{self, Context};
use crate::workspace::state::{Cause, Effect, Event, State, step};
use crate::workspace::{COMMANDS_MAX, Command, Failure, Grant, Slot, View, WorkspaceId};

/// Longest wait for an unary answer of a guest.
const GUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a guest may take to connect again before it counts as lost.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between tries to remove a container while the engine is away: the first and the longest wait.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// The task's own data.
#[derive(Debug)]
pub struct Actor {
    context: Arc<Context>,
    pool: Arc<Pool>,
    dir: Arc<PathBuf>,
    record: Record,
    state: State,
    link: Option<Link>,
    lease: Option<Lease>,
    failure: Option<Failure>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<Arc<View>>,
    /// Who waits for the end.
    deleting: Vec<oneshot::Sender<Result<()>>>,
    /// When to try again to remove the container, and how long to wait after that.
    retry: Option<(Instant, Duration)>,
    /// When a failed workspace is forgotten.
    retention: Option<Instant>,
}

impl Actor {
    /// A slot that is `state` now, and its handle. Nothing runs until one of the `run` functions does.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        pool: Arc<Pool>,
        record: Record,
        state: State,
    ) -> (Self, Slot) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let dir = Arc::new(context.slot_dir(record.number));
        let first = View {
            state,
            record: record.clone(),
            lease: None,
            guest_version: String::new(),
            failure: None,
        };
        let (view, watcher) = watch::channel(Arc::new(first));
        let slot = Slot {
            number: record.number,
            dir: Arc::clone(&dir),
            commands: sender,
            view: watcher,
        };
        let actor = Self {
            context,
            pool,
            dir,
            record,
            state,
            link: None,
            lease: None,
            failure: None,
            commands,
            view,
            deleting: Vec::new(),
            retry: None,
            retention: None,
        };
        (actor, slot)
    }

    /// Makes the container, then owns the slot to its end.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_new(mut self) {
        let stop = self.context.tasks.stop.clone();
        let booted = tokio::select! {
            () = stop.cancelled() => return,
            booted = self.boot() => booted,
        };
        match booted {
            Ok(link) => {
                self.link = Some(link);
                self.apply(Event::GuestAnswered).await;
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "slot did not start");
                self.pool.boot_failed(&error);
                self.apply(Event::Lost(Cause::StartFailed)).await;
            }
        }
        self.run().await;
    }

    /// Takes over a slot that was there before this start: `link` is its guest, if it answered.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_adopted(mut self, adopted: Adopted) {
        match adopted {
            Adopted::Warm(link) => {
                self.link = Some(link);
                self.apply(Event::GuestAnswered).await;
            }
            Adopted::Workspace(link) => {
                self.link = Some(link);
                self.restore_lease();
                self.publish();
            }
            Adopted::Lost(cause, message) => {
                self.restore_lease();
                self.lose(cause, message).await;
            }
            Adopted::Garbage => self.apply(Event::Delete).await,
        }
        self.run().await;
    }

    async fn run(mut self) {
        let stop = self.context.tasks.stop.clone();
        while self.state != State::Removed {
            let timer = self.timer();
            tokio::select! {
                () = stop.cancelled() => return,
                () = lost(self.link.as_ref()) => self.on_link_lost().await,
                // The pool and the directory hold handles for as long as the slot is theirs.
                Some(command) = self.commands.recv() => self.on_command(command).await,
                () = until(timer) => self.on_timer().await,
            }
        }
        self.publish();
        for waiter in self.deleting.drain(..) {
            answer(waiter, Ok(()));
        }
    }

    /// Directory, container, guest: each step leaves something that the next start can clean up.
    async fn boot(&mut self) -> Result<Link> {
        let context = Arc::clone(&self.context);
        let _turn = context.boots.acquire().await.map_err(|_| Error::Draining)?;
        let started = Instant::now();
        let (dir, record) = (self.dir.as_path().to_owned(), self.record.clone());
        let guest_path = context.config.engine.guest_path.clone();
        context
            .tasks
            .blocking(move || slot::prepare(&dir, &record, &guest_path))
            .await?;
        let socket = Socket::bind(&self.dir.join("run"))?;

        let spec = slot::container(&context, self.pool.config(), &self.record);
        let id = context.engine.create(&spec).await?;
        self.record.container_id = Some(id.clone());
        self.persist().await?;
        context.engine.start(&id).await?;
        let pid = context
            .engine
            .inspect(&id)
            .await?
            .map_or(0, |state| state.pid);

        let expected = context.expected(&self.record, pid);
        let timeout = context.config.engine.boot_timeout;
        match tokio::time::timeout(timeout, socket.accept(&expected)).await {
            Ok(link) => {
                let boot_ms = started.elapsed().as_millis();
                tracing::debug!(boot_ms, "slot is warm");
                link
            }
            Err(_) => Err(Error::GuestLost {
                workspace: format!("slot {}", self.record.number),
                why: self.why_silent(&id, timeout).await,
            }),
        }
    }

    async fn why_silent(&self, container_id: &str, timeout: Duration) -> String {
        match self.context.engine.inspect(container_id).await {
            Ok(Some(state)) if !state.running => {
                format!("its container ended with exit code {}", state.exit_code)
            }
            Ok(Some(_)) => format!("it did not connect within {timeout:?}"),
            Ok(None) => "its container was removed by somebody else".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Claim { claim, reply } => {
                let claimed = self.claim(*claim).await;
                answer(reply, claimed);
            }
            Command::Grant { reply } => {
                let grant = self.grant();
                answer(reply, grant);
            }
            Command::Renew {
                idle,
                remaining,
                reply,
            } => {
                let renewed = self.renew(idle, remaining).await;
                answer(reply, renewed);
            }
            Command::Skills { staged, reply } => {
                let recorded = self.record_skills(staged).await;
                answer(reply, recorded);
            }
            Command::Delete { reply } => {
                self.deleting.push(reply);
                self.apply(Event::Delete).await;
                if self.retry.is_some() {
                    self.refuse_deletes();
                }
            }
            Command::Check => self.check().await,
        }
    }

    /// Ready → Claimed. The record and the guest learn it at the same time; the request is answered when both have.
    async fn claim(&mut self, claim: Claim) -> Result<()> {
        let Some(link) = self.link.clone().filter(|_| self.state == State::Ready) else {
            return Err(self.not_ready());
        };
        let configure = self.configure(link, &claim);
        self.record.claim = Some(claim);
        self.restore_lease();
        self.apply_with(Event::Claim, Some(configure)).await
    }

    fn grant(&self) -> Result<Grant> {
        let (State::Claimed, Some(link), Some(lease)) = (self.state, &self.link, &self.lease)
        else {
            return Err(self.not_ready());
        };
        Ok(Grant {
            guest: link.client.clone(),
            view: Arc::clone(&self.view.borrow()),
            _use: lease.hold(),
        })
    }

    async fn renew(&mut self, idle: Option<Duration>, remaining: Option<Duration>) -> Result<()> {
        let (State::Claimed, Some(lease)) = (self.state, &self.lease) else {
            return Err(self.not_ready());
        };
        lease.renew(idle, remaining);
        if let Some(claim) = &mut self.record.claim {
            claim.idle_timeout_ms =
                u64::try_from(lease.idle_timeout().as_millis()).unwrap_or(u64::MAX);
            claim.end_time_ms = unix_ms(lease.end_time());
        }
        self.publish();
        self.persist().await
    }

    async fn record_skills(&mut self, staged: BTreeMap<String, String>) -> Result<()> {
        if self.state != State::Claimed {
            return Err(self.not_ready());
        }
        if let Some(claim) = &mut self.record.claim {
            claim.skills.extend(staged);
        }
        self.publish();
        self.persist().await
    }

    fn not_ready(&self) -> Error {
        let name = self.record.claim.as_ref().map_or_else(
            || format!("slot {}", self.record.number),
            |claim| format!("workspaces/{}", claim.workspace),
        );
        Error::WorkspaceNotReady {
            name,
            state: super::word(self.state).to_owned(),
        }
    }

    /// Applies an event whose effects cannot fail, or whose failure is the slot's end.
    async fn apply(&mut self, event: Event) {
        if let Err(error) = self
            .apply_with(event, None::<std::future::Ready<Result<()>>>)
            .await
        {
            tracing::error!(error = %Chain(&error), ?event, "slot effect failed");
        }
    }

    /// Applies an event; `beside` runs while the record is written.
    async fn apply_with<F>(&mut self, event: Event, beside: Option<F>) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let Ok(step) = step(self.state, event) else {
            tracing::debug!(?event, state = ?self.state, "event has no place in this state");
            return Err(self.not_ready());
        };
        if step.next != self.state {
            tracing::debug!(from = ?self.state, to = ?step.next, ?event, "slot changes state");
        }
        self.state = step.next;
        self.publish();
        let mut beside = beside;
        for effect in step.effects {
            match effect {
                Effect::Persist => self.persist_beside(beside.take()).await?,
                Effect::Offer => self.pool.offer(self.record.number),
                Effect::Withdraw => self.pool.withdraw(self.record.number),
                Effect::RemoveContainer => self.remove_container().await,
                Effect::Forget => self.forget().await,
            }
        }
        Ok(())
    }

    async fn persist_beside<F: Future<Output = Result<()>>>(
        &mut self,
        beside: Option<F>,
    ) -> Result<()> {
        self.record.phase = self.phase();
        match beside {
            Some(beside) => {
                let (written, done) = tokio::join!(self.persist(), beside);
                written.and(done)
            }
            None => self.persist().await,
        }
    }

    fn phase(&self) -> Phase {
        match self.state {
            State::Booting => Phase::Booting,
            State::Ready => Phase::Ready,
            State::Claimed => Phase::Claimed,
            State::Closing | State::Removed => Phase::Closing,
            State::Failed(cause) => {
                let time = self
                    .failure
                    .as_ref()
                    .map_or_else(SystemTime::now, |failure| failure.time);
                Phase::Failed {
                    cause,
                    time_ms: unix_ms(time),
                }
            }
        }
    }

    /// Writes the record, and what the commands see of it.
    async fn persist(&self) -> Result<()> {
        let (dir, record) = (Arc::clone(&self.dir), self.record.clone());
        let write = move || {
            if let Some(claim) = &record.claim {
                let metadata = metadata(&record, claim);
                record::replace(
                    &dir.join("skills/.metadata.json"),
                    metadata.as_bytes(),
                    false,
                )?;
            }
            record.write(&dir)
        };
        self.context.tasks.blocking(write).await
    }

    /// Kills what runs and removes the container. On failure it is tried again until it works.
    async fn remove_container(&mut self) {
        if let Some(link) = self.link.take() {
            let mut guest = link.client;
            let asked = guest.shutdown(pb::ShutdownRequest {});
            // The container's end is what counts; this only makes it quick for a guest that is well.
            let told = tokio::time::timeout(Duration::from_secs(1), asked).await;
            tracing::trace!(
                ok = matches!(told, Ok(Ok(_))),
                "guest was told to shut down"
            );
        }
        let gone = match &self.record.container_id {
            Some(id) => self.context.engine.remove(id).await,
            None => Ok(()),
        };
        match gone {
            Ok(()) => {
                self.retry = None;
                self.record.container_id = None;
                Box::pin(self.apply(Event::ContainerGone)).await;
            }
            Err(error) => {
                let wait = self
                    .retry
                    .map_or(RETRY.0, |(_, wait)| (wait * 2).min(RETRY.1));
                tracing::warn!(error = %Chain(&error), retry_in = ?wait, "container was not removed");
                self.retry = Some((Instant::now() + wait, wait));
            }
        }
    }

    fn refuse_deletes(&mut self) {
        for waiter in self.deleting.drain(..) {
            let message = "the container is removed as soon as it answers".to_owned();
            answer(waiter, Err(Error::EngineUnavailable { message }));
        }
    }

    async fn forget(&mut self) {
        let dir = Arc::clone(&self.dir);
        if let Err(error) = self.context.tasks.blocking(move || slot::erase(&dir)).await {
            // The record says Closing, so the next start tries again.
            tracing::error!(error = %Chain(&error), "slot directory is left");
        }
        if let Some(claim) = &self.record.claim {
            let id = WorkspaceId::new(claim.workspace.clone());
            self.context.directory.remove(&id);
            tracing::info!(workspace_id = %id, "workspace is gone");
        }
        self.context
            .with_numbers(|numbers| numbers.give_back(self.record.number));
        self.pool.gone(self.record.number);
    }

    /// The guest's connection broke: the container died, or the guest will connect again.
    async fn on_link_lost(&mut self) {
        self.link = None;
        let Some(id) = self.record.container_id.clone() else {
            return;
        };
        match self.context.engine.inspect(&id).await {
            Ok(None) => {
                self.lose(
                    Cause::ContainerLost,
                    "the container was removed by somebody else".into(),
                )
                .await
            }
            Ok(Some(state)) if !state.running => {
                let (cause, what) = if state.oom_killed {
                    (Cause::OomKilled, "was killed for its memory")
                } else {
                    (Cause::ContainerLost, "ended")
                };
                self.lose(
                    cause,
                    format!("the container {what}, exit code {}", state.exit_code),
                )
                .await;
            }
            Ok(Some(state)) => self.reconnect(state.pid).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "engine does not say what became of the container");
                self.reconnect(0).await;
            }
        }
    }

    async fn reconnect(&mut self, pid: i32) {
        let expected = self.context.expected(&self.record, pid);
        let connected = match Socket::bind(&self.dir.join("run")) {
            Ok(socket) => tokio::time::timeout(RECONNECT_TIMEOUT, socket.accept(&expected)).await,
            Err(error) => Ok(Err(error)),
        };
        match connected {
            Ok(Ok(link)) => {
                tracing::info!("guest connected again");
                self.link = Some(link);
            }
            Ok(Err(error)) => self.lose(Cause::GuestLost, error.to_string()).await,
            Err(_) => {
                let message =
                    format!("the guest did not connect again within {RECONNECT_TIMEOUT:?}");
                self.lose(Cause::GuestLost, message).await;
            }
        }
    }

    async fn check(&mut self) {
        let Some(id) = self.record.container_id.clone() else {
            return;
        };
        match self.context.engine.inspect(&id).await {
            Ok(Some(state)) if state.running => {}
            Ok(_) => self.on_link_lost().await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "engine does not say how the container is")
            }
        }
    }

    async fn lose(&mut self, cause: Cause, message: String) {
        tracing::warn!(?cause, message, "slot is lost");
        self.failure = Some(Failure {
            cause,
            message,
            time: SystemTime::now(),
        });
        self.retention = Some(Instant::now() + self.context.config.workspaces.failed_retention);
        self.apply(Event::Lost(cause)).await;
    }

    fn timer(&self) -> Option<Instant> {
        let lease = self
            .lease
            .as_ref()
            .filter(|_| self.state == State::Claimed)
            .map(Lease::deadline);
        let retention = self
            .retention
            .filter(|_| matches!(self.state, State::Failed(_)));
        [lease, retention, self.retry.map(|(at, _)| at)]
            .into_iter()
            .flatten()
            .min()
    }

    async fn on_timer(&mut self) {
        let now = Instant::now();
        if self.retry.is_some_and(|(at, _)| at <= now) {
            self.remove_container().await;
        } else if self.retention.is_some_and(|at| at <= now)
            && matches!(self.state, State::Failed(_))
        {
            self.apply(Event::RetentionOver).await;
        } else if self.state == State::Claimed {
            self.expire().await;
        }
    }

    /// Ends the workspace if its time is over. A running exec counts as use.
    async fn expire(&mut self) {
        let Some(lease) = self.lease.clone() else {
            return;
        };
        if lease.is_over() {
            tracing::info!("workspace reached its maximum lifetime");
            self.apply(Event::Expire).await;
        } else if lease.is_idle() {
            if self.has_running_execs().await {
                lease.touch();
            } else {
                tracing::info!("workspace was idle for its timeout");
                self.apply(Event::Expire).await;
            }
        }
    }

    async fn has_running_execs(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let mut guest = link.client.clone();
        let request = pb::HelloRequest {
            generation: skilld_proto::guest::GENERATION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        match tokio::time::timeout(GUEST_TIMEOUT, guest.hello(request)).await {
            Ok(Ok(hello)) => hello.into_inner().running_execs > 0,
            _ => false,
        }
    }

    /// Tells the guest which workspace it is. Doing it again changes nothing.
    fn configure(&self, link: Link, claim: &Claim) -> impl Future<Output = Result<()>> + use<> {
        let request = configure_request(&self.context, &claim.workspace);
        let workspace = claim.workspace.clone();
        async move {
            let mut guest = link.client;
            match tokio::time::timeout(GUEST_TIMEOUT, guest.configure(request)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(status)) => Err(Error::from_guest(&workspace, &status)),
                Err(_) => Err(Error::GuestLost {
                    workspace,
                    why: "no answer in time".into(),
                }),
            }
        }
    }

    fn restore_lease(&mut self) {
        let Some(claim) = &self.record.claim else {
            return;
        };
        let remaining = from_unix_ms(claim.end_time_ms)
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        self.lease = Some(Lease::new(
            Duration::from_millis(claim.idle_timeout_ms),
            remaining,
        ));
    }

    fn publish(&self) {
        self.view.send_replace(Arc::new(View {
            state: self.state,
            record: self.record.clone(),
            lease: self.lease.clone(),
            guest_version: self
                .link
                .as_ref()
                .map(|link| link.version.clone())
                .unwrap_or_default(),
            failure: self.failure.clone(),
        }));
    }
}

/// What was found of a slot at start.
#[derive(Debug)]
pub enum Adopted {
    /// Never claimed, its guest answers.
    Warm(Link),
    /// A workspace whose guest answers.
    Workspace(Link),
    /// A workspace that was lost, now or before.
    Lost(Cause, String),
    /// Half made or half removed.
    Garbage,
}

/// What a guest is told when its container becomes a workspace.
#[must_use]
pub fn configure_request(context: &Context, workspace: &str) -> pb::ConfigureRequest {
    let execs = &context.config.execs;
    pb::ConfigureRequest {
        workspace: format!("workspaces/{workspace}"),
        execs_max: execs.execs_max,
        leak_grace: prost_types::Duration::try_from(execs.leak_grace).ok(),
        kill_grace: prost_types::Duration::try_from(execs.kill_grace).ok(),
        heartbeat: prost_types::Duration::try_from(execs.heartbeat).ok(),
        retain_bytes_total: execs.retain_bytes_total,
        retained_execs_max: execs.retained_max,
    }
}

/// What commands can read of the record: nothing that is secret.
fn metadata(record: &Record, claim: &Claim) -> String {
    let value = serde_json::json!({
        "workspace": format!("workspaces/{}", claim.workspace),
        "pool": record.pool,
        "image": record.image,
        "create_time_ms": claim.create_time_ms,
        "labels": claim.labels,
        "skills": claim.skills,
        "limits": record.limits,
    });
    format!("{value:#}\n")
}

/// Completes when the guest's connection is gone; never without one.
async fn lost(link: Option<&Link>) {
    match link {
        Some(link) => link.lost.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Answers a request. Its caller may have gone away, which changes nothing.
fn answer<T>(reply: oneshot::Sender<Result<T>>, result: Result<T>) {
    if reply.send(result).is_err() {
        tracing::trace!("caller has gone away");
    }
}
