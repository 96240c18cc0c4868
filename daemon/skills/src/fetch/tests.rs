//! Tests of fetching against a scripted server: refusals, bounds and validators.

use std::time::Duration;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::{
    CacheValidators, FetchError, FetchErrorKind, FetchOptions, FetchRequest, FetchedFile,
    UrlFetcher, WebUrl,
};
use crate::task_spawner::TaskSpawner;

pub(crate) mod server;

use server::{Reply, Server};

/// Options for tests, with timeouts long enough for a busy machine.
pub(crate) fn bounds() -> FetchOptions {
    FetchOptions {
        connect_timeout: Duration::from_secs(300),
        timeout: Duration::from_secs(300),
        proxy: None,
        ca_file: None,
    }
}

/// A fetcher that reaches the test's server.
fn fetcher() -> UrlFetcher {
    UrlFetcher::new(&bounds(), true, TaskSpawner::default())
}

fn file() -> File {
    File::from_std(tempfile::tempfile().expect("a file"))
}

async fn text(mut file: File) -> String {
    let mut text = String::new();
    file.rewind().await.expect("its start");
    file.read_to_string(&mut text)
        .await
        .expect("what was fetched");
    text
}

fn get(url: &str) -> FetchRequest {
    FetchRequest {
        url: url.parse().expect("a URL"),
        bytes_max: 1000,
        validators: None,
    }
}

async fn fetched(fetcher: &UrlFetcher, get: &FetchRequest, into: &mut File) -> FetchedFile {
    let fetched = fetcher.fetch(get, into).await.expect("an answer");
    fetched.expect("a file")
}

async fn error(fetcher: &UrlFetcher, get: &FetchRequest) -> FetchError {
    let answer = fetcher.fetch(get, &mut file()).await;
    answer.expect_err("it must not be fetched")
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

#[tokio::test]
async fn a_fetch_tells_size_digest_and_type() {
    let server = Server::start().await;
    let headers = vec![("Content-Type".to_owned(), "text/markdown".to_owned())];
    server.put("/SKILL.md", Reply::Whole(200, headers, b"text".to_vec()));
    let mut into = file();
    let got = fetched(
        &fetcher(),
        &get(&server.url("/SKILL.md?token=x")),
        &mut into,
    )
    .await;
    assert_eq!((got.bytes, got.sha256), (4, sha256(b"text")));
    assert_eq!(got.content_type, "text/markdown");
    assert_eq!(text(into).await, "text");
    let seen = server.seen().remove(0);
    assert_eq!(seen.target, "/SKILL.md?token=x");
    let version = concat!("skilld/", env!("CARGO_PKG_VERSION"));
    assert_eq!(seen.headers.get("user-agent").expect("one"), version);
    assert_eq!(
        seen.headers.get("accept-encoding").expect("one"),
        "identity"
    );
}

#[tokio::test]
async fn unchanged_content_is_not_sent_again() {
    let server = Server::start().await;
    server.put("/x", Reply::Tagged("\"1\"".into(), b"one".to_vec()));
    let fetcher = fetcher();
    let first = fetched(&fetcher, &get(&server.url("/x")), &mut file()).await;
    let again = FetchRequest {
        validators: Some(first.validators),
        ..get(&server.url("/x"))
    };
    let mut into = file();
    let answer = fetcher.fetch(&again, &mut into).await;
    assert!(matches!(answer, Ok(None)), "{answer:?}");
    server.put("/x", Reply::Tagged("\"2\"".into(), b"two".to_vec()));
    fetched(&fetcher, &again, &mut into).await;
    assert_eq!(text(into).await, "two");
}

#[tokio::test]
async fn a_date_is_sent_back_too() {
    let server = Server::start().await;
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let headers = vec![("Last-Modified".to_owned(), date.to_owned())];
    server.put("/x", Reply::Whole(200, headers, b"x".to_vec()));
    let fetcher = fetcher();
    let first = fetched(&fetcher, &get(&server.url("/x")), &mut file()).await;
    let again = FetchRequest {
        validators: Some(first.validators),
        ..get(&server.url("/x"))
    };
    fetched(&fetcher, &again, &mut file()).await;
    let seen = server.seen();
    assert_eq!(seen[1].headers.get("if-modified-since").expect("one"), date);
}

#[tokio::test]
async fn validators_of_one_place_are_not_shown_to_another() {
    let (server, other) = (Server::start().await, Server::start().await);
    server.put("/x", Reply::redirect(&other.url("/y?signed=1")));
    other.put("/y", Reply::Tagged("\"1\"".into(), b"x".to_vec()));
    let fetcher = fetcher();
    let first = fetched(&fetcher, &get(&server.url("/x")), &mut file()).await;
    // Another signature in the query is the same place.
    server.put("/x", Reply::redirect(&other.url("/y?signed=2")));
    let again = FetchRequest {
        validators: Some(first.validators),
        ..get(&server.url("/x"))
    };
    let answer = fetcher.fetch(&again, &mut file()).await;
    assert!(matches!(answer, Ok(None)), "{answer:?}");
    let named = |seen: &server::Seen| seen.headers.contains_key("if-none-match");
    assert!(!server.seen().iter().any(named));
    assert!(named(&other.seen()[1]));
}

#[tokio::test]
async fn private_addresses_are_refused_by_default() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("secret"));
    let port = server.port();
    let strict = UrlFetcher::new(&bounds(), false, TaskSpawner::default());
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
        "10.0.0.1",
        "169.254.169.254",
    ] {
        let error = error(&strict, &get(&format!("http://{host}:{port}/x"))).await;
        assert!(
            matches!(error.kind, FetchErrorKind::Address { .. }),
            "{host}: {error}"
        );
    }
    assert!(server.seen().is_empty());
    let error = error(&strict, &get("http://localhost/x")).await.to_string();
    assert!(
        error.contains("has to be allowed in the configuration"),
        "{error}"
    );
}

