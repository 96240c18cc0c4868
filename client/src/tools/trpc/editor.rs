//! `editor_text`: what a program gets that opens an editor. A script writes the text over the file that it is given;
//! each command has its own.

use std::collections::BTreeMap;
use std::io::Cursor;

use crate::tools::{Inner, ToolError};
use crate::{Error, StageTarget};

/// Where the files of all commands are.
const DIRECTORY: &str = "work/.skilld";

/// A text and the command that it is for.
pub(super) struct Editor<'a> {
    pub(super) text: &'a str,
    pub(super) exec: &'a str,
}

impl Editor<'_> {
    /// The environment of the command; none of it may be given already.
    pub(super) fn environment(
        &self,
        given: &BTreeMap<String, String>,
    ) -> Result<[(String, String); 2], ToolError> {
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

    /// Puts text and script into the workspace, in one call.
    pub(super) async fn stage(&self, tools: &Inner, workspace: &str) -> Result<(), ToolError> {
        let (text, script) = (self.path("txt"), self.path("sh"));
        // The names are made here, of letters, digits, dots and dashes.
        let lines = format!(
            "#!/bin/sh\n\
             [ $# -gt 0 ] || {{ echo 'no file to edit' >&2; exit 2; }}\n\
             for file; do :; done\n\
             exec cat /workspace/{text} > \"$file\"\n"
        );
        let archive = archive(&[(&text, self.text, 0o644), (&script, &lines, 0o755)])?;
        let target = StageTarget::tar(workspace, "");
        tools.client.stage(target, Cursor::new(archive)).await?;
        Ok(())
    }

    fn path(&self, extension: &str) -> String {
        format!("{DIRECTORY}/editor-{}.{extension}", self.exec)
    }
}

fn archive(files: &[(&str, &str, u32)]) -> Result<Vec<u8>, Error> {
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
