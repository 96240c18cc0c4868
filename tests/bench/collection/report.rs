//! The report over a folder as text and as JSON. Text of skills is printed without control characters.

use std::fmt::Write as _;

use serde_json::{Value, json};
use skilld_client::v1::Problem;

use crate::check::{EnvironmentState, SkillReport};
use crate::script::ScriptOutcome;

/// Number of characters of a text of a skill that are printed.
const SHOWN_CHARS: usize = 160;

/// Results of all skills of a folder.
#[derive(Debug)]
pub(crate) struct CollectionReport {
    /// Image in which they were tried.
    pub(crate) image: String,
    /// Problems of the folder, and of skills without a name.
    pub(crate) problems: Vec<String>,
    /// Skills in order of their names.
    pub(crate) skills: Vec<SkillReport>,
}

/// Sums over all skills.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    found: usize,
    loaded: usize,
    ready: usize,
    environments_missing: usize,
    scripts: usize,
    started: usize,
    broken: usize,
    unclear: usize,
}

impl CollectionReport {
    /// Returns a table with one line per skill, details beneath it, and the totals.
    pub(crate) fn to_text(&self) -> String {
        let mut rows =
            vec![["SKILL", "LOADED", "ENVIRONMENT", "MISSING", "SCRIPTS"].map(str::to_owned)];
        rows.extend(self.skills.iter().map(cells));
        let widths: [usize; 5] = std::array::from_fn(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        });
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            let cells = row.iter().zip(widths);
            let line: String = cells
                .map(|(cell, width)| format!("{cell:width$}  "))
                .collect();
            push_line(&mut text, line.trim_end());
            let skill = number
                .checked_sub(1)
                .and_then(|index| self.skills.get(index));
            for detail in skill.map(details).unwrap_or_default() {
                push_line(&mut text, &format!("    {detail}"));
            }
        }
        for problem in &self.problems {
            push_line(&mut text, &format!("not a usable skill: {problem}"));
        }
        text.push_str(&self.totals().to_text(&self.image));
        text
    }

    /// Returns one JSON object, with a line end.
    pub(crate) fn to_json(&self) -> String {
        let totals = self.totals();
        let object = json!({
            "image": self.image,
            "skills": self.skills.iter().map(to_value).collect::<Vec<_>>(),
            "problems": self.problems,
            "totals": {
                "found": totals.found,
                "loaded": totals.loaded,
                "ready": totals.ready,
                "environments_missing": totals.environments_missing,
                "scripts": totals.scripts,
                "scripts_started": totals.started,
                "scripts_broken": totals.broken,
                "scripts_unclear": totals.unclear,
            },
        });
        format!("{object:#}\n")
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for skill in &self.skills {
            totals.found += 1;
            totals.loaded += usize::from(skill.is_loaded);
            totals.ready += usize::from(is_ready(skill));
            let is_missing = matches!(skill.environment, EnvironmentState::Missing(_));
            totals.environments_missing += usize::from(is_missing);
            for (_, outcome) in &skill.scripts {
                totals.scripts += 1;
                *match outcome {
                    ScriptOutcome::Started => &mut totals.started,
                    ScriptOutcome::Broken(_) => &mut totals.broken,
                    ScriptOutcome::Unclear(_) => &mut totals.unclear,
                } += 1;
            }
        }
        totals
    }
}

impl Totals {
    fn to_text(&self, image: &str) -> String {
        let Self {
            found,
            loaded,
            ready,
            environments_missing,
            scripts,
            started,
            broken,
            unclear,
        } = self;
        format!(
            "\n{found} skills in {image}: {loaded} loaded, {ready} with nothing missing found, \
             {environments_missing} without their environment\n\
             {scripts} scripts: {started} started with --help, {broken} can't run, {unclear} unclear: they ended with another error\n"
        )
    }
}

/// Returns `true` if nothing that the skill says it needs was found missing in the image.
fn is_ready(skill: &SkillReport) -> bool {
    let is_missing = matches!(skill.environment, EnvironmentState::Missing(_));
    skill.is_loaded && skill.failure.is_none() && skill.lacks.is_empty() && !is_missing
}

