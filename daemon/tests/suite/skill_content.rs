//! Skills as those see them who read and search them over the wire: files, their bytes, ranking. No Docker.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use skilld_client::Error;
use skilld_proto::v1::SkillFileKind;
use skilld_proto::v1::{
    ErrorReason, ListSkillFilesRequest, ListSkillFilesResponse, ReadSkillFileRequest,
    SearchSkillsRequest, SkillFile, SkillScoring,
};

use crate::server::TestServer;

const FRONT: &str = "name: docs\ndescription: Reads and fills forms.\ntags: [office]";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\xff\xfe";

fn write(dir: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = dir.join(path);
    fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
    fs::write(path, bytes).expect("write");
}

/// A server with one skill of every kind of file.
async fn docs() -> TestServer {
    let server = TestServer::start("", &[("docs", FRONT)]).await;
    let dir = skills_dir(&server).join("docs");
    for (path, bytes) in [
        ("references/api.md", b"# API\n".as_slice()),
        ("references/deep/more.md", b"more"),
        ("reference.md", b"not REFERENCE.md"),
        ("assets/logo.png", PNG),
        ("scripts/fill.py", b"import json\n"),
        ("data.csv", b"a,b\n1,2\n"),
        ("child/SKILL.md", b"---\nname: child\ndescription: d\n---\n"),
        ("child/own.md", b"own"),
    ] {
        write(&dir, path, bytes);
    }
    symlink("references/api.md", dir.join("link.md")).expect("symlink");
    refresh(&server).await;
    server
}

/// Makes the server look for changes of its roots.
async fn refresh(server: &TestServer) {
    server.client.refresh_skills().await.expect("refreshed");
}

async fn list(server: &TestServer, page_size: i32, path: &str) -> Vec<SkillFile> {
    let mut request = ListSkillFilesRequest {
        parent: "docs".into(),
        page_size,
        path: path.into(),
        ..Default::default()
    };
    let mut all = Vec::new();
    loop {
        let page: ListSkillFilesResponse = server
            .client
            .list_skill_files(request.clone())
            .await
            .expect("listed");
        all.extend(page.files);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return all;
        }
    }
}

async fn read_part(
    server: &TestServer,
    path: &str,
    offset: i64,
    length: i64,
) -> Result<(SkillFile, Vec<u8>), Error> {
    let request = ReadSkillFileRequest {
        name: "docs".into(),
        path: path.into(),
        offset,
        length,
        ..Default::default()
    };
    let mut reader = server.client.read_skill_file(request).await?;
    let mut bytes = Vec::new();
    while let Some(data) = reader.next().await? {
        assert!(data.len() <= 256 << 10, "{} bytes at once", data.len());
        bytes.extend_from_slice(&data);
    }
    Ok((reader.header().clone(), bytes))
}

async fn read(server: &TestServer, path: &str) -> Result<(SkillFile, Vec<u8>), Error> {
    read_part(server, path, 0, 0).await
}

/// Why a file was not read, and what is named instead.
async fn refused(server: &TestServer, path: &str) -> (ErrorReason, String) {
    let error = read(server, path).await.expect_err(path);
    let failure = error
        .failure()
        .unwrap_or_else(|| panic!("{path:?}: {error}"));
    let nearest = failure.metadata.get("nearest").cloned();
    (
        failure.reason.expect("a reason"),
        nearest.unwrap_or_default(),
    )
}

/// The root of a server's skills, which is beside its state.
fn skills_dir(server: &TestServer) -> PathBuf {
    server.state_dir().with_file_name("skills")
}

