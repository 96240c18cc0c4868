//! Resources that the kernel counts for the whole host or for one user: what a container gets of each, and that another
//! container gets as much at the same time. One test per row of the table in docs/security.md.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_tests::docker;

use crate::security::container::{Container, run};

/// Lets two containers take as much of a resource as they get, and keep it. Returns what each of them got.
async fn taken_by_two(resource: &str) -> Result<[Value; 2]> {
    let mut results = Vec::new();
    let mut containers = Vec::new();
    for _ in 0..2 {
        let container = Container::create(|_| ()).await?;
        let guest = container.boot().await?;
        let argv = ["/usr/bin/python3", "/run/skilld/limits.py", resource];
        let answer = run(&guest, &argv)?;
        let stdout = answer["stdout"].as_str().unwrap_or_default();
        let result = serde_json::from_str(stdout).with_context(|| format!("{resource}: {answer}"));
        results.push(result?);
        // The first one holds what it took until the second one is done.
        containers.push((container, guest));
    }
    for (container, _guest) in &containers {
        container.remove().await?;
    }
    results.try_into().ok().context("two results")
}

/// Checks that both containers get exactly `expected` of a resource, and the error that says that there is no more.
async fn check(resource: &str, expected: u64, error: &str) -> Result<()> {
    for result in taken_by_two(resource).await? {
        ensure!(
            result["taken"] == expected && result["error"] == error,
            "{resource}: {result}, want {expected} and {error:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn terminals_of_a_container_are_48() -> Result<()> {
    check("terminals", 48, "ENOSPC").await
}

#[tokio::test]
async fn terminals_are_gone_with_their_container() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let _guest = container.boot().await?;
    let mounted = || std::fs::read_to_string("/proc/mounts");
    let volumes = container.volumes().await?;
    if docker::engine_name().await? == "podman" {
        // The OCI runtime mounts them in the container's own namespace.
        assert_eq!(volumes, Vec::<String>::new());
        return container.remove().await;
    }
    assert_eq!(volumes.len(), 1, "{volumes:?}");
    assert!(mounted()?.contains(&volumes[0]), "{volumes:?} is mounted");
    container.remove().await?;
    assert!(
        !mounted()?.contains(&volumes[0]),
        "{volumes:?} is unmounted"
    );
    Ok(())
}

#[tokio::test]
async fn open_files_of_a_process_are_4096() -> Result<()> {
    // Descriptors 0 to 2 were open before.
    check("files", 4093, "EMFILE").await
}

#[tokio::test]
async fn processes_of_a_container_are_bounded() -> Result<()> {
    // 256, without PID 1 and the probe itself.
    check("processes", 254, "EAGAIN").await
}

#[tokio::test]
async fn message_queues_of_a_container_are_bounded() -> Result<()> {
    let results = taken_by_two("queues").await?;
    for result in &results {
        let taken = result["taken"].as_u64().context("taken")?;
        // 819,200 bytes: each queue has room for 81,920 bytes of messages, and some for itself.
        ensure!((5..=9).contains(&taken), "{result}");
        ensure!(result["error"] == "EMFILE", "{result}");
    }
    assert_eq!(results[0], results[1]);
    Ok(())
}

#[tokio::test]
async fn inotify_instances_are_counted_for_each_container() -> Result<()> {
    let limit: u64 = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")?
        .trim()
        .parse()?;
    // Where the host allows more of them, the descriptors of the process are the limit.
    check("inotify", limit.min(4093), "EMFILE").await
}

#[tokio::test]
async fn pending_signals_of_a_container_are_8192() -> Result<()> {
    check("signals", 8192, "EAGAIN").await
}

#[tokio::test]
async fn contexts_of_asynchronous_io_are_refused() -> Result<()> {
    check("contexts", 0, "ENOSYS").await
}

#[tokio::test]
async fn keys_are_refused() -> Result<()> {
    check("keys", 0, "EPERM").await
}

#[tokio::test]
async fn netlink_sockets_are_refused() -> Result<()> {
    check("netlink", 0, "EAFNOSUPPORT").await
}

#[tokio::test]
async fn pressure_triggers_are_refused() -> Result<()> {
    check("pressure", 0, "ENOENT").await
}

#[tokio::test]
async fn the_hosts_disks_are_not_flushed() -> Result<()> {
    check("disks", 3, "").await
}

/// On cgroup v2 socket buffers count in the container's memory, which other tests bound.
async fn check_socket_memory(resource: &str, sockets: u64) -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let cgroup_version = container.engine.describe().await?.cgroup_version;
    container.remove().await?;
    for result in taken_by_two(resource).await? {
        if cgroup_version == 2 {
            continue;
        }
        ensure!(
            result["limit"] == 64 << 20,
            "an eighth of 512 MiB: {result}"
        );
        let usage = result["usage"].as_u64().context("usage")?;
        // The kernel always lets a socket have its first packet.
        let first_packets = sockets * (80 << 10);
        ensure!(
            usage > 32 << 20,
            "the limit was not put to the test: {result}"
        );
        ensure!(usage <= (64 << 20) + first_packets, "{result}");
    }
    Ok(())
}

#[tokio::test]
async fn buffers_of_tcp_sockets_are_bounded() -> Result<()> {
    check_socket_memory("tcp", 200).await
}

#[tokio::test]
async fn buffers_of_udp_sockets_are_bounded() -> Result<()> {
    check_socket_memory("udp", 0).await
}
