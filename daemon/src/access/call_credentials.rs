//! Credentials of one call, as they arrived: the peer of its connection and two headers.

use std::hash::Hash;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

use super::connection_peer::ConnectionPeer;
use super::tenant_name::TenantName;
use crate::error::{Error, Result};

/// Header with which an admin names the tenant that a request means.
pub(crate) const TENANT_HEADER: &str = "skilld-tenant";
/// Scheme of the authorization header, with the space after it.
const BEARER: &str = "bearer ";

/// Credentials of a call. `Debug` shows no secret.
#[derive(Clone, Default)]
pub struct CallCredentials {
    pub(super) peer: Option<Arc<ConnectionPeer>>,
    authorization: Option<HeaderValue>,
    tenant: Option<HeaderValue>,
    /// `true` if one of the headers is given twice.
    repeated: bool,
}

/// Token of an authorization header.
pub struct BearerToken<'a>(&'a str);

impl std::fmt::Debug for CallCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallCredentials({:?})", self.peer)
    }
}

impl std::fmt::Debug for BearerToken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken")
    }
}

impl BearerToken<'_> {
    /// Returns the token, which is a secret.
    pub(super) fn as_str(&self) -> &str {
        self.0
    }
}

impl CallCredentials {
    /// Copies the credentials of a call from its connection and its headers.
    pub fn new(peer: Option<Arc<ConnectionPeer>>, headers: &HeaderMap) -> Self {
        let is_repeated = |name: &str| headers.get_all(name).iter().nth(1).is_some();
        Self {
            peer,
            authorization: headers.get(AUTHORIZATION).cloned(),
            tenant: headers.get(TENANT_HEADER).cloned(),
            repeated: is_repeated(AUTHORIZATION.as_str()) || is_repeated(TENANT_HEADER),
        }
    }

    /// Returns what is equal for calls of one connection with the same headers, as long as one of them is open.
    pub(super) fn identity(&self) -> impl Eq + Hash + use<> {
        let peer = self.peer.as_ref().map(|peer| Arc::as_ptr(peer).addr());
        (
            peer,
            self.authorization.clone(),
            self.tenant.clone(),
            self.repeated,
        )
    }

    /// Returns the token of the authorization header; `None` without the header.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] if the header is malformed or repeated.
    pub(super) fn bearer(&self) -> Result<Option<BearerToken<'_>>> {
        let refused = |why: &str| Error::Unauthenticated {
            why: why.to_owned(),
        };
        if self.repeated {
            return Err(refused(
                "the header authorization or skilld-tenant is given twice",
            ));
        }
        let Some(value) = &self.authorization else {
            return Ok(None);
        };
        let text = value.to_str().ok();
        let split = text.and_then(|text| text.split_at_checked(BEARER.len()));
        let token = split.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(BEARER));
        let (_, token) = token
            .ok_or_else(|| refused("the authorization header is not of the form `Bearer TOKEN`"))?;
        Ok(Some(BearerToken(token.trim())))
    }

    /// Returns the tenant that the request names; `None` if it names none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not a tenant's name.
    pub(super) fn named_tenant(&self) -> Result<Option<TenantName>> {
        let Some(value) = &self.tenant else {
            return Ok(None);
        };
        let text = value.to_str().unwrap_or_default();
        let name = TenantName::parse(text);
        name.map(Some)
            .map_err(|why| Error::invalid(TENANT_HEADER, why))
    }
}
