//! Exit codes of results: those of shells, and 0 only for success.

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{self, ExitReason};

use crate::support::{Guest, configuration, duration, with_longer_times};

/// Returns reason, exit code, signal and success.
fn parts(result: Option<v1::ExecResult>) -> (ExitReason, i32, i32, bool) {
    let result = result.expect("a result");
    (
        result.reason(),
        result.exit_code,
        result.signal,
        result.success,
    )
}

#[tokio::test]
async fn exit_codes_are_those_of_a_shell() {
    let guest = Guest::start().await;
    std::fs::write(guest.workspace().join("plain"), "x").expect("a file");
    for (id, argv, reason, code, signal) in [
        ("success", &["true"][..], ExitReason::Exited, 0, 0),
        ("failure", &["sh", "-c", "exit 3"], ExitReason::Exited, 3, 0),
        (
            "killed",
            &["sh", "-c", "kill -9 $$"],
            ExitReason::Signaled,
            137,
            9,
        ),
        (
            "missing",
            &["no-such-program"],
            ExitReason::SpawnFailed,
            127,
            0,
        ),
        (
            "absent",
            &["./no-such-program"],
            ExitReason::SpawnFailed,
            127,
            0,
        ),
        (
            "not-executable",
            &["./plain"],
            ExitReason::SpawnFailed,
            126,
            0,
        ),
    ] {
        let seen = guest.run(guest.request(id, argv)).await;
        assert_eq!(
            parts(seen.result),
            (reason, code, signal, code == 0),
            "{id}"
        );
        let shell = [&["bash", "-c", "\"$@\"; echo $?", "bash"], argv].concat();
        let seen = guest
            .run(guest.request(&format!("{id}-bash"), &shell))
            .await;
        assert_eq!(seen.stdout(), format!("{code}\n"), "{id}");
    }
}

#[tokio::test]
async fn an_exit_with_0_at_a_timeout_is_143_and_no_success() {
    // Longer than a busy machine takes to run the trap.
    let kill_grace = duration(60_000);
    let guest = Guest::configured(wire::ConfigureRequest {
        kill_grace,
        ..configuration()
    })
    .await;
    with_longer_times(async |id, timeout| {
        let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done";
        let mut request = guest.request(id, &["bash", "-c", script]);
        if let Some(spec) = &mut request.spec {
            spec.timeout = duration(timeout);
        }
        let seen = guest.run(request).await;
        if seen.out.is_empty() {
            return false;
        }
        assert_eq!(parts(seen.result), (ExitReason::Timeout, 143, 0, false));
        true
    })
    .await;
}
