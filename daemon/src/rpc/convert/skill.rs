//! Conversion of skill requests, skills and problems.

use prost::Message;
use skilld_proto::json::to_proto_struct;
use skilld_proto::v1 as pb;

use super::page::keep_fitting;
use super::{ViolationCollector, int32, int64, other_form, requested_pool, timestamp_message};
use crate::error::Result;
use crate::skills::{
    Listing, PageCursor, Problem, Requires, Severity, Skill, SkillRef, SkillState,
    ValidationProfile,
};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

/// Collection of skills, before their names.
const SKILL_PREFIX: &str = "skills/";
/// Maximum size of one skill without its body, in bytes. A larger one is sent without its card or its raw front matter.
const SKILL_BYTES_MAX: usize = 1 << 20;
/// Maximum number of problems in one answer. If there are more, the last one gives their number.
const PROBLEMS_MAX: usize = 2000;
/// Maximum size of the problems in one answer, in bytes.
const PROBLEMS_BYTES_MAX: usize = 1 << 20;

/// Checks a `ListSkillsRequest`. Returns the position after which the page begins (`None` for the first page), the
/// page's size, and the profile by which skills are judged.
///
/// # Errors
/// `Invalid`.
pub fn check_list_skills(
    request: &pb::ListSkillsRequest,
) -> Result<(Option<PageCursor>, usize, ValidationProfile)> {
    let mut violations = ViolationCollector::default();
    let size = violations.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let token = violations.page_token(&request.page_token);
    let after = serde_json::from_str(token)
        .ok()
        .map(|(name, rank, version, source, within)| PageCursor {
            name,
            rank,
            version,
            source,
            within,
        });
    if after.is_none() && !token.is_empty() {
        violations.unknown_page_token();
    }
    let profile = profile(&mut violations, request.profile);
    violations.finish()?;
    Ok((after, size, profile))
}

fn profile(violations: &mut ViolationCollector, given: i32) -> ValidationProfile {
    match violations.known_enum("profile", given) {
        Some(pb::SkillProfile::Spec) => ValidationProfile::Spec,
        None | Some(pb::SkillProfile::Unspecified | pb::SkillProfile::Lenient) => {
            ValidationProfile::Lenient
        }
    }
}

/// Checks a `GetSkillRequest`.
///
/// # Errors
/// `Invalid`.
pub fn check_get_skill(
    request: &pb::GetSkillRequest,
) -> Result<(SkillRef, ValidationProfile, Option<String>)> {
    let mut violations = ViolationCollector::default();
    let skill = violations.take(check_skill_name("name", &request.name));
    let profile = profile(&mut violations, request.profile);
    let pool = violations.take(requested_pool(&request.pool));
    Ok((
        violations.finish_with(skill)?,
        profile,
        pool.unwrap_or_default(),
    ))
}

/// Parses `skills/{skill}`.
///
/// # Errors
/// `Invalid`.
pub(super) fn check_skill_name(field: &str, name: &str) -> Result<SkillRef> {
    Ok(SkillRef::parse(field, skill_part(field, name)?)?)
}

/// Makes one page of a listing. A page of large skills is shorter than requested.
pub fn skills_message(page: &Listing) -> pb::ListSkillsResponse {
    let messages = page
        .skills
        .iter()
        .map(|skill| skill_message(skill, String::new()));
    let skills = keep_fitting(messages);
    let more = page.has_more || skills.len() < page.skills.len();
    let last = skills
        .len()
        .checked_sub(1)
        .and_then(|last| page.skills.get(last))
        .filter(|_| more);
    pb::ListSkillsResponse {
        next_page_token: last.map(token).unwrap_or_default(),
        skills,
        problems: problem_messages(&page.problems),
    }
}

fn token(skill: &Skill) -> String {
    let PageCursor {
        name,
        rank,
        version,
        source,
        within,
    } = skill.cursor();
    // Serializing five plain values cannot fail.
    serde_json::to_string(&(name, rank, version, source, within)).unwrap_or_default()
}

/// Makes the answer of a refresh.
pub fn refreshed_message(listing: &Listing) -> pb::RefreshSkillsResponse {
    let count = |of: &[SkillState]| {
        let skills = listing.skills.iter();
        int32(skills.filter(|skill| of.contains(&skill.state)).count())
    };
    pb::RefreshSkillsResponse {
        loaded_count: count(&[SkillState::Loaded, SkillState::LoadedWithWarnings]),
        rejected_count: count(&[SkillState::Rejected]),
        shadowed_count: count(&[SkillState::Shadowed]),
        problems: problem_messages(&listing.problems),
    }
}

/// Returns what follows `skills/` in the name of a skill.
///
/// # Errors
/// `Invalid`.
pub(super) fn skill_part<'a>(field: &str, name: &'a str) -> Result<&'a str> {
    let skill = name.strip_prefix(SKILL_PREFIX);
    skill.ok_or_else(|| other_form(field, name, "skills/{skill}"))
}

/// Returns the resource name of a skill, which is also its folder in a workspace.
pub(super) fn skill_name(skill: &str) -> String {
    format!("{SKILL_PREFIX}{skill}")
}

