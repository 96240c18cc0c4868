//! Files that the skills of a plugin share are staged with each of them, so that `../` leads to these files.

use super::*;

impl Fixture {
    /// A plugin with two skills and files that they share.
    pub(super) fn plugin(&self, folder: &str, name: &str) {
        let manifest = format!("{{\"name\": {name:?}}}");
        self.write(&format!("{folder}/.claude-plugin/plugin.json"), manifest);
        self.write(&format!("{folder}/shared/lib.py"), format!("{name} 1"));
        for skill in ["deploy", "rollback"] {
            let document = format!(
                "---\nname: {skill}\ndescription: d\n---\n\
                 ${{CLAUDE_PLUGIN_ROOT}}/shared/lib.py ${{CLAUDE_SKILL_DIR}}/SKILL.md\n"
            );
            self.write(&format!("{folder}/skills/{skill}/SKILL.md"), document);
            self.write(&format!("{folder}/skills/{skill}/scripts/run.sh"), "echo\n");
        }
    }

    /// Reads a file by a path below the slot's `skills/`, as the kernel resolves it.
    pub(super) fn read(&self, path: &str) -> std::io::Result<String> {
        fs::read_to_string(self.slot("s1").join(path))
    }

    /// Returns the path of a staged skill's plugin relative to `skills/`, and that of the skill in it. `None` if the skill
    /// is staged alone.
    fn staged_plugin(&self, skill: &str) -> Option<(String, PathBuf)> {
        let (slot, plugin) = (self.slot("s1"), format!(".plugins/{skill}"));
        let link = fs::read_link(slot.join(skill)).ok()?;
        let path = fs::read_link(slot.join(&plugin).join(".skill")).ok()?;
        link.starts_with(&plugin).then_some((plugin, path))
    }

    async fn body(&self, name: &str) -> String {
        self.skills.rescan().await.expect("scanned");
        let wanted = SkillRef::parse("name", name).expect("valid");
        let got = self.skills.get(wanted, ValidationProfile::Lenient).await;
        got.expect("listed").1
    }

    /// Reads a file by its path in the plugin of a skill, or else in the skill. Returns the path that is answered, too.
    async fn read_file(
        &self,
        skill: &str,
        path: &str,
        is_in_plugin: bool,
    ) -> Result<(String, String), Error> {
        let wanted = SkillRef::parse("name", skill).expect("valid");
        let (file, mut content) = self
            .skills
            .open_file(wanted, path.to_owned(), is_in_plugin, true)
            .await?;
        let mut text = String::new();
        Read::read_to_string(&mut content, &mut text).expect("text");
        Ok((file.path, text))
    }

    /// Names in `skills/` and in `skills/.plugins/`, replaced versions as one word.
    pub(super) fn staged_names(&self) -> (Vec<String>, Vec<String>) {
        let short = |name: String| match name.strip_prefix(".replaced-") {
            Some(rest) => format!("replaced {}", rest.splitn(3, '-').nth(2).expect("a name")),
            None => name,
        };
        let slot = self.slot("s1");
        let list = |dir: &Path| names(dir).into_iter().map(short).collect();
        (list(&slot), list(&slot.join(".plugins")))
    }

    pub(super) async fn remove_replaced(&self) {
        let slot = self.slot("s1");
        let removed = self.skills.remove_replaced(&slot);
        removed.await.expect("removed");
    }
}

#[tokio::test]
async fn a_skill_reaches_files_in_folders_that_macos_named() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    let document = "---\nname: menu\ndescription: d\n---\nx\n";
    fixture.write("acme/skills/cafe\u{301}/menu/SKILL.md", document);
    fixture.write("acme/skills/cafe\u{301}/prices.txt", "1");
    fixture.stage("s1", &["menu"]).await.expect("staged");
    for path in [
        "menu/../prices.txt",
        ".plugins/menu/skills/caf\u{e9}/prices.txt",
    ] {
        assert_eq!(fixture.read(path).expect(path), "1");
    }
}

