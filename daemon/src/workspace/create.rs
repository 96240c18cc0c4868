//! How a request becomes a workspace.
//!
//! Of a request and its retries one makes the workspace and the others wait for it. Making runs in a task of its own: a caller
//! that goes away ends the wait for a slot, but never half a claim, which would be nobody's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::Limits;
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::pool::{Pool, Reserved};
use crate::workspace::directory::{Entered, Making};
use crate::workspace::lease::unix_ms;
use crate::workspace::record::Claim;
use crate::workspace::registry::Registry;
use crate::workspace::state::State;
use crate::workspace::{Workspace, WorkspaceId};

/// A checked request for a workspace.
#[derive(Debug, Clone)]
pub struct Create {
    /// Chosen by the client or made by the server.
    pub id: WorkspaceId,
    /// The client chose the id, and can find the workspace by it.
    pub named: bool,
    /// The same for a request and its retries, and for no other request.
    pub request: String,
    /// Name of the pool; `None` means the default one.
    pub pool: Option<String>,
    /// As given.
    pub labels: BTreeMap<String, String>,
    /// For every exec.
    pub env: BTreeMap<String, String>,
    /// Effective.
    pub idle_timeout: Duration,
    /// Effective, from now.
    pub lifetime: Duration,
    /// Asked for; zero means the pool's.
    pub limits: Limits,
    /// Return what has this id, whoever made it.
    pub allow_existing: bool,
}

impl Registry {
    /// Claims a warm slot, or finds the workspace that this request made before.
    ///
    /// # Errors
    /// As `CreateWorkspace` says.
    pub async fn create(&self, create: Create) -> Result<Workspace> {
        let pool = Arc::clone(self.pool(create.pool.as_deref())?);
        let limits = effective(create.limits, pool.config().limits)?;
        let context = self.context();
        let max = context.config.workspaces.workspaces_max;
        loop {
            if context.tasks.drain.is_cancelled() {
                return Err(Error::Draining);
            }
            let entry = match context.directory.enter(&create.id, &create.request, max)? {
                Entered::New(making) => return self.start(pool, create, limits, making).await,
                Entered::There(entry) => entry,
            };
            let ending = entry.workspace().filter(|there| {
                matches!(
                    there.view().state,
                    State::Closing | State::Quarantined | State::Removed
                )
            });
            if let Some(there) = ending {
                // Its name is free in a moment, unless the engine is away.
                let timeout = pool.config().claim_timeout;
                if tokio::time::timeout(timeout, there.removed())
                    .await
                    .is_err()
                {
                    let (name, state) = (create.id.name(), "closing".to_owned());
                    return Err(Error::WorkspaceNotReady { name, state });
                }
                continue;
            }
            if entry.request != create.request && !create.allow_existing {
                return Err(Error::IdTaken {
                    name: create.id.name(),
                });
            }
            if let Some(made) = entry.made().await {
                return Ok(made);
            }
            // Whoever made it gave up: this request's turn.
        }
    }

    async fn start(
        &self,
        pool: Arc<Pool>,
        create: Create,
        limits: Limits,
        making: Making,
    ) -> Result<Workspace> {
        let (answer, result) = oneshot::channel();
        let gone = CancellationToken::new();
        let caller = gone.clone().drop_guard();
        self.context().tasks.spawn(async move {
            fault::reach(Point::ClaimEntered);
            let made = make(&pool, &create, limits, &gone).await;
            if let Ok(workspace) = &made {
                making.done(workspace);
                fault::reach(Point::ClaimListed);
            } else {
                drop(making);
            }
            if let Err(Ok(workspace)) = answer.send(made)
                && !create.named
            {
                // Nobody knows its name.
                tracing::info!(workspace_id = %workspace.id(), "deleting a workspace whose caller went away");
                if let Err(error) = workspace.delete().await {
                    tracing::warn!(error = %Chain(&error), "it goes later");
                }
            }
        });
        let made = result
            .await
            .map_err(|_| Error::Internal("creation ended without an answer".into()))?;
        drop(caller);
        made
    }
}

/// Claims slots until one was still alive.
async fn make(
    pool: &Arc<Pool>,
    create: &Create,
    limits: Limits,
    gone: &CancellationToken,
) -> Result<Workspace> {
    loop {
        let reserved = tokio::select! {
            reserved = reserve(pool, limits) => reserved?,
            () = gone.cancelled() => return Err(Error::Deadline { doing: "waiting for a container" }),
        };
        let slot = reserved.take()?;
        fault::reach(Point::ClaimReserved);
        let claimed = slot.claim(claim(create)).await;
        let view = slot.view();
        if claimed.is_err()
            && view.state == State::Ready
            && view.record.limits == pool.config().limits
        {
            // It is as warm as before: what failed was the host's disk, not the container.
            pool.give_back(&slot);
        } else if let Err(error) = &claimed {
            tracing::info!(workspace_id = %create.id, error = %Chain(error), "slot was lost at its claim");
            if let Err(error) = slot.delete().await {
                tracing::warn!(slot = slot.number(), error = %Chain(&error), "it goes later");
            }
        }
        match claimed {
            Err(Error::WorkspaceNotReady { .. } | Error::GuestLost { .. }) => {}
            claimed => return claimed,
        }
    }
}

async fn reserve(pool: &Arc<Pool>, limits: Limits) -> Result<Reserved> {
    if limits == pool.config().limits {
        pool.claim().await
    } else {
        pool.claim_sized(limits).await
    }
}

fn claim(create: &Create) -> Claim {
    let now = SystemTime::now();
    Claim {
        workspace: create.id.as_str().to_owned(),
        request: create.request.clone(),
        labels: create.labels.clone(),
        env: create.env.clone(),
        create_time_ms: unix_ms(now),
        idle_timeout_ms: u64::try_from(create.idle_timeout.as_millis()).unwrap_or(u64::MAX),
        end_time_ms: unix_ms(now + create.lifetime),
        skills: BTreeMap::new(),
        inputs: Vec::new(),
    }
}

/// The pool's limits with those of the request in their place. Only smaller ones can be enforced: the pool's are what
/// the host was planned for.
fn effective(asked: Limits, pool: Limits) -> Result<Limits> {
    let pick = |field: &str, asked: u64, pool: u64| match asked {
        0 => Ok(pool),
        _ if asked <= pool => Ok(asked),
        _ => Err(Error::LimitUnsupported {
            field: format!("limits.{field}"),
            why: format!("the pool's limit is {pool}, asked for is {asked}"),
        }),
    };
    let limits = Limits {
        memory_bytes: pick("memory_bytes", asked.memory_bytes, pool.memory_bytes)?,
        cpu_millis: pick("cpu_millis", asked.cpu_millis, pool.cpu_millis)?,
        pids: pick("pids", asked.pids, pool.pids)?,
        disk_bytes: pick("disk_bytes", asked.disk_bytes, pool.disk_bytes)?,
        inodes: pick("inodes", asked.inodes, pool.inodes)?,
    };
    if limits.disk_bytes >= limits.memory_bytes {
        // The workspace is memory: one that cannot be filled without killing what fills it has no limit.
        return Err(Error::LimitUnsupported {
            field: "limits.disk_bytes".to_owned(),
            why: format!(
                "the workspace counts in its memory, so {} bytes of disk need more than {} bytes of memory",
                limits.disk_bytes, limits.memory_bytes
            ),
        });
    }
    Ok(limits)
}
