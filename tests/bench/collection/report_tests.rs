//! Tests of the report's text and JSON.

use super::*;

fn sample() -> CollectionReport {
    let good = SkillReport {
        name: "good".to_owned(),
        version: "1.2".to_owned(),
        is_loaded: true,
        environment: EnvironmentState::NotNeeded,
        scripts: vec![("scripts/a.py".to_owned(), ScriptOutcome::Started)],
        ..Default::default()
    };
    let broken = ScriptOutcome::Broken("ModuleNotFoundError: No module named 'torch'".to_owned());
    let lacking = SkillReport {
        name: "lacking".to_owned(),
        is_loaded: true,
        environment: EnvironmentState::Missing("no wheel of x".to_owned()),
        lacks: vec!["ruby".to_owned()],
        may_lack: vec!["torch".to_owned()],
        scripts: vec![("scripts/b.py".to_owned(), broken)],
        ..Default::default()
    };
    let rejected = SkillReport {
        name: "rejected".to_owned(),
        problems: vec!["skill.no_description: add one".to_owned()],
        ..Default::default()
    };
    CollectionReport {
        image: "skilld/base:latest".to_owned(),
        problems: Vec::new(),
        skills: vec![good, lacking, rejected],
    }
}

#[test]
fn table_names_what_each_skill_lacks() {
    let expected = "\
SKILL     LOADED  ENVIRONMENT  MISSING        SCRIPTS
good@1.2  yes     not needed   nothing found  1 started
lacking   yes     not built    lacks 1        1 can't run
    environment: no wheel of x
    lacks ruby
    may lack torch
    scripts/b.py: ModuleNotFoundError: No module named 'torch'
rejected  no      –            –              –
    skill.no_description: add one

3 skills in skilld/base:latest: 2 loaded, 1 with nothing missing found, 1 without their environment
2 scripts: 1 started with --help, 1 can't run, 0 unclear: they ended with another error
";
    assert_eq!(sample().to_text(), expected);
}

#[test]
fn json_has_the_same_facts() {
    let value: Value = serde_json::from_str(&sample().to_json()).expect("JSON");
    let at = |path: &str| value.pointer(path).cloned().unwrap_or_default();
    assert_eq!(at("/totals/scripts_broken"), 1);
    assert_eq!(at("/skills/0/ready"), true);
    assert_eq!(at("/skills/1/environment/state"), "missing");
    assert_eq!(at("/skills/1/scripts/0/outcome"), "broken");
    assert_eq!(at("/skills/2/loaded"), false);
}

#[test]
fn skill_text_is_one_bounded_line_without_control_characters() {
    assert_eq!(one_line("a\x1b[31m\n b\t"), "a [31m b");
    assert_eq!(one_line(&"é".repeat(400)).chars().count(), SHOWN_CHARS + 1);
}
