//! Uploaded archives: round trips, and hostile archives that must leave nothing in the workspace.

mod installation;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{SkipReason, StageFormat};
use tar::{Builder, EntryType, Header};

use crate::files::{header, sha256};
use crate::support::{Guest, reason};

/// Builds an entry with any name, including those that `tar` refuses to write.
fn entry(kind: EntryType, name: &[u8], link: &[u8], data: &[u8], mode: u32) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    if let Some(gnu) = header.as_gnu_mut() {
        let put = |field: &mut [u8], text: &[u8]| {
            let space = field.get_mut(..text.len()).expect("fits");
            space.copy_from_slice(text);
        };
        put(&mut gnu.name, name);
        put(&mut gnu.linkname, link);
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, data: &str) -> Vec<u8> {
    entry(
        EntryType::Regular,
        name.as_bytes(),
        b"",
        data.as_bytes(),
        0o644,
    )
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).expect("in memory");
    encoder.finish().expect("in memory")
}

#[tokio::test]
async fn archives_of_real_tar_unpack_as_they_were() {
    let guest = Guest::start().await;
    let source = tempfile::tempdir().expect("a directory");
    let long = format!("dir/{}/{}", "l".repeat(120), "m".repeat(130));
    let script = format!(
        "mkdir -p dir/sub empty {long}; echo hi > dir/a; head -c 100000 /dev/zero > dir/sub/zeros; \
         echo x > {long}/f; ln -s ../a dir/sub/link; chmod 750 dir/a; : > nothing"
    );
    let made = std::process::Command::new("bash")
        .arg("-c")
        .arg(script)
        .current_dir(&source)
        .status();
    assert!(made.expect("bash").success());
    for (format, kind) in [
        ("gnu", StageFormat::Tar),
        ("pax", StageFormat::Tar),
        ("gnu", StageFormat::TarGz),
    ] {
        let flags = if kind == StageFormat::TarGz {
            "-cz"
        } else {
            "-c"
        };
        let output = std::process::Command::new("tar")
            .args([flags, "--format", format, "."])
            .current_dir(&source)
            .output()
            .expect("tar");
        let base = format!("work/{format}{}", i32::from(kind));
        let mut request = header(kind, &base);
        request.file.as_mut().expect("a file").sha256 = sha256(&output.stdout);
        let put = guest.put(request, &output.stdout).await.expect("unpacks");
        assert_eq!(put.file_count, 5, "{put:?}");
        assert_eq!(put.size_bytes, 100_000 + 3 + 2);
        assert!(put.files.is_sorted_by_key(|file| file.path.clone()));
        let place = guest.workspace().join(base);
        let same = std::process::Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(source.path())
            .arg(&place)
            .output()
            .expect("diff");
        assert!(
            same.status.success(),
            "{}",
            String::from_utf8_lossy(&same.stdout)
        );
        let mode = fs::metadata(place.join("dir/a"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o750);
    }
    assert!(!guest.workspace().join(".stage").exists());
}

/// Uploads an archive, plain and compressed, and checks that it is refused for this reason and leaves nothing.
async fn check(guest: &Guest, name: &str, bytes: &[u8], expected: &str) {
    let before = guest.tree();
    for (kind, bytes) in [
        (StageFormat::Tar, bytes.to_vec()),
        (StageFormat::TarGz, gzip(bytes)),
    ] {
        let refused = guest
            .put(header(kind, "work/x"), &bytes)
            .await
            .expect_err(name);
        assert_eq!(reason(&refused), expected, "{name}: {}", refused.message());
        assert_eq!(guest.tree(), before, "{name}");
    }
}

fn link(name: &str, target: &str) -> Vec<u8> {
    entry(
        EntryType::Symlink,
        name.as_bytes(),
        target.as_bytes(),
        b"",
        0o777,
    )
}

/// Builds a PAX header that names the next entry, or all further ones.
fn pax(path: &str) -> Vec<u8> {
    pax_of(EntryType::XHeader, path)
}

fn pax_of(kind: EntryType, path: &str) -> Vec<u8> {
    let record = |length: usize| format!("{length} path={path}\n");
    let mut length = record(0).len();
    while record(length).len() != length {
        length = record(length).len();
    }
    entry(kind, b"pax", b"", record(length).as_bytes(), 0o644)
}

#[tokio::test]
async fn hostile_entries_are_refused_and_leave_nothing() {
    let guest = Guest::start().await;
    let good = file("good", "good");
    let hostile = [
        ("climbs", file("../x", "x")),
        ("climbs inside", file("a/../../x", "x")),
        (
            "through a link",
            [link("l", ".."), file("l/x", "x")].concat(),
        ),
        (
            "file above file",
            [file("f", "x"), file("f/g", "x")].concat(),
        ),
        (
            "directory with contents",
            entry(EntryType::Directory, b"d/", b"", b"x", 0o755),
        ),
        ("pax climbs", [pax("../../x"), file("x", "x")].concat()),
        (
            "a name for all",
            [pax_of(EntryType::XGlobalHeader, "y"), file("x", "x")].concat(),
        ),
    ];
    for (name, entry) in hostile {
        let bytes = archive(&[good.clone(), entry]);
        check(&guest, name, &bytes, "ARCHIVE_INVALID").await;
    }
}

#[tokio::test]
async fn links_are_kept_wherever_they_lead() {
    let guest = Guest::start().await;
    let entries = [
        file("dir/a", "text"),
        link("venv/python3", "/usr/bin/python3"),
        link("out", "../../../../shared"),
        link("in", "dir/a"),
        entry(EntryType::Link, b"again", b"./dir/a", b"", 0o644),
    ];
    let plain = archive(&entries);
    let packed = gzip(&plain);
    for (kind, bytes) in [(StageFormat::Tar, plain), (StageFormat::TarGz, packed)] {
        let put = guest
            .put(header(kind, "work/x"), &bytes)
            .await
            .expect("unpacks");
        let counts = (put.file_count, put.size_bytes, put.skipped_count);
        assert_eq!(counts, (5, 8, 0));
    }
    let place = guest.workspace().join("work/x");
    for (name, target) in [
        ("venv/python3", "/usr/bin/python3"),
        ("out", "../../../../shared"),
        ("in", "dir/a"),
    ] {
        let found = fs::read_link(place.join(name)).expect("a link");
        assert_eq!(found.to_str(), Some(target));
    }
    assert_eq!(fs::read(place.join("again")).expect("there"), b"text");
    // The guest follows none of them out.
    let read = wire::ReadFileRequest {
        path: "work/x/venv/python3".to_owned(),
        ..Default::default()
    };
    let refused = guest
        .client
        .clone()
        .read_file(read)
        .await
        .expect_err("leads out");
    assert_eq!(reason(&refused), "PATH_ESCAPES");
}

#[tokio::test]
async fn special_and_badly_named_entries_are_left_out_and_named() {
    let guest = Guest::start().await;
    let (long, deep) = ("n".repeat(256), format!("{}x", "d/".repeat(200)));
    let special = |kind: EntryType, name: &str| entry(kind, name.as_bytes(), b"", b"", 0o644);
    let entries = [
        special(EntryType::Fifo, "pipe"),
        special(EntryType::Char, "null"),
        special(EntryType::Block, "disk"),
        entry(EntryType::new(b'?'), b"odd", b"", b"its contents", 0o644),
        link("empty", ""),
        entry(EntryType::Link, b"hard", b"later", b"", 0o644),
        entry(EntryType::Link, b"climbs", b"../../x", b"", 0o644),
        file("/tmp/x", "its contents"),
        [pax(&long), file("x", "its contents")].concat(),
        [pax(&deep), file("x", "its contents")].concat(),
        file("later", "text"),
    ];
    let put = guest
        .put(header(StageFormat::Tar, "work/x"), &archive(&entries))
        .await
        .expect("unpacks");
    let skipped = put
        .skipped_files
        .iter()
        .map(|it| (it.path.as_str(), it.reason()));
    let expected = [
        ("work/x/pipe", SkipReason::FileType),
        ("work/x/null", SkipReason::FileType),
        ("work/x/disk", SkipReason::FileType),
        ("work/x/odd", SkipReason::FileType),
        ("work/x/empty", SkipReason::LinkTarget),
        ("work/x/hard", SkipReason::LinkTarget),
        ("work/x/climbs", SkipReason::LinkTarget),
        ("work/x//tmp/x", SkipReason::Name),
        (&format!("work/x/{long}"), SkipReason::Name),
        (&format!("work/x/{deep}"), SkipReason::Depth),
    ];
    assert_eq!(skipped.collect::<Vec<_>>(), expected);
    assert_eq!((put.skipped_count, put.file_count), (10, 1));
    assert_eq!(
        fs::read(guest.workspace().join("work/x/later")).expect("there"),
        b"text"
    );

    let many: Vec<Vec<u8>> = (0..1500)
        .map(|number| special(EntryType::Fifo, &format!("pipe{number}")))
        .collect();
    let put = guest
        .put(header(StageFormat::Tar, "work/y"), &archive(&many))
        .await
        .expect("unpacks");
    assert_eq!((put.skipped_files.len(), put.skipped_count), (1000, 1500));
}

#[tokio::test]
async fn a_sparse_file_does_not_refuse_the_others() {
    let guest = Guest::start().await;
    let source = tempfile::tempdir().expect("a directory");
    // More parts than the first header of the old format has room for, and than that format's next block has.
    let script = "truncate -s 8M holes; for n in {0..39}; do \
                  printf x | dd of=holes bs=1 seek=$((n * 200000)) conv=notrunc status=none; done; echo text > last";
    let made = std::process::Command::new("bash")
        .args(["-c", script])
        .current_dir(&source)
        .status();
    assert!(made.expect("bash").success());
    for format in ["gnu", "posix"] {
        let output = std::process::Command::new("tar")
            .args(["-c", "--sparse", "--format", format, "holes", "last"])
            .current_dir(&source)
            .output()
            .expect("tar");
        let base = format!("work/{format}");
        let put = guest
            .put(header(StageFormat::Tar, &base), &output.stdout)
            .await
            .expect("unpacks");
        let skipped = put
            .skipped_files
            .iter()
            .map(|it| (it.path.as_str(), it.reason()));
        let holes = format!("{base}/holes");
        assert_eq!(
            skipped.collect::<Vec<_>>(),
            [(holes.as_str(), SkipReason::FileType)]
        );
        let last = fs::read(guest.workspace().join(base).join("last"));
        assert_eq!(last.expect("there"), b"text\n");
    }
}

#[tokio::test]
async fn modes_and_times_of_an_upload_are_kept() {
    let guest = Guest::start().await;
    let source = tempfile::tempdir().expect("a directory");
    let script = "mkdir -p d/e; echo x > d/f; echo y > d/e/g; chmod 750 d; chmod 711 .; chmod 755 d/f; \
                  touch -d @1577836800.25 d/f; touch -d @86400 d/e d .";
    let made = std::process::Command::new("bash")
        .args(["-c", script])
        .current_dir(&source)
        .status();
    assert!(made.expect("bash").success());
    for format in ["gnu", "pax"] {
        let output = std::process::Command::new("tar")
            .args(["-c", "--format", format, "."])
            .current_dir(&source)
            .output()
            .expect("tar");
        let base = format!("work/new/{format}");
        let put = guest
            .put(header(StageFormat::Tar, &base), &output.stdout)
            .await;
        put.expect("unpacks");
        let stat = |path: &str| {
            let stat = fs::metadata(guest.workspace().join(&base).join(path)).expect("there");
            (stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec())
        };
        let nanos = if format == "pax" { 250_000_000 } else { 0 };
        assert_eq!(stat("d/f"), (0o755, 1_577_836_800, nanos), "{format}");
        assert_eq!(stat("d"), (0o750, 86_400, 0), "{format}");
        assert_eq!(stat("d/e").1, 86_400, "{format}");
        // The archive's own directory becomes the new one, and its parents are usual directories.
        assert_eq!(stat("."), (0o711, 86_400, 0), "{format}");
        assert_eq!(stat("..").0, 0o755, "{format}");
    }
    // A directory that exists keeps its own.
    let own = archive(&[entry(EntryType::Directory, b"./", b"", b"", 0o711)]);
    let put = guest.put(header(StageFormat::Tar, "out"), &own).await;
    put.expect("unpacks");
    let mode = fs::metadata(guest.workspace().join("out"))
        .expect("there")
        .mode();
    assert_eq!(mode & 0o7777, 0o755);

    let mut single = header(StageFormat::File, "work/single");
    single.file.as_mut().expect("a file").modify_time = Some(prost_types::Timestamp {
        seconds: 5,
        nanos: 7,
    });
    guest.put(single, b"x").await.expect("written");
    let stat = fs::metadata(guest.workspace().join("work/single")).expect("there");
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (5, 7));
}

