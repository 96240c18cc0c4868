//! PublishSkill and DeleteSkill of a whole server.

use super::*;

fn header(name: &str, format: pb::SkillArchiveFormat, sha256: &str) -> Payload {
    Payload::Header(pb::PublishSkillHeader {
        name: format!("skills/{name}"),
        format: format.into(),
        sha256: sha256.to_owned(),
    })
}

fn messages(name: &str, sha256: &str, archive: &[u8]) -> Vec<pb::PublishSkillRequest> {
    let message = |payload| pb::PublishSkillRequest {
        payload: Some(payload),
    };
    let first = message(header(name, pb::SkillArchiveFormat::Unspecified, sha256));
    let data = archive
        .chunks(700)
        .map(|piece| message(Payload::Data(piece.to_vec().into())));
    std::iter::once(first).chain(data).collect()
}

/// Makes a tar of a symbolic link and the rest of another tar.
fn with_link(name: &str, target: &str, rest: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, name, target).expect("tar");
    let link = std::mem::take(builder.get_mut());
    [link.as_slice(), rest].concat()
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn the_api_publishes_and_deletes_skills() {
    let server = TestServer::start("", &[("local", "name: local\ndescription: d")]).await;
    let mut skills = server.client.skills();
    let archive = skill("csv", "1.0");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&archive)).to_uppercase();
    let published = skills
        .publish_skill(stream::iter(messages("csv", &sha256, &archive)))
        .await
        .expect("published")
        .into_inner();
    assert_eq!(published.name, "skills/csv");
    assert_eq!(published.state(), pb::SkillState::Loaded);
    assert_eq!(
        (published.file_count, published.version.as_str()),
        (2, "1.0")
    );
    let got = server.client.get_skill("csv@1.0").await.expect("there");
    assert_eq!(
        (got.digest.as_str(), got.body.as_str()),
        (published.digest.as_str(), "# csv\n")
    );
    let workspace = server.workspace().await;
    let staged = server
        .client
        .stage_skills(&workspace, &["csv"])
        .await
        .expect("staged");
    assert_eq!(staged[0].digest, published.digest);
    let refreshed = skills
        .refresh_skills(pb::RefreshSkillsRequest {})
        .await
        .expect("refreshed")
        .into_inner();
    assert_eq!(
        (
            refreshed.loaded_count,
            refreshed.rejected_count,
            refreshed.shadowed_count
        ),
        (2, 0, 0)
    );

    let delete = async |name: &str| {
        let request = pb::DeleteSkillRequest {
            name: name.to_owned(),
            allow_missing: false,
        };
        server.client.skills().delete_skill(request).await
    };
    let status = delete("skills/local").await.expect_err("of a root");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::FailedPrecondition, "READ_ONLY")
    );
    delete(&format!("skills/csv@{}", published.digest))
        .await
        .expect("deleted");
    let status = delete("skills/csv").await.expect_err("gone");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::NotFound, "SKILL_NOT_FOUND")
    );
    assert_eq!(
        server
            .client
            .stage_skills(&workspace, &[format!("csv@{}", published.digest)])
            .await
            .expect("still stored")[0]
            .digest,
        published.digest
    );
    assert!(server.stop().await);
}

