//! Files that a hostile command creates: collections and uploads stay in the workspace and within their time.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{self, SkipReason, StageFormat};

use crate::collects::{collect, spec};
use crate::files::header;
use crate::support::{Guest, in_time};

fn unlimited(globs: &[&str]) -> v1::CollectSpec {
    v1::CollectSpec {
        max_files: 1 << 20,
        max_file_bytes: 1 << 32,
        max_total_bytes: 1 << 32,
        ..spec(globs)
    }
}

/// Exchanges two names until it is stopped, and counts the exchanges.
fn swapping(one: &Path, other: &Path) -> (Arc<AtomicBool>, std::thread::JoinHandle<u64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (one, other, stopped) = (one.to_owned(), other.to_owned(), Arc::clone(&stop));
    #[expect(
        clippy::disallowed_methods,
        reason = "it stands for another process; the test joins it"
    )]
    let thread = std::thread::spawn(move || {
        let mut swaps = 0;
        while swaps < 100_000 || !stopped.load(Ordering::Relaxed) {
            let swapped = renameat2(
                AT_FDCWD,
                &one,
                AT_FDCWD,
                &other,
                RenameFlags::RENAME_EXCHANGE,
            );
            swapped.expect("swapped");
            swaps += 1;
        }
        swaps
    });
    (stop, thread)
}

#[tokio::test]
async fn a_directory_swapped_with_a_link_never_leads_outside() {
    let guest = Guest::start().await;
    let ws = guest.workspace();
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("f"), "canary").expect("made");
    fs::create_dir_all(ws.join("out/d")).expect("made");
    fs::write(ws.join("out/d/f"), "inside").expect("made");
    symlink(outside.path(), ws.join("out/l")).expect("made");
    let (stop, swapper) = swapping(&ws.join("out/d"), &ws.join("out/l"));
    let (mut inside, mut staged) = (0, 0);
    while !swapper.is_finished() {
        let got = collect(&guest, unlimited(&["out/**"]))
            .await
            .expect("collected");
        for (file, bytes, _) in &got.files {
            if file.link_target.is_empty() && file.path.ends_with("/f") {
                assert_eq!(bytes, b"inside", "{}", file.path);
                inside += 1;
            }
        }
        for skipped in &got.summary.skipped_files {
            let known = [SkipReason::FileType, SkipReason::Gone];
            assert!(known.contains(&skipped.reason()), "{skipped:?}");
        }
        let put = guest
            .put(header(StageFormat::File, "out/d/new"), b"new")
            .await;
        staged += usize::from(put.is_ok());
        stop.store(true, Ordering::Relaxed);
    }
    let swaps = swapper.join().expect("swapped");
    assert!(swaps >= 100_000);
    println!("{swaps} swaps, {inside} files from inside, {staged} staged");
    let names: Vec<_> = fs::read_dir(outside.path())
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["f"], "something was written outside");
    assert_eq!(fs::read(outside.path().join("f")).expect("read"), b"canary");
}

#[tokio::test]
async fn a_file_that_grows_while_it_is_read_ends_where_it_was_opened() {
    let guest = Guest::start().await;
    let script = "head -c 3000000 /dev/zero > out/log; \
                  (while :; do head -c 100000 /dev/zero >> out/log; done) & sleep 0.2; kill $!; :";
    let running = guest.sh("grow", script);
    let collecting = async {
        let mut sizes = Vec::new();
        for _ in 0..20 {
            let got = collect(&guest, unlimited(&["out/log"]))
                .await
                .expect("collected");
            for (file, bytes, end) in got.files {
                let size = u64::try_from(file.size_bytes).expect("a size");
                assert!(bytes.len() as u64 <= size, "more than it was");
                assert!(!end.expect("an end").truncated);
                sizes.push(file.size_bytes);
            }
        }
        sizes
    };
    let (_, sizes) = tokio::join!(running, collecting);
    assert!(sizes.is_sorted(), "{sizes:?}");
}

#[tokio::test]
async fn a_sparse_tebibyte_costs_no_more_than_its_limit() {
    let guest = Guest::start().await;
    let file = fs::File::create(guest.workspace().join("out/a-hole")).expect("made");
    file.set_len(1 << 40).expect("sparse");
    fs::write(guest.workspace().join("out/small"), "small").expect("made");
    // To read all of it would take minutes.
    let mut cut = spec(&["out/*"]);
    cut.max_file_bytes = 1 << 20;
    let got = in_time("a file that is cut", collect(&guest, cut))
        .await
        .expect("collected");
    assert_eq!(got.paths(), ["out/a-hole", "out/small"]);
    assert_eq!(
        (got.files[0].0.size_bytes, got.files[0].1.len()),
        (1 << 40, 1 << 20)
    );
    assert_eq!(got.summary.truncated_paths, ["out/a-hole"]);
    assert!(got.summary.limits_hit);
    let mut skipped = spec(&["out/*"]);
    skipped.max_file_bytes = 1 << 41;
    skipped.max_total_bytes = 1 << 20;
    let got = in_time("a file that is skipped", collect(&guest, skipped))
        .await
        .expect("collected");
    assert_eq!(got.paths(), ["out/small"]);
    assert_eq!(
        got.summary.skipped_files[0].reason(),
        SkipReason::MaxTotalBytes
    );
}

