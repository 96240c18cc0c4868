//! `--memory`, `--disk` and `--cpus`: the size of a new workspace.

use clap::Args;
use skilld_client::v1::WorkspaceLimits;

use crate::output::value_formats;

/// Sizes of a workspace. What is left out is as the pool has it, which is also the maximum.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct WorkspaceLimitArgs {
    /// Memory of its processes and files together, at most the pool's.
    #[arg(long, value_name = "SIZE", value_parser = value_formats::parse_size)]
    memory: Option<i64>,
    /// Size of its files, at most the pool's and less than its memory.
    #[arg(long, value_name = "SIZE", value_parser = value_formats::parse_size)]
    disk: Option<i64>,
    /// Processor cores, at most the pool's: 2, 0.5.
    #[arg(long, value_name = "N", value_parser = value_formats::parse_cpus)]
    cpus: Option<i64>,
}

impl WorkspaceLimitArgs {
    /// Returns the limits of the request; `None` if the pool decides all of them.
    pub(crate) fn request(&self) -> Option<WorkspaceLimits> {
        let limits = WorkspaceLimits {
            memory_bytes: self.memory.unwrap_or_default(),
            cpu_millis: self.cpus.unwrap_or_default(),
            disk_bytes: self.disk.unwrap_or_default(),
            ..WorkspaceLimits::default()
        };
        (limits != WorkspaceLimits::default()).then_some(limits)
    }
}
