//! Archives as people make them, and as nobody should.
#![expect(clippy::too_many_lines, reason = "tables: a row per archive")]

use std::io::{Cursor, Write as _};
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

const BOUNDS: ArchiveBounds = ArchiveBounds {
    bytes: 1 << 20,
    file_bytes: 256 << 10,
    entries: 100,
    depth: 8,
    ratio: 100,
};

const SKILL: &[u8] = b"---\nname: a\n---\n";

/// Makes a tar entry: a header with a correct checksum, contents, padding.
fn entry(kind: u8, name: &[u8], link: &[u8], mode: u32, data: &[u8]) -> Vec<u8> {
    sized(kind, name, link, mode, data, data.len() as u64)
}

fn sized(kind: u8, name: &[u8], link: &[u8], mode: u32, data: &[u8], size: u64) -> Vec<u8> {
    let mut header = match kind {
        b'S' => Header::new_gnu(),
        _ => Header::new_ustar(),
    };
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(mode);
    header.set_size(size);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, data: &[u8]) -> Vec<u8> {
    entry(b'0', name.as_bytes(), b"", 0o644, data)
}

/// Makes an entry from a line of a listing: `KIND NAME` with an empty file's kind, `KIND NAME TARGET`, or `pax
/// KEY=VALUE` with `global` for the header of all entries.
fn listed(line: &str) -> Vec<u8> {
    let (kind, rest) = line.split_once(' ').expect("a kind");
    if let "pax" | "global" = kind {
        let flag = if kind == "pax" { b'x' } else { b'g' };
        let (key, value) = rest.split_once('=').expect("a value");
        return entry(flag, kind.as_bytes(), b"", 0, &pax(key, value.as_bytes()));
    }
    let flag = match kind {
        "file" => b'0',
        "hard" => b'1',
        "link" => b'2',
        "char" => b'3',
        "block" => b'4',
        "dir" => b'5',
        "fifo" => b'6',
        "sparse" => b'S',
        "volume" => b'M',
        _ => panic!("{kind}"),
    };
    let (name, target) = rest.split_once(' ').unwrap_or((rest, ""));
    entry(flag, name.as_bytes(), target.as_bytes(), 0o644, b"")
}

fn tar_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Makes a PAX record with its correct length.
fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [
        format!("{length} {key}=").as_bytes(),
        value,
        b"\n".as_slice(),
    ]
    .concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    gzip_with(bytes, Compression::fast())
}

fn gzip_with(bytes: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

fn zip_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in files {
        let mode = if name.ends_with(".sh") { 0o755 } else { 0o644 };
        let options = SimpleFileOptions::default().unix_permissions(mode);
        writer.start_file(*name, options).expect("zip");
        writer.write_all(data).expect("zip");
    }
    writer.finish().expect("zip").into_inner()
}

fn zip_link(name: &str, target: &str) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    writer.start_file("SKILL.md", options).expect("zip");
    writer.write_all(SKILL).expect("zip");
    writer.add_symlink(name, target, options).expect("zip");
    writer.finish().expect("zip").into_inner()
}

/// Where a signature stands, from the start.
fn places(bytes: &[u8], mark: &[u8]) -> Vec<usize> {
    let all = bytes.windows(mark.len()).enumerate();
    all.filter(|(_, window)| *window == mark)
        .map(|(at, _)| at)
        .collect()
}

fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// The Unix mode of the last entry of a zip file.
fn zip_mode(bytes: Vec<u8>, mode: u32) -> Vec<u8> {
    let at = *places(&bytes, b"PK\x01\x02").last().expect("an entry");
    patched(bytes, at + 38, &(mode << 16).to_le_bytes())
}

fn unpacked_with(
    bytes: &[u8],
    bounds: &ArchiveBounds,
) -> (tempfile::TempDir, Result<UnpackedArchive>) {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("archive");
    fs::write(&path, bytes).expect("written");
    let mut file = File::open(&path).expect("opened");
    let result = unpack_archive(&mut file, None, &dir.path().join("into"), bounds);
    if result.is_err() {
        assert!(
            !dir.path().join("into").exists(),
            "something is left of a refused archive"
        );
    }
    assert_eq!(
        fs::read_dir(dir.path()).expect("there").count(),
        1 + usize::from(result.is_ok()),
        "something lies beside the archive"
    );
    (dir, result)
}

/// Lists an unpacked archive: path, mode or link target, contents.
fn tree(root: &Path) -> Vec<(String, String, Vec<u8>)> {
    fn walk(root: &Path, at: &Path, into: &mut Vec<(String, String, Vec<u8>)>) {
        for entry in fs::read_dir(root.join(at)).expect("there") {
            let path = at.join(entry.expect("entry").file_name());
            let (name, place) = (path.display().to_string(), root.join(&path));
            let metadata = fs::symlink_metadata(&place).expect("there");
            if metadata.is_symlink() {
                let target = fs::read_link(&place).expect("link");
                into.push((name, format!("→ {}", target.display()), Vec::new()));
            } else if metadata.is_dir() {
                let mode = format!("{:04o}", metadata.permissions().mode() & 0o7777);
                into.push((name, mode, Vec::new()));
                walk(root, &path, into);
            } else {
                let mode = format!("{:04o}", metadata.permissions().mode() & 0o7777);
                into.push((name, mode, fs::read(&place).expect("read")));
            }
        }
    }
    let mut all = Vec::new();
    walk(root, Path::new(""), &mut all);
    all.sort();
    all
}