#[tokio::test]
async fn a_skill_reaches_the_files_of_its_plugin_by_relative_paths() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    for left_out in [
        ".git/config",
        ".env",
        "README.md",
        "node_modules/x/index.js",
    ] {
        fixture.write(&format!("acme/{left_out}"), "x");
    }
    fixture.write("outside.txt", "of no plugin");
    let alone = fixture.listed("deploy").await.content.expect("read").digest;
    let skills = fixture.stage("s1", &["deploy"]).await.expect("staged");
    let staged = &skills[0];
    assert_eq!((staged.name.as_str(), staged.files), ("deploy", 2));
    assert_eq!(staged.digest, alone);
    assert_eq!(staged.plugin_root().as_deref(), Some(".plugins/deploy"));
    for path in [
        "deploy/../../shared/lib.py",
        "deploy/scripts/../../../shared/lib.py",
        ".plugins/deploy/shared/lib.py",
    ] {
        assert_eq!(fixture.read(path).expect(path), "acme 1");
    }
    assert!(
        fixture
            .read("deploy/SKILL.md")
            .expect("there")
            .contains("name: deploy")
    );
    assert_eq!(
        names(&fixture.slot("s1").join(".plugins/deploy")),
        [".skill", "shared", "skills"]
    );
    assert_eq!(
        names(&fixture.slot("s1").join(".plugins/deploy/skills")),
        ["deploy"]
    );
    // The links of the skill lead to the workspace, wherever the skill lies.
    let workspace = fixture
        .path("state/slots/s1")
        .canonicalize()
        .expect("there");
    for place in ["out", "work/inputs", "work/.venvs/deploy"] {
        fs::create_dir_all(workspace.join(place)).expect("mkdir");
    }
    for (link, place) in [
        ("out", "out"),
        ("work", "work"),
        ("inputs", "work/inputs"),
        (".venv", "work/.venvs/deploy"),
    ] {
        let real = fixture.slot("s1").join("deploy").join(link).canonicalize();
        assert_eq!(real.expect("there"), workspace.join(place), "{link}");
    }
    let found = fixture.staged_plugin("deploy");
    let expected = (".plugins/deploy".to_owned(), PathBuf::from("skills/deploy"));
    assert_eq!(found, Some(expected));
    // What is served names both folders.
    assert_eq!(
        fixture.body("deploy").await,
        "/workspace/skills/.plugins/deploy/shared/lib.py \
         /workspace/skills/.plugins/deploy/skills/deploy/SKILL.md\n"
    );
}

#[tokio::test]
async fn plugin_skills_are_staged_side_by_side_with_their_own_files() {
    let fixture = Fixture::new();
    fixture.plugin("a", "acme");
    fixture.plugin("b", "other");
    fixture.skill("plain", "1");
    let all = ["deploy", "rollback", "other:deploy", "plain"];
    fixture.stage("s1", &all).await.expect("staged");
    for (skill, text) in [
        ("deploy", "acme 1"),
        ("rollback", "acme 1"),
        ("other--deploy", "other 1"),
    ] {
        let path = format!("{skill}/scripts/../../../shared/lib.py");
        assert_eq!(fixture.read(&path).expect(skill), text);
    }
    assert_eq!(fixture.staged_plugin("plain"), None);
    let plain = fixture.slot("s1").join("plain").symlink_metadata();
    assert!(plain.expect("there").is_dir());
    let again = fixture.stage("s1", &all).await.expect("staged");
    assert!(again.iter().all(|skill| skill.unchanged), "{again:?}");
}

#[tokio::test]
async fn a_shared_file_change_restages_the_skill_and_keeps_old_files() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    let first = fixture.stage("s1", &["deploy"]).await.expect("staged");
    // What a command that began before has open.
    let open = fs::File::open(fixture.slot("s1").join("deploy/")).expect("open");
    fixture.write("acme/shared/lib.py", "acme 2");
    let second = fixture.stage("s1", &["deploy"]).await.expect("staged");
    assert!(!second[0].unchanged && second[0].digest == first[0].digest);
    let path = "deploy/../../shared/lib.py";
    assert_eq!(fixture.read(path).expect("there"), "acme 2");
    use std::os::fd::AsRawFd;
    let before = format!("/proc/self/fd/{}/../../shared/lib.py", open.as_raw_fd());
    assert_eq!(fs::read_to_string(&before).expect("kept"), "acme 1");
    let plain = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = (
        plain(&[".plugins", "deploy"]),
        plain(&["replaced deploy", "deploy"]),
    );
    assert_eq!(fixture.staged_names(), expected);
    fixture.remove_replaced().await;
    fs::read_to_string(&before).expect_err("removed");
    assert_eq!(fixture.read(path).expect("there"), "acme 2");
}

