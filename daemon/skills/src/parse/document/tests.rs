//! Tests of parsing SKILL.md: a row for each form that real skills and other clients have, hostile input, and
//! properties.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// The folder of every skill here that has no other.
const DIR: &str = "a";

fn of(text: &str) -> Document {
    parse_documents(Some(text.as_bytes()), None, DIR)
}

/// `name|description|version` and the codes that a profile gives, an error's after `!`.
fn shown(document: &Document, profile: ValidationProfile) -> String {
    let front = &document.front_matter;
    let mut shown = format!("{}|{}|{}", front.name, front.description, front.version);
    for problem in document.problems(profile) {
        let sign = if problem.severity == Severity::Error {
            '!'
        } else {
            '+'
        };
        let code = problem.code.strip_prefix("skill.").unwrap_or(problem.code);
        shown += &format!(" {sign}{code}");
    }
    shown
}

/// Front matter with a good name and description, and more.
fn front(yaml: &str) -> String {
    format!("---\n{yaml}\n---\nBody.\n")
}

fn good(yaml: &str) -> String {
    front(&format!("name: a\ndescription: b\n{yaml}"))
}

/// Front matter, and what LENIENT makes of it.
const KEYS: &[(&str, &str)] = &[
    (
        "name: a\ndescription: Use when: x",
        "a|Use when: x| +yaml_repaired",
    ),
    (
        "name: a\ndescription: > Use when x",
        "a|Use when x| +yaml_repaired",
    ),
    (
        "name: a\ndescription: |- Use when x",
        "a|Use when x| +yaml_repaired",
    ),
    ("name: a\ndescription: \"a\" b", "a|\"a\" b| +yaml_repaired"),
    ("name: yes\ndescription: b", "yes|b| +folder_name"),
    ("name: 007\ndescription: b", "007|b| +folder_name"),
    ("description: b", "a|b| +no_name"),
    ("name:\ndescription: b", "a|b| +no_name"),
    ("name: ''\ndescription: b", "a|b| +no_name"),
    ("name: [a]\ndescription: b", "a|b| +wrong_type +no_name"),
    (
        "name: ../x\ndescription: b",
        "x|b| +name_changed +folder_name",
    ),
    (
        "name: a/b\ndescription: b",
        "a-b|b| +name_changed +folder_name",
    ),
    ("name: .\ndescription: b", "a|b| +name_changed"),
    (
        "name: 数据\ndescription: b",
        "skill-5440f742|b| +folder_name",
    ),
    (
        "name: 数据 报表\ndescription: b",
        "skill-9a23f959|b| +name_changed +folder_name",
    ),
    ("name: ａ\ndescription: b", "a|b| +name_changed"),
    ("name: a\ndescription: |\n  b\n  ---\n  c", "a|b --- c|"),
    ("- a\n- b", "a|| !not_a_map"),
    ("just text", "a|| !not_a_map"),
    (
        "name: a\ndescription:\n  b: c",
        "a|Body.| +wrong_type +description_guessed",
    ),
    ("name: a", "a|Body.| +description_guessed"),
    ("name: a\nwhen_to_use: b", "a|b| +description_guessed"),
    ("name: a\nsummary: b", "a|b| +description_guessed"),
    ("skill: a\ndescription: b", "a|b|"),
    ("name: a\ndescription: >\n  b\n  c\n", "a|b c|"),
    ("name: a\ndescription: b\n  c", "a|b c|"),
    (
        "name：a\ndescription ：做报表：每月",
        "a|做报表：每月| +yaml_repaired +yaml_repaired",
    ),
    (
        "name: a\ndescription: b\nversion：1.2",
        "a|b|1.2 +yaml_repaired",
    ),
    ("name: a\ndescription: |\n  step：b", "a|step：b|"),
    ("name: a\ndescription: @b", "a|@b| +yaml_repaired"),
    ("name: a\ndescription: [Tag] b", "a|[Tag] b| +yaml_repaired"),
    ("name: a\ndescription: {{B}} b", "a|{{B}} b| +yaml_repaired"),
    ("name: a\ndescription: {{B}}", "a|{{B}}| +yaml_repaired"),
    ("name: a\ndescription: ** b", "a|** b| +yaml_repaired"),
    (
        "name: a\ndescription: 'b' c: d",
        "a|'b' c: d| +yaml_repaired",
    ),
    ("name: a\ndescription: \"\\ud83d\\ude00 b\"", "a|😀 b|"),
    (
        "name: a\n<<<<<<< HEAD\ndescription: b\n=======\n",
        "a|b| +yaml_repaired",
    ),
    (
        "name: a\ndescription: b\n\tx: y",
        "a|b x: y| +yaml_repaired",
    ),
    (
        "name: a\nname: c\ndescription: b",
        "c|b| +duplicate_key +folder_name",
    ),
    (
        "name: a\u{200b}\ndescription: b\u{202e}c\u{7}",
        "a|bc| +yaml_repaired +hidden_characters +hidden_characters",
    ),
    (
        "name: a\0\ndescription: b",
        "a|b| !nul +yaml_repaired +hidden_characters",
    ),
];

