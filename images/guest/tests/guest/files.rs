//! Uploads, listings and reads of files: round trips and refusals.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use sha2::{Digest, Sha256};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{self, StageFormat};
use tonic::Status;

use crate::support::{Guest, reason};

impl Guest {
    /// Uploads data under a header, in several messages.
    pub(crate) async fn put(
        &self,
        header: wire::PutFilesHeader,
        data: &[u8],
    ) -> Result<v1::StageFilesResponse, Status> {
        use wire::put_files_request::Payload;
        let mut payloads = vec![Payload::Header(header)];
        payloads.extend(
            data.chunks(100_000)
                .map(|chunk| Payload::Data(chunk.to_vec().into())),
        );
        let messages = payloads.into_iter().map(|payload| wire::PutFilesRequest {
            payload: Some(payload),
        });
        let stream = tokio_stream::iter(messages.collect::<Vec<_>>());
        self.client
            .clone()
            .put_files(stream)
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) async fn read(
        &self,
        path: &str,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, Status> {
        let request = wire::ReadFileRequest {
            path: path.to_owned(),
            offset,
            length,
        };
        let mut stream = self.client.clone().read_file(request).await?.into_inner();
        let first = stream.message().await?.expect("a first message");
        assert!(matches!(first.payload, Some(Payload::File(_))));
        let mut bytes = Vec::new();
        while let Some(message) = stream.message().await? {
            let Some(Payload::Data(data)) = message.payload else {
                panic!("data");
            };
            assert!(!data.is_empty() && data.len() <= 256 * 1024);
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    /// Returns all paths of the workspace; directories end with a slash.
    pub(crate) fn tree(&self) -> Vec<String> {
        fn walk(directory: &std::path::Path, prefix: &str, found: &mut Vec<String>) {
            for entry in fs::read_dir(directory).expect("a directory").flatten() {
                let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
                if entry.file_type().expect("a type").is_dir() {
                    found.push(format!("{path}/"));
                    walk(&entry.path(), &format!("{path}/"), found);
                } else {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.workspace(), "", &mut found);
        found.sort();
        found
    }
}

pub(crate) fn header(kind: StageFormat, path: &str) -> wire::PutFilesHeader {
    wire::PutFilesHeader {
        file: Some(v1::StageFilesHeader {
            format: kind.into(),
            path: path.to_owned(),
            ..Default::default()
        }),
        entries_max: 20_000,
        bytes_max: 1 << 30,
    }
}

pub(crate) fn sha256(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[tokio::test]
async fn a_file_goes_in_and_comes_out() {
    let guest = Guest::start().await;
    let data: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
    let mut file = header(StageFormat::File, "work/inputs/deep/er/a.bin");
    if let Some(file) = &mut file.file {
        file.mode = Some(0o755);
        file.sha256 = sha256(&data);
    }
    let put = guest.put(file, &data).await.expect("put");
    assert_eq!((put.file_count, put.size_bytes), (1, 3_000_000));
    assert_eq!(put.files[0].path, "work/inputs/deep/er/a.bin");
    assert_eq!(put.files[0].sha256, sha256(&data));
    let path = guest.workspace().join("work/inputs/deep/er/a.bin");
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    let path = "work/inputs/deep/er/a.bin";
    assert_eq!(guest.read(path, 0, 0).await.expect("read"), data);
    assert_eq!(
        guest.read(path, 1_000_001, 300_000).await.expect("read"),
        data[1_000_001..1_300_001]
    );
    assert_eq!(
        guest.read(path, 2_999_999, 10).await.expect("read"),
        data[2_999_999..]
    );
    assert!(
        guest
            .read(path, 5_000_000, 0)
            .await
            .expect("read")
            .is_empty()
    );
    assert!(
        guest
            .put(header(StageFormat::File, "out/empty"), b"")
            .await
            .is_ok()
    );
    assert_eq!(guest.read("out/empty", 0, 0).await.expect("read"), b"");
    // Again, over it.
    guest
        .put(header(StageFormat::File, path), b"new")
        .await
        .expect("put");
    assert_eq!(guest.read(path, 0, 0).await.expect("read"), b"new");
    assert!(!guest.workspace().join(".stage").exists());
}

#[tokio::test]
async fn refused_uploads_leave_nothing() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    symlink("/tmp", ws.join("work/abs")).expect("a link");
    symlink("../..", ws.join("work/up")).expect("a link");
    fs::create_dir(ws.join("out/directory")).expect("made");
    fs::write(ws.join("out/file"), "x").expect("made");
    let before = guest.tree();
    let check = async |path: &str, expected: &str| {
        let refused = guest
            .put(header(StageFormat::File, path), b"data")
            .await
            .expect_err(path);
        assert_eq!(reason(&refused), expected, "{path}");
        assert_eq!(guest.tree(), before, "{path}");
    };
    check("../x", "PATH_ESCAPES").await;
    check("/etc/x", "PATH_ESCAPES").await;
    check("work/../../x", "PATH_ESCAPES").await;
    check("work/abs/x", "PATH_ESCAPES").await;
    check("work/up/x", "PATH_ESCAPES").await;
    check("skills/x", "READ_ONLY").await;
    check("out/directory", "WRONG_FILE_TYPE").await;
    check("out/file/x", "WRONG_FILE_TYPE").await;
    check("", "INVALID_REQUEST").await;
    check("a\0b", "INVALID_REQUEST").await;
    check(&"x".repeat(300), "INVALID_REQUEST").await;

    let mut wrong = header(StageFormat::File, "out/sum");
    wrong.file.as_mut().expect("a file").sha256 = sha256(b"other");
    let refused = guest.put(wrong, b"data").await.expect_err("a wrong sum");
    assert_eq!(reason(&refused), "CHECKSUM_MISMATCH");
    let mut large = header(StageFormat::File, "out/large");
    large.bytes_max = 10;
    let refused = guest
        .put(large, b"more than ten")
        .await
        .expect_err("too large");
    assert_eq!(reason(&refused), "LIMIT_EXCEEDED");
    let mut setuid = header(StageFormat::File, "out/setuid");
    setuid.file.as_mut().expect("a file").mode = Some(0o4755);
    let refused = guest.put(setuid, b"x").await.expect_err("set-id");
    assert_eq!(reason(&refused), "INVALID_REQUEST");
    assert_eq!(guest.tree(), before);
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_nothing() {
    use wire::put_files_request::Payload;
    let guest = Guest::start().await;
    let before = guest.tree();
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut client = guest.client.clone();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let call = async move { client.put_files(stream).await };
    let mut call = Box::pin(call);
    for payload in [
        Payload::Header(header(StageFormat::File, "out/never")),
        Payload::Data(vec![0; 1000].into()),
    ] {
        let message = wire::PutFilesRequest {
            payload: Some(payload),
        };
        sender.send(message).await.expect("sent");
    }
    let staged = || guest.workspace().join(".stage").exists();
    while !staged() {
        let tick = tokio::time::sleep(std::time::Duration::from_millis(1));
        tokio::select! {
            answer = &mut call => panic!("{answer:?}"),
            () = tick => {}
        }
    }
    drop(call);
    crate::support::until("staging is cleared", || !staged()).await;
    assert_eq!(guest.tree(), before);
}

#[tokio::test]
async fn names_that_a_command_took_are_passed_over() {
    let guest = Guest::start().await;
    let stage = guest.workspace().join(".stage");
    for name in 0..100 {
        fs::create_dir_all(stage.join(name.to_string())).expect("made");
    }
    let header = header(StageFormat::File, "out/late");
    guest.put(header, b"content").await.expect("staged");
    assert_eq!(
        guest.read("out/late", 0, 0).await.expect("read"),
        b"content"
    );
    let left = fs::read_dir(&stage).expect("a directory").count();
    assert_eq!(left, 100, "what is the command's stays");
}

#[tokio::test]
async fn reading_refuses_what_is_no_file() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    nix::unistd::mkfifo(&ws.join("out/fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    symlink("/etc/passwd", ws.join("out/passwd")).expect("a link");
    symlink("../../../../etc/passwd", ws.join("out/far")).expect("a link");
    symlink("file", ws.join("out/near")).expect("a link");
    fs::write(ws.join("out/file"), "content").expect("a file");
    let check = async |path: &str, expected: &str| {
        let refused = guest.read(path, 0, 0).await.expect_err(path);
        assert_eq!(reason(&refused), expected, "{path}");
    };
    check("out/fifo", "WRONG_FILE_TYPE").await;
    check("out", "WRONG_FILE_TYPE").await;
    check("out/passwd", "PATH_ESCAPES").await;
    check("out/far", "PATH_ESCAPES").await;
    check("../x", "PATH_ESCAPES").await;
    check("out/none", "FILE_NOT_FOUND").await;
    check("out/file/x", "WRONG_FILE_TYPE").await;
    assert_eq!(
        guest.read("out/near", 0, 0).await.expect("read"),
        b"content"
    );
}

#[tokio::test]
async fn lists_are_sorted_paged_and_follow_no_link() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    for directory in ["out/a", "out/a/b", "out/a.d"] {
        fs::create_dir(ws.join(directory)).expect("made");
    }
    for file in ["out/a/x", "out/a/b/y", "out/a.d/z", "out/k"] {
        fs::write(ws.join(file), "12345").expect("made");
    }
    symlink("/etc", ws.join("out/link")).expect("a link");
    let ask = async |path: &str, recursive, page_size, token: String| {
        let request = wire::ListFilesRequest {
            path: path.to_owned(),
            recursive,
            page_size,
            page_token: token,
        };
        guest
            .client
            .clone()
            .list_files(request)
            .await
            .map(tonic::Response::into_inner)
    };
    let paths = |page: &v1::ListFilesResponse| -> Vec<String> {
        page.files.iter().map(|file| file.path.clone()).collect()
    };
    let flat = ask("out", false, 0, String::new()).await.expect("a list");
    assert_eq!(paths(&flat), ["out/a", "out/a.d", "out/k", "out/link"]);
    assert_eq!(flat.files[2].size_bytes, 5);
    assert_eq!(flat.files[3].link_target, "/etc");
    assert_eq!(flat.files[3].file_type(), v1::FileType::Symlink);
    let all = [
        "out/a",
        "out/a.d",
        "out/a.d/z",
        "out/a/b",
        "out/a/b/y",
        "out/a/x",
        "out/k",
        "out/link",
    ];
    for size in [1, 2, 3, 100] {
        let mut found = Vec::new();
        let mut token = String::new();
        loop {
            let page = ask("out", true, size, token).await.expect("a page");
            assert!(page.files.len() <= size as usize);
            found.extend(paths(&page));
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, all, "pages of {size}");
    }
    let one = ask("out/k", false, 0, String::new()).await.expect("a file");
    assert_eq!(paths(&one), ["out/k"]);
    let top = ask("", false, 0, String::new()).await.expect("a list");
    assert_eq!(paths(&top), ["metadata.json", "out", "runs", "work"]);
    let refused = ask("nowhere", false, 0, String::new())
        .await
        .expect_err("absent");
    assert_eq!(reason(&refused), "FILE_NOT_FOUND");
    let refused = ask("out", false, 0, "xyz".to_owned())
        .await
        .expect_err("a bad token");
    assert_eq!(reason(&refused), "INVALID_REQUEST");
}