#[tokio::test]
async fn metadata_services_are_never_reached() {
    let server = Server::start().await;
    let open = fetcher();
    for host in ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:a9fe:a9fe]"] {
        let direct = error(&open, &get(&format!("http://{host}/latest/"))).await;
        assert!(
            matches!(&direct.kind, FetchErrorKind::Address { refused } if !refused.allowable),
            "{direct}"
        );
        server.put("/x", Reply::redirect(&format!("http://{host}/latest/")));
        let redirected = error(&open, &get(&server.url("/x"))).await;
        assert!(
            matches!(redirected.kind, FetchErrorKind::Address { .. }),
            "{redirected}"
        );
    }
}

#[tokio::test]
async fn every_redirect_is_checked_like_the_first_url() {
    // The server stands for a public one: it is the proxy through which that is fetched.
    let server = Server::start().await;
    let config = FetchOptions {
        proxy: Some(server.url("/").parse().expect("a URL")),
        ..bounds()
    };
    let strict = UrlFetcher::new(&config, false, TaskSpawner::default());
    let first = "http://skills.example/x";
    for target in [
        "http://127.0.0.1/y",
        "http://[::1]/y",
        "http://192.168.1.1/y",
        "//10.0.0.1/y",
    ] {
        server.put(first, Reply::redirect(target));
        let error = error(&strict, &get(first)).await;
        assert!(
            matches!(error.kind, FetchErrorKind::Address { .. }),
            "{target}: {error}"
        );
    }
    for target in [
        "file:///etc/passwd",
        "ftp://x/y",
        "http://user:pw@x/y",
        "http://",
    ] {
        server.put(first, Reply::redirect(target));
        let error = error(&strict, &get(first)).await;
        assert!(
            matches!(error.kind, FetchErrorKind::Url { .. }),
            "{target}: {error}"
        );
        assert!(!error.to_string().contains("pw"), "{error}");
    }
    // Nothing but the first URL was asked for.
    assert!(server.seen().iter().all(|seen| seen.target == first));
}

#[tokio::test]
async fn no_url_is_longer_than_one_may_be_however_it_came_about() {
    let server = Server::start().await;
    let long = "x".repeat(60_000);
    server.put("/x", Reply::redirect(&format!("/{long}")));
    let error = error(&fetcher(), &get(&server.url("/x"))).await;
    let too_long = |error: &FetchError| {
        let text = error.to_string();
        text.contains("longer than 2048 bytes") && text.len() < 500
    };
    assert!(too_long(&error), "{error}");
    assert_eq!(server.seen().len(), 1);
    let url: WebUrl = "https://x.example/a/".parse().expect("a URL");
    let joined = url.join(&long).expect_err("too long");
    assert!(too_long(&joined), "{joined}");
    // Each of these letters is six bytes in a URL.
    let escaped: Result<WebUrl, _> = format!("https://x.example/{}", "ü".repeat(500)).parse();
    assert!(too_long(&escaped.expect_err("too long")));
    let fits: Result<WebUrl, _> = format!("https://x.example/{}", "ü".repeat(300)).parse();
    fits.expect("a URL");
}