fn shown(bytes: &[u8]) -> Vec<(String, String, Vec<u8>)> {
    let (_dir, result) = unpacked_with(bytes, &BOUNDS);
    tree(&result.expect("unpacked").root)
}

fn expected(entries: &[(&str, &str, &[u8])]) -> Vec<(String, String, Vec<u8>)> {
    let owned = entries
        .iter()
        .map(|(path, mode, data)| ((*path).to_owned(), (*mode).to_owned(), data.to_vec()));
    let mut all: Vec<_> = owned.collect();
    all.sort();
    all
}

#[test]
fn good_archives_are_unpacked_with_fixed_modes() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let long_shown: [(&str, &str, &[u8]); 3] = [
        ("SKILL.md", "0644", SKILL),
        (&"d".repeat(200), "0755", b""),
        (&long, "0644", b"x"),
    ];
    let plain: [(&str, &str, &[u8]); 3] = [
        ("SKILL.md", "0644", SKILL),
        ("bin", "0755", b""),
        ("bin/run.sh", "0755", b"#!/bin/sh\n"),
    ];
    let plain_tar = tar_of(&[
        entry(b'5', b"./", b"", 0o700, b""),
        entry(b'0', b"./SKILL.md", b"", 0o600, SKILL),
        // Set-id, sticky and odd bits go; any x is an x.
        entry(b'0', b"bin//run.sh", b"", 0o6_711, b"#!/bin/sh\n"),
    ]);
    let skill = file("SKILL.md", SKILL);
    for (what, bytes, entries) in [
        ("tar", plain_tar.clone(), plain.as_slice()),
        ("tar.gz", gzip(&plain_tar), &plain),
        (
            "tar.gz in two members",
            [gzip(&plain_tar[..700]), gzip(&plain_tar[700..])].concat(),
            &plain,
        ),
        (
            "zip",
            zip_of(&[("SKILL.md", SKILL), ("bin/run.sh", b"#!/bin/sh\n")]),
            &plain,
        ),
        (
            "wrapped, made by git",
            tar_of(&[
                entry(
                    b'g',
                    b"pax_global_header",
                    b"",
                    0o666,
                    &pax("comment", b"0123"),
                ),
                entry(b'5', b"repo-1/", b"", 0o775, b""),
                file("repo-1/SKILL.md", SKILL),
                entry(b'0', b"repo-1/bin/run.sh", b"", 0o775, b"#!/bin/sh\n"),
            ]),
            &plain,
        ),
        (
            "wrapped, from a Mac",
            zip_of(&[
                ("s/SKILL.md", SKILL),
                ("__MACOSX/s/._SKILL.md", b"x"),
                ("s/.DS_Store", b"x"),
                ("s/bin/run.sh", b"#!/bin/sh\n"),
                ("._s", b"x"),
            ]),
            &plain,
        ),
        (
            "GNU long name",
            tar_of(&[
                skill.clone(),
                entry(
                    b'L',
                    b"././@LongLink",
                    b"",
                    0,
                    format!("{long}\0").as_bytes(),
                ),
                file("short", b"x"),
            ]),
            &long_shown,
        ),
        (
            "PAX long name, size, and a value with newlines",
            tar_of(&[
                skill.clone(),
                entry(
                    b'x',
                    b"PaxHeaders/1",
                    b"",
                    0o644,
                    &[
                        pax("SCHILY.xattr.com.apple", b"a\nb\0c"),
                        pax("path", long.as_bytes()),
                        pax("size", b"1"),
                    ]
                    .concat(),
                ),
                // The header's own size is not the one that counts.
                sized(b'0', b"short", b"", 0o644, b"x", 0),
            ]),
            &long_shown,
        ),
        (
            "links inside",
            tar_of(&[
                file("w/SKILL.md", SKILL),
                entry(b'2', b"w/a/link", b"../SKILL.md", 0o777, b""),
                entry(b'2', b"w/dir", b"a", 0o777, b""),
                // A hard link is a copy of its own.
                entry(b'1', b"w/copy", b"w/SKILL.md", 0o644, b""),
            ]),
            &[
                ("SKILL.md", "0644", SKILL),
                ("a", "0755", b""),
                ("a/link", "→ ../SKILL.md", b""),
                ("copy", "0644", SKILL),
                ("dir", "→ a", b""),
            ],
        ),
        (
            "zip link",
            zip_link("link", "SKILL.md"),
            &[("SKILL.md", "0644", SKILL), ("link", "→ SKILL.md", b"")],
        ),
        (
            "a colon, spaces and other scripts in names",
            tar_of(&[skill.clone(), file("a: b — ü.txt", b"x")]),
            &[("SKILL.md", "0644", SKILL), ("a: b — ü.txt", "0644", b"x")],
        ),
        (
            "an empty file, and directories twice",
            tar_of(&[
                skill.clone(),
                file("d/empty", b""),
                entry(b'5', b"d/", b"", 0o755, b""),
                entry(b'5', b"d", b"", 0o000, b""),
            ]),
            &[
                ("SKILL.md", "0644", SKILL),
                ("d", "0755", b""),
                ("d/empty", "0644", b""),
            ],
        ),
        (
            "SKILL.md alone",
            SKILL.to_vec(),
            &[("SKILL.md", "0644", SKILL)],
        ),
    ] {
        assert_eq!(shown(&bytes), expected(entries), "{what}");
    }
    let (_dir, result) = unpacked_with(
        &tar_of(&[skill, entry(b'1', b"copy", b"SKILL.md", 0, b"")]),
        &BOUNDS,
    );
    let copies = result.expect("unpacked");
    assert_eq!((copies.files, copies.bytes), (2, 2 * SKILL.len() as u64));
    let inode = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(copies.root.join(name)).expect("there").ino()
    };
    assert_ne!(inode("SKILL.md"), inode("copy"));
}

