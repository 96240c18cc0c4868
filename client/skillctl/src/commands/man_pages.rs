//! Hidden command `skillctl man-pages`: the manual pages that packages install.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

/// Write the manual pages of all commands to a directory.
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// Directory, which must exist.
    directory: PathBuf,
}

impl ManPages {
    pub(crate) fn run(&self, program: clap::Command) -> anyhow::Result<u8> {
        clap_mangen::generate_to(program, &self.directory).with_context(|| {
            format!("cannot write manual pages to {}", self.directory.display())
        })?;
        Ok(0)
    }
}