#[tokio::test]
async fn damaged_archives_are_refused_and_leave_nothing() {
    let guest = Guest::start().await;
    let whole = archive(&[file("big", &"x".repeat(5000)), file("good", "good")]);
    let mut damaged = whole.clone();
    damaged[0] ^= 1;
    check(&guest, "damaged header", &damaged, "ARCHIVE_INVALID").await;
    for cut in [100, 512, 600, 5000, 6144, whole.len() - 1024] {
        check(&guest, "cut off", &whole[..cut], "ARCHIVE_INVALID").await;
    }
    check(&guest, "empty", b"", "ARCHIVE_INVALID").await;
}

#[tokio::test]
async fn limits_of_archives_hold() {
    let guest = Guest::start().await;
    let before = guest.tree();
    let many: Vec<Vec<u8>> = (0..50).map(|n| file(&format!("f{n}"), "x")).collect();
    let mut request = header(StageFormat::Tar, "work");
    request.entries_max = 49;
    let refused = guest
        .put(request, &archive(&many))
        .await
        .expect_err("too many");
    assert_eq!(reason(&refused), "LIMIT_EXCEEDED");
    // Said to be large: refused before a byte of it has come.
    let mut huge = Header::new_gnu();
    huge.set_size(1 << 40);
    huge.set_mode(0o644);
    huge.set_path("huge").expect("a name");
    huge.set_cksum();
    let refused = guest
        .put(header(StageFormat::Tar, "work"), huge.as_bytes())
        .await
        .expect_err("too large");
    assert_eq!(reason(&refused), "LIMIT_EXCEEDED");
    // A bomb of zeros, stopped at the limit.
    let bomb = gzip(&archive(&[file("bomb", &"\0".repeat(20_000_000))]));
    let mut request = header(StageFormat::TarGz, "work");
    request.bytes_max = 10_000_000;
    let refused = guest.put(request, &bomb).await.expect_err("a bomb");
    assert_eq!(reason(&refused), "LIMIT_EXCEEDED");
    let mut request = header(StageFormat::Tar, "work");
    request.file.as_mut().expect("a file").sha256 = sha256(b"other");
    let refused = guest
        .put(request, &archive(&many))
        .await
        .expect_err("a wrong sum");
    assert_eq!(reason(&refused), "CHECKSUM_MISMATCH");
    let refused = guest
        .put(header(StageFormat::TarGz, "work"), b"not gzip at all")
        .await
        .expect_err("garbage");
    assert_eq!(reason(&refused), "ARCHIVE_INVALID");
    assert_eq!(guest.tree(), before);
}