/// A command can set the modification time of a file, but not its change time.
#[tokio::test]
async fn changed_files_are_found_by_their_change_time() {
    let guest = Guest::start().await;
    let before = "echo x > out/ahead; touch -d 2099-01-01 out/ahead; echo x > out/mode; \
                  echo x > work/moved; ln -s nowhere out/old-link; sleep 0.02";
    guest.sh("before", before).await;
    let script = "chmod 600 out/mode; mv work/moved out/; echo x > out/back; \
                  touch -d 1970-01-02 out/back; ln -s nowhere out/link; cat out/ahead";
    guest.sh("exec", script).await;
    let mut wanted = spec(&["out/*"]);
    wanted.changed_since_exec = "workspaces/test/execs/exec".to_owned();
    let got = collect(&guest, wanted).await.expect("collected");
    assert_eq!(
        got.paths(),
        ["out/back", "out/link", "out/mode", "out/moved"]
    );
}

/// GNU tar and Python both read names with any bytes.
#[tokio::test]
async fn an_archive_holds_any_name() {
    let guest = Guest::start().await;
    let out = guest.workspace().join("out");
    let long = "ü".repeat(127);
    let names: Vec<Vec<u8>> = vec![
        b"-rf".to_vec(),
        b"two\nlines".to_vec(),
        b"latin \xfc \xff".to_vec(),
        b"blank ".to_vec(),
        b"a'b\"c\\d$e`f".to_vec(),
        long.as_bytes().to_vec(),
        vec![b'n'; 255],
        vec![b'm'; 100 - "out/".len()],
        vec![b'k'; 99 - "out/".len()],
    ];
    for (at, name) in names.iter().enumerate() {
        let path = out.join(std::ffi::OsStr::from_bytes(name));
        fs::write(path, format!("file {at}")).expect("made");
    }
    symlink("t".repeat(300), out.join("zz-link")).expect("made");
    let got = collect(&guest, spec(&["out/*"])).await.expect("collected");
    let latin = got
        .files
        .iter()
        .find(|(file, ..)| !file.raw_path.is_empty());
    let (latin, ..) = latin.expect("a name that is not text");
    assert_eq!(&*latin.raw_path, b"out/latin \xfc \xff");
    assert_eq!(latin.path, "out/latin \u{fffd} \u{fffd}");
    let mut wanted = spec(&["out/*"]);
    wanted.format = v1::CollectFormat::Tar.into();
    let archive = collect(&guest, wanted).await.expect("collected").archive;
    let python =
        "import tarfile; t = tarfile.open('t', errors='surrogateescape'); t.extractall('.')";
    let programs: [&[&str]; 2] = [&["tar", "-xf", "t"], &["python3", "-c", python]];
    for program in programs {
        let place = tempfile::tempdir().expect("a directory");
        fs::write(place.path().join("t"), &archive).expect("written");
        let status = Command::new(program[0])
            .args(&program[1..])
            .current_dir(&place)
            .status();
        assert!(status.expect("runs").success(), "{program:?}");
        let same = Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(&out)
            .arg(place.path().join("out"))
            .status();
        assert!(same.expect("diff").success(), "{program:?}");
    }
}

/// Minimum number of short calls that the guest answers during a long one. It turns to them after each millisecond.
const ANSWERS_MIN: usize = 20;

/// The guest has one thread. A short call must not wait for a long one.
#[tokio::test]
async fn a_huge_collect_lets_others_have_their_turn() {
    let guest = Guest::start().await;
    let hole = fs::File::create(guest.workspace().join("out/hole")).expect("made");
    hole.set_len(512 << 20).expect("sparse");
    let script = "mkdir out/many; cd out/many; seq 20000 | xargs touch";
    guest.sh("make", script).await;
    for format in [v1::CollectFormat::Files, v1::CollectFormat::TarGz] {
        let mut wanted = unlimited(&["out/**"]);
        wanted.format = format.into();
        if format == v1::CollectFormat::TarGz {
            wanted.max_file_bytes = 16 << 20;
        }
        let mut answers = 0;
        // Again if this process paused during the collection.
        for _ in 0..5 {
            answers = count_answers_during(&guest, wanted.clone()).await;
            if answers > ANSWERS_MIN {
                break;
            }
        }
        assert!(answers > ANSWERS_MIN, "{format:?}: {answers}");
    }
}