#[test]
fn one_folder_around_everything_is_taken_off() {
    for (files, wrapper) in [
        (vec![("SKILL.md", SKILL)], None),
        (vec![("w/SKILL.md", SKILL)], Some("w")),
        // Only one: the next folder is the archive's own.
        (vec![("w/v/SKILL.md", SKILL)], Some("w")),
        (vec![("w/SKILL.md", SKILL), ("README", b"")], None),
        (vec![("w/SKILL.md", SKILL), ("v/SKILL.md", SKILL)], None),
    ] {
        let (dir, result) = unpacked_with(&zip_of(&files), &BOUNDS);
        let unpacked = result.expect("unpacked");
        assert_eq!(unpacked.wrapper.as_deref(), wrapper, "{files:?}");
        let root = dir.path().join("into").join(wrapper.unwrap_or_default());
        assert_eq!(unpacked.root, root);
    }
}

/// Returns the message of a refused archive.
fn refusal(bytes: &[u8]) -> String {
    let (_dir, result) = unpacked_with(bytes, &BOUNDS);
    let refused = result.expect_err("refused");
    assert!(
        !matches!(refused, Error::Io { .. }),
        "not the host's fault: {refused:?}"
    );
    refused.to_string()
}

/// The same zip file as if a system of this number had made it.
fn zip_made_by(mut bytes: Vec<u8>, system: u8) -> Vec<u8> {
    for at in places(&bytes, b"PK\x01\x02") {
        bytes[at + 5] = system;
        // What else than Unix writes has no mode.
        bytes[at + 38..at + 42].copy_from_slice(&[0; 4]);
    }
    bytes
}

#[test]
fn backslashes_in_zip_files_from_windows_separate_folders() {
    let zip = zip_of(&[
        ("demo\\SKILL.md", SKILL),
        ("demo\\empty\\", b""),
        ("demo\\references\\a.md", b"a"),
        ("demo/references/b.md", b"b"),
    ]);
    for system in [0, 10, 14] {
        let (dir, result) = unpacked_with(&zip_made_by(zip.clone(), system), &BOUNDS);
        let unpacked = result.expect("unpacked");
        assert_eq!(unpacked.wrapper.as_deref(), Some("demo"), "{system}");
        let root = dir.path().join("into/demo");
        assert_eq!(fs::read(root.join("SKILL.md")).expect("read"), SKILL);
        assert_eq!(fs::read(root.join("references/a.md")).expect("read"), b"a");
        assert_eq!(fs::read(root.join("references/b.md")).expect("read"), b"b");
        assert!(root.join("empty").is_dir(), "{system}");
    }
    // Where a backslash can be part of a name it is not known what was meant.
    let (_dir, result) = unpacked_with(&zip_made_by(zip, 3), &BOUNDS);
    let refused = result.expect_err("refused").to_string();
    assert!(refused.contains("backslash"), "{refused}");
}

/// Makes a zip file of SKILL.md and files with these bytes as names, as if Windows had made it.
fn zip_with_names(names: &[Vec<u8>]) -> Vec<u8> {
    let stand_ins: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(index, name)| index.to_string().repeat(name.len()))
        .collect();
    let mut files = vec![("SKILL.md", SKILL)];
    files.extend(
        stand_ins
            .iter()
            .map(|name| (name.as_str(), b"x".as_slice())),
    );
    let mut zip = zip_of(&files);
    for (stand_in, name) in stand_ins.iter().zip(names) {
        for at in places(&zip, stand_in.as_bytes()) {
            zip = patched(zip, at, name);
        }
    }
    zip_made_by(zip, 0)
}

#[test]
fn names_in_the_encoding_of_a_country_are_decoded() {
    let encode = |names: &[&str], encoding: &'static encoding_rs::Encoding| {
        names
            .iter()
            .map(|name| encoding.encode(name).0.into_owned())
            .collect::<Vec<_>>()
    };
    // Code pages 437 and 850 have the same bytes.
    let german = vec![b"Gr\x94\xe1e.md".to_vec(), b"Ma\xe1e.txt".to_vec()];
    let chinese = ["数据报表.md", "说明文档.md"];
    // The second byte of 表 is a backslash.
    let japanese = ["表示.md", "議事録.txt"];
    let russian = ["отчёт.md", "данные.txt"];
    for (names, encoded) in [
        (chinese, encode(&chinese, encoding_rs::GBK)),
        (japanese, encode(&japanese, encoding_rs::SHIFT_JIS)),
        (russian, encode(&russian, encoding_rs::IBM866)),
        (["Größe.md", "Maße.txt"], german),
    ] {
        let (dir, unpacked) = unpacked_with(&zip_with_names(&encoded), &BOUNDS);
        unpacked.expect("unpacked");
        for name in names {
            let path = dir.path().join("into").join(name);
            assert_eq!(fs::read(path).expect(name), b"x");
        }
    }
    // Names with line ends cannot be told apart once all are decoded together.
    let encoded = encode(&["数据报表.md", "说明\n文档.md"], encoding_rs::GBK);
    let (_dir, result) = unpacked_with(&zip_with_names(&encoded), &BOUNDS);
    let unpacked = result.expect("unpacked");
    assert_eq!((unpacked.files, unpacked.left_out.total), (1, 2));
    let left_out = unpacked.left_out.describe().expect("two");
    let reason = "has a name that is not UTF-8";
    assert_eq!(left_out.matches(reason).count(), 2, "{left_out}");
}