#[tokio::test]
async fn a_plugin_may_begin_and_cease_to_share_files() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    let shared = fixture.path("root/acme/shared");
    let away = fixture.path("away");
    for (has_files, expected) in [(true, true), (false, false), (true, true), (false, false)] {
        let _moved = match has_files {
            true => fs::rename(&away, &shared),
            false => fs::rename(&shared, &away),
        };
        let staged = fixture.stage("s1", &["deploy"]).await.expect("staged");
        assert_eq!(staged[0].plugin.is_some(), expected);
        let found = fixture.staged_plugin("deploy");
        assert_eq!(found.is_some(), expected);
        fixture.read("deploy/SKILL.md").expect("there");
        let shared = fixture.read("deploy/../../shared/lib.py");
        assert_eq!(shared.is_ok(), expected);
        let body = fixture.body("deploy").await;
        assert_eq!(body.contains("/.plugins/deploy/shared"), expected, "{body}");
    }
    fixture.remove_replaced().await;
    let names = (vec![".plugins".to_owned(), "deploy".to_owned()], vec![]);
    assert_eq!(fixture.staged_names(), names);
}

#[tokio::test]
async fn forbidden_shared_files_are_named_and_the_skill_is_staged() {
    let made = [
        |fixture: &Fixture| symlink("../../outside", fixture.path("root/acme/shared/link")),
        |fixture: &Fixture| symlink("/etc/passwd", fixture.path("root/acme/link")),
        |fixture: &Fixture| {
            let path = fixture.path("root/acme/fifo");
            Ok(nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU)?)
        },
        |fixture: &Fixture| fs::write(fixture.path("root/acme/large"), vec![0; 17 << 20]),
        |fixture: &Fixture| {
            let mut numbers = 0..1001;
            let many = fixture.path("root/acme/many");
            fs::create_dir(&many)?;
            numbers.try_for_each(|number| fs::write(many.join(number.to_string()), "x"))
        },
    ] as [fn(&Fixture) -> std::io::Result<()>; 5];
    for (number, prepare) in made.into_iter().enumerate() {
        // One entry is left out; of what is too large nothing is shared.
        let are_others_shared = number < 3;
        let fixture = Fixture::new();
        fixture.plugin("acme", "acme");
        fs::create_dir(fixture.path("outside")).expect("mkdir");
        prepare(&fixture).expect("prepared");
        let staged = fixture.stage("s1", &["deploy"]).await.expect("staged");
        assert_eq!(staged[0].plugin.is_some(), are_others_shared);
        let shared = fixture.read("deploy/../../shared/lib.py");
        assert_eq!(shared.is_ok(), are_others_shared);
        fixture.read("deploy/SKILL.md").expect("there");
        let codes: Vec<_> = staged[0].problems.iter().map(|it| it.code).collect();
        assert_eq!(codes, ["plugin.files_not_staged"]);
        let problems = fixture.skills.problems().await.expect("listed");
        let listed = problems.iter().filter(|it| it.code == codes[0]);
        assert_eq!(listed.collect::<Vec<_>>(), [&staged[0].problems[0]]);
    }
}

