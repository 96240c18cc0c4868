//! Cards, alone and beside a SKILL.md.

use serde_json::json;

use super::*;
use crate::parse::document::{self, Document};
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Severity;

const SKILL_MD: &str =
    "---\nname: front\ndescription: of the front matter\nversion: 1.0\n---\nBody.\n";

fn with(card: &Value) -> Document {
    document::parse_documents(
        Some(SKILL_MD.as_bytes()),
        Some(card.to_string().as_bytes()),
        "front",
    )
}

fn codes(document: &Document) -> Vec<String> {
    let problems = document.problems(ValidationProfile::Lenient);
    let sign = |severity| {
        if severity == Severity::Error {
            "!"
        } else {
            "+"
        }
    };
    problems
        .iter()
        .map(|problem| format!("{}{}", sign(problem.severity), problem.code))
        .collect()
}

#[test]
fn a_card_overrides_the_front_matter() {
    let document = with(
        &json!({"id": "weather", "version": "2.0.0", "name": "Weather Skill", "description": "Tells it.",
        "base_uri": ".", "tenant_id": "t", "mcps": {"m": {"id": "m", "url": "http://x", "transport": "sse"}},
        "local_tools": {"t": {"id": "t", "import_path": "os.system"}}, "unknown": 1}),
    );
    let front = &document.front_matter;
    assert_eq!(codes(&document), Vec::<String>::new());
    assert_eq!(
        (front.name.as_str(), front.display_name.as_str()),
        ("weather", "Weather Skill")
    );
    assert_eq!(
        (front.version.as_str(), front.description.as_str()),
        ("2.0.0", "Tells it.")
    );
    assert_eq!(document.body, "Body.\n");
    let card = front.card.as_ref().expect("a card");
    // Data for the caller, as it stands.
    assert_eq!(card.fields["local_tools"]["t"]["import_path"], "os.system");
    assert_eq!(
        (card.fields["unknown"].clone(), card.remote(), &card.files),
        (json!(1), None, &None)
    );
}

#[test]
fn a_card_inherits_missing_fields_from_the_front_matter() {
    for card in [
        json!({}),
        json!({"version": "*", "id": null}),
        json!({"files": []}),
    ] {
        let document = with(&card);
        let front = &document.front_matter;
        assert_eq!(
            (front.name.as_str(), front.version.as_str()),
            ("front", "1.0"),
            "{card}"
        );
        assert_eq!(
            (front.description.as_str(), front.display_name.as_str()),
            ("of the front matter", "")
        );
        assert_eq!(codes(&document), Vec::<String>::new());
    }
}

#[test]
fn a_card_is_enough_front_matter() {
    let card = json!({"id": "weather", "name": "Weather", "description": "d", "version": "1.2", "base_uri": "https://x/y/",
        "files": ["SKILL.md", "./references//a.md"]});
    let document =
        document::parse_documents(Some(b"Text."), Some(card.to_string().as_bytes()), "any");
    let front = &document.front_matter;
    assert_eq!(
        (
            front.name.as_str(),
            front.version.as_str(),
            document.body.as_str()
        ),
        ("weather", "1.2", "Text.")
    );
    assert_eq!(codes(&document), ["+card.base_uri"]);
    let card = front.card.as_ref().expect("a card");
    assert_eq!(card.remote(), Some("https://x/y/"));
    assert_eq!(
        card.files.as_deref().expect("files"),
        ["SKILL.md", "references/a.md"]
    );
    // A body without front matter is enough as well, once a card says what it would.
    let card = json!({"description": "d"}).to_string();
    let document =
        document::parse_documents(Some(b"# Title\nText.\n"), Some(card.as_bytes()), "dir");
    assert_eq!(
        (document.front_matter.name.as_str(), document.body.as_str()),
        ("dir", "# Title\nText.\n")
    );
    assert_eq!(codes(&document), ["+skill.no_name"]);
    // Without a description nothing is.
    let document = document::parse_documents(None, Some(b"{\"id\": \"x\"}"), "dir");
    assert_eq!(
        codes(&document),
        ["!skill.no_description", "!card.no_instructions"]
    );
    assert_eq!(
        codes(&document::parse_documents(None, None, "dir")),
        ["!skill.no_description", "+skill.no_name"]
    );
}

#[test]
fn a_card_without_instructions_is_never_loaded() {
    let card = |base: &str| json!({"id": "a", "description": "d", "base_uri": base}).to_string();
    let front_only: &[u8] = b"---\nname: a\ndescription: d\n---\n \n";
    for (skill_md, base, says) in [
        (None, "https://skills.example/a", "https://skills.example/a"),
        (None, ".", "no SKILL.md beside the card"),
        (Some(&b""[..]), ".", "SKILL.md has no text"),
        (
            Some(front_only),
            "https://skills.example/a",
            "SKILL.md has no text",
        ),
    ] {
        let document = document::parse_documents(skill_md, Some(card(base).as_bytes()), "a");
        for profile in [ValidationProfile::Lenient, ValidationProfile::Spec] {
            let refusal = document.refusal(profile).expect("rejected");
            assert_eq!(refusal.code, "card.no_instructions", "{skill_md:?}");
            assert!(refusal.message.contains(says), "{}", refusal.message);
        }
    }
}