#[tokio::test]
async fn five_redirects_are_followed_and_a_sixth_is_not() {
    let server = Server::start().await;
    for hop in 0..6 {
        server.put(
            &format!("/{hop}"),
            Reply::redirect(&format!("/{}", hop + 1)),
        );
    }
    server.put("/6", Reply::ok("end"));
    let mut into = file();
    let got = fetched(&fetcher(), &get(&server.url("/1")), &mut into).await;
    assert_eq!(got.url.to_string(), server.url("/6"));
    assert_eq!(text(into).await, "end");
    let six = error(&fetcher(), &get(&server.url("/0"))).await;
    assert!(
        matches!(six.kind, FetchErrorKind::Redirects { limit: 5 }),
        "{six}"
    );
    server.put("/loop", Reply::redirect("/loop"));
    let circle = error(&fetcher(), &get(&server.url("/loop"))).await;
    assert!(
        matches!(circle.kind, FetchErrorKind::Redirects { .. }),
        "{circle}"
    );
    assert_eq!(server.hits("/loop"), 6);
}

#[test]
fn a_redirect_never_leads_from_https_to_http() {
    let url: WebUrl = "https://a.example/x".parse().expect("a URL");
    let error = url
        .join("http://a.example/x?token=1")
        .expect_err("a downgrade");
    assert!(
        matches!(error.kind, FetchErrorKind::Downgrade { .. }),
        "{error}"
    );
    assert!(!error.to_string().contains("token"), "{error}");
    let up: WebUrl = "http://a.example/x".parse().expect("a URL");
    up.join("https://b.example/x").expect("an upgrade");
}

#[tokio::test]
async fn a_server_that_does_not_go_on_is_given_up() {
    let server = Server::start().await;
    let config = FetchOptions {
        timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(300),
        ..bounds()
    };
    for reply in [Reply::Silent, Reply::Stalled] {
        server.put("/x", reply.clone());
        let hasty = UrlFetcher::new(&config, true, TaskSpawner::default());
        let error = error(&hasty, &get(&server.url("/x"))).await;
        let timeout = matches!(error.kind, FetchErrorKind::Timeout { .. });
        assert!(timeout, "{reply:?}: {error}");
    }
}

