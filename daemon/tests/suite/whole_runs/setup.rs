//! Setup of a workspace by RunExec, archives among its inputs, and where commands start.

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn command(shell: &str) -> pb::ExecSpec {
    pb::ExecSpec {
        shell: shell.to_owned(),
        ..pb::ExecSpec::default()
    }
}

fn setup(commands: &[&str]) -> pb::WorkspaceSetup {
    pb::WorkspaceSetup {
        inputs: Vec::new(),
        commands: commands.iter().map(|shell| command(shell)).collect(),
    }
}

/// Runs `cat work/log` in a workspace with a setup. Returns what it printed, and whether the setup was run.
async fn log_after(server: &TestServer, parent: &str, setup: pb::WorkspaceSetup) -> (String, bool) {
    let asked = pb::RunExecRequest {
        setup: Some(setup),
        ..plain_request(parent, "", "cat work/log")
    };
    let seen = run(server, asked).await.expect("ran");
    let text = String::from_utf8(seen.output).expect("text");
    (text, seen.staged.setup_ran)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_runs_once_and_again_when_it_changes() {
    let server = TestServer::start_with_commands("", &SKILLS).await;
    let workspace = server.workspace().await;
    let mut first = setup(&["cat $INPUTS_DIR/word >> work/log", "echo b >> work/log"]);
    first.inputs = vec![input("word", b"a\n")];
    let ran = |text: &str| (text.to_owned(), true);
    let log = log_after(&server, &workspace, first.clone()).await;
    assert_eq!(log, ran("a\nb\n"));
    let log = log_after(&server, &workspace, first.clone()).await;
    assert_eq!(log, ("a\nb\n".to_owned(), false), "the same setup");
    let other = setup(&["echo c >> work/log"]);
    let log = log_after(&server, &workspace, other).await;
    assert_eq!(log, ran("a\nb\nc\n"));
    let log = log_after(&server, &workspace, first).await;
    assert_eq!(log, ran("a\nb\nc\na\nb\n"), "it differs from the last one");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_is_remembered_after_a_restart() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let once = setup(&["echo x >> work/log"]);
    log_after(&server, &workspace, once.clone()).await;
    let server = server.restart(|_| {}).await;
    let log = log_after(&server, &workspace, once).await;
    assert_eq!(log, ("x\n".to_owned(), false));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_setup_starts_nothing_and_is_tried_again() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let failing = "[ -e work/ready ] || { echo not ready >&2; exit 3; }";
    let asked = pb::RunExecRequest {
        setup: Some(setup(&[failing])),
        ..plain_request(&workspace, "job", "echo ran")
    };
    let refused = run(&server, asked.clone()).await.expect_err("it failed");
    assert_eq!(reason(&refused), ErrorReason::SetupFailed.error_info_name());
    assert!(refused.message().ends_with("\"not ready\""), "{refused}");
    let details = refused.get_error_details();
    let metadata = &details.error_info().expect("ErrorInfo").metadata;
    assert_eq!(metadata["exit_code"], "3");
    assert!(metadata["exec"].starts_with(&format!("{workspace}/execs/setup-")));
    let touch = plain_request(&workspace, "", "touch work/ready");
    run(&server, touch).await.expect("ran");
    let seen = run(&server, asked).await.expect("ran");
    assert_eq!(String::from_utf8_lossy(&seen.output), "ran\n");
    assert!(seen.staged.setup_ran);
    // A workspace that was claimed for the call goes with it.
    let claimed = pb::RunExecRequest {
        setup: Some(setup(&["exit 1"])),
        ..request("other", "true")
    };
    run(&server, claimed).await.expect_err("it failed");
    wait_until("only the given workspace is left", async || {
        (workspaces(&server).await == [workspace.as_str()]).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_setup_are_named_and_cost_nothing() {
    let server = TestServer::start_with_commands("", &[]).await;
    let many = pb::WorkspaceSetup {
        inputs: Vec::new(),
        commands: vec![command("true"); 17],
    };
    let mut followed = setup(&["cat"]);
    followed.commands[0].open_stdin = true;
    let unnamed = pb::WorkspaceSetup {
        inputs: vec![pb::InputSpec::default()],
        commands: Vec::new(),
    };
    for (setup, field) in [
        (setup(&["true", ""]), "setup.commands[1].argv"),
        (followed, "setup.commands[0].open_stdin"),
        (many, "setup.commands"),
        (unnamed, "setup.inputs[0].source"),
    ] {
        let asked = pb::RunExecRequest {
            setup: Some(setup),
            ..request("job", "true")
        };
        let refused = run(&server, asked).await.expect_err(field);
        assert_eq!(violated_fields(&refused), [field]);
    }
    assert_eq!(workspaces(&server).await, [""; 0], "nothing was claimed");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setup_goes_on_without_its_client_and_is_not_run_twice() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let slow = setup(&["echo a >> work/log; until [ -e work/go ]; do sleep 0.02; done"]);
    let asked = pb::RunExecRequest {
        setup: Some(slow.clone()),
        ..plain_request(&workspace, "job", "true")
    };
    let execs = async || {
        let list = pb::ListExecsRequest {
            parent: workspace.clone(),
            ..pb::ListExecsRequest::default()
        };
        let listed = server.client.list_execs(list).await.expect("listed");
        listed.execs.len()
    };
    let runs = wait_until("the setup runs", async || {
        (execs().await == 1).then_some(())
    });
    let mut client = server.client.execs();
    tokio::select! {
        answer = client.run_exec(asked) => panic!("answered before the setup ended: {answer:?}"),
        // The client leaves.
        () = runs => {}
    }
    let touch = plain_request(&workspace, "", "touch work/go");
    run(&server, touch).await.expect("ran");
    let log = log_after(&server, &workspace, slow).await;
    assert_eq!(log, ("a\n".to_owned(), false), "it was run once");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_setup_counts_for_no_other_one() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let first = setup(&["echo a >> work/log"]);
    log_after(&server, &workspace, first.clone()).await;
    let failing = pb::RunExecRequest {
        setup: Some(setup(&["echo b >> work/log", "exit 1"])),
        ..plain_request(&workspace, "", "true")
    };
    run(&server, failing).await.expect_err("it fails");
    let log = log_after(&server, &workspace, first).await;
    assert_eq!(log, ("a\nb\na\n".to_owned(), true), "the first one again");
    assert!(server.stop().await);
}

fn tar(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        // Not `set_path`, which refuses hostile ones.
        let name = header.as_old_mut().name.iter_mut();
        name.zip(path.bytes()).for_each(|(to, byte)| *to = byte);
        header.set_cksum();
        builder.append(&header, text.as_bytes()).expect("appended");
    }
    builder.into_inner().expect("an archive")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).expect("compressed");
    encoder.finish().expect("compressed")
}

fn archive(path: &str, bytes: Vec<u8>) -> pb::InputSpec {
    pb::InputSpec {
        content: Some(Content::Archive(bytes.into())),
        path: path.to_owned(),
        ..pb::InputSpec::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_among_the_inputs_are_unpacked() {
    let server = TestServer::start_with_commands("", &[]).await;
    let plain = tar(&[("a/one", "1\n"), ("two", "2\n")]);
    let packed = gzip(&tar(&[("three", "3\n")]));
    let asked = pb::RunExecRequest {
        inputs: vec![
            archive("work/site/", plain),
            input("four", b"4\n"),
            archive("./", packed.clone()),
            archive("work/inputs/", packed),
        ],
        ..request(
            "",
            "cat work/site/a/one work/site/two three $INPUTS_DIR/four $INPUTS_DIR/three",
        )
    };
    let seen = run(&server, asked).await.expect("ran");
    assert_eq!(String::from_utf8_lossy(&seen.output), "1\n2\n3\n4\n3\n");
    let inputs = &seen.staged.inputs;
    let counts = inputs
        .iter()
        .map(|input| (input.file_count, input.size_bytes));
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 4), (1, 2), (1, 2), (1, 2)]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_archive_is_refused_and_leaves_nothing() {
    let server = TestServer::start_with_commands("", &[]).await;
    let run_with = async |input: pb::InputSpec| {
        let asked = pb::RunExecRequest {
            inputs: vec![input],
            ..request("job", "true")
        };
        run(&server, asked).await.expect_err("refused")
    };
    for bytes in [tar(&[("../up", "x")]), gzip(b"no tar"), b"no tar".to_vec()] {
        let refused = run_with(archive("work/x/", bytes)).await;
        let expected = ErrorReason::ArchiveInvalid.error_info_name();
        assert_eq!(reason(&refused), expected, "{refused}");
        assert!(refused.message().contains("inputs[0]: "), "{refused}");
        wait_until_none_is_left(&server).await;
    }
    let large = vec![0; (1 << 20) + 1];
    let refused = run_with(archive("work/x/", large)).await;
    assert_eq!(violated_fields(&refused), ["inputs[0].archive"]);
    let refused = run_with(archive("", tar(&[]))).await;
    assert_eq!(violated_fields(&refused), ["inputs[0].path"]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_in_the_workspace_itself() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let list = plain_request(&workspace, "", "ls -d out work");
    let seen = run(&server, list).await.expect("ran");
    assert_eq!(String::from_utf8_lossy(&seen.output), "out\nwork\n");
    assert!(server.stop().await);
}
