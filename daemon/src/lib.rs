//! Daemon skilld: runs Agent Skills in warm, locked-down containers.
//!
//! Modules in reading order, each of which may use those below it:
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | listener, connections, health, reflection, the order of start and stop |
//! | [`rpc`] | gRPC services, one file each; `rpc/convert/` validates all requests |
//! | [`collect`] | collections of files as artifacts |
//! | [`inputs`] | files by reference, staged from their source into a workspace |
//! | [`environments`] | packages that skills need beyond their image: finds built ones, builds missing ones |
//! | [`exec_launch`] | preparation of an exec's start in its workspace: script, command, environment, quota |
//! | [`workspace`] | life of a slot: state table, one task per slot, record on disk, registry of names |
//! | [`exec`] | resolution of a command: argv, environment, working directory, effective limits |
//! | [`workspace_paths`] | lexical rules for paths in a workspace |
//! | [`skills`], [`fetch`], [`fault`] | the crate skilld-skills: parsing, sources, the content-addressed store, the catalogue; the HTTP client; fault points for tests |
//! | [`artifacts`] | named bytes with versions, in a directory or a bucket |
//! | [`audit`] | the audit log: a chained line for each decision |
//! | [`pool`] | warm slots, refill after a claim, the bounded queue |
//! | [`doctor`] | checks of the host and the configuration, for operators |
//! | [`guest`] | connection to one guest: socket, handshake, channel |
//! | [`engine`] | container engine: Docker, or a fake for tests |
//! | [`access`] | who may do what: credentials, principals, roles, tenants |
//! | [`usage`] | what tenants have used, since the start and per day |
//! | [`metrics`] | what is counted and measured for operators |
//! | [`config`], [`error`], [`shutdown`], [`telemetry`] | leaves that every module uses |
//! | `fuzz` | hostile bytes for tests |

pub mod access;
pub mod artifacts;
pub mod audit;
pub mod collect;
pub mod config;
pub mod doctor;
pub mod engine;
pub mod environments;
pub mod error;
pub mod exec;
pub mod exec_launch;
// The fuzz targets are a module of this crate, because the parsers that they call are private.
#[cfg(any(test, feature = "fuzz"))]
#[path = "../fuzz/targets.rs"]
pub mod fuzz;
pub mod guest;
mod host_paths;
pub mod inputs;
pub mod metrics;
pub mod pool;
pub mod rpc;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod usage;
pub mod workspace;
pub mod workspace_paths;

pub use skilld_skills as skills;
pub use skilld_skills::{fault, fetch};
pub(crate) use skilld_skills::{name_similarity, openat2};
