//! Tests of what the index proxy refuses: hosts, addresses and hostile heads.

use super::{TestProxy, get, options};
use crate::fetch::IndexHost;
use crate::fetch::tests::bounds;
use crate::fetch::tests::server::{Reply, Server};

/// Name that no resolver looks up, because its first label is too long.
const UNRESOLVABLE: &str =
    "a-label-of-more-than-sixty-three-bytes-which-no-name-server-may-be-asked-for.example";

#[tokio::test]
async fn a_host_that_is_not_allowed_is_refused_named_and_reported() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("secret"));
    let port = server.port();
    let proxy = TestProxy::start(&["index.example", "*.pkg.example", "10.0.0.1:9000"]);
    let own = format!("127.0.0.1:{port}");
    for (target, entry) in [
        ("evil.example:443", "evil.example"),
        ("evil.example:8443", "evil.example:8443"),
        ("index.example:8443", "index.example:8443"),
        ("sub.index.example:443", "sub.index.example"),
        ("pkg.example:443", "pkg.example"),
        ("notpkg.example:443", "notpkg.example"),
        ("10.0.0.1:443", "10.0.0.1"),
        ("[::1]:443", "[::1]"),
        (own.as_str(), own.as_str()),
    ] {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: index.example\r\n\r\n");
        let answer = proxy.exchange(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        let says = format!("{entry} is not a package host");
        assert!(body.starts_with(&says), "{target}: {body}");
        let says = format!("add {entry:?} to skills.package_hosts");
        assert!(body.contains(&says), "{target}: {body}");
        assert_eq!(body.matches('\n').count(), 1, "{body}");
    }
    let answer = proxy.exchange(&get(&server.url("/x"))).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(server.seen().is_empty());
    let reasons = proxy.finish().await;
    let refused = [
        "evil.example",
        "evil.example:8443",
        "index.example:8443",
        "sub.index.example",
        "pkg.example",
        "notpkg.example",
        "10.0.0.1",
        "[::1]",
        own.as_str(),
    ];
    assert_eq!(reasons.len(), refused.len(), "{reasons:?}");
    for entry in refused {
        let start = format!("{entry} is not a package host");
        assert!(
            reasons.iter().any(|reason| reason.starts_with(&start)),
            "{entry}: {reasons:?}"
        );
    }
}

#[tokio::test]
async fn reported_reasons_are_bounded() {
    let proxy = TestProxy::start(&[]);
    for n in 0..40 {
        let answer = proxy.exchange(&get(&format!("http://h{n}.example/"))).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    assert_eq!(proxy.finish().await.len(), 32);
}

#[tokio::test]
async fn suffix_entries_ignore_case_and_unresolvable_names_get_502() {
    let proxy = TestProxy::start(&["*.EXAMPLE"]);
    for target in [
        format!("CONNECT {UNRESOLVABLE}:443"),
        format!("GET http://{}/", UNRESOLVABLE.to_uppercase()),
    ] {
        let answer = proxy.exchange(&format!("{target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{target}: {answer}");
        assert!(answer.contains("cannot be reached"), "{answer}");
    }
    let reasons = proxy.finish().await;
    assert!(
        reasons
            .iter()
            .all(|reason| reason.contains("cannot be reached")),
        "{reasons:?}"
    );
    assert!(!reasons.is_empty());
}

#[tokio::test]
async fn private_addresses_are_refused_unless_permitted() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("private"));
    let port = server.port();
    let literal = format!("127.0.0.1:{port}");
    let name = format!("localhost:{port}");
    let hosts = [literal.as_str(), name.as_str()];
    let proxy = TestProxy::start_with(options(&hosts), &bounds(), false);
    // Other spellings of an address are that address.
    let hex = format!("0x7f000001:{port}");
    for target in [literal.as_str(), hex.as_str(), name.as_str()] {
        for request in [
            format!("CONNECT {target} HTTP/1.1\r\n\r\n"),
            get(&format!("http://{target}/x")),
        ] {
            let answer = proxy.exchange(&request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
            assert!(answer.contains("which is loopback"), "{answer}");
        }
    }
    assert!(server.seen().is_empty());
    let reasons = proxy.finish().await;
    assert!(
        reasons
            .iter()
            .all(|reason| reason.contains("set skills.allow_private_addresses")),
        "{reasons:?}"
    );
    assert!(!reasons.is_empty());
    let proxy = TestProxy::start(&hosts);
    let answer = proxy.exchange(&get(&format!("http://{hex}/x"))).await;
    assert!(answer.ends_with("private"), "{answer}");
}

#[tokio::test]
async fn metadata_services_are_never_reached() {
    let hosts = [
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
    ];
    let proxy = TestProxy::start(&hosts);
    for host in hosts {
        for request in [
            format!("CONNECT {host}:80 HTTP/1.1\r\n\r\n"),
            get(&format!("http://{host}/latest/meta-data/")),
        ] {
            let answer = proxy.exchange(&request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
            assert!(answer.contains("a metadata service"), "{answer}");
        }
    }
}

/// Checks the status and a part of the answer to each request, and that no answer shows a secret.
async fn check_answers(proxy: &TestProxy, cases: &[(String, &str, &str)]) {
    for (request, status, says) in cases {
        let answer = proxy.exchange(request).await;
        let shown: String = request.chars().take(80).collect();
        let begins = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&begins), "{shown:?}: {answer}");
        assert!(answer.contains(says), "{shown:?}: {answer}");
        assert!(!answer.contains("secret"), "{shown:?}: {answer}");
    }
}

