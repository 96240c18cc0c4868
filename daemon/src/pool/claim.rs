//! How requests get a slot: at once, from the queue, or made for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Inner, MemberPhase, Pool, Reserved};
use crate::engine::Limits;
use crate::error::{Error, Result};

/// When to try again: about the time that a boot takes.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Pool {
    /// Takes a warm slot, or waits in the queue for one.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] when the queue is full or the wait is over; [`Error::EngineUnavailable`] when there is
    /// none and none can be made.
    pub async fn claim(self: &Arc<Self>) -> Result<Reserved> {
        let waiting = {
            let mut inner = self.lock();
            let reserved = self.pop_warm(&mut inner);
            if reserved.is_none() {
                self.may_wait(&inner)?;
            }
            match reserved {
                Some(reserved) => Ok(reserved),
                None => {
                    let (sender, receiver) = oneshot::channel();
                    inner.waiters.retain(|waiter| !waiter.is_closed());
                    inner.waiters.push_back(sender);
                    Err(receiver)
                }
            }
        };
        self.fill();
        let receiver = match waiting {
            Ok(reserved) => return Ok(reserved),
            Err(receiver) => receiver,
        };
        let timeout = self.config.claim_timeout;
        match tokio::time::timeout(timeout, receiver).await {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(_)) => {
                let inner = self.lock();
                if inner.closed {
                    return Err(Error::Draining);
                }
                Err(self.exhausted(&inner, "none can be made"))
            }
            Err(_) => Err(self.exhausted(&self.lock(), &format!("none came within {timeout:?}"))),
        }
    }

    /// Makes a slot of another size than the pool's, for one request.
    ///
    /// # Errors
    /// As [`Pool::claim`], or the pool is at its maximum.
    pub async fn claim_sized(self: &Arc<Self>, limits: Limits) -> Result<Reserved> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut inner = self.lock();
            self.may_wait(&inner)?;
            if inner.occupied() >= self.config.max {
                return Err(self.exhausted(&inner, "it is at its maximum"));
            }
            self.boot(&mut inner, limits, Some(sender))?;
        }
        let timeout = self.config.claim_timeout;
        match tokio::time::timeout(timeout, receiver).await {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(_)) => Err(self.exhausted(&self.lock(), "the container did not start")),
            Err(_) => {
                Err(self.exhausted(&self.lock(), &format!("it took longer than {timeout:?}")))
            }
        }
    }

    fn pop_warm(self: &Arc<Self>, inner: &mut Inner) -> Option<Reserved> {
        let number = inner.warm.pop_front()?;
        let member = inner.members.get_mut(&number)?;
        member.phase = MemberPhase::Taken;
        let slot = Some(member.slot.clone());
        Some(Reserved {
            slot,
            pool: Arc::clone(self),
            common: true,
        })
    }

    fn may_wait(&self, inner: &Inner) -> Result<()> {
        if inner.closed {
            return Err(Error::Draining);
        }
        if inner
            .problem
            .as_ref()
            .is_some_and(|problem| problem.engine_away)
        {
            return Err(self.exhausted(inner, "none is warm"));
        }
        let waiting = inner
            .waiters
            .iter()
            .filter(|waiter| !waiter.is_closed())
            .count();
        if waiting >= self.config.queue_max {
            return Err(self.exhausted(inner, "its queue is full"));
        }
        Ok(())
    }

    /// Why there is none. What exactly went wrong is the operator's business: GetProblems and the log have it.
    fn exhausted(&self, inner: &Inner, why: &str) -> Error {
        let why = match &inner.problem {
            Some(problem) if problem.engine_away => {
                let message = "no container can be made until it is back".to_owned();
                return Error::EngineUnavailable { message };
            }
            Some(_) => {
                format!("{why}; the last one did not start, and the server's problems say why")
            }
            None if inner.occupied() >= self.config.max => {
                format!("{why}; all {} that it may have are in use", self.config.max)
            }
            None => why.to_owned(),
        };
        Error::PoolExhausted {
            pool: self.config.name.clone(),
            why,
            retry_after: RETRY_AFTER,
        }
    }
}
