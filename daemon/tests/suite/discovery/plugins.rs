//! Skills of plugins: which plugin a skill belongs to, and how its name tells it from others of the same name.

use super::*;

const MANIFEST: &str = ".claude-plugin/plugin.json";

impl Fixture {
    fn plugin(&self, folder: &str, name: &str) {
        let manifest = format!("{{\"name\": {name:?}, \"version\": \"1.0\"}}");
        self.write(&format!("{folder}/{MANIFEST}"), manifest);
    }

    async fn stage(&self, refs: &[&str]) -> Result<Vec<String>, Error> {
        let wanted = refs
            .iter()
            .map(|text| SkillRef::parse("skills", text).expect("valid"));
        self.skills.rescan().await?;
        let slot = self.path("slot/skills");
        let leased = self.skills.lease_to_stage(wanted.collect()).await?;
        let staged = self.skills.stage(&slot, leased).await?;
        Ok(staged.into_iter().map(|skill| skill.name).collect())
    }

    fn staged(&self, path: &str) -> String {
        fs::read_to_string(self.path("slot/skills").join(path)).expect("staged")
    }

    /// Names, plugins and further names of all skills.
    async fn scopes(&self) -> Vec<(String, String, Vec<String>)> {
        let skills = self.list().await.skills.into_iter();
        let scope = |skill: Skill| {
            let plugin = skill.plugin_name().to_owned();
            (skill.name, plugin, skill.aliases)
        };
        skills.map(scope).collect()
    }
}

fn scope(name: &str, plugin: &str, aliases: &[&str]) -> (String, String, Vec<String>) {
    let owned = aliases.iter().map(|alias| (*alias).to_owned());
    (name.to_owned(), plugin.to_owned(), owned.collect())
}

#[tokio::test]
async fn the_nearest_plugin_around_a_skill_is_its_own() {
    let fixture = Fixture::new();
    fixture.plugin("a/acme", "acme-tools");
    fixture.skill("a/acme/skills/group/one", "one");
    fixture.plugin("a/acme/inner", "inner");
    fixture.skill("a/acme/inner/two", "two");
    fixture.skill("a/market/plugins/layout/skills/three", "three");
    fixture.plugin("a/market/plugins/folder", "named");
    fixture.skill("a/market/plugins/folder/skills/four", "four");
    fixture.plugin("a/five", "own");
    fixture.skill("a/five", "five");
    fixture.skill("a/five/sub", "six");
    // No plugin: a marketplace, a folder of another name, a root that is in a plugin.
    fixture.write("a/market/.claude-plugin/marketplace.json", "{}");
    fixture.skill("a/market/skills/seven", "seven");
    fixture.skill("a/plugins/eight", "eight");
    assert_eq!(
        fixture.scopes().await,
        [
            scope("eight", "", &[]),
            scope("five", "own", &["own:five"]),
            scope("four", "named", &["named:four"]),
            scope("one", "acme-tools", &["acme-tools:one"]),
            scope("seven", "", &[]),
            scope("six", "own", &["own:six", "five/six"]),
            scope("three", "layout", &["layout:three"]),
            scope("two", "inner", &["inner:two"]),
        ]
    );
    assert_eq!(fixture.problems().await, [""; 0]);
    // A change of the plugin's name is a change of its skills.
    fixture.plugin("a/acme", "renamed");
    fixture.get("renamed:one").await.expect("its new name");
    fixture
        .get("acme-tools:one")
        .await
        .expect_err("its old name");
}

