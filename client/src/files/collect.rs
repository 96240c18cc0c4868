//! Collected files written into a local directory.

use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{
    CollectFormat, CollectOutputsRequest, CollectSummary, CollectedFile, FileEnd,
};

use crate::files::beneath::{Beneath, Pending, Placed, Refusal};
use crate::{Client, Error, Progress};

/// What came and what did not.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Files written, in the order of their paths in the workspace.
    pub files: Vec<PathBuf>,
    /// Symbolic links made.
    pub links: Vec<CollectedLink>,
    /// What was not written, and why.
    pub refused: Vec<Refused>,
    /// Bytes written.
    pub bytes: u64,
    /// The server's own account: what was cut and what was left out.
    pub summary: CollectSummary,
}

/// A symbolic link that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedLink {
    /// In the workspace, and beneath the target directory.
    pub path: String,
    /// Where it points.
    pub target: String,
}

/// Something that came and was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In the workspace.
    pub path: String,
    /// Why.
    pub problem: String,
    /// A local directory has its name: it can be had by collecting elsewhere. A link that leads out cannot.
    pub in_the_way: bool,
}

impl Client {
    /// Collects into a directory, which is made if it is not there. Each file gets its name when all of it
    /// has come and its sha256 is right; files of the same name are replaced. A name that leads out of the
    /// directory, or through a link, ends the call with an error; a link that leads out, and what has the name of a local
    /// directory, is left out.
    pub async fn collect_to_dir(
        &self,
        mut request: CollectOutputsRequest,
        dir: &Path,
        progress: Progress,
    ) -> Result<Collected, Error> {
        if let Some(spec) = &mut request.spec {
            spec.set_format(CollectFormat::Files);
        }
        let mut messages = self.collect(request).await?;
        let mut writer = Writer {
            beneath: Beneath::open(dir).await?,
            current: None,
            collected: Collected::default(),
        };
        while let Some(message) = messages.next().await? {
            match message.payload {
                Some(Payload::File(file)) => writer.begin(file).await?,
                Some(Payload::Data(data)) => {
                    writer.write(&data).await?;
                    progress.tell(writer.collected.bytes, None);
                }
                Some(Payload::FileEnd(end)) => writer.end(&end).await?,
                Some(Payload::Summary(summary)) => {
                    writer.collected.summary = summary;
                    return writer.done();
                }
                // Of a newer server.
                None => {}
            }
        }
        Err(Error::protocol("it ended the files without a summary"))
    }
}

/// Where the stream has got to.
struct Writer {
    beneath: Beneath,
    current: Option<Current>,
    collected: Collected,
}

/// The file that bytes go to.
struct Current {
    path: String,
    pending: Pending,
    digest: Sha256,
}

impl Writer {
    async fn begin(&mut self, file: CollectedFile) -> Result<(), Error> {
        if self.current.is_some() {
            return Err(Error::protocol("it began a file before the last one's end"));
        }
        let name = if file.path_bytes.is_empty() {
            file.path.as_bytes()
        } else {
            &file.path_bytes
        };
        if !file.link_target.is_empty() {
            return self.link(name, &file).await;
        }
        self.current = Some(Current {
            pending: self.beneath.create(name, file.mode).await?,
            path: file.path,
            digest: Sha256::new(),
        });
        Ok(())
    }

    async fn link(&mut self, name: &[u8], file: &CollectedFile) -> Result<(), Error> {
        match self.beneath.link(name, &file.link_target).await? {
            Placed::There(_) => self.collected.links.push(CollectedLink {
                path: file.path.clone(),
                target: file.link_target.clone(),
            }),
            Placed::Refused(why) => self.refused(file.path.clone(), &why),
        }
        Ok(())
    }

    async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let Some(current) = &mut self.current else {
            return Err(Error::protocol("it sent bytes of no file"));
        };
        current.digest.update(data);
        self.collected.bytes += data.len() as u64;
        current.pending.write(data).await
    }

    async fn end(&mut self, end: &FileEnd) -> Result<(), Error> {
        // A link may be closed like a file.
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let actual = HEXLOWER.encode(&current.digest.finalize());
        if actual != end.sha256 {
            return Err(Error::Checksum {
                path: current.path,
                expected: end.sha256.clone(),
                actual,
            });
        }
        match current.pending.finish().await? {
            Placed::There(file) => self.collected.files.push(file),
            Placed::Refused(why) => self.refused(current.path, &why),
        }
        Ok(())
    }

    fn refused(&mut self, path: String, why: &Refusal) {
        self.collected.refused.push(Refused {
            path,
            problem: why.to_string(),
            in_the_way: matches!(why, Refusal::DirectoryThere),
        });
    }

    fn done(self) -> Result<Collected, Error> {
        if self.current.is_some() {
            return Err(Error::protocol("it ended the files in the middle of one"));
        }
        Ok(self.collected)
    }
}
