//! Two workspaces of one daemon: neither can see, stop or lock out the other.

use anyhow::{Context, Result};
use skilld_proto::v1::RunExecRequest;
use skilld_tests::exec::{self, shell_stdout, stdout};
use skilld_tests::{Daemon, Options, processes, wait};

use crate::security::{DEADLINE, python, sh};

/// Creates two workspaces.
async fn two(daemon: &Daemon) -> Result<[String; 2]> {
    let first = exec::workspace(&daemon.client).await?.name;
    Ok([first, exec::workspace(&daemon.client).await?.name])
}

#[tokio::test]
async fn a_workspace_sees_nothing_of_its_neighbour() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("pools.default.warm", "2")).await?;
    let client = &daemon.client;
    let [first, second] = two(&daemon).await?;
    let uids = [
        sh(client, &first, "id -u").await?,
        sh(client, &second, "id -u").await?,
    ];
    assert_ne!(uids[0], uids[1], "one uid for two workspaces");

    let spec = exec::shell("cd /tmp && cp /usr/bin/sleep marker-7f3a && exec ./marker-7f3a 3600");
    exec::start(client, &first, "", spec).await?;
    let place = "for d in $WORK_DIR $OUTPUT_DIR /workspace/runs /tmp /dev/shm; do echo x > $d/marker-7f3a-file; done";
    sh(client, &first, place).await?;
    let look = "(cat /proc/[0-9]*/cmdline /proc/[0-9]*/comm; find / -name '*marker-7f3*') 2>/dev/null | tr '\\0' '\\n' \
                | grep -c 'marker-7f3[a]' || true";
    wait::until("it sees its own traces", DEADLINE, async || {
        let own: u32 = sh(client, &first, look).await?.trim().parse()?;
        Ok((own >= 7).then_some(()))
    })
    .await?;
    assert_eq!(sh(client, &second, look).await?, "0\n");

    // Only its own uid runs anything that it can see.
    let owners = "stat -c %u /proc/[0-9]* 2>/dev/null | sort -u";
    let owners = sh(client, &second, owners).await?;
    let strangers: Vec<&str> = owners
        .lines()
        .filter(|owner| *owner != uids[1].trim() && *owner != "0")
        .collect();
    assert!(strangers.is_empty(), "processes of {strangers:?}");
    // System V and POSIX objects, abstract sockets and the rest of what namespaces keep apart.
    let make = "python3 -c 'import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(\"\\0marker\"); s.listen(); \
                print(open(\"/proc/net/unix\").read().count(\"@marker\"))'; ipcmk -Q > /dev/null; ipcs -q | grep -c ^0x";
    assert_eq!(sh(client, &first, make).await?, "1\n1\n");
    let look = "grep -c @marker /proc/net/unix; ipcs -q | grep -c ^0x; readlink /proc/self/ns/{ipc,net,pid,uts,mnt,cgroup}";
    let of = |workspace| async move {
        let text = shell_stdout(client, workspace, look).await?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Ok::<_, anyhow::Error>(lines)
    };
    let (one, other) = (of(&first).await?, of(&second).await?);
    assert_eq!(other[..2], ["0", "0"]);
    for (one, other) in one[2..].iter().zip(&other[2..]) {
        assert_ne!(one, other, "a namespace is shared");
    }
    daemon.stop().await
}

const LOCK: &str = "
import fcntl, sys
for path in sys.argv[1:]:
    try:
        file = open(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        globals().setdefault('held', []).append(file)
        print('locked')
    except OSError as error:
        print(error.strerror)
sys.stdout.flush()
sys.stdin.read() == 'hold' and __import__('time').sleep(3600)
";

/// A file that two workspaces read is a different inode for each of them.
#[tokio::test]
async fn a_lock_on_a_staged_file_stays_in_its_workspace() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("pools.default.warm", "2")).await?;
    let client = &daemon.client;
    let [first, second] = two(&daemon).await?;
    let paths = [
        "/workspace/skills/text-stats/SKILL.md",
        "/workspace/skills/text-stats/scripts/text-stats.sh",
        "/run/skilld/skilld-guest",
        "/etc/passwd",
        "/etc/group",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/workspace/skills/.metadata.json",
    ];
    for workspace in [&first, &second] {
        client.stage_skills(workspace, &["text-stats"]).await?;
    }
    let request = RunExecRequest {
        parent: first.clone(),
        exec_id: "holder".to_owned(),
        spec: Some(python(LOCK, &paths, "hold")),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let mut held = String::new();
    while held.matches("locked").count() < paths.len() {
        let event = events.next().await?.context("the holder ended")?;
        held += &String::from_utf8_lossy(stdout(&event));
    }
    let expected = "locked\n".repeat(paths.len());
    let inside = exec::run(client, &first, python(LOCK, &paths, ""))
        .await?
        .text();
    assert!(
        !inside.contains("locked"),
        "the locks are not held: {inside}"
    );
    let outside = exec::run(client, &second, python(LOCK, &paths, ""))
        .await?
        .text();
    assert_eq!(
        outside, expected,
        "a lock crossed from one workspace to the other"
    );
    daemon.stop().await
}

/// A fork bomb, full memory and a full disk affect their own workspace only: neighbour and daemon answer as before.
#[tokio::test]
async fn a_greedy_workspace_hurts_only_itself() -> Result<()> {
    let options = Options::default()
        .set("pools.default.warm", "2")
        .set("pools.default.pids", "128");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let [first, second] = two(&daemon).await?;
    let bomb = exec::shell("bomb() { bomb | bomb & }; bomb; sleep 3600");
    exec::start(client, &first, "bomb", bomb).await?;
    wait::until("the bomb has gone off", DEADLINE, async || {
        Ok((processes::list_processes(&daemon, &first)?.len() >= 100).then_some(()))
    })
    .await?;
    assert_eq!(sh(client, &second, "echo fine").await?, "fine\n");
    client.kill_exec(&format!("{first}/execs/bomb")).await?;
    assert_eq!(sh(client, &first, "echo back").await?, "back\n");
    let printed = sh(client, &first, "ls -d /proc/[0-9]* | wc -l").await?;
    let left: u32 = printed.trim().parse()?;
    assert!(left < 20, "{left} processes are left of the bomb");
    daemon.stop().await
}
