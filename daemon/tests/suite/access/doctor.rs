//! `skilld doctor` on certificates of listeners and on the files of `[auth]`: the built binary, where no Docker answers.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use skilld_tests::authority::{Authority, Validity, install};
use skilld_tests::web_tokens::WebTokenIssuer;

use super::harness::{all_tokens, configuration, tenants_text};

/// Makes valid files of identities and their authority.
fn make_files(files: &Path) -> Authority {
    let authority = Authority::new(files, "ca");
    authority.issue_server("server", &["localhost"], Validity::Valid);
    authority.revoke(&files.join("revoked.pem"), &[]);
    let keys = serde_json::json!({"keys": [WebTokenIssuer::generate().public_key("k1")]});
    install(&files.join("jwks.json"), &keys.to_string(), 0o644);
    install(&files.join("tokens"), &all_tokens(), 0o600);
    install(&files.join("tenants.toml"), &tenants_text("admin"), 0o644);
    let config = configuration(&files.join("none"), files);
    install(&files.join("skilld.toml"), &config, 0o644);
    authority
}

/// Runs the doctor and returns state, subject and finding of its lines about `[auth]`, the TLS listener and
/// certificates.
fn identity_lines(files: &Path) -> Vec<[String; 3]> {
    let output = Command::new(env!("CARGO_BIN_EXE_skilld"))
        .args(["doctor", "-o", "json", "--config"])
        .arg(files.join("skilld.toml"))
        .env_clear()
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .output()
        .expect("run skilld");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let lines = report
        .pointer("/checks")
        .and_then(Value::as_array)
        .expect("lines");
    let own = lines.iter().filter(|line| {
        let of_start = ["auth", "listeners.1"].map(Value::from);
        line["check"] == "certificate" || of_start.contains(&line["subject"])
    });
    own.map(|line| {
        ["state", "subject", "finding"].map(|key| {
            line.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        })
    })
    .collect()
}

#[test]
fn doctor_checks_certificates_and_files_of_identities() {
    let files = tempfile::tempdir().expect("directory");
    let authority = make_files(files.path());
    let lines = identity_lines(files.path());
    let subjects: Vec<&str> = lines
        .iter()
        .map(|[_, subject, ..]| subject.as_str())
        .collect();
    assert_eq!(
        subjects,
        ["auth", "listeners.1", "listeners.1.tls", "listeners.1.tls"]
    );
    assert!(lines.iter().all(|[state, ..]| state == "ok"), "{lines:?}");

    authority.issue_server("server", &["localhost"], Validity::Expired);
    authority.revoke_until(&files.path().join("revoked.pem"), &[], 2021);
    install(&files.path().join("tokens"), &all_tokens(), 0o644);
    let lines = identity_lines(files.path());
    let expected = [
        ("failed", "run `chmod 0600"),
        ("ok", "usable"),
        ("failed", "expired at 2021-01-01T00:00:00Z"),
        ("ok", "valid until"),
        ("warning", "replaced by 2021-01-01T00:00:00Z"),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, (state, finding)) in lines.iter().zip(expected) {
        assert!(line[0] == state && line[2].contains(finding), "{line:?}");
    }

    // A start names the first file that is faulty.
    install(&files.path().join("tokens"), &all_tokens(), 0o600);
    for (name, text, finding) in [
        ("jwks.json", "{\"keys\": []}", "no key for ES256"),
        ("tenants.toml", "[tenants.A]", "not a tenant's name"),
    ] {
        install(&files.path().join(name), text, 0o644);
        let [state, _, found] = &identity_lines(files.path())[0];
        assert!(state == "failed" && found.contains(finding), "{found}");
    }

    let other = std::fs::read_to_string(files.path().join("server.key")).expect("read");
    authority.issue_server("server", &["localhost"], Validity::Valid);
    install(&files.path().join("server.key"), &other, 0o600);
    let [state, _, finding] = &identity_lines(files.path())[1];
    assert!(
        state == "failed" && finding.contains("do not belong together"),
        "{finding}"
    );
}
