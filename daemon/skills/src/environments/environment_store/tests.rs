//! Tests of the store of environments, on archives as builds and strangers make them.

use std::io::Seek;

use super::super::environment_record::PythonInterpreter;
use super::build_archive::REPORT;
use super::*;

const BOUNDS: ArchiveBounds = ArchiveBounds {
    bytes: 1 << 20,
    file_bytes: 1 << 20,
    entries: 1000,
    depth: 32,
    ratio: 200,
};
const NAME: &str = "0123456789abcdef0123456789abcdef";
const OTHER_NAME: &str = "fedcba9876543210fedcba9876543210";
/// Bytes that count for an environment of a report and a file of 1000 bytes in a directory.
const HELD_BYTES: u64 = REPORT_TEXT.len() as u64 + 1000 + (3 + 5) * 4096;
const HOUR: Duration = Duration::from_secs(3600);
const REPORT_TEXT: &str = r#"{"version": 1, "python": {"executable": "/usr/bin/python3", "version": "3.13.5"},
    "packages": [{"name": "six", "version": "1.17.0", "hashes": ["sha256:00"]}], "python_modules": ["six"]}"#;

/// A store in a temporary directory.
struct Fixture {
    base: tempfile::TempDir,
    store: EnvironmentStore,
}

impl Fixture {
    fn new() -> Self {
        Self::with_bytes_max(1 << 20)
    }

    fn with_bytes_max(bytes_max: u64) -> Self {
        let base = tempfile::tempdir().expect("temp dir");
        let store = EnvironmentStore::open(base.path(), bytes_max).expect("opened");
        Self { base, store }
    }

    fn install(&self, files: &[(&str, &str)]) -> Result<Arc<EnvironmentRecord>> {
        let mut archive = make_archive(files);
        let nothing = &|| HashSet::new();
        let names = (NAME, &key());
        self.store
            .install(&mut archive, names, &BOUNDS, None, nothing)
    }

    /// Installs an environment that counts [`HELD_BYTES`].
    fn install_as(
        &self,
        name: &str,
        key: &EnvironmentKey,
        used: &[&str],
    ) -> Result<Arc<EnvironmentRecord>> {
        self.install_within(None, name, key, used)
    }

    /// Installs such an environment within a quota of its tenant.
    fn install_within(
        &self,
        bytes_quota: Option<u64>,
        name: &str,
        key: &EnvironmentKey,
        used: &[&str],
    ) -> Result<Arc<EnvironmentRecord>> {
        let large = "x".repeat(1000);
        let mut archive = make_archive(&[(REPORT, REPORT_TEXT), ("venv/x", &large)]);
        let in_use = || names_of(used);
        self.store
            .install(&mut archive, (name, key), &BOUNDS, bytes_quota, &in_use)
    }

    fn collect(&self, keep: Duration, used: &[&str]) {
        self.collect_beside(keep, &HashSet::new(), used);
    }

    fn collect_beside(&self, keep: Duration, needed: &HashSet<String>, used: &[&str]) {
        let examined = self.store.prepared();
        self.store
            .collect(keep, &examined, needed, &|| names_of(used));
    }

    fn reopen(&mut self) {
        self.store = EnvironmentStore::open(self.base.path(), 1 << 20).expect("opened again");
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.base.path().join(format!("records/{name}.json"))
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.base.path().join(folder)).expect("listed");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("entry").file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).into_string().expect("a name"))
            .collect();
        names.sort();
        names
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

fn names_of(names: &[&str]) -> HashSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn key() -> EnvironmentKey {
    EnvironmentKey {
        tenant: "default".to_owned(),
        need: "need".to_owned(),
        image_id: "sha256:image".to_owned(),
        policy: "policy".to_owned(),
    }
}

fn pdf() -> BTreeSet<String> {
    BTreeSet::from(["pdf".to_owned()])
}

/// Key of a tenant's environment; `number` makes it unique.
fn key_of(tenant: &str, number: usize) -> EnvironmentKey {
    EnvironmentKey {
        tenant: tenant.to_owned(),
        need: format!("need {number}"),
        ..key()
    }
}

fn other_key() -> EnvironmentKey {
    EnvironmentKey {
        need: "other".to_owned(),
        ..key()
    }
}

