//! The daemon is killed with SIGKILL and started again on the same state.

use anyhow::{Context, Result};
use skilld_client::{Client, MessageStream, RetryPolicy};
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{
    AttachExecRequest, ErrorReason, ExecEvent, ExecResult, ExecSpec, ExecTerminal,
    ListWorkspacesRequest, RunExecRequest, StreamOffsets, WorkspaceState, WriteStdinRequest,
};
use skilld_proto::{Outcome, count_from_int64, int64_from_count};
use skilld_tests::docker::{LABEL_INSTANCE, Sleeper};
use skilld_tests::exec::{self, stdout};
use skilld_tests::{Daemon, Options, docker};

use crate::crash::{COUNT, check_count, containers, read_bytes, run_shell, with_deadline};

#[tokio::test]
async fn a_killed_daemon_loses_nothing() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let workspace = exec::workspace(&client).await?.name;
    client.stage_skills(&workspace, &["text-stats"]).await?;
    run_shell(
        &client,
        &workspace,
        "echo kept > work/kept.txt; echo out > out/result",
    )
    .await?;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;

    let request = RunExecRequest {
        parent: workspace.clone(),
        exec_id: "count".to_owned(),
        spec: Some(exec::shell(COUNT)),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let mut output = read_bytes(&mut events, 800).await?;
    daemon.crash().await?;
    output.extend(until_broken(&mut events).await?);
    daemon.restart().await?;

    let client = daemon.client.clone();
    let listed = client
        .list_workspaces(ListWorkspacesRequest::default())
        .await?;
    assert_eq!(listed.workspaces.len(), 1);
    let found = listed.workspaces.first().context("listed")?;
    assert_eq!(
        (&found.name, found.state()),
        (&workspace, WorkspaceState::Ready)
    );
    let skills: Vec<&str> = found
        .skills
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    assert_eq!(skills, ["skills/text-stats"]);
    assert_eq!(
        containers(&daemon).await?,
        before,
        "containers were made anew"
    );
    let kept =
        "cat work/kept.txt out/result; test -r $SKILLS_DIR/text-stats/SKILL.md && echo staged";
    assert_eq!(
        run_shell(&client, &workspace, kept).await?,
        "kept\nout\nstaged\n"
    );

    run_shell(&client, &workspace, "touch stop").await?;
    let name = format!("{workspace}/execs/count");
    let reading = rest(&client, &name, i64::try_from(output.len())?);
    let (rest, total, result) = with_deadline("the exec ends", reading).await?;
    output.extend(rest);
    check_count(&output)?;
    assert_eq!(count_from_int64(total.stdout_bytes), output.len() as u64);
    assert_eq!(result.outcome(), Some(Outcome::ExitCode(7)));
    daemon.stop().await
}

/// Reads the output that was already sent, and checks that the stream then breaks instead of reporting an end.
async fn until_broken(events: &mut MessageStream<ExecEvent>) -> Result<Vec<u8>> {
    let mut output = Vec::new();
    let breaking = async {
        loop {
            match events.next().await {
                Ok(Some(event)) => {
                    assert!(!is_end(&event), "an end was made up: {event:?}");
                    output.extend_from_slice(stdout(&event));
                }
                Ok(None) => anyhow::bail!("the stream ended as if all had come"),
                Err(_) => return Ok(()),
            }
        }
    };
    with_deadline("the stream breaks off", breaking).await?;
    Ok(output)
}

/// Returns an exec's stdout from an offset on, the total that Closed reports, and the result.
async fn rest(
    client: &Client,
    name: &str,
    offset: i64,
) -> Result<(Vec<u8>, StreamOffsets, ExecResult)> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        offsets: Some(StreamOffsets {
            stdout_bytes: offset,
            stderr_bytes: 0,
        }),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    let (mut output, mut result, mut total) = (Vec::new(), None, None);
    while let Some(event) = events.next().await? {
        output.extend_from_slice(stdout(&event));
        match event.event {
            Some(Event::Exited(end)) => result = end.result,
            Some(Event::Closed(end)) => total = end.total,
            Some(Event::Gap(gap)) => anyhow::bail!("a gap: {gap:?}"),
            Some(
                Event::Started(_)
                | Event::Output(_)
                | Event::Heartbeat(_)
                | Event::Workspace(_)
                | Event::Staged(_)
                | Event::File(_)
                | Event::FileData(_)
                | Event::FileEnd(_)
                | Event::Summary(_),
            )
            | None => {}
        }
    }
    Ok((output, total.context("Closed")?, result.context("Exited")?))
}

