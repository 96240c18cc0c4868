//! Listings and lookups over folders on disk, and paths that somebody hostile wrote.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::skill_path::SKILL_PATH_BYTES_MAX;

fn manifest(make: impl FnOnce(&Path)) -> (tempfile::TempDir, Manifest) {
    let dir = tempfile::tempdir().expect("temp dir");
    make(dir.path());
    let manifest = Manifest::read(dir.path()).expect("readable");
    (dir, manifest)
}

fn write(dir: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = dir.join(path);
    fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
    fs::write(path, bytes).expect("write");
}

fn paths(manifest: &Manifest) -> Vec<&str> {
    manifest
        .files()
        .iter()
        .map(|file| file.path.as_str())
        .collect()
}

#[test]
fn a_file_is_described_by_what_is_in_it() {
    let (_dir, manifest) = manifest(|dir| {
        write(dir, "SKILL.md", "---\n");
        write(dir, "assets/logo.png", b"\x89PNG\r\n\x1a\n\0\0");
        write(dir, "assets/lies.txt", b"\x89PNG\r\n\x1a\n\0\0");
        write(dir, "empty", "");
        write(dir, "scripts/run", "#!/bin/sh\n");
        write(dir, "tool", b"\xff\xfe#\0!\0/\0b\0\n\0");
        let mode = fs::Permissions::from_mode(0o555);
        fs::set_permissions(dir.join("scripts/run"), mode).expect("chmod");
    });
    let files: Vec<_> = manifest.files().iter().collect();
    let of = |path: &str| *files.iter().find(|file| file.path == path).expect(path);
    assert!(files.is_sorted_by(|a, b| a.path < b.path) && files.len() == 6);
    let png = of("assets/logo.png");
    assert_eq!(
        (png.mime_type, png.is_text, png.size),
        ("image/png", false, 10)
    );
    assert_eq!(of("assets/lies.txt").mime_type, "image/png");
    let script = of("scripts/run");
    assert_eq!(
        (script.purpose, script.mode, script.is_text),
        (FilePurpose::Script, 0o555, true)
    );
    let utf16 = of("tool");
    let described = (utf16.purpose, utf16.encoding);
    assert_eq!(described, (FilePurpose::Script, "UTF-16LE"));
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!((of("empty").sha256.as_str(), of("empty").size), (empty, 0));
}

#[test]
fn stored_files_are_listed_as_they_are_staged() {
    let all = [
        "SKILL.md",
        "a.md",
        "child/SKILL.md",
        "child/x/y.py",
        "deep/er/skill.md",
        "deep/own.md",
    ];
    let (_dir, manifest) = manifest(|dir| {
        for path in all {
            write(dir, path, path);
        }
    });
    assert_eq!(paths(&manifest), all);
    assert_eq!(manifest.find("child/x/y.py").expect("there").size, 12);
}

#[test]
fn files_that_a_card_excludes_are_neither_listed_nor_read() {
    let (_dir, whole) = manifest(|dir| {
        for path in ["SKILL.md", "references/a.md", "references/b.md"] {
            write(dir, path, path);
        }
    });
    let manifest = whole.restricted(|path| path != "references/b.md");
    assert_eq!(paths(&manifest), ["SKILL.md", "references/a.md"]);
    let found = manifest.find("references/b.md");
    assert!(
        matches!(found, Err(Error::FileNotFound { .. })),
        "{found:?}"
    );
}

#[test]
fn links_are_followed_inside_only() {
    let outside = tempfile::tempdir().expect("temp dir");
    write(outside.path(), "canary", "secret");
    let (_dir, manifest) = manifest(|dir| {
        write(dir, "docs/a.md", "text");
        symlink("docs/a.md", dir.join("to-file")).expect("symlink");
        symlink("docs", dir.join("references")).expect("symlink");
        symlink(outside.path().join("canary"), dir.join("out-absolute")).expect("symlink");
        symlink("../../../../etc/passwd", dir.join("docs/out-relative")).expect("symlink");
        symlink("nowhere", dir.join("broken")).expect("symlink");
        symlink("circle", dir.join("circle")).expect("symlink");
        symlink("/proc/self/environ", dir.join("magic")).unwrap_or_default();
    });
    assert_eq!(paths(&manifest), ["docs/a.md", "to-file"]);
    assert_eq!(manifest.find("to-file").expect("there").size, 4);
    for path in [
        "out-absolute",
        "docs/out-relative",
        "broken",
        "circle",
        "magic",
    ] {
        let found = manifest.find(path);
        assert!(matches!(found, Err(Error::FileNotFound { .. })), "{path}");
    }
}

