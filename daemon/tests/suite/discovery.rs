//! Folders that are skills, conflicts and unreadable folders, and changes on disk, which are listed by themselves and
//! at once after a scan, whether the kernel reports them or not. No Docker.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skilld::config::Config;
use skilld::shutdown::Tasks;
use skilld::skills::Error;
use skilld::skills::{
    Catalogue, Listing, Severity, Skill, SkillRef, SkillRoot, SkillState, Skills, SkillsOptions,
    ValidationProfile,
};
use skilld_proto::v1 as pb;
use skilld_tests::task_dir::TaskDir;

mod cards;
mod changes;
mod hostile;
mod names;
mod plugins;
use crate::server::{TestServer, wait_until};

/// With and without a kernel that tells of changes.
const WATCHING: [usize; 2] = [65_536, 0];

/// Roots `a` and `b`, and a state directory, all temporary.
struct Fixture {
    dir: TaskDir,
    skills: Skills,
}

impl Fixture {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut SkillsOptions)) -> Self {
        let tasks = Tasks::default().for_skills();
        let dir = TaskDir::new(&tasks.tracker);
        let base = dir.path().canonicalize().expect("there");
        for sub in ["a", "b", "state", "slot/skills"] {
            fs::create_dir_all(base.join(sub)).expect("mkdir");
        }
        let mut config = Config::from_toml("")
            .expect("configuration")
            .config
            .skills
            .options;
        config.roots = ["a", "b"]
            .map(|root| SkillRoot::dir(&base.join(root)))
            .to_vec();
        change(&mut config);
        let skills = Skills::open(&config, &base.join("state"), tasks).expect("open");
        Self { dir, skills }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("there").join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(&path, text).expect("write");
        path
    }

    /// A folder with a SKILL.md.
    fn skill(&self, folder: &str, name: &str) {
        self.document(&format!("{folder}/SKILL.md"), name, "d", "");
    }

    fn document(&self, path: &str, name: &str, description: &str, version: &str) {
        let text = format!(
            "---\nname: {name}\ndescription: {description}\nversion: {version}\n---\nBody of {name}\n"
        );
        self.write(path, text.replace("version: \n", ""));
    }

    /// All skills and problems, without those of roots that a test left empty.
    async fn list(&self) -> Listing {
        self.skills.rescan().await.expect("scanned");
        let mut listing = self.skills.list().await.expect("list");
        listing
            .problems
            .retain(|problem| problem.code != "root.no_skills");
        listing
    }

    async fn catalogue(&self) -> Arc<Catalogue> {
        self.skills.rescan().await.expect("scanned")
    }

    /// Name and state of each, sorted.
    async fn states(&self) -> Vec<(String, SkillState)> {
        let skills = self.list().await.skills;
        let states = skills.into_iter().map(|skill| (skill.name, skill.state));
        states.collect()
    }

    async fn names(&self) -> Vec<String> {
        let states = self.states().await;
        states.into_iter().map(|(name, _)| name).collect()
    }

    async fn one(&self, name: &str) -> Skill {
        let listing = self.list().await;
        let found = listing.skills.into_iter().find(|skill| skill.name == name);
        found.unwrap_or_else(|| panic!("{name} is not listed; {:?}", listing.problems))
    }

    async fn get(&self, name: &str) -> Result<(Skill, String), Error> {
        let wanted = SkillRef::parse("name", name).expect("valid");
        self.skills.rescan().await.expect("scanned");
        self.skills.get(wanted, ValidationProfile::Lenient).await
    }

    /// Codes of the problems that belong to no skill.
    async fn problems(&self) -> Vec<&'static str> {
        codes(&self.list().await.problems)
    }
}

fn codes(problems: &[skilld::skills::Problem]) -> Vec<&'static str> {
    problems.iter().map(|problem| problem.code).collect()
}

fn digest(skill: &Skill) -> &str {
    let content = skill.content.as_ref();
    content.map_or("", |content| &content.digest)
}

// === which folders ===

