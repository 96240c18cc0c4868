//! Roots: nested folders, unreadable ones, links that lead out of them, and URLs.

use super::*;

#[tokio::test]
async fn nested_folders_are_found_and_the_first_root_wins() {
    let fixture = Fixture::with(|config| {
        let second = Path::new(config.roots[0].text()).with_file_name("second");
        fs::create_dir_all(second.join("deep")).expect("mkdir");
        let front = "---\nname: deep\ndescription: second\n---\n";
        fs::write(second.join("deep/SKILL.md"), front).expect("write");
        config.roots.push(SkillRoot::dir(&second));
    });
    for (path, name) in [
        ("a/b/c/deep", "deep"),
        ("a/b/c/d/e/f/g/lost", "lost"),
        (".git/x", "x"),
        ("node_modules/y", "y"),
    ] {
        let front = format!("---\nname: {name}\ndescription: first\n---\n");
        fixture.write(&format!("{path}/SKILL.md"), front);
    }
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    let listed: Vec<(&str, SkillState, &str)> = listing
        .skills
        .iter()
        .map(|skill| {
            let description = skill.front_matter.description.as_str();
            (skill.name.as_str(), skill.state, description)
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("deep", SkillState::Loaded, "first"),
            ("deep", SkillState::Shadowed, "second")
        ]
    );
    let codes: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, ["root.too_deep"]);
}

#[tokio::test]
async fn a_root_that_cannot_be_read_is_a_problem_until_it_can() {
    let fixture = Fixture::with(|config| {
        let later = Path::new(config.roots[0].text()).with_file_name("later");
        config.roots.push(SkillRoot::dir(&later));
    });
    fixture.skill("csv", "1");
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    assert_eq!(listing.skills.len(), 1);
    assert_eq!(listing.problems[0].code, "root.unreadable");
    assert!(
        listing.problems[0].subject.ends_with("later"),
        "{:?}",
        listing.problems
    );

    let later = fixture.path("later/new");
    fs::create_dir_all(&later).expect("mkdir");
    fs::write(
        later.join("SKILL.md"),
        "---\nname: new\ndescription: d\n---\nBody\n",
    )
    .expect("write");
    let new = SkillRef::parse("name", "new").expect("valid");
    fixture.skills.rescan().await.expect("scanned");
    let (new, body) = fixture
        .skills
        .get(new, ValidationProfile::Lenient)
        .await
        .expect("there");
    assert_eq!((new.state, body.as_str()), (SkillState::Loaded, "Body\n"));
    assert!(
        fixture
            .skills
            .list()
            .await
            .expect("list")
            .problems
            .is_empty()
    );
}

#[tokio::test]
async fn links_in_a_root_are_followed_only_into_roots() {
    let fixture = Fixture::new();
    fixture.skill("real", "1");
    fs::create_dir_all(fixture.path("elsewhere")).expect("mkdir");
    symlink(fixture.path("elsewhere"), fixture.path("root/out")).expect("symlink");
    symlink(fixture.path("root"), fixture.path("root/circle")).expect("symlink");
    symlink("real", fixture.path("root/again")).expect("symlink");
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    assert_eq!(listing.skills.len(), 1, "{:?}", listing.skills);
    let codes: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, ["root.link_outside"]);
}

/// Returns a listener that never answers, and the URL of an archive that it seems to have.
fn silent_listener() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    (listener, format!("http://{address}/skills.zip"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_answers_before_its_deadline_with_pending_roots() {
    let (_listener, url) = silent_listener();
    let settings = format!(
        "skills.roots = [{url:?}]\nskills.allow_private_addresses = true\nfetch.timeout = \"1h\"\n"
    );
    let server = TestServer::start(&settings, &[]).await;
    let mut answered = None;
    // A pause of the machine may last until the deadline has passed.
    for seconds in [4, 20, 80] {
        let mut request = tonic::Request::new(pb::RefreshSkillsRequest {});
        request.set_timeout(Duration::from_secs(seconds));
        match server.client.skills().refresh_skills(request).await {
            Ok(answer) => {
                answered = Some(answer.into_inner());
                break;
            }
            // The client or the server noticed that the deadline has passed.
            Err(status) => {
                let passed = [tonic::Code::Cancelled, tonic::Code::DeadlineExceeded];
                assert!(passed.contains(&status.code()), "{status}");
            }
        }
    }
    let problems = answered.expect("answered before a deadline").problems;
    let pending: Vec<(&str, &str)> = problems
        .iter()
        .map(|problem| (problem.code.as_str(), problem.subject.as_str()))
        .collect();
    assert_eq!(pending, [("root.pending", url.as_str())]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_that_inputs_may_have_are_refused_for_roots() {
    let (listener, url) = silent_listener();
    let by_name = url.replace("127.0.0.1", "localhost");
    let settings = format!(
        "skills.roots = [{url:?}, {by_name:?}]\nfiles.input_urls = true\nfiles.input_private_addresses = true\n"
    );
    let server = TestServer::start(&settings, &[]).await;
    let refused = wait_until("both roots are refused", async || {
        let request = pb::ListSkillsRequest::default();
        let listed = server.client.skills().list_skills(request).await;
        let problems = listed.expect("listed").into_inner().problems;
        let refused: Vec<pb::Problem> = problems
            .into_iter()
            .filter(|problem| problem.code == "root.refused")
            .collect();
        (refused.len() == 2).then_some(refused)
    })
    .await;
    for problem in &refused {
        let message = &problem.message;
        assert!(
            message.contains("allowed in the configuration"),
            "{message}"
        );
    }
    listener.set_nonblocking(true).expect("set");
    let connection = listener.accept();
    let kind = connection.expect_err("no connection was made").kind();
    assert_eq!(kind, std::io::ErrorKind::WouldBlock);
    assert!(server.stop().await);
}