#[test]
fn paths_are_understood_as_they_are_written() {
    let (_dir, manifest) = manifest(|dir| {
        for path in [
            "SKILL.md",
            "reference.md",
            "references/API.md",
            "Twice.md",
            "twice.MD",
            "a b/ü.txt",
        ] {
            write(dir, path, path);
        }
    });
    let found = |path: &str| manifest.find(path).map(|file| file.path.clone());
    for (path, expected) in [
        ("reference.md", "reference.md"),
        ("./reference.md", "reference.md"),
        ("references//API.md", "references/API.md"),
        (".//references/./API.md/", "references/API.md"),
        // A document that says REFERENCE.md means the only file of that name.
        ("REFERENCE.md", "reference.md"),
        ("References/api.MD", "references/API.md"),
        ("Twice.md", "Twice.md"),
        ("a b/Ü.txt", "a b/ü.txt"),
    ] {
        assert_eq!(found(path).expect(path), expected);
    }
    let nearest = |path: &str| match found(path) {
        Err(Error::FileNotFound { nearest, .. }) => nearest,
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(nearest("TWICE.md"), ["Twice.md", "twice.MD"]);
    assert_eq!(nearest("API.md"), ["references/API.md"]);
    assert_eq!(nearest("docs/reference.md")[0], "reference.md");
    assert_eq!(nearest("references/AIP.md"), ["references/API.md"]);
    assert_eq!(nearest("zzzzzzz"), Vec::<String>::new());
    for folder in ["references", "./references/", "a b", ".", "./"] {
        let found = found(folder);
        assert!(
            matches!(found, Err(Error::WrongFileType { .. })),
            "{folder}: {found:?}"
        );
    }
}

#[test]
fn hostile_paths_are_refused_by_their_kind() {
    let (_dir, manifest) = manifest(|dir| write(dir, "references/x.md", "x"));
    let deep = "a/".repeat(33);
    let long = "a/".repeat(SKILL_PATH_BYTES_MAX) + "a";
    let long_name = "a".repeat(256);
    for path in [
        "..",
        "../x",
        "references/../../etc/passwd",
        "a/..",
        "/etc/passwd",
        "/references/x.md",
        "//x",
    ] {
        let found = manifest.find(path);
        assert!(
            matches!(found, Err(Error::LeavesSkill { .. })),
            "{path}: {found:?}"
        );
    }
    for path in [
        "a\0b",
        "references\\x.md",
        "..\\x",
        "a\nb",
        "\u{7f}",
        &deep,
        &long,
        &long_name,
    ] {
        let found = manifest.find(path);
        assert!(
            matches!(found, Err(Error::Invalid { .. })),
            "{path:?}: {found:?}"
        );
    }
    for path in [
        "...",
        "..x",
        "references/x.md\u{202e}",
        "~",
        "$HOME",
        "%2e%2e/x",
        "*",
    ] {
        let found = manifest.find(path);
        assert!(
            matches!(found, Err(Error::FileNotFound { .. })),
            "{path}: {found:?}"
        );
    }
}

#[test]
fn names_that_are_not_utf8_can_be_read_as_they_are_shown() {
    let (_dir, manifest) = manifest(|dir| {
        let name = OsStr::from_bytes(b"caf\xe9.txt");
        fs::write(dir.join(name), "x").expect("write");
    });
    let file = manifest.find("caf\u{fffd}.txt").expect("there");
    manifest.open(file).expect("opens");
}

#[test]
fn names_of_macos_are_listed_composed_and_read_in_both_forms() {
    let (_dir, manifest) = manifest(|dir| {
        write(dir, "Gro\u{308}\u{df}e/u\u{308}ber.md", "macOS");
        write(dir, "two/\u{fc}.md", "composed");
        write(dir, "two/u\u{308}.md", "decomposed");
    });
    let (composed, decomposed) = ("two/\u{fc}.md", "two/u\u{308}.md");
    let folder = "Gr\u{f6}\u{df}e/\u{fc}ber.md";
    assert_eq!(paths(&manifest), [folder, decomposed, composed]);
    for (path, text) in [
        (folder, "macOS"),
        ("Gro\u{308}\u{df}e/u\u{308}ber.md", "macOS"),
        (composed, "composed"),
        (decomposed, "decomposed"),
    ] {
        let file = manifest.find(path).expect(path);
        let read = io::read_to_string(manifest.open(file).expect(path));
        assert_eq!(read.expect("text"), text, "{path}");
    }
}

#[test]
fn a_part_is_exactly_what_was_asked_for() {
    let bytes: Vec<u8> = (0..=255_u8).cycle().take(CHUNK_BYTES_MAX + 10).collect();
    let (_dir, manifest) = manifest(|dir| write(dir, "x.bin", &bytes));
    let file = manifest.find("x.bin").expect("there");
    let read = |offset: usize, length: Option<usize>| {
        let opened = manifest.open(file).expect("opens");
        let length = length.map(|length| length as u64);
        let content = FileContent::Stored(opened);
        let mut part = FileRangeReader::new(content, offset as u64, length).expect("seeks");
        let (mut all, mut sizes) = (Vec::new(), Vec::new());
        while let Some(chunk) = part.next_chunk().expect("reads") {
            sizes.push(chunk.len());
            all.extend(chunk);
        }
        (all, sizes)
    };
    assert_eq!(read(0, None), (bytes.clone(), vec![CHUNK_BYTES_MAX, 10]));
    assert_eq!(read(5, Some(3)).0, bytes[5..8]);
    assert_eq!(read(bytes.len() - 1, Some(100)).0, bytes[bytes.len() - 1..]);
    assert_eq!(read(bytes.len(), None), (Vec::new(), Vec::new()));
    assert_eq!(read(usize::MAX, None), (Vec::new(), Vec::new()));
}