fn cells(skill: &SkillReport) -> [String; 5] {
    let loaded = match (skill.is_loaded, skill.problems.len()) {
        (true, 0) => "yes".to_owned(),
        (true, 1) => "yes, 1 warning".to_owned(),
        (true, count) => format!("yes, {count} warnings"),
        (false, _) => "no".to_owned(),
    };
    let name = match skill.version.as_str() {
        "" => skill.name.clone(),
        version => format!("{}@{version}", skill.name),
    };
    if !skill.is_loaded {
        return [name, loaded, dash(), dash(), dash()];
    }
    let environment = match &skill.environment {
        EnvironmentState::Unknown => dash(),
        EnvironmentState::NotNeeded => "not needed".to_owned(),
        EnvironmentState::Built(1) => "built, 1 package".to_owned(),
        EnvironmentState::Built(count) => format!("built, {count} packages"),
        EnvironmentState::Missing(_) => "not built".to_owned(),
    };
    let preflight = match (skill.lacks.len(), skill.may_lack.len()) {
        (0, 0) => "nothing found".to_owned(),
        (0, count) => format!("may lack {count}"),
        (count, _) => format!("lacks {count}"),
    };
    [name, loaded, environment, preflight, count_scripts(skill)]
}

/// Returns how many scripts had each outcome.
fn count_scripts(skill: &SkillReport) -> String {
    let outcomes: Vec<_> = skill
        .scripts
        .iter()
        .map(|(_, outcome)| match outcome {
            ScriptOutcome::Started => "started",
            ScriptOutcome::Broken(_) => "can't run",
            ScriptOutcome::Unclear(_) => "unclear",
        })
        .collect();
    let parts = ["started", "can't run", "unclear"]
        .into_iter()
        .filter_map(|wanted| {
            let count = outcomes
                .iter()
                .filter(|outcome| **outcome == wanted)
                .count();
            (count > 0).then(|| format!("{count} {wanted}"))
        });
    match parts.collect::<Vec<_>>() {
        parts if parts.is_empty() => "none".to_owned(),
        parts => parts.join(", "),
    }
}

fn dash() -> String {
    "–".to_owned()
}

/// Returns the lines beneath a skill: what is missing, and the scripts that did not start.
fn details(skill: &SkillReport) -> Vec<String> {
    let mut lines = Vec::new();
    if !skill.is_loaded {
        lines.extend(skill.problems.iter().take(1).cloned());
    }
    if let EnvironmentState::Missing(why) = &skill.environment {
        lines.push(format!("environment: {why}"));
    }
    for (what, names) in [("lacks", &skill.lacks), ("may lack", &skill.may_lack)] {
        if !names.is_empty() {
            lines.push(one_line(&format!("{what} {}", names.join(", "))));
        }
    }
    for (path, outcome) in &skill.scripts {
        match outcome {
            ScriptOutcome::Started => {}
            ScriptOutcome::Broken(why) => lines.push(format!("{}: {why}", one_line(path))),
            ScriptOutcome::Unclear(end) => lines.push(format!("{}: {end}", one_line(path))),
        }
    }
    if skill.scripts_left_out > 0 {
        lines.push(format!(
            "{} more files were not tried",
            skill.scripts_left_out
        ));
    }
    lines.extend(
        skill
            .failure
            .iter()
            .map(|why| format!("check failed: {why}")),
    );
    lines
}

fn to_value(skill: &SkillReport) -> Value {
    let (environment, packages, why) = match &skill.environment {
        EnvironmentState::Unknown => ("unknown", 0, None),
        EnvironmentState::NotNeeded => ("not_needed", 0, None),
        EnvironmentState::Built(count) => ("built", *count, None),
        EnvironmentState::Missing(why) => ("missing", 0, Some(why)),
    };
    let scripts = skill.scripts.iter().map(|(path, outcome)| match outcome {
        ScriptOutcome::Started => json!({"path": path, "outcome": "started"}),
        ScriptOutcome::Broken(why) => json!({"path": path, "outcome": "broken", "reason": why}),
        ScriptOutcome::Unclear(end) => json!({"path": path, "outcome": "unclear", "reason": end}),
    });
    json!({
        "name": skill.name,
        "version": skill.version,
        "source": skill.source,
        "loaded": skill.is_loaded,
        "ready": is_ready(skill),
        "problems": skill.problems,
        "environment": {"state": environment, "packages": packages, "reason": why},
        "lacks": skill.lacks,
        "may_lack": skill.may_lack,
        "scripts": scripts.collect::<Vec<_>>(),
        "scripts_left_out": skill.scripts_left_out,
        "failure": skill.failure,
    })
}

/// Returns a problem as `CODE: message`, with the line in SKILL.md if there is one.
pub(crate) fn problem_line(problem: &Problem) -> String {
    let mut text = problem.code.clone();
    if problem.line > 0 {
        let _ = write!(text, " (line {})", problem.line);
    }
    one_line(&format!("{text}: {}", problem.message))
}

/// Returns a text in one line of bounded length, each run of blanks and control characters as one space.
pub(crate) fn one_line(text: &str) -> String {
    let is_gap = |char: char| char.is_whitespace() || char.is_control();
    let words = text.split(is_gap).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
