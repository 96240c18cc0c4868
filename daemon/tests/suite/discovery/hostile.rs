//! Folders made to stop, slow down or mislead a scan.

use super::*;

#[tokio::test]
async fn documents_that_are_no_files_are_rejected_at_once() {
    let fixture = Fixture::new();
    for folder in ["fifo", "socket", "dir"] {
        fs::create_dir(fixture.path("a").join(folder)).expect("mkdir");
    }
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&fixture.path("a/fifo/SKILL.md"), mode).expect("mkfifo");
    let _socket =
        std::os::unix::net::UnixListener::bind(fixture.path("a/socket/SKILL.md")).expect("bind");
    fs::create_dir(fixture.path("a/dir/SKILL.md")).expect("mkdir");
    for folder in ["fifo", "socket", "dir"] {
        let skill = fixture.one(folder).await;
        assert_eq!(skill.state, SkillState::Rejected);
        assert_eq!(codes(&skill.problems)[0], "skill.special_file", "{folder}");
    }
}

#[tokio::test]
async fn unreadable_files_and_folders_are_reported() {
    let fixture = Fixture::new();
    fixture.skill("a/closed", "closed");
    fixture.skill("a/locked/x", "x");
    let no = fs::Permissions::from_mode(0o000);
    fs::set_permissions(fixture.path("a/closed/SKILL.md"), no.clone()).expect("chmod");
    fs::set_permissions(fixture.path("a/locked"), no).expect("chmod");
    // Root may read everything.
    let root = nix::unistd::geteuid().is_root();
    let closed = fixture.one("closed").await;
    assert_eq!(closed.state == SkillState::Rejected, !root, "{closed:?}");
    let said = fixture.problems().await.contains(&"root.folder_unreadable");
    assert_eq!(said, !root);
    let yes = fs::Permissions::from_mode(0o755);
    fs::set_permissions(fixture.path("a/closed/SKILL.md"), yes.clone()).expect("chmod");
    fs::set_permissions(fixture.path("a/locked"), yes).expect("chmod");
    let expected = ["closed", "x"].map(|name| (name.to_owned(), SkillState::Loaded));
    assert_eq!(fixture.states().await, expected);
}

#[tokio::test]
async fn strange_folder_names_neither_break_a_list_nor_hide_a_skill() {
    let fixture = Fixture::new();
    for (name, folder) in [
        ("newline", &b"new\nline"[..]),
        ("not-utf8", b"not-\xff-utf8"),
        ("long", &[b'x'; 255]),
        ("escape", b"\x1b[31mred"),
    ] {
        let dir = fixture.path("a").join(std::ffi::OsStr::from_bytes(folder));
        fs::create_dir(&dir).expect("mkdir");
        let text = format!("---\nname: {name}\ndescription: d\n---\n");
        fs::write(dir.join("SKILL.md"), text).expect("write");
    }
    assert_eq!(
        fixture.names().await,
        ["escape", "long", "newline", "not-utf8"]
    );
    let skills = fixture.list().await.skills;
    assert!(skills.iter().all(Skill::is_usable), "{skills:?}");
}

#[tokio::test]
async fn a_hundred_thousand_entries_cost_no_skill_its_neighbours() {
    let fixture = Fixture::new();
    fixture.skill("a/csv", "csv");
    fixture.skill("a/full", "full");
    fs::create_dir(fixture.path("a/crowd")).expect("mkdir");
    fs::create_dir(fixture.path("a/crowd/dirs")).expect("mkdir");
    // A file has at most 65,000 names.
    for (folder, count) in [("full", 6_000), ("crowd", 50_000), ("crowd/dirs", 50_000)] {
        let first = fixture.write(&format!("a/{folder}/0"), "");
        for number in 1..count {
            fs::hard_link(
                &first,
                fixture.path("a").join(folder).join(number.to_string()),
            )
            .expect("link");
        }
    }
    let expected = [
        ("csv".to_owned(), SkillState::Loaded),
        ("full".to_owned(), SkillState::Rejected),
    ];
    assert_eq!(fixture.states().await, expected);
    assert_eq!(
        codes(&fixture.one("full").await.problems)[0],
        "skill.too_many_files"
    );
}

#[test]
fn a_folder_that_becomes_a_link_while_it_is_read_leads_nowhere() {
    for watches_max in WATCHING {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        let _entered = runtime.enter();
        let fixture = Fixture::with(|config| config.watches_max = watches_max);
        fixture.skill("a/group/csv", "csv");
        fixture.skill("a/steady", "steady");
        fixture.skill("secret/csv", "canary");
        fixture.write("secret/csv/canary.txt", "canary");
        let (place, aside) = (fixture.path("a/group"), fixture.path("a/.aside"));
        symlink(fixture.path("secret"), &aside).expect("symlink");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                    let here = nix::fcntl::AT_FDCWD;
                    nix::fcntl::renameat2(here, &place, here, &aside, exchange).expect("swap");
                }
            });
            for _ in 0..50 {
                let listing = runtime.block_on(fixture.list());
                let names: Vec<&str> = listing.skills.iter().map(|it| it.name.as_str()).collect();
                assert!(
                    names.contains(&"steady") && !names.contains(&"canary"),
                    "{names:?}"
                );
            }
            done.store(true, Ordering::Relaxed);
        });
        if fs::symlink_metadata(&place).expect("there").is_symlink() {
            fs::remove_file(&place).expect("remove");
            fs::rename(&aside, &place).expect("rename");
        }
        assert_eq!(runtime.block_on(fixture.names()), ["csv", "steady"]);
    }
}

#[test]
fn a_document_that_grows_while_it_is_read_is_bounded() {
    use std::io::Write;
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let _entered = runtime.enter();
    let fixture = Fixture::with(|config| config.skill_md_bytes_max = 64 << 10);
    fixture.skill("a/csv", "csv");
    let path = fixture.path("a/csv/SKILL.md");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .expect("open");
            while !done.load(Ordering::Relaxed) {
                file.write_all(&[b'x'; 4096]).expect("write");
                if file.metadata().expect("there").len() > 64 << 20 {
                    file.set_len(100).expect("cut");
                }
            }
        });
        for _ in 0..30 {
            let skill = runtime.block_on(fixture.one("csv"));
            if skill.state == SkillState::Rejected {
                assert_eq!(codes(&skill.problems)[0], "skill.too_large");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    fixture.skill("a/csv", "csv");
    assert_eq!(
        runtime.block_on(fixture.one("csv")).state,
        SkillState::Loaded
    );
}
