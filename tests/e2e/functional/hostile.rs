//! A workspace with hostile files: all calls about them end with a reason, and the neighbour's commands still succeed.
//!
//! Docker: real commands of a container make special files, deep trees and links on its file system while the guest
//! walks them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_client::v1::{
    CollectFormat, CollectSpec, ErrorReason, ListFilesRequest, SkipReason as Skipped,
};
use skilld_client::{Client, UploadTarget};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::{collect, globs, put, stage, tar};
use skilld_tests::{Daemon, DefaultDaemon, Options, expect_refusal};

/// Time limit of every call about hostile files. A call that never ends exceeds it; a slow machine does not.
const IN_TIME: Duration = Duration::from_secs(600);

/// Runs Python that must succeed.
async fn python(client: &Client, workspace: &str, text: &str) -> Result<String> {
    let spec = skilld_tests::exec::argv(["python3", "-c", text]);
    let outcome = run(client, workspace, spec).await?;
    ensure!(outcome.exit_code() == Some(0), "{}", outcome.error_text());
    Ok(outcome.text())
}

/// Does something while a neighbour runs commands, which must all succeed.
async fn beside<T>(
    client: &Client,
    neighbour: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let done = AtomicBool::new(false);
    let working = async {
        let worked = tokio::time::timeout(IN_TIME, work).await;
        done.store(true, Ordering::Relaxed);
        worked?
    };
    let watching = async {
        while !done.load(Ordering::Relaxed) {
            let running = tokio::time::timeout(IN_TIME, run(client, neighbour, shell("true")));
            let outcome = running.await.context("the neighbour's command hangs")??;
            ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
        }
        Ok(())
    };
    let (worked, ()) = tokio::try_join!(working, watching)?;
    Ok(worked)
}

#[tokio::test]
async fn special_and_unreadable_files_are_left_out_with_a_reason() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let make = r"
import os, resource, socket
os.chdir('/workspace/out')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
for kind in (0o020000, 0o060000):
    try: os.mknod(f'device{kind}', kind | 0o666, os.makedev(1, 3)); raise SystemExit('made a device')
    except PermissionError: pass
try: open('sparse', 'w').truncate(1 << 40)
except OSError: open('sparse', 'w').truncate(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
open('secret', 'w').write('x'); os.chmod('secret', 0)
os.mkdir('closed'); open('closed/f', 'w'); os.chmod('closed', 0)
open('file', 'w').write('once'); os.link('file', 'hard')
os.symlink('/etc/passwd', 'out'); os.symlink('/', 'root'); os.symlink('..', 'up')
os.symlink('loop', 'loop'); os.symlink('a', 'b'); os.symlink('b', 'a')
for odd in (b'two\nlines', b'\xff\xfe', b'n' * 255, b' ', b'-rf', b'...'): open(odd, 'w').write('odd')
";
    python(client, &name, make).await?;
    let wanted = CollectSpec {
        max_total_bytes: 1 << 20,
        ..globs(["out/**"])
    };
    let got = tokio::time::timeout(IN_TIME, collect(client, &name, wanted.clone())).await??;
    let expected = [
        ("out/closed", Skipped::Permission),
        ("out/fifo", Skipped::FileType),
        ("out/secret", Skipped::Permission),
        ("out/socket", Skipped::FileType),
        ("out/sparse", Skipped::MaxTotalBytes),
    ];
    assert_eq!(got.skipped(), expected.into());
    let links = got
        .files
        .iter()
        .filter(|file| !file.file.link_target.is_empty());
    assert_eq!(links.count(), 6);
    let odd = got.files.iter().filter(|file| file.data == b"odd");
    assert_eq!(odd.count(), 6);
    assert_eq!(got.bytes("out/file")?, b"once");
    assert_eq!(got.bytes("out/hard")?, b"once");
    assert_eq!(got.files.len(), 14, "{:?}", got.paths());
    for format in [CollectFormat::Tar, CollectFormat::TarGz] {
        let wanted = CollectSpec {
            format: format.into(),
            ..wanted.clone()
        };
        let got = tokio::time::timeout(IN_TIME, collect(client, &name, wanted)).await??;
        assert_eq!(got.summary.returned_count, 14);
        assert_eq!(got.skipped(), expected.into());
    }
    daemon.stop().await
}

