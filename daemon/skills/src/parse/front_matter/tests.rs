//! The grammar of the `Tools:` section, a row for each form, and what other systems make of it wrongly.

use super::tool_names;
use crate::parse::finding::{Findings, ValidationProfile};

fn tools(body: &str) -> (Vec<String>, usize) {
    let mut findings = Findings::default();
    let tools = tool_names::read_tools_section(body, 1, &mut findings);
    (tools, findings.problems(ValidationProfile::Lenient).len())
}

#[test]
fn the_tools_section_follows_its_grammar() {
    for (body, expected, warnings) in [
        ("Tools:\n- a\n- b\n", vec!["a", "b"], 0),
        ("tools:\n- a\n", vec!["a"], 0),
        ("  TOOLS:  \n  - a\n", vec!["a"], 0),
        ("**Tools:**\n- `a`\n- **b**\n", vec!["a", "b"], 0),
        ("Text.\n\nTools:\n\n- a\n\n- b\n", vec!["a", "b"], 0),
        // What follows the colon declares nothing; a heading is no section.
        ("Tools: a, b\n", vec![], 0),
        ("## Tools:\n- a\n", vec![], 0),
        ("Tools：\n- a\n", vec!["a"], 0),
        ("Tools\n- a\n", vec![], 0),
        ("No section.\n- a\n", vec![], 0),
        // Headings, fences and text after a blank line end it, for the rest of the body too.
        ("Tools:\n- a\n\n# Steps\n- do\n", vec!["a"], 1),
        ("Tools:\n- a\n## Steps\n- do\n", vec!["a"], 0),
        ("Tools:\n- a\n# Steps\n\n- do\n", vec!["a"], 0),
        ("Tools:\n- a\n\nFormats:\n- JSON\n", vec!["a"], 0),
        // What may be a tool after the end is reported.
        ("Tools:\n- a\n```\n- b\n```\n- c\n", vec!["a"], 1),
        ("Tools:\n- a\n\nThen do\n- b\n", vec!["a"], 1),
        ("Tools:\n- a\nOverview: x\n- b\n", vec!["a"], 1),
        ("Tools:\n- a\n\nMore tools\n\n- read_table\n", vec!["a"], 1),
        ("Tools:\n- a\nText\n- b\n", vec!["a", "b"], 0),
        // A section may come again, and not within code.
        (
            "Tools:\n- a\n\n# X\n\nTools:\n- b\n- a\n",
            vec!["a", "b"],
            0,
        ),
        ("```\nTools:\n- a\n```\n", vec![], 0),
        ("~~~\n```\nTools:\n- a\n~~~\nTools:\n- b\n", vec!["b"], 0),
        // Comments.
        (
            "Tools:\n- a # why\n- b\t# why\n#c\n# - d\n- # e\n- f\n",
            vec!["a", "b", "f"],
            0,
        ),
        // Names.
        (
            "Tools:\n- get_weather\n- srv.tool\n- mcp__a__b\n- ns:x\n- a/b-c\n",
            vec!["get_weather", "srv.tool", "mcp__a__b", "ns:x", "a/b-c"],
            0,
        ),
        (
            "Tools:\n- do x\n- 1st\n- a;b\n- ../x\n- \u{430}\n- ok\n",
            vec!["ok"],
            5,
        ),
        ("Tools:\n---\n- a\n-\n- -\n", vec!["a"], 1),
        ("Tools:\n* a\n1. b\n- c\n+ d\n", vec!["a", "c", "d"], 0),
        ("Tools:\n-f\n", vec!["f"], 0),
    ] {
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(tools(body), (expected, warnings), "{body:?}");
    }
}

#[test]
fn a_comment_line_does_not_end_the_tools_section() {
    let weather =
        "Tools:\n# weather tools\n- get_weather\n# - old_api\n# maps\n# and more: x\n- get_map\n";
    let expected = vec!["get_weather".to_owned(), "get_map".to_owned()];
    assert_eq!(tools(weather), (expected, 0));
}

#[test]
fn a_heading_before_more_tools_is_reported() {
    for body in [
        "Tools:\n- a\n\n# weather tools\n- get_weather\n",
        "Tools:\n- a\n# weather tools\n\n- get_weather\n",
        "Tools:\n- a\n### Weather\n- srv.weather # x\n",
        "Tools:\n- a\n\nThe weather tools:\n- weather\n",
        "Tools:\n- a\n```sh\nx\n```\n\n- get_weather\n",
    ] {
        let mut findings = Findings::default();
        assert_eq!(
            tool_names::read_tools_section(body, 1, &mut findings),
            ["a"],
            "{body:?}"
        );
        let problems = findings.problems(ValidationProfile::Lenient);
        assert_eq!(problems[0].code, "skill.tools_ended", "{body:?}");
        assert!(problems[0].message.contains("weather"), "{problems:?}");
    }
}

#[test]
fn a_section_is_bounded() {
    let many: String = (0..10_000).map(|n| format!("- t{n}\n")).collect();
    let (read, problems) = tools(&format!("Tools:\n{many}"));
    assert_eq!((read.len(), problems), (256, 1));
    let long = "x".repeat(129);
    assert_eq!(tools(&format!("Tools:\n- {long}\n")), (vec![], 1));
}
