//! Writing to the stdin of an exec: each byte once, whatever breaks on the way.
//!
//! A write whose answer is lost may have been written, in part or in whole, and the client cannot tell which. Its
//! offset is what makes it safe to write again: the server skips what it has. So a call with an offset is repeated, a
//! call without one never is, and [`StdinWriter`] sees to the offsets.

use std::io;
use std::path::PathBuf;
use std::pin::pin;

use bytes::{BufMut, Bytes, BytesMut};
use skilld_proto::v1::exec_service_client::ExecServiceClient;
use skilld_proto::v1::{WriteStdinRequest, WriteStdinResponse};
use skilld_proto::{count_from_int64, int64_from_count};
use tokio::io::{AsyncRead, AsyncReadExt};
use tonic::{Code, Status};

use crate::resource_names::exec_name;
use crate::retry::{could_not_connect, may_resume};
use crate::{Client, Error};

/// Maximum size of the data of one message, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

impl Client {
    /// Writes to an exec's stdin and returns when the program's pipe has taken it, or the request's `wait` is over.
    ///
    /// With an offset or a request_id the call is repeated when the connection broke, because the server writes nothing
    /// twice then. Without one it appends, and is repeated only if no connection could be made: what failed may be
    /// written.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the write, for instance because stdin is closed or the exec has ended.
    pub async fn write_stdin(
        &self,
        mut request: WriteStdinRequest,
    ) -> Result<WriteStdinResponse, Error> {
        request.name = exec_name(&request.name);
        let may_repeat = match request.offset.is_some() || !request.request_id.is_empty() {
            true => may_resume,
            false => could_not_connect,
        };
        self.repeat_call(may_repeat, request, ExecServiceClient::write_stdin)
            .await
    }

    /// Returns a writer whose first byte is at `offset`. What the exec has of it already is not written again, so the same
    /// bytes can be sent a second time; 0 for an exec that was just started. It must be the only writer.
    #[must_use]
    pub fn stdin_at(&self, name: &str, offset: u64) -> StdinWriter {
        StdinWriter {
            client: self.clone(),
            name: exec_name(name),
            at: Some(offset),
            appends: false,
        }
    }

    /// Returns a writer that continues where all writers so far have ended; its first write asks where that is. Others may
    /// write at the same time.
    #[must_use]
    pub fn stdin_end(&self, name: &str) -> StdinWriter {
        StdinWriter {
            at: None,
            appends: true,
            ..self.stdin_at(name, 0)
        }
    }
}

/// Writer to one exec's stdin. A write that is not waited for to its end leaves the writer without knowledge of how
/// much was written: make another one then.
#[derive(Debug)]
pub struct StdinWriter {
    client: Client,
    name: String,
    /// Offset of the next byte; `None` before the server was asked.
    at: Option<u64>,
    /// The first try of a write has no offset: it goes behind whatever others wrote.
    appends: bool,
}

impl StdinWriter {
    /// Returns the offset of the next byte, once it is known.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.at
    }

    /// Writes all of `data`, however long it is; returns when the program's pipe has taken it.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the write, for instance because stdin is closed or the exec has ended.
    pub async fn write(&mut self, mut data: Bytes) -> Result<(), Error> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(CHUNK_BYTES));
            self.send(piece, false).await?;
        }
        Ok(())
    }

    /// Writes what `source` has until its end, and returns the number of bytes. It reads on while a write is under way, up
    /// to 256 KiB, so that small pieces are sent as larger ones.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the write, for instance because stdin is closed or the exec has ended.
    pub async fn copy(&mut self, source: impl AsyncRead) -> Result<u64, Error> {
        let mut source = pin!(source);
        let (mut buffer, mut open, mut copied) = (BytesMut::new(), true, 0);
        while open || !buffer.is_empty() {
            buffer.reserve(CHUNK_BYTES.saturating_sub(buffer.len()));
            if buffer.is_empty() {
                open = source.read_buf(&mut buffer).await.map_err(unreadable)? > 0;
                continue;
            }
            copied += buffer.len() as u64;
            let mut writing = pin!(self.write(buffer.split().freeze()));
            loop {
                let room = CHUNK_BYTES.saturating_sub(buffer.len());
                let mut more = (&mut buffer).limit(room);
                tokio::select! {
                    biased;
                    written = &mut writing => {
                        written?;
                        break;
                    }
                    read = source.read_buf(&mut more), if open && room > 0 => {
                        open = read.map_err(unreadable)? > 0;
                    }
                }
            }
        }
        Ok(copied)
    }

    /// Sends end of file: nothing can be written after it.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the write, for instance because stdin is closed or the exec has ended.
    pub async fn end(&mut self) -> Result<(), Error> {
        self.send(Bytes::new(), true).await
    }

    async fn send(&mut self, data: Bytes, eof: bool) -> Result<(), Error> {
        let at = match self.at {
            Some(at) => at,
            // Nothing, at the start: it is there already, whatever was written.
            None => self.insist(0, Bytes::new(), false).await?,
        };
        self.at = Some(at);
        let end = at + data.len() as u64;
        if self.appends {
            let call = self.request(None, data.clone(), eof);
            match self.client.execs().write_stdin(call).await {
                Ok(response) => {
                    self.at = Some(count_from_int64(response.into_inner().committed_offset));
                    return Ok(());
                }
                Err(status) if !may_be_written(&status) => return Err(Error::from(status)),
                // With an offset from here on: some of it may be there.
                Err(_) => {}
            }
        }
        let committed = self.insist(at, data, eof).await?;
        if committed < end {
            let problem = format!("it took {committed} bytes of stdin where {end} were sent");
            return Err(Error::protocol(problem));
        }
        self.at = Some(if self.appends { committed } else { end });
        Ok(())
    }

    /// Writes at an offset until all of it was written for sure; returns the length of stdin then, in bytes.
    async fn insist(&self, at: u64, data: Bytes, eof: bool) -> Result<u64, Error> {
        loop {
            let call = self.request(Some(at), data.clone(), eof);
            match self.client.write_stdin(call).await {
                Ok(response) => return Ok(count_from_int64(response.committed_offset)),
                // The program takes its time, and the server ends calls that last long.
                Err(error) if error.code() == Some(Code::DeadlineExceeded) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&self, offset: Option<u64>, data: Bytes, eof: bool) -> WriteStdinRequest {
        WriteStdinRequest {
            name: self.name.clone(),
            offset: offset.map(int64_from_count),
            data,
            eof,
            ..WriteStdinRequest::default()
        }
    }
}

/// Returns `true` if a write that failed like this may have been made, in part or in whole.
fn may_be_written(status: &Status) -> bool {
    may_resume(status) || status.code() == Code::DeadlineExceeded
}

fn unreadable(source: io::Error) -> Error {
    Error::Io {
        path: PathBuf::from("-"),
        source,
    }
}
