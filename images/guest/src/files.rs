//! Everything beneath the workspace, by descriptor. The guest has the tenant's uid and sits in the
//! tenant's mounts, so the worst that a hostile link could reach is what the tenant reads anyway; `root`
//! keeps it from reaching even that.

pub(crate) mod root;