fn is_end(event: &ExecEvent) -> bool {
    matches!(event.event, Some(Event::Exited(_) | Event::Closed(_)))
}

/// The client's resuming streams survive the crash without help.
#[tokio::test]
async fn a_resuming_stream_outlives_a_killed_daemon() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    let mut events = daemon.client.run_resuming(RunExecRequest {
        parent: workspace.clone(),
        spec: Some(exec::shell(COUNT)),
        ..RunExecRequest::default()
    });
    let (mut output, mut ends, mut crashed) = (Vec::new(), 0, false);
    while let Some(event) = events.next().await? {
        output.extend_from_slice(stdout(&event));
        ends += u32::from(is_end(&event));
        if output.len() > 800 && !crashed {
            crashed = true;
            daemon.crash().await?;
            daemon.restart().await?;
            run_shell(&daemon.client, &workspace, "touch stop").await?;
        }
    }
    check_count(&output)?;
    assert_eq!((crashed, ends), (true, 2));
    daemon.stop().await
}

/// Starts a `cat` with an open stdin, and returns its name once it prints what it reads, and nothing else: a terminal
/// does not show the typed keys.
async fn start_cat(
    client: &Client,
    workspace: &str,
    terminal: Option<ExecTerminal>,
) -> Result<String> {
    let hide_keys = if terminal.is_some() {
        "stty -echo; "
    } else {
        ""
    };
    let spec = ExecSpec {
        terminal,
        open_stdin: true,
        ..exec::shell(&format!("{hide_keys}echo ready; exec cat"))
    };
    let name = exec::start(client, workspace, "", spec).await?.name;
    let request = AttachExecRequest {
        name: name.clone(),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    read_bytes(&mut events, "ready\n".len()).await?;
    Ok(name)
}

/// Returns a write of the same line to each of two execs: at an offset of the first one's stdin, and with an id to the
/// second one. The client may repeat both.
fn line_writes(
    [by_offset, by_id]: &[String; 2],
    offset: usize,
    line: &str,
) -> [WriteStdinRequest; 2] {
    let write = |name: &str| WriteStdinRequest {
        name: name.to_owned(),
        data: line.to_owned().into(),
        ..WriteStdinRequest::default()
    };
    [
        WriteStdinRequest {
            offset: Some(int64_from_count(offset as u64)),
            ..write(by_offset)
        },
        WriteStdinRequest {
            request_id: line.trim_end().to_owned(),
            ..write(by_id)
        },
    ]
}

#[tokio::test]
async fn keys_typed_around_a_crash_are_written_once() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    let terminal = Some(ExecTerminal::default());
    let execs = [
        start_cat(&daemon.client, &workspace, terminal).await?,
        start_cat(&daemon.client, &workspace, None).await?,
    ];
    let mut typed = String::new();
    for round in 0..4 {
        let lines = ["before", "during", "after"].map(|word| format!("{word}-{round}\n"));
        let mut offset = typed.len();
        let [before, during, after] = lines.each_ref().map(|line| {
            let writes = line_writes(&execs, offset, line);
            offset += line.len();
            writes
        });
        for write in before.clone() {
            daemon.client.write_stdin(write).await?;
        }
        let impatient = daemon.client.clone().with_retry(RetryPolicy::none());
        let writing = async {
            for write in during.clone() {
                // The kill decides whether these keys arrive.
                drop(impatient.write_stdin(write).await);
            }
        };
        let crashing = async {
            // In each round the write has got further.
            for _ in 0..4 * round {
                tokio::task::yield_now().await;
            }
            daemon.crash().await
        };
        let ((), crashed) = tokio::join!(writing, crashing);
        crashed?;
        daemon.restart().await?;
        // The client repeats everything, as if no answer had reached it.
        for write in before.into_iter().chain(during).chain(after) {
            daemon.client.write_stdin(write).await?;
        }
        typed += &lines.concat();
    }
    for (name, newline) in execs.iter().zip(["\r\n", "\n"]) {
        let end = WriteStdinRequest {
            name: name.clone(),
            eof: true,
            ..WriteStdinRequest::default()
        };
        let ended = daemon.client.write_stdin(end).await?;
        assert_eq!(count_from_int64(ended.committed_offset), typed.len() as u64);
        let reading = exec::attach(&daemon.client, name, StreamOffsets::default());
        let outcome = with_deadline("cat ends", reading).await?;
        let expected = format!("ready\n{typed}").replace('\n', newline);
        assert_eq!(outcome.text(), expected);
        assert_eq!(outcome.exit_code(), Some(0));
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_restart_adopts_all_containers() -> Result<()> {
    let mut daemon = Daemon::start_with(Options::default().set("pools.default.warm", "2")).await?;
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(exec::workspace(&daemon.client).await?.name);
    }
    names.sort();
    daemon.warm(2).await?;
    let before = containers(&daemon).await?;
    assert_eq!(before.len(), 5);
    // What was adopted once is adopted again.
    for _ in 0..2 {
        daemon.crash().await?;
        daemon.restart().await?;
        // A daemon may serve before its pool has counted what was adopted.
        daemon.warm(2).await?;
        assert_eq!(
            containers(&daemon).await?,
            before,
            "containers were made anew"
        );
        let answer = daemon
            .client
            .list_workspaces(ListWorkspacesRequest::default())
            .await?;
        let listed: Vec<String> = answer.workspaces.into_iter().map(|one| one.name).collect();
        assert_eq!(listed, names);
        assert_eq!(daemon.client.get_pool("default").await?.warm, 2);
    }
    // What was adopted can be claimed, and what was claimed works.
    names.push(exec::workspace(&daemon.client).await?.name);
    for name in &names {
        assert_eq!(
            run_shell(&daemon.client, name, "echo here").await?,
            "here\n"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn foreign_containers_are_untouched() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    daemon.warm(1).await?;
    let own = containers(&daemon).await?;
    let instance = daemon.info.instance.clone();
    let stranger = Sleeper::start(&[]).await?;
    let other =
        Sleeper::start(&[(LABEL_INSTANCE, "0123456789ab"), ("io.skilld.slot", "0")]).await?;
    daemon.crash().await?;
    let orphan = Sleeper::start(&[(LABEL_INSTANCE, &instance), ("io.skilld.slot", "9")]).await?;
    daemon.restart().await?;
    assert!(!orphan.runs().await?, "the orphan is still there");
    assert!(stranger.runs().await? && other.runs().await?);
    assert_eq!(containers(&daemon).await?, own);
    assert_eq!(
        run_shell(&daemon.client, &workspace, "echo fine").await?,
        "fine\n"
    );
    // The end of this daemon, with everything that it has, is not theirs either.
    daemon.stop().await?;
    assert!(stranger.runs().await? && other.runs().await?);
    Ok(())
}

#[tokio::test]
async fn damaged_slots_are_cleaned_and_the_others_go_on() -> Result<()> {
    let mut daemon = Daemon::start_with(Options::default().set("pools.default.warm", "2")).await?;
    let good = exec::workspace(&daemon.client).await?.name;
    let bad = exec::workspace(&daemon.client).await?.name;
    daemon.warm(2).await?;
    let (lost, kept) = (daemon.container(&bad)?, daemon.container(&good)?);
    let slots = daemon.state_dir().join("slots");
    let number = daemon
        .record(&bad)?
        .get("number")
        .context("number")?
        .to_string();
    let damaged = slots.join(number);
    daemon.crash().await?;

    let record = std::fs::read_to_string(damaged.join("record.json"))?;
    let half = record.get(..record.len() / 2).context("half")?;
    std::fs::write(damaged.join("record.json"), half)?;
    for half_made in ["61", "62", "x"] {
        std::fs::create_dir_all(slots.join(half_made).join("run"))?;
        std::fs::write(slots.join(half_made).join("run/skilld-guest"), "half")?;
    }
    std::fs::write(slots.join("62/record.json"), "{}")?;
    daemon.restart().await?;

    for gone in ["61", "62", "x"] {
        assert!(!slots.join(gone).exists(), "{gone} is left");
    }
    assert_eq!(
        run_shell(&daemon.client, &good, "echo fine").await?,
        "fine\n"
    );
    let unknown = daemon.client.get_workspace(&bad).await;
    let reason = unknown.expect_err("it has no record").reason();
    assert_eq!(reason, Some(ErrorReason::WorkspaceNotFound));
    let now = containers(&daemon).await?;
    assert!(now.contains(&kept) && !now.contains(&lost), "{now:?}");
    assert!(docker::pid(&lost).await.is_err(), "its container is left");
    daemon.warm(2).await?;
    daemon.stop().await
}