#[tokio::test]
async fn a_skills_files_are_listed_whole_in_order_and_by_pages() {
    let server = docs().await;
    let all = list(&server, 0, "").await;
    let paths: Vec<&str> = all.iter().map(|file| file.path.as_str()).collect();
    // The child's are the child's; of what staging adds nothing shows.
    assert_eq!(
        paths,
        [
            "SKILL.md",
            "assets/logo.png",
            "data.csv",
            "link.md",
            "reference.md",
            "references/api.md",
            "references/deep/more.md",
            "scripts/fill.py",
        ]
    );
    for page_size in 1..=9 {
        assert_eq!(list(&server, page_size, "").await, all, "{page_size}");
    }
    let kinds: Vec<SkillFileKind> = all.iter().map(SkillFile::kind).collect();
    use SkillFileKind::{Asset, Document, Other, Reference, Script};
    assert_eq!(
        kinds,
        [
            Document, Asset, Other, Document, Document, Reference, Reference, Script
        ]
    );
    let png = &all[1];
    assert_eq!(
        (png.mime_type.as_str(), png.is_text, png.size_bytes),
        ("image/png", false, 11)
    );
    assert_eq!(png.sha256.len(), 64);
    let beneath = list(&server, 1, "./references//").await;
    assert_eq!(beneath, all[5..7]);
    assert_eq!(list(&server, 0, "nothing").await, []);
    assert!(server.stop().await);
}

#[tokio::test]
async fn a_file_is_read_byte_for_byte_whole_or_in_part() {
    let server = docs().await;
    let large: Vec<u8> = (0..=250_u8).cycle().take((1 << 20) - 7).collect();
    write(
        &skills_dir(&server).join("docs"),
        "assets/large.bin",
        &large,
    );
    refresh(&server).await;
    let (file, bytes) = read(&server, "assets/large.bin").await.expect("read");
    assert_eq!((file.size_bytes, bytes == large), (1_048_569, true));
    let (_, bytes) = read(&server, "assets/logo.png").await.expect("read");
    assert_eq!(bytes, PNG);
    let (_, bytes) = read_part(&server, "assets/large.bin", 300_000, 600_000)
        .await
        .expect("read");
    assert!(bytes == large[300_000..900_000]);
    let (file, bytes) = read_part(&server, "data.csv", 4, 100).await.expect("read");
    assert_eq!(
        (file.size_bytes, bytes.as_slice()),
        (8, b"1,2\n".as_slice())
    );
    let (_, bytes) = read_part(&server, "data.csv", i64::MAX, 0)
        .await
        .expect("read");
    assert_eq!(bytes, b"");
    assert!(server.stop().await);
}

#[tokio::test]
async fn served_text_names_the_skills_folder_in_the_workspace() {
    let server = docs().await;
    let dir = skills_dir(&server).join("docs");
    let text = "Run {baseDir}/x, __BASE_DIR__/y and ${CLAUDE_PLUGIN_ROOT}/skills/docs/z.\n";
    let served =
        "Run /workspace/skills/docs/x, /workspace/skills/docs/y and /workspace/skills/docs/z.\n";
    write(&dir, "SKILL.md", format!("---\n{FRONT}\n---\n{text}"));
    write(&dir, "references/paths.md", text);
    let latin1 = [b"{baseDir}".as_slice(), PNG].concat();
    write(&dir, "assets/data.bin", &latin1);
    refresh(&server).await;

    let skill = server.client.get_skill("docs").await.expect("a skill");
    assert_eq!(skill.body, served);
    let (file, bytes) = read(&server, "references/paths.md").await.expect("read");
    assert_eq!(
        (file.size_bytes, bytes.as_slice()),
        (i64::try_from(text.len()).expect("short"), text.as_bytes())
    );

    let request = |path: &str, offset: i64, length: i64| ReadSkillFileRequest {
        name: "docs".into(),
        path: path.into(),
        offset,
        length,
        workspace_paths: true,
        ..Default::default()
    };
    for (offset, length, expected) in [
        (0, 0, served),
        (4, 22, "/workspace/skills/docs"),
        (i64::try_from(served.len()).expect("short") - 3, 100, "z.\n"),
        (1 << 40, 0, ""),
    ] {
        let part = request("references/paths.md", offset, length);
        let mut reader = server.client.read_skill_file(part).await.expect("opened");
        assert_eq!(
            reader.header().size_bytes,
            i64::try_from(served.len()).expect("short")
        );
        assert_eq!(reader.header().sha256, file.sha256);
        let mut read = Vec::new();
        while let Some(data) = reader.next().await.expect("read") {
            read.extend_from_slice(&data);
        }
        assert_eq!(String::from_utf8(read).expect("text"), expected);
    }
    // What is no text is sent as it is.
    let binary = request("assets/data.bin", 0, 0);
    let mut reader = server.client.read_skill_file(binary).await.expect("opened");
    assert_eq!(
        reader.next().await.expect("read").as_deref(),
        Some(latin1.as_slice())
    );
    assert!(server.stop().await);
}