/// The same, behind a good name and description.
const MORE: &[(&str, &str)] = &[
    ("argument-hint: [a] [b]", "a|b| +yaml_repaired"),
    ("version: 1.10", "a|b|1.10"),
    ("version: 1.0", "a|b|1.0"),
    ("metadata:\n  version: 2.0", "a|b|2.0"),
    ("version: 1.2\nmetadata:\n  version: 2.0", "a|b|1.2"),
    ("version: \"*\"", "a|b|"),
    ("version: next week", "a|b|next week +version_unreadable"),
    ("version: [1]", "a|b| +wrong_type"),
    ("metadata: {\"openclaw\": {\"os\": [\"linux\"]}}", "a|b|"),
    ("metadata:", "a|b| +wrong_type"),
    ("metadata: text", "a|b| +wrong_type"),
];

/// Whole files.
const FILES: &[(&str, &str)] = &[
    ("---  \nname: a\ndescription: b\n---\n", "a|b|"),
    ("---\r\nname: a\r\ndescription: b\r\n---\r\nbody", "a|b|"),
    ("---\rname: a\rdescription: b\r---\rbody", "a|b|"),
    ("\u{feff}---\nname: a\ndescription: b\n---\n", "a|b| +bom"),
    ("---\n---\n", "a|| !empty_front_matter"),
    ("---\n\n# only a comment\n---\n", "a|| !empty_front_matter"),
    ("# Title\n\nText.\n", "a|| !no_front_matter"),
    ("", "a|| !no_front_matter"),
    ("---\nname: a\n---\n", "a|| !no_description"),
    (
        "---\nname: a\ndescription: ' '\n---\n# Title\n- item\n",
        "a|| !no_description",
    ),
    ("---\nname: a\ndescription: b\n...\n", "a|b|"),
    ("---\nname: a\ndescription: b\n---", "a|b|"),
    ("---\nname: a\ndescription: b\n", "a|| !not_closed"),
    (
        "---\nname: a\ndescription: b\n# Title\nText.\n",
        "a|b| +closed_by_body",
    ),
    (
        "---\nname: a\ndescription: b\n\nText.\n",
        "a|b| +closed_by_body",
    ),
    (
        "---\nname: a\n\ndescription: b\n\nText.\n",
        "a|b| +closed_by_body",
    ),
    ("---\nText without a key\n\n", "a|| !not_closed"),
    (
        "\n\n---\nname: a\ndescription: b\n---",
        "a|b| +leading_space",
    ),
    (
        "<!-- x\ny -->\n---\nname: a\ndescription: b\n---",
        "a|b| +leading_comment",
    ),
    (
        "```yaml\n---\nname: a\ndescription: b\n---\n```\nBody",
        "a|b| +code_fence",
    ),
    ("```\ncode\n```\n---\nname: a\n---", "a|| !no_front_matter"),
    ("<!-- x", "a|| !no_front_matter"),
];

