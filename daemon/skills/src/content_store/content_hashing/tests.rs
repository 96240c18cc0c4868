//! Digests, copies, bounds and links of a skill's content.

use std::os::unix::fs::MetadataExt;

use super::*;

const BOUNDS: ContentBounds = ContentBounds {
    files_max: 100,
    bytes_max: 1 << 20,
};

/// Makes a folder of files; `!` at the end of a name makes it executable.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    for (name, text) in files {
        let path = dir.path().join(name.trim_end_matches('!'));
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(&path, text).expect("write");
        let mode = if name.ends_with('!') { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    dir
}

fn read_dir(dir: &Path, into: Option<&Path>) -> ContentSummary {
    read_content(&ContentSource::stored(dir), into, BOUNDS).expect("readable")
}

fn digest(files: &[(&str, &str)]) -> String {
    read_dir(folder(files).path(), None).digest
}

#[test]
fn a_digest_depends_on_paths_contents_and_the_exec_bit_only() {
    let base = digest(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "z")]);
    assert_eq!(
        base,
        digest(&[("a.txt", "z"), ("a/b", "y"), ("SKILL.md", "x")])
    );
    assert_eq!(base.len(), 64);
    for other in [
        digest(&[("SKILL.md", "x"), ("a/b", "y")]),
        digest(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "Z")]),
        digest(&[("SKILL.md", "x"), ("a/c", "y"), ("a.txt", "z")]),
        digest(&[("SKILL.md", "x"), ("a/b!", "y"), ("a.txt", "z")]),
        digest(&[("SKILL.md", "xa/by"), ("a.txt", "z")]),
    ] {
        assert_ne!(base, other);
    }
    let dir = folder(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "z")]);
    fs::set_permissions(dir.path().join("a.txt"), fs::Permissions::from_mode(0o600))
        .expect("chmod");
    fs::create_dir_all(dir.path().join("empty/.git")).expect("mkdir");
    fs::create_dir(dir.path().join("__pycache__")).expect("mkdir");
    fs::write(dir.path().join("__pycache__/x.pyc"), "x").expect("write");
    assert_eq!(base, read_dir(dir.path(), None).digest);
}

#[test]
fn the_digest_is_what_it_always_was() {
    // Changing this digest breaks every digest that a client has pinned.
    let dir = folder(&[("SKILL.md", "x"), ("bin/run!", "y")]);
    std::os::unix::fs::symlink("bin/run", dir.path().join("link")).expect("symlink");
    let content = read_dir(dir.path(), None);
    assert_eq!(
        content.digest,
        "1ddfd1e0b5e79eccc2932608f576bcee89b01b78aa4a3a34ee3b2185abc8fe00"
    );
    assert_eq!((content.files, content.bytes), (3, 2));
}

#[test]
fn a_copy_has_the_digest_of_its_source_and_fixed_modes() {
    let source = folder(&[("SKILL.md", "x"), ("a/b/c!", "y")]);
    std::os::unix::fs::symlink("../SKILL.md", source.path().join("a/link")).expect("symlink");
    let copy = tempfile::tempdir().expect("temp dir");
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
    let content = read_dir(source.path(), Some(copy.path()));
    assert_eq!(content, read_dir(copy.path(), None));
    let mode = |path: &str| {
        let metadata = fs::metadata(copy.path().join(path)).expect("there");
        metadata.mode() & 0o7777
    };
    assert_eq!(
        [mode("."), mode("a"), mode("SKILL.md"), mode("a/b/c")],
        [0o755, 0o755, 0o444, 0o555]
    );
}

#[test]
fn directories_are_bounded_as_files_are() {
    let refused = |count: usize| {
        let dir = folder(&[("SKILL.md", "x")]);
        for n in 0..count {
            fs::create_dir_all(dir.path().join(format!("{}/{n}", n % 7))).expect("mkdir");
        }
        match read_content(&ContentSource::stored(dir.path()), None, BOUNDS) {
            Ok(_) => None,
            Err(IngestError::Skill(problem)) => Some(problem.message),
            Err(IngestError::Host(error)) => panic!("{error}"),
        }
    };
    assert_eq!(refused(93), None);
    let why = refused(94).expect("101 directories");
    assert!(why.contains("more than 100 directories"), "{why}");
}

#[test]
fn a_link_whose_target_cannot_be_read_is_not_left_out() {
    // Other users can reach it, wherever TMPDIR is.
    let dir = tempfile::tempdir_in("/tmp").expect("temp dir");
    let root = dir.path().canonicalize().expect("there");
    let (skill, target) = (root.join("skill"), root.join("target"));
    fs::create_dir(&skill).expect("mkdir");
    fs::write(&target, "x").expect("write");
    for (path, mode) in [(&root, 0o755), (&skill, 0o755), (&target, 0)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    std::os::unix::fs::symlink(&target, skill.join("link")).expect("symlink");
    let source = ContentSource {
        dir: skill,
        link_policy: LinkPolicy::of_folder(&root),
        ..ContentSource::default()
    };
    // Root reads every file, so this thread becomes another user.
    let own = nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
    let read = read_content(&source, None, BOUNDS);
    nix::unistd::setfsuid(own);
    let problem = read.expect_err("the target has mode 0").into_problem();
    assert_eq!(problem.code, UNREADABLE);
    assert!(
        problem.message.starts_with("cannot read link"),
        "{problem:?}"
    );
}

#[test]
fn links_must_stay_inside() {
    for (link, target, inside) in [
        ("a", "b", true),
        ("a", "./b/c", true),
        ("d/a", "../b", true),
        ("d/a", "..", true),
        ("d/a", "../..", false),
        ("a", "..", false),
        ("a", "../skill/b", false),
        ("a", "b/../c", false),
        ("a", "/etc/passwd", false),
        ("d/e/a", "../../b", true),
    ] {
        assert_eq!(
            stays_inside(Path::new(link), Path::new(target)),
            inside,
            "{link} → {target}"
        );
    }
}