#[tokio::test]
async fn a_path_is_understood_as_documents_write_it() {
    let server = docs().await;
    for (path, expected) in [
        ("./references//api.md", "references/api.md"),
        ("REFERENCE.md", "reference.md"),
        ("References/API.md", "references/api.md"),
        ("link.md", "link.md"),
    ] {
        let (file, bytes) = read(&server, path).await.expect(path);
        assert_eq!(file.path, expected);
        assert_eq!(i64::try_from(bytes.len()), Ok(file.size_bytes));
    }
    for (path, reason, nearest) in [
        ("api.md", ErrorReason::FileNotFound, "references/api.md"),
        (
            "references/apj.md",
            ErrorReason::FileNotFound,
            "references/api.md",
        ),
        // The child's.
        ("child/own.md", ErrorReason::FileNotFound, ""),
        ("zzzzzzzzzz", ErrorReason::FileNotFound, ""),
        ("references", ErrorReason::WrongFileType, ""),
        // What staging puts beside the files is not there.
        ("out/x", ErrorReason::FileNotFound, ""),
        (".venv", ErrorReason::FileNotFound, ""),
        ("../docs/SKILL.md", ErrorReason::PathEscapes, ""),
        (
            "references/../../../../etc/passwd",
            ErrorReason::PathEscapes,
            "",
        ),
        ("/etc/passwd", ErrorReason::PathEscapes, ""),
        ("a\0b", ErrorReason::InvalidRequest, ""),
        ("a\\b", ErrorReason::InvalidRequest, ""),
        ("", ErrorReason::InvalidRequest, ""),
        (&"x".repeat(513), ErrorReason::InvalidRequest, ""),
        (&"x/".repeat(33), ErrorReason::InvalidRequest, ""),
    ] {
        let refused = refused(&server, path).await;
        assert_eq!(refused, (reason, nearest.to_owned()), "{path:?}");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn nothing_outside_of_a_skill_is_read() {
    let server = docs().await;
    let dir = skills_dir(&server).join("docs");
    // A link may lead to elsewhere in the root, which is trusted, and no further.
    write(&skills_dir(&server).join(".."), "canary", "secret");
    symlink("../../../canary", dir.join("references/out.md")).expect("symlink");
    nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    refresh(&server).await;
    // The skill is used without them.
    for path in ["references/out.md", "pipe"] {
        assert_eq!(refused(&server, path).await.0, ErrorReason::FileNotFound);
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn documents_in_other_encodings_are_listed_and_read_as_text() {
    let server = docs().await;
    let dir = skills_dir(&server).join("docs");
    let text = "Größe;Stück\n1;2\n";
    let latin: Vec<u8> = text
        .chars()
        .map(|c| u8::try_from(c).expect("Latin-1"))
        .collect();
    let utf16 = text.encode_utf16().flat_map(u16::to_le_bytes);
    let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(utf16).collect();
    for (path, bytes) in [
        ("references/w.md", latin),
        ("references/u.md", utf16),
        ("references/b.md", format!("\u{feff}{text}").into_bytes()),
    ] {
        write(&dir, path, bytes);
    }
    // The same name in the form of macOS.
    write(&dir, "references/u\u{308}ber.md", text);
    refresh(&server).await;
    let listed = list(&server, 0, "references").await;
    let encodings: Vec<_> = listed
        .iter()
        .map(|file| {
            assert!(file.is_text, "{file:?}");
            (file.path.as_str(), file.encoding.as_str())
        })
        .filter(|(_, encoding)| !encoding.is_empty())
        .collect();
    let expected = [
        ("references/u.md", "UTF-16LE"),
        ("references/w.md", "windows-1252"),
    ];
    assert_eq!(encodings, expected);
    for (path, encoding) in [
        ("references/w.md", "windows-1252"),
        ("references/u.md", "UTF-16LE"),
        ("references/b.md", ""),
        ("references/über.md", ""),
    ] {
        let request = ReadSkillFileRequest {
            name: "docs".into(),
            path: path.into(),
            workspace_paths: true,
            ..Default::default()
        };
        let mut reader = server.client.read_skill_file(request).await.expect(path);
        let mut bytes = Vec::new();
        while let Some(data) = reader.next().await.expect("read") {
            bytes.extend_from_slice(&data);
        }
        assert_eq!(String::from_utf8(bytes).as_deref(), Ok(text), "{path}");
        assert_eq!(reader.header().encoding, encoding, "{path}");
        assert_eq!(
            reader.header().size_bytes,
            i64::try_from(text.len()).expect("small")
        );
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn a_listing_is_of_the_version_that_was_asked_for() {
    let server = docs().await;
    let before = server.client.get_skill("docs").await.expect("there");
    let old = list(&server, 0, "").await;
    write(&skills_dir(&server).join("docs"), "data.csv", "other");
    refresh(&server).await;
    let new = list(&server, 0, "").await;
    assert_eq!((old[2].size_bytes, new[2].size_bytes), (8, 5));
    let request = ReadSkillFileRequest {
        name: format!("docs@{}", before.digest),
        path: "data.csv".into(),
        ..Default::default()
    };
    let mut reader = server.client.read_skill_file(request).await.expect("kept");
    assert_eq!(
        reader.next().await.expect("read").expect("bytes"),
        "a,b\n1,2\n"
    );
    assert!(server.stop().await);
}

#[tokio::test]
async fn skills_are_found_by_words_and_the_best_one_is_first() {
    let server = TestServer::start(
        "",
        &[
            ("docs", FRONT),
            (
                "forms",
                "name: forms\ndescription: Use when the user asks.\nversion: '1'",
            ),
            (
                "tagged",
                "name: tagged\ndescription: Use when the user asks.\ntags: [forms]",
            ),
        ],
    )
    .await;
    let search = async |query: &str, limit: i32, compat: bool| {
        let request = SearchSkillsRequest {
            query: query.into(),
            page_size: limit,
            scoring: match compat {
                true => SkillScoring::AgentZero.into(),
                false => SkillScoring::Relevance.into(),
            },
            ..Default::default()
        };
        let answer = server.client.search_skills(request).await?;
        let found = answer.matches.into_iter().map(|found| {
            let name = found.skill.expect("a skill").name;
            (name.replace("skills/", ""), found.matched_fields.join(","))
        });
        Ok::<_, Error>(found.collect::<Vec<_>>())
    };
    let row = |name: &str, fields: &str| (name.to_owned(), fields.to_owned());
    let expected = [
        row("forms", "name"),
        row("docs", "description"),
        row("tagged", "tags"),
    ];
    for reduced in [0, 101] {
        let found = search("forms", reduced, false).await.expect("found");
        assert_eq!(found, expected);
    }
    assert_eq!(
        search("forms", 1, false).await.expect("found"),
        expected[..1]
    );
    assert_eq!(search("FORMS", 0, true).await.expect("found"), expected);
    assert_eq!(search("nothing", 0, false).await.expect("found"), []);
    for (query, limit) in [("", 0), (" ", 0), ("use when", 0), ("forms", -1)] {
        let error = search(query, limit, false).await.expect_err(query);
        let reason = error.failure().and_then(|failure| failure.reason);
        assert_eq!(
            reason,
            Some(ErrorReason::InvalidRequest),
            "{query:?} {limit}"
        );
    }
    let long = "x".repeat(1025);
    assert!(search(&long, 0, true).await.is_err());
    // A new skill is found after a refresh.
    write(
        &skills_dir(&server),
        "new/SKILL.md",
        "---\nname: new\ndescription: zebra\n---\n",
    );
    refresh(&server).await;
    assert_eq!(
        search("zebra", 0, false).await.expect("found"),
        [row("new", "description")]
    );
    assert!(server.stop().await);
}
