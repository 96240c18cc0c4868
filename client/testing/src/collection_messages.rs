//! Messages of CollectOutputs, and the files that a collection leaves.

use std::path::Path;

use bytes::Bytes;
use prost_types::Timestamp;
use sha2::{Digest, Sha256};
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsResponse, CollectSummary, CollectedFile, FileEnd, SkippedFile,
};

pub fn file(path: &str, data: &[u8]) -> Vec<CollectOutputsResponse> {
    let digest = Sha256::digest(data);
    let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut payloads = vec![Payload::File(CollectedFile {
        path: path.into(),
        mode: 0o640,
        ..Default::default()
    })];
    payloads.extend(
        data.chunks(256 * 1024)
            .map(|chunk| Payload::Data(Bytes::copy_from_slice(chunk))),
    );
    payloads.push(Payload::FileEnd(FileEnd {
        sha256,
        ..Default::default()
    }));
    payloads.into_iter().map(message).collect()
}

pub fn directory(path: &str, mode: u32, seconds: i64) -> Vec<CollectOutputsResponse> {
    vec![message(Payload::File(CollectedFile {
        path: path.into(),
        mode,
        modify_time: Some(Timestamp { seconds, nanos: 0 }),
        is_directory: true,
        ..Default::default()
    }))]
}

pub fn link(path: &str, target: &str) -> Vec<CollectOutputsResponse> {
    vec![message(Payload::File(CollectedFile {
        path: path.into(),
        link_target: target.into(),
        ..Default::default()
    }))]
}

pub fn summary() -> CollectOutputsResponse {
    message(Payload::Summary(CollectSummary {
        matched_count: 1,
        ..Default::default()
    }))
}

/// Returns a summary that reports a file as cut and another of the same name as skipped.
pub fn skipping(path: &str) -> CollectOutputsResponse {
    message(Payload::Summary(CollectSummary {
        matched_count: 1,
        truncated_paths: vec![path.into()],
        skipped_files: vec![SkippedFile {
            path: path.into(),
            ..Default::default()
        }],
        ..Default::default()
    }))
}

pub fn message(payload: Payload) -> CollectOutputsResponse {
    CollectOutputsResponse {
        payload: Some(payload),
    }
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("utf-8")
        })
        .collect();
    names.sort();
    names
}
