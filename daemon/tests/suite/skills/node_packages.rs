//! Links from a skill's folder to the Node.js packages of its environment, as far as the host has them.

use super::*;

impl Fixture {
    /// A skill with packages of Node.js.
    pub(crate) fn node_skill(&self, version: &str) {
        self.skill("csv", version);
        let package = format!("{{\"dependencies\": {{\"x\": {version:?}}}}}");
        self.write("csv/package.json", package);
        self.write("csv/package-lock.json", "{\"packages\": {}}");
    }

    /// Follows the link `node_modules` of a staged skill on the host, and returns where the link there leads.
    fn packages(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.slot("s1").join("csv/node_modules")).ok()?;
        let target = target.to_str()?;
        let link = target.strip_prefix("../../skills/")?;
        let link = link.strip_suffix("/0/node_modules")?;
        fs::read_link(self.slot("s1").join(link)).ok()
    }

    async fn link_packages(&self, skill: &StagedSkill, path: Option<&str>) {
        let packages = vec![(skill.node_packages_name(), path.map(str::to_owned))];
        let target = self.slot("s1");
        let linked = self.skills.link_node_packages(&target, packages);
        linked.await.expect("linked");
    }
}

#[tokio::test]
async fn packages_built_later_are_found_without_copying_the_skill() {
    let fixture = Fixture::new();
    fixture.node_skill("1");
    let first = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(fixture.packages(), None);
    fixture.link_packages(&first[0], Some("/opt/one")).await;
    assert_eq!(fixture.packages().as_deref(), Some(Path::new("/opt/one")));
    // They were removed meanwhile, and built again.
    let again = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert!(again[0].unchanged);
    fixture.link_packages(&again[0], Some("/opt/two")).await;
    assert_eq!(fixture.packages().as_deref(), Some(Path::new("/opt/two")));
    // A version that needs others does not find these.
    fixture.node_skill("2");
    let second = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(fixture.packages(), None);
    fixture.link_packages(&second[0], Some("/opt/three")).await;
    assert_eq!(fixture.packages().as_deref(), Some(Path::new("/opt/three")));
    // A build of another version of the packages failed.
    fixture.link_packages(&second[0], None).await;
    assert_eq!(fixture.packages(), None);
    fixture.link_packages(&second[0], Some("/opt/three")).await;
    let left = names(&fixture.slot("s1").join(".node_modules"));
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn only_skills_with_packages_get_a_link_and_own_folders_stay() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    assert!(!names(&fixture.slot("s1").join("csv")).contains(&"node_modules".to_owned()));
    fixture.node_skill("2");
    fixture.write("csv/node_modules/x/index.js", "own");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    let own = fixture.slot("s1").join("csv/node_modules/x/index.js");
    assert_eq!(fs::read_to_string(own).expect("staged"), "own");
}

#[tokio::test]
async fn each_folder_with_packages_has_its_own_link() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let package = "{\"dependencies\": {\"x\": \"1\"}}";
    for folder in ["scripts", "web/app", "vendored"] {
        fixture.write(&format!("csv/{folder}/package.json"), package);
    }
    fixture.write("csv/vendored/node_modules/x/index.js", "own");
    let staged = fixture.stage("s1", &["csv"]).await.expect("staged");
    let name = staged[0].node_packages_name();
    let skill = fixture.slot("s1").join("csv");
    let link = |folder: &str| fs::read_link(skill.join(folder).join("node_modules"));
    for (folder, target) in [
        (
            "scripts",
            format!("../../../skills/.node_modules/{name}/0/node_modules"),
        ),
        (
            "web/app",
            format!("../../../../skills/.node_modules/{name}/1/node_modules"),
        ),
    ] {
        assert_eq!(
            link(folder).expect("a link"),
            Path::new(&target),
            "{folder}"
        );
    }
    assert!(link("").is_err() && link("vendored").is_err());
    // The links lead to the packages once they are built.
    let built = tempfile::tempdir().expect("temp dir");
    let module = built.path().join("1/node_modules/x/index.js");
    fs::create_dir_all(module.parent().expect("a folder")).expect("mkdir");
    fs::write(module, "one").expect("write");
    fixture
        .link_packages(&staged[0], built.path().to_str())
        .await;
    let found = fs::read_to_string(skill.join("web/app/node_modules/x/index.js"));
    assert_eq!(found.expect("found"), "one");
}
