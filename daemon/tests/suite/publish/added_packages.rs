//! Packages that are added to skills: by PrepareSkill for one tenant, by the configuration for all, and by inference.

use std::collections::BTreeSet;
use std::sync::Arc;

use skilld::skills::environments::environment_record::{EnvironmentKey, PreparedEnvironment};
use skilld::skills::{AddedPackages, EnvironmentNeed, SkillScope};
use skilld_proto::v1::{PrepareSkillRequest, PreparedSkill, prepare_skill_response};

use super::*;

fn packages(texts: &[&str]) -> AddedPackages {
    let mut packages = AddedPackages::default();
    for text in texts {
        packages.add(text).expect("a package");
    }
    packages
}

fn wanted(name: &str) -> SkillRef {
    SkillRef::parse("name", name).expect("valid")
}

fn tenant(skills: &Skills, name: &str) -> Skills {
    skills.in_scope(SkillScope::Tenant {
        name: name.to_owned(),
        roots: None,
    })
}

async fn remember(skills: &Skills, name: &str, texts: &[&str]) {
    let remembered = skills.remember_packages(wanted(name), packages(texts));
    remembered.await.expect("remembered");
}

/// Returns the need that staging a skill would have.
async fn staged_need(skills: &Skills, name: &str) -> EnvironmentNeed {
    let leased = skills.lease_to_stage(vec![wanted(name)]).await;
    let leased = leased.expect("leased");
    let staged = leased.skills().first().expect("a skill");
    EnvironmentNeed::clone(&staged.environment_need)
}

#[tokio::test]
async fn added_packages_are_remembered_over_a_restart() {
    let mut fixture = Fixture::new();
    fixture.root("csv", "1.0");
    fixture.skills.rescan().await.expect("scanned");
    assert!(staged_need(&fixture.skills, "csv").await.is_empty());
    remember(&fixture.skills, "csv", &["simpy", "npm:docx@9"]).await;
    fixture.reopen();
    let need = staged_need(&fixture.skills, "csv").await;
    assert_eq!(need.requirements, ["simpy"]);
    assert_eq!(
        need.node_projects[0].package_json,
        br#"{"dependencies":{"docx":"9"}}"#
    );
    // They belong to the name, so that a later version has them too.
    fixture.root("csv", "2.0");
    fixture.skills.rescan().await.expect("scanned");
    assert_eq!(staged_need(&fixture.skills, "csv").await, need);
    remember(&fixture.skills, "csv", &["pandas"]).await;
    let need = staged_need(&fixture.skills, "csv").await;
    assert_eq!(
        (need.requirements, need.node_projects),
        (vec!["pandas".to_owned()], Vec::new())
    );
    remember(&fixture.skills, "csv", &[]).await;
    assert!(staged_need(&fixture.skills, "csv").await.is_empty());
    assert!(matches!(
        fixture
            .skills
            .remember_packages(wanted("absent"), packages(&["simpy"]))
            .await
            .map_err(Error::from),
        Err(Error::SkillNotFound { .. })
    ));
}

#[tokio::test]
async fn restaging_links_the_node_packages_that_were_added() {
    let fixture = Fixture::new();
    fixture.root("csv", "1.0");
    let link = || fs::read_link(fixture.path("state/slots/s1/skills/csv/node_modules")).ok();
    fixture.stage("s1", "csv").await.expect("staged");
    assert_eq!(link(), None);
    for package in ["npm:docx@8", "npm:docx@9"] {
        remember(&fixture.skills, "csv", &[package]).await;
        let staged = fixture.stage("s1", "csv").await.expect("staged");
        assert!(!staged.unchanged);
        let target = link().expect("a link").display().to_string();
        let name = staged.node_packages_name();
        assert!(target.contains(&name), "{target} does not name {name}");
    }
    let again = fixture.stage("s1", "csv").await.expect("staged");
    assert!(again.unchanged);
}