#[tokio::test]
async fn skills_of_one_name_are_told_apart_by_their_plugins() {
    let fixture = Fixture::new();
    for (folder, plugin, version) in [
        ("a/one", "acme", "1.0"),
        ("a/two", "other", "1.0"),
        ("b/three", "third", "2.0"),
        // The same plugin once more: the first one has the name.
        ("b/four", "acme", "1.0"),
    ] {
        fixture.plugin(folder, plugin);
        let document = format!("{folder}/skills/deploy/SKILL.md");
        fixture.document(&document, "deploy", folder, version);
    }
    let skills = fixture.list().await.skills;
    let states: Vec<_> = skills
        .iter()
        .map(|skill| (skill.state, skill.front_matter.description.as_str()))
        .collect();
    use SkillState::{Loaded, Shadowed};
    assert_eq!(
        states,
        [
            (Loaded, "a/one"),
            (Shadowed, "a/two"),
            (Loaded, "b/three"),
            (Shadowed, "b/four"),
        ]
    );
    for (asked, folder, name) in [
        ("deploy", "a/one", "deploy"),
        ("deploy@2", "b/three", "deploy"),
        ("acme:deploy", "a/one", "acme--deploy"),
        ("other:deploy", "a/two", "other--deploy"),
        ("other:deploy@^1", "a/two", "other--deploy"),
        ("other--deploy", "a/two", "other--deploy"),
        ("third:deploy", "b/three", "third--deploy"),
    ] {
        let (skill, body) = fixture.get(asked).await.expect(asked);
        assert_eq!(skill.front_matter.description, folder, "{asked}");
        assert_eq!((skill.name.as_str(), skill.state), (name, Loaded));
        assert_eq!(skill.problems, [], "{asked}");
        assert_eq!(body, "Body of deploy\n");
        let by_digest = format!("{name}@sha256:{}", digest(&skill));
        let (same, _) = fixture.get(&by_digest).await.expect("by its digest");
        assert_eq!((same.name, same.state), (skill.name, skill.state));
    }
    for asked in ["other:deploy@2", "none:deploy", "other:none", "acme--none"] {
        let error = fixture.get(asked).await.expect_err(asked);
        assert!(matches!(error, Error::SkillNotFound { .. }), "{error}");
    }
    let shadowed = &fixture.list().await.skills[1];
    let said = &shadowed.problems[0].message;
    assert!(said.ends_with("use it as other:deploy"), "{said}");
}

#[tokio::test]
async fn skills_of_one_name_are_staged_side_by_side() {
    let fixture = Fixture::new();
    for (folder, plugin) in [("a/one", "acme"), ("a/two", "other")] {
        fixture.plugin(folder, plugin);
        let text = format!(
            "---\nname: deploy\ndescription: d\nversion: 1.0\n---\n{plugin} in {{baseDir}}\n"
        );
        fixture.write(&format!("{folder}/skills/deploy/SKILL.md"), text);
    }
    let all = ["deploy", "other:deploy", "acme:deploy"];
    let names = fixture.stage(&all).await.expect("staged");
    assert_eq!(names, ["deploy", "other--deploy", "acme--deploy"]);
    for (name, plugin) in [
        ("deploy", "acme in"),
        ("other--deploy", "other in"),
        ("acme--deploy", "acme in"),
    ] {
        assert!(fixture.staged(&format!("{name}/SKILL.md")).contains(plugin));
        let venv = fs::read_link(fixture.path(&format!("slot/skills/{name}/.venv")));
        let target = PathBuf::from(format!("../../work/.venvs/{name}"));
        assert_eq!(venv.expect("a link"), target);
    }
    // What is served names the folder that a staging makes.
    let (_, body) = fixture.get("other:deploy").await.expect("listed");
    assert_eq!(body, "other in /workspace/skills/other--deploy\n");
    let again = fixture.stage(&["other--deploy", "other:deploy"]).await;
    assert_eq!(again.expect("staged"), ["other--deploy"; 2]);
    // Its digest stages it as long as the store has it.
    let (skill, _) = fixture.get("other:deploy").await.expect("listed");
    fs::remove_dir_all(fixture.path("a/two")).expect("remove");
    let by_digest = format!("other:deploy@sha256:{}", digest(&skill));
    let names = fixture.stage(&[&by_digest]).await.expect("staged");
    assert_eq!(names, ["other--deploy"]);
}