#[tokio::test]
async fn heads_that_are_too_large_or_no_http_get_errors() {
    let proxy = TestProxy::start(&["x.example"]);
    let (begin, long) = ("GET http://x.example/", "x".repeat(20_000));
    let many = "A: b\r\n".repeat(200);
    let cases = [
        ("\u{16}\u{3}\u{1}\u{2}garbage\r\n\r\n".into(), "400", ""),
        ("GET\r\n\r\n".into(), "400", ""),
        (format!("{begin} HTTP/1.1\r\nX: {long}\r\n\r\n"), "431", ""),
        (format!("{begin}{long}"), "431", ""),
        (format!("{begin} HTTP/1.1\r\n{many}\r\n"), "431", ""),
        (
            get(&format!("http://x.example/{}", "y".repeat(3000))),
            "400",
            "longer than 2048 bytes",
        ),
    ];
    check_answers(&proxy, &cases).await;
    // HTTP/2 with prior knowledge: the connection ends.
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    proxy.exchange(preface).await;
}

#[tokio::test]
async fn methods_targets_and_bodies_that_are_not_proxied_get_errors() {
    let server = Server::start().await;
    let own = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&own]);
    let get_own = format!("GET http://{own}/x HTTP/1.1\r\n");
    let connect = |target: &str| format!("CONNECT {target} HTTP/1.1\r\n\r\n");
    let cases = [
        (get("/simple/"), "400", "this is a proxy"),
        (
            get(&format!("https://{own}/")),
            "400",
            "use CONNECT for https",
        ),
        (get("ftp://x.example/"), "400", "only http://"),
        (
            get(&format!("http://user:secret@{own}/")),
            "400",
            "a user name or a password",
        ),
        (connect(&format!("user:secret@{own}")), "400", ""),
        (connect("x.example"), "400", "must be HOST:PORT"),
        (connect("/"), "400", "must be HOST:PORT"),
        (
            connect(&format!("http://{own}/")),
            "400",
            "must be HOST:PORT",
        ),
        (connect("x.example:99999"), "400", ""),
        (
            format!("POST http://{own}/x HTTP/1.1\r\n\r\n"),
            "405",
            "allow: CONNECT, GET, HEAD",
        ),
        (
            "OPTIONS * HTTP/1.1\r\n\r\n".into(),
            "405",
            "use CONNECT, GET or HEAD",
        ),
        (
            format!("{get_own}Content-Length: 3\r\n\r\nabc"),
            "400",
            "a body",
        ),
        (
            format!("{get_own}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
            "a body",
        ),
        (
            format!("CONNECT {own} HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
            "400",
            "a body",
        ),
    ];
    check_answers(&proxy, &cases).await;
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn no_line_is_injected_into_a_forwarded_head() {
    let server = Server::start().await;
    let own = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&own]);
    let cases = [
        (
            format!("GET http://{own}/x HTTP/1.1\r\nX: a\rInjected: 1\r\n\r\n"),
            "400",
            "",
        ),
        (
            format!("GET http://{own}/x\rInjected HTTP/1.1\r\n\r\n"),
            "400",
            "",
        ),
        (
            format!("GET http://{own}/x HTTP/1.1\r\n Folded: 1\r\n\r\n"),
            "400",
            "",
        ),
    ];
    check_answers(&proxy, &cases).await;
    assert!(server.seen().is_empty());
    let escaped = get(&format!("http://{own}/a%0d%0aInjected:%201"));
    check_answers(&proxy, &[(escaped, "404", "")]).await;
    let seen = server.seen().remove(0);
    assert_eq!(seen.target, "/a%0d%0aInjected:%201");
    assert!(!seen.headers.contains_key("injected"));
}

#[test]
fn package_hosts_are_validated_and_printed_in_normal_form() {
    for (text, printed) in [
        ("pypi.org", "pypi.org"),
        ("PyPI.org", "pypi.org"),
        ("registry.npmjs.org:8443", "registry.npmjs.org:8443"),
        ("*.pythonhosted.org", "*.pythonhosted.org"),
        ("*.internal:8080", "*.internal:8080"),
        ("10.0.0.5:8081", "10.0.0.5:8081"),
        ("[fd00::5]", "[fd00::5]"),
        ("[fd00::5]:8081", "[fd00::5]:8081"),
        ("bücher.example", "xn--bcher-kva.example"),
    ] {
        let host = IndexHost::parse(text).expect(text);
        assert_eq!(host.to_string(), printed);
        assert_eq!(IndexHost::parse(printed), Ok(host));
    }
    let long = format!("{}example", "a.".repeat(124));
    for (text, why) in [
        ("", "empty host"),
        ("*", "its host is not a valid name"),
        ("*.", "empty host"),
        ("**.example", "its host is not a valid name"),
        ("a.*.example", "its host is not a valid name"),
        ("example.", "its host is not a valid name"),
        (".example", "its host is not a valid name"),
        ("a..example", "its host is not a valid name"),
        (long.as_str(), "its host is not a valid name"),
        ("*.10.0.0.1", "no name is below an address"),
        ("*.[::1]", "no name is below an address"),
        ("https://pypi.org", "a scheme or a path"),
        ("pypi.org/simple", "a scheme or a path"),
        (
            "https://user:secret@pypi.org/x?secret",
            "a scheme or a path",
        ),
        ("user@pypi.org", "is not a package host"),
        ("pypi.org:0", "its port"),
        ("pypi.org:65536", "its port"),
        ("pypi.org:+443", "its port"),
        ("pypi.org:", "its port"),
        ("pypi .org", "is not a package host"),
        ("pypi.org\r\nX", "is not a package host"),
        ("::1", "is not a package host"),
    ] {
        let error = IndexHost::parse(text).expect_err(text);
        assert!(error.contains(why), "{text:?}: {error}");
        assert!(error.contains("write HOST, HOST:PORT"), "{error}");
        assert!(
            !error.contains("secret") && !error.contains('\n'),
            "{error}"
        );
    }
}
