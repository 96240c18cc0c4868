//! The bytes of an artifact on their way out: in small pieces, as fast as they are taken, and checked against the record.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetResultPayload, ObjectStoreExt};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use super::store::{Store, harmless};
use super::{Artifact, Chunks, key};
use crate::error::{Error, Result};

/// Largest piece, bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// What is on its way.
struct Load {
    stored: BoxStream<'static, Result<Bytes>>,
    rest: Bytes,
    hash: Sha256,
    size: u64,
    artifact: Artifact,
}

/// The bytes of the save with this id; `None` if they are not there.
pub(super) async fn chunks(
    store: &Store,
    data: &str,
    artifact: &Artifact,
) -> Result<Option<Chunks>> {
    let path = key::data(&store.base, data);
    let operation = harmless("read the bytes");
    let Some(object) = store.ask(operation, store.objects.get(&path)).await? else {
        return Ok(None);
    };
    let store = store.clone();
    let stored = match object.payload {
        GetResultPayload::File(file, _) => {
            let file = tokio::fs::File::from_std(file);
            let read = ReaderStream::with_capacity(file, CHUNK_BYTES_MAX);
            read.map_err(move |error| store.broken(operation, &error))
                .boxed()
        }
        GetResultPayload::Stream(stream) => stream
            .map_err(move |error| store.failed(operation, &error))
            .boxed(),
    };
    let load = Load {
        stored,
        rest: Bytes::new(),
        hash: Sha256::new(),
        size: 0,
        artifact: artifact.clone(),
    };
    Ok(Some(futures::stream::try_unfold(load, next).boxed()))
}

async fn next(mut load: Load) -> Result<Option<(Bytes, Load)>> {
    while load.rest.is_empty() {
        let Some(chunk) = load.stored.next().await else {
            load.check()?;
            return Ok(None);
        };
        let chunk = chunk?;
        load.hash.update(&chunk);
        load.size += chunk.len() as u64;
        load.rest = chunk;
    }
    let piece = load.rest.split_to(CHUNK_BYTES_MAX.min(load.rest.len()));
    Ok(Some((piece, load)))
}

impl Load {
    /// All came: is it what was saved?
    fn check(&mut self) -> Result<()> {
        let sha256 = std::mem::take(&mut self.hash).finalize();
        let sha256 = HEXLOWER.encode(&sha256);
        let Artifact {
            name,
            version,
            size,
            sha256: saved,
            ..
        } = &self.artifact;
        if self.size == *size && sha256 == *saved {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "artifact {name}@{version} is damaged: {} of {size} bytes, sha256 {sha256} and not {saved}",
            self.size
        )))
    }
}
