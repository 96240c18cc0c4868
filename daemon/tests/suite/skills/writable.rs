//! Writable copies of skills, as far as the host has them: what the guest gets, the link, and when a copy is replaced.

use std::collections::BTreeMap;
use std::time::SystemTime;

use skilld::skills::AddedPackages;

use super::*;

impl Fixture {
    /// Stages a skill as a writable copy, as if the guest took it. Returns it, and the files that the guest got.
    async fn stage_writable(
        &self,
        slot: &str,
        name: &str,
        intact: &[(&str, SystemTime)],
    ) -> (StagedSkill, Vec<String>) {
        self.skills.rescan().await.expect("scanned");
        let wanted = vec![SkillRef::parse("skills", name).expect("valid")];
        let leased = self.skills.lease_to_stage(wanted).await.expect("listed");
        let times = intact
            .iter()
            .map(|(path, time)| ((*path).to_owned(), *time));
        let target = self.slot(slot);
        let prepared = self
            .skills
            .prepare_writable(&target, leased, times.collect())
            .await
            .expect("prepared");
        let copies = prepared.copies();
        let mut sent = copies.map_or_else(Vec::new, |copies| names(&copies.join(name)));
        sent.extend(
            prepared
                .links
                .iter()
                .map(|(path, to)| format!("{path} -> {to}")),
        );
        let staged = self.skills.publish_writable(&target, prepared).await;
        (staged.expect("published").remove(0), sent)
    }

    fn link(&self, slot: &str) -> Option<String> {
        let link = fs::read_link(self.slot(slot).join("csv")).ok()?;
        Some(link.display().to_string())
    }

    fn digest_text(&self, slot: &str) -> String {
        fs::read_to_string(self.slot(slot).with_file_name("staged").join("csv")).expect("noted")
    }
}

#[tokio::test]
async fn a_writable_skill_is_a_link_to_a_copy_that_the_guest_gets() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fs::create_dir(fixture.path("root/csv/out")).expect("mkdir");
    fixture.write("csv/out/mine", "");
    let (staged, sent) = fixture.stage_writable("s1", "csv", &[]).await;
    let path = staged.writable_path.expect("writable");
    assert!(
        path.starts_with("work/.skills/") && path.ends_with("/csv"),
        "{path}"
    );
    assert!(!staged.unchanged);
    let expected = [
        "SKILL.md",
        "bin",
        "out",
        "csv/work -> ../../../../work",
        "csv/inputs -> ../../../../work/inputs",
    ];
    assert_eq!(sent, expected);
    assert_eq!(fixture.link("s1"), Some(format!("../{path}")));
    assert_eq!(
        fixture.digest_text("s1"),
        format!("writable:{}", staged.digest)
    );
    // Nothing of it is left on the host.
    assert_eq!(names(&fixture.slot("s1")), ["csv"]);
    assert_eq!(
        names(fixture.slot("s1").parent().expect("slot")),
        ["skills", "staged"]
    );
}

#[tokio::test]
async fn a_writable_skill_has_a_link_to_its_node_packages() {
    let fixture = Fixture::new();
    fixture.node_skill("1");
    fixture.write(
        "csv/scripts/package.json",
        "{\"dependencies\": {\"x\": \"1\"}}",
    );
    let (staged, sent) = fixture.stage_writable("s1", "csv", &[]).await;
    let name = staged.node_packages_name();
    for (folder, up, number) in [
        ("csv", "../../../..", 0),
        ("csv/scripts", "../../../../..", 1),
    ] {
        let packages = format!("skills/.node_modules/{name}/{number}/node_modules");
        let link = format!("{folder}/node_modules -> {up}/{packages}");
        assert!(sent.contains(&link), "{link}: {sent:?}");
    }
}

#[tokio::test]
async fn a_writable_copy_stays_when_packages_are_added_to_its_skill() {
    let fixture = Fixture::new();
    fixture.node_skill("1");
    let (first, _) = fixture.stage_writable("s1", "csv", &[]).await;
    let path = first.writable_path.clone().expect("writable");
    let mut added = AddedPackages::default();
    added.add("npm:docx").expect("valid");
    let wanted = SkillRef::parse("skills", "csv").expect("valid");
    let remembered = fixture.skills.remember_packages(wanted, added).await;
    remembered.expect("remembered");
    let known = [(path.as_str(), SystemTime::UNIX_EPOCH)];
    let (again, sent) = fixture.stage_writable("s1", "csv", &known).await;
    assert_ne!(
        again.environment_need.digest(),
        first.environment_need.digest()
    );
    assert_eq!((again.unchanged, again.writable_path), (true, Some(path)));
    assert_eq!(sent, [""; 0]);
}

