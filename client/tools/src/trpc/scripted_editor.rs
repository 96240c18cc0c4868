//! `editor_text`: files for a program that opens an editor. A script writes the text over the file that the program
//! names; each command has a script and a text of its own.

use std::collections::BTreeMap;
use std::io::Cursor;

use crate::call_context::ToolsetContext;
use crate::tool_error::{ToolError, ToolResult};
use skilld_client::{Error, UploadTarget};

/// Directory of the editor files of all commands.
const DIRECTORY: &str = "work/.skilld";

/// Stand-in for $EDITOR: a script in the workspace that overwrites the opened file with the given text.
pub(super) struct ScriptedEditor<'a> {
    text: &'a str,
    exec_id: &'a str,
}

impl<'a> ScriptedEditor<'a> {
    /// Creates the editor of a command; `None` without a text.
    pub(super) fn new(text: &'a str, exec_id: &'a str) -> Option<Self> {
        (!text.is_empty()).then_some(Self { text, exec_id })
    }

    /// Returns the environment of the command. The call must not set any of these variables.
    pub(super) fn environment(
        &self,
        given: &BTreeMap<String, String>,
    ) -> ToolResult<[(String, String); 2]> {
        for name in ["EDITOR", "VISUAL"] {
            if given.contains_key(name) {
                let problem = format!("editor_text cannot be combined with env.{name}");
                return Err(ToolError::arguments(problem));
            }
        }
        let script = format!("/workspace/{}", self.path("sh"));
        Ok([
            ("EDITOR".to_owned(), script.clone()),
            ("VISUAL".to_owned(), script),
        ])
    }

    /// Uploads text and script into the workspace, in one call.
    pub(super) async fn upload(&self, tools: &ToolsetContext, workspace: &str) -> ToolResult<()> {
        let (text, script) = (self.path("txt"), self.path("sh"));
        // The names are made here, of letters, digits, dots and dashes.
        let lines = format!(
            "#!/bin/sh\n\
             [ $# -gt 0 ] || {{ echo 'no file to edit' >&2; exit 2; }}\n\
             for file; do :; done\n\
             exec cat /workspace/{text} > \"$file\"\n"
        );
        let archive = build_archive(&[(&text, self.text, 0o644), (&script, &lines, 0o755)])?;
        let target = UploadTarget::tar(workspace, "");
        tools.client.upload(target, Cursor::new(archive)).await?;
        Ok(())
    }

    fn path(&self, extension: &str) -> String {
        format!("{DIRECTORY}/editor-{}.{extension}", self.exec_id)
    }
}

fn build_archive(files: &[(&str, &str, u32)]) -> Result<Vec<u8>, Error> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut append = || {
        for (path, text, mode) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(*mode);
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, path, text.as_bytes())?;
        }
        archive.finish()
    };
    let io = |source| Error::Io {
        path: DIRECTORY.into(),
        source,
    };
    append().map_err(io)?;
    archive.into_inner().map_err(io)
}
