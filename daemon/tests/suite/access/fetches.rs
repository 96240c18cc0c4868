//! Fetches and buckets of a server whose certificate has an authority of its own, as behind a proxy that inspects TLS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use skilld::artifacts::Artifacts;
use skilld::config::{Config, S3Credentials};
use skilld::fetch::{FetchOptions, FetchRequest, UrlFetcher, install_crypto_provider};
use skilld::shutdown::Tasks;
use skilld::skills::task_spawner::TaskSpawner;
use skilld_tests::authority::{Authority, Validity};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";

/// Variable with the URL that another process of a test fetches.
const FETCHED_URL: &str = "SKILLD_TEST_FETCHED_URL";
/// Time for which nothing waits here.
const LONG: Duration = Duration::from_secs(60);

/// Serves one answer on every connection, until the task is dropped. Returns the URL and the task.
async fn serve(authority: &Authority) -> (String, JoinSet<()>) {
    let issued = authority.issue_server("inspected", &["localhost"], Validity::Valid);
    let chain = vec![CertificateDer::from_pem_file(&issued.cert).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(&issued.key).expect("PEM");
    install_crypto_provider();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("pair");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("address").port();
    let mut task = JoinSet::new();
    task.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not know the authority ends the handshake.
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let mut head = [0; 4096];
                drop(stream.read(&mut head).await);
                drop(stream.write_all(ANSWER).await);
                drop(stream.shutdown().await);
            }
        }
    });
    (format!("https://localhost:{port}/x"), task)
}

/// Fetches a URL with this file of authorities beside those of the system. Returns the content, or the error.
async fn fetch(url: &str, ca_file: Option<PathBuf>) -> Result<String, String> {
    let request = FetchRequest {
        url: url.parse().expect("a URL"),
        bytes_max: 1000,
        validators: None,
    };
    let options = FetchOptions {
        connect_timeout: LONG,
        timeout: LONG,
        proxy: None,
        ca_file,
    };
    let fetcher = UrlFetcher::new(&options, true, TaskSpawner::default());
    let mut file = File::from_std(tempfile::tempfile().expect("a file"));
    let fetched = fetcher
        .fetch(&request, &mut file)
        .await
        .map_err(|error| error.to_string())?;
    assert_eq!(fetched.expect("new").bytes, 5);
    let mut text = String::new();
    file.rewind().await.expect("its start");
    file.read_to_string(&mut text).await.expect("fetched");
    Ok(text)
}

#[tokio::test]
async fn fetches_trust_the_authority_that_the_operator_names() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let authority = Authority::new(dir.path(), "company");
    let (url, _task) = serve(&authority).await;
    let error = fetch(&url, None).await.expect_err("an unknown authority");
    assert!(error.contains("skills.package_ca_file"), "{error}");
    let missing = fetch(&url, Some(dir.path().join("nowhere.pem"))).await;
    let error = missing.expect_err("no such file");
    assert!(error.contains("nowhere.pem cannot be read"), "{error}");
    let fetched = fetch(&url, Some(authority.ca_file.clone())).await;
    assert_eq!(fetched.expect("trusted"), "hello");
}

#[tokio::test]
async fn fetches_trust_the_authorities_of_ssl_cert_file() {
    if let Some(url) = std::env::var_os(FETCHED_URL) {
        let fetched = fetch(url.to_str().expect("a URL"), None).await;
        assert_eq!(fetched.expect("trusted"), "hello");
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let authority = Authority::new(dir.path(), "company");
    let other = Authority::new(dir.path(), "other");
    let (url, _task) = serve(&authority).await;
    let name = "access::fetches::fetches_trust_the_authorities_of_ssl_cert_file";
    for (file, is_trusted) in [(&authority.ca_file, true), (&other.ca_file, false)] {
        // Once more, in a process that has the variable.
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", name])
            .env(FETCHED_URL, &url)
            .env("SSL_CERT_FILE", file)
            .output()
            .await
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = ["1 failed", "1 passed"][usize::from(is_trusted)];
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn buckets_trust_the_authority_that_the_operator_names() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let authority = Authority::new(dir.path(), "company");
    let (url, _task) = serve(&authority).await;
    let endpoint = url.trim_end_matches("/x");
    let text =
        format!("artifacts.url = \"s3://bucket/prefix\"\nartifacts.endpoint = {endpoint:?}\n");
    let mut config = Config::from_toml(&text).expect("configuration").config;
    config.artifacts.credentials = S3Credentials(BTreeMap::from([
        ("AWS_ACCESS_KEY_ID".to_owned(), "id".to_owned()),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), "secret".to_owned()),
    ]));
    for ca_file in [None, Some(authority.ca_file.clone())] {
        let is_known = ca_file.is_some();
        config.artifacts.ca_file = ca_file;
        // The server is none of buckets, which only shows once its certificate is trusted.
        let checked = Artifacts::check(&config.artifacts, &Tasks::default()).await;
        let error = checked.expect_err("no bucket").to_string();
        let is_unknown = error.contains("the authority of its certificate is not known");
        assert_eq!(is_unknown, !is_known, "{error}");
    }
}
