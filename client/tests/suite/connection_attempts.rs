//! Attempts to connect: a peer that does not answer, and files that are not what they should be.

use skilld_client::{Client, ConnectOptions, Error};
use skilld_testing::DEADLINE;
use tokio::net::TcpListener;
use tokio::time::timeout;

#[tokio::test]
async fn a_peer_without_an_answer_ends_the_tls_handshake_in_time() {
    // The kernel completes the TCP handshake; no server ever reads.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let authorities = tempfile::NamedTempFile::new().expect("a file");
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(authorities.path(), pem).expect("writes");
    let options = ConnectOptions {
        ca_file: Some(authorities.path().to_owned()),
        ..ConnectOptions::new(format!("https://127.0.0.1:{port}"))
    };
    let connected = timeout(DEADLINE, Client::connect_with(&options)).await;
    let error = connected.expect("in time").expect_err("no answer");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    // Of the handshake or, if that began late, of the whole attempt.
    let text = error.to_string();
    assert!(
        text.contains("timeout") || text.contains("timed out"),
        "{text}"
    );
}

#[tokio::test]
async fn a_file_of_authorities_without_a_certificate_is_named() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "no certificate\n").expect("writes");
    let options = ConnectOptions {
        ca_file: Some(file.path().to_owned()),
        ..ConnectOptions::new("https://localhost:1")
    };
    let error = Client::connect_with(&options).await.expect_err("no file");
    let expected = format!(
        "cannot use the file {}: it has no certificate in PEM",
        file.path().display()
    );
    assert_eq!(error.to_string(), expected);
}