#[tokio::test]
async fn the_document_may_be_written_in_any_case_but_only_once() {
    let fixture = Fixture::new();
    fixture.document("a/exact/SKILL.md", "exact", "d", "");
    fixture.document("a/lower/skill.md", "lower", "d", "");
    fixture.document("a/both/SKILL.md", "both", "the right one", "");
    fixture.document("a/both/skill.md", "both", "the wrong one", "");
    fixture.document("a/unclear/Skill.md", "unclear", "d", "");
    fixture.document("a/unclear/skill.MD", "unclear", "d", "");
    let listing = fixture.list().await;
    let found: Vec<_> = listing
        .skills
        .iter()
        .map(|skill| (skill.name.as_str(), skill.state, codes(&skill.problems)))
        .collect();
    use SkillState::{Loaded, LoadedWithWarnings, Rejected};
    assert_eq!(
        found[..3],
        [
            ("both", LoadedWithWarnings, vec!["skill.two_documents"]),
            ("exact", Loaded, vec![]),
            ("lower", LoadedWithWarnings, vec!["skill.file_name"]),
        ]
    );
    assert_eq!((found[3].0, found[3].1), ("unclear", Rejected));
    assert_eq!(found[3].2.first(), Some(&"skill.two_documents"));
    assert_eq!(listing.skills[0].front_matter.description, "the right one");
    let (_, body) = fixture.get("lower").await.expect("there");
    assert_eq!(body, "Body of lower\n");
}

#[tokio::test]
async fn a_card_stands_in_for_front_matter_and_never_for_instructions() {
    let fixture = Fixture::new();
    let card =
        r#"{"id": "carded", "version": "1.0.0", "name": "Carded", "description": "From a card."}"#;
    fixture.write("a/carded/skill-card.json", card);
    let skill = fixture.one("carded").await;
    assert_eq!(skill.state, SkillState::Rejected);
    assert_eq!(skill.problems[0].code, "card.no_instructions");
    fixture.write("a/carded/SKILL.md", "Do it.\n");
    let skill = fixture.one("carded").await;
    assert_ne!(skill.state, SkillState::Rejected, "{:?}", skill.problems);
    assert_eq!(
        (
            skill.front_matter.description.as_str(),
            skill.front_matter.version.as_str()
        ),
        ("From a card.", "1.0.0")
    );
}

#[tokio::test]
async fn skills_in_dot_folders_are_found_and_tool_folders_skipped() {
    let passed_over = [
        ".git",
        ".hg",
        ".svn",
        ".venv",
        ".mypy_cache",
        "node_modules",
        "__pycache__",
        "dist",
    ];
    let fixture = Fixture::new();
    for folder in passed_over {
        fixture.skill(&format!("a/{folder}/x"), "x");
        fixture.skill(&format!("a/outer/{folder}/x"), "x");
    }
    fixture.skill("a/outer", "outer");
    fixture.skill("a/.claude/skills/claude", "claude");
    fixture.skill("a/.agents/skills/group/agents", "agents");
    fixture.skill("a/.curated/curated", "curated");
    fixture.skill("a/project/.codex/skills/codex", "codex");
    fixture.skill("b/.system", "system");
    assert_eq!(
        fixture.names().await,
        ["agents", "claude", "codex", "curated", "outer", "system"]
    );
    assert_eq!(fixture.problems().await, [""; 0]);
}

#[tokio::test]
async fn a_skill_in_a_dot_folder_comes_after_the_others_of_its_name() {
    let fixture = Fixture::new();
    fixture.document("a/.claude/skills/csv/SKILL.md", "csv", "hidden", "1.0");
    fixture.document("a/skills/csv/SKILL.md", "csv", "visible", "1.0");
    let (skill, _) = fixture.get("csv").await.expect("listed");
    assert_eq!(skill.front_matter.description, "visible");
}

