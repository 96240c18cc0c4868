//! Images that tests make: a name of their own, a label by which leftovers are found, and their removal.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

/// Label of what tests make in Docker. Its value on an image is the directory of temporary files, by which
/// tests/leftovers.sh finds the images of a run.
pub const TEST_LABEL: &str = "io.skilld.test";

/// Name for an image of one test. Dropping the value removes the image.
#[derive(Debug)]
pub struct TestImage(String);

impl TestImage {
    /// Makes a name that no other test uses. The caller builds the image, with [`TestImage::label`].
    #[must_use]
    pub fn named(kind: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!(
            "skilld-test/{kind}:{}-{number}",
            std::process::id()
        ))
    }

    /// Builds an image on top of the base image with these instructions of a Dockerfile, which copy from `context`.
    ///
    /// # Errors
    /// When Docker builds no image; its output is in the error.
    pub fn build(kind: &str, instructions: &str, context: Option<&Path>) -> Result<Self> {
        let image = Self::named(kind);
        let mut command = Command::new("docker");
        // With a cache, tests at the same time share the images of their first steps, and the first one that ends
        // removes them from under the others.
        command.args(["build", "--network", "none", "--force-rm", "--no-cache"]);
        command.args(["--tag", image.name(), "--label", &Self::label()]);
        match context {
            None => command.arg("-"),
            Some(context) => command.args(["--file", "-"]).arg(context),
        };
        let mut build = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = build.stdin.take().context("no stdin")?;
        write!(input, "FROM skilld/base:latest\n{instructions}")?;
        drop(input);
        let built = build.wait_with_output()?;
        ensure!(built.status.success(), "{built:?}");
        Ok(image)
    }

    /// Returns the name, `NAME:TAG`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns the label that the image must have, `KEY=VALUE`.
    #[must_use]
    pub fn label() -> String {
        format!("{TEST_LABEL}={}", std::env::temp_dir().display())
    }
}

impl Drop for TestImage {
    fn drop(&mut self) {
        remove_image(&self.0);
    }
}

/// Removes an image from Docker; one that does not exist is no fault.
pub fn remove_image(name: &str) {
    let mut command = Command::new("docker");
    let removed = command.args(["image", "rm", "--force", name]).output();
    drop(removed);
}