#[test]
fn environment_is_found_by_its_whole_key_even_after_a_restart() {
    let mut fixture = Fixture::new();
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
    for _ in 0..2 {
        assert_eq!(fixture.store.find(&key()).as_deref(), Some(&*record));
        let changed: [fn(&mut EnvironmentKey) -> &mut String; 4] = [
            |key| &mut key.tenant,
            |key| &mut key.need,
            |key| &mut key.image_id,
            |key| &mut key.policy,
        ];
        for field in changed {
            let mut other = key();
            field(&mut other).push('x');
            assert_eq!(fixture.store.find(&other), None, "{other:?}");
        }
        fixture.reopen();
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
    let long_name = "n".repeat(256);
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
        (
            vec![(REPORT, REPORT_TEXT), (long_name.as_str(), "")],
            "longer than 255 bytes",
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
    let error = fixture
        .install(&[(REPORT, REPORT_TEXT), ("venv/x", &large)])
        .expect_err("too large");
    assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
}

#[test]
fn no_more_is_unpacked_than_the_quota_of_a_tenant() {
    let fixture = Fixture::new();
    // The report, which a build writes first, comes too late to be found missing.
    let mut archive = make_archive(&[("venv/x", ""), ("venv/y", "")]);
    let quota = Some(2 * 4096);
    let names = (NAME, &key());
    let nothing = &|| HashSet::new();
    let refused = fixture
        .store
        .install(&mut archive, names, &BOUNDS, quota, nothing);
    let error = refused.expect_err("three entries");
    assert!(
        matches!(error, Error::TenantQuota { used: 0, .. }),
        "{error}"
    );
}

#[test]
fn start_removes_folders_and_records_without_a_counterpart() {
    let mut fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    fs::create_dir(mounted_dir(fixture.base.path()).join("half")).expect("mkdir");
    fs::write(fixture.base.path().join("tmp/left"), "x").expect("write");
    fixture.reopen();
    assert_eq!(fixture.names("mounted"), [NAME]);
    assert_eq!(fixture.names("tmp"), Vec::<String>::new());
    fs::remove_dir_all(mounted_dir(fixture.base.path()).join(NAME)).expect("removed");
    fixture.reopen();
    assert_eq!(fixture.store.find(&key()), None);
    assert_eq!(fixture.names("records"), Vec::<String>::new());
}

#[test]
fn unused_environments_are_removed_and_used_ones_stay() {
    let fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    fixture.collect(Duration::ZERO, &[NAME]);
    fixture.collect(HOUR, &[]);
    let held = fixture.store.find(&key()).expect("it stays");
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.names("mounted"), [NAME], "a call holds its record");
    drop(held);
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.store.find(&key()), None);
    for folder in ["mounted", "records", "tmp"] {
        assert_eq!(fixture.names(folder), Vec::<String>::new());
    }
}

#[test]
fn use_by_a_workspace_counts_as_use() {
    let mut fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    let long_ago = SystemTime::now() - 2 * HOUR;
    let record = File::open(fixture.record_path(NAME)).expect("opened");
    record.set_modified(long_ago).expect("noted");
    fixture.reopen();
    fixture.collect(HOUR, &[NAME]);
    for _ in 0..2 {
        fixture.collect(HOUR, &[]);
        assert_eq!(fixture.names("mounted"), [NAME]);
        fixture.reopen();
    }
}

#[test]
fn prepared_environment_stays_while_it_is_needed() {
    let mut fixture = Fixture::new();
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect("installed");
    fixture.store.mark_prepared(NAME, &pdf()).expect("noted");
    fixture.reopen();
    let prepared = PreparedEnvironment {
        name: NAME.to_owned(),
        key: key(),
        skills: pdf(),
    };
    assert_eq!(fixture.store.prepared(), [prepared]);
    let needed = names_of(&[NAME]);
    fixture.collect_beside(Duration::ZERO, &needed, &[]);
    assert_eq!(fixture.names("mounted"), [NAME]);
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
}

#[test]
fn environment_that_is_prepared_while_needs_are_examined_stays() {
    let fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    fixture
        .install_as(OTHER_NAME, &other_key(), &[])
        .expect("installed");
    fixture.store.mark_prepared(NAME, &pdf()).expect("noted");
    let examined = fixture.store.prepared();
    let later = BTreeSet::from(["later".to_owned()]);
    for name in [NAME, OTHER_NAME] {
        fixture.store.mark_prepared(name, &later).expect("noted");
    }
    let (needed, in_use) = (HashSet::new(), HashSet::new);
    fixture
        .store
        .collect(Duration::ZERO, &examined, &needed, &in_use);
    assert_eq!(fixture.names("mounted"), [NAME, OTHER_NAME]);
}