#[tokio::test]
async fn a_writable_copy_is_kept_until_it_is_lost_or_replaced() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let (first, _) = fixture.stage_writable("s1", "csv", &[]).await;
    let path = first.writable_path.clone().expect("writable");
    let copied = SystemTime::UNIX_EPOCH;
    let (again, sent) = fixture
        .stage_writable("s1", "csv", &[(&path, copied)])
        .await;
    assert_eq!(
        (again.unchanged, again.writable_path.as_ref()),
        (true, Some(&path))
    );
    assert_eq!(sent, [""; 0]);
    // A command has removed it, or replaced it by something else.
    let (repaired, sent) = fixture
        .stage_writable("s1", "csv", &[("work/.skills/1/csv", copied)])
        .await;
    assert_eq!((repaired.unchanged, sent.len()), (false, 5));
    let path = repaired.writable_path.expect("writable");
    assert_eq!(fixture.link("s1"), Some(format!("../{path}")));
    // The skill has a new version.
    fixture.skill("csv", "2");
    let (second, sent) = fixture
        .stage_writable("s1", "csv", &[(&path, copied)])
        .await;
    assert_eq!((second.unchanged, sent.len()), (false, 5));
    assert_ne!(second.digest, first.digest);
    // No link stays for each copy that was replaced.
    assert_eq!(names(&fixture.slot("s1")), ["csv"]);
}

#[tokio::test]
async fn a_writable_copy_that_commands_changed_is_kept_and_reported() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let (first, _) = fixture.stage_writable("s1", "csv", &[]).await;
    assert!(!first.is_modified);
    let path = first.writable_path.expect("writable");
    let later = SystemTime::now() + Duration::from_secs(1);
    for (time, expected) in [(SystemTime::UNIX_EPOCH, false), (later, true)] {
        let (again, _) = fixture.stage_writable("s1", "csv", &[(&path, time)]).await;
        assert_eq!((again.unchanged, again.is_modified), (true, expected));
    }
}

#[tokio::test]
async fn a_writable_plugin_skill_lies_in_a_copy_of_the_plugin() {
    let fixture = Fixture::new();
    fixture.plugin("acme", "acme");
    let (staged, sent) = fixture.stage_writable("s1", "deploy", &[]).await;
    let path = staged.writable_path.clone().expect("writable");
    let root = path.strip_suffix("/skills/deploy").expect("in the plugin");
    assert!(root.ends_with("/deploy"), "{path}");
    let link = |place: &str| fs::read_link(fixture.slot("s1").join(place)).expect("a link");
    assert_eq!(link("deploy"), Path::new("..").join(&path));
    assert_eq!(link(".plugins/deploy"), Path::new("../..").join(root));
    let expected = [
        "shared",
        "skills",
        "deploy/skills/deploy/out -> ../../../../../../out",
        "deploy/skills/deploy/work -> ../../../../../../work",
        "deploy/skills/deploy/inputs -> ../../../../../../work/inputs",
    ];
    assert_eq!(sent, expected);
    assert!(staged.plugin.is_some());
    let now = SystemTime::UNIX_EPOCH;
    let (again, _) = fixture
        .stage_writable("s1", "deploy", &[(&path, now)])
        .await;
    assert!(again.unchanged);
    // Other shared files are another copy, and so is a read-only skill.
    fixture.write("acme/shared/lib.py", "acme 2");
    let (other, _) = fixture
        .stage_writable("s1", "deploy", &[(&path, now)])
        .await;
    assert_ne!(other.writable_path, Some(path));
    fixture.stage("s1", &["deploy"]).await.expect("staged");
    let shared = fixture.read("deploy/../../shared/lib.py");
    assert_eq!(shared.expect("read-only"), "acme 2");
    fixture.stage_writable("s1", "deploy", &[]).await;
    // Without shared files the skill is a copy of its own, and nothing of the plugin is left.
    fs::remove_dir_all(fixture.path("root/acme/shared")).expect("removed");
    let (alone, _) = fixture.stage_writable("s1", "deploy", &[]).await;
    assert_eq!(alone.plugin, None);
    fixture.remove_replaced().await;
    assert_eq!(
        fixture.staged_names(),
        (vec![".plugins".to_owned(), "deploy".to_owned()], vec![])
    );
}

#[tokio::test]
async fn a_skill_can_switch_between_read_only_and_writable() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let fixed = fixture.stage("s1", &["csv"]).await.expect("staged");
    let (written, _) = fixture.stage_writable("s1", "csv", &[]).await;
    assert_eq!(
        (written.unchanged, &written.digest),
        (false, &fixed[0].digest)
    );
    assert!(fixture.link("s1").is_some());
    let fixed = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(
        (fixed[0].unchanged, fixed[0].writable_path.as_ref()),
        (false, None)
    );
    assert_eq!(fixture.script("s1"), "echo 1\n");
    assert_eq!(fixture.digest_text("s1"), fixed[0].digest);
    assert!(fixture.stage("s1", &["csv"]).await.expect("staged")[0].unchanged);
    fixture.remove_replaced().await;
    assert_eq!(names(&fixture.slot("s1")), ["csv"]);
}

#[tokio::test]
async fn a_failed_writable_staging_leaves_what_was_staged() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    let wanted = vec![SkillRef::parse("skills", "csv").expect("valid")];
    let target = fixture.slot("s1");
    let leased = fixture.skills.lease_to_stage(wanted).await.expect("listed");
    let prepared = fixture
        .skills
        .prepare_writable(&target, leased, BTreeMap::new());
    // The guest refuses the copy.
    drop(prepared.await.expect("prepared"));
    assert_eq!(fixture.script("s1"), "echo 1\n");
    assert!(fixture.stage("s1", &["csv"]).await.expect("staged")[0].unchanged);
    assert_eq!(
        names(fixture.slot("s1").parent().expect("slot")),
        ["skills", "staged"]
    );
}