#[test]
fn names_of_macos_are_composed() {
    let decomposed = "references/Gro\u{308}ße.md";
    for bytes in [
        tar_of(&[file("SKILL.md", SKILL), file(decomposed, b"x")]),
        zip_of(&[("SKILL.md", SKILL), (decomposed, b"x")]),
    ] {
        let (dir, unpacked) = unpacked_with(&bytes, &BOUNDS);
        unpacked.expect("unpacked");
        let path = dir.path().join("into/references/Größe.md");
        assert_eq!(fs::read(path).expect("composed"), b"x");
    }
}

#[test]
fn names_from_windows_that_escape_are_refused() {
    for (name, problem) in [
        ("a\\..\\..\\b", "has .. in its name"),
        ("..\\b", "has .. in its name"),
        ("C:..\\..\\b", "has .. in its name"),
        ("SKILL.md\\b", "is beneath a file or a link"),
    ] {
        let zip = zip_of(&[("SKILL.md", SKILL), (name, b"x")]);
        let said = refusal(&zip_made_by(zip, 0));
        assert!(said.contains(problem), "{name:?}: {said}");
    }
    let twice = zip_of(&[("SKILL.md", SKILL), ("a\\b", b"1"), ("a/b", b"2")]);
    assert!(refusal(&zip_made_by(twice, 10)).contains("is there twice"));
    for (name, reason) in [
        ("\\b", "/b has an absolute name"),
        ("\\\\host\\share\\b", "//host/share/b has an absolute name"),
        ("C:\\b", "C:/b has an absolute name"),
        ("c:b", "c:b has an absolute name"),
        ("x\\\u{7}", "control character"),
    ] {
        let zip = zip_of(&[("SKILL.md", SKILL), (name, b"x")]);
        check_left_out(&zip_made_by(zip, 0), reason);
    }
}

/// Checks that an archive is unpacked without an entry besides SKILL.md, which is named with this reason.
fn check_left_out(bytes: &[u8], reason: &str) {
    let (_dir, result) = unpacked_with(bytes, &BOUNDS);
    let unpacked = result.unwrap_or_else(|error| panic!("{reason}: {error}"));
    assert_eq!(
        tree(&unpacked.root),
        expected(&[("SKILL.md", "0644", SKILL)]),
        "{reason}"
    );
    assert_eq!(
        (unpacked.files, unpacked.left_out.total),
        (1, 1),
        "{reason}"
    );
    let left_out = unpacked.left_out.describe().expect("one");
    assert!(left_out.contains(reason), "{reason}: {left_out}");
}

/// Makes a tar of SKILL.md and a file whose name is in a PAX header.
fn tar_with_name(name: &[u8]) -> Vec<u8> {
    tar_of(&[
        file("SKILL.md", SKILL),
        entry(b'x', b"pax", b"", 0, &pax("path", name)),
        file("x", b"x"),
    ])
}

#[test]
fn names_that_no_file_of_a_skill_can_have_are_left_out() {
    let (long, deep) = ("n".repeat(256), format!("{}x", "d/".repeat(512)));
    for (name, reason) in [
        ("/etc/passwd", "/etc/passwd has an absolute name"),
        ("a\nb", "control character"),
        ("a\u{7f}", "control character"),
        ("a\u{85}b", "control character"),
        (&long, "longer than 255 bytes"),
        (&deep, "longer than 1024 bytes"),
    ] {
        check_left_out(&tar_with_name(name.as_bytes()), reason);
        check_left_out(&zip_of(&[("SKILL.md", SKILL), (name, b"x")]), reason);
    }
    let reason = r"\xfc.txt has a name that is not UTF-8";
    check_left_out(&tar_with_name(b"\xfc.txt"), reason);
}

#[test]
fn hostile_names_are_refused_in_tar_and_zip() {
    for (name, problem) in [
        ("../out", "has .. in its name"),
        ("/../out", "has .. in its name"),
        ("a/../b", "has .. in its name"),
        ("..", "has .. in its name"),
        ("a\\..\\b", "backslash"),
        ("a/b/c/d/e/f/g/h/i", "deeper than 8 names"),
        ("SKILL.md", "twice"),
        // Programs in C read `SKILL.md`, and others take the slash off.
        ("SKILL.md\0x", "NUL in its name"),
        ("/SKILL.md", "twice"),
        ("SKILL.md/x", "is beneath a file or a link"),
    ] {
        let said = refusal(&tar_with_name(name.as_bytes()));
        assert!(said.contains(problem), "tar {name:?}: {said}");
        if problem == "twice" || name.contains('\0') {
            continue;
        }
        let said = refusal(&zip_of(&[("SKILL.md", SKILL), (name, b"x")]));
        assert!(said.contains(problem), "zip {name:?}: {said}");
    }
}

