//! Tests of listeners of metrics.

use crate::config::{Config, ConfigFaults};

/// Checks that a configuration with these listeners has one fault, which begins so.
#[track_caller]
fn check_fault(listeners: &str, expected: &str) {
    match Config::from_toml(&format!("listeners = [{listeners}]")) {
        Ok(_) => panic!("{listeners} has no fault"),
        Err(ConfigFaults(faults)) => {
            assert_eq!(faults.len(), 1, "{faults:?}");
            let fault = faults.first().map(String::as_str).unwrap_or_default();
            assert!(fault.starts_with(expected), "{fault}");
        }
    }
}

#[test]
fn keys_of_a_listener_of_metrics_are_checked() {
    let metrics = |keys: &str| format!("{{ kind = \"metrics\", address = \"127.0.0.1:1\"{keys} }}");
    check_fault(
        "{ kind = \"metrics\" }",
        "listeners.0: needs the key address, such as \"127.0.0.1:9464\"",
    );
    for (keys, expected) in [
        (
            ", path = \"/x\"",
            "a listener of kind \"metrics\" has no key path",
        ),
        (
            ", insecure_loopback = true",
            "a listener of kind \"metrics\" has no key insecure_loopback",
        ),
        (
            ", authenticators = [\"mtls\"]",
            "serves metrics, whose only authenticator is \"token\"",
        ),
        (
            ", authenticators = [\"token\"]",
            "accepts the authenticator \"token\", which needs auth.tokens_file",
        ),
        (
            ", tls = { cert = \"/c\", key = \"/k\", client_ca = \"/a\" }",
            "serves metrics without client certificates",
        ),
    ] {
        check_fault(&metrics(keys), &format!("listeners.0: {expected}"));
    }
    let twice = [metrics(""), metrics("")].join(", ");
    check_fault(&twice, "listeners.1: listens where another listener does");
}

#[test]
fn a_network_address_of_metrics_needs_tls() {
    let metrics = |keys: &str| format!("{{ kind = \"metrics\", address = \"0.0.0.0:1\"{keys} }}");
    for keys in ["", ", authenticators = [\"token\"]"] {
        let expected = "listeners.0: serves metrics to the network in plain text: set tls";
        check_fault(&metrics(keys), expected);
    }
    let tls = metrics(", tls = { cert = \"/c\", key = \"/k\" }");
    Config::from_toml(&format!("listeners = [{tls}]")).expect("valid");
}

#[test]
fn a_listener_of_metrics_does_not_take_the_place_of_the_socket() {
    let text = "listen = \"unix:/run/x.sock\"\n\
                listeners = [{ kind = \"metrics\", address = \"127.0.0.1:0\" }]";
    let config = Config::from_toml(text).expect("valid").config;
    let listeners = config.listeners.iter();
    let kinds: Vec<bool> = listeners.map(|it| it.address.serves_api()).collect();
    assert_eq!(kinds, [false, true]);
}
