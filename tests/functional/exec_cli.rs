//! `skillctl` with execs that are started, fed, polled, left and found again.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use skilld_tests::exec::workspace;
use skilld_tests::{Daemon, binaries};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Exit code and output of a command.
struct CommandOutput {
    code: Option<i32>,
    stdout: Vec<u8>,
    said: String,
    took: Duration,
}

impl CommandOutput {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Runs `skillctl` with bytes on its stdin; it need not read them.
async fn fed(daemon: &Daemon, words: &[&str], data: &[u8]) -> Result<CommandOutput> {
    let started = Instant::now();
    let mut child = Command::new(binaries::binary("skillctl")?)
        .args(words)
        .env("SKILLD_ENDPOINT", daemon.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = child.stdin.take();
    let feeding = async move {
        if let Some(mut stdin) = stdin {
            drop(stdin.write_all(data).await);
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feeding);
    let output = output?;
    Ok(CommandOutput {
        code: output.status.code(),
        stdout: output.stdout,
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: started.elapsed(),
    })
}

async fn skillctl(daemon: &Daemon, words: &[&str]) -> Result<CommandOutput> {
    fed(daemon, words, &[]).await
}

/// Starts a daemon with a workspace `w`.
async fn start() -> Result<Daemon> {
    let daemon = Daemon::start().await?;
    let done = skillctl(&daemon, &["workspace", "create", "--id", "w"]).await?;
    ensure!(done.code == Some(0), "{}", done.said);
    Ok(daemon)
}

/// Returns bytes of which no two stretches are equal.
fn noise(len: usize) -> Vec<u8> {
    let mut x: u32 = 0x9e37_79b9;
    let bytes = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()
    });
    bytes.flatten().take(len).collect()
}

#[tokio::test]
async fn stdin_of_any_size_comes_out_unchanged() -> Result<()> {
    let daemon = start().await?;
    let data = noise(100 << 20);
    let done = fed(&daemon, &["exec", "w", "-i", "--", "sha256sum"], &data).await?;
    assert_eq!((done.code, done.said.as_str()), (Some(0), ""));
    let hash = Sha256::digest(&data);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(done.text(), format!("{hash}  -\n"));
    println!("100 MiB into stdin: {:?}", done.took);
    let done = fed(&daemon, &["exec", "w", "-i", "--", "cat"], &data).await?;
    assert_eq!(done.code, Some(0));
    assert!(done.stdout == data);
    println!("100 MiB into stdin and out of stdout: {:?}", done.took);
    daemon.stop().await
}

#[tokio::test]
async fn a_program_that_ignores_large_input_ends() -> Result<()> {
    let daemon = start().await?;
    let data = noise(20 << 20);
    for program in ["true", "head -c 10 >/dev/null", "exec <&-; sleep 0.2"] {
        let words = ["exec", "w", "-i", "--", "bash", "-c", program];
        let done = fed(&daemon, &words, &data).await?;
        assert_eq!((done.code, done.said.as_str()), (Some(0), ""), "{program}");
        assert!(done.took < Duration::from_secs(10), "{:?}", done.took);
    }
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_is_started_fed_polled_and_followed_from_the_shell() -> Result<()> {
    let daemon = start().await?;
    let words = ["exec", "w", "-di", "--id", "py", "--", "python3", "-iq"];
    let done = skillctl(&daemon, &words).await?;
    assert_eq!((done.code, done.text().as_str()), (Some(0), "w/py\n"));
    let done = fed(&daemon, &["stdin", "w/py"], b"print(6 * 7)\n").await?;
    assert_eq!(done.code, Some(0), "{}", done.said);
    let done = skillctl(&daemon, &["poll", "w/py", "--wait", "30s"]).await?;
    assert_eq!((done.code, done.text().as_str()), (Some(0), "42\n"));
    // The poll returns a prompt without a line end, and the offset to continue at.
    assert!(done.said.contains(">>> "), "{}", done.said);
    let from = done.said.split("--offset ").nth(1).unwrap_or_default();
    let from = from.trim();
    assert!(from.starts_with("3,"), "{}", done.said);

    let done = skillctl(&daemon, &["ps", "w"]).await?;
    let running = done.text();
    assert!(
        running.contains("w/py") && running.contains("open"),
        "{running}"
    );

    let done = fed(&daemon, &["stdin", "w/py", "--eof"], b"exit(3)\n").await?;
    assert_eq!(done.code, Some(0), "{}", done.said);
    let words = ["poll", "w/py", "--wait", "30s", "--offset", from];
    let done = skillctl(&daemon, &words).await?;
    assert_eq!(done.text(), "");
    assert!(done.said.contains("exit 3"), "{}", done.said);
    let done = skillctl(&daemon, &["attach", "w/py", "--offset", "1"]).await?;
    assert_eq!((done.code, done.text().as_str()), (Some(3), "2\n"));
    let done = fed(&daemon, &["stdin", "w/py"], b"late\n").await?;
    assert_eq!(done.code, Some(1));
    assert!(done.said.contains("EXEC_NOT_RUNNING"), "{}", done.said);
    daemon.stop().await
}

#[tokio::test]
async fn stdin_with_an_offset_is_sent_twice_and_written_once() -> Result<()> {
    let daemon = start().await?;
    let words = ["exec", "w", "-di", "--id", "s", "--", "cat"];
    assert_eq!(skillctl(&daemon, &words).await?.code, Some(0));
    let data = noise(1 << 20);
    let words = ["stdin", "w/s", "--offset", "0", "-o", "json"];
    for _ in 0..3 {
        let done = fed(&daemon, &words, &data).await?;
        assert_eq!(
            done.text(),
            "{\"committedOffset\":\"1048576\",\"unwrittenBytes\":\"0\",\"eofUnwritten\":false}\n",
            "{}",
            done.said
        );
    }
    let done = fed(&daemon, &["stdin", "w/s", "--offset", "2000000"], b"x").await?;
    assert_eq!(done.code, Some(1));
    assert!(done.said.contains("1048576"), "{}", done.said);
    let done = fed(&daemon, &["stdin", "w/s", "--eof"], b"end").await?;
    assert_eq!(done.code, Some(0), "{}", done.said);
    let done = skillctl(&daemon, &["attach", "w/s"]).await?;
    assert_eq!(done.code, Some(0));
    assert!(done.stdout == [&data[..], b"end"].concat());
    daemon.stop().await
}

#[tokio::test]
async fn a_kill_from_the_shell_has_its_grace() -> Result<()> {
    let daemon = start().await?;
    let name = "workspaces/w";
    for (id, grace, least, most) in [("a", "0", 0, 1900), ("b", "3s", 3000, 12_000)] {
        let deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done";
        let words = ["exec", "w", "-d", "--id", id, "--", "bash", "-c", deaf];
        assert_eq!(skillctl(&daemon, &words).await?.code, Some(0));
        let exec = format!("w/{id}");
        let done = skillctl(&daemon, &["poll", &exec, "--wait", "30s"]).await?;
        assert_eq!(done.text(), "up\n");
        let done = skillctl(&daemon, &["kill", &exec, "--grace", grace]).await?;
        assert_eq!(done.text(), format!("{exec} killed by client\n"));
        let took = done.took.as_millis();
        assert!((least..most).contains(&took), "{grace}: {took} ms");
    }
    assert_eq!(daemon.client.get_workspace(name).await?.name, name);
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_can_be_forgotten() -> Result<()> {
    let daemon = start().await?;
    workspace(&daemon.client).await?;
    let words = ["exec", "w", "-d", "--id", "x", "--", "sleep", "1000"];
    assert_eq!(skillctl(&daemon, &words).await?.code, Some(0));
    let done = skillctl(&daemon, &["forget", "w/x"]).await?;
    assert_eq!((done.code, done.said.as_str()), (Some(0), ""));
    let done = skillctl(&daemon, &["attach", "w/x"]).await?;
    assert!(done.said.contains("EXEC_NOT_FOUND"), "{}", done.said);
    assert_eq!(
        skillctl(&daemon, &["ps", "w"])
            .await?
            .text()
            .lines()
            .count(),
        1
    );
    daemon.stop().await
}