#[test]
fn names_that_differ_only_in_case_are_unpacked_and_reported() {
    for (names, clash) in [
        (&["SKILL.md", "a", "b/a"][..], None),
        (
            &["a/SKILL.md", "README.md", "readme.md", "Readme.md"],
            Some(("Readme.md", "README.md")),
        ),
        (&["a/SKILL.md", "A/x"], Some(("a", "A"))),
        (&["a/Ä", "a/ä", "b"], Some(("a/ä", "a/Ä"))),
    ] {
        let files: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
        let tar: Vec<_> = files.iter().map(|(name, data)| file(name, data)).collect();
        for bytes in [tar_of(&tar), zip_of(&files)] {
            let (_dir, result) = unpacked_with(&bytes, &BOUNDS);
            let unpacked = result.expect("unpacked");
            let found = tree(&unpacked.root);
            for (name, data) in &files {
                let is_file = |it: &&(String, String, Vec<u8>)| it.0 == *name && it.2 == *data;
                assert!(found.iter().any(|it| is_file(&it)), "{name}: {found:?}");
            }
            let reported = unpacked
                .case_clash
                .as_ref()
                .map(|(path, other)| (path.as_str(), other.as_str()));
            assert_eq!(reported, clash, "{names:?}");
            assert_eq!(unpacked.check_case().is_ok(), clash.is_none());
        }
    }
}

#[test]
fn hostile_tar_entries_are_refused() {
    let skill = || file("SKILL.md", SKILL);
    let cases = "
        write through a link: link d ., file d/x => beneath a file or a link
        directory over a link: link d a, dir d/ => is there twice
        link over a directory: file d/x, link d x => is there twice
        link over a file: link SKILL.md x => is there twice
        file beneath a file: file f, file f/x => beneath a file or a link
        file over a directory: file f/x, file f => is there twice
        left out after a file: file f, volume f => is there twice
        left out before a file: sparse f, file f => is there twice
        hard link over a file: file f, hard f x => is there twice
        sparse link: pax GNU.sparse.major=1, link l SKILL.md => is sparse in a way
        sparse directory: pax GNU.sparse.major=1, dir d/ => is sparse in a way
        global sparse: global GNU.sparse.major=1 => names or sizes all of its entries
        global path: global path=/etc/passwd => names or sizes all of its entries
        global size: global size=0 => names or sizes all of its entries
        negative PAX size: pax size=-1, file x => bad PAX size
        endless PAX size: pax size=99999999999999999999, file x => bad PAX size
    ";
    for case in cases.trim().lines() {
        let (what, expected) = case.split_once(": ").expect("a name");
        let (entries, problem) = expected.split_once(" => ").expect("a problem");
        let entries: Vec<Vec<u8>> = entries.split(", ").map(listed).collect();
        let said = refusal(&tar_of(&[vec![skill()], entries].concat()));
        assert!(said.contains(problem), "{}: {said}", what.trim());
    }
    let sparse_without_map = {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[0] = b'x';
        header.set_entry_type(EntryType::GNUSparse);
        header.set_size(0);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let sparse_of_two_sizes = [pax("GNU.sparse.major", b"1"), pax("size", b"1")].concat();
    for (what, entries, problem) in [
        (
            "directory with contents",
            vec![entry(b'5', b"d/", b"", 0, b"x")],
            "is no file and has contents",
        ),
        (
            "link with contents",
            vec![entry(b'2', b"l", b"SKILL.md", 0, b"x")],
            "is no file and has contents",
        ),
        (
            // Programs that skip this body find one SKILL.md, and others find two.
            "FIFO with contents",
            vec![entry(b'6', b"pipe", b"", 0, &file("SKILL.md", b"other"))],
            "is no file and has contents",
        ),
        (
            "device with contents",
            vec![entry(b'3', b"null", b"", 0, b"x")],
            "is no file and has contents",
        ),
        (
            "sparse file without a map",
            vec![sparse_without_map],
            "is sparse in a way",
        ),
        (
            "sparse file of two sizes",
            vec![
                entry(b'x', b"p", b"", 0, &sparse_of_two_sizes),
                file("x", b"y"),
            ],
            "is sparse in a way",
        ),
        (
            "PAX length that lies",
            vec![entry(b'x', b"p", b"", 0, b"99 path=x\n"), file("x", b"")],
            "damaged PAX header",
        ),
        (
            "PAX length of nothing",
            vec![entry(b'x', b"p", b"", 0, b"0 path=x\n"), file("x", b"")],
            "damaged PAX header",
        ),
        (
            "a long name for nothing",
            vec![entry(b'L', b"l", b"", 0, b"x\0")],
            "ends with a name that belongs to nothing",
        ),
        (
            "huge extension",
            vec![entry(b'x', b"p", b"", 0, &vec![b'x'; 300 << 10])],
            "oversized extension",
        ),
        ("no name", vec![entry(b'0', b"", b"", 0, b"x")], "no name"),
        (
            "the top as a file",
            vec![entry(b'0', b".", b"", 0, b"x")],
            "no name",
        ),
        (
            "PAX empty name",
            vec![entry(b'x', b"p", b"", 0, &pax("path", b"")), file("x", b"")],
            "no name",
        ),
        (
            "PAX that hides what follows",
            vec![
                entry(b'x', b"p", b"", 0, &pax("size", b"512")),
                sized(b'0', b"x", b"", 0, &file("/hidden", b""), 0),
                file("../y", b""),
            ],
            "has .. in its name",
        ),
    ] {
        let said = refusal(&tar_of(&[vec![skill()], entries].concat()));
        assert!(said.contains(problem), "{what}: {said}");
    }
}

#[test]
fn entries_that_no_skill_can_have_are_left_out_and_named() {
    let cases = "
        absolute link: link l /etc/passwd => l is a link out of the archive, to /etc/passwd
        climbing link: link a/l ../../x => a/l is a link out of the archive
        link over a link: link l b/../../x => l is a link out of the archive
        hard link out: hard h ../../etc/passwd => no earlier file
        absolute hard link: hard h /etc/passwd => no earlier file
        hard link to itself: hard h h => no earlier file
        character device: char null => null is a device
        block device: block sda => is a device
        FIFO: fifo pipe => is a FIFO
        GNU sparse: sparse sparse => is sparse
        another volume: volume next => is of an unknown kind
        PAX sparse: pax GNU.sparse.major=1, file x => x is sparse
        link beside the only folder: link l /x => l is a link out of the archive
    ";
    for case in cases.trim().lines() {
        let (what, expected) = case.split_once(": ").expect("a name");
        let (entries, reason) = expected.split_once(" => ").expect("a reason");
        let entries: Vec<Vec<u8>> = entries.split(", ").map(listed).collect();
        let document = match what.trim() {
            "link beside the only folder" => "w/SKILL.md",
            _ => "SKILL.md",
        };
        let document = vec![file(document, SKILL)];
        let bytes = tar_of(&[document, entries].concat());
        let (_dir, result) = unpacked_with(&bytes, &BOUNDS);
        let unpacked = result.expect(what);
        let found = tree(&unpacked.root);
        let files = found.iter().filter(|(_, mode, _)| mode != "0755");
        assert_eq!(files.count(), 1, "{what}: {found:?}");
        assert_eq!(unpacked.files, 1, "{what}");
        let left_out = unpacked.left_out.describe().expect(what);
        assert!(left_out.contains(reason), "{what}: {left_out}");
    }
    let link = |target: &[u8]| entry(b'2', b"l", target, 0o777, b"");
    let skill = || file("SKILL.md", SKILL);
    check_left_out(&tar_of(&[skill(), link(b"")]), "without a valid target");
    // Of two names of one link, the second is in the archive as a hard link to it.
    let names = [skill(), listed("link l SKILL.md"), listed("hard h l")];
    let (_dir, result) = unpacked_with(&tar_of(&names), &BOUNDS);
    let unpacked = result.expect("unpacked");
    assert_eq!((unpacked.files, unpacked.left_out.total), (2, 1));
    // A link stays in the folder around everything, which is taken off.
    let wrapped = tar_of(&[
        file("w/SKILL.md", SKILL),
        entry(b'2', b"w/l", b"../w/SKILL.md", 0o777, b""),
    ]);
    check_left_out(&wrapped, "w/l is a link out of the archive");
    // Where nothing is left, the refusal says why.
    let refused = refusal(&tar_of(&[link(b"/etc/passwd")]));
    assert!(refused.contains("has no files; left out"), "{refused}");
    assert!(refused.contains("to /etc/passwd"), "{refused}");
}

#[test]
fn parts_and_maps_of_sparse_files_are_skipped() {
    let source = tempfile::tempdir().expect("a directory");
    // More parts than the first header of the old format has room for, and than that format's next block has.
    let script = "truncate -s 8M holes; for n in {0..39}; do \
                  printf x | dd of=holes bs=1 seek=$((n * 200000)) conv=notrunc status=none; done";
    fs::write(source.path().join("SKILL.md"), SKILL).expect("written");
    let run = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output = command.args(arguments).current_dir(&source).output();
        output.expect(program)
    };
    assert!(run("bash", &["-c", script]).status.success());
    for format in ["gnu", "posix"] {
        let arguments = ["-c", "--sparse", "--format", format, "holes", "SKILL.md"];
        let archive = run("tar", &arguments).stdout;
        check_left_out(&archive, "holes is sparse");
    }
}