#[tokio::test]
async fn a_folder_of_a_tool_that_is_a_root_is_read() {
    let fixture = Fixture::with(|config| {
        let inside = Path::new(config.roots[0].text()).join("node_modules/pack");
        config.roots[1] = SkillRoot::dir(&inside);
    });
    fixture.skill("a/node_modules/pack/named", "named");
    assert_eq!(fixture.names().await, ["named"]);
}

#[tokio::test]
async fn dot_folders_count_for_the_limits_of_a_root() {
    let fixture = Fixture::with(|config| config.dirs_max = 5);
    for number in 0..20 {
        fixture.skill(&format!("a/.s{number}"), &format!("s{number}"));
    }
    assert_eq!(fixture.names().await.len(), 4);
    assert_eq!(fixture.problems().await, ["root.too_many_dirs"]);
}

#[tokio::test]
async fn a_root_without_a_skill_is_a_problem_that_says_what_to_do() {
    let fixture = Fixture::new();
    fixture.write("a/notes/README.md", "x");
    let mut listing = fixture.skills.list().await.expect("listed");
    assert!(listing.skills.is_empty());
    let root = |name: &str| fixture.path(name).display().to_string();
    let told = |listing: &Listing| {
        let problems = listing.problems.iter();
        let told = problems.map(|problem| {
            assert_eq!(problem.severity, Severity::Warning);
            assert!(problem.message.contains("SKILL.md"), "{problem:?}");
            (problem.code, problem.subject.clone())
        });
        told.collect::<Vec<_>>()
    };
    let expected = ["a", "b"].map(|name| ("root.no_skills", root(name)));
    assert_eq!(told(&listing), expected);
    assert!(*fixture.skills.is_readable().borrow());
    // A rejected skill is one, and a reason of another kind is enough.
    fixture.write("a/bad/SKILL.md", "no front matter");
    fs::remove_dir(fixture.path("b")).expect("remove");
    fixture.skills.rescan().await.expect("scanned");
    listing = fixture.skills.list().await.expect("listed");
    assert_eq!(codes(&listing.problems), ["root.unreadable"]);
}

#[tokio::test]
async fn a_root_that_is_itself_a_skill_is_that_skill() {
    let fixture = Fixture::new();
    fixture.skill("a", "whole");
    fixture.write("a/scripts/x.py", "x");
    fixture.skill("a/part", "part");
    assert_eq!(fixture.names().await, ["part", "whole"]);
    let whole = fixture.one("whole").await;
    assert_eq!(whole.content.expect("read").files, 2);
    assert_eq!(fixture.one("part").await.aliases, ["whole/part"]);
}

#[tokio::test]
async fn a_nested_skill_is_its_own_and_no_part_of_the_outer_one() {
    let fixture = Fixture::new();
    fixture.skill("a/outer", "outer");
    fixture.write("a/outer/scripts/x.py", "x");
    fixture.skill("a/outer/sub/inner", "inner");
    fixture.skill("a/outer/sub/inner/innermost", "innermost");
    assert_eq!(fixture.names().await, ["inner", "innermost", "outer"]);
    let outer = fixture.one("outer").await;
    assert_eq!(
        outer.nested,
        [
            PathBuf::from("sub/inner"),
            PathBuf::from("sub/inner/innermost")
        ]
    );
    assert_eq!(outer.content.as_ref().expect("read").files, 2);
    assert_eq!(fixture.one("inner").await.aliases, ["outer/inner"]);
    assert_eq!(
        fixture.one("innermost").await.aliases,
        ["inner/innermost", "outer/inner/innermost"]
    );
    for alias in ["outer/inner", "outer/inner@*"] {
        assert_eq!(fixture.get(alias).await.expect("there").0.name, "inner");
    }
    let missing = fixture.get("inner/innermst").await.expect_err("no such");
    let Error::SkillNotFound { nearest, .. } = missing else {
        panic!("not SkillNotFound: {missing}");
    };
    assert!(nearest[0].ends_with("innermost"), "{nearest:?}");
    // What changes within does not change what is around.
    fixture.write("a/outer/sub/inner/more.txt", "x");
    assert_eq!(digest(&fixture.one("outer").await), digest(&outer));
    // Once it is no skill any longer it is a part.
    fs::remove_file(fixture.path("a/outer/sub/inner/SKILL.md")).expect("remove");
    assert_eq!(fixture.names().await, ["innermost", "outer"]);
    assert_eq!(
        fixture.one("outer").await.content.expect("read").files,
        3,
        "SKILL.md, scripts/x.py, sub/inner/more.txt"
    );
}