#[tokio::test]
async fn the_last_of_equal_names_wins_and_set_id_bits_go() {
    let guest = Guest::start().await;
    let entries = [
        file("same", "first"),
        entry(EntryType::Regular, b"same", b"", b"second", 0o6755),
        entry(EntryType::Symlink, b"in/link", b"../same", b"", 0o777),
    ];
    let put = guest
        .put(header(StageFormat::Tar, "out"), &archive(&entries))
        .await
        .expect("unpacks");
    assert_eq!((put.file_count, put.size_bytes), (2, 6));
    let path = guest.workspace().join("out/same");
    assert_eq!(fs::read(&path).expect("there"), b"second");
    assert_eq!(
        fs::metadata(&path).expect("there").permissions().mode() & 0o7777,
        0o755
    );
    assert_eq!(
        fs::read(guest.workspace().join("out/in/link")).expect("there"),
        b"second"
    );
}

#[tokio::test]
async fn a_conflict_with_what_is_there_moves_nothing() {
    let guest = Guest::start().await;
    fs::create_dir(guest.workspace().join("out/b")).expect("made");
    fs::write(guest.workspace().join("out/c"), "old").expect("made");
    let before = guest.tree();
    let check = async |entries: &[Vec<u8>], expected: &str| {
        let refused = guest
            .put(header(StageFormat::Tar, "out"), &archive(entries))
            .await;
        assert_eq!(reason(&refused.expect_err("a conflict")), expected);
        assert_eq!(guest.tree(), before);
    };
    check(&[file("a", "x"), file("b", "x")], "WRONG_FILE_TYPE").await;
    check(&[file("a", "x"), file("c/d", "x")], "WRONG_FILE_TYPE").await;
    let refused = guest
        .put(
            header(StageFormat::Tar, ""),
            &archive(&[file("a", "x"), file("skills/x", "x")]),
        )
        .await;
    assert_eq!(reason(&refused.expect_err("read-only")), "READ_ONLY");
    assert_eq!(guest.tree(), before);
}

