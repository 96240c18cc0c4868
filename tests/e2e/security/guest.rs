//! PID 1 of a workspace against the commands that it runs: they cannot end it, read it or take its place.

use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::Client;
use skilld_proto::v1::{AttachExecRequest, ExecState, ExitReason, RunExecRequest, WorkspaceState};
use skilld_tests::exec::{self, WATCHED, stdout};
use skilld_tests::{Daemon, DefaultDaemon, docker, wait};

use crate::security::{DEADLINE, python, sh};

#[tokio::test]
async fn a_command_cannot_end_or_stop_the_guest() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let container = daemon.container(&workspace)?;
    let pid = docker::pid(&container).await?;
    for signal in [
        "KILL", "STOP", "TERM", "HUP", "INT", "QUIT", "SEGV", "ABRT", "USR1", "TSTP", "RTMIN",
    ] {
        let said = sh(client, &workspace, &format!("kill -{signal} 1; echo $?")).await?;
        assert_eq!(
            said, "0\n",
            "the kernel drops {signal} for PID 1, it does not refuse it"
        );
        assert_eq!(
            sh(client, &workspace, "echo alive").await?,
            "alive\n",
            "after {signal}"
        );
    }
    // Everything of its uid but PID 1 and itself: its own supervisor, and those that wait for the next commands.
    for round in 0..3 {
        let script = format!("{WATCHED}; kill -KILL -1; echo last");
        let all = exec::run(client, &workspace, exec::shell(&script)).await;
        assert_eq!(all.context("kill -1")?.text(), "last\n");
        assert_eq!(
            sh(client, &workspace, "echo alive").await?,
            "alive\n",
            "round {round}"
        );
    }
    // Without a supervisor, too, a time limit ends the whole tree.
    let script = format!("{WATCHED}; kill -KILL -1; setsid sleep 301 & trap '' TERM; sleep 301");
    let mut spec = exec::shell(&script);
    spec.timeout = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let outcome = exec::run(client, &workspace, spec).await?;
    assert_eq!(
        outcome.result.reason(),
        ExitReason::Timeout,
        "{:?}",
        outcome.result
    );
    let left =
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 30[1]' || true";
    assert_eq!(sh(client, &workspace, left).await?, "0\n");
    assert_eq!(docker::pid(&container).await?, pid);
    daemon.stop().await
}

const SEARCH: &str = r#"
import os, stat, sys
nonce = sys.stdin.read().strip()[::-1]
needles = [nonce.encode(), nonce.upper().encode(), bytes.fromhex(nonce)]
# One's own memory holds what one looks for.
own = {"mem", "pagemap", "clear_refs"}
looked, refused, found = 0, 0, []
for root in ("/proc", "/run", "/workspace", "/tmp", "/dev", "/etc", "/var", "/home", "/root", "/opt", "/mnt"):
    for folder, folders, files in os.walk(root):
        if folder.startswith("/proc/sys"):
            folders.clear()
        for name in files:
            path = os.path.join(folder, name)
            if root == "/proc" and name in own:
                continue
            try:
                file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                refused += 1
                continue
            try:
                if root in ("/proc", "/run") or stat.S_ISREG(os.fstat(file).st_mode):
                    data = b""
                    while len(data) < 32 << 20 and (more := os.read(file, 1 << 20)):
                        data += more
                    looked += 1
                    if any(needle in data for needle in needles):
                        found.append(path)
            except OSError:
                refused += 1
            finally:
                os.close(file)
if any(nonce in value for value in os.environ.values()):
    found.append("the environment")
for path in ("environ", "mem", "maps", "auxv", "cwd", "exe", "root", "fd", "fdinfo", "task/1/environ"):
    try:
        path = "/proc/1/" + path
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        found.append(path + " can be read")
    except OSError:
        pass
print(looked > 300 and refused > 0, found)
"#;

#[tokio::test]
async fn the_nonce_is_nowhere_that_a_command_can_read() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    client.stage_skills(&workspace, &["text-stats"]).await?;
    let record = daemon.record(&workspace)?;
    let nonce = record["nonce"].as_str().context("nonce")?;
    assert!(nonce.len() >= 32, "{nonce}");
    // Backwards, so that the search does not find its own input.
    let backwards: String = nonce.chars().rev().collect();
    let outcome = exec::run(client, &workspace, python(SEARCH, &[], &backwards)).await?;
    assert_eq!(outcome.text(), "True []\n", "{}", outcome.error_text());
    // The daemon does not log it either, and its own files are nobody else's.
    assert!(!daemon.log().contains(nonce), "the nonce is in the log");
    daemon.stop().await
}

