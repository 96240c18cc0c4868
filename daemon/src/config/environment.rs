//! Environment variables: which ones are keys, and which ones belong to others.

use std::ffi::OsString;

use figment::providers::Env;

use super::derived_defaults::authorities_file;

/// Beginning of the names of all variables that are read.
const PREFIX: &str = "SKILLD_";

/// Variables of other programs: SKILLD_CONFIG would be an unknown key, the guest reads `nonce`, and clients the others.
const FOREIGN_KEYS: [&str; 11] = [
    "config",
    "nonce",
    "endpoint",
    "context",
    "contexts",
    "ca_file",
    "cert_file",
    "key_file",
    "token",
    "token_file",
    "tenant",
];

/// Variables of systems that skilld replaces, and what to set instead.
const REPLACED_VARIABLES: [(&str, &str); 3] = [
    (
        "SKILLS_CACHE_DIR",
        "fetched skills are kept in the state directory, --state-dir",
    ),
    (
        "TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS",
        "set it where the skill tools are offered, or their option allowed_commands",
    ),
    (
        "TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS",
        "set it where the skill tools are offered, or their option denied_commands",
    ),
];

/// Returns the values of all keys that the environment sets.
pub(super) fn environment_keys() -> Env {
    let keys = Env::prefixed(PREFIX).filter(|key| !is_of_service(key.as_str()));
    keys.split("__").ignore(&FOREIGN_KEYS)
}

/// Returns a message for each variable that an operator may expect to have an effect, and that has none. Blocks.
pub fn ignored_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut messages: Vec<String> = names
        .filter_map(|name| Some(format!("{name} is ignored: {}", ignored_reason(&name)?)))
        .collect();
    // Libraries of TLS read the variable as well.
    let unusable = authorities_file().and_then(Result::err);
    messages.extend(unusable.map(|fault| {
        format!("SSL_CERT_FILE is ignored for builds, and https may fail: {fault}, or unset it")
    }));
    messages.sort_unstable();
    messages
}

/// Returns the reason why a variable has no effect; `None` if it has one, or is none of skilld's.
fn ignored_reason(name: &str) -> Option<&'static str> {
    let replaced = REPLACED_VARIABLES
        .iter()
        .find_map(|(other, reason)| (*other == name).then_some(*reason));
    let of_service = name.strip_prefix(PREFIX).is_some_and(is_of_service);
    replaced.or(of_service.then_some("Kubernetes sets it for a service"))
}

/// Returns the format of log lines that the environment sets, which needs no other source to be readable.
pub(super) fn log_format() -> Option<String> {
    std::env::var_os("SKILLD_LOG_FORMAT")?.into_string().ok()
}

/// Returns the socket for reports to the service manager: a path, or `@` and an abstract name. `None` without one.
pub fn notify_socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())
}

/// Returns `true` for the rest of names like `SKILLD_SERVICE_HOST`, `SKILLD_SERVICE_PORT_GRPC` and
/// `SKILLD_PORT_7443_TCP_ADDR`, which a service `skilld` has, and `SKILLD_METRICS_SERVICE_HOST`, which a service
/// `skilld-metrics` has. The names are those of Kubernetes' documentation of services, "Environment variables". A key in
/// a section has two underscores, and no key has such an end.
fn is_of_service(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    if upper.contains("__") {
        return false;
    }
    let words: Vec<&str> = upper.split('_').collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = |words: &[&str]| match words {
        ["PORT"] => true,
        ["PORT", number, "TCP" | "UDP" | "SCTP", rest @ ..] => {
            is_number(number) && matches!(rest, [] | ["PROTO" | "PORT" | "ADDR"])
        }
        _ => false,
    };
    let is_service =
        |words: &[&str]| matches!(words, ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..]);
    (0..words.len()).any(|first| {
        let rest = words.get(first..).unwrap_or_default();
        is_port(rest) || is_service(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_named_with_what_to_set() {
        for (name, advice) in [
            ("SKILLS_CACHE_DIR", Some("--state-dir")),
            (
                "TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS",
                Some("denied_commands"),
            ),
            ("SKILLD_SERVICE_HOST", Some("Kubernetes")),
            ("SKILLD_LOG", None),
            ("PATH", None),
        ] {
            let reason = ignored_reason(name);
            let has_advice =
                advice.is_some_and(|advice| reason.is_some_and(|it| it.contains(advice)));
            assert_eq!(has_advice, reason.is_some(), "{name}: {reason:?}");
            assert_eq!(reason.is_some(), advice.is_some(), "{name}");
        }
    }
}