#[test]
fn an_unrecorded_preparation_is_recorded_by_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    let (tmp, away) = (
        fixture.base.path().join("tmp"),
        fixture.base.path().join("away"),
    );
    fs::rename(&tmp, &away).expect("moved");
    for _ in 0..2 {
        let failed = fixture.store.mark_prepared(NAME, &pdf());
        failed.expect_err("nowhere to write");
    }
    fs::rename(&away, &tmp).expect("moved back");
    fixture.store.mark_prepared(NAME, &pdf()).expect("noted");
    fixture.reopen();
    assert_eq!(fixture.store.prepared()[0].skills, pdf());
}

#[test]
fn concurrent_preparations_record_all_of_their_skills() {
    let mut fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    let skills: BTreeSet<String> = (0..16).map(|number| format!("skill-{number}")).collect();
    std::thread::scope(|scope| {
        for skill in &skills {
            let (store, only) = (&fixture.store, BTreeSet::from([skill.clone()]));
            scope.spawn(move || store.mark_prepared(NAME, &only).expect("noted"));
        }
    });
    fixture.reopen();
    assert_eq!(fixture.store.prepared()[0].skills, skills);
}

#[test]
fn a_rebuild_takes_over_and_the_old_tree_stays_while_in_use() {
    let mut fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    fixture.store.mark_prepared(NAME, &pdf()).expect("noted");
    let rebuilt = fixture.install_as(OTHER_NAME, &key(), &[NAME]);
    assert_eq!(rebuilt.expect("rebuilt").name, OTHER_NAME);
    for _ in 0..2 {
        fixture.collect(HOUR, &[NAME]);
        let found = fixture.store.find(&key()).expect("found");
        assert_eq!(found.name, OTHER_NAME);
        assert_eq!(fixture.names("mounted"), [NAME, OTHER_NAME]);
        fixture.reopen();
    }
    let prepared = fixture.store.prepared();
    let skills = prepared.iter().find(|prepared| prepared.name == OTHER_NAME);
    assert_eq!(skills.expect("it is still prepared").skills.len(), 1);
    let needed = names_of(&[NAME, OTHER_NAME]);
    fixture.collect_beside(Duration::ZERO, &needed, &[]);
    assert_eq!(fixture.names("mounted"), [OTHER_NAME]);
    assert_eq!(fixture.names("records"), [format!("{OTHER_NAME}.json")]);
}

#[test]
fn least_recently_used_environment_makes_room_unless_it_is_used() {
    let space_for_one = HELD_BYTES + HELD_BYTES / 2;
    let fixture = Fixture::with_bytes_max(space_for_one);
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    let held = fixture.store.find(&key()).expect("found");
    let refused = [
        fixture.install_as(OTHER_NAME, &other_key(), &[NAME]),
        fixture.install_as(OTHER_NAME, &other_key(), &[]),
    ];
    drop(held);
    for refused in refused {
        let error = refused.expect_err("full").to_string();
        assert!(error.contains("skills.environments_disk"), "{error}");
    }
    assert_eq!(fixture.names("mounted"), [NAME]);
    assert_eq!(fixture.names("tmp"), Vec::<String>::new());
    fixture
        .install_as(OTHER_NAME, &other_key(), &[])
        .expect("installed");
    assert_eq!(fixture.names("mounted"), [OTHER_NAME]);
    assert_eq!(fixture.store.find(&key()), None);
    // What was prepared does not make room for what was not.
    fixture
        .store
        .mark_prepared(OTHER_NAME, &pdf())
        .expect("noted");
    fixture.install_as(NAME, &key(), &[]).expect_err("full");
}

#[test]
fn store_beyond_a_lowered_limit_is_reduced() {
    let fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    fixture
        .install_as(OTHER_NAME, &other_key(), &[])
        .expect("installed");
    let lowered = EnvironmentStore::open(fixture.base.path(), HELD_BYTES).expect("opened");
    lowered.collect(HOUR, &[], &HashSet::new(), &|| names_of(&[NAME]));
    assert_eq!(fixture.names("mounted"), [NAME]);
}

#[test]
fn environments_count_for_their_tenant_until_they_are_gone() {
    let mut fixture = Fixture::new();
    let quota = Some(2 * HELD_BYTES);
    let install = |fixture: &Fixture, number: usize, used: &[&str]| {
        let (name, key) = (format!("{number:032x}"), key_of("a", number));
        fixture.install_within(quota, &name, &key, used)
    };
    let first = install(&fixture, 1, &[]).expect("installed");
    install(&fixture, 2, &[]).expect("installed");
    for _ in 0..2 {
        assert_eq!(fixture.store.held_bytes("a"), 2 * HELD_BYTES);
        assert_eq!(fixture.store.held_bytes("b"), 0);
        fixture.reopen();
    }
    let names = [1, 2].map(|number| format!("{number:032x}"));
    let used = [names[0].as_str(), names[1].as_str()];
    let refused = install(&fixture, 3, &used).expect_err("both are in use");
    let is_quota = matches!(
        &refused,
        Error::TenantQuota { tenant, resource: "environment_bytes", used, limit }
            if tenant == "a" && *used == 2 * HELD_BYTES && *limit == 2 * HELD_BYTES
    );
    assert!(is_quota, "{refused}");
    // Its own unused one makes room.
    install(&fixture, 3, &[first.name.as_str()]).expect("installed");
    assert_eq!(fixture.store.held_bytes("a"), 2 * HELD_BYTES);
    assert_eq!(fixture.store.find(&key_of("a", 2)), None);
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.store.held_bytes("a"), 0);
}

