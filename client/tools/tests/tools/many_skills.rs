//! Lists of thousands of skills: bounded answers, pages that show every skill once, and a search.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value without the key is how a test fails"
)]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skilld_client::v1::{SearchSkillsRequest, SkillScoring};
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::Family;
use skilld_tools::prompt::{Provider, inject};

use crate::conversation::{Conversation, all_tools, conversation_about};
use crate::schema::fits;

const SKILLS: usize = 2000;
/// Bytes of an answer, as the documentation states them.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

fn name(number: usize) -> String {
    format!("a-skill-with-a-name-of-usual-length-{number:04}")
}

async fn conversation(family: Family) -> (Fake, Conversation) {
    let kits = (0..SKILLS).map(|number| {
        let mut kit = Kit::new(&name(number), "1.0.0");
        kit.skill.description = format!("{number}: \u{1f600} \"quoted\" {}", "words ".repeat(150));
        kit.skill.tags = vec!["tag ".repeat(40), "other ".repeat(40)];
        kit.skill.author = "Ann ".repeat(100);
        kit
    });
    conversation_about(kits.collect(), all_tools(family)).await
}

/// Follows a list page by page. Returns the names in its order, and the number of answers.
async fn follow_pages(
    talk: &mut Conversation,
    tool: &str,
    arguments: Value,
    names: impl Fn(&Value) -> Vec<String>,
) -> (Vec<String>, usize) {
    let definitions = talk.definitions().await;
    let definition = definitions.iter().find(|known| known.name == tool);
    let returns = definition.expect("an offered tool").returns.clone();
    let (mut seen, mut answers, mut asked) = (Vec::new(), 0, arguments);
    loop {
        let answer = talk.ok(tool, asked.clone()).await;
        let bytes = answer.to_string().len();
        assert!(bytes <= ANSWER_BYTES_MAX, "{tool} {asked}: {bytes} bytes");
        fits(&answer, &returns).expect("the documented result");
        answers += 1;
        let page = names(&answer);
        assert!(!page.is_empty(), "{tool} {asked}");
        seen.extend(page);
        let Some(next) = answer["next_offset"].as_u64() else {
            return (seen, answers);
        };
        let message = answer["message"]
            .as_str()
            .or(answer["text"].as_str())
            .expect("a message");
        assert!(
            message.contains(&format!("of {SKILLS}; the others: ")),
            "{message}"
        );
        assert!(
            message.contains(&format!("with offset {next}")),
            "{message}"
        );
        asked["offset"] = next.into();
    }
}

/// Returns the strings of a list, or one field of each of its entries.
fn texts(list: &Value, field: Option<&str>) -> Vec<String> {
    let items = list.as_array().expect("a list").iter();
    let texts = items.map(|item| field.map_or(item, |field| &item[field]));
    texts
        .map(|text| text.as_str().expect("text").to_owned())
        .collect()
}

fn check_all_once(seen: &[String]) {
    let wanted: Vec<String> = (0..SKILLS).map(name).collect();
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    assert!(seen == wanted, "each skill once, in the order of the names");
}

#[tokio::test]
async fn skill_list_pages_are_bounded_and_show_each_skill_once() {
    let (_fake, mut talk) = conversation(Family::Trpc).await;
    for (arguments, field, answers_max) in [
        (json!({}), None, 8),
        (json!({"details": true}), Some("name"), 60),
    ] {
        let names = |answer: &Value| texts(&answer["skills"], field);
        let (seen, answers) = follow_pages(&mut talk, "skill_list", arguments, names).await;
        check_all_once(&seen);
        assert!(answers <= answers_max, "{answers} answers");
    }
    let page = talk.ok("skill_list", json!({"details": true})).await;
    assert_eq!(page["total"], SKILLS);
    let description = page["skills"][0]["description"].as_str().expect("text");
    assert!(description.starts_with("0: ") && description.ends_with('…'));
    let beyond = talk.ok("skill_list", json!({"offset": SKILLS})).await;
    assert_eq!(
        beyond,
        json!({"skills": [], "total": SKILLS, "message": "the list has 2000 skills, none of them from offset 2000 on"})
    );
}

