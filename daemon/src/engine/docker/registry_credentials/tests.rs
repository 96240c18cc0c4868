//! Tests of credentials of registries, with a directory of client configuration and helpers that are scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const SECRET: &str = "swordfish";

/// Reads a configuration file with this text.
fn config_with(text: &str) -> Result<ClientConfig, CredentialFault> {
    let mut file =
        tempfile::NamedTempFile::new().map_err(|error| CredentialFault(error.to_string()))?;
    std::io::Write::write_all(&mut file, text.as_bytes())
        .map_err(|error| CredentialFault(error.to_string()))?;
    read_config(file.path())
}

fn stored(text: &str, registry: &str) -> Option<DockerCredentials> {
    let config = config_with(text).expect("readable");
    config.find_auth(registry).expect("decodable")
}

#[test]
fn credentials_are_found_by_host_url_and_docker_hub_address() {
    let auth = BASE64.encode(format!("me:{SECRET}:x\0").as_bytes());
    for (key, registry) in [
        ("ghcr.io", "ghcr.io"),
        ("https://r.example:5000/v2/", "r.example:5000"),
        ("https://index.docker.io/v1/", "docker.io"),
    ] {
        let text =
            format!(r#"{{"auths": {{"{key}": {{"auth": "{auth}"}}}}, "HttpHeaders": {{}}}}"#);
        let found = stored(&text, registry).expect(key);
        assert_eq!(found.username.as_deref(), Some("me"));
        assert_eq!(found.password, Some(format!("{SECRET}:x")));
        assert_eq!(found.serveraddress, Some(registry_address(registry)));
        assert!(stored(&text, "other.example").is_none(), "{key}");
    }
    let text = format!(r#"{{"auths": {{"ghcr.io": {{"identitytoken": "{SECRET}"}}}}}}"#);
    let found = stored(&text, "ghcr.io").expect("a token");
    assert_eq!(
        (found.identitytoken.as_deref(), found.username),
        (Some(SECRET), None)
    );
    assert!(stored(r#"{"auths": {"ghcr.io": {}}}"#, "ghcr.io").is_none());
}

#[test]
fn helper_of_a_registry_is_preferred_to_the_store_of_all() {
    let config =
        config_with(r#"{"credsStore": "pass", "credHelpers": {"ghcr.io": "gh", "x.example": ""}}"#)
            .expect("readable");
    assert_eq!(config.find_helper("ghcr.io"), Some("gh"));
    assert_eq!(config.find_helper("docker.io"), Some("pass"));
    assert_eq!(config.find_helper("x.example"), None);
}

#[test]
fn fault_of_the_configuration_shows_nothing_of_its_contents() {
    let list = format!(r#"{{"auths": ["{SECRET}"]}}"#);
    let fault = config_with(&list).err().expect("refused").to_string();
    assert!(
        fault.contains("line 1") && !fault.contains(SECRET),
        "{fault}"
    );
    let wrong = format!(r#"{{"auths": {{"a": {{"auth": "{SECRET}!"}}}}}}"#);
    let fault = config_with(&wrong)
        .expect("readable")
        .find_auth("a")
        .expect_err("not base64")
        .to_string();
    assert!(!fault.contains(SECRET), "{fault}");
    let absent = read_config(Path::new("/does/not/exist/config.json")).expect("empty");
    assert!(absent.auths.is_empty());
}

#[test]
fn name_of_a_helper_cannot_be_a_path() {
    for name in ["ecr-login", "pass", "osxkeychain", "a.b_c"] {
        assert!(is_helper_name(name), "{name}");
    }
    let long = "a".repeat(HELPER_NAME_BYTES_MAX + 1);
    for name in [
        "", "../x", "/bin/sh", "a/b", "-x", ".x", "a b", "a\n", "é", &long,
    ] {
        assert!(!is_helper_name(name), "{name:?}");
    }
}

/// Runs a helper whose program is this shell script, by its path.
async fn answer_of(script: &str) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("helper");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    let program = path.display().to_string();
    let (success, output) = loop {
        let run = tokio::time::timeout(Duration::from_secs(60), run_helper(&program, "ghcr.io"));
        match run.await.expect("it ends") {
            // Another test forked while the program was being written; its child still holds it open.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                tokio::task::yield_now().await;
            }
            answer => break answer.expect("it runs"),
        }
    };
    (success, String::from_utf8(output).expect("UTF-8"))
}

#[tokio::test]
async fn helper_gets_the_address_and_its_answer_is_bounded() {
    let echo =
        r#"test "$1" = get && printf '{"Username":"%s","Secret":"s"}' "$(cat)"; echo noise >&2"#;
    let (success, output) = answer_of(echo).await;
    assert!(success);
    assert_eq!(output, r#"{"Username":"ghcr.io","Secret":"s"}"#);
    let (success, output) = answer_of("while :; do echo 0123456789; done").await;
    assert!(!success);
    assert_eq!(output.len() as u64, HELPER_BYTES_MAX + 1);
}

#[test]
fn answer_of_a_helper_is_a_password_or_an_identity_token() {
    let found = parse_helper_answer(br#"{"ServerURL":"x","Username":"me","Secret":"s"}"#, "x")
        .expect("an answer");
    assert_eq!(
        (found.username.as_deref(), found.password.as_deref()),
        (Some("me"), Some("s"))
    );
    assert_eq!(found.identitytoken, None);
    let found =
        parse_helper_answer(br#"{"Username":"<token>","Secret":"s"}"#, "x").expect("a token");
    assert_eq!(
        (found.identitytoken.as_deref(), found.username),
        (Some("s"), None)
    );
    assert!(parse_helper_answer(b"nonsense", "x").is_none());
}

#[tokio::test]
async fn helper_that_does_not_exist_is_named_in_the_error() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(
        dir.path().join(FILE),
        r#"{"credsStore": "skilld-test-none"}"#,
    )
    .expect("written");
    let found = find_credentials(&Tasks::default(), dir.path(), "ghcr.io").await;
    let error = found.expect_err("no such program").to_string();
    assert!(
        error.contains("docker-credential-skilld-test-none cannot be run"),
        "{error}"
    );
    assert!(error.ends_with("this concerns ghcr.io"), "{error}");
}