#[tokio::test]
async fn bytes_are_counted_and_not_believed() {
    let server = Server::start().await;
    server.put("/large", Reply::ok(vec![b'x'; 1001]));
    server.put("/endless", Reply::Endless);
    for path in ["/large", "/endless"] {
        let error = error(&fetcher(), &get(&server.url(path))).await;
        let large = matches!(error.kind, FetchErrorKind::TooLarge { limit: 1000 });
        assert!(large, "{path}: {error}");
    }
    server.put("/exact", Reply::ok(vec![b'x'; 1000]));
    let got = fetched(&fetcher(), &get(&server.url("/exact")), &mut file()).await;
    assert_eq!(got.bytes, 1000);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error() {
    let server = Server::start().await;
    server.put("/x", Reply::Short(b"almost".to_vec()));
    let error = error(&fetcher(), &get(&server.url("/x"))).await;
    assert!(
        matches!(error.kind, FetchErrorKind::Unreachable { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("broke off after"), "{error}");
}

#[tokio::test]
async fn a_pin_is_checked() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("text"));
    let right = format!(
        "{}#sha256={}",
        server.url("/x"),
        sha256(b"text").to_uppercase()
    );
    fetched(&fetcher(), &get(&right), &mut file()).await;
    let wrong = format!("{}#sha256={}", server.url("/x"), sha256(b"other"));
    let error = error(&fetcher(), &get(&wrong)).await;
    let FetchErrorKind::Checksum { expected, found } = &error.kind else {
        panic!("{error}");
    };
    assert_eq!((expected, found), (&sha256(b"other"), &sha256(b"text")));
    assert_eq!(server.seen()[0].target, "/x");
}

#[tokio::test]
async fn a_coded_body_is_not_decoded() {
    let server = Server::start().await;
    let headers = vec![("Content-Encoding".to_owned(), "gzip".to_owned())];
    let body = b"\x1f\x8bnot really".to_vec();
    server.put("/x", Reply::Whole(200, headers, body.clone()));
    let got = fetched(&fetcher(), &get(&server.url("/x")), &mut file()).await;
    assert_eq!(got.sha256, sha256(&body));
}

#[tokio::test]
async fn only_200_is_an_answer() {
    let server = Server::start().await;
    for status in [204, 206, 300, 302, 304, 401, 404, 429, 500, 503] {
        server.put("/x", Reply::status(status));
        let error = error(&fetcher(), &get(&server.url("/x"))).await;
        let right =
            matches!(error.kind, FetchErrorKind::Status { status: found } if found == status);
        assert!(right, "{status}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_or_speaks_no_tls_is_unreachable() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("x"));
    let tls = format!("https://127.0.0.1:{}/x?token=abc", server.port());
    let no_tls = error(&fetcher(), &get(&tls)).await;
    server.set_down(true);
    let down = error(&fetcher(), &get(&server.url("/x?token=abc"))).await;
    for error in [no_tls, down] {
        assert!(
            matches!(error.kind, FetchErrorKind::Unreachable { .. }),
            "{error}"
        );
        assert!(!error.to_string().contains("abc"), "{error}");
    }
}

#[test]
fn an_unknown_authority_is_answered_with_what_to_set() {
    let url: WebUrl = "https://x.example/".parse().expect("a URL");
    let error = |why: &str| {
        let why = why.to_owned();
        url.fetch_error(FetchErrorKind::Unreachable { why })
    };
    let unknown = error("invalid peer certificate: UnknownIssuer").to_string();
    assert!(unknown.contains("skills.package_ca_file"), "{unknown}");
    let refused = error("Connection refused").to_string();
    assert!(refused.ends_with("Connection refused"), "{refused}");
}

#[tokio::test]
async fn fetches_at_once_are_bounded() {
    let server = Server::start().await;
    server.put("/silent", Reply::Silent);
    let (fetcher, tasks) = (fetcher(), TaskSpawner::default());
    let silent = get(&server.url("/silent"));
    let mut waiting = Vec::new();
    for _ in 0..super::FETCHES_MAX + 3 {
        let (fetcher, silent, mut into) = (fetcher.clone(), silent.clone(), file());
        waiting.push(tasks.spawn(async move { fetcher.fetch(&silent, &mut into).await.is_ok() }));
    }
    server.received(super::FETCHES_MAX).await;
    assert_eq!(fetcher.inner.permits.available_permits(), 0);
    assert!(server.seen().len() <= super::FETCHES_MAX);
    for one in waiting {
        one.abort();
    }
}

#[test]
fn unsupported_urls_are_refused_without_showing_secrets() {
    for (text, says) in [
        ("ftp://x.example/y?secret", "only http:// and https://"),
        ("file:///etc/passwd", "only http:// and https://"),
        ("unix:/run/docker.sock", "only http:// and https://"),
        (
            "https://user:secret@x.example/y",
            "a user name or a password",
        ),
        ("https://secret@x.example/y", "a user name or a password"),
        ("https://user:secret@x.example:port/y", "invalid port"),
        ("https://", "empty host"),
        ("not a url", "relative URL without a base"),
        ("https://x.example/#sha256=secret", "64 hex digits"),
        ("https://x.example/#readme", "64 hex digits"),
    ] {
        let error = text.parse::<WebUrl>().expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
        assert!(!error.contains("secret"), "{text}: {error}");
    }
    let long = format!("https://x.example/{}", "y".repeat(2048));
    let error = long.parse::<WebUrl>().expect_err("too long").to_string();
    assert!(error.len() < 700, "{error}");
    let url: WebUrl = "https://x.example/y?secret=1".parse().expect("a URL");
    assert_eq!(format!("{url}"), "https://x.example/y?…");
    assert_eq!(format!("{url:?}"), "WebUrl(https://x.example/y?…)");
}

#[test]
fn validators_survive_being_written_down() {
    let validators = CacheValidators {
        from: "https://x.example/y".into(),
        etag: Some("W/\"1\"".into()),
        last_modified: None,
    };
    let text = serde_json::to_string(&validators).expect("json");
    let read: CacheValidators = serde_json::from_str(&text).expect("json");
    assert_eq!(read, validators);
}