#[test]
fn omitted_entries_are_named_up_to_a_size_and_then_counted() {
    let pipes = (0..90).map(|at| listed(&format!("fifo {at}-{}", "p".repeat(60))));
    let entries: Vec<Vec<u8>> = pipes.chain([file("SKILL.md", SKILL)]).collect();
    let (_dir, unpacked) = unpacked_with(&tar_of(&entries), &BOUNDS);
    let left_out = unpacked.expect("unpacked").left_out;
    let said = left_out.describe().expect("many");
    assert!(said.len() < 500 && said.ends_with(" more"), "{said}");
    let named = said.matches(" is a FIFO").count();
    assert!(
        said.ends_with(&format!("; and {} more", 90 - named)),
        "{said}"
    );
}

#[test]
fn damaged_streams_are_refused() {
    let whole = tar_of(&[file("SKILL.md", SKILL), file("x", &[b'x'; 600])]);
    let packed = gzip(&whole);
    let zip = zip_of(&[("SKILL.md", SKILL), ("x", &[b'x'; 600])]);
    let entries = whole.len() - 1024;
    let big = tar_of(&[file("SKILL.md", SKILL), file("x", &[b'x'; 200_000])]);
    let mut stored = gzip_with(&big, Compression::none());
    // Its third block begins within the second file. No block is of the kind that this one gets.
    let mut block = 10;
    for _ in 0..2 {
        let length = u16::from_le_bytes([stored[block + 1], stored[block + 2]]);
        block += 5 + usize::from(length);
    }
    stored[block] = 6;
    for (what, bytes, problem) in [
        (
            "tar without its end",
            whole[..entries].to_vec(),
            "without its end mark",
        ),
        (
            "tar cut in a file",
            whole[..entries - 700].to_vec(),
            "x is cut off",
        ),
        (
            "tar cut in padding",
            whole[..entries - 100].to_vec(),
            "x is cut off",
        ),
        (
            "tar cut in a header",
            whole[..1024 + 100].to_vec(),
            "without its end mark",
        ),
        (
            "tar with a wrong checksum",
            patched(whole.clone(), 1024, b"y"),
            "damaged header",
        ),
        (
            "tar with more after its end",
            [whole.clone(), b"more".to_vec()].concat(),
            "something after its end",
        ),
        ("gzip cut", packed[..packed.len() / 2].to_vec(), "cut off"),
        (
            "gzip cut in a file",
            stored[..block].to_vec(),
            "x is cut off",
        ),
        (
            "gzip damaged in a file",
            stored.clone(),
            "x cannot be decompressed",
        ),
        (
            "gzip with a wrong sum",
            patched(packed.clone(), packed.len() - 8, b"abcd"),
            "cannot be decompressed",
        ),
        (
            "gzip with more after its end",
            [packed.clone(), b"more than a header has".to_vec()].concat(),
            "cannot be decompressed",
        ),
        ("gzip of no tar", gzip(b"hello"), "without its end mark"),
        (
            "zip cut",
            zip[..zip.len() - 30].to_vec(),
            "without its directory",
        ),
        (
            "zip cut at its end",
            zip[..zip.len() - 1].to_vec(),
            "is cut off",
        ),
        (
            "zip with more after its end",
            [zip.clone(), b"more".to_vec()].concat(),
            "something after its end",
        ),
        (
            "zip with something before it",
            [b"PK\x03\x04".to_vec(), zip.clone()].concat(),
            "cannot be read",
        ),
        (
            "zip with other bytes than it says",
            patched(zip.clone(), 30 + 8 + 3, b"zz"),
            "SKILL.md cannot be decompressed",
        ),
        ("empty tar", tar_of(&[]), "has no files"),
        ("empty zip", zip_of(&[]), "has no files"),
        (
            "only directories",
            tar_of(&[entry(b'5', b"d/", b"", 0, b"")]),
            "has no files",
        ),
        ("nothing", Vec::new(), "is neither tar"),
        ("something else", b"\x7fELF\0\0".to_vec(), "is neither tar"),
        ("rar", b"Rar!\x1a\x07\x01\x00".to_vec(), "is neither tar"),
    ] {
        let said = refusal(&bytes);
        assert!(said.contains(problem), "{what}: {said}");
    }
}