#[tokio::test]
async fn a_tenant_has_its_own_added_packages() {
    let fixture = Fixture::new();
    fixture.root("csv", "1.0");
    fixture.skills.rescan().await.expect("scanned");
    let [a, b] = ["a", "b"].map(|name| tenant(&fixture.skills, name));
    remember(&a, "csv", &["simpy"]).await;
    let of_a = staged_need(&a, "csv").await;
    assert_eq!(of_a.requirements, ["simpy"]);
    assert!(staged_need(&b, "csv").await.is_empty());
    assert!(staged_need(&fixture.skills, "csv").await.is_empty());
    // The environment is kept for the tenant that needs it.
    let prepared = ["a", "b"].map(|tenant| PreparedEnvironment {
        name: format!("of-{tenant}"),
        key: EnvironmentKey {
            tenant: tenant.to_owned(),
            need: of_a.digest(),
            ..EnvironmentKey::default()
        },
        skills: BTreeSet::from(["csv".to_owned()]),
    });
    let needed = fixture.skills.find_needed(prepared.clone().into()).await;
    assert_eq!(needed.expect("known"), HashSet::from(["of-a".to_owned()]));
    remember(&a, "csv", &[]).await;
    let needed = fixture.skills.find_needed(prepared.into()).await;
    assert_eq!(needed.expect("known"), HashSet::new());
}

#[tokio::test]
async fn packages_of_a_scoped_name_keep_their_environment() {
    let fixture = Fixture::new();
    let plugin = fixture.path("root/acme");
    let manifest = plugin.join(".claude-plugin/plugin.json");
    write_file(&manifest, b"{\"name\": \"acme\"}", 0o644);
    let document = b"---\nname: csv\ndescription: d\n---\n";
    write_file(&plugin.join("skills/csv/SKILL.md"), document, 0o644);
    fixture.skills.rescan().await.expect("scanned");
    remember(&fixture.skills, "acme:csv", &["simpy"]).await;
    assert!(staged_need(&fixture.skills, "csv").await.is_empty());
    let wanted = wanted("acme:csv");
    let staged = fixture.skills.environment_need(wanted).await.expect("read");
    assert_eq!(staged.environment_need.requirements, ["simpy"]);
    let prepared = PreparedEnvironment {
        name: "e1".to_owned(),
        key: EnvironmentKey {
            tenant: "default".to_owned(),
            need: staged.environment_need.digest(),
            ..EnvironmentKey::default()
        },
        skills: BTreeSet::from([staged.name]),
    };
    let needed = fixture.skills.find_needed(vec![prepared]).await;
    assert_eq!(needed.expect("known"), HashSet::from(["e1".to_owned()]));
}

#[tokio::test]
async fn packages_are_stated_configured_remembered_or_inferred() {
    let mut fixture = Fixture::new();
    fixture.root("csv", "1.0");
    let script = "import json, yaml, pandas, simpy\n";
    write_file(
        &fixture.path("root/csv/scripts/x.py"),
        script.as_bytes(),
        0o644,
    );
    write_file(
        &fixture.path("root/csv/requirements.txt"),
        b"pandas<3\n",
        0o644,
    );
    fixture
        .config
        .packages
        .insert("csv".to_owned(), packages(&["simpy>=4"]));
    fixture.reopen();
    remember(&fixture.skills, "csv", &["polars"]).await;
    let certain = staged_need(&fixture.skills, "csv").await;
    assert_eq!(certain.requirements, ["pandas<3", "polars", "simpy>=4"]);
    assert!(certain.inferred.is_empty());
    fixture.config.infers_packages = true;
    fixture.reopen();
    let need = staged_need(&fixture.skills, "csv").await;
    assert_eq!(
        need.requirements,
        ["pandas<3", "polars", "pyyaml", "simpy>=4"]
    );
    let inferred = need.inferred.iter();
    let inferred: Vec<_> = inferred
        .map(|package| (package.requirement.as_str(), package.module.as_str()))
        .collect();
    assert_eq!(inferred, [("pyyaml", "yaml")]);
    let without = need.certain.as_ref().expect("a need");
    assert_eq!(without.digest(), certain.digest());
    // A need of 80 MiB is in memory once, however many ask for it.
    let find = async || {
        let found = fixture.skills.environment_need(wanted("csv")).await;
        found.expect("read").environment_need
    };
    let [first, second] = [find().await, find().await];
    assert_eq!(first.digest(), need.digest());
    assert!(Arc::ptr_eq(&first, &second));
}

