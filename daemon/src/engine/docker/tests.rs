//! Without Docker: how its absence is told. Docker itself is asked by the end-to-end tests.

use super::*;

#[tokio::test]
async fn says_what_to_do_when_docker_is_missing_or_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("docker.sock");
    let text = |error: Error| {
        assert!(
            matches!(error, Error::EngineUnavailable { .. }),
            "{error:?}"
        );
        error.to_string()
    };
    let path = missing.to_string_lossy().into_owned();
    let error = DockerEngine::connect(&path, Duration::from_secs(5))
        .await
        .expect_err("no socket");
    assert!(text(error).contains("not running or not installed"));

    // A socket file that nobody listens on any more.
    drop(std::os::unix::net::UnixListener::bind(&missing).expect("bound"));
    let error = DockerEngine::connect(&path, Duration::from_secs(5))
        .await
        .expect_err("nobody listens");
    assert!(text(error).contains("nobody listens"));
}

#[tokio::test]
async fn a_silent_docker_is_given_up_after_the_timeout() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("docker.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let error = DockerEngine::connect(&path.to_string_lossy(), Duration::from_millis(50))
        .await
        .expect_err("no answer");
    assert!(
        matches!(&error, Error::EngineUnavailable { message } if message.contains("no answer within 50ms")),
        "{error}"
    );
}