#[test]
fn hostile_zip_files_are_refused() {
    let two = zip_of(&[("SKILL.md", SKILL), ("x", b"xx")]);
    let central = places(&two, b"PK\x01\x02");
    let local = places(&two, b"PK\x03\x04");
    let end = places(&two, b"PK\x05\x06")[0];
    let same_data = patched(two.clone(), central[1] + 42, &0u32.to_le_bytes());
    let hidden = {
        // The directory names one entry, the file has two.
        let mut bytes = two.clone();
        bytes.drain(central[1]..end);
        let end = places(&bytes, b"PK\x05\x06")[0];
        let bytes = patched(bytes, end + 8, &[1, 0, 1, 0]);
        patched(
            bytes,
            end + 12,
            &u32::try_from(central[1] - central[0])
                .expect("small")
                .to_le_bytes(),
        )
    };
    let renamed = patched(two.clone(), local[1] + 30, b"y");
    let twice = {
        let bytes = zip_of(&[("SKILL.md", SKILL), ("x", b"1"), ("y", b"2")]);
        places(&bytes, b"y")
            .into_iter()
            .fold(bytes.clone(), |bytes, at| patched(bytes, at, b"x"))
    };
    let encrypted = {
        let bytes = patched(two.clone(), central[1] + 8, &[1, 0]);
        patched(bytes, local[1] + 6, &[1, 0])
    };
    let bzip2 = {
        let bytes = patched(two.clone(), central[1] + 10, &[12, 0]);
        patched(bytes, local[1] + 8, &[12, 0])
    };
    for (what, bytes, problem) in [
        ("two entries of the same bytes", same_data, "inconsisten"),
        ("an entry that the directory hides", hidden, "inconsisten"),
        ("an entry with two names", renamed, "inconsisten"),
        ("a name twice", twice, "two entries of the same name"),
        ("encrypted", encrypted, "x is encrypted"),
        ("another compression", bzip2, "another method than deflate"),
        (
            "directory with contents",
            zip_mode(two.clone(), 0o040_755),
            "is no file and has contents",
        ),
        (
            "FIFO with contents",
            zip_mode(two.clone(), 0o010_644),
            "is no file and has contents",
        ),
        (
            "size that lies",
            patched(
                patched(two.clone(), central[1] + 24, &[1]),
                local[1] + 22,
                &[1],
            ),
            "x ",
        ),
    ] {
        let said = refusal(&bytes);
        assert!(said.contains(problem), "{what}: {said}");
    }
    let empty = zip_of(&[("SKILL.md", SKILL), ("x", b"")]);
    let special = "x is a device, a FIFO or a socket";
    for (bytes, reason) in [
        (zip_link("l", "../x"), "l is a link out of the archive"),
        (
            zip_link("l", "/etc/passwd"),
            "l is a link out of the archive",
        ),
        (zip_mode(empty.clone(), 0o010_644), special),
        (zip_mode(empty, 0o060_644), special),
    ] {
        check_left_out(&bytes, reason);
    }
}

