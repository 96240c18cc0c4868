//! `skillctl token` without a daemon: where a token and its line go, and what is refused.

use std::process::{Command, Output};

use sha2::{Digest, Sha256};

/// Creates the token `ci` of the tenant `a`.
fn create(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillctl"));
    command.args(["token", "create", "ci", "--for-tenant", "a"]);
    command.args(options).output().expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

#[test]
fn token_creation_without_a_file_prints_its_line_on_stderr() {
    for (options, note) in [
        (
            &[][..],
            "skillctl: add this line to the daemon's file of tokens:\n",
        ),
        (&["--quiet"], ""),
    ] {
        let output = create(options);
        let token = text(&output.stdout).trim_end();
        let hash: String = Sha256::digest(token)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert!(token.starts_with("skt_ci_"), "{token}");
        assert_eq!(text(&output.stderr), format!("{note}ci {hash} a user -\n"));
    }
}

#[test]
fn an_expiry_beyond_100_years_is_a_usage_error() {
    for expires in ["9000y", "101y"] {
        let output = create(&["--expires", expires]);
        assert_eq!(output.status.code(), Some(2), "{expires}");
        assert!(output.stdout.is_empty(), "{expires}");
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains("a token expires within 100 years"),
            "{stderr}"
        );
    }
    let output = create(&["--expires", "100y"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn an_error_names_its_cause() {
    let output = create(&["--file", "/nonexistent/tokens"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "error: cannot lock /nonexistent: No such file or directory (os error 2)\n";
    assert_eq!(text(&output.stderr), expected);
    let output = create(&["-o", "json", "--file", "/nonexistent/tokens"]);
    assert!(text(&output.stderr).contains("No such file"));
}
