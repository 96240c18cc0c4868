//! Credentials that are rotated, revoked or expire while clients use them: no restart, no valid stream dropped, every
//! invalid one ended.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use skilld_client::{Client, ConnectOptions, TokenSource};
use skilld_proto::v1 as pb;
use skilld_tests::authority::{Authority, IssuedFiles, Validity, install};
use skilld_tests::web_tokens::{WebTokenIssuer, claims};
use tonic::Code;

use super::harness::{AccessServer, TENANTS, all_tokens, connect, tenants_text, token, token_line};
use super::streams::OpenStream;
use crate::server::{WAIT_MAX, wait_until};

/// Number of streams that are open during a rotation.
const STREAMS: usize = 100;

/// Claims a workspace of a name and returns it.
async fn claim(client: &Client, id: &str) -> String {
    let request = pb::CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    client
        .create_workspace(request)
        .await
        .expect("claimed")
        .name
}

async fn principal_code(client: &Client) -> Code {
    match client.get_principal().await {
        Ok(_) => Code::Ok,
        Err(error) => error.code().expect("a status"),
    }
}

/// Calls until the answer has this code.
async fn wait_for_code(client: &Client, code: Code) {
    wait_until(&format!("the answer is {code:?}"), async || {
        (principal_code(client).await == code).then_some(())
    })
    .await;
}

