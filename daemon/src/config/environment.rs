//! Environment variables: which ones are keys, and which ones belong to others.

use std::ffi::OsString;

use figment::providers::Env;

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

/// Returns the values of all keys that the environment sets.
pub(super) fn environment_keys() -> Env {
    let keys = Env::prefixed(PREFIX).filter(|key| !is_of_service(key.as_str()));
    keys.split("__").ignore(&FOREIGN_KEYS)
}

/// Returns the names of variables that are ignored because Kubernetes sets them in every pod, for a service whose name
/// begins with `skilld`.
#[must_use]
pub fn ignored_variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.strip_prefix(PREFIX).is_some_and(is_of_service))
        .collect();
    names.sort_unstable();
    names
}

/// Returns the format of log lines that the environment sets, which needs no other source to be readable.
pub(super) fn log_format() -> Option<String> {
    std::env::var_os("SKILLD_LOG_FORMAT")?.into_string().ok()
}

/// Returns the socket for reports to the service manager: a path, or `@` and an abstract name. `None` without one.
#[must_use]
pub fn notify_socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())
}

/// Returns `true` for the rest of names like `SKILLD_SERVICE_HOST`, `SKILLD_SERVICE_PORT_GRPC` and
/// `SKILLD_PORT_7443_TCP_ADDR`, which a service `skilld` has, and `SKILLD_METRICS_SERVICE_HOST`, which a service
/// `skilld-metrics` has. The names are those of Kubernetes' documentation of services, "Environment variables". A key in
/// a section has two underscores, and no key has such an end.
fn is_of_service(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if name.contains("__") {
        return false;
    }
    let words: Vec<&str> = name.split('_').collect();
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
        let words = words.get(first..).unwrap_or_default();
        is_port(words) || is_service(words)
    })
}