#[test]
fn prepared_environments_of_one_tenant_make_room_for_another() {
    let fixture = Fixture::with_bytes_max(4 * HELD_BYTES);
    let name = |number: usize| format!("{number:032x}");
    let install = |tenant: &str, number: usize, used: &[&str]| {
        let installed = fixture.install_as(&name(number), &key_of(tenant, number), used)?;
        fixture.store.mark_prepared(&name(number), &pdf())?;
        Ok::<_, Error>(installed)
    };
    for number in 0..4 {
        install("a", number, &[]).expect("installed");
    }
    // What is prepared stays for its own tenant, and what is in use stays for all.
    install("a", 4, &[]).expect_err("full");
    let in_use = name(0);
    for number in 5..7 {
        install("b", number, &[in_use.as_str()]).expect("a share of the store");
    }
    let held = ["a", "b"].map(|tenant| fixture.store.held_bytes(tenant));
    assert_eq!(held, [2 * HELD_BYTES, 2 * HELD_BYTES]);
    assert!(fixture.store.find(&key_of("a", 0)).is_some());
    install("b", 7, &[in_use.as_str()]).expect_err("more than the other one");
}

#[test]
fn rebuild_of_one_tenant_changes_nothing_for_another_one() {
    let fixture = Fixture::new();
    let (of_a, of_b) = (key_of("a", 1), key_of("b", 1));
    fixture.install_as(NAME, &of_a, &[]).expect("installed");
    fixture
        .install_as(OTHER_NAME, &of_b, &[])
        .expect("installed");
    let before = fixture.store.find(&of_b).expect("built");
    let rebuilt = "00112233445566778899aabbccddeeff";
    fixture.install_as(rebuilt, &of_a, &[]).expect("rebuilt");
    assert_eq!(fixture.store.find(&of_a).expect("built").name, rebuilt);
    assert_eq!(fixture.store.find(&of_b).expect("built"), before);
}

#[test]
fn environment_that_cannot_be_recorded_leaves_nothing() {
    let fixture = Fixture::new();
    fs::remove_dir(fixture.base.path().join("records")).expect("removed");
    fixture
        .install(&[(REPORT, REPORT_TEXT)])
        .expect_err("no place for its record");
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
    assert_eq!(fixture.names("tmp"), Vec::<String>::new());
    assert_eq!(fixture.store.find(&key()), None);
}

#[test]
fn a_failed_environment_removal_delays_no_other_and_is_retried() {
    let fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    fixture
        .install_as(OTHER_NAME, &other_key(), &[])
        .expect("installed");
    let path = fixture.record_path(NAME);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.names("mounted"), [NAME]);
    assert_eq!(fixture.store.find(&key()), None, "it is not used any more");
    fs::remove_dir(&path).expect("removed");
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
}

#[test]
fn environments_of_another_release_stay_until_they_are_unused() {
    let mut fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    let record = fs::read_to_string(fixture.record_path(NAME)).expect("read");
    for text in ["{", &record.replace("\"version\": 1", "\"version\": 2")] {
        fs::write(fixture.record_path(NAME), text).expect("written");
        fixture.reopen();
        fixture.collect(Duration::ZERO, &[NAME]);
        assert_eq!(fixture.store.find(&key()), None);
        assert_eq!(fixture.names("mounted"), [NAME]);
    }
    fixture.collect(Duration::ZERO, &[]);
    assert_eq!(fixture.names("mounted"), Vec::<String>::new());
}

#[test]
fn record_that_cannot_be_read_ends_the_start() {
    let fixture = Fixture::new();
    fixture.install_as(NAME, &key(), &[]).expect("installed");
    let path = fixture.record_path(NAME);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    EnvironmentStore::open(fixture.base.path(), 1 << 20).expect_err("the record is not a file");
    assert_eq!(fixture.names("mounted"), [NAME]);
}
