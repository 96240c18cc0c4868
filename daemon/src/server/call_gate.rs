//! Gate before every call: authorises it, or refuses and records it. `audited_body.rs` records an admitted call once
//! the first message of its request has arrived, which names the object.

use std::sync::Arc;

use http::Request;
use http::header::AUTHORIZATION;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tracing::Span;

use super::call_audit::{AuditEndGuard, CallAudit};
use super::connections::ConnectionHandle;
use super::methods::{AuditClass, MethodProperties};
use super::refusal_table::{RefusalTable, RefusedCalls};
use crate::access::{
    AccessControl, CallCredentials, Caller, CredentialKind, MethodAccess, Principal, StreamGuard,
    TenantName,
};
use crate::audit::AuditLog;
use crate::error::{Error, reason_of};
use crate::telemetry::trace_span::{self, PRINCIPAL_ATTRIBUTE};
use crate::usage::{ByteMeter, UsageLedger};

/// Decides which calls may begin.
#[derive(Debug)]
pub(super) struct CallGate {
    access: Arc<AccessControl>,
    /// `None` without an audit log.
    audit: Option<AuditLog>,
    refusals: Arc<RefusalTable>,
    usage: UsageLedger,
}

/// Call that asks to be admitted.
pub(super) struct CallRequest<'a> {
    pub(super) path: &'a str,
    pub(super) method: MethodProperties,
    pub(super) request_id: &'a str,
}

/// Call that may begin.
pub(super) struct AdmittedCall {
    /// Entry among the open streams; `None` for a call that is no stream.
    pub(super) stream: Option<StreamGuard>,
    /// Record of the call's end; `None` without an audit log, and for health and reflection.
    pub(super) audit: Option<AuditEndGuard>,
    /// Counts the bytes of the call; `None` for a method that needs no principal.
    pub(super) meter: Option<Arc<ByteMeter>>,
    /// Tenant of the call; `None` for a method that needs no principal.
    pub(super) tenant: Option<TenantName>,
}

/// Answer to a call that may not begin.
#[derive(Debug)]
pub(super) struct CallRefusal {
    pub(super) status: Status,
    /// `true` if the answer waits for [`CallGate::delay_refusal`].
    pub(super) is_delayed: bool,
}

impl CallGate {
    /// Makes the gate. `refusals` takes the records of refused calls, `usage` the bytes of others.
    pub(super) fn new(
        access: Arc<AccessControl>,
        audit: Option<AuditLog>,
        (refusals, usage): (Arc<RefusalTable>, UsageLedger),
    ) -> Self {
        Self {
            access,
            audit,
            refusals,
            usage,
        }
    }

    /// Decides whether a call may begin. Afterwards the request's extensions hold the principal and the caller. A
    /// refusal goes to the log and to the audit log.
    pub(super) fn admit(
        &self,
        request: &mut Request<Body>,
        connection: Option<&ConnectionHandle>,
        call: &CallRequest<'_>,
    ) -> Result<AdmittedCall, CallRefusal> {
        let peer = connection.map(|connection| Arc::clone(&connection.peer));
        let authorized = self.authorize(request, connection, call.method);
        let principal = request.extensions().get::<Arc<Principal>>().cloned();
        let caller = request.extensions().get::<Caller>().cloned();
        let make_audit = |log: &AuditLog| {
            Arc::new(CallAudit::new(
                log,
                (call.path, call.method),
                call.request_id,
                request.headers(),
                peer.as_deref(),
                principal.as_deref(),
            ))
        };
        // A connection beyond a quota counts for no tenant, so it stays one of those that are closed first.
        if let Some(connection) = connection.filter(|_| authorized.is_ok() && caller.is_some()) {
            connection.set_authenticated();
        }
        let checked = authorized.and_then(|stream| {
            let is_recorded = call.method.audit != AuditClass::Unrecorded;
            let audit = self.audit.as_ref().filter(|_| is_recorded).map(make_audit);
            if let Some(audit) = &audit {
                audit.check_writable()?;
            }
            Ok((stream, audit))
        });
        match checked {
            Ok((stream, audit)) => Ok(AdmittedCall {
                stream,
                audit: audit.map(AuditEndGuard::new),
                meter: caller
                    .as_ref()
                    .map(|caller| self.usage.meter(caller.tenant())),
                tenant: caller.map(|caller| caller.tenant().clone()),
            }),
            Err(error) => {
                tracing::info!(%error, "refused a call");
                let has_credential = !matches!(error, Error::Unauthenticated { .. });
                let status = Status::from(error);
                let key = principal.as_ref().map(|principal| {
                    (
                        principal.via,
                        principal.tenant.clone(),
                        principal.id.clone(),
                    )
                });
                let refused = RefusedCalls {
                    peer: peer.as_ref().map(|peer| (peer.address.owner(), key)),
                    reason: reason_of(&status),
                };
                let make_record = || Some(make_audit(self.audit.as_ref()?).refusal_record(&status));
                let is_flood = self.refusals.count(refused, make_record);
                let is_delayed = is_flood && !has_credential;
                Err(CallRefusal { status, is_delayed })
            }
        }
    }

    /// Waits before the answer to a refused call that is one of many. Ends early at `stop`.
    pub(super) async fn delay_refusal(&self, stop: &CancellationToken) {
        self.refusals.delay(stop).await;
    }

    /// Authenticates and authorises a call, and counts it against the rate, the connections and the streams of its
    /// tenant. Returns the guard of a stream, which ends when its credentials are no longer valid.
    fn authorize(
        &self,
        request: &mut Request<Body>,
        connection: Option<&ConnectionHandle>,
        method: MethodProperties,
    ) -> Result<Option<StreamGuard>, Error> {
        let role = match method.access {
            MethodAccess::Open => return Ok(None),
            MethodAccess::Role(role) => role,
            MethodAccess::Undeclared => {
                return Err(Error::Internal("a method declares no role".into()));
            }
        };
        let peer = connection.map(|connection| Arc::clone(&connection.peer));
        let credentials = CallCredentials::new(peer, request.headers());
        // The secret has served its purpose; no handler sees it.
        request.headers_mut().remove(AUTHORIZATION);
        let principal = self.access.authenticate(&credentials)?;
        request.extensions_mut().insert(Arc::clone(&principal));
        trace_span::set_attribute(PRINCIPAL_ATTRIBUTE, || principal.id.clone());
        let is_known = principal.via != CredentialKind::None;
        let span = Span::current();
        if is_known {
            span.record("principal", principal.id.as_str());
        }
        let authorized = self
            .access
            .authorize(&credentials, Arc::clone(&principal), role);
        if let Ok(caller) = &authorized {
            trace_span::set_attribute("skilld.tenant", || caller.tenant().as_str().to_owned());
            if is_known {
                span.record("tenant", caller.tenant().as_str());
            }
            request.extensions_mut().insert(caller.clone());
        }
        // Refused calls take part of their tenant's rate too, unless the credential is no longer valid.
        if !matches!(authorized, Err(Error::Unauthenticated { .. })) {
            self.access.count_request(&principal)?;
        }
        let caller = authorized?;
        if method.audit == AuditClass::Change {
            self.access.require_configured_tenant(&caller)?;
        }
        if let Some(connection) = connection {
            let take = || self.access.take_connection(&principal);
            connection.count_for(&principal.tenant, take)?;
        }
        match method.client_streams || method.server_streams {
            true => {
                let cut = connection.and_then(ConnectionHandle::cut);
                self.access.open_stream(&caller, credentials, role, cut)
            }
            false => Ok(None),
        }
    }
}