async fn prepare(server: &TestServer, request: PrepareSkillRequest) -> PreparedSkill {
    let mut messages = server
        .client
        .prepare_skill(request)
        .await
        .expect("answered");
    while let Some(message) = messages.message().await.expect("a message") {
        if let Some(prepare_skill_response::Payload::Result(result)) = message.payload {
            return result;
        }
    }
    panic!("no result");
}

#[tokio::test]
async fn prepare_adds_keeps_replaces_and_forgets_packages() {
    let config = "skills.environment_builds = \"never\"\nskills.packages.csv = [\"simpy\"]\n";
    let server = TestServer::start(config, &[("csv", "name: csv\ndescription: d")]).await;
    let request = |packages: &[&str], npm_packages: &[&str], forget_packages| PrepareSkillRequest {
        name: "csv".to_owned(),
        packages: packages.iter().map(ToString::to_string).collect(),
        npm_packages: npm_packages.iter().map(ToString::to_string).collect(),
        forget_packages,
        ..PrepareSkillRequest::default()
    };
    for (request, expected) in [
        (request(&[], &[], false), &["simpy"][..]),
        (
            request(&["pandas"], &["docx@9"], false),
            &["pandas", "simpy", "npm:docx@9"],
        ),
        (request(&[], &[], false), &["pandas", "simpy", "npm:docx@9"]),
        (request(&["polars"], &[], false), &["polars", "simpy"]),
        (request(&[], &[], true), &["simpy"]),
    ] {
        let prepared = prepare(&server, request).await;
        assert_eq!(prepared.added_packages, expected);
        assert!(prepared.environment.is_none() && !prepared.problems.is_empty());
    }
}

#[tokio::test]
async fn hostile_packages_are_refused_all_at_once() {
    let server = TestServer::start("", &[("csv", "name: csv\ndescription: d")]).await;
    let mut skills = server.client.skills();
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let request = PrepareSkillRequest {
        name: "skills/csv".to_owned(),
        packages: texts(&[
            "..",
            "-e .",
            "--index-url",
            "simpy",
            "git+https://x.example/x",
        ]),
        npm_packages: texts(&["..", "docx", "--registry=x", "x@file:../y"]),
        forget_packages: true,
        ..PrepareSkillRequest::default()
    };
    let mut faults = async |request| -> Vec<String> {
        let refused = skills.prepare_skill(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        let details = refused.get_error_details();
        let violations = &details.bad_request().expect("violations").field_violations;
        violations.iter().map(|fault| fault.field.clone()).collect()
    };
    assert_eq!(
        faults(request).await,
        [
            "packages[0]",
            "packages[1]",
            "packages[2]",
            "packages[4]",
            "npm_packages[0]",
            "npm_packages[2]",
            "npm_packages[3]",
            "forget_packages",
        ]
    );
    let many = PrepareSkillRequest {
        name: "skills/csv".to_owned(),
        packages: (0..101).map(|number| format!("p{number}")).collect(),
        npm_packages: (0..101).map(|number| format!("p{number}")).collect(),
        ..PrepareSkillRequest::default()
    };
    assert_eq!(faults(many).await, ["packages", "npm_packages"]);
    // Nothing was remembered.
    let plain = PrepareSkillRequest {
        name: "csv".to_owned(),
        ..PrepareSkillRequest::default()
    };
    assert_eq!(prepare(&server, plain).await, PreparedSkill::default());
}