/// Collects the hole and the 20,000 files, and returns how many short calls were answered meanwhile.
async fn count_answers_during(guest: &Guest, wanted: v1::CollectSpec) -> usize {
    let is_whole = wanted.format() == v1::CollectFormat::Files;
    let done = AtomicBool::new(false);
    // The helper `collect` hashes 512 MiB on this thread, and the calls would wait for it.
    let collecting = async {
        let request = wire::CollectRequest { spec: Some(wanted) };
        let answer = guest.client.clone().collect(request).await;
        let mut stream = answer.expect("begins").into_inner();
        let (mut received, mut returned) = (0, 0);
        while let Some(message) = stream.message().await.expect("a message") {
            match message.payload.expect("a payload") {
                Payload::Data(data) => received += data.len(),
                Payload::Summary(summary) => returned = summary.returned_count,
                Payload::File(_) | Payload::FileEnd(_) => {}
            }
        }
        done.store(true, Ordering::Relaxed);
        (received, returned)
    };
    let asking = async {
        let mut answers = 0;
        while !done.load(Ordering::Relaxed) {
            let hello = wire::HelloRequest::default();
            guest.client.clone().hello(hello).await.expect("hello");
            answers += 1;
            tokio::task::yield_now().await;
        }
        answers
    };
    let ((received, returned), answers) = tokio::join!(collecting, asking);
    assert_eq!(returned, 20_001);
    assert!(!is_whole || received == 512 << 20, "{received}");
    answers
}

#[tokio::test]
async fn waiting_for_the_end_of_an_exec_reads_nothing_of_it() {
    let guest = Guest::start().await;
    let waiting = |id: &'static str| {
        let mut client = guest.client.clone();
        async move {
            let exec_id = id.to_owned();
            let request = wire::WaitExecRequest { exec_id };
            client.wait_exec(request).await.expect("there").into_inner()
        }
    };
    let (seen, exec) = tokio::join!(guest.sh("one", "sleep 0.2; seq 100000; exit 3"), async {
        loop {
            let exec_id = "one".to_owned();
            let request = wire::GetExecRequest { exec_id };
            if guest.client.clone().get_exec(request).await.is_ok() {
                break waiting("one").await;
            }
        }
    });
    assert_eq!(exec.state(), v1::ExecState::Closed);
    assert_eq!(seen.out.len(), 588_895, "nothing was taken from its reader");
    assert_eq!(waiting("one").await.state(), v1::ExecState::Closed);
}

/// Name, mode and contents of a file.
type Tree = std::collections::BTreeMap<String, (u32, Vec<u8>)>;

/// Generates names that sort before and after a slash, and directories that never have the name of a file.
fn trees() -> impl Strategy<Value = Tree> {
    let name = "(d[!-.ab]{0,2}/){0,2}f[ !.\u{e9}\u{65e5}a-z]{0,8}";
    let mode = prop_oneof![
        Just(0o644),
        Just(0o600),
        Just(0o755),
        Just(0o444),
        Just(0o777)
    ];
    let contents = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        (250_000_usize..300_000).prop_map(|size| vec![b'x'; size]),
    ];
    btree_map(name, (mode, contents), 1..12)
}

fn tar(tree: &Tree) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, (mode, contents)) in tree {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(*mode);
        builder
            .append_data(&mut header, name, contents.as_slice())
            .expect("fits");
    }
    builder.into_inner().expect("whole")
}

#[tokio::test]
async fn uploaded_files_are_collected_with_their_bytes_and_modes() {
    let guest = Guest::start().await;
    let mut runner = TestRunner::new(ProptestConfig::default());
    for turn in 0..24 {
        let tree = trees().new_tree(&mut runner).expect("a tree").current();
        let base = format!("work/{turn}");
        let put = guest
            .put(header(StageFormat::Tar, &base), &tar(&tree))
            .await;
        let staged = put.unwrap_or_else(|status| panic!("{status}: {tree:?}"));
        assert_eq!(usize::try_from(staged.file_count), Ok(tree.len()));
        let got = collect(&guest, unlimited(&[&format!("{base}/**")]))
            .await
            .expect("collected");
        let came: Tree = got
            .files
            .into_iter()
            .map(|(file, bytes, _)| {
                let name = file.path.strip_prefix(&format!("{base}/"));
                (name.expect("beneath").to_owned(), (file.mode, bytes))
            })
            .collect();
        assert!(came == tree, "{:?} {:?}", came.keys(), tree.keys());
        let mut wanted = unlimited(&[&format!("{base}/**")]);
        wanted.format = v1::CollectFormat::Tar.into();
        let archive = collect(&guest, wanted).await.expect("collected").archive;
        let back = format!("out/{turn}");
        let again = guest.put(header(StageFormat::Tar, &back), &archive).await;
        assert_eq!(again.expect("staged").file_count, staged.file_count);
        for (name, (mode, contents)) in &tree {
            let path = guest.workspace().join(&back).join(&base).join(name);
            assert!(fs::read(&path).expect("there") == *contents, "{name}");
            let found = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(found & 0o7777, *mode, "{name}");
        }
    }
}