/// Makes the message of one skill.
pub fn skill_message(skill: &Skill, body: String) -> pb::Skill {
    let front = &skill.front_matter;
    let state = match skill.state {
        SkillState::Loaded => pb::SkillState::Loaded,
        SkillState::LoadedWithWarnings => pb::SkillState::LoadedWithWarnings,
        SkillState::Rejected => pb::SkillState::Rejected,
        SkillState::Shadowed => pb::SkillState::Shadowed,
    };
    let content = skill.content.as_ref();
    let mut wire = pb::Skill {
        name: skill_name(&skill.name),
        digest: content
            .map(|content| format!("sha256:{}", content.digest))
            .unwrap_or_default(),
        description: front.description.clone(),
        version: front.version.clone(),
        state: state.into(),
        root: skill.root.clone(),
        aliases: skill.aliases.clone(),
        plugin: skill.plugin_name().to_owned(),
        source: skill.source.clone(),
        file_count: content.map_or(0, |content| int64(content.files)),
        size_bytes: content.map_or(0, |content| int64(content.bytes)),
        tags: front.tags.clone(),
        author: front.author.clone(),
        license: front.license.clone(),
        compatibility: front.compatibility.clone(),
        tools: front.tools.clone(),
        allowed_tools: front.allowed_tools.clone().unwrap_or_default(),
        restricts_tools: front.allowed_tools.is_some(),
        triggers: front.triggers.clone(),
        needs: Some(requires(&front.requires)),
        card: front
            .card
            .as_ref()
            .map(|card| to_proto_struct(card.fields.clone())),
        display_name: front.display_name.clone(),
        front_matter: (!front.fields.is_empty()).then(|| to_proto_struct(front.fields.clone())),
        body: String::new(),
        problems: problem_messages(&skill.problems),
        update_time: skill.update_time.and_then(timestamp_message),
        missing_packages: None,
        disable_model_invocation: front.disable_model_invocation,
    };
    shorten(&mut wire);
    wire.body = body;
    wire
}

/// Removes the card and the raw front matter, whose values are in other fields too, from a skill that is too large.
fn shorten(skill: &mut pb::Skill) {
    let mut left_out = Vec::new();
    let too_long = |skill: &pb::Skill| skill.encoded_len() > SKILL_BYTES_MAX;
    if too_long(skill) && skill.card.take().is_some() {
        left_out.push("card");
    }
    if too_long(skill) && skill.front_matter.take().is_some() {
        left_out.push("front_matter");
    }
    if left_out.is_empty() {
        return;
    }
    let message = format!(
        "{} is left out here: the skill has more than {SKILL_BYTES_MAX} bytes of it",
        left_out.join(" and ")
    );
    skill.problems.push(pb::Problem {
        severity: pb::ProblemSeverity::Warning.into(),
        code: "skill.shortened".to_owned(),
        subject: skill.source.clone(),
        message,
        ..pb::Problem::default()
    });
}

fn requires(requires: &Requires) -> pb::SkillNeeds {
    pb::SkillNeeds {
        bins: requires.bins.clone(),
        any_bins: requires.any_bins.clone(),
        env: requires.env.clone(),
    }
}

/// Makes the messages of problems; of very many only the first ones.
pub fn problem_messages(problems: &[Problem]) -> Vec<pb::Problem> {
    let mut bytes = 0;
    let mut shown: Vec<_> = problems
        .iter()
        .take(PROBLEMS_MAX)
        .map(problem_message)
        .collect();
    shown.retain(|problem| {
        bytes += problem.encoded_len();
        bytes <= PROBLEMS_BYTES_MAX
    });
    let more = problems.len().saturating_sub(shown.len());
    if more > 0 {
        shown.push(pb::Problem {
            severity: pb::ProblemSeverity::Warning.into(),
            code: "skill.more_problems".to_owned(),
            message: format!("and {more} more problems; ListSkills has those of each skill"),
            ..pb::Problem::default()
        });
    }
    shown
}

/// Converts a severity.
pub(super) fn severity_message(severity: Severity) -> pb::ProblemSeverity {
    match severity {
        Severity::Warning => pb::ProblemSeverity::Warning,
        Severity::Error => pb::ProblemSeverity::Error,
    }
}

