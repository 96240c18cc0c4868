//! `skillctl health`, the probe of orchestrators: what it prints and sends, and its exit codes.

use std::process::Output;

use skilld_testing::Fake;
use tokio::net::TcpListener;
use tonic_health::ServingStatus;

use crate::commands::{fake, skillctl};
use crate::connection::HeaderServer;

/// Token that no request of the command may have.
const TOKEN: &str = "skt_canary_0000";

/// Text on stderr if no answer came in time.
const LATE: &str = "does not answer within 5 s";

/// Number of tries of the command, which fails if the server's answer is late.
const TRIES: usize = 5;

/// Runs the command, again if the answer is late.
async fn health(fake: &Fake, words: &[&str]) -> Output {
    for _ in 1..TRIES {
        let output = health_once(fake, words).await;
        if !is_late(&output) {
            return output;
        }
    }
    health_once(fake, words).await
}

fn is_late(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains(LATE)
}

async fn health_once(fake: &Fake, words: &[&str]) -> Output {
    let words = [&["health"], words].concat();
    let mut command = skillctl(fake, &words);
    command.output().await.expect("runs")
}

/// Returns the exit code and the text on stdout.
fn result(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

#[tokio::test]
async fn health_prints_the_status_and_fails_unless_it_is_serving() {
    let fake = fake();
    let serving = health(&fake, &[]).await;
    assert_eq!(result(&serving), (Some(0), "SERVING\n".to_owned()));
    fake.health
        .set_service_status("", ServingStatus::NotServing)
        .await;
    let not_serving = health(&fake, &[]).await;
    assert_eq!(result(&not_serving), (Some(1), "NOT_SERVING\n".to_owned()));
    let json = health(&fake, &["-o", "json"]).await;
    let object = "{\"status\":\"NOT_SERVING\"}\n".to_owned();
    assert_eq!(result(&json), (Some(1), object));
}

#[tokio::test]
async fn live_fails_only_without_an_answer() {
    let mut fake = fake().mortal();
    fake.health
        .set_service_status("", ServingStatus::NotServing)
        .await;
    let answered = health(&fake, &["--live"]).await;
    assert_eq!(result(&answered), (Some(0), "NOT_SERVING\n".to_owned()));
    fake.end();
    let unreachable = health(&fake, &["--live"]).await;
    assert_eq!(result(&unreachable), (Some(1), String::new()));
    assert!(!unreachable.stderr.is_empty());
}

#[tokio::test]
async fn health_works_over_tcp_and_sends_no_credential() {
    let server = HeaderServer::start().await;
    let fake = fake();
    let mut command = skillctl(&fake, &["health", "--endpoint", &server.endpoint]);
    // Neither a token nor a file that is missing keeps the probe from its answer.
    command
        .env("SKILLD_TOKEN", TOKEN)
        .env("SKILLD_TOKEN_FILE", "/nonexistent/token")
        .env("SKILLD_TENANT", "other");
    let mut output = command.output().await.expect("runs");
    for _ in 1..TRIES {
        if is_late(&output) {
            output = command.output().await.expect("runs");
        }
    }
    assert_eq!(result(&output), (Some(0), "SERVING\n".to_owned()));
    let seen = server.take_headers();
    assert!(!seen.is_empty());
    let headers = format!("{seen:?}");
    assert!(!headers.contains("authorization"), "{headers}");
    assert!(!headers.contains("tenant"), "{headers}");
    assert!(!headers.contains(TOKEN), "{headers}");
}

#[tokio::test]
async fn health_ends_without_an_answer() {
    // The kernel completes the TCP handshake; no server ever reads.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let output = health_once(&fake(), &["--endpoint", &endpoint]).await;
    assert_eq!(result(&output), (Some(1), String::new()));
    assert!(is_late(&output), "{output:?}");
}