#[tokio::test]
async fn twenty_thousand_files_unpack_and_ten_thousand_are_named() {
    let guest = Guest::start().await;
    let mut builder = Builder::new(Vec::new());
    for number in 0..12_000 {
        let mut header = Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        builder
            .append_data(
                &mut header,
                format!("d{}/f{number}", number % 50),
                &b"data"[..],
            )
            .expect("in memory");
    }
    let bytes = builder.into_inner().expect("in memory");
    let put = guest
        .put(header(StageFormat::Tar, "work/many"), &bytes)
        .await
        .expect("unpacks");
    assert_eq!(
        (put.file_count, put.size_bytes, put.files.len()),
        (12_000, 48_000, 10_000)
    );
    assert_eq!(
        fs::read_dir(guest.workspace().join("work/many"))
            .expect("there")
            .count(),
        50
    );
}

#[tokio::test]
async fn a_failed_archive_leaves_what_was_there_before() {
    let guest = Guest::start().await;
    let work = guest.workspace().join("work");
    fs::write(work.join("a"), "precious").expect("made");
    std::os::unix::fs::symlink("nowhere", work.join("l")).expect("made");
    let bytes = archive(&[file("a", "new"), file("l/x", "new")]);
    check_at(&guest, "a dangling link on the way", "work", &bytes).await;
    assert_eq!(fs::read(work.join("a")).expect("kept"), b"precious");
}

/// Uploads an archive and checks that it is refused and leaves the workspace as it was.
async fn check_at(guest: &Guest, name: &str, base: &str, bytes: &[u8]) {
    let before = guest.tree();
    let refused = guest.put(header(StageFormat::Tar, base), bytes).await;
    refused.expect_err(name);
    assert_eq!(guest.tree(), before, "{name}");
}