#[tokio::test]
async fn a_scoped_folder_is_a_name_however_long_its_parts_are() {
    let fixture = Fixture::new();
    let (plugin, skill) = ("p".repeat(64), "s".repeat(60));
    fixture.plugin("a/long", &plugin);
    for suffix in ["a", "b"] {
        let name = format!("{skill}{suffix}");
        fixture.skill(&format!("a/long/{name}"), &name);
    }
    let refs = ["a", "b"].map(|suffix| format!("{plugin}:{skill}{suffix}"));
    let names = fixture
        .stage(&refs.each_ref().map(|text| &**text))
        .await
        .expect("staged");
    assert!(names.iter().all(|name| skilld::skills::is_name(name)));
    assert_ne!(names[0], names[1]);
    for (name, suffix) in names.iter().zip(["a", "b"]) {
        assert!(
            fixture
                .staged(&format!("{name}/SKILL.md"))
                .contains(&format!("{skill}{suffix}"))
        );
        let (same, _) = fixture.get(name).await.expect("the folder's name");
        assert_eq!(&same.name, name);
    }
}

#[tokio::test]
async fn an_unusable_manifest_is_a_problem_and_costs_no_skill() {
    let fixture = Fixture::new();
    for (folder, manifest) in [
        ("json", "{".to_owned()),
        ("nameless", "{}".to_owned()),
        ("typed", "{\"name\": 7}".to_owned()),
        ("path", "{\"name\": \"..\"}".to_owned()),
        ("empty", "{\"name\": \"\"}".to_owned()),
        ("dashes", "{\"name\": \"a--b\"}".to_owned()),
        ("long", format!("{{\"name\": {:?}}}", "n".repeat(1025))),
        ("deep", format!("{{\"name\": {}\"a\"", "[".repeat(10_000))),
        ("large", format!("{{\"x\": {:?}}}", "x".repeat(200 << 10))),
    ] {
        fixture.write(&format!("a/{folder}/{MANIFEST}"), manifest);
        fixture.skill(&format!("a/{folder}/skills/{folder}"), folder);
    }
    let secret = fixture.write("secret.json", "{\"name\": \"secret\"}");
    fs::create_dir_all(fixture.path("a/link/.claude-plugin")).expect("mkdir");
    symlink(secret, fixture.path("a/link").join(MANIFEST)).expect("symlink");
    fixture.skill("a/link/skills/link", "link");
    let listing = fixture.list().await;
    assert_eq!(codes(&listing.problems), ["root.plugin_invalid"; 10]);
    for problem in &listing.problems {
        assert_eq!(problem.severity, Severity::Warning);
        assert!(problem.message.len() < 500, "{problem:?}");
        assert!(problem.message.contains("plugin.json"), "{problem:?}");
    }
    assert_eq!(listing.skills.len(), 10);
    let usable = |skill: &Skill| skill.is_usable() && skill.plugin_name().is_empty();
    assert!(listing.skills.iter().all(usable));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_use_a_skill_by_the_name_of_its_plugin() {
    let server = TestServer::start("", &[]).await;
    let root = server.state_dir().with_file_name("skills");
    for plugin in ["acme", "other"] {
        let dir = root.join(plugin);
        fs::create_dir_all(dir.join(".claude-plugin")).expect("mkdir");
        fs::create_dir_all(dir.join("skills/deploy")).expect("mkdir");
        let manifest = format!("{{\"name\": {plugin:?}}}");
        fs::write(dir.join(MANIFEST), manifest).expect("write");
        let text = format!("---\nname: deploy\ndescription: {plugin}\n---\nbody\n");
        fs::write(dir.join("skills/deploy/SKILL.md"), text).expect("write");
    }
    let client = &server.client;
    client.refresh_skills().await.expect("refreshed");
    let request = pb::ListSkillsRequest::default();
    let listed = client.list_skills(request).await.expect("listed").skills;
    let plugins: Vec<_> = listed.iter().map(|skill| skill.plugin.as_str()).collect();
    assert_eq!(plugins, ["acme", "other"]);
    let skill = client.get_skill("other:deploy").await.expect("found");
    assert_eq!(skill.name, "skills/other--deploy");
    assert_eq!(
        (&*skill.plugin, skill.state()),
        ("other", pb::SkillState::Loaded)
    );
    let workspace = server.workspace().await;
    let staged = client
        .stage_skills(&workspace, &["other:deploy"])
        .await
        .expect("staged");
    assert_eq!(staged[0].path, "/workspace/skills/other--deploy");
    let seen = server.get_workspace(&workspace).await;
    assert_eq!(seen.skills[0].name, "skills/other--deploy");
    assert!(server.stop().await);
}
