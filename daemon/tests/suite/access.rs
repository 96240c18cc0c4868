//! Tests of identities and roles over real sockets, with the fake engine: who may call what, and what ends when a
//! credential does.

mod auditing;
mod builds;
mod byte_quotas;
mod doctor;
mod effects;
mod fetches;
mod foreign_names;
mod harness;
mod held_quotas;
mod matrix;
mod metrics;
mod metrics_listener;
mod quotas;
mod rotation;
mod run_policies;
mod skills;
mod slow_uploads;
mod streams;
mod tenants;
mod tls;
mod usage;
mod workspace_tokens;
mod written_bytes;