#[test]
fn bombs_are_stopped_while_they_are_unpacked() {
    let zeros = vec![0; 5 << 20];
    let small = |bounds: ArchiveBounds| ArchiveBounds {
        bytes: u64::MAX / 2,
        file_bytes: u64::MAX / 2,
        ..bounds
    };
    let tar_bomb = gzip(&tar_of(&[file("SKILL.md", SKILL), file("zeros", &zeros)]));
    let tail_bomb = gzip(&[tar_of(&[file("SKILL.md", SKILL)]), zeros.clone()].concat());
    let zip_bomb = zip_of(&[("SKILL.md", SKILL), ("zeros", &zeros)]);
    assert!(zip_bomb.len() < 8 << 10, "{}", zip_bomb.len());
    let many = |count: usize| {
        let files: Vec<Vec<u8>> = (0..count).map(|at| file(&at.to_string(), b"")).collect();
        tar_of(&files)
    };
    let names: Vec<String> = (0..101).map(|at| at.to_string()).collect();
    let many_zip: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let deep: Vec<Vec<u8>> = (0..30)
        .map(|at| file(&format!("{at}/b/c/d/e/f"), b""))
        .collect();
    let headers = vec![entry(b'5', b"d/", b"", 0, b""); 400];
    for (what, bytes, bounds, problem) in [
        (
            "ratio of tar.gz",
            &tar_bomb,
            small(BOUNDS),
            "bytes that an archive of this size",
        ),
        (
            "zeros after the end",
            &tail_bomb,
            small(BOUNDS),
            "bytes that an archive of this size",
        ),
        (
            "ratio of zip",
            &zip_bomb,
            ArchiveBounds {
                ratio: 1,
                ..small(BOUNDS)
            },
            "bytes that an archive of this size",
        ),
        (
            "zeros after the end, by bytes",
            &tail_bomb,
            ArchiveBounds {
                ratio: 100_000,
                ..BOUNDS
            },
            "bytes of the archive, unpacked",
        ),
        (
            "file of tar.gz",
            &tar_bomb,
            BOUNDS,
            "bytes of zeros is over the limit of 262144",
        ),
        (
            "file of zip",
            &zip_bomb,
            BOUNDS,
            "bytes of zeros is over the limit of 262144",
        ),
        (
            "all files",
            &zip_of(&[
                ("a", &zeros[..200_000]),
                ("b", &zeros[..200_000]),
                ("c", &zeros[..200_000]),
                ("d", &zeros[..200_000]),
                ("e", &zeros[..200_000]),
                ("f", &zeros[..200_000]),
            ]),
            BOUNDS,
            "bytes of all files is over the limit of 1048576",
        ),
        (
            "entries of tar",
            &many(101),
            BOUNDS,
            "entries of the archive is over the limit of 100",
        ),
        (
            "entries of zip",
            &zip_of(&many_zip),
            BOUNDS,
            "entries of the archive is over the limit of 100",
        ),
        (
            "folders in names",
            &tar_of(&deep),
            BOUNDS,
            "entries of the archive is over the limit of 100",
        ),
        (
            "one directory for ever",
            &tar_of(&headers),
            BOUNDS,
            "entries of the archive is over the limit of 100",
        ),
        (
            "copies by hard link",
            &tar_of(
                &[
                    vec![file("SKILL.md", &zeros[..200_000])],
                    (0..9)
                        .map(|at| entry(b'1', at.to_string().as_bytes(), b"SKILL.md", 0, b""))
                        .collect(),
                ]
                .concat(),
            ),
            BOUNDS,
            "bytes of all files",
        ),
    ] {
        let (_dir, result) = unpacked_with(bytes, &bounds);
        let refused = result.expect_err(what);
        assert!(
            matches!(refused, Error::LimitExceeded { .. }),
            "{what}: {refused:?}"
        );
        let said = refused.to_string();
        assert!(said.contains(problem), "{what}: {said}");
    }
    let (_dir, fits) = unpacked_with(&many(100), &BOUNDS);
    assert_eq!(fits.expect("100 entries are allowed").files, 100);
    let exact = vec![b'x'; 256 << 10];
    let (_dir, fits) = unpacked_with(&tar_of(&[file("x", &exact)]), &BOUNDS);
    assert_eq!(fits.expect("a file of the largest size").bytes, 256 << 10);
}

#[test]
fn an_oversized_zip_directory_is_not_read() {
    let names: Vec<String> = (0..5_000)
        .map(|at| format!("{at}-{}", "n".repeat(200)))
        .collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let said = refusal(&zip_of(&files));
    assert!(
        said.contains("entries of the archive is over the limit of 100"),
        "{said}"
    );
}

#[test]
fn zip64_and_data_descriptors_are_read() {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().large_file(true);
    writer.start_file("SKILL.md", options).expect("zip");
    writer.write_all(SKILL).expect("zip");
    let zip64 = writer.finish().expect("zip").into_inner();
    assert_eq!(shown(&zip64), expected(&[("SKILL.md", "0644", SKILL)]));
    // What writes to a pipe knows sizes only afterwards.
    let mut writer = ZipWriter::new_stream(Vec::new());
    let options = SimpleFileOptions::default();
    writer.start_file("SKILL.md", options).expect("zip");
    writer.write_all(SKILL).expect("zip");
    let streamed = writer.finish().expect("zip").into_inner();
    assert!(!places(&streamed, b"PK\x07\x08").is_empty());
    assert_eq!(shown(&streamed), expected(&[("SKILL.md", "0644", SKILL)]));
}

#[test]
fn messages_about_entries_are_short_and_printable() {
    let name = format!("{}\u{1b}[31m", "x/".repeat(400));
    let bytes = tar_of(&[
        entry(b'x', b"pax", b"", 0, &pax("path", name.as_bytes())),
        file("x", b""),
    ]);
    let said = refusal(&bytes);
    assert!(
        said.len() < 400 && !said.contains(char::is_control),
        "{said}"
    );
}