#[tokio::test]
async fn depth_is_bounded_and_what_is_left_out_is_said() {
    let fixture = Fixture::with(|config| config.depth_max = 3);
    fixture.skill("a/1/2/deep", "deep");
    fixture.skill("a/1/2/3/lost", "lost");
    // What a skill keeps deep inside is its own business.
    fixture.write("a/1/2/deep/assets/a/b/c/d", "x");
    assert_eq!(fixture.names().await, ["deep"]);
    assert_eq!(fixture.problems().await, ["root.too_deep"]);
}

#[tokio::test]
async fn limits_of_a_root_are_reported() {
    for (dirs_max, entries_max, skills_max, code) in [
        (5, 1000, 1000, "root.too_many_dirs"),
        (1000, 5, 1000, "root.too_many_entries"),
        (1000, 1000, 3, "root.too_many_skills"),
    ] {
        let fixture = Fixture::with(|config| {
            (config.dirs_max, config.entries_max) = (dirs_max, entries_max);
            config.skills_max = skills_max;
        });
        for number in 0..20 {
            fixture.skill(&format!("a/s{number}"), &format!("s{number}"));
        }
        fixture.skill("b/last", "last");
        let listing = fixture.list().await;
        assert_eq!(codes(&listing.problems), [code]);
        assert!(listing.skills.len() < 20, "{}", listing.skills.len());
        // Another root has limits of its own.
        let last = listing.skills.iter().any(|skill| skill.name == "last");
        assert_eq!(last, skills_max > 3, "{code}");
    }
}

// === links ===

#[tokio::test]
async fn links_are_followed_only_beneath_roots_with_both_paths_shown() {
    let fixture = Fixture::new();
    fixture.skill("a/real", "real");
    fixture.skill("b/.store/v1", "linked");
    fixture.skill("outside/x", "x");
    symlink("real", fixture.path("a/again")).expect("symlink");
    symlink(fixture.path("b/.store/v1"), fixture.path("a/linked")).expect("symlink");
    symlink(fixture.path("outside"), fixture.path("a/out")).expect("symlink");
    symlink(fixture.path("a"), fixture.path("a/circle")).expect("symlink");
    symlink("self", fixture.path("a/self")).expect("symlink");
    symlink("gone", fixture.path("a/broken")).expect("symlink");
    symlink(fixture.path("none/x"), fixture.path("a/gone")).expect("symlink");
    let listing = fixture.list().await;
    let names: Vec<&str> = listing
        .skills
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    assert_eq!(names, ["linked", "real"], "{:?}", listing.skills);
    assert_eq!(
        codes(&listing.problems),
        [
            "root.folder_unreadable",
            "root.folder_unreadable",
            "root.link_outside",
            "root.folder_unreadable"
        ]
    );
    let end = format!("leads to {}, which", fixture.path("none/x").display());
    for problem in &listing.problems[..2] {
        assert!(problem.message.contains(&end), "{problem:?}");
    }
    let linked = fixture.one("linked").await;
    assert_eq!(linked.state, SkillState::Loaded, "{:?}", linked.problems);
    let (found, real) = (fixture.path("a/linked"), fixture.path("b/.store/v1"));
    assert_eq!(
        linked.source,
        format!("{} -> {}", found.display(), real.display())
    );
    assert_eq!((linked.found_at, linked.dir), (found, real));
    // A folder that is reached without a link keeps its own name.
    assert_eq!(fixture.one("real").await.found_at, fixture.path("a/real"));
}