const IMPOSTOR: &str = r#"
import os, socket, sys, time
connected, got = 0, 0
children = [os.fork() for _ in range(2)]
os.write(1, b"ready\n")
while not os.path.exists("/workspace/work/stop"):
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(2)
    try:
        peer.connect("/run/skilld/guest.sock")
        connected += 1
        got += len(peer.recv(4096))
    except OSError:
        time.sleep(0.001)
    peer.close()
os.write(1, f"{connected > 0} {got}\n".encode())
"#;

/// Log line of the daemon for a connection that is not the guest's.
const REFUSAL: &str = "rejected a peer that is not the guest";

/// Stops a process with SIGSTOP from the host, and waits until it has stopped.
async fn stop(pid: Pid) -> Result<()> {
    kill(pid, Signal::SIGSTOP)?;
    wait::until("the guest stands", DEADLINE, async || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat.contains(") T ").then_some(()))
    })
    .await
}

/// Starts the daemon again while the guest is stopped, and resumes the guest once the daemon has refused a stranger.
async fn restart_before_guest(daemon: &mut Daemon, guest: Pid) -> Result<()> {
    stop(guest).await?;
    let log = daemon.state_dir().with_file_name("log");
    let is_refused = async || {
        let text = std::fs::read_to_string(&log)?;
        Ok(text.contains(REFUSAL).then_some(()))
    };
    let release = async {
        let refused = wait::until("a stranger is refused", DEADLINE, is_refused).await;
        kill(guest, Signal::SIGCONT)?;
        refused
    };
    let (restarted, refused) = tokio::join!(daemon.restart(), release);
    restarted?;
    refused
}

#[tokio::test]
async fn a_stranger_on_the_guest_socket_is_refused() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    let container_pid = docker::pid(&daemon.container(&workspace)?).await?;
    let guest = Pid::from_raw(container_pid.context("the guest's pid")?);
    let at_peace = "test ! -e /run/skilld/guest.sock && echo gone";
    assert_eq!(sh(&daemon.client, &workspace, at_peace).await?, "gone\n");
    let request = RunExecRequest {
        parent: workspace.clone(),
        exec_id: "impostor".to_owned(),
        spec: Some(python(IMPOSTOR, &[], "")),
        ..RunExecRequest::default()
    };
    let mut events = daemon.client.run_exec(request).await?;
    let mut said = String::new();
    while said.matches("ready").count() < 4 {
        let event = events.next().await?.context("the impostor ended")?;
        said.push_str(&String::from_utf8_lossy(stdout(&event)));
    }
    daemon.crash().await?;
    let started = Instant::now();
    restart_before_guest(&mut daemon, guest).await?;

    let client = &daemon.client;
    let found = client.get_workspace(&workspace).await?;
    assert_eq!(found.state(), WorkspaceState::Ready, "{:?}", found.failure);
    assert_eq!(
        sh(client, &workspace, "touch work/stop; echo mine").await?,
        "mine\n"
    );
    let name = format!("{workspace}/execs/impostor");
    let ended = wait::until("the impostor has ended", DEADLINE, async || {
        Ok(Some(client.get_exec(&name).await?).filter(|exec| exec.state() == ExecState::Closed))
    })
    .await?;
    let bytes = ended.total.unwrap_or_default().stdout_bytes;
    let said = read_all(client, &name, bytes).await?.replace("ready\n", "");
    // At least one of the four came first, and none was told a byte.
    assert!(said.contains("True 0\n"), "{said}");
    assert!(said.lines().all(|line| line.ends_with(" 0")), "{said}");
    let refusals = u64::try_from(daemon.log().matches(REFUSAL).count())?;
    // Each place in the code logs 200 lines at most within 10 s, however many attempts there are.
    let most = 200 * (started.elapsed().as_secs() / 10 + 2);
    assert!(
        (1..=most).contains(&refusals),
        "{refusals} lines of a command's making, not at most {most}"
    );
    daemon.stop().await
}

/// Returns the stdout of an ended exec.
async fn read_all(client: &Client, name: &str, bytes: i64) -> Result<String> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    let mut text = Vec::new();
    while let Some(event) = events.next().await? {
        text.extend_from_slice(stdout(&event));
    }
    assert_eq!(i64::try_from(text.len())?, bytes);
    Ok(String::from_utf8(text)?)
}
