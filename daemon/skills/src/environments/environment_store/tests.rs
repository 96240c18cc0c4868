//! Tests of the store of environments, on archives as builds and strangers make them.

use std::io::Seek;

use super::super::environment_record::PythonInterpreter;
use super::*;

const BOUNDS: ArchiveBounds = ArchiveBounds {
    bytes: 1 << 20,
    file_bytes: 1 << 20,
    entries: 1000,
    depth: 32,
    ratio: 200,
};
const NAME: &str = "0123456789abcdef0123456789abcdef";
const REPORT_TEXT: &str = r#"{"version": 1, "python": {"executable": "/usr/bin/python3", "version": "3.13.5"},
    "packages": [{"name": "six", "version": "1.17.0", "hashes": ["sha256:00"]}], "python_modules": ["six"]}"#;

/// A store in a temporary directory.
struct Fixture {
    base: tempfile::TempDir,
    store: EnvironmentStore,
}

impl Fixture {
    fn new() -> Self {
        let base = tempfile::tempdir().expect("temp dir");
        let store = EnvironmentStore::open(base.path()).expect("opened");
        Self { base, store }
    }

    fn install(&self, files: &[(&str, &str)]) -> Result<Arc<EnvironmentRecord>> {
        let mut archive = make_archive(files);
        self.store
            .install(&mut archive, NAME, "need", "sha256:image", &BOUNDS)
    }

    fn reopen(&self) -> EnvironmentStore {
        EnvironmentStore::open(self.base.path()).expect("opened again")
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.base.path().join(folder)).expect("listed");
        entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("name")
            })
            .collect()
    }
}

fn make_archive(files: &[(&str, &str)]) -> File {
    let mut archive = tar::Builder::new(tempfile::tempfile().expect("temp file"));
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, path, text.as_bytes())
            .expect("appended");
    }
    let mut file = archive.into_inner().expect("finished");
    file.rewind().expect("rewound");
    file
}

fn key() -> String {
    environment_key("need", "sha256:image")
}

#[test]
fn installed_environment_is_found_by_need_and_image_also_after_a_restart() {
    let fixture = Fixture::new();
    let module = ("venv/lib/python3.13/site-packages/six.py", "x = 1\n");
    let record = fixture
        .install(&[(REPORT, REPORT_TEXT), module])
        .expect("installed");
    assert_eq!((record.files, record.name.as_str()), (2, NAME));
    let python = PythonInterpreter {
        executable: "/usr/bin/python3".to_owned(),
        version: "3.13.5".to_owned(),
    };
    assert_eq!(record.report.python, Some(python));
    for store in [&fixture.store, &fixture.reopen()] {
        assert_eq!(store.find(&key()).as_deref(), Some(&*record));
        assert_eq!(store.find(&environment_key("need", "sha256:other")), None);
        assert_eq!(store.find(&environment_key("other", "sha256:image")), None);
    }
    let folder = mounted_dir(fixture.base.path()).join(NAME);
    for (link, target) in [
        ("python", "/usr/bin/python3"),
        ("python3", "python"),
        ("python3.13", "python"),
    ] {
        let found = fs::read_link(folder.join("venv/bin").join(link)).expect(link);
        assert_eq!(found, Path::new(target));
    }
    assert_eq!(fs::read(folder.join(module.0)).expect("read"), b"x = 1\n");
}

#[test]
fn environments_cannot_be_listed_by_a_command() {
    let fixture = Fixture::new();
    let mode = |path: PathBuf| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(mounted_dir(fixture.base.path())), 0o711);
    assert_eq!(mode(fixture.base.path().join("records")), 0o700);
}

#[test]
fn archive_that_no_build_makes_is_refused_and_leaves_nothing() {
    let link_python = r#"{"version": 1, "python": {"executable": "../../x", "version": "3.13.5"}}"#;
    let no_version =
        r#"{"version": 1, "python": {"executable": "/usr/bin/python3", "version": "x"}}"#;
    for (files, part) in [
        (vec![("venv/x", "")], "environment.json that is missing"),
        (vec![(REPORT, "{"), ("venv/x", "")], "is invalid"),
        (
            vec![(REPORT, r#"{"version": 2}"#), ("venv/x", "")],
            "version 2",
        ),
        (
            vec![(REPORT, link_python), ("venv/x", "")],
            "not an absolute path",
        ),
        (
            vec![(REPORT, no_version), ("venv/x", "")],
            "not of the form 3.N.M",
        ),
    ] {
        let fixture = Fixture::new();
        let error = fixture.install(&files).expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(fixture.store.find(&key()), None);
        for folder in ["mounted", "records", "tmp"] {
            assert_eq!(
                fixture.names(folder),
                Vec::<String>::new(),
                "{part}: {folder}"
            );
        }
    }
}

#[test]
fn environment_larger_than_its_bounds_is_refused() {
    let fixture = Fixture::new();
    let large = "x".repeat(2 << 20);
    let error = fixture.install(&[(REPORT, REPORT_TEXT), ("venv/x", &large)]);
    let error = error.expect_err("too large");
    assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
}

#[test]
fn folder_without_a_record_and_record_without_a_folder_are_removed_at_start() {
    let fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    fs::create_dir(mounted_dir(fixture.base.path()).join("half")).expect("mkdir");
    fs::write(fixture.base.path().join("tmp/left"), "x").expect("write");
    fixture.reopen();
    assert_eq!(fixture.names("mounted"), [NAME]);
    assert_eq!(fixture.names("tmp"), Vec::<String>::new());
    fs::remove_dir_all(mounted_dir(fixture.base.path()).join(NAME)).expect("removed");
    assert_eq!(fixture.reopen().find(&key()), None);
    assert_eq!(fixture.names("records"), Vec::<String>::new());
}

#[test]
fn unused_environments_are_removed_and_used_ones_stay() {
    let fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    let used = HashSet::from([NAME.to_owned()]);
    let collect = |keep, used: &HashSet<String>| {
        let cleanup = fixture.store.collect(keep, used).expect("collected");
        (cleanup.removed, cleanup.kept)
    };
    assert_eq!(collect(Duration::ZERO, &used), (0, 1));
    assert_eq!(collect(Duration::from_secs(3600), &HashSet::new()), (0, 1));
    assert_eq!(collect(Duration::ZERO, &HashSet::new()), (1, 0));
    assert_eq!(fixture.store.find(&key()), None);
    for folder in ["mounted", "records", "tmp"] {
        assert_eq!(fixture.names(folder), Vec::<String>::new());
    }
}
