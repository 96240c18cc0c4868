//! The part of a slot's task that deals with its guest: telling it what it is, noticing its loss.

use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::time::Instant;

use super::Actor;
use crate::engine::ContainerState;
use crate::error::{Chain, Error, Result};
use crate::exec::PATH;
use crate::guest::{Link, Socket};
use crate::workspace::Failure;
use crate::workspace::record::Claim;
use crate::workspace::slot;
use crate::workspace::state::{Cause, Event, State};

/// Longest wait for an unary answer of a guest.
const GUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a guest may take to connect again before it counts as lost.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between looks at a container whose guest is awaited.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// How a slot was lost.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) cause: Cause,
    pub(super) message: String,
}

impl Actor {
    /// The guest's connection broke: the container died, or the guest will connect again.
    pub(super) async fn on_link_lost(&mut self) {
        self.link = None;
        let Some(id) = self.record.container_id.clone() else {
            return;
        };
        let was_warm = self.state == State::Ready;
        if was_warm {
            // Nobody gets it while it is not known what became of it.
            self.pool.withdraw(self.record.number);
        }
        let connected = match Socket::bind(&self.dir.join("run")) {
            Ok(socket) => self.await_guest(socket, &id, RECONNECT_TIMEOUT).await,
            Err(error) => {
                tracing::error!(error = %Chain(&error), "guest cannot connect again");
                let message = "the guest's connection broke".to_owned();
                Err(Loss {
                    cause: Cause::GuestLost,
                    message,
                })
            }
        };
        match connected {
            Ok(link) => {
                tracing::info!("guest connected again");
                self.link = Some(link);
                if was_warm {
                    self.pool.offer(self.record.number);
                }
            }
            Err(loss) => self.lose(loss.cause, loss.message, SystemTime::now()).await,
        }
    }

    /// Waits until the guest has connected, its container has ended, or `timeout` is over. A connection breaks before
    /// the engine knows that the container died, so this looks more than once.
    pub(super) async fn await_guest(
        &self,
        socket: Socket,
        container_id: &str,
        timeout: Duration,
    ) -> Result<Link, Loss> {
        let deadline = Instant::now() + timeout;
        let pid = self.running_pid(container_id).await?;
        let expected = self.context.expected(&self.record, pid);
        let accept = socket.accept(&expected);
        tokio::pin!(accept);
        loop {
            let look_again = deadline.min(Instant::now() + LOOK_INTERVAL);
            tokio::select! {
                link = &mut accept => return link.map_err(|error| {
                    tracing::error!(error = %Chain(&error), "guest's socket failed");
                    Loss { cause: Cause::GuestLost, message: "the guest's socket failed".to_owned() }
                }),
                () = tokio::time::sleep_until(look_again) => {
                    self.running_pid(container_id).await?;
                    if Instant::now() >= deadline {
                        let message = format!("the guest did not connect within {timeout:?}");
                        return Err(Loss { cause: Cause::GuestLost, message });
                    }
                }
            }
        }
    }

    /// The first process of a container that runs, or 0 if the engine does not say.
    async fn running_pid(&self, container_id: &str) -> Result<i32, Loss> {
        match self.context.engine.inspect(container_id).await {
            Ok(Some(state)) if state.running => Ok(state.pid),
            Ok(state) => Err(ended(state)),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "engine does not say how the container is");
                Ok(0)
            }
        }
    }

    /// The engine said that the container has ended.
    pub(super) async fn on_container_ended(&mut self, state: Option<ContainerState>) {
        if matches!(self.state, State::Ready | State::Claimed) {
            self.link = None;
            let loss = ended(state);
            self.lose(loss.cause, loss.message, SystemTime::now()).await;
        }
    }

    pub(super) async fn lose(&mut self, cause: Cause, message: String, time: SystemTime) {
        tracing::warn!(?cause, message, "slot is lost");
        let age = time.elapsed().unwrap_or_default();
        let retention = self.context.config.workspaces.failed_retention;
        self.failure = Some(Failure {
            cause,
            message,
            time,
        });
        self.retention = Some(Instant::now() + retention.saturating_sub(age));
        self.apply(Event::Lost(cause)).await;
    }

    /// How long nothing has run: zero while an exec does. `None` if the guest does not say.
    pub(super) async fn idle_time(&self) -> Option<Duration> {
        let mut guest = self.link.as_ref()?.client.clone();
        let request = pb::HelloRequest {
            generation: skilld_proto::guest::GENERATION,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let hello = tokio::time::timeout(GUEST_TIMEOUT, guest.hello(request)).await;
        let hello = hello.ok()?.ok()?.into_inner();
        if hello.running_execs > 0 {
            return Some(Duration::ZERO);
        }
        let since = hello
            .idle_time
            .and_then(|idle| Duration::try_from(idle).ok());
        Some(since.unwrap_or(Duration::MAX))
    }

    /// Runs the pool's program once, so that the first command finds it in the kernel's caches.
    pub(super) async fn warm_up(&self, link: &Link) -> Result<()> {
        let argv = self.pool.config().warm_up.clone();
        if argv.is_empty() {
            return Ok(());
        }
        let timeout = self.context.config.engine.boot_timeout;
        let request = pb::WarmUpRequest {
            argv,
            env: vec![
                format!("PATH={PATH}"),
                "HOME=/tmp".into(),
                "LANG=C.UTF-8".into(),
            ],
            timeout: timeout.try_into().ok(),
        };
        let mut guest = link.client.clone();
        // The guest ends it at the timeout; this is for a guest that does not.
        let warmed = tokio::time::timeout(timeout + GUEST_TIMEOUT, guest.warm_up(request)).await;
        let why = match warmed {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => "no answer in time".to_owned(),
        };
        let workspace = format!("slot {}", self.record.number);
        Err(Error::GuestLost {
            workspace,
            why: format!("warm_up did not end well: {why}"),
        })
    }

    /// Tells the guest which workspace it is. Doing it again changes nothing.
    pub(super) fn configure(
        &self,
        link: Link,
        claim: &Claim,
    ) -> impl Future<Output = Result<()>> + use<> {
        let request = slot::configure_request(&self.context, &claim.workspace);
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
}

fn ended(state: Option<ContainerState>) -> Loss {
    let (cause, message) = match state {
        None => (
            Cause::ContainerLost,
            "the container was removed by somebody else".to_owned(),
        ),
        Some(state) if state.oom_killed => {
            let code = state.exit_code;
            (
                Cause::OomKilled,
                format!("the container was killed for its memory, exit code {code}"),
            )
        }
        Some(state) => (
            Cause::ContainerLost,
            format!("the container ended, exit code {}", state.exit_code),
        ),
    };
    Loss { cause, message }
}