#[tokio::test]
async fn a_linked_document_beneath_a_root_is_read_with_its_changes() {
    let fixture = Fixture::new();
    fixture.document("b/shared/csv.md", "csv", "first", "");
    fixture.write("outside.md", "---\nname: out\ndescription: secret\n---\n");
    for (folder, target) in [
        ("csv", fixture.path("b/shared/csv.md")),
        ("out", fixture.path("outside.md")),
        ("gone", fixture.path("b/none")),
        ("device", PathBuf::from("/dev/zero")),
    ] {
        fs::create_dir(fixture.path("a").join(folder)).expect("mkdir");
        symlink(target, fixture.path("a").join(folder).join("SKILL.md")).expect("symlink");
    }
    let csv = fixture.one("csv").await;
    assert_eq!(csv.state, SkillState::LoadedWithWarnings);
    assert_eq!(codes(&csv.problems), ["skill.linked_document"]);
    let real = fixture.path("b/shared/csv.md").display().to_string();
    assert!(
        csv.problems[0].message.contains(&real),
        "{:?}",
        csv.problems
    );
    for folder in ["out", "gone", "device"] {
        let skill = fixture.one(folder).await;
        assert_eq!(skill.state, SkillState::Rejected, "{skill:?}");
        assert!(!format!("{skill:?}").contains("secret"));
    }
    assert_eq!(
        codes(&fixture.one("out").await.problems)[0],
        "skill.link_outside"
    );
    fixture.document("b/shared/csv.md", "csv", "second", "");
    let changed = fixture.one("csv").await;
    assert_eq!(changed.front_matter.description, "second");
    assert_ne!(digest(&changed), digest(&csv));
    // What is staged is the file, not a link out of the skill.
    let csv = SkillRef::parse("skills", "csv").expect("valid");
    let slot = fixture.path("slot/skills");
    let leased = fixture.skills.lease_to_stage(vec![csv]).await;
    let staged = fixture.skills.stage(&slot, leased.expect("listed")).await;
    staged.expect("staged");
    let staged = slot.join("csv/SKILL.md");
    assert!(fs::symlink_metadata(&staged).expect("there").is_file());
    assert!(fs::read_to_string(staged).expect("read").contains("second"));
}

#[tokio::test]
async fn links_to_files_and_folders_of_a_root_stage_their_targets() {
    let fixture = Fixture::new();
    fixture.write("b/shared/data.csv", "first");
    fixture.write("b/shared/deeper/notes.md", "notes");
    symlink("../data.csv", fixture.path("b/shared/deeper/again.csv")).expect("symlink");
    fixture.skill("a/linked", "linked");
    let link = |target: &str, at: &str| {
        symlink(fixture.path(target), fixture.path("a/linked").join(at)).expect("symlink");
    };
    link("b/shared/data.csv", "data.csv");
    link("b/shared", "references");
    let skill = fixture.one("linked").await;
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    let wanted = || SkillRef::parse("skills", "linked").expect("valid");
    for text in ["first", "second"] {
        fixture.write("b/shared/data.csv", text);
        fixture.skills.rescan().await.expect("scanned");
        let leased = fixture.skills.lease_to_stage(vec![wanted()]).await;
        let slot = fixture.path("slot/skills");
        let staged = fixture
            .skills
            .stage(&slot, leased.expect("listed"))
            .await
            .expect("staged");
        assert_eq!(staged.len(), 1);
        let at = |path: &str| fixture.path("slot/skills/linked").join(path);
        for path in [
            "data.csv",
            "references/data.csv",
            "references/deeper/again.csv",
        ] {
            let kind = fs::symlink_metadata(at(path)).expect(path).file_type();
            assert!(kind.is_file(), "{path} is {kind:?}");
            assert_eq!(fs::read_to_string(at(path)).expect(path), text, "{path}");
        }
        let notes = fs::read_to_string(at("references/deeper/notes.md"));
        assert_eq!(notes.expect("read"), "notes");
    }
}

