//! Hostile archives, and streams whose contents differ from their headers.

use anyhow::{Context, Result, ensure};
use skilld_client::v1::stage_files_request::Payload;
use skilld_client::v1::{Reason, StageFilesHeader, StageFilesRequest};
use skilld_client::{Client, UploadKind, UploadTarget};
use skilld_tests::exec::{run, shell};
use skilld_tests::files::{gzip, put, read, sha256, stage, tar};
use skilld_tests::{Daemon, expect_refusal};
use tar::{EntryType, Header};

use super::{contents, still_well};

/// Makes an archive of a good file, one given entry and another good file.
fn with_entry(name: &[u8], kind: EntryType, link: &str) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut good = Header::new_gnu();
    good.set_size(4);
    good.set_mode(0o644);
    builder.append_data(&mut good.clone(), "first.txt", &b"good"[..])?;
    let mut bad = Header::new_gnu();
    // By hand: the builder refuses such names.
    let field = &mut bad.as_old_mut().name;
    field[..name.len()].copy_from_slice(name);
    bad.set_entry_type(kind);
    bad.set_mode(0o644);
    let body: &[u8] = if kind == EntryType::Regular {
        b"evil"
    } else {
        b""
    };
    bad.set_size(body.len() as u64);
    if !link.is_empty() {
        bad.set_link_name_literal(link)?;
    }
    if kind == EntryType::Char || kind == EntryType::Block {
        bad.set_device_major(1)?;
        bad.set_device_minor(3)?;
    }
    bad.set_cksum();
    builder.append(&bad, body)?;
    builder.append_data(&mut good, "last.txt", &b"good"[..])?;
    Ok(builder.into_inner()?)
}

/// Stages an archive that must be refused and leave nothing.
async fn refuse(client: &Client, workspace: &str, archive: Vec<u8>, reason: Reason) -> Result<()> {
    let before = contents(client, workspace).await?;
    for kind in [UploadKind::Tar, UploadKind::TarGz] {
        let bytes = if kind == UploadKind::Tar {
            archive.clone()
        } else {
            gzip(&archive)?
        };
        let target = UploadTarget {
            kind,
            ..UploadTarget::tar(workspace, "work/unpacked")
        };
        expect_refusal(stage(client, target, bytes).await, reason)?;
        let after = contents(client, workspace).await?;
        ensure!(after == before, "left: {after}\nwas: {before}");
    }
    Ok(())
}