#[test]
fn files_are_an_allow_list() {
    let document = with(&json!({"files": ["references/a.md", "b.bin"]}));
    let card = document.front_matter.card.as_ref().expect("a card");
    for (path, allowed) in [
        ("references/a.md", true),
        ("b.bin", true),
        ("SKILL.md", true),
        ("skill-card.json", true),
        ("scripts/x.py", false),
        ("references/../b.bin", false),
    ] {
        assert_eq!(card.allows(path), allowed, "{path}");
    }
    assert_eq!(
        card.missing(|path| path == "b.bin")
            .map(|problem| problem.code),
        Some("card.file_missing")
    );
    assert_eq!(card.missing(|_| true), None);
    assert!(SkillCard::default().allows("anything"));
    let many: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
    let card = with(&json!({"files": many}))
        .front_matter
        .card
        .expect("a card");
    let message = card.missing(|_| false).expect("missing").message;
    assert!(message.ends_with("and 95 more"), "{message}");
}

#[test]
fn cards_that_cannot_be_used_reject_the_skill() {
    let deep = |depth: usize| format!("{{\"x\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
    let wide = |values: usize| format!("{{\"x\": [{}0]}}", "0,".repeat(values - 2));
    assert_eq!(
        codes(&with(&serde_json::from_str(&wide(20_000)).expect("JSON"))),
        Vec::<String>::new()
    );
    for (card, code) in [
        (wide(20_001).as_str(), "!card.too_large"),
        ("", "!card.invalid"),
        ("[]", "!card.invalid"),
        ("{\"id\": ", "!card.invalid"),
        ("{\"id\": \"\\ud800\"}", "!card.invalid"),
        (&deep(33), "!card.too_large"),
        (&deep(100_000), "!card.invalid"),
        ("{\"files\": \"SKILL.md\"}", "!card.files"),
        ("{\"files\": [1]}", "!card.files"),
        (
            "{\"files\": [\"references/../../../etc/passwd\"]}",
            "!card.path_escapes",
        ),
        ("{\"files\": [\"/etc/passwd\"]}", "!card.path_escapes"),
        ("{\"files\": [\"..\"]}", "!card.path_escapes"),
        ("{\"files\": [\"a\\\\..\\\\b\"]}", "!card.path_escapes"),
        ("{\"files\": [\"a\\u0000\"]}", "!card.path_escapes"),
        ("{\"files\": [\"\"]}", "!card.path_escapes"),
        (
            "{\"extensions\": [{\"uri\": \"urn:x\", \"required\": true}]}",
            "!card.extension_required",
        ),
        (
            "{\"extensions\": [{\"required\": \"yes\"}]}",
            "!card.extension_required",
        ),
    ] {
        let document =
            document::parse_documents(Some(SKILL_MD.as_bytes()), Some(card.as_bytes()), "front");
        assert_eq!(codes(&document), [code], "{}", &card[..card.len().min(80)]);
        assert_eq!(document.front_matter.name, "front");
    }
    let refusal = with(&json!({"extensions": [{"uri": "urn:x", "required": true}]}))
        .refusal(ValidationProfile::Lenient);
    assert!(refusal.expect("refused").message.contains("urn:x"));
}

#[test]
fn a_version_that_cannot_be_named_is_left_out() {
    for version in ["9".repeat(129), "9".repeat(600_000), "1\n2".to_owned()] {
        let document = with(&json!({"version": version}));
        assert_eq!(document.front_matter.version, "1.0");
        assert_eq!(codes(&document), ["+skill.version_unreadable"]);
    }
}

#[test]
fn cards_that_are_a_little_wrong_are_read() {
    for (card, code) in [
        (json!({"name": 5}), "+card.wrong_type"),
        (json!({"mcps": []}), "+card.wrong_type"),
        (json!({"local_tools": "x"}), "+card.wrong_type"),
        (json!({"extensions": {}}), "+card.wrong_type"),
        (json!({"version": "next week"}), "+skill.version_unreadable"),
        (json!({"base_uri": "/srv/skills/x"}), "+card.base_uri"),
        (json!({"base_uri": "../x"}), "+card.base_uri"),
        (json!({"base_uri": "HTTPS://x"}), "+card.base_uri"),
        (json!({"base_uri": "file:///etc"}), "+card.base_uri"),
        (json!({"id": "Weather Skill"}), "+skill.name_changed"),
        (
            json!({"description": "a\u{202e}b"}),
            "+skill.hidden_characters",
        ),
    ] {
        let document = with(&card);
        assert_eq!(codes(&document), [code], "{card}");
        assert_eq!(document.refusal(ValidationProfile::Lenient), None);
    }
    for card in [
        json!({"extensions": [{"uri": "urn:x", "required": false}, {"uri": "urn:x"}]}),
        json!({"extensions": [{"uri": "urn:skill:tools:local", "required": true}]}),
        json!({"base_uri": "./"}),
    ] {
        assert_eq!(codes(&with(&card)), Vec::<String>::new(), "{card}");
    }
}