#[test]
fn front_matter_parses_as_the_table_says() {
    let mut wrong = Vec::new();
    let long = "d".repeat(1068);
    let computed = [
        (
            front(&format!("name: {}\ndescription: b", "n".repeat(65))),
            format!("{}-1e3fb6d5|b| +name_changed +folder_name", "n".repeat(55)),
        ),
        (
            front(&format!("name: {}\ndescription: b", "é".repeat(150))),
            "skill-cb1fa315|b| +name_changed +folder_name".to_owned(),
        ),
        (
            front(&format!("name: a\ndescription: {long}")),
            format!("a|{long}| +long_description"),
        ),
    ];
    let keys = KEYS
        .iter()
        .map(|(yaml, expected)| (front(yaml), (*expected).to_owned()));
    let more = MORE
        .iter()
        .map(|(yaml, expected)| (good(yaml), (*expected).to_owned()));
    let files = FILES
        .iter()
        .map(|(text, expected)| ((*text).to_owned(), (*expected).to_owned()));
    for (text, expected) in keys.chain(more).chain(files).chain(computed) {
        let shown = shown(&of(&text), ValidationProfile::Lenient);
        if shown != expected {
            wrong.push(format!("{text:?}: {shown:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Front matter or a whole file, its folder, LENIENT and SPEC: L loads, W with warnings, X not.
const CLIENTS: &[(&str, &str, &str)] = &[
    // Byte order mark, CRLF, a blank line before the fence.
    ("\u{feff}---\nname: a\ndescription: b\n---\n", "a", "WL"),
    ("---\r\nname: a\r\ndescription: b\r\n---\r\n", "a", "LL"),
    ("\n---\nname: a\ndescription: b\n---\n", "a", "WX"),
    // An indented fence in a block, a fence in a line, none at all.
    ("name: a\ndescription: |\n  b\n  ---\n  c", "a", "LL"),
    ("name: a\ndescription: b --- c", "a", "LL"),
    ("# a\n", "a", "XX"),
    // An unquoted colon, an indicator before text, flow style, a key that comes twice.
    ("name: a\ndescription: b: c", "a", "WX"),
    ("name: a\ndescription: > b", "a", "WX"),
    (
        "name: a\ndescription: b\nmetadata: {\"x\": \"y\"}",
        "a",
        "LL",
    ),
    ("name: a\ndescription: b\nlicense: x\nlicense: y", "a", "WX"),
    // Names: none, a number, spaces, capitals, not the folder's.
    ("description: b", "a", "WX"),
    ("name: 007\ndescription: b", "007", "LL"),
    ("name: My Skill\ndescription: b", "my-skill", "WX"),
    ("name: Csv\ndescription: b", "Csv", "WX"),
    ("name: a\ndescription: b", "b", "WX"),
    ("name: a_b\ndescription: b", "a_b", "WX"),
    ("name: a--b\ndescription: b", "a--b", "WX"),
    // Descriptions: none, from elsewhere.
    ("---\nname: a\n---\n", "a", "XX"),
    ("name: a\nsummary: b", "a", "WX"),
    // Unknown keys, tools as text and as a list.
    ("name: a\ndescription: b\ntags: [x]", "a", "LW"),
    (
        "name: a\ndescription: b\nallowed-tools: Read Bash(git:*)",
        "a",
        "LL",
    ),
    ("name: a\ndescription: b\nallowed-tools: [Read]", "a", "LL"),
    // A comment before the fence, no closing fence.
    ("<!-- x -->---\nname: a\ndescription: b\n---\n", "a", "WX"),
    ("---\nname: a\ndescription: b\n\nText.\n", "a", "WX"),
];

#[test]
fn documents_of_other_clients_load_as_the_table_says() {
    let long = format!("name: a\ndescription: {}", "d".repeat(1025));
    let needs = format!(
        "name: a\ndescription: b\ncompatibility: {}",
        "c".repeat(501)
    );
    let computed = [(long.as_str(), "a", "WX"), (needs.as_str(), "a", "WX")];
    for (text, dir, expected) in CLIENTS.iter().chain(&computed) {
        let text = if text.starts_with(['n', 'd']) {
            front(text)
        } else {
            (*text).to_owned()
        };
        let document = parse_documents(Some(text.as_bytes()), None, dir);
        let state = |profile| match (document.refusal(profile), document.problems(profile).len()) {
            (Some(_), _) => 'X',
            (None, 0) => 'L',
            (None, _) => 'W',
        };
        let states = String::from_iter([
            state(ValidationProfile::Lenient),
            state(ValidationProfile::Spec),
        ]);
        assert_eq!(
            states,
            *expected,
            "{text:?}: {:?}",
            document.problems(ValidationProfile::Spec)
        );
    }
    let mapped = parse_documents(
        Some(front("name: My Skill\ndescription: b").as_bytes()),
        None,
        "my-skill",
    );
    let front_matter = &mapped.front_matter;
    assert_eq!(
        (
            front_matter.name.as_str(),
            front_matter.display_name.as_str()
        ),
        ("my-skill", "My Skill")
    );
    assert_eq!(
        shown(&mapped, ValidationProfile::Lenient),
        "my-skill|b| +name_changed"
    );
}

#[test]
fn findings_name_their_line_and_what_was_salvaged() {
    let text = "---\nname: a\ndescription: x: y\nlicense: MIT\nauthor: [me\nversion: 1.2\ntags: [x]\n---\n";
    let document = of(text);
    let problems = document.problems(ValidationProfile::Lenient);
    let lines: Vec<(usize, &str)> = problems
        .iter()
        .map(|problem| (problem.line, problem.code))
        .collect();
    assert_eq!(
        lines,
        [(3, "skill.yaml_repaired"), (5, "skill.yaml_repaired")]
    );
    assert!(problems[0].message.contains("description") && problems[1].message.contains("author"));
    let front = &document.front_matter;
    assert_eq!(
        (
            front.license.as_str(),
            front.version.as_str(),
            front.author.as_str()
        ),
        ("MIT", "1.2", "[me")
    );
    assert_eq!(front.tags, ["x"]);
    for (text, line) in [
        ("---\nname: a\ndescription: b\nx: 1\nx: 2\n---\n", 5),
        (
            "---\nname: a\ndescription: b\nmetadata:\n  y: 1\n  y: 2\n---\n",
            6,
        ),
        (
            "---\nname: a\ndescription: b\n<<<: [\nmetadata:\n  y: 1\n  y: 2\n---\n",
            7,
        ),
        (
            "\n\n---\nname: a\ndescription: b\nallowed-tools: {a: b}\n---\n",
            6,
        ),
        (
            "---\nname: a\ndescription: b\n---\nTools:\n- two words\n",
            6,
        ),
        ("---\nname: a\ndescription: \u{200b}b\n---\n", 3),
    ] {
        let problems = of(text).problems(ValidationProfile::Lenient);
        assert!(
            problems.iter().any(|problem| problem.line == line),
            "{text:?}: {problems:?}"
        );
    }
    let problem = parse_documents(Some(b"---\nname: a\ndescription: \xff\n---\n"), None, DIR)
        .problems(ValidationProfile::Lenient);
    assert_eq!((problem[0].code, problem[0].line), ("skill.not_utf8", 3));
}

/// Keys and the tools that they allow: `key => tools, separated by semicolons`, with `(warned)` where there is a
/// warning. A
/// `\n` is a line break.
const TOOLS: &str = r#"
allowed-tools: Bash(git add:*), Read => Bash(git add:*); Read
allowed-tools: Bash(git add:*) Read => Bash(git add:*); Read
allowed-tools: ["Bash(git add:*)", Read] => Bash(git add:*); Read
allowed-tools:\n- Bash(git add:*)\n- Read => Bash(git add:*); Read
allowed_tools: Read,Write , Read => Read; Write
allowed_tools: Read，Write、Grep => Read; Write; Grep
tools: [Read] => Read
tools: Grep\nallowed-tools: Read => Read
allowed-tools: 'Bash(a, b (c))' => Bash(a, b (c))
allowed-tools: mcp__x__*, mcp:a/b, @a => mcp__x__*; mcp:a/b; @a
allowed-tools: [] =>
// Not YAML, and still to be understood.
allowed-tools: * => * (warned)
allowed-tools: Bash(git: *), Read => Bash(git: *); Read (warned)
// Not to be understood: nothing is allowed.
allowed-tools: [Read, Write => (warned)
allowed-tools: Bash(git => (warned)
allowed-tools: Read) => (warned)
allowed-tools: {Read: true} => (warned)
allowed-tools: [Read, [Write]] => (warned)
allowed-tools: => (warned)
allowed-tools: "Read => (warned)
allowed-tools: <all> => (warned)
"#;

#[test]
fn allowed_tools_are_read_in_every_spelling_and_never_lost() {
    assert_eq!(of(&good("")).front_matter.allowed_tools, None);
    for case in TOOLS.trim().lines().filter(|line| !line.starts_with("//")) {
        let (yaml, expected) = case.split_once(" =>").expect("a case");
        let document = of(&good(&yaml.replace("\\n", "\n")));
        let warned = expected.contains("(warned)");
        let expected_text = expected.replace("(warned)", "");
        let expected_tools: Vec<&str> = expected_text
            .split(';')
            .map(str::trim)
            .filter(|tool| !tool.is_empty())
            .collect();
        let tools = document.front_matter.allowed_tools.as_ref();
        assert_eq!(tools.expect("restricted"), &expected_tools, "{yaml}");
        let problems = document.problems(ValidationProfile::Lenient);
        assert_eq!(!problems.is_empty(), warned, "{yaml}");
        assert_eq!(document.refusal(ValidationProfile::Lenient), None, "{yaml}");
        assert_eq!(document.front_matter.description, "b", "{yaml}");
    }
}

#[test]
fn a_restriction_to_persons_is_read_in_every_spelling() {
    for (yaml, expected, problems) in [
        ("", false, 0),
        ("disable-model-invocation: true", true, 0),
        ("disable-model-invocation: \"yes\"", true, 0),
        ("disable_model_invocation: True", true, 0),
        ("disableModelInvocation: on", true, 0),
        ("metadata:\n  disable-model-invocation: true", true, 0),
        ("disable-model-invocation: false", false, 0),
        ("disable-model-invocation: No", false, 0),
        ("disable-model-invocation:", false, 0),
        // What cannot be read restricts, and says so.
        ("disable-model-invocation: always", true, 1),
        ("disable-model-invocation: [x]", true, 1),
        // It hides a skill from a menu for persons, which skilld does not have.
        ("user-invocable: false", false, 0),
    ] {
        let document = of(&good(yaml));
        let front = &document.front_matter;
        assert_eq!(front.disable_model_invocation, expected, "{yaml}");
        let found = document.problems(ValidationProfile::Lenient);
        assert_eq!(found.len(), problems, "{yaml}: {found:?}");
    }
}

#[test]
fn text_in_another_encoding_is_read_and_named() {
    for (text, encoding, name) in [
        (
            "Größe und Stückzahl",
            encoding_rs::WINDOWS_1252,
            "windows-1252",
        ),
        ("把多个表格文件合并成一个", encoding_rs::GBK, "GBK"),
    ] {
        let (bytes, _, _) = encoding.encode(text);
        let bytes = [&b"---\nname: a\ndescription: "[..], &bytes, b"\n---\n"].concat();
        let document = parse_documents(Some(&bytes), None, DIR);
        assert_eq!(document.front_matter.description, text);
        let problems = document.problems(ValidationProfile::Lenient);
        assert_eq!((problems[0].code, problems[0].line), ("skill.not_utf8", 3));
        assert!(problems[0].message.contains(name), "{problems:?}");
    }
}

#[test]
fn lists_aliases_and_unknown_keys_are_kept() {
    let text = good(
        "tag: x, y z\ntrigger_patterns: [p, q r]\nlicense: MIT\ncompatibility: needs jq\nx-unknown: 1.10\nhomepage: 'h'\n\
         metadata: {author: me, n: 3, f: 0.5, t: true, y: yes, openclaw: {os: [linux], requires: {bins: [jq, curl], \
         anyBins: 'node, bun', env: [API_KEY]}}, other: {requires: {bins: [jq, git]}}}\nrequires: {env: HOME}",
    );
    let document = of(&text);
    let front = &document.front_matter;
    assert_eq!(
        (&front.tags, &front.triggers),
        (
            &vec!["x".to_owned(), "y z".to_owned()],
            &vec!["p".to_owned(), "q r".to_owned()]
        )
    );
    assert_eq!(
        (
            front.author.as_str(),
            front.license.as_str(),
            front.compatibility.as_str()
        ),
        ("me", "MIT", "needs jq")
    );
    assert_eq!(front.requires.bins, ["jq", "curl", "git"]);
    assert_eq!(front.requires.any_bins, ["node", "bun"]);
    assert_eq!(front.requires.env, ["HOME", "API_KEY"]);
    assert_eq!(front.fields["x-unknown"], "1.10");
    let metadata = &front.fields["metadata"];
    assert_eq!(metadata["openclaw"]["os"][0], "linux");
    assert_eq!(
        (
            &metadata["n"],
            &metadata["f"],
            &metadata["t"],
            &metadata["y"]
        ),
        (&3.into(), &0.5.into(), &true.into(), &"yes".into())
    );
    assert_eq!(
        of(&good("metadata: text")).front_matter.fields["metadata"],
        serde_json::json!({})
    );
    for key in ["triggers", "trigger", "activation"] {
        assert_eq!(
            of(&good(&format!("{key}: x"))).front_matter.triggers,
            ["x"],
            "{key}"
        );
    }
    assert_eq!(document.body, "Body.\n");
    assert_eq!(shown(&document, ValidationProfile::Lenient), "a|b|");
}

#[test]
fn the_example_of_the_documentation_says_what_it_is_said_to() {
    let documentation = include_str!("../../../../../docs/writing-skills.md");
    let example: String = documentation
        .lines()
        .skip_while(|line| !line.starts_with("    ---"))
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(|line| line.get(4..).unwrap_or_default().to_owned() + "\n")
        .collect();
    let document = parse_documents(Some(example.as_bytes()), None, "csv-report");
    assert_eq!(document.problems(ValidationProfile::Lenient), []);
    let front = &document.front_matter;
    assert_eq!(
        (front.version.as_str(), front.author.as_str()),
        ("1.10", "Team Tables")
    );
    assert_eq!(front.tools, ["read_table"]);
    assert_eq!(
        (&front.requires.bins, &front.requires.env),
        (&vec!["python3".to_owned()], &vec!["REPORT_LANG".to_owned()])
    );
}

#[test]
fn utf16_is_read() {
    let text = good("license: ü😀");
    for big in [false, true] {
        let mut bytes = if big {
            vec![0xfe, 0xff]
        } else {
            vec![0xff, 0xfe]
        };
        for unit in text.encode_utf16() {
            bytes.extend(if big {
                unit.to_be_bytes()
            } else {
                unit.to_le_bytes()
            });
        }
        let document = parse_documents(Some(&bytes), None, DIR);
        assert_eq!(shown(&document, ValidationProfile::Lenient), "a|b| +utf16");
        assert_eq!(
            (
                document.front_matter.license.as_str(),
                document.body.as_str()
            ),
            ("ü😀", "Body.\n")
        );
        bytes.push(0xd8);
        assert!(
            parse_documents(Some(&bytes), None, DIR)
                .body
                .ends_with('\u{fffd}')
        );
    }
}

#[test]
fn a_description_that_a_comment_cuts_is_reported_with_its_line() {
    for (yaml, line) in [
        ("description: Use C # or F #", Some(3)),
        ("description: b\t#1 of all", Some(3)),
        (
            "description:\n  Use it\n  for ticket #7\nlicense: MIT",
            Some(5),
        ),
        ("x: 'y: z\ndescription: b #1", Some(4)),
        // A text that the comment does not cut, or that has quotes.
        ("description: C# and F#", None),
        ("description: \"b #1\"", None),
        ("description: 'b #1' # c", None),
        ("description: >\n  b #1\n  c", None),
        ("description: b\n  # c\nlicense: MIT # c", None),
        ("license: MIT # c\ndescription: b\n# c #d", None),
    ] {
        let document = of(&front(&format!("name: a\n{yaml}")));
        let problems = document.problems(ValidationProfile::Lenient);
        let cut = problems
            .iter()
            .find(|problem| problem.code == "skill.cut_description");
        assert_eq!(cut.map(|problem| problem.line), line, "{yaml:?}");
    }
}

#[test]
fn every_hidden_character_that_a_description_loses_is_reported() {
    let hidden = [
        '\u{7}',
        '\u{b}',
        '\u{c}',
        '\u{85}',
        '\u{ad}',
        '\u{34f}',
        '\u{115f}',
        '\u{1160}',
        '\u{17b4}',
        '\u{180b}',
        '\u{180f}',
        '\u{200b}',
        '\u{2028}',
        '\u{2029}',
        '\u{202e}',
        '\u{2060}',
        '\u{3164}',
        '\u{feff}',
        '\u{ffa0}',
        '\u{e0020}',
        '\u{e0100}',
        '\u{e0fff}',
    ];
    for char in hidden {
        // Escaped, as it is in a plain text, and where each key is read alone.
        let escaped = match u32::from(char) {
            code @ 0..=0xffff => format!("\"b\\u{code:04x}c\""),
            code => format!("\"b\\U{code:08x}c\""),
        };
        for value in [escaped, format!("b{char}c"), format!("x: b{char}c")] {
            let document = of(&front(&format!("name: a\ndescription: {value}")));
            let description = &document.front_matter.description;
            assert!(!description.contains(char), "{char:?}: {description:?}");
            let problems = document.problems(ValidationProfile::Lenient);
            let reported = problems
                .iter()
                .any(|problem| problem.code == "skill.hidden_characters");
            assert!(reported, "{char:?} in {value:?}: {problems:?}");
        }
    }
}

/// Headers that trpc-agent-go and trpc-agent-python lose or misread.
#[test]
fn nothing_of_a_header_is_lost_to_its_form() {
    for (text, expected) in [
        // Quotes are not part of the text.
        (front("name: \"a\"\ndescription: 'q'"), "a|q|"),
        // A name further in is not the skill's.
        (
            front("name: a\ndescription: b\nmetadata:\n  name: x\n  description: y"),
            "a|b|",
        ),
        // Comments are no keys.
        (
            front("# note: x\nname: a # c\ndescription: b # c"),
            "a|b| +cut_description",
        ),
        (front("name: a\ndescription: b#c"), "a|b#c|"),
        (
            front("name: 123\ndescription: 2024-01-02"),
            "123|2024-01-02| +folder_name",
        ),
        (
            front("name: true\ndescription: 1e3"),
            "true|1e3| +folder_name",
        ),
        (front("description: b\nname:   a  "), "a|b|"),
    ] {
        assert_eq!(
            shown(&of(&text), ValidationProfile::Lenient),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn a_name_never_becomes_a_path() {
    let hostile = [
        "../../../victim",
        "/etc",
        "a/../..",
        "..",
        "...",
        "-rf",
        "a\\b",
        "a b;c",
        "con",
        "\u{202e}a",
        "a\u{0}b",
        "~",
        "*",
        "$(x)",
        "a\nb",
        "%2e%2e",
        " demo ",
        "skills/../x",
        ".git",
        "é",
        "\u{2025}",
    ];
    for name in hostile {
        for dir in ["a", "", "..", "-x", "My Dir", "é"] {
            let quoted = serde_json::to_string(name).expect("text");
            let text = front(&format!("name: {quoted}\ndescription: b"));
            for document in [
                parse_documents(Some(text.as_bytes()), None, dir),
                parse_documents(
                    None,
                    Some(format!("{{\"id\": {quoted}, \"description\": \"b\"}}").as_bytes()),
                    dir,
                ),
            ] {
                let id = &document.front_matter.name;
                let refused = document.refusal(ValidationProfile::Lenient);
                assert!(
                    crate::parse::skill_name::is_name(id) || id.is_empty() && refused.is_some(),
                    "{name:?} in {dir:?}: {id:?}"
                );
            }
        }
    }
}

/// A bomb and the code that it must get; empty if it is harmless in the end.
fn bombs() -> Vec<(&'static str, String, &'static str)> {
    let keys = |count: usize, value: &str| -> String {
        (0..count).map(|n| format!("k{n}: {value}\n")).collect()
    };
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let previous = format!("*a{}, ", level - 1).repeat(9);
        aliases += &format!(
            "a{level}: &a{level} [{}]\n",
            previous.trim_end_matches(", ")
        );
    }
    let small = keys(400, "[&x [1, 2, 3, 4, 5, 6, 7, 8, 9], *x, *x, *x, *x, *x]");
    let chain: String = (1..40)
        .map(|n| format!("d{n}: &d{n} [*d{}]\n", n - 1))
        .collect();
    let hundred = format!("x: {}{}", "[".repeat(100), "]".repeat(100));
    let words = "y ".repeat(400_000);
    vec![
        ("aliases", aliases.clone(), "skill.too_complex"),
        (
            "aliases, in pieces",
            format!("x: y: z\n{aliases}"),
            "skill.yaml_repaired",
        ),
        (
            "many small bombs, in pieces",
            format!("x: y: z\n{small}"),
            "skill.too_complex",
        ),
        (
            "deep by aliases",
            format!("d0: &d0 [x]\n{chain}"),
            "skill.too_complex",
        ),
        (
            "100 deep, in pieces",
            format!("y: z: z\n{hundred}"),
            "skill.too_complex",
        ),
        ("100 deep", hundred, "skill.too_complex"),
        (
            "100,000 deep",
            format!("x: {}", "[".repeat(100_000)),
            "skill.too_complex",
        ),
        (
            "100,000 deep, in blocks",
            format!("x:\n  {}y", "- ".repeat(100_000)),
            "skill.too_complex",
        ),
        ("many keys", keys(30_000, "v"), "skill.too_complex"),
        ("many bad keys", keys(30_000, "v: w"), "skill.yaml_repaired"),
        (
            "one key, many times",
            "k: v\n".repeat(9_000),
            "skill.duplicate_key",
        ),
        ("one long text", format!("x: {words}"), ""),
        (
            "one long text without an end",
            format!("x: \"{words}"),
            "skill.yaml_repaired",
        ),
        ("many anchors", keys(9_000, "&k v"), ""),
        ("a long key", format!("? {}\n: v", "k".repeat(500_000)), ""),
        ("ends without a beginning", "]".repeat(100_000), ""),
    ]
}

/// The same, of maps whose keys are what is large.
fn bombs_of_keys() -> Vec<(&'static str, String, &'static str)> {
    vec![
        (
            "aliases of a map with a long key",
            format!(
                "a: &x\n  ? \"{}\"\n  : 1\nb: [{}]",
                "k".repeat(900_000),
                "*x, ".repeat(9_900).trim_end_matches(", ")
            ),
            "skill.too_complex",
        ),
        (
            "aliases of a map with many keys",
            format!(
                "a: &x {{{}}}\nb: [{}]",
                (0..1_000).map(|n| format!("k{n}: , ")).collect::<String>(),
                "*x, ".repeat(15).trim_end_matches(", ")
            ),
            "skill.too_complex",
        ),
    ]
}

/// Deadline of reading a text, which usually takes less than a second.
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn bombs_are_refused_in_bounded_time() {
    for (name, yaml, code) in bombs().into_iter().chain(bombs_of_keys()) {
        let started = Instant::now();
        let document = of(&good(&yaml));
        let elapsed = started.elapsed();
        let problems = document.problems(ValidationProfile::Lenient);
        assert!(
            code.is_empty() || problems.iter().any(|problem| problem.code == code),
            "{name}: {problems:?}"
        );
        assert!(problems.len() < 200, "{name}");
        // An alias bomb that was expanded would take hours.
        assert!(elapsed < DEADLINE, "{name}: {elapsed:?}");
    }
}

#[test]
fn comments_before_the_front_matter_are_read_once() {
    let many = format!("{}{}", "<!---->\n".repeat(125_000), good(""));
    assert!(many.len() < SKILL_MD_BYTES_MAX);
    // Minutes, if the lines before each of them were counted again.
    let started = Instant::now();
    let document = of(&many);
    assert!(document.findings.problems(ValidationProfile::Lenient).len() < 200);
    let elapsed = started.elapsed();
    assert!(elapsed < DEADLINE, "{elapsed:?}");
    let document = of(&format!("<!-- a\n-->\n\n<!-- b -->\n{}", good("x: [")));
    let lines = document.findings.problems(ValidationProfile::Lenient);
    let line = |code: &str| {
        lines
            .iter()
            .find(|one| one.code == code)
            .map(|one| one.line)
    };
    assert_eq!(line("skill.leading_comment"), Some(1));
    assert_eq!(line("skill.yaml_repaired"), Some(8));
    let second = |problem: &&Problem| problem.code == "skill.leading_comment" && problem.line == 4;
    assert_eq!(lines.iter().filter(second).count(), 1, "{lines:?}");
}

#[test]
fn lists_of_a_skill_are_bounded() {
    let names = |count: usize| (0..count).map(|n| format!("t{n},")).collect::<String>();
    let tools = of(&good(&format!(
        "allowed-tools: [\"{}\", \"{}\"]",
        names(200),
        names(256)
    )));
    let allowed = tools.front_matter.allowed_tools;
    assert_eq!(allowed.map(|tools| tools.len()), Some(256));
    let many: String = (0..3_000).map(|n| format!("- a{n},b{n},c{n}\n")).collect();
    let document = of(&good(&format!("allowed-tools:\n{many}")));
    assert_eq!(document.front_matter.allowed_tools, Some(Vec::new()));
    let problems = document.findings.problems(ValidationProfile::Lenient);
    assert!(problems.iter().any(|one| one.code == "skill.allowed_tools"));
    for key in ["tags", "triggers"] {
        let front = of(&good(&format!("{key}: {}", names(50_000)))).front_matter;
        assert_eq!(front.tags.len() + front.triggers.len(), 1_000, "{key}");
    }
}

#[test]
fn ten_megabytes_are_refused() {
    let text = format!(
        "---\nname: a\ndescription: b\n---\n{}",
        "x".repeat(10 << 20)
    );
    let document = of(&text);
    assert_eq!(
        shown(&document, ValidationProfile::Lenient),
        "a|| !too_large"
    );
    let card = format!("{{\"id\": \"a\", \"x\": \"{}\"}}", "x".repeat(10 << 20));
    let document = parse_documents(None, Some(card.as_bytes()), DIR);
    assert_eq!(
        shown(&document, ValidationProfile::Lenient),
        "a|| !card.too_large"
    );
}

proptest! {
    #[test]
    fn a_bad_key_costs_no_good_one(
        bad in "[a-z]{1,6}: (\\[|\\{|\"x|'x|\\*x|&|@x|`x|%x|> x|x: y|\"x\" y|\\}|, x|!!)[a-z :,\\[\\]{}]{0,20}",
        at in 0_usize..4,
    ) {
        let mut keys = vec!["name: a", "description: b", "version: 1.10", "license: MIT"];
        let bad = format!("z-{bad}");
        keys.insert(at, &bad);
        let document = of(&front(&keys.join("\n")));
        let front = &document.front_matter;
        let read = (front.name.as_str(), front.description.as_str(), front.version.as_str(), front.license.as_str());
        prop_assert_eq!(read, ("a", "b", "1.10", "MIT"), "{}", bad);
    }
}