#[tokio::test]
async fn an_unusable_entry_is_left_out_and_named_in_the_answer() {
    let server = TestServer::start("", &[]).await;
    let archive = with_link("venv/python3", "/usr/bin/python3", &skill("csv", "1.0"));
    let mut skills = server.client.skills();
    // The same again is published as it was, and the answer says the same.
    for _ in 0..2 {
        let published = skills
            .publish_skill(stream::iter(messages("csv", "", &archive)))
            .await
            .expect("published")
            .into_inner();
        assert_eq!(published.state(), pb::SkillState::LoadedWithWarnings);
        assert_eq!(published.file_count, 2);
        let [problem] = published.problems.as_slice() else {
            panic!("{:?}", published.problems);
        };
        assert_eq!(problem.code, "skill.left_out");
        let named = "venv/python3 is a link out of the archive, to /usr/bin/python3";
        assert!(problem.message.ends_with(named), "{}", problem.message);
    }
    let without_document = with_link(
        "csv/SKILL.md",
        "/etc/passwd",
        &tar_of([("csv/x", b"x".as_slice(), 0o644)]),
    );
    let refused = skills
        .publish_skill(stream::iter(messages("csv", "", &without_document)))
        .await
        .expect_err("no document");
    assert_eq!(reason(&refused), "ARCHIVE_INVALID");
    assert!(
        refused.message().contains("csv/SKILL.md is a link out"),
        "{refused}"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_keeps_its_permit_after_its_client_has_left() {
    let server = TestServer::start_after("", &[], |config| config.skills.publishes_max = 1).await;
    let tmp = server.state_dir().join("skills/tmp");
    let data: Vec<String> = (0..2_000).map(|n| format!("data/{n}")).collect();
    let begun = || {
        names(&tmp)
            .iter()
            .any(|name| tmp.join(name).join("skill").is_dir())
    };
    let mut rounds = 0;
    let large = loop {
        let name = format!("large-{rounds}");
        let skill_files = files(&name, "1.0");
        let own = skill_files
            .iter()
            .map(|(path, text, mode)| (*path, text.as_bytes(), *mode));
        let archive = tar_of(
            own.chain(
                data.iter()
                    .map(|path| (path.as_str(), path.as_bytes(), 0o644)),
            ),
        );
        let mut skills = server.client.skills();
        let unpacking = within(async {
            while !begun() {
                tokio::task::yield_now().await;
            }
        });
        tokio::select! {
            () = unpacking => break name,
            done = skills.publish_skill(stream::iter(messages(&name, "", &archive))) => {
                // A busy machine let this test look too late.
                done.expect("published");
            }
        }
        rounds += 1;
        assert!(rounds < 10, "it was seen too late each time");
    };
    // Its client has gone, and it has not ended.
    let small = messages("small", "", &skill("small", "1.0"));
    let mut skills = server.client.skills();
    skills
        .publish_skill(stream::iter(small))
        .await
        .expect("published");
    assert_eq!(
        names(&tmp),
        Vec::<String>::new(),
        "two were unpacked at once"
    );
    server
        .client
        .get_skill(&large)
        .await
        .expect("published as well");
    assert!(server.stop().await);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn uploads_that_lie_end_early_or_fall_silent_leave_nothing() {
    let server = TestServer::start("skills.bytes_max = \"64KiB\"", &[]).await;
    let mut skills = server.client.skills();
    let archive = skill("csv", "1.0");
    let link = with_link("SKILL.md", "/etc/passwd", &[0; 1024]);
    let climbing = zip_of(&[("../../../tmp/skilld-escaped", b"x", 0o644)]);
    let bomb = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&vec![0; 6 << 20]).expect("gzip");
        encoder.finish().expect("gzip")
    };
    let mut twice = messages("csv", "", &archive);
    twice[1] = pb::PublishSkillRequest {
        payload: Some(header("csv", pb::SkillArchiveFormat::Tar, "")),
    };
    let mut wrong_kind = messages("csv", "", &archive);
    wrong_kind[0].payload = Some(header("csv", pb::SkillArchiveFormat::Zip, ""));
    let invalid = (Code::InvalidArgument, "INVALID_REQUEST");
    let archive_invalid = (Code::InvalidArgument, "ARCHIVE_INVALID");
    let limit_exceeded = (Code::ResourceExhausted, "LIMIT_EXCEEDED");
    for (what, messages, expected) in [
        (
            "another checksum",
            messages("csv", &"0".repeat(64), &archive),
            (Code::InvalidArgument, "CHECKSUM_MISMATCH"),
        ),
        (
            "cut off",
            messages("csv", "", &archive[..archive.len() - 1100]),
            archive_invalid,
        ),
        ("no bytes", messages("csv", "", b""), archive_invalid),
        (
            "nothing but a link out",
            messages("csv", "", &link),
            archive_invalid,
        ),
        (
            "a climbing name",
            messages("csv", "", &climbing),
            archive_invalid,
        ),
        ("a bomb", messages("csv", "", &bomb), limit_exceeded),
        (
            "too large",
            messages("csv", "", &vec![b'x'; 70 << 10]),
            limit_exceeded,
        ),
        ("another name", messages("other", "", &archive), invalid),
        (
            "a name that is a path",
            messages("../csv", "", &archive),
            invalid,
        ),
        ("two headers", twice, invalid),
        ("another kind", wrong_kind, archive_invalid),
        (
            "no header",
            messages("csv", "", &archive).split_off(1),
            invalid,
        ),
        ("nothing", Vec::new(), invalid),
    ] {
        let status = skills
            .publish_skill(stream::iter(messages))
            .await
            .expect_err(what);
        let found = (status.code(), reason(&status));
        assert_eq!((found.0, found.1.as_str()), expected, "{what}: {status}");
    }
    // A short timeout, only now: a pause of the machine would end the other uploads as well.
    let mut stopped = server.shut_down().await;
    stopped.config.server.upload_timeout = Duration::from_millis(300);
    let server = stopped.start().await;
    let silent = futures::StreamExt::chain(
        stream::iter(messages("csv", "", &archive)),
        stream::pending(),
    );
    let mut skills = server.client.skills();
    let status = within(skills.publish_skill(silent))
        .await
        .expect_err("silent");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::DeadlineExceeded, "DEADLINE")
    );
    assert!(!Path::new("/tmp/skilld-escaped").exists());
    let server = server
        .restart(|state| {
            for dir in ["tmp", "sha256", "published"] {
                assert_empty(&state.join("skills").join(dir));
            }
        })
        .await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn an_unused_digest_leaves_the_store_of_a_running_server() {
    let server = TestServer::start("skills.keep_unused = \"1ms\"", &[]).await;
    let mut skills = server.client.skills();
    let mut publish = async |version: &str| {
        let messages = messages("csv", "", &skill("csv", version));
        skills
            .publish_skill(stream::iter(messages))
            .await
            .expect("published")
            .into_inner()
            .digest
    };
    let (first, second) = (publish("1.0").await, publish("2.0").await);
    let workspace = server.workspace().await;
    server
        .client
        .stage_skills(&workspace, &[format!("csv@{second}")])
        .await
        .expect("staged");
    let request = pb::DeleteSkillRequest {
        name: "skills/csv".to_owned(),
        allow_missing: false,
    };
    server
        .client
        .skills()
        .delete_skill(request)
        .await
        .expect("deleted");
    // The sweep comes right after the delete and once more when the time is over.
    let store = server.state_dir().join("skills/sha256");
    let digest = |text: &str| text.trim_start_matches("sha256:").to_owned();
    let unused = store.join(digest(&first));
    wait_until("the unused digest is removed", async || {
        (!unused.exists()).then_some(())
    })
    .await;
    // The workspace's record holds the other one.
    assert_eq!(names(&store), [digest(&second)]);
    let again = format!("csv@{second}");
    server
        .client
        .stage_skills(&workspace, &[again])
        .await
        .expect("staged");
    assert!(server.stop().await);
}
