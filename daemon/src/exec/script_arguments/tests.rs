//! Tables of the rules that convert script arguments.

use prost_types::value::Kind;
use serde_json::json;
use skilld_proto::json::to_proto_value;

use super::*;

fn arg(key: &str, json: &Value) -> pb::ScriptArg {
    pb::ScriptArg {
        key: key.to_owned(),
        value: Some(to_proto_value(json.clone())),
        literal: String::new(),
    }
}

fn literal(key: &str, text: &str) -> pb::ScriptArg {
    pb::ScriptArg {
        key: key.to_owned(),
        value: None,
        literal: text.to_owned(),
    }
}

fn script(style: pb::ScriptArgStyle, args: Vec<pb::ScriptArg>) -> pb::ExecScript {
    pb::ExecScript {
        path: "x.py".to_owned(),
        args,
        arg_style: style.into(),
        ..Default::default()
    }
}

/// Returns the fields that are rejected.
fn violations(script: &pb::ExecScript) -> Vec<String> {
    match build_script_arguments(script) {
        Err(Error::Invalid(violations)) => {
            violations.into_iter().map(|fault| fault.field).collect()
        }
        other => panic!("must be refused: {other:?}"),
    }
}

/// Table of conversions: JSON value, words with POSITIONAL, with NAMED, with NAMED_REPEATED (`=` if equal to NAMED), and the
/// variable. `|` separates words, and `-` means no words.
const ROWS: &[[&str; 5]] = &[
    [r#""a b""#, "a b", "--my_key|a b", "=", "a b"],
    [r#""""#, "", "--my_key|", "=", ""],
    ["true", "true", "--my_key", "=", "true"],
    ["false", "-", "-", "=", "false"],
    ["null", "-", "-", "=", ""],
    ["1", "1", "--my_key|1", "=", "1"],
    ["1.0", "1", "--my_key|1", "=", "1"],
    ["0.1", "0.1", "--my_key|0.1", "=", "0.1"],
    ["-0.0", "0", "--my_key|0", "=", "0"],
    ["1e21", "1e+21", "--my_key|1e+21", "=", "1e+21"],
    [
        "9007199254740992",
        "9007199254740992",
        "--my_key|9007199254740992",
        "=",
        "9007199254740992",
    ],
    ["-5", "-5", "--my_key=-5", "=", "-5"],
    [r#""-x""#, "-x", "--my_key=-x", "=", "-x"],
    [
        r#""--out=/etc""#,
        "--out=/etc",
        "--my_key=--out=/etc",
        "=",
        "--out=/etc",
    ],
    [
        r#"["a","b"]"#,
        "a|b",
        "--my_key|a|b",
        "--my_key|a|--my_key|b",
        r#"["a","b"]"#,
    ],
    [r#"["-a"]"#, "-a", "--my_key=-a", "=", r#"["-a"]"#],
    ["[]", "-", "-", "=", "[]"],
    [
        "[1,true,null]",
        "1|true|null",
        "--my_key|1|true|null",
        "--my_key|1|--my_key|true|--my_key|null",
        "[1,true,null]",
    ],
    [
        "[-1,2]",
        "-1|2",
        "--my_key|-1|2",
        "--my_key=-1|--my_key|2",
        "[-1,2]",
    ],
    [
        r#"[{"k":1}]"#,
        r#"{"k":1}"#,
        r#"--my_key|{"k":1}"#,
        "=",
        r#"[{"k":1}]"#,
    ],
    [
        r#"{"k":[1,2.5]}"#,
        r#"{"k":[1,2.5]}"#,
        r#"--my_key|{"k":[1,2.5]}"#,
        "=",
        r#"{"k":[1,2.5]}"#,
    ],
    [
        r#""$(id) `id` ;&'\\ \n😀""#,
        "$(id) `id` ;&'\\ \n😀",
        "--my_key|$(id) `id` ;&'\\ \n😀",
        "=",
        "$(id) `id` ;&'\\ \n😀",
    ],
];

#[test]
fn each_kind_of_value_is_converted_by_the_argument_style() {
    let words = |text: &str| -> Vec<String> {
        match text {
            "-" => vec![],
            text => text.split('|').map(str::to_owned).collect(),
        }
    };
    for [text, positional, named, repeated, variable] in ROWS {
        let json: Value = serde_json::from_str(text).expect(text);
        let repeated = if *repeated == "=" { named } else { repeated };
        for (style, expected) in [
            (pb::ScriptArgStyle::Unspecified, positional),
            (pb::ScriptArgStyle::Positional, positional),
            (pb::ScriptArgStyle::Named, named),
            (pb::ScriptArgStyle::NamedRepeated, repeated),
            (pb::ScriptArgStyle::Env, &"-"),
        ] {
            let builder =
                build_script_arguments(&script(style, vec![arg("my_key", &json)])).expect(text);
            assert_eq!(builder.argv, words(expected), "{style:?} {text}");
            let env = [("SKILL_ARG_MY_KEY".to_owned(), (*variable).to_owned())];
            assert_eq!(builder.env, env, "{style:?} {text}");
        }
    }
}

#[test]
fn numbers_and_literals_keep_their_value() {
    for text in [
        "1.0",
        "1e+21",
        "-0",
        "1.10",
        "0",
        "12345678901234567890123",
        "1E+5",
    ] {
        let builder = build_script_arguments(&script(
            pb::ScriptArgStyle::Positional,
            vec![literal("n", text)],
        ));
        assert_eq!(builder.expect(text).argv, [text]);
    }
    for text in [
        "x", "01", "1.", ".5", "1e", " 1", "1 ", "0x10", "NaN", "--a", "-", "1;id",
    ] {
        let script = script(pb::ScriptArgStyle::Positional, vec![literal("n", text)]);
        assert_eq!(
            violations(&script),
            ["spec.script.args[0].literal"],
            "{text}"
        );
    }
}

#[test]
fn arguments_keep_their_order_after_argv() {
    let mut given = script(
        pb::ScriptArgStyle::Named,
        ["z", "a", "m"].map(|key| arg(key, &json!(key))).into(),
    );
    given.argv = ["sub", "--", "-x"].map(str::to_owned).into();
    let builder = build_script_arguments(&given).expect("good");
    assert_eq!(
        builder.argv,
        ["sub", "--", "-x", "--z", "z", "--a", "a", "--m", "m"]
    );
    let names: Vec<&str> = builder.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["SKILL_ARG_Z", "SKILL_ARG_A", "SKILL_ARG_M"]);
}

#[test]
fn invalid_keys_and_colliding_variables_are_rejected() {
    let long = "k".repeat(65);
    for key in [
        "",
        "1a",
        "_a",
        "-a",
        "x; rm",
        "a b",
        "a.b",
        "a=b",
        "ä",
        long.as_str(),
    ] {
        let script = script(pb::ScriptArgStyle::Named, vec![arg(key, &json!(1))]);
        assert_eq!(violations(&script), ["spec.script.args[0].key"], "{key:?}");
    }
    for (one, other) in [("a-b", "a_b"), ("Ab", "aB"), ("same", "same")] {
        let both = vec![arg(one, &json!(1)), arg(other, &json!(2))];
        let script = script(pb::ScriptArgStyle::Env, both);
        assert_eq!(
            violations(&script),
            ["spec.script.args[1].key"],
            "{one} {other}"
        );
    }
}

#[test]
fn list_items_that_begin_with_a_dash_are_rejected() {
    let script = script(
        pb::ScriptArgStyle::Named,
        vec![arg("x", &json!(["a", "--rm"]))],
    );
    assert_eq!(violations(&script), ["spec.script.args[0].value"]);
}

#[test]
fn all_violations_are_reported_together() {
    let mut both = literal("both", "1");
    both.value = Some(to_proto_value(json!(1)));
    let mut none = literal("none", "");
    none.value = Some(prost_types::Value { kind: None });
    let infinite = pb::ScriptArg {
        key: "inf".to_owned(),
        value: Some(prost_types::Value {
            kind: Some(Kind::NumberValue(f64::INFINITY)),
        }),
        literal: String::new(),
    };
    let large = "x".repeat(128 << 10);
    let args = vec![
        both,
        none,
        infinite,
        arg("nul", &json!("a\0b")),
        arg("large", &json!(large)),
        arg("nul_in_list", &json!(["a\0b"])),
        arg("nul_in_object", &json!({"a": "b\0"})),
    ];
    let script = script(pb::ScriptArgStyle::Named, args);
    let expected = [
        "spec.script.args[0].literal",
        "spec.script.args[1].value",
        "spec.script.args[2].value",
        "spec.script.args[3].value",
        "spec.script.args[4].value",
        "spec.script.args[5].value",
    ];
    // JSON text escapes NUL bytes, so an object with one is accepted.
    assert_eq!(violations(&script), expected);
}

#[test]
fn counts_and_styles_are_bounded() {
    let many = (0..257).map(|n| arg(&format!("k{n}"), &json!(n))).collect();
    assert_eq!(
        violations(&script(pb::ScriptArgStyle::Env, many)),
        ["spec.script.args"]
    );
    let mut odd = script(pb::ScriptArgStyle::Env, vec![]);
    odd.arg_style = 99;
    assert_eq!(violations(&odd), ["spec.script.arg_style"]);
}
