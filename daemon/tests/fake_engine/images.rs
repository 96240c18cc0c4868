//! Images of the fake engine: it has every image except those that a test removed, and pulls as a test controls it.

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{EngineOperation, FakeEngine};
use crate::engine::image_reference::ImageReference;
use crate::engine::{ImageInfo, PullProgress};
use crate::error::Result;

/// Progress that a held pull has reported.
pub const HELD_PULL_PROGRESS: PullProgress = PullProgress {
    bytes: 30 << 20,
    bytes_total: 120 << 20,
};

/// Images of the engine by their reference, and control of its pulls.
#[derive(Debug)]
pub(super) struct FakeImages {
    /// References that the engine does not have.
    missing: HashSet<String>,
    /// Descriptions that differ from the usual one.
    described: HashMap<String, ImageInfo>,
    /// `true` while pulls stop in their middle.
    held: watch::Sender<bool>,
}

impl Default for FakeImages {
    fn default() -> Self {
        Self {
            missing: HashSet::new(),
            described: HashMap::new(),
            held: watch::channel(false).0,
        }
    }
}

impl FakeEngine {
    /// Removes an image, so that the engine does not have it until it is pulled or [`Self::add_image`] makes it.
    pub fn remove_image(&self, reference: &str) {
        self.shared
            .state()
            .images
            .missing
            .insert(reference.to_owned());
    }

    /// Makes an image, as an operator does.
    pub fn add_image(&self, reference: &str) {
        self.shared.state().images.missing.remove(reference);
    }

    /// Describes an image otherwise than usual, for instance with volumes.
    pub fn describe_image(&self, info: ImageInfo) {
        let mut state = self.shared.state();
        state.images.described.insert(info.reference.clone(), info);
    }

    /// Stops later pulls after they reported [`HELD_PULL_PROGRESS`], until [`Self::release_pulls`].
    pub fn hold_pulls(&self) {
        self.shared.state().images.held.send_replace(true);
    }

    /// Lets held pulls and later ones end.
    pub fn release_pulls(&self) {
        self.shared.state().images.held.send_replace(false);
    }

    /// Returns the description of an image; `None` if a test removed it.
    pub(super) async fn look_up_image(
        &self,
        reference: &ImageReference,
    ) -> Result<Option<ImageInfo>> {
        self.begin_operation(EngineOperation::FindImage).await?;
        let name = reference.to_string();
        let state = self.shared.state();
        if state.images.missing.contains(&name) {
            return Ok(None);
        }
        let described = state.images.described.get(&name).cloned();
        Ok(Some(described.unwrap_or_else(|| usual_image(&name))))
    }

    /// Pulls an image. An injected fault is the registry's.
    pub(super) async fn fetch_image(
        &self,
        reference: &ImageReference,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<()> {
        self.begin_operation(EngineOperation::PullImage).await?;
        progress.send_replace(HELD_PULL_PROGRESS);
        let mut held = self.shared.state().images.held.subscribe();
        // The sender lives as long as the engine.
        let _released = held.wait_for(|held| !held).await;
        self.add_image(&reference.to_string());
        Ok(())
    }
}

/// Returns the description of an image that no test described.
fn usual_image(reference: &str) -> ImageInfo {
    let digest = format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(reference)));
    let pinned = reference.split_once('@').map(|_| reference.to_owned());
    ImageInfo {
        reference: reference.to_owned(),
        id: digest,
        repo_digests: pinned.into_iter().collect(),
        size_bytes: 100 << 20,
        architecture: "amd64".to_owned(),
        ..ImageInfo::default()
    }
}
