//! The inheritance of a command, beside a plain `docker run` of the same image: every row of the table in docs/exec.md.
//!
//! Docker: both are programs in a real container, whose engine, kernel and C library decide most of it.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::shell_stdout;
use skilld_tests::test_image::TestImage;

/// Name of a row, shell text that prints its value, and the value in a command; `None` if it is that of `docker run`.
type Row = (&'static str, &'static str, Option<&'static str>);

/// Rows whose value does not depend on the host.
#[rustfmt::skip]
const ROWS: [Row; 46] = [
    ("umask", "umask", None),
    ("blocked signals", "grep SigBlk /proc/self/status", Some("SigBlk: 0000000000000000")),
    ("ignored signals", "grep SigIgn /proc/self/status", Some("SigIgn: 0000000000000000")),
    ("limit of open files", "ulimit -n", Some("4096")),
    ("limit of core dumps", "ulimit -c", Some("0")),
    ("limit of file sizes", "ulimit -f", Some("327680")),
    ("limits of the stack", "ulimit -Ss; ulimit -Hs", Some("8192 65536")),
    ("limits of CPU time and memory", "ulimit -t; ulimit -v", None),
    ("limit of processes", "ulimit -u", None),
    ("limit of all processes", "cat /sys/fs/cgroup/pids.max || cat /sys/fs/cgroup/pids/pids.max", Some("512")),
    ("limits of locked memory, signals, queues and priorities", "for limit in l i q e r; do ulimit -$limit; done", Some("8192 8192 819200 0 0")),
    ("nice value", "nice", Some("19")),
    ("score for the kernel's kills", "cat /proc/self/oom_score_adj", Some("900")),
    ("descriptors", "ls /proc/self/fd", None),
    ("stdin", "readlink /proc/self/fd/0", Some("/dev/null")),
    // Those of the shell itself: the probe redirects its own.
    ("stdout and stderr", "readlink /proc/$$/fd/1 /proc/$$/fd/2 | cut -d: -f1", Some("pipe pipe")),
    ("leader of a session", "[ $(ps -o sid= -p $$) = $$ ] && echo yes", None),
    ("terminal", "tty; printenv TERM || echo none", None),
    ("working directory", "pwd", Some("/workspace")),
    ("user", "id -un; id -Gn", Some("skill skill")),
    ("capabilities", "grep CapEff /proc/self/status", None),
    ("new privileges and seccomp", "awk '/^(NoNewPrivs|Seccomp):/ {print $2}' /proc/self/status", Some("1 2")),
    ("locale", "printenv LANG", None),
    ("clock", "date +%Y", None),
    ("time zone", "printenv TZ || date +%Z", None),
    ("HOME", "printenv HOME", Some("/workspace/work")),
    ("TMPDIR", "printenv TMPDIR", Some("/tmp")),
    ("SHELL", "printenv SHELL", Some("/bin/bash")),
    ("PATH", "printenv PATH", Some("/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")),
    ("host name", "hostname; printenv HOSTNAME || echo unset", Some("sandbox unset")),
    ("address of the host name", "python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'", Some("127.0.0.1")),
    ("network interfaces", "node -p 'Object.keys(os.networkInterfaces()).join()'", Some("lo")),
    ("/etc/hosts", "awk '{print $1, $2}' /etc/hosts", Some("127.0.0.1 localhost 127.0.0.1 sandbox ::1 localhost")),
    ("/etc/resolv.conf", "grep nameserver /etc/resolv.conf", Some("nameserver 127.0.0.1")),
    ("/etc/passwd", "cut -d: -f1 /etc/passwd", Some("root skill nobody")),
    ("/etc/group", "cut -d: -f1 /etc/group", Some("root skill nogroup")),
    ("/etc/os-release", "cat /etc/os-release", None),
    ("file system of the root", "awk '$2 == \"/\" {print substr($4, 1, 2)}' /proc/mounts", Some("ro")),
    ("size of /tmp", "df -B1 --output=size /tmp | tail -n 1", Some("67108864")),
    ("size of /dev/shm", "df -B1 --output=size /dev/shm | tail -n 1", Some("67108864")),
    ("mode of /tmp", "stat -c %a /tmp", None),
    ("memory that programs see", "grep MemTotal /proc/meminfo", None),
    ("memory of the control group", "cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes", Some("536870912")),
    ("cores that programs count", "nproc; python3 -c 'import os; print(os.cpu_count())'", Some("1 1")),
    ("buffering of Python's output", "python3 -c 'import sys; print(sys.stdout.write_through)'", Some("True")),
    ("network of pip and uv", "printenv PIP_NO_INDEX UV_OFFLINE", Some("1 1")),
];

/// Returns shell text that prints the value of each row on a line of its own.
fn probe(rows: &[Row]) -> String {
    let lines = rows.iter().map(|(_, text, _)| {
        format!(
            "echo \"$({{ {text}; }} 2>/dev/null | tr -s '\\n\\t ' ' ' | sed 's/^ //; s/ $//')\"\n"
        )
    });
    lines.collect()
}

/// Runs shell text as a command of `docker run`, and returns what it printed.
async fn run_in_docker(text: &str) -> Result<String> {
    let mut command = tokio::process::Command::new("docker");
    command
        .args(["run", "--rm", "--network", "none"])
        .args(["--label", &TestImage::label()])
        .args(["skilld/base:latest", "bash", "-c", text])
        .stdin(Stdio::null());
    let ran = command.output().await?;
    ensure!(ran.status.success(), "{ran:?}");
    Ok(String::from_utf8(ran.stdout)?)
}

#[tokio::test]
async fn a_command_inherits_what_the_documentation_says() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let text = probe(&ROWS);
    let plain = run_in_docker(&text).await?;
    let ours = shell_stdout(&daemon.client, &name, &text).await?;
    let (plain, ours) = (Vec::from_iter(plain.lines()), Vec::from_iter(ours.lines()));
    assert_eq!((plain.len(), ours.len()), (ROWS.len(), ROWS.len()));
    let wrong: Vec<String> = std::iter::zip(ROWS, std::iter::zip(&plain, &ours))
        .filter(|((_, _, expected), (plain, ours))| **ours != expected.unwrap_or(**plain))
        .map(|((row, _, expected), values)| format!("{row}: {values:?}, not {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    daemon.stop().await
}

#[tokio::test]
async fn programs_listen_on_the_loopback_addresses() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let mut addresses = vec![("AF_INET", "127.0.0.1")];
    if Path::new("/proc/sys/net/ipv6").exists() {
        addresses.push(("AF_INET6", "::1"));
    }
    for (family, address) in addresses {
        let text = format!(
            "python3 -c 'import socket; print(socket.create_server((\"{address}\", 8201), family=socket.{family}) \
             .getsockname()[:2])'"
        );
        let printed = shell_stdout(&daemon.client, &name, &text).await?;
        assert_eq!(printed, format!("('{address}', 8201)\n"));
    }
    daemon.stop().await
}