#[tokio::test]
async fn an_archive_that_climbs_or_links_out_is_refused_whole() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let escapes = Reason::PathEscapes;
    let invalid = Reason::ArchiveInvalid;
    for (entry, kind, link, reasons) in [
        (&b"../x"[..], EntryType::Regular, "", [escapes, invalid]),
        (b"a/../../../x", EntryType::Regular, "", [escapes, invalid]),
        (b"/etc/x", EntryType::Regular, "", [escapes, invalid]),
        (
            b"link",
            EntryType::Symlink,
            "/etc/passwd",
            [escapes, invalid],
        ),
        (
            b"link",
            EntryType::Symlink,
            "../../../etc",
            [escapes, invalid],
        ),
        (b"hard", EntryType::Link, "/etc/passwd", [invalid, escapes]),
        (b"hard", EntryType::Link, "first.txt", [invalid, escapes]),
        (b"dev", EntryType::Char, "", [invalid, escapes]),
        (b"dev", EntryType::Block, "", [invalid, escapes]),
        (b"fifo", EntryType::Fifo, "", [invalid, escapes]),
    ] {
        let archive = with_entry(entry, kind, link)?;
        let what = format!("{} {kind:?} {link}", String::from_utf8_lossy(entry));
        let first = refuse(client, &name, archive.clone(), reasons[0]).await;
        if first.is_err() {
            refuse(client, &name, archive, reasons[1])
                .await
                .context(what)?;
        }
    }
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_existing_link_leads_no_archive_out_of_the_workspace() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "ln -s /tmp $WORK_DIR/away; ln -s ../../../tmp $WORK_DIR/up";
    run(client, &name, shell(commands)).await?;
    for path in ["away/x", "up/x"] {
        let archive = tar(&[(path, b"evil", 0o644)])?;
        let answer = stage(client, UploadTarget::tar(&name, "work"), archive).await;
        expect_refusal(answer, Reason::PathEscapes).with_context(|| path.to_owned())?;
    }
    let there = run(client, &name, shell("ls -A /tmp")).await?;
    assert_eq!(there.text(), "");
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_damaged_archive_leaves_nothing() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let data = vec![7; 100_000];
    let whole = tar(&[("a", &data, 0o644), ("b/c", &data, 0o644)])?;
    let mut torn = whole.clone();
    torn.truncate(150_000);
    refuse(client, &name, torn, Reason::ArchiveInvalid).await?;
    let mut bent = whole.clone();
    bent[101_000] ^= 0x55;
    let header = whole.len() - 1024 - 100_352 - 512;
    bent[header + 20] ^= 0x55;
    refuse(client, &name, bent, Reason::ArchiveInvalid).await?;
    refuse(client, &name, vec![b'x'; 5000], Reason::ArchiveInvalid).await?;

    let before = contents(client, &name).await?;
    let mut zipped = gzip(&whole)?;
    zipped.truncate(zipped.len() / 2);
    for bytes in [zipped, b"not gzip at all".to_vec()] {
        let target = UploadTarget {
            kind: UploadKind::TarGz,
            ..UploadTarget::tar(&name, "work/z")
        };
        expect_refusal(stage(client, target, bytes).await, Reason::ArchiveInvalid)?;
    }
    assert_eq!(contents(client, &name).await?, before);
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_archive_of_100_000_entries_is_refused() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let before = contents(client, &name).await?;
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    for number in 0..100_000 {
        builder.append_data(&mut header, format!("f{number}"), std::io::empty())?;
    }
    let target = UploadTarget {
        kind: UploadKind::TarGz,
        ..UploadTarget::tar(&name, "work/many")
    };
    let answer = stage(client, target, gzip(&builder.into_inner()?)?).await;
    let failure = expect_refusal(answer, Reason::LimitExceeded)?;
    assert_eq!(failure.metadata["limit"], "20000");
    assert_eq!(contents(client, &name).await?, before);
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_wrong_checksum_leaves_the_old_file() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    put(client, &name, "work/data", "old").await?;
    let before = contents(client, &name).await?;
    let target = UploadTarget {
        sha256: sha256(b"other"),
        ..UploadTarget::file(&name, "work/data")
    };
    let answer = stage(client, target, "new").await;
    let failure = expect_refusal(answer, Reason::ChecksumMismatch)?;
    assert_eq!(failure.metadata.get("sha256"), Some(&sha256(b"new")));
    let archive = tar(&[("a", b"a", 0o644)])?;
    let target = UploadTarget {
        sha256: sha256(b"other"),
        ..UploadTarget::tar(&name, "work")
    };
    let answer = stage(client, target, archive).await;
    expect_refusal(answer, Reason::ChecksumMismatch)?;
    assert_eq!(read(client, &name, "work/data").await?, b"old");
    assert_eq!(contents(client, &name).await?, before);
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_stream_that_breaks_or_has_no_header_leaves_nothing() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let before = contents(client, &name).await?;
    let header = StageFilesRequest {
        workspace: name.clone(),
        payload: Some(Payload::Header(StageFilesHeader {
            path: "work/half".to_owned(),
            ..StageFilesHeader::default()
        })),
    };
    let data = |bytes: usize| StageFilesRequest {
        payload: Some(Payload::Data(vec![1; bytes].into())),
        ..StageFilesRequest::default()
    };
    // The client goes away in the middle.
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let mut stub = client.files();
    let call = stub.stage_files(tokio_stream::wrappers::ReceiverStream::new(receiver));
    tokio::select! {
        answer = call => anyhow::bail!("it answered before the end: {answer:?}"),
        sent = async {
            for message in [header.clone(), data(100_000), data(100_000), data(100_000)] {
                sender.send(message).await?;
            }
            anyhow::Ok(())
        } => sent?,
    }
    for messages in [
        vec![StageFilesRequest {
            workspace: name.clone(),
            ..data(10)
        }],
        vec![header.clone(), header.clone()],
        vec![header.clone(), data((1 << 20) + 1)],
        vec![header.clone(), StageFilesRequest::default()],
        vec![],
    ] {
        let count = messages.len();
        let answer = client
            .files()
            .stage_files(tokio_stream::iter(messages))
            .await;
        expect_refusal(answer, Reason::InvalidRequest).context(count)?;
    }
    // What the first one had begun goes once the guest notices.
    skilld_tests::wait::until(
        "nothing is left",
        std::time::Duration::from_secs(5),
        async || {
            let now = contents(client, &name).await?;
            Ok((now == before).then_some(()))
        },
    )
    .await?;
    still_well(client, &name).await?;
    daemon.stop().await
}