#[tokio::test]
async fn too_deep_and_too_many_end_in_time_and_bother_no_neighbour() -> Result<()> {
    let options = Options::default()
        .set("pools.default.warm", "2")
        // A million files in one directory go the same way, but to make, match and sort them takes an unoptimised guest
        // longer than all of this test, and 1 GiB of the kernel's memory.
        .set("pools.default.inodes", "200000");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let (name, neighbour) = (workspace(client).await?.name, workspace(client).await?.name);
    let deep = "import os; os.chdir('/workspace/out')\n\
                for _ in range(100_000): os.mkdir('d'); os.chdir('d')";
    python(client, &name, deep).await?;
    let work = collect(client, &name, globs(["out/**"]));
    let got = beside(client, &neighbour, work).await?;
    let skipped: Vec<_> = got.skipped().into_values().collect();
    assert_eq!(skipped, [Skipped::Depth]);
    assert!(got.summary.limits_hit && got.files.is_empty());
    let request = ListFilesRequest {
        parent: name.clone(),
        recursive: true,
        ..ListFilesRequest::default()
    };
    let listed = tokio::time::timeout(IN_TIME, client.list_files(request)).await??;
    ensure!(listed.files.len() > 100, "{}", listed.files.len());

    let many = "import os; os.makedirs('/workspace/work/many'); os.chdir('/workspace/work/many')\n\
                n = 0\n\
                try:\n    while True: os.close(os.open(f'{n:x}', os.O_CREAT | os.O_WRONLY)); n += 1\n\
                except OSError: print(n)";
    let count: i64 = python(client, &name, many).await?.trim().parse()?;
    ensure!(count > 90_000, "{count} files");
    let work = collect(client, &name, globs(["work/many/*"]));
    let got = beside(client, &neighbour, work).await?;
    assert_eq!(
        (got.summary.matched_count, got.summary.returned_count),
        (count, 100)
    );
    assert_eq!(got.summary.skipped_files.len(), 1000);
    // Nothing fits any more, which is said and leaves nothing.
    let full = put(client, &name, "work/one-more", "x").await;
    ensure!(full.is_err(), "{full:?}");

    client.delete_workspace(&name).await?;
    let outcome = run(client, &neighbour, shell("echo here")).await?;
    assert_eq!(outcome.text(), "here\n");
    daemon.stop().await
}

#[tokio::test]
async fn an_existing_link_leads_no_archive_out_of_the_workspace() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "ln -s /tmp $WORK_DIR/away; ln -s ../../../tmp $WORK_DIR/up";
    run(client, &name, shell(commands)).await?;
    for path in ["away/x", "up/x"] {
        let archive = tar(&[(path, b"evil", 0o644)])?;
        let answer = stage(client, UploadTarget::tar(&name, "work"), archive).await;
        expect_refusal(answer, ErrorReason::PathEscapes).with_context(|| path.to_owned())?;
    }
    let files = run(client, &name, shell("ls -A /tmp")).await?;
    assert_eq!(files.text(), "");
    daemon.stop().await
}

#[tokio::test]
async fn a_directory_that_becomes_a_link_meanwhile_leads_nobody_out() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let make = r"
import os
os.makedirs('/workspace/out/d'); open('/workspace/out/d/f', 'w').write('inside')
os.makedirs('/tmp/outside'); open('/tmp/outside/f', 'w').write('canary')
os.symlink('/tmp/outside', '/workspace/out/l')
";
    python(client, &name, make).await?;
    let swap = r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
d, l = b'/workspace/out/d', b'/workspace/out/l'
for _ in range(100_000):
    if libc.renameat2(-100, d, -100, l, 2): raise SystemExit(ctypes.get_errno())
print(os.listdir('/tmp/outside'), open('/tmp/outside/f').read())
";
    let swapped = AtomicBool::new(false);
    let swapping = async {
        let printed = python(client, &name, swap).await;
        swapped.store(true, Ordering::Relaxed);
        printed
    };
    let calling = async {
        let archive = tar(&[("d/new", b"new", 0o644), ("l/new", b"new", 0o644)])?;
        while !swapped.load(Ordering::Relaxed) {
            let got = collect(client, &name, globs(["out/**"])).await?;
            for file in &got.files {
                let bytes = file.data.as_slice();
                ensure!(
                    [b"inside".as_slice(), b"new", b""].contains(&bytes),
                    "{file:?}"
                );
            }
            // Whether they succeed is a matter of luck; where they write is not.
            let _refused = put(client, &name, "out/d/new", "new").await;
            let target = UploadTarget::tar(&name, "out");
            let _refused = stage(client, target, archive.clone()).await;
        }
        Ok(())
    };
    let (printed, ()) = tokio::try_join!(swapping, calling)?;
    assert_eq!(printed, "['f'] canary\n");
    daemon.stop().await
}