#[tokio::test]
async fn no_link_is_followed_out_of_the_roots_or_in_circles() {
    let fixture = Fixture::new();
    fixture.skill("a/whole", "whole");
    fixture.write("outside/secret", "x");
    fixture.write("b/lead/away.md", "x");
    symlink(fixture.path("outside"), fixture.path("b/lead/on")).expect("symlink");
    fixture.write("b/loop/file.md", "x");
    symlink(fixture.path("b/loop"), fixture.path("b/loop/again")).expect("symlink");
    let links = [
        ("file", "secret", "outside/secret", "secret"),
        (
            "below",
            "references/secret",
            "outside/secret",
            "references/secret",
        ),
        ("dir", "references", "outside", "references"),
        ("gone", "references", "b/nowhere", "references"),
        ("through", "references", "b/lead", "references/on"),
        ("circle", "references", "b/loop", "references/again"),
        ("above", "references", "a", "references"),
    ];
    for (folder, link, target, _) in links {
        fixture.skill(&format!("a/{folder}"), folder);
        let link = fixture.path("a").join(folder).join(link);
        fs::create_dir_all(link.parent().expect("parent")).expect("mkdir");
        symlink(fixture.path(target), link).expect("symlink");
    }
    for (folder, _, _, left_out) in links {
        let skill = fixture.one(folder).await;
        assert_eq!(skill.state, SkillState::LoadedWithWarnings, "{folder}");
        assert_eq!(codes(&skill.problems), ["skill.left_out"], "{folder}");
        let message = &skill.problems[0].message;
        let named = format!(": {left_out} is a link out of the skill, to /");
        assert!(message.contains(&named), "{folder}: {message}");
        let wanted = SkillRef::parse("skills", folder).expect("valid");
        let leased = fixture.skills.lease_to_stage(vec![wanted]).await;
        let slot = fixture.path("slot/skills");
        let staged = fixture.skills.stage(&slot, leased.expect(folder)).await;
        staged.expect(folder);
        let entry = slot.join(folder).join(left_out).symlink_metadata();
        assert!(entry.is_err(), "{folder}: {entry:?}");
    }
    let beside = |path: &str| fixture.path("slot/skills").join(path).is_file();
    assert!(beside("through/references/away.md") && beside("circle/references/file.md"));
    assert_eq!(fixture.one("whole").await.state, SkillState::Loaded);
}

// === roots that clash, and profiles ===

#[tokio::test]
async fn a_root_that_is_there_twice_is_read_once() {
    let fixture = Fixture::with(|config| {
        let same = Path::new(config.roots[0].text()).join("../a");
        config.roots.push(SkillRoot::dir(&same));
    });
    fixture.skill("a/csv", "csv");
    assert_eq!(
        fixture.states().await,
        [("csv".to_owned(), SkillState::Loaded)]
    );
    assert_eq!(fixture.problems().await, ["root.duplicate"]);
}

#[tokio::test]
async fn the_specification_judges_when_it_is_asked_for() {
    let fixture = Fixture::new();
    fixture.skill("a/good", "good");
    fixture.write(
        "a/My_Skill/SKILL.md",
        "---\nname: My_Skill\ndescription: d\n---\n",
    );
    let page = |profile| fixture.skills.list_page(None, 10, profile);
    let states = |page: Listing| {
        let skills = page.skills.into_iter();
        skills.map(|skill| skill.state).collect::<Vec<_>>()
    };
    use SkillState::{Loaded, LoadedWithWarnings, Rejected};
    let lenient = states(page(ValidationProfile::Lenient).await.expect("page"));
    assert_eq!(lenient, [LoadedWithWarnings, Loaded]);
    let spec = states(page(ValidationProfile::Spec).await.expect("page"));
    assert_eq!(spec[0], Rejected);
    let wanted = SkillRef::parse("name", "My_Skill").expect("valid");
    let (skill, body) = fixture
        .skills
        .get(wanted, ValidationProfile::Spec)
        .await
        .expect("there");
    assert_eq!((skill.state, body.as_str()), (Rejected, ""));
    assert_eq!(skill.problems[0].severity, Severity::Error);
}
