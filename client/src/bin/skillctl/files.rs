//! `skillctl ls` and `skillctl cat`.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::v1::{
    FileEntry, FileType, ListFilesRequest, ListFilesResponse, ReadFileRequest,
};
use tokio::io::AsyncWriteExt;

use crate::context::Context;
use crate::output::Table;
use crate::{complete, json, values};

/// List a directory of a workspace.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl ls job-7 out -R")]
pub(crate) struct Ls {
    /// The workspace.
    #[arg(add = ArgValueCompleter::new(complete::workspaces))]
    id: String,
    /// The directory, relative to /workspace; /workspace itself if left out.
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Everything beneath it.
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Print a file of a workspace, byte for byte; with -o json its text and its base64.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl cat job-7 out/report.md | head -3")]
pub(crate) struct Cat {
    /// The workspace.
    #[arg(add = ArgValueCompleter::new(complete::workspaces))]
    id: String,
    /// The file, relative to /workspace.
    path: String,
    /// First byte to print.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// At most this many bytes; 0 means to the end.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    length: i64,
}

impl Ls {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let mut all = ListFilesResponse::default();
        let mut request = ListFilesRequest {
            workspace: self.id,
            path: self.path,
            recursive: self.recursive,
            page_size: 10_000,
            ..Default::default()
        };
        loop {
            let page = context.client.list_files(request.clone()).await?;
            all.files.extend(page.files);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let paths = |all: &ListFilesResponse| {
            let paths = all.files.iter().map(|file| file.path.clone());
            paths.collect()
        };
        context
            .output
            .list("ListFilesResponse", &all, paths, |all| {
                let mut table = Table::new(["MODE", "SIZE", "CHANGED", "PATH"]);
                for file in &all.files {
                    table.row([
                        mode(file),
                        file.size.to_string(),
                        values::time(file.mtime.as_ref()),
                        name(file),
                    ]);
                }
                table.text()
            })?;
        Ok(0)
    }
}

/// As in `ls -l`.
fn mode(file: &FileEntry) -> String {
    let kind = match file.r#type() {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::File => '-',
        FileType::Other | FileType::Unspecified => '?',
    };
    let bits = (0..9).map(|index| {
        let set = file.mode >> (8 - index) & 1 == 1;
        match (set, index % 3) {
            (false, _) => '-',
            (true, 0) => 'r',
            (true, 1) => 'w',
            (true, _) => 'x',
        }
    });
    std::iter::once(kind).chain(bits).collect()
}

/// As in `ls -F`.
fn name(file: &FileEntry) -> String {
    let slash = if file.r#type() == FileType::Directory {
        "/"
    } else {
        ""
    };
    if file.link_target.is_empty() {
        format!("{}{slash}", file.path)
    } else {
        format!("{} -> {}", file.path, file.link_target)
    }
}

impl Cat {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let path = self.path.clone();
        let request = ReadFileRequest {
            workspace: self.id,
            path: self.path,
            offset: self.offset,
            length: self.length,
        };
        let mut file = context.client.read_file(request).await?;
        if context.output.is_json() {
            let mut contents = FileContents::default();
            while let Some(data) = file.next().await? {
                contents.add(&data)?;
            }
            return contents.print(context, &path);
        }
        let mut stdout = tokio::io::stdout();
        while let Some(data) = file.next().await? {
            stdout.write_all(&data).await?;
        }
        stdout.flush().await?;
        Ok(0)
    }
}

/// Bytes of a file that one JSON object holds at most.
const JSON_FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A file's bytes on their way into a JSON object.
#[derive(Debug, Default)]
pub(crate) struct FileContents(Vec<u8>);

impl FileContents {
    /// Adds bytes at the end.
    ///
    /// # Errors
    ///
    /// Fails where the file is too large for one JSON object.
    pub(crate) fn add(&mut self, data: &[u8]) -> anyhow::Result<()> {
        if self.0.len() + data.len() > JSON_FILE_BYTES_MAX {
            anyhow::bail!(
                "the file has more than {}: leave out -o json, or read a part with --length",
                values::bytes(JSON_FILE_BYTES_MAX as u64)
            );
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// Prints `{"path": …, "text": …, "base64": …}`.
    pub(crate) fn print(&self, context: &Context, path: &str) -> anyhow::Result<u8> {
        let (text, base64) = json::from_bytes(&self.0);
        context
            .output
            .value(&json!({"path": path, "text": text, "base64": base64}))?;
        Ok(0)
    }
}
