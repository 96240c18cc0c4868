//! Reads the bytes of an artifact in small chunks, as fast as the client takes them, and checks them against the
//! record.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetResultPayload, ObjectStoreExt};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use super::backend::{ArtifactBackend, invisible_operation};
use super::{Artifact, ArtifactStream, key};
use crate::error::{Error, Result};

/// Maximum size of a chunk in bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Running read of an artifact's bytes, with the size and the hash so far.
struct ArtifactLoad {
    stored: BoxStream<'static, Result<Bytes>>,
    rest: Bytes,
    hash: Sha256,
    size: u64,
    artifact: Artifact,
}

/// Opens the bytes of a save; `None` if they do not exist.
pub(super) async fn open_stream(
    store: &ArtifactBackend,
    data: &str,
    artifact: &Artifact,
) -> Result<Option<ArtifactStream>> {
    let path = key::data_key(&store.base, data);
    let operation = invisible_operation("read the bytes");
    let Some(object) = store.request(operation, store.objects.get(&path)).await? else {
        return Ok(None);
    };
    let store = store.clone();
    let stored = match object.payload {
        GetResultPayload::File(file, _) => {
            let file = tokio::fs::File::from_std(file);
            let read = ReaderStream::with_capacity(file, CHUNK_BYTES_MAX);
            read.map_err(move |error| store.disk_error(operation, &error))
                .boxed()
        }
        GetResultPayload::Stream(stream) => stream
            .map_err(move |error| store.store_error(operation, &error))
            .boxed(),
    };
    let load = ArtifactLoad {
        stored,
        rest: Bytes::new(),
        hash: Sha256::new(),
        size: 0,
        artifact: artifact.clone(),
    };
    Ok(Some(futures::stream::try_unfold(load, next_chunk).boxed()))
}

async fn next_chunk(mut load: ArtifactLoad) -> Result<Option<(Bytes, ArtifactLoad)>> {
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

impl ArtifactLoad {
    /// Checks size and SHA-256 at the end of the bytes.
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