#[tokio::test]
async fn a_large_overview_is_bounded_and_says_how_to_find_the_rest() {
    for (family, search) in [
        (Family::Trpc, "skill_list with query"),
        (Family::Sherma, "list_skills with query"),
        (Family::AgentZero, "skills_tool with method search"),
    ] {
        let (_fake, talk) = conversation(family).await;
        let (tools, session, state) = (&talk.tools, &talk.session, &talk.state);
        let material = tools.material(session, state).await.expect("the skills");
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
        let options = tools.prompt_options(session);
        let report =
            inject(Provider::OpenAiChat, &mut body, &material, state, &options).expect("a request");
        let text = body["messages"][0]["content"].as_str().expect("text");
        assert!(text.len() <= ANSWER_BYTES_MAX, "{} bytes", text.len());
        let listed = text.lines().skip(1).count();
        assert_eq!(listed + report.omitted, SKILLS);
        assert!(listed > 300, "{listed} names");
        let header = format!(
            "Available skills (showing {listed} of {SKILLS}; {search} finds the other {} by words):\n- {}\n",
            report.omitted,
            name(0)
        );
        assert!(text.starts_with(&header), "{}", &text[..200]);
    }
}

#[tokio::test]
async fn a_query_finds_one_skill_among_thousands() {
    let wanted = name(1234);
    let query = json!({"query": " length-1234 "});
    let (fake, mut talk) = conversation(Family::Trpc).await;
    assert_eq!(talk.ok("skill_list", query.clone()).await, json!([wanted]));
    let mut details = query.clone();
    details["details"] = true.into();
    let found = talk.ok("skill_list", details).await;
    assert_eq!(texts(&found, Some("name")), std::slice::from_ref(&wanted));
    // The whole description: it fits.
    assert!(found[0]["description"].as_str().expect("text").len() > 900);
    let searches = fake.calls.requests::<SearchSkillsRequest>("SearchSkills");
    assert!(
        searches
            .iter()
            .all(|search| search.query == "length-1234"
                && search.scoring() != SkillScoring::AgentZero)
    );
    let words = talk.refused("skill_list", json!({"query": "of the"})).await;
    assert_eq!(words.0, "INVALID_ARGUMENTS");
    assert!(words.1.contains("has no word to look for"), "{words:?}");

    let (_fake, mut talk) = conversation(Family::Sherma).await;
    for tool in ["list_skills", "search_skills"] {
        let found = talk.ok(tool, json!({"query": "length-1234"})).await;
        assert_eq!(
            texts(&found, Some("id")),
            std::slice::from_ref(&wanted),
            "{tool}"
        );
    }
    let (_fake, mut talk) = conversation(Family::AgentZero).await;
    let search = json!({"method": "search", "query": "length-1234"});
    let found = talk.ok("skills_tool", search).await;
    assert_eq!(texts(&found["matches"], Some("name")), [wanted]);
}

#[tokio::test]
async fn shermas_and_agent_zeros_lists_are_bounded_pages_too() {
    let (_fake, mut talk) = conversation(Family::Sherma).await;
    let names = |answer: &Value| texts(&answer["skills"], Some("id"));
    let (seen, _) = follow_pages(&mut talk, "list_skills", json!({}), names).await;
    check_all_once(&seen);
    let found = talk
        .ok("search_skills", json!({"query": "length", "limit": 100}))
        .await;
    assert!(found.to_string().len() <= ANSWER_BYTES_MAX);
    assert_eq!(found["total"], 100);

    let (_fake, mut talk) = conversation(Family::AgentZero).await;
    let names = |answer: &Value| {
        let names = texts(&answer["skills"], Some("name"));
        let text = answer["text"].as_str().expect("text");
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), names.len());
        let is_of = |(line, name): (&&str, &String)| line.starts_with(&format!("- {name} v1.0.0 "));
        assert!(lines.iter().zip(&names).all(is_of), "{text}");
        names
    };
    let list = json!({"method": "list"});
    let (seen, _) = follow_pages(&mut talk, "skills_tool", list, names).await;
    check_all_once(&seen);
    let search = json!({"method": "search", "query": "length"});
    let found = talk.ok("skills_tool", search).await;
    assert!(found.to_string().len() <= ANSWER_BYTES_MAX);
    let text = found["text"].as_str().expect("text");
    assert!(
        text.starts_with("skills 1 to ") && text.contains(" of 25; "),
        "{text}"
    );
}