fn problem_message(problem: &Problem) -> pb::Problem {
    pb::Problem {
        severity: severity_message(problem.severity).into(),
        code: problem.code.to_owned(),
        subject: problem.subject.clone(),
        message: problem.message.clone(),
        line: int32(problem.line),
        detect_time: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost_types::value::Kind;

    use super::*;
    use crate::skills::FrontMatter;

    #[test]
    fn a_page_is_no_larger_than_a_message_and_problems_are_counted() {
        let skill = |name: &str| Skill {
            name: name.to_owned(),
            front_matter: Arc::new(FrontMatter {
                description: "d".repeat((1 << 20) / 2),
                ..FrontMatter::default()
            }),
            ..Skill::default()
        };
        let problem = Problem::warning("skill.x", "x");
        let response = skills_message(&Listing {
            skills: ["a", "b", "c"].map(skill).to_vec(),
            has_more: false,
            problems: vec![problem; PROBLEMS_MAX + 7],
        });
        assert_eq!(response.skills.len(), 1);
        let after = check_list_skills(&pb::ListSkillsRequest {
            page_token: response.next_page_token,
            ..pb::ListSkillsRequest::default()
        });
        assert_eq!(after.expect("good").0, Some(skill("a").cursor()));
        assert_eq!(response.problems.len(), PROBLEMS_MAX + 1);
        let last = response.problems.last().expect("there");
        assert!(last.message.contains("7 more"), "{last:?}");
    }

    /// Makes a skill with the largest SKILL.md and card that parse.
    fn hostile(name: &str) -> Skill {
        let items = "0,".repeat(19_000);
        let text = "x".repeat(900_000);
        let card = format!("{{\"id\": \"{name}\", \"x\": [{items}0], \"y\": \"{text}\"}}");
        let long = "t".repeat(500_000);
        let front = format!(
            "---\nname: {name}\ndescription: d\nauthor: &t {long}\nlicense: *t\n---\n{}",
            "b".repeat(500_000)
        );
        let document = crate::skills::document::parse_documents(
            Some(front.as_bytes()),
            Some(card.as_bytes()),
            name,
        );
        assert!(
            document.refusal(ValidationProfile::Lenient).is_none(),
            "{:?}",
            document.findings
        );
        assert!(document.front_matter.card.is_some());
        Skill {
            name: name.to_owned(),
            front_matter: Arc::new(document.front_matter),
            ..Skill::default()
        }
    }

    #[test]
    fn no_skill_is_too_long_to_be_listed() {
        let skills: Vec<Skill> = ["a", "b", "c"].map(hostile).to_vec();
        let message_bytes_max = 4 << 20;
        let mut problem = Problem::warning("skill.x", "x".repeat(1000));
        problem.subject = "/s".repeat(2000);
        let listed = skills_message(&Listing {
            skills: skills.clone(),
            has_more: false,
            problems: vec![problem; PROBLEMS_MAX],
        });
        assert!(
            listed.encoded_len() < message_bytes_max,
            "{}",
            listed.encoded_len()
        );
        let one = listed.skills.first().expect("one");
        let codes: Vec<&str> = one.problems.iter().map(|one| one.code.as_str()).collect();
        assert_eq!(codes, ["skill.shortened"]);
        let got = skill_message(&skills[0], "b".repeat(1 << 20));
        assert!(
            got.encoded_len() < message_bytes_max,
            "{}",
            got.encoded_len()
        );
        assert_eq!((got.body.len(), got.card.is_none()), (1 << 20, true));
        assert_eq!(got.license.len(), 500_000);
    }

    #[test]
    fn the_token_of_a_page_is_taken_back_whatever_a_card_says() {
        let version = "9".repeat(600_000);
        let card = format!("{{\"id\": \"a\", \"description\": \"d\", \"version\": \"{version}\"}}");
        let document = crate::skills::document::parse_documents(None, Some(card.as_bytes()), "a");
        let path = "/deep".repeat(800);
        let skill = Skill {
            name: "a".to_owned(),
            source: format!("{path} -> {path}"),
            within: path,
            front_matter: Arc::new(document.front_matter),
            ..Skill::default()
        };
        let response = skills_message(&Listing {
            skills: vec![skill.clone(); 3],
            has_more: true,
            problems: Vec::new(),
        });
        let after = check_list_skills(&pb::ListSkillsRequest {
            page_token: response.next_page_token,
            ..pb::ListSkillsRequest::default()
        });
        assert_eq!(after.expect("good").0, Some(skill.cursor()));
    }

    #[test]
    fn requests_are_checked() {
        let good = |name: &str| {
            check_get_skill(&pb::GetSkillRequest {
                name: name.to_owned(),
                ..pb::GetSkillRequest::default()
            })
            .is_ok()
        };
        assert!(good("skills/csv") && good("skills/csv@1.2") && good("skills/a/b@^1"));
        assert!(!good("csv") && !good("skills/") && !good("skills/../x") && !good("skills/a/../b"));
        for (page_size, page_token) in [(-1, ""), (0, "x"), (0, "a/0"), (0, "[1,2]")] {
            assert!(
                check_list_skills(&pb::ListSkillsRequest {
                    page_size,
                    page_token: page_token.to_owned(),
                    ..pb::ListSkillsRequest::default()
                })
                .is_err()
            );
        }
    }

    #[test]
    fn front_matter_keeps_its_shape() {
        let json = serde_json::json!({"a": [1, true, null, {"b": "c"}]});
        let structure = to_proto_struct(json.as_object().expect("object").clone());
        let Some(Kind::ListValue(list)) = &structure.fields["a"].kind else {
            panic!("not a list")
        };
        assert_eq!(list.values.len(), 4);
        assert_eq!(list.values[0].kind, Some(Kind::NumberValue(1.0)));
    }
}
