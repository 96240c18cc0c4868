//! Token counts of tool definitions: those of loaded skills beside all tools of a pool.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_tools::LoadMode;
use skilld_tools::host_tool_offer::{SkillToolDeclaration, select_host_tools};
use skilld_tools::state::{LoadScope, SessionState, skill_loads};
use tiktoken_rs::CoreBPE;

use crate::{Row, tokens};

const NOUNS: [&str; 20] = [
    "weather forecast",
    "calendar event",
    "invoice",
    "customer record",
    "support ticket",
    "purchase order",
    "shipment",
    "inventory item",
    "payment",
    "contract",
    "employee profile",
    "expense claim",
    "meeting room",
    "email draft",
    "chat channel",
    "wiki page",
    "build job",
    "deployment",
    "feature flag",
    "database query",
];
/// Number of tools that a skill declares, as in the reference's example.
const TOOLS_OF_A_SKILL: usize = 3;

/// Returns the rows for each size of the pool: one skill loaded, and two.
pub(crate) fn rows(tokenizer: &CoreBPE) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for size in [20, 50, 100] {
        for (loaded, target, saved_min) in [(1, "85–95 %", 85.0), (2, "", 0.0)] {
            let what = format!(
                "definitions of {size} tools: {loaded} skill{} loaded",
                if loaded == 1 { "" } else { "s" }
            );
            let row = Row::new(what, figures(size, loaded, tokenizer)?);
            rows.push(row.with_target(target, saved_min));
        }
    }
    Ok(rows)
}

/// Returns the mean over all skills of the pool: tokens of the offered tools, and of all tools.
fn figures(size: usize, loads: usize, tokenizer: &CoreBPE) -> Result<(usize, usize)> {
    let pool = pool(size);
    let names: Vec<&str> = pool.iter().map(|(name, _)| name.as_str()).collect();
    let skills: Vec<SkillToolDeclaration> = names
        .chunks_exact(TOOLS_OF_A_SKILL)
        .enumerate()
        .map(|(number, tools)| SkillToolDeclaration {
            skill: format!("skill-{number}"),
            tools: tools.iter().map(|name| (*name).to_owned()).collect(),
        })
        .collect();
    let cost = |name: &str| -> Result<usize> {
        let tool = pool
            .iter()
            .find(|(own, _)| own == name)
            .context("a tool of the pool")?;
        Ok(tokens(tokenizer, &tool.1.to_string()))
    };
    let scope = LoadScope::new("agent", LoadMode::Session);
    let mut sum = 0;
    for at in 0..skills.len() {
        let mut state = SessionState::new();
        for skill in skills.iter().cycle().skip(at).take(loads) {
            state.apply(&skill_loads::load(&state, scope, &skill.skill, None, None));
        }
        let now = select_host_tools(&state, scope, &skills, names.iter().copied());
        for name in &now.names {
            sum += cost(name)?;
        }
    }
    let all = names.iter().map(|name| cost(name)).sum::<Result<usize>>()?;
    Ok((sum / skills.len().max(1), all))
}

/// Returns tool definitions in the shape of a Chat Completions request.
fn pool(size: usize) -> Vec<(String, Value)> {
    let verbs = ["search", "get", "create", "update", "delete"];
    let all = NOUNS
        .iter()
        .flat_map(|noun| verbs.iter().map(move |verb| (*verb, *noun)));
    all.take(size)
        .map(|(verb, noun)| {
            let name = format!("{verb}_{}", noun.replace(' ', "_"));
            (name.clone(), definition(&name, verb, noun))
        })
        .collect()
}

fn definition(name: &str, verb: &str, noun: &str) -> Value {
    let text = |description: String| json!({"type": "string", "description": description});
    let id = text(format!(
        "Identifier of the {noun}, as a search returned it."
    ));
    let properties = match verb {
        "search" => json!({
            "query": text(format!("Words that the {noun} contains.")),
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many to return at most."},
            "since": text("Only those changed after this time, in ISO 8601.".to_owned()),
        }),
        "create" | "update" => json!({
            "id": id,
            "title": text(format!("Title of the {noun}.")),
            "details": {"type": "object", "description": format!("Fields of the {noun} and their values.")},
            "notify": {"type": "boolean", "description": "Whether the people concerned are told."},
        }),
        _ => json!({"id": id}),
    };
    let required: Vec<&str> = if verb == "search" {
        vec!["query"]
    } else {
        vec!["id"]
    };
    json!({"type": "function", "function": {
        "name": name,
        "description": format!("Use this to {verb} a {noun}. Returns the {noun} as it is after the call, or says why that was refused."),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }})
}
