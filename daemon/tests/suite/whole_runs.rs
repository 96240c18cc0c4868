//! Tests of RunExec that claims a workspace, stages and collects, with a client, a whole server and real guests.

use bytes::Bytes;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::input_spec::Content;
use skilld_proto::v1::output_event::Content as Output;
use skilld_proto::v1::{self as pb, ErrorReason};
use tonic::Status;
use tonic_types::StatusExt;

mod setup;

use crate::server::{TestServer, violated_fields, wait_until, within};

const SKILLS: [(&str, &str); 1] = [("csv", "name: csv\ndescription: Reads tables.")];

/// Events of one stream, as far as the tests look at them.
#[derive(Debug, Default)]
struct SeenRun {
    /// First letters of the kinds of events, in their order.
    order: String,
    workspace: String,
    staged: pb::StagedEvent,
    output: Vec<u8>,
    result: pb::ExecResult,
    /// Paths and bytes of the files.
    files: Vec<(String, Vec<u8>)>,
    summary: pb::SummaryEvent,
}

impl SeenRun {
    fn take(&mut self, event: pb::ExecEvent) {
        let (letter, seq) = (letter(&event), event.seq);
        self.order.push(letter);
        assert_eq!("Wsfde+".contains(letter), seq == 0, "{event:?}");
        match event.event.expect("an event") {
            Event::Workspace(workspace) => self.workspace = workspace.name,
            Event::Staged(staged) => self.staged = staged,
            Event::Output(output) => match output.content.expect("content") {
                Output::Data(data) => self.output.extend_from_slice(&data),
                Output::Text(text) => self.output.extend_from_slice(text.as_bytes()),
            },
            Event::Exited(exited) => self.result = exited.result.expect("a result"),
            Event::File(file) => self.files.push((file.path, Vec::new())),
            Event::FileData(data) => {
                let last = self.files.last_mut().expect("a file");
                last.1.extend_from_slice(&data);
            }
            Event::Summary(summary) => self.summary = summary,
            Event::Started(_)
            | Event::Gap(_)
            | Event::Heartbeat(_)
            | Event::Closed(_)
            | Event::FileEnd(_) => {}
        }
    }
}

/// Returns a letter for the kind of an event; small ones for what belongs to staging and collecting.
fn letter(event: &pb::ExecEvent) -> char {
    match event.event.as_ref().expect("an event") {
        Event::Workspace(_) => 'W',
        Event::Staged(_) => 's',
        Event::Started(_) => 'S',
        Event::Output(_) => 'O',
        Event::Gap(_) => 'G',
        Event::Heartbeat(_) => 'H',
        Event::Exited(_) => 'E',
        Event::Closed(_) => 'C',
        Event::File(_) => 'f',
        Event::FileData(_) => 'd',
        Event::FileEnd(_) => 'e',
        Event::Summary(_) => '+',
    }
}

/// Returns a request that runs `shell` in a workspace of its own and collects `out/`.
fn request(exec_id: &str, shell: &str) -> pb::RunExecRequest {
    pb::RunExecRequest {
        exec_id: exec_id.to_owned(),
        spec: Some(pb::ExecSpec {
            shell: shell.to_owned(),
            ..pb::ExecSpec::default()
        }),
        workspace_template: Some(pb::WorkspaceTemplate::default()),
        outputs: Some(pb::RunOutputs {
            spec: Some(pb::CollectSpec {
                globs: vec!["out/**".to_owned()],
                ..pb::CollectSpec::default()
            }),
            ..pb::RunOutputs::default()
        }),
        ..pb::RunExecRequest::default()
    }
}

/// Returns a request that only runs `shell` in a workspace.
fn plain_request(workspace: &str, exec_id: &str, shell: &str) -> pb::RunExecRequest {
    pb::RunExecRequest {
        parent: workspace.to_owned(),
        workspace_template: None,
        outputs: None,
        ..request(exec_id, shell)
    }
}

fn input(name: &str, bytes: &'static [u8]) -> pb::InputSpec {
    pb::InputSpec {
        content: Some(Content::Data(Bytes::from_static(bytes))),
        name: name.to_owned(),
        ..pb::InputSpec::default()
    }
}

