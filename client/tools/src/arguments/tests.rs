//! Spellings of keys and values that are read, and those that are refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Run {
    skill: String,
    yield_ms: u64,
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Outer {
    outputs: Option<Outputs>,
    inputs: Vec<Input>,
    env: BTreeMap<String, String>,
    names: Vec<String>,
    text: Option<String>,
    seconds: Option<f64>,
    any: Map<String, Value>,
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Outputs {
    max_files: u64,
    inline: bool,
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Input {
    from: String,
    to: String,
}

fn input(from: &str, to: &str) -> Input {
    Input {
        from: from.into(),
        to: to.into(),
    }
}

fn run(arguments: Value) -> Result<Run, String> {
    decode(
        arguments,
        &[("skill_name", "skill"), ("yield_time_ms", "yield_ms")],
    )
    .map_err(|error| error.to_string())
}

#[track_caller]
fn outer(arguments: Value) -> Outer {
    let shown = arguments.to_string();
    decode(arguments, &[("src", "from")]).expect(&shown)
}

#[test]
fn inner_keys_accept_any_spelling_and_map_keys_stay_unchanged() {
    let arguments = json!({
        "Outputs": {"MaxFiles": 3, "max_files": 0, "maxfiles": 9, "Inline": true, "other": 1},
        "inputs": [{"src": "a", "DST": "b"}, {"From": "c", "to": null}],
        "env": {"MaxFiles": "x", "src": "y"},
    });
    let read: Outer = decode(arguments, &[("src", "from"), ("dst", "to")]).expect("is understood");
    let outputs = Outputs {
        max_files: 0,
        inline: true,
    };
    assert_eq!(read.outputs, Some(outputs));
    assert_eq!(read.inputs, [input("a", "b"), input("c", "")]);
    assert_eq!(read.env.keys().collect::<Vec<_>>(), ["MaxFiles", "src"]);
}

#[test]
fn keys_may_be_in_any_case_or_another_systems() {
    let wanted = Run {
        skill: "a".into(),
        yield_ms: 5,
    };
    for arguments in [
        json!({"skill": "a", "yield_ms": 5}),
        json!({"Skill": "a", "YIELD_MS": 5}),
        json!({"skill_name": "a", "yield_time_ms": 5}),
        json!({"skill": "a", "skill_name": "b", "yield_ms": 5}),
        json!({"skill_name": "b", "skill": "a", "yield_ms": 5}),
        // In any order: as it is spelt, else nearly so, else by another name.
        json!({"skill_name": "b", "Skill": "a", "yield_ms": 5}),
        json!({"Skill": "a", "skill_name": "b", "yield_ms": 5}),
        json!({"SKILL": "b", "skill": "a", "yieldMs": 7, "yield_ms": 5}),
        json!({"Skill": "a", "SKILL": "b", "yield_ms": 5}),
        // What is not given does not hide what is.
        json!({"skill": "", "skill_name": "a", "yield_ms": "", "yield_time_ms": 5}),
        json!({"skill_name": "a", "skill": null, "yieldMs": 5, "yield_ms": null}),
        json!(r#"{"skill": "a", "yield_ms": 5, "unknown": [1]}"#),
        json!("\u{feff}{\"skill\": \"a\", \"yield_ms\": 5}"),
    ] {
        assert_eq!(run(arguments.clone()).as_ref(), Ok(&wanted), "{arguments}");
    }
    assert_eq!(run(json!({"skill": null})), Ok(Run::default()));
    assert_eq!(run(json!("")), Ok(Run::default()));
}

#[test]
fn json_text_of_the_wanted_type_is_that_value() {
    let wanted = Outer {
        outputs: Some(Outputs {
            max_files: 3,
            inline: true,
        }),
        inputs: vec![input("a", "b")],
        env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        names: vec!["x".to_owned(), "2".to_owned()],
        text: Some("[1]".to_owned()),
        seconds: Some(1.5),
        any: Map::from_iter([("k".to_owned(), json!(null))]),
    };
    let natural = json!({
        "outputs": {"max_files": 3, "inline": true},
        "inputs": [{"from": "a", "to": "b"}],
        "env": {"A": "1"},
        "names": ["x", "2"],
        "text": "[1]",
        "seconds": 1.5,
        "any": {"k": null},
    });
    assert_eq!(outer(natural), wanted);
    let as_text = json!({
        "outputs": r#"{"MaxFiles": "3", "inline": "True"}"#,
        "inputs": r#" [{"src": "a", "to": "b"}] "#,
        "env": r#"{"A": 1, "B": null}"#,
        "names": r#"["x", 2]"#,
        "text": "[1]",
        "seconds": "1.5",
        "any": r#"{"k": null}"#,
    });
    assert_eq!(outer(as_text), wanted);
    assert_eq!(
        run(json!({"yield_ms": " 5 "})).map(|run| run.yield_ms),
        Ok(5)
    );
    assert_eq!(
        run(json!({"yield_ms": "6e1"})).map(|run| run.yield_ms),
        Ok(60)
    );
}

#[test]
fn one_value_where_a_list_is_wanted_is_a_list_of_one() {
    for (given, names) in [
        (json!("out/*.txt"), vec!["out/*.txt"]),
        (json!("app/[slug]/page.tsx"), vec!["app/[slug]/page.tsx"]),
        (json!("5"), vec!["5"]),
        (json!(5), vec!["5"]),
        (json!(true), vec!["true"]),
        (json!(["a", 10, 0.5, null, ""]), vec!["a", "10", "0.5", ""]),
    ] {
        assert_eq!(outer(json!({"names": given})).names, names, "{given}");
    }
    for given in [
        json!({"src": "a"}),
        json!(r#"{"src": "a"}"#),
        json!(["a"]),
        json!("a"),
        json!(r#"["a"]"#),
    ] {
        assert_eq!(outer(json!({"inputs": given})).inputs, [input("a", "")]);
    }
}

#[test]
fn an_empty_list_where_a_map_is_wanted_is_an_empty_map() {
    let arguments = json!({"outputs": [], "env": [], "any": []});
    assert_eq!(outer(arguments), Outer::default());
}

#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
struct Command {
    command: String,
    stdin: String,
    timeout: f64,
}

#[test]
fn word_lists_objects_and_seconds_with_a_unit_are_understood() {
    let read = |arguments: Value| decode::<Command>(arguments, &[("cmd", "command")]);
    for (words, command) in [
        (
            json!(["bash", "-lc", "ls | wc -l"]),
            "bash -lc 'ls | wc -l'",
        ),
        (json!(["ls -l"]), "ls -l"),
        (json!("[ -e a ]"), "[ -e a ]"),
    ] {
        let arguments = json!({"cmd": words, "stdin": {"a": [1]}, "timeout": "60s"});
        let wanted = Command {
            command: command.to_owned(),
            stdin: r#"{"a":[1]}"#.to_owned(),
            timeout: 60.0,
        };
        assert_eq!(read(arguments).ok(), Some(wanted), "{words}");
    }
    assert_eq!(
        read(json!({"timeout": "1.5 s"})).ok().map(|it| it.timeout),
        Some(1.5)
    );
    for (arguments, said) in [
        (json!({"command": ["ls", 1]}), "must be a text, not a list"),
        (
            json!({"command": ["cd out", "ls -l"]}),
            "must be a text, not a list",
        ),
        (
            json!({"command": {"a": 1}}),
            "must be a text, not an object",
        ),
        (json!({"timeout": "60 minutes"}), "not \"60 minutes\""),
    ] {
        let error = read(arguments).expect_err("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn numbers_and_booleans_are_accepted_as_text() {
    let read = outer(json!({
        "env": {"PORT": 8080, "DEBUG": true, "RATIO": 0.5, "A": null, "B": ""},
        "text": false,
    }));
    let env: Vec<(&str, &str)> = read
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let wanted = [
        ("B", ""),
        ("DEBUG", "true"),
        ("PORT", "8080"),
        ("RATIO", "0.5"),
    ];
    assert_eq!(env, wanted);
    assert_eq!(read.text.as_deref(), Some("false"));
}

#[test]
fn null_and_empty_text_count_as_not_given() {
    for nothing in [json!(null), json!(""), json!(" "), json!("null")] {
        let arguments = json!({
            "outputs": nothing,
            "inputs": nothing,
            "env": nothing,
            "names": nothing,
            "seconds": nothing,
            "any": nothing,
        });
        assert_eq!(outer(arguments), Outer::default(), "{nothing}");
    }
    // A text may be empty.
    assert_eq!(outer(json!({"text": ""})).text.as_deref(), Some(""));
    assert_eq!(outer(json!({"text": null})).text, None);
}

#[test]
fn ill_typed_arguments_are_refused_with_the_expected_type() {
    for (arguments, said) in [
        (json!([1]), "not an object"),
        (json!("{"), "not JSON"),
        (json!("[1]"), "not an object"),
        (
            json!({"yield_ms": "soon"}),
            "yield_ms must be a whole number from 0 on, not \"soon\"",
        ),
        (
            json!({"yield_ms": 1.5}),
            "yield_ms must be a whole number from 0 on, not 1.5",
        ),
        (json!({"yield_ms": -1}), "from 0 on, not -1"),
        (json!({"yield_ms": "-1"}), "from 0 on, not -1"),
        (json!({"Skill": [1]}), "skill must be a text, not a list"),
    ] {
        let error = run(arguments.clone()).expect_err("refused");
        assert!(error.starts_with("invalid args: "), "{error}");
        assert!(error.contains(said), "{arguments}: {error}");
    }
}

#[test]
fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
    for (given, wanted) in [(json!(60.0), 60), (json!(6e1), 60), (json!(-0.0), 0)] {
        let read = run(json!({"yield_ms": given})).expect("a whole number");
        assert_eq!(read.yield_ms, wanted);
    }
    for given in [json!(0.5), json!(1e300), json!(-60.0)] {
        assert!(run(json!({"yield_ms": given})).is_err(), "{given}");
    }
}

#[test]
fn an_argument_of_a_wrong_type_is_named_wherever_it_is() {
    for (given, said) in [
        (
            json!({"outputs": {"MaxFiles": "many"}}),
            "outputs.max_files must be a whole number from 0 on, not \"many\"",
        ),
        (
            json!({"outputs": {"inline": "yes"}}),
            "outputs.inline must be true or false, not \"yes\"",
        ),
        (json!({"outputs": 3}), "outputs must be an object, not 3"),
        (
            json!({"outputs": "[3]"}),
            "outputs must be an object, not \"[3]\"",
        ),
        (
            json!({"inputs": [{"from": "a"}, {"src": {}}]}),
            "inputs[1].from must be a text, not an object",
        ),
        (json!({"inputs": 5}), "inputs[0] must be an object, not 5"),
        (
            json!({"env": {"A": [1]}}),
            "env.A must be a text, not a list",
        ),
    ] {
        let read = decode::<Outer>(given.clone(), &[("src", "from")]);
        let error = read.expect_err("refused").to_string();
        assert_eq!(error, format!("invalid args: {said}"), "{given}");
    }
}
