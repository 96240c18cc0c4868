//! Skill requests → checked values; skills → messages.

use prost_types::value::Kind;
use serde_json::{Map, Value};
use skilld_proto::v1 as pb;

use super::{Faults, int32, int64, page_size, page_token, timestamp};
use crate::error::{Error, Result};
use crate::skills::{Listing, Problem, Requires, Severity, Skill, SkillRef, SkillState, is_name};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

/// Where a page of skills begins and how long it is.
#[derive(Debug)]
pub struct Page {
    size: usize,
    /// After this name, and this many of those that share it. `None` is the first page.
    after: Option<(String, usize)>,
}

/// Checks a `ListSkillsRequest`.
///
/// # Errors
/// `Invalid`.
pub fn list(request: &pb::ListSkillsRequest) -> Result<Page> {
    let mut faults = Faults::default();
    let size = page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let size = faults.take("page_size", size);
    let token = faults.take("page_token", page_token(&request.page_token));
    let after = token.split_once('/').and_then(|(name, count)| {
        let count = count.parse().ok()?;
        is_name(name).then(|| (name.to_owned(), count))
    });
    if after.is_none() && !token.is_empty() {
        faults.add("page_token", "is not one that this server made");
    }
    faults.finish()?;
    Ok(Page { size, after })
}

/// Checks a `GetSkillRequest`.
///
/// # Errors
/// `Invalid`.
pub fn get(request: &pb::GetSkillRequest) -> Result<SkillRef> {
    let Some(skill) = request.name.strip_prefix("skills/") else {
        return Err(Error::invalid("name", "is not of the form skills/{skill}"));
    };
    SkillRef::parse("name", skill)
}

/// One page of a listing.
#[must_use]
pub fn page(listing: &Listing, page: &Page) -> pb::ListSkillsResponse {
    let mut skills = Vec::new();
    let mut next_page_token = String::new();
    // Those that are shadowed share their name with others: their place among these is part of the token.
    let mut last: Option<(&str, usize)> = None;
    for skill in &listing.skills {
        let place = match last {
            Some((name, place)) if name == skill.name => place + 1,
            _ => 0,
        };
        let key = (skill.name.as_str(), place);
        let before = page
            .after
            .as_ref()
            .is_some_and(|(name, place)| key <= (name.as_str(), *place));
        if !before && skills.len() == page.size {
            next_page_token = last
                .map(|(name, place)| format!("{name}/{place}"))
                .unwrap_or_default();
            break;
        }
        if !before {
            skills.push(self::skill(skill, String::new()));
        }
        last = Some(key);
    }
    let first = page.after.is_none();
    pb::ListSkillsResponse {
        skills,
        next_page_token,
        problems: listing
            .problems
            .iter()
            .filter(|_| first)
            .map(problem)
            .collect(),
    }
}

/// A skill for the wire.
#[must_use]
pub fn skill(skill: &Skill, body: String) -> pb::Skill {
    let front = &skill.front_matter;
    let state = match skill.state {
        SkillState::Loaded => pb::SkillState::Loaded,
        SkillState::LoadedWithWarnings => pb::SkillState::LoadedWithWarnings,
        SkillState::Rejected => pb::SkillState::Rejected,
        SkillState::Shadowed => pb::SkillState::Shadowed,
    };
    let content = skill.content.as_ref();
    pb::Skill {
        name: format!("skills/{}", skill.name),
        digest: content
            .map(|content| format!("sha256:{}", content.digest))
            .unwrap_or_default(),
        description: front.description.clone(),
        version: front.version.clone(),
        state: state.into(),
        root: skill.root.clone(),
        aliases: skill.aliases.clone(),
        source: skill.source.clone(),
        files: content.map_or(0, |content| int64(content.files)),
        bytes: content.map_or(0, |content| int64(content.bytes)),
        tags: front.tags.clone(),
        author: front.author.clone(),
        license: front.license.clone(),
        compatibility: front.compatibility.clone(),
        tools: front.tools.clone(),
        allowed_tools: front.allowed_tools.clone().unwrap_or_default(),
        restricts_tools: front.allowed_tools.is_some(),
        triggers: front.triggers.clone(),
        requires: Some(requires(&front.requires)),
        card: front.card.as_ref().map(|card| structure(&card.fields)),
        display_name: front.display_name.clone(),
        front_matter: (!front.fields.is_empty()).then(|| structure(&front.fields)),
        body,
        problems: skill.problems.iter().map(problem).collect(),
        update_time: skill.update_time.and_then(timestamp),
    }
}

