//! Images in Docker: their descriptions and their pulls.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::errors::Error as DockerError;
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptions;
use futures::StreamExt;
use tokio::sync::watch;

use super::failures::{map_docker_error, shorten_message};
use crate::engine::image_reference::ImageReference;
use crate::engine::{ImageInfo, PullProgress};
use crate::error::{Error, Result};

/// Longest time in which a pull may report nothing. Docker unpacks a large layer without a report.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of layers whose progress is followed. Docker's own maximum is 127.
const LAYERS_MAX: usize = 1000;
/// Tag of a reference that has neither a tag nor a digest.
const DEFAULT_TAG: &str = "latest";

/// Returns the name under which Docker finds an image that it has. A digest decides alone.
pub(super) fn local_name(reference: &ImageReference) -> String {
    match &reference.digest {
        Some(digest) => format!("{}@{digest}", reference.name),
        None => reference.to_string(),
    }
}

/// Converts Docker's description of an image.
pub(super) fn image_info(reference: &ImageReference, image: ImageInspect) -> Result<ImageInfo> {
    let missing = || Error::image(reference.to_string(), "Docker reports no id for it");
    let id = image.id.ok_or_else(missing)?;
    let config = image.config.unwrap_or_default();
    let has_entrypoint = config.entrypoint.is_some_and(|argv| !argv.is_empty());
    Ok(ImageInfo {
        reference: reference.to_string(),
        id,
        repo_digests: image.repo_digests.unwrap_or_default(),
        size_bytes: u64::try_from(image.size.unwrap_or(0)).unwrap_or(0),
        architecture: image.architecture.unwrap_or_default(),
        volumes: config.volumes.unwrap_or_default(),
        env: config.env.unwrap_or_default(),
        has_entrypoint,
    })
}

/// Pulls an image and reports progress, until Docker closes the stream of progress messages.
pub(super) async fn pull_image(
    docker: &Docker,
    socket: &str,
    reference: &ImageReference,
    credentials: Option<DockerCredentials>,
    progress: &watch::Sender<PullProgress>,
) -> Result<()> {
    let tag = reference.digest.as_ref().or(reference.tag.as_ref());
    let options = CreateImageOptions {
        from_image: Some(reference.name.clone()),
        // Without a tag Docker would pull all of them.
        tag: Some(tag.map_or(DEFAULT_TAG, String::as_str).to_owned()),
        ..CreateImageOptions::default()
    };
    // The registry is asked before the response begins, which takes longer than other calls.
    let docker = docker.clone().with_timeout(SILENCE_TIMEOUT);
    let mut messages = std::pin::pin!(docker.create_image(Some(options), None, credentials));
    let mut layers = LayerProgress::default();
    loop {
        let message = tokio::time::timeout(SILENCE_TIMEOUT, messages.next()).await;
        match message {
            Ok(Some(Ok(message))) => {
                layers.add(message);
                let now = layers.sum();
                progress.send_if_modified(|known| std::mem::replace(known, now) != now);
            }
            Ok(Some(Err(DockerError::DockerStreamError { error }))) => {
                return Err(Error::engine("pull image", shorten_message(&error)));
            }
            Ok(Some(Err(error))) => return Err(map_docker_error(socket, "pull image", &error)),
            Ok(None) => return Ok(()),
            Err(_) => {
                let message = format!("nothing came from the registry for {SILENCE_TIMEOUT:?}");
                return Err(Error::engine("pull image", message));
            }
        }
    }
}

/// Progress of each layer of an image by its id: downloaded bytes and size.
#[derive(Debug, Default)]
struct LayerProgress(HashMap<String, (u64, u64)>);

impl LayerProgress {
    /// Adds a message of Docker. Messages of other steps than the download change no size.
    fn add(&mut self, message: CreateImageInfo) {
        let (Some(id), Some(status)) = (message.id, message.status) else {
            return;
        };
        let is_known = self.0.contains_key(&id);
        if !is_known && self.0.len() >= LAYERS_MAX {
            return;
        }
        let layer = self.0.entry(id).or_default();
        let detail = message.progress_detail.unwrap_or_default();
        let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        match status.as_str() {
            "Downloading" => {
                layer.1 = bytes(detail.total).unwrap_or(layer.1);
                layer.0 = bytes(detail.current).unwrap_or(layer.0);
            }
            "Download complete" | "Extracting" | "Pull complete" => layer.0 = layer.1,
            _ => {}
        }
    }

    fn sum(&self) -> PullProgress {
        let layers = self.0.values();
        layers.fold(PullProgress::default(), |sum, (bytes, size)| PullProgress {
            bytes: sum.bytes.saturating_add(*bytes.min(size)),
            bytes_total: sum.bytes_total.saturating_add(*size),
        })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{ImageConfig, ProgressDetail};

    use super::*;

    fn message(id: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: Some(ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn progress_of_a_pull_is_the_sum_of_its_layers() {
        let mut layers = LayerProgress::default();
        layers.add(message("latest", "Pulling from a/b", 0, 0));
        layers.add(message("a", "Downloading", 30, 100));
        layers.add(message("b", "Downloading", 10, 50));
        layers.add(message("a", "Download complete", 0, 0));
        layers.add(message("a", "Extracting", 5, 70));
        layers.add(message("c", "Already exists", 0, 0));
        layers.add(message("b", "Downloading", i64::MIN, -1));
        let (bytes, bytes_total) = (110, 150);
        assert_eq!(layers.sum(), PullProgress { bytes, bytes_total });
        for number in 0..2 * LAYERS_MAX {
            layers.add(message(&number.to_string(), "Downloading", 1, 1));
        }
        assert_eq!(layers.0.len(), LAYERS_MAX);
    }

    #[test]
    fn digest_of_a_reference_decides_which_image_is_meant() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let name = |text: &str| local_name(&ImageReference::parse(text).expect("valid"));
        assert_eq!(name("a/b:c"), "a/b:c");
        assert_eq!(name(&format!("a/b:c@{digest}")), format!("a/b@{digest}"));
    }

    #[test]
    fn image_info_has_what_decides_about_its_use() {
        let image = ImageInspect {
            id: Some("sha256:1".to_owned()),
            size: Some(7),
            repo_digests: Some(vec!["a@sha256:2".to_owned()]),
            config: Some(ImageConfig {
                volumes: Some(vec!["/data".to_owned()]),
                entrypoint: Some(vec!["x".to_owned()]),
                ..ImageConfig::default()
            }),
            ..ImageInspect::default()
        };
        let reference = ImageReference::parse("a").expect("valid");
        let info = image_info(&reference, image).expect("converted");
        assert!(info.has_entrypoint);
        assert_eq!(info.size_bytes, 7);
        assert_eq!(info.digests().collect::<Vec<_>>(), ["sha256:2"]);
        let fault = info.fault(&reference).expect("a volume");
        assert_eq!(fault, "it declares VOLUME /data: build it without volumes");
        let pinned = format!("sha256:{}", "0".repeat(64));
        let reference = ImageReference::parse(&format!("a@{pinned}")).expect("valid");
        let fault = info.fault(&reference).expect("another digest");
        assert!(
            fault.contains(&pinned) && fault.contains("sha256:2"),
            "{fault}"
        );
    }
}