/// Connects until the client certificate is refused as revoked.
async fn wait_until_revoked(options: &ConnectOptions) {
    wait_until("the certificate is revoked", async || {
        let error = Client::connect_with(options).await.err()?.to_string();
        error.contains("was revoked").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_revoked_token_end_and_no_other() {
    let server = AccessServer::start().await;
    let kept = server.client("a", "user").await;
    let revoked = server.client("a", "publisher").await;
    let mut streams = Vec::new();
    for index in 0..STREAMS {
        let client = if index % 2 == 0 { &kept } else { &revoked };
        streams.push(OpenStream::open(client).await);
    }
    let kept_tokens = all_tokens().replace(&token_line("a", "publisher", "-"), "");
    install(&server.path("tokens"), &kept_tokens, 0o600);
    for (index, stream) in streams.iter_mut().enumerate() {
        if index % 2 == 1 {
            let status = stream.end().await;
            assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        }
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        if index % 2 == 0 {
            stream.assert_open().await;
        }
    }
    assert_eq!(principal_code(&revoked).await, Code::Unauthenticated);
    assert_eq!(principal_code(&kept).await, Code::Ok);
    drop(streams);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_token_that_moves_to_another_tenant_end() {
    let server = AccessServer::start().await;
    let moved = server.client("a", "user").await;
    let mut stream = OpenStream::open(&moved).await;
    let old = token_line("a", "user", "-");
    let tokens = all_tokens().replace(&old, &old.replace(" a user", " b user"));
    assert_ne!(tokens, all_tokens());
    install(&server.path("tokens"), &tokens, 0o600);
    let status = stream.end().await;
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let principal = moved.get_principal().await.expect("still known");
    assert_eq!(principal.tenant, "b");
    drop(stream);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_expires() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let mut opened = None;
    // A pause of the machine may last until the token has expired.
    for seconds in [6, 30, 60] {
        let soon = SystemTime::now() + Duration::from_secs(seconds);
        let expiry = humantime::format_rfc3339_seconds(soon).to_string();
        let others = all_tokens().replace(
            &token_line("a", "user", "-"),
            &token_line("a", "user", &expiry),
        );
        install(&server.path("tokens"), &others, 0o600);
        while opened.is_none() && SystemTime::now() < soon {
            opened = OpenStream::try_open(&user).await.ok();
        }
        if opened.is_some() {
            break;
        }
    }
    let mut stream = opened.expect("opened before the token expired");
    let web = server.issuer.sign("k1", &claims("a", "user", 3600));
    let web = connect(&server.with_token(web)).await;
    let mut kept = OpenStream::open(&web).await;
    let status = stream.end().await;
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    kept.assert_open().await;
    let error = user.get_principal().await.expect_err("expired").to_string();
    assert!(error.contains("expired at"), "{error}");
    drop((stream, kept));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_ends_its_connections_and_no_other() {
    let server = AccessServer::start().await;
    let kept = server.with_certificate(server.authority.issue_user("kept", 7));
    let revoked = server.with_certificate(server.authority.issue_user("revoked", 8));
    let (kept_client, revoked_client) = (connect(&kept).await, connect(&revoked).await);
    let mut kept_stream = OpenStream::open(&kept_client).await;
    let mut revoked_stream = OpenStream::open(&revoked_client).await;
    server.authority.revoke(&server.path("revoked.pem"), &[8]);
    let status = revoked_stream.end().await;
    assert_ne!(status.code(), Code::Ok, "{status}");
    kept_stream.assert_open().await;
    wait_until_revoked(&revoked).await;
    assert_eq!(principal_code(&connect(&kept).await).await, Code::Ok);
    drop((kept_stream, revoked_stream));
    assert!(server.stop().await);
}

/// TLS handshake whose client has not sent its certificate yet.
struct SlowHandshake {
    session: rustls::ClientConnection,
    socket: std::net::TcpStream,
}

impl SlowHandshake {
    /// Begins a handshake and reads the server's part of it.
    fn begin(server: &AccessServer, issued: &IssuedFiles) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&server.authority.ca_file).expect("PEM");
        roots.add(ca).expect("authority");
        let chain = vec![CertificateDer::from_pem_file(&issued.cert).expect("PEM")];
        let key = PrivateKeyDer::from_pem_file(&issued.key).expect("PEM");
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .expect("pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("localhost").expect("name");
        let session = rustls::ClientConnection::new(Arc::new(config), name).expect("session");
        let socket = std::net::TcpStream::connect(server.address).expect("connected");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("timeout");
        let mut slow = Self { session, socket };
        slow.send();
        // The client has something to send again once the server's part is complete.
        while !slow.session.wants_write() {
            slow.session.read_tls(&mut slow.socket).expect("read");
            slow.session.process_new_packets().expect("accepted");
        }
        slow
    }

    fn send(&mut self) {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket).expect("sent");
        }
    }

    /// Sends the rest of the handshake and the begin of HTTP/2. Returns the first bytes of the server, or how it ended the
    /// connection.
    fn complete(mut self) -> std::io::Result<Vec<u8>> {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        self.session.writer().write_all(preface)?;
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        let mut answer = vec![0; 64];
        let mut stream = rustls::Stream::new(&mut self.session, &mut self.socket);
        let length = stream.read(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_revoked_during_its_handshake_is_refused() {
    let server = AccessServer::start().await;
    let [kept, revoked] = [("kept", 7), ("revoked", 8)]
        .map(|(file, serial)| server.authority.issue_user(file, serial));
    let slow = [&kept, &revoked].map(|issued| SlowHandshake::begin(&server, issued));
    server.authority.revoke(&server.path("revoked.pem"), &[8]);
    wait_until_revoked(&server.with_certificate(revoked)).await;
    let [kept, revoked] = tokio::task::block_in_place(|| slow.map(SlowHandshake::complete));
    let settings = kept.expect("served");
    assert_eq!(settings.get(3), Some(&4), "the server's settings");
    let answer = revoked.unwrap_or_default();
    assert!(answer.is_empty(), "{answer:?}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_server_certificate_drops_no_stream() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let mut stream = OpenStream::open(&user).await;
    // A certificate of another authority: clients of the old one can't connect any more.
    let other = Authority::new(server.files.path(), "other");
    other.issue_server("server", &["localhost"], Validity::Valid);
    let new_options = ConnectOptions {
        ca_file: Some(other.ca_file.clone()),
        ..server.with_token(token("a", "user"))
    };
    let new = wait_until("the server has the new certificate", async || {
        Client::connect_with(&new_options).await.ok()
    })
    .await;
    assert_eq!(principal_code(&new).await, Code::Ok);
    stream.assert_open().await;
    assert_eq!(principal_code(&user).await, Code::Ok);
    drop(stream);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_file_keeps_its_old_version_and_is_a_problem() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "admin").await;
    let good_keys = std::fs::read_to_string(server.path("jwks.json")).expect("read");
    let key =
        serde_json::from_str::<serde_json::Value>(&good_keys).expect("JSON")["keys"][0].clone();
    let doubled = serde_json::json!({"keys": [key.clone(), key]}).to_string();
    let certificates = tenants_text("admin")
        + "[[certificates]]\nname = \"spiffe://test/a/user\"\ntenant = \"b\"\nroles = [\"user\"]\n";
    let faulty = |file, key, text: &str, mode, word| FaultyVersion {
        file,
        key,
        text: text.to_owned(),
        mode,
        word,
    };
    let (tokens, tenants) = ("auth.tokens_file", "auth.tenants_file");
    let (jwks, tls) = ("auth.jwt.jwks_file", "listeners.1.tls");
    let unknown_field = "[tenants.a]\nx = 1";
    // The daemon looks at its files every two seconds, so faulty versions of several files share a round.
    for versions in [
        vec![
            faulty("tokens", tokens, &all_tokens(), 0o644, "mode 0644"),
            faulty("jwks.json", jwks, &doubled, 0o644, "kid \"k1\""),
            faulty(
                "tenants.toml",
                tenants,
                &certificates,
                0o644,
                "belongs to tenant a",
            ),
            faulty("server.key", tls, "no key", 0o600, "no private key"),
        ],
        vec![
            faulty("tokens", tokens, "x", 0o600, "line 1"),
            faulty(
                "tenants.toml",
                tenants,
                unknown_field,
                0o644,
                "is not a key",
            ),
            faulty("revoked.pem", tls, "", 0o644, "no list"),
        ],
    ] {
        check_faulty_versions(&server, &admin, &versions).await;
    }
    assert!(server.stop().await);
}

/// Installs the versions, waits for their problems, and mends the files.
async fn check_faulty_versions(server: &AccessServer, admin: &Client, versions: &[FaultyVersion]) {
    let read = |version: &FaultyVersion| std::fs::read_to_string(server.path(version.file));
    let good: Vec<String> = versions
        .iter()
        .map(|version| read(version).expect("read"))
        .collect();
    for version in versions {
        install(&server.path(version.file), &version.text, version.mode);
    }
    for version in versions {
        let message = version.wait_for_problem(admin, true).await;
        assert!(message.contains(version.word), "{message}");
    }
    for tenant in TENANTS {
        let client = server.client(tenant, "user").await;
        assert_eq!(principal_code(&client).await, Code::Ok);
    }
    for (version, good) in versions.iter().zip(&good) {
        let is_secret = version.file == "tokens" || version.file.ends_with(".key");
        let mode = if is_secret { 0o600 } else { 0o644 };
        install(&server.path(version.file), good, mode);
    }
    for version in versions {
        version.wait_for_problem(admin, false).await;
    }
}

/// New version of a file that must not come into force.
struct FaultyVersion {
    file: &'static str,
    /// Configuration key, which is the subject of the problem.
    key: &'static str,
    text: String,
    mode: u32,
    /// Words of the problem.
    word: &'static str,
}

impl FaultyVersion {
    /// Waits until the file has a problem, or has none any more. Returns the problem's message.
    async fn wait_for_problem(&self, admin: &Client, is_wanted: bool) -> String {
        let what = format!("{} has a problem: {is_wanted}", self.key);
        wait_until(&what, async || {
            let mut problems = admin.problems().await.expect("problems").into_iter();
            let found = problems.find(|problem| problem.subject == self.key);
            let message = found.map(|problem| problem.message);
            (message.is_some() == is_wanted).then(|| message.unwrap_or_default())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_removed_is_refused_and_its_workspaces_stay() {
    let server = AccessServer::start().await;
    let user = server.client("b", "user").await;
    claim(&user, "w").await;
    let without = tenants_text("admin");
    let (head, certificates) = without
        .split_once("[[certificates]]")
        .expect("certificates");
    let of_a: String = certificates
        .split("[[certificates]]")
        .filter(|rule| rule.contains("tenant = \"a\""))
        .map(|rule| format!("[[certificates]]{rule}"))
        .collect();
    install(
        &server.path("tenants.toml"),
        &(head.replace("[tenants.b]\n", "") + &of_a),
        0o644,
    );
    wait_for_code(&user, Code::Unauthenticated).await;
    let error = user.get_principal().await.expect_err("refused").to_string();
    assert!(error.contains("tenant b is not configured"), "{error}");
    let options = ConnectOptions {
        tenant: Some("b".to_owned()),
        ..server.with_token(token("a", "admin"))
    };
    let admin = connect(&options).await;
    let found = admin.get_workspace("workspaces/w").await.expect("it stays");
    assert_eq!(
        (found.tenant.as_str(), found.creator.as_str()),
        ("b", "b-user")
    );
    admin
        .delete_workspace("workspaces/w")
        .await
        .expect("deleted");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_reads_its_token_file_again_after_a_change() {
    let server = AccessServer::start().await;
    let file = server.path("client.token");
    install(&file, &format!("{}\n", token("a", "user")), 0o600);
    let options = ConnectOptions {
        token: Some(TokenSource::File(file.clone())),
        ..server.tls()
    };
    let client = connect(&options).await;
    assert_eq!(client.get_principal().await.expect("known").id, "a-user");
    install(&file, &token("b", "publisher"), 0o600);
    assert_eq!(
        client.get_principal().await.expect("known").id,
        "b-publisher"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn web_tokens_of_wrong_issuer_key_algorithm_or_time_are_refused() {
    let server = AccessServer::start().await;
    let with = |name: &str, value: serde_json::Value| {
        let mut changed = claims("a", "user", 600);
        changed[name] = value;
        changed
    };
    let without = |name: &str| {
        let mut changed = claims("a", "user", 600);
        changed.as_object_mut().expect("object").remove(name);
        changed
    };
    let sign = |claims: &serde_json::Value| server.issuer.sign("k1", claims);
    let good = claims("a", "user", 600);
    let header = |algorithm: &str| serde_json::json!({"alg": algorithm, "kid": "k1"});
    let with_crit = |crit: serde_json::Value| {
        let header = serde_json::json!({"alg": "ES256", "kid": "k1", "crit": crit, "x": 1});
        server.issuer.sign_with_header(&header, &good)
    };
    let unsigned = server.issuer.sign_with_header(&header("none"), &good);
    let (signed, _) = unsigned.rsplit_once('.').expect("a signature");
    let other = WebTokenIssuer::generate();
    for (token, word) in [
        (
            sign(&with("iss", "https://other.test".into())),
            "another issuer",
        ),
        (
            sign(&with("iss", vec!["https://issuer.test"].into())),
            "is not a text",
        ),
        (with_crit(vec!["x"].into()), "extensions (crit)"),
        (with_crit(serde_json::Value::Null), "extensions (crit)"),
        (sign(&with("aud", "other".into())), "another audience"),
        (sign(&claims("a", "user", -60)), "expired"),
        (sign(&claims("a", "user", 7200)), "longer than an hour"),
        (
            sign(&with("nbf", 4_000_000_000_u64.into())),
            "not valid yet",
        ),
        (sign(&with("exp", "tomorrow".into())), "exp"),
        (sign(&without("exp")), "exp"),
        (sign(&without("sub")), "sub"),
        (sign(&without("tenant")), "no tenant"),
        (sign(&with("tenant", "A/../B".into())), "no tenant"),
        (sign(&without("realm_access")), "no role"),
        (sign(&claims("a", "root", 600)), "no role"),
        (sign(&claims("c", "user", 600)), "not configured"),
        (other.sign("k1", &good), "wrong signature"),
        (server.issuer.sign("k2", &good), "not in the JWKS file"),
        (unsigned.clone(), "malformed"),
        (format!("{signed}."), "malformed"),
        (
            server.issuer.sign_with_header(&header("HS256"), &good),
            "ES256",
        ),
        ("a.b.c".to_owned(), "malformed"),
        ("skt_a-user_AAAA".to_owned(), "unknown"),
        ("skw_AAAA".to_owned(), "not of this server"),
    ] {
        let client = connect(&server.with_token(token)).await;
        let error = client.get_principal().await.expect_err(word);
        assert_eq!(error.code(), Some(Code::Unauthenticated), "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let client = connect(&server.with_token(sign(&good))).await;
    let principal = client.get_principal().await.expect("valid");
    let expected = ("a-user", pb::PrincipalRole::User);
    assert_eq!((principal.id.as_str(), principal.role()), expected);
    assert!(server.stop().await);
}
