//! The reference "inside": posix_spawn by a small static program that runs in the same workspace, so that what the
//! container itself costs (storage driver, seccomp filter, cgroup) is on both sides.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use skilld_client::{Client, UploadTarget};
use skilld_tests::{binaries, exec};
use tempfile::TempDir;

use crate::report::FigureSeries;

/// Places of the two programs in a workspace.
const SPAWNER: &str = "work/spawner";
const TINY: &str = "work/tiny";

/// Address at which the kernel loads the tiny program.
const LOAD_ADDRESS: u64 = 0x0040_0000;

/// `spawner` and a tiny static program, on the host's tmpfs and uploaded to workspaces on demand.
#[derive(Debug)]
pub(crate) struct InsidePrograms {
    directory: TempDir,
}

impl InsidePrograms {
    /// Compiles the spawner and writes the tiny program.
    pub(crate) async fn build() -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("skb")
            .tempdir_in("/dev/shm")?;
        let source = binaries::repository().join("tests/bench/spawner.rs");
        let output = tokio::process::Command::new("rustc")
            .args([
                "--edition",
                "2024",
                "-O",
                "-C",
                "target-feature=+crt-static",
                "-o",
            ])
            .arg(directory.path().join("spawner"))
            .arg(source)
            .output()
            .await
            .context("run rustc")?;
        if !output.status.success() {
            bail!("rustc: {}", String::from_utf8_lossy(&output.stderr));
        }
        let tiny = directory.path().join("tiny");
        std::fs::write(&tiny, tiny_program()?)?;
        std::fs::set_permissions(&tiny, PermissionsExt::from_mode(0o755))?;
        Ok(Self { directory })
    }

    /// Returns the path of the tiny program on the host.
    pub(crate) fn tiny_on_host(&self) -> PathBuf {
        self.directory.path().join("tiny")
    }

    /// Uploads both programs to a workspace.
    pub(crate) async fn upload<'a>(
        &self,
        client: &'a Client,
        workspace: &'a str,
    ) -> Result<InsideReference<'a>> {
        for (name, path) in [("spawner", SPAWNER), ("tiny", TINY)] {
            let mut target = UploadTarget::file(workspace, path);
            target.mode = Some(0o755);
            let file = tokio::fs::File::open(self.directory.path().join(name)).await?;
            client.upload(target, file).await?;
        }
        Ok(InsideReference { client, workspace })
    }
}

/// A workspace with the spawner in it.
#[derive(Debug)]
pub(crate) struct InsideReference<'a> {
    client: &'a Client,
    workspace: &'a str,
}

impl InsideReference<'_> {
    /// Spawns a program one after the other, and adds the time of each.
    pub(crate) async fn spawn_each(
        &self,
        count: usize,
        argv: &[&str],
        times: &mut FigureSeries,
    ) -> Result<()> {
        times.nanoseconds(&self.run_spawner("each", count, argv).await?)
    }

    /// Spawns a program `count` times from each of 16 threads, and returns how long all of them took.
    pub(crate) async fn spawn_together(&self, count: usize, argv: &[&str]) -> Result<Duration> {
        let text = self.run_spawner("together", count, argv).await?;
        Ok(Duration::from_nanos(text.trim().parse()?))
    }

    async fn run_spawner(&self, mode: &str, count: usize, argv: &[&str]) -> Result<String> {
        let mut spec = exec::argv([&path_in_workspace(SPAWNER), mode, &count.to_string()]);
        spec.argv.extend(argv.iter().map(|word| (*word).to_owned()));
        let outcome = exec::run(self.client, self.workspace, spec).await?;
        ensure!(
            outcome.exit_code() == Some(0),
            "the spawner failed: {}",
            outcome.error_text()
        );
        Ok(outcome.text())
    }
}

/// Returns the path of the tiny program in a workspace.
pub(crate) fn tiny_in_workspace() -> String {
    path_in_workspace(TINY)
}

fn path_in_workspace(relative: &str) -> String {
    Path::new("/workspace").join(relative).display().to_string()
}

/// Returns an ELF file of one segment whose code ends with exit code 0, padded to one page.
fn tiny_program() -> Result<Vec<u8>> {
    const HEADERS_BYTES: u64 = 64 + 56;
    const PAGE_BYTES: u64 = 4096;
    let (machine, code): (u16, &[u8]) = match std::env::consts::ARCH {
        // xor edi, edi; mov eax, 60; syscall
        "x86_64" => (62, &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]),
        // mov x0, 0; mov x8, 93; svc 0
        "aarch64" => (
            183,
            &[0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4],
        ),
        other => bail!("no tiny program for {other}: add its exit system call"),
    };
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Executable, machine, version.
    elf.extend(2_u16.to_le_bytes());
    elf.extend(machine.to_le_bytes());
    elf.extend(1_u32.to_le_bytes());
    // Entry, program headers, section headers, flags.
    for word in [LOAD_ADDRESS + HEADERS_BYTES, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    // Sizes and counts of the headers.
    for half in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // One loaded segment that can be read and executed.
    elf.extend(1_u32.to_le_bytes());
    elf.extend(5_u32.to_le_bytes());
    for word in [
        0,
        LOAD_ADDRESS,
        LOAD_ADDRESS,
        PAGE_BYTES,
        PAGE_BYTES,
        PAGE_BYTES,
    ] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    elf.resize(usize::try_from(PAGE_BYTES)?, 0);
    Ok(elf)
}

#[cfg(test)]
#[expect(
    clippy::panic_in_result_fn,
    reason = "an assertion is how a test fails"
)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tiny_program_and_the_spawner_run_on_this_machine() -> Result<()> {
        let programs = InsidePrograms::build().await?;
        let tiny = programs.tiny_on_host();
        assert_eq!(std::fs::metadata(&tiny)?.len(), 4096);
        for mode in ["each", "together"] {
            let output = tokio::process::Command::new(programs.directory.path().join("spawner"))
                .args([mode, "3"])
                .arg(&tiny)
                .output()
                .await?;
            assert!(output.status.success(), "{output:?}");
            let lines = String::from_utf8(output.stdout)?;
            let expected = if mode == "each" { 3 } else { 1 };
            assert_eq!(lines.lines().count(), expected, "{lines}");
        }
        Ok(())
    }
}
