//! Writes a file that the caller has into the session's workspace.

use bytes::Bytes;

use crate::tools::{Session, ToolError, Toolset, workspace_path};

/// Directories of the workspace that files may be written to.
const AREAS: [&str; 2] = ["work", "out"];
/// Description of these directories for errors.
const PLACE: &str = "work/ or out/, for instance work/inputs/data.csv";

impl Toolset {
    /// Writes one file into the session's workspace, which is created if it does not exist. A file of the same path is
    /// replaced. Returns the path relative to the workspace.
    ///
    /// # Errors
    /// [`ToolError::InvalidArguments`] if `path` does not name a file beneath `work/` or `out/`; otherwise the daemon's
    /// error.
    pub async fn write_file(
        &self,
        session: &Session,
        path: &str,
        data: impl Into<Bytes>,
    ) -> Result<String, ToolError> {
        let path = workspace_path::file_path(path, &AREAS, PLACE)?;
        let data = data.into();
        let (client, path_ref) = (&self.inner.client, path.as_str());
        let written = self.inner.workspaces.within(client, session, |workspace| {
            let data = data.clone();
            async move {
                client.stage_bytes(&workspace, path_ref, data).await?;
                Ok(())
            }
        });
        written.await?;
        Ok(path)
    }
}
