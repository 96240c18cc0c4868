//! Writes a file that the caller has into the session's workspace.

use bytes::Bytes;

use crate::tools::{Session, ToolError, Toolset};

/// Directories of the workspace that files may be written to.
const AREAS: [&str; 2] = ["work", "out"];

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
        let (path, data) = (destination(path)?, data.into());
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

/// Normalises a path to one relative to the workspace, beneath `work/` or `out/`. `inputs/` is `work/inputs/`.
fn destination(given: &str) -> Result<String, ToolError> {
    let refused = |why: &str| ToolError::arguments(format!("path {given:?} {why}"));
    let text = given.trim();
    let text = text.strip_prefix("workspace://").unwrap_or(text);
    let text = text.strip_prefix("/workspace/").unwrap_or(text);
    if text.ends_with('/') {
        return Err(refused("is a folder, not a file"));
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if parts.contains(&"..") {
        return Err(refused("must not contain .."));
    }
    match parts.split_first() {
        Some((&"inputs", [_, ..])) => Ok(format!("work/{}", parts.join("/"))),
        Some((area, [_, ..])) if AREAS.contains(area) => Ok(parts.join("/")),
        _ => Err(refused(
            "must be a file beneath work/ or out/, for instance work/inputs/data.csv",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_beneath_work_or_out_and_nowhere_else() {
        for (given, wanted) in [
            ("work/a.txt", "work/a.txt"),
            (" workspace://out/./a//b ", "out/a/b"),
            ("/workspace/out/a", "out/a"),
            ("inputs/a", "work/inputs/a"),
        ] {
            assert_eq!(destination(given).ok().as_deref(), Some(wanted), "{given}");
        }
        for given in [
            "",
            "a",
            "out",
            "out/",
            "out/a/",
            "skills/x/SKILL.md",
            "runs/x/a",
            "../out/a",
            "out/../../a",
            "/etc/passwd",
            "metadata.json",
        ] {
            assert!(destination(given).is_err(), "{given:?}");
        }
    }
}