fn requires(requires: &Requires) -> pb::SkillRequirements {
    pb::SkillRequirements {
        bins: requires.bins.clone(),
        any_bins: requires.any_bins.clone(),
        env: requires.env.clone(),
    }
}

/// All problems of roots and of skills, for the wire.
#[must_use]
pub fn problems(listing: &Listing) -> Vec<pb::Problem> {
    let of_skills = listing.skills.iter().flat_map(|skill| &skill.problems);
    listing
        .problems
        .iter()
        .chain(of_skills)
        .map(problem)
        .collect()
}

fn problem(problem: &Problem) -> pb::Problem {
    let severity = match problem.severity {
        Severity::Warning => pb::problem::Severity::Warning,
        Severity::Error => pb::problem::Severity::Error,
    };
    pb::Problem {
        severity: severity.into(),
        code: problem.code.to_owned(),
        subject: problem.subject.clone(),
        message: problem.message.clone(),
        line: int32(problem.line),
        time: None,
    }
}

fn structure(fields: &Map<String, Value>) -> prost_types::Struct {
    prost_types::Struct {
        fields: fields
            .iter()
            .map(|(key, field)| (key.clone(), value(field)))
            .collect(),
    }
}

/// Front matter is at most 32 levels deep, so this ends.
fn value(json: &Value) -> prost_types::Value {
    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(truth) => Kind::BoolValue(*truth),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(prost_types::ListValue {
            values: items.iter().map(value).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(structure(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let skill = |name: &&str| Skill {
            name: (*name).to_owned(),
            aliases: Vec::new(),
            root: "/root".into(),
            source: "/root/x".into(),
            dir: "/root/x".into(),
            nested: Vec::new(),
            state: SkillState::Loaded,
            front_matter: Default::default(),
            content: None,
            problems: Vec::new(),
            update_time: None,
        };
        Listing {
            skills: names.iter().map(skill).collect(),
            problems: vec![Problem {
                severity: Severity::Error,
                code: "root.unreadable",
                subject: "/gone".to_owned(),
                message: "gone".to_owned(),
                line: 0,
            }],
        }
    }

    #[test]
    fn pages_hold_every_skill_once_and_problems_come_first() {
        let names = ["a", "b", "b", "b", "b-2", "c"];
        let listing = listing(&names);
        for page_size in 1..=7 {
            let (mut token, mut seen, mut problems) = (String::new(), Vec::new(), Vec::new());
            loop {
                let request = pb::ListSkillsRequest {
                    page_size,
                    page_token: token,
                    ..pb::ListSkillsRequest::default()
                };
                let response = page(&listing, &list(&request).expect("good"));
                seen.extend(response.skills.into_iter().map(|skill| skill.name));
                problems.push(response.problems.len());
                token = response.next_page_token;
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(
                seen,
                names.map(|name| format!("skills/{name}")),
                "{page_size}"
            );
            assert_eq!((problems[0], problems.iter().sum::<usize>()), (1, 1));
        }
    }

    #[test]
    fn requests_are_checked() {
        let good = |name: &str| {
            get(&pb::GetSkillRequest {
                name: name.to_owned(),
                ..pb::GetSkillRequest::default()
            })
            .is_ok()
        };
        assert!(good("skills/csv") && good("skills/csv@1.2") && good("skills/a/b@^1"));
        assert!(!good("csv") && !good("skills/") && !good("skills/../x") && !good("skills/a/../b"));
        for (page_size, page_token) in [(-1, ""), (1001, ""), (0, "x"), (0, "../0"), (0, "a/b")] {
            let page_token = page_token.to_owned();
            assert!(
                list(&pb::ListSkillsRequest {
                    page_size,
                    page_token,
                    ..pb::ListSkillsRequest::default()
                })
                .is_err()
            );
        }
    }

    #[test]
    fn front_matter_keeps_its_shape() {
        let json = serde_json::json!({"a": [1, true, null, {"b": "c"}]});
        let structure = structure(json.as_object().expect("object"));
        let Some(Kind::ListValue(list)) = &structure.fields["a"].kind else {
            panic!("not a list")
        };
        assert_eq!(list.values.len(), 4);
        assert_eq!(list.values[0].kind, Some(Kind::NumberValue(1.0)));
    }
}