/// Reads a stream to its end.
async fn run(server: &TestServer, request: pb::RunExecRequest) -> Result<SeenRun, Status> {
    let answer = within(server.client.execs().run_exec(request)).await?;
    let mut stream = answer.into_inner();
    let mut seen = SeenRun::default();
    while let Some(event) = within(stream.message()).await? {
        seen.take(event);
    }
    Ok(seen)
}

#[track_caller]
fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details.error_info().expect("ErrorInfo").reason.clone()
}

async fn workspaces(server: &TestServer) -> Vec<String> {
    let listed = server
        .client
        .list_workspaces(pb::ListWorkspacesRequest::default());
    let listed = listed.await.expect("listed").workspaces.into_iter();
    listed.map(|workspace| workspace.name).collect()
}

async fn wait_until_none_is_left(server: &TestServer) {
    wait_until("no workspace is left", async || {
        workspaces(server).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_stages_runs_collects_and_leaves_nothing() {
    let server = TestServer::start_with_commands("", &SKILLS).await;
    let shell = "tr a-z A-Z < $INPUTS_DIR/in.txt | tee $OUTPUT_DIR/out.txt; exit 3";
    let asked = pb::RunExecRequest {
        skills: vec!["skills/csv".to_owned()],
        inputs: vec![input("in.txt", b"hello\n")],
        ..request("", shell)
    };
    let seen = run(&server, asked).await.expect("ran");
    assert!(seen.order.starts_with("WsS"), "{}", seen.order);
    assert!(seen.order.ends_with("ECfde+"), "{}", seen.order);
    assert_eq!(seen.staged.skills[0].name, "skills/csv");
    assert_eq!(seen.staged.inputs[0].size_bytes, 6);
    assert_eq!(String::from_utf8_lossy(&seen.output), "HELLO\n");
    assert_eq!((seen.result.exit_code, seen.result.success), (3, false));
    assert_eq!(
        seen.files,
        [("out/out.txt".to_owned(), b"HELLO\n".to_vec())]
    );
    let summary = seen.summary.outputs.expect("a summary");
    assert_eq!((summary.matched_count, summary.returned_count), (1, 1));
    wait_until_none_is_left(&server).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_uses_a_given_workspace_and_leaves_it() {
    let server = TestServer::start_with_commands("", &[]).await;
    let workspace = server.workspace().await;
    let asked = pb::RunExecRequest {
        parent: workspace.clone(),
        workspace_template: None,
        inputs: vec![input("a", b"1")],
        ..request("job", "cp $INPUTS_DIR/a $OUTPUT_DIR/b")
    };
    let seen = run(&server, asked.clone()).await.expect("ran");
    assert_eq!(seen.order, "sSECfde+");
    assert_eq!(workspaces(&server).await, [workspace.as_str()]);
    // Repeated: nothing is staged again, and nothing runs twice.
    let seen = run(&server, asked.clone()).await.expect("attached");
    assert_eq!(seen.order, "SECfde+");
    let other = pb::RunExecRequest {
        inputs: vec![input("a", b"2")],
        ..asked
    };
    let refused = run(&server, other).await.expect_err("another request");
    assert_eq!(reason(&refused), ErrorReason::IdTaken.error_info_name());
    assert!(server.stop().await);
}

async fn stream_of(
    server: &TestServer,
    request: pb::RunExecRequest,
) -> tonic::Streaming<pb::ExecEvent> {
    let answer = within(server.client.execs().run_exec(request)).await;
    answer.expect("runs").into_inner()
}

/// Size of a file that is larger than what connections hold for a client that does not read, in bytes.
const LARGE_BYTES: usize = 32 << 20;

/// Returns a request whose command waits for the file `work/go`, and then writes a small file and a large one.
fn large_request() -> pb::RunExecRequest {
    let shell = format!(
        "echo $RANDOM$RANDOM; until [ -e $WORK_DIR/go ]; do sleep 0.02; done; printf a > $OUTPUT_DIR/a; \
         seq 100000000 | head -c {LARGE_BYTES} > $OUTPUT_DIR/b"
    );
    let mut asked = request("job", &shell);
    let outputs = asked.outputs.as_mut().expect("set");
    outputs.spec.as_mut().expect("set").max_file_bytes = 64 << 20;
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_run_continues_in_the_middle_of_a_file() {
    let server = TestServer::start_with_commands("", &[]).await;
    // The client leaves before the command has ended.
    let mut stream = stream_of(&server, large_request()).await;
    let first = within(stream.message()).await.expect("an event");
    assert_eq!(letter(&first.expect("an event")), 'W');
    drop(stream);
    let touch = plain_request("workspaces/job", "go", "touch $WORK_DIR/go");
    run(&server, touch).await.expect("ran");
    // A repeated request attaches. The client leaves in the middle of the second file.
    let mut stream = stream_of(&server, large_request()).await;
    let mut seen = SeenRun::default();
    while seen.files.len() < 2 || seen.files[1].1.len() < (1 << 20) {
        let event = within(stream.message()).await.expect("an event");
        seen.take(event.expect("not the end"));
    }
    drop(stream);
    let mut large = std::mem::take(&mut seen.files[1].1);
    let received = large.len();
    let continued = pb::RunExecRequest {
        position: Some(pb::RunPosition {
            offsets: Some(pb::StreamOffsets {
                stdout_bytes: i64::try_from(seen.output.len()).expect("short"),
                stderr_bytes: 0,
            }),
            file_count: 1,
            file_bytes: i64::try_from(received).expect("short"),
        }),
        ..large_request()
    };
    let rest = run(&server, continued.clone()).await.expect("continued");
    assert_eq!(rest.output, b"", "the same output");
    assert_eq!((rest.files.len(), rest.files[0].0.as_str()), (1, "out/b"));
    large.extend_from_slice(&rest.files[0].1);
    assert_eq!(large.len(), LARGE_BYTES);
    let lines = large.split(|byte| *byte == b'\n').enumerate();
    let is_next = |(index, line): &(usize, &[u8])| *line == (index + 1).to_string().as_bytes();
    let last = lines.clone().count() - 1;
    assert!(lines.take(last).all(|line| is_next(&line)), "in order");
    let summary = rest.summary.outputs.expect("a summary");
    assert_eq!(summary.returned_count, 2);
    // The last stream was read to its end.
    wait_until_none_is_left(&server).await;
    let gone = run(&server, continued).await.expect_err("over");
    assert_eq!(
        reason(&gone),
        ErrorReason::WorkspaceNotFound.error_info_name()
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_run_is_not_run_again() {
    let server = TestServer::start_with_commands("", &[]).await;
    let asked = request("job", "echo once");
    run(&server, asked.clone()).await.expect("ran");
    wait_until_none_is_left(&server).await;
    let refused = run(&server, asked).await.expect_err("over");
    assert_eq!(reason(&refused), ErrorReason::IdTaken.error_info_name());
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_workspace_stays_under_the_id_of_the_exec() {
    let server = TestServer::start_with_commands("", &[]).await;
    let asked = pb::RunExecRequest {
        workspace_template: Some(pb::WorkspaceTemplate {
            keep: true,
            labels: [("team".to_owned(), "a".to_owned())].into(),
            ..pb::WorkspaceTemplate::default()
        }),
        ..request("job", "true")
    };
    let seen = run(&server, asked).await.expect("ran");
    assert_eq!(seen.workspace, "workspaces/job");
    let kept = server.get_workspace("workspaces/job").await;
    assert_eq!(kept.labels["team"], "a");
    assert!(server.stop().await);
}

/// Returns requests with a fault, and the fields that are named for it.
fn faulty_requests() -> Vec<(pb::RunExecRequest, &'static str)> {
    let faulty = |change: fn(&mut pb::RunExecRequest)| {
        let mut asked = request("job", "true");
        change(&mut asked);
        asked
    };
    let glob = |asked: &mut pb::RunExecRequest| {
        let spec = asked
            .outputs
            .as_mut()
            .and_then(|outputs| outputs.spec.as_mut());
        spec.expect("set").globs = vec!["$NOPE/x".to_owned()];
    };
    let label = |asked: &mut pb::RunExecRequest| {
        let template = asked.workspace_template.as_mut().expect("set");
        template.labels.insert(String::new(), String::new());
    };
    let position = |asked: &mut pb::RunExecRequest| {
        asked.position = Some(pb::RunPosition {
            file_count: -1,
            ..pb::RunPosition::default()
        });
    };
    vec![
        (
            faulty(|asked| asked.parent = "workspaces/w".to_owned()),
            "parent",
        ),
        (faulty(glob), "outputs.spec.globs[0]"),
        (
            faulty(|asked| asked.outputs = Some(pb::RunOutputs::default())),
            "outputs.spec",
        ),
        (
            faulty(|asked| asked.skills = vec!["csv".to_owned()]),
            "skills[0]",
        ),
        (
            faulty(|asked| asked.writable_skills = true),
            "writable_skills",
        ),
        (
            faulty(|asked| asked.inputs = vec![pb::InputSpec::default()]),
            "inputs[0].source",
        ),
        (faulty(label), "workspace_template.labels[\"\"]"),
        (faulty(position), "position.file_count"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_each_part_cost_nothing() {
    let server = TestServer::start_with_commands("", &SKILLS).await;
    for (asked, field) in faulty_requests() {
        let refused = run(&server, asked).await.expect_err(field);
        assert_eq!(violated_fields(&refused), [field]);
    }
    assert_eq!(workspaces(&server).await, [""; 0], "nothing was claimed");
    // A failure after the claim leaves nothing, and the id free at once.
    let unknown = pb::RunExecRequest {
        skills: vec!["skills/none".to_owned()],
        ..request("job", "true")
    };
    let refused = run(&server, unknown).await.expect_err("no such skill");
    assert_eq!(
        reason(&refused),
        ErrorReason::SkillNotFound.error_info_name()
    );
    run(&server, request("job", "true")).await.expect("ran");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_collects_nothing_and_is_summarised() {
    let server = TestServer::start_with_commands("", &[]).await;
    let mut asked = request("", "");
    asked.spec = Some(pb::ExecSpec {
        argv: vec!["/nowhere".to_owned()],
        ..pb::ExecSpec::default()
    });
    let seen = run(&server, asked).await.expect("ran");
    assert_eq!(seen.order, "WSEC+");
    assert_eq!(seen.result.exit_code, 127);
    assert_eq!(seen.summary.outputs, None);
    wait_until_none_is_left(&server).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_without_their_bytes_are_listed() {
    let server = TestServer::start_with_commands("", &[]).await;
    let mut asked = pb::RunExecRequest {
        inputs: vec![input("old", b"old")],
        ..request("", "echo new > $WORK_DIR/new")
    };
    asked.outputs = Some(pb::RunOutputs {
        spec: Some(pb::CollectSpec {
            globs: vec!["work/**".to_owned()],
            ..pb::CollectSpec::default()
        }),
        changed_only: true,
        omit_data: true,
    });
    let seen = run(&server, asked).await.expect("ran");
    assert_eq!(seen.order, "WsSECfe+");
    assert_eq!(seen.files, [("work/new".to_owned(), Vec::new())]);
    assert_eq!(seen.summary.outputs.expect("a summary").sent_bytes, 4);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_after_a_restart_of_the_daemon() {
    let server = TestServer::start_with_commands("", &[]).await;
    let shell = "echo begin; until [ -e $WORK_DIR/go ]; do sleep 0.02; done; echo end > $OUTPUT_DIR/x; echo end";
    let mut events = server.client.run_resuming(request("job", shell));
    assert_eq!(events.name(), "workspaces/job/execs/job");
    let mut seen = SeenRun::default();
    while !seen.output.ends_with(b"begin\n") {
        let event = within(events.next()).await.expect("an event");
        seen.take(event.expect("not the end"));
    }
    let server = server.restart(|_| {}).await;
    let touch = plain_request("workspaces/job", "go", "touch $WORK_DIR/go");
    run(&server, touch).await.expect("ran");
    while let Some(event) = within(events.next()).await.expect("an event") {
        seen.take(event);
    }
    let order = seen.order.replace('H', "");
    assert_eq!(order, "WSOOECfde+");
    assert_eq!(seen.output, b"begin\nend\n");
    assert_eq!(seen.files, [("out/x".to_owned(), b"end\n".to_vec())]);
    assert!(events.times_resumed() > 0);
    wait_until_none_is_left(&server).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_requests_at_once_run_once() {
    let server = TestServer::start_with_commands("", &[]).await;
    let asked = request(
        "job",
        "sleep 0.2; echo $RANDOM$RANDOM$RANDOM; echo x >> $OUTPUT_DIR/x",
    );
    let runs = (0..4).map(|_| run(&server, asked.clone()));
    let mut outputs = Vec::new();
    for ended in futures::future::join_all(runs).await {
        match ended {
            Ok(seen) => outputs.push((seen.output, seen.files)),
            // It came when the others had ended.
            Err(status) => assert_eq!(reason(&status), ErrorReason::IdTaken.error_info_name()),
        }
    }
    outputs.dedup();
    assert_eq!(outputs.len(), 1, "{outputs:?}");
    assert_eq!(outputs[0].1, [("out/x".to_owned(), b"x\n".to_vec())]);
    wait_until_none_is_left(&server).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_deletes_only_what_it_claimed() {
    let server = TestServer::start_with_commands("", &[]).await;
    let mut kept = request("kept", "echo x");
    kept.workspace_template.as_mut().expect("set").keep = true;
    run(&server, kept.clone()).await.expect("ran");
    let deleted = server.client.delete_exec("workspaces/kept/execs/kept");
    deleted.await.expect("deleted");
    let refused = run(&server, kept.clone()).await.expect_err("forgotten");
    assert_eq!(reason(&refused), ErrorReason::IdTaken.error_info_name());
    // Another request made the workspace and the exec of these names.
    let create = pb::CreateWorkspaceRequest {
        workspace_id: "own".to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    server.client.create_workspace(create).await.expect("made");
    let own = plain_request("workspaces/own", "own", "true");
    run(&server, own).await.expect("ran");
    for position in [None, Some(pb::RunPosition::default())] {
        let foreign = pb::RunExecRequest {
            position,
            ..request("own", "true")
        };
        let refused = run(&server, foreign).await.expect_err("another request");
        assert_eq!(reason(&refused), ErrorReason::IdTaken.error_info_name());
    }
    assert_eq!(
        workspaces(&server).await,
        ["workspaces/kept", "workspaces/own"]
    );
    // A kept run is not run again either once its workspace has ended.
    let deleted = server.client.delete_workspace("workspaces/kept");
    deleted.await.expect("deleted");
    let refused = run(&server, kept).await.expect_err("over");
    assert_eq!(reason(&refused), ErrorReason::IdTaken.error_info_name());
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continued_run_keeps_its_format_and_saves_once() {
    let server = TestServer::start_with_commands("", &[]).await;
    let mut asked = request("job", "echo text; echo file > $OUTPUT_DIR/x");
    asked.set_format(pb::OutputFormat::Text);
    let template = asked.workspace_template.as_mut().expect("set");
    template.keep = true;
    let outputs = asked.outputs.as_mut().expect("set");
    outputs.changed_only = true;
    let spec = outputs.spec.as_mut().expect("set");
    spec.save_as_artifacts = Some(pb::SaveAsArtifacts::default());
    run(&server, asked.clone()).await.expect("ran");
    asked.position = Some(pb::RunPosition::default());
    let mut stream = stream_of(&server, asked).await;
    let (mut texts, mut saved) = (Vec::new(), Vec::new());
    while let Some(event) = within(stream.message()).await.expect("an event") {
        if let Some(Event::Output(output)) = event.event {
            texts.extend(output.content);
        } else if let Some(Event::FileEnd(end)) = event.event {
            saved.push(end.artifact);
        }
    }
    assert_eq!(texts, [Output::Text("text\n".to_owned())]);
    assert_eq!(saved, ["artifact://out/x@0"]);
    assert!(server.stop().await);
}