#[tokio::test]
async fn a_plugin_that_is_gone_has_no_problem() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    let large = fixture.path("root/acme/large");
    fs::write(&large, vec![0; 17 << 20]).expect("written");
    let count = async || {
        fixture.skills.rescan().await.expect("scanned");
        let problems = fixture.skills.problems().await.expect("listed");
        let of_plugins = problems.iter();
        of_plugins
            .filter(|it| it.code == "plugin.files_not_staged")
            .count()
    };
    assert_eq!(count().await, 0);
    fixture.stage("s1", &["deploy"]).await.expect("staged");
    assert_eq!(count().await, 1);
    fs::rename(fixture.path("root/acme"), fixture.path("away")).expect("moved");
    assert_eq!(count().await, 0);
}

#[tokio::test]
async fn skills_of_a_plugin_without_shared_files_are_staged_alone() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    fs::remove_dir_all(fixture.path("root/acme/shared")).expect("removed");
    // Meanwhile the folder becomes old enough for its digest to be kept.
    for _ in 0..50 {
        let staged = fixture.stage("s1", &["deploy"]).await.expect("staged");
        assert_eq!(staged[0].plugin, None);
    }
    let pipe = fixture.path("root/acme/pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    let staged = fixture.stage("s1", &["deploy"]).await.expect("staged");
    assert_eq!(staged[0].plugin, None);
    let codes: Vec<_> = staged[0].problems.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["plugin.files_not_staged"]);
}

#[tokio::test]
async fn files_of_a_plugin_are_read_by_their_paths_in_it() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    fixture.skill("csv", "1");
    fixture.skills.rescan().await.expect("scanned");
    let read = |skill, path| fixture.read_file(skill, path, true);
    for (skill, path, found, text) in [
        ("deploy", "shared/lib.py", "../../shared/lib.py", "acme 1"),
        ("deploy", "shared/LIB.py", "../../shared/lib.py", "acme 1"),
        (
            "deploy",
            "skills/deploy/scripts/run.sh",
            "scripts/run.sh",
            "echo\n",
        ),
        // A skill that shares nothing is its own plugin.
        ("csv", "bin/run.sh", "bin/run.sh", "echo 1\n"),
    ] {
        let expected = (found.to_owned(), text.to_owned());
        assert_eq!(read(skill, path).await.expect(path), expected);
    }
    for path in ["skills/rollback/SKILL.md", "shared", "README.md"] {
        read("deploy", path).await.expect_err(path);
    }
}

#[tokio::test]
async fn files_of_a_plugin_are_read_as_commands_reach_them() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    fixture.skill("csv", "1");
    fixture.skills.rescan().await.expect("scanned");
    let read = |skill, path| fixture.read_file(skill, path, false);
    for (path, found, text) in [
        ("../../shared/lib.py", "../../shared/lib.py", "acme 1"),
        (
            "../../skills/deploy/scripts/run.sh",
            "scripts/run.sh",
            "echo\n",
        ),
        ("scripts/run.sh", "scripts/run.sh", "echo\n"),
    ] {
        let expected = (found.to_owned(), text.to_owned());
        assert_eq!(read("deploy", path).await.expect(path), expected);
    }
    for (skill, path) in [
        ("deploy", "../../../secret"),
        ("deploy", "../../../csv/bin/run.sh"),
        ("csv", "../deploy/SKILL.md"),
    ] {
        let error = read(skill, path).await.expect_err(path);
        assert!(
            matches!(error, Error::LeavesSkill { .. }),
            "{path}: {error}"
        );
    }
    // Another skill is none of the shared files.
    let error = read("deploy", "../rollback/SKILL.md").await;
    assert!(matches!(error, Err(Error::FileNotFound { .. })));
}

#[tokio::test]
async fn a_skill_whose_folder_is_the_plugin_is_staged_as_any_other() {
    let fixture = Fixture::new();
    fixture.skill("own", "1");
    fixture.write("own/.claude-plugin/plugin.json", "{\"name\": \"own\"}");
    fixture.write(
        "own/skills/inner/SKILL.md",
        "---\nname: inner\ndescription: d\n---\n",
    );
    let staged = fixture
        .stage("s1", &["own", "own:inner"])
        .await
        .expect("staged");
    assert!(staged.iter().all(|skill| skill.plugin.is_none()));
    assert_eq!(names(&fixture.slot("s1")), ["own", "own--inner"]);
}
