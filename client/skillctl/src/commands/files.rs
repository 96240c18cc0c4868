//! `skillctl ls` and `skillctl cat`: lists and prints files of a workspace.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::Client;
use skilld_client::v1::{FileEntry, FileType, ListFilesRequest, ReadFileRequest};

use crate::commands::complete;
use crate::output::download::print_download;
use crate::output::{self, value_formats};

/// List a directory of a workspace.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl ls job-7 out -R")]
pub(crate) struct Ls {
    /// Workspace whose files are listed.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// The directory, relative to /workspace; /workspace itself if left out.
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// List everything beneath it.
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Print a file of a workspace, byte for byte; with -o json its text and its base64.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl cat job-7 out/report.md | head -3")]
pub(crate) struct Cat {
    /// Workspace to read from.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// The file, relative to /workspace.
    path: String,
    /// First byte to print.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// Maximum number of bytes; 0 reads to the end.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = value_formats::parse_size)]
    length: i64,
}

impl Ls {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListFilesRequest {
            parent: self.id,
            path: self.path,
            recursive: self.recursive,
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        let header = ["MODE", "SIZE", "CHANGED", "PATH"];
        let id = |file: &FileEntry| file.path.clone();
        let row = |file: &FileEntry| {
            [
                file_mode(file),
                file.size_bytes.to_string(),
                value_formats::format_time(file.modify_time.as_ref()),
                file_name(file),
            ]
        };
        output::print_list(&all, &all.files, id, header, row)
    }
}

/// Returns type and permission bits of a file in the form of `ls -l`: `drwxr-xr-x`.
fn file_mode(file: &FileEntry) -> String {
    let kind = match file.file_type() {
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

/// Returns the path of a file as `ls -F` prints it: a slash after a directory, the target after a link.
fn file_name(file: &FileEntry) -> String {
    let slash = if file.file_type() == FileType::Directory {
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
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let path = self.path.clone();
        let request = ReadFileRequest {
            workspace: self.id,
            path: self.path,
            offset: self.offset,
            length: self.length,
        };
        print_download(client.read_file(request).await?, &path).await
    }
}
