//! Block of a loaded skill in a prompt: its body and docs, each in a tag that names skill and digest.
//!
//! ```text
//! [Loaded] NAME                                  Docs loaded: a.md, b.md
//!                                                [Doc] a.md
//! <skill id="NAME" digest="…" dir="…">
//! BODY                                           <skill id="NAME" digest="…" doc="a.md">…</skill>
//! </skill>                                       Tools selected: x, y
//! ```

use super::prompt_budget::{self, PromptBudget};
use super::prompt_material::{CutText, InjectionReport, LoadedContent, SkillDoc, UnknownDoc};
use super::skill_load_history::{self, SkillLoadResult};
use super::untrusted_text::{attribute, one_line, without_tags};
use crate::state::{LoadScope, Selection, SessionState, skill_loads};

/// Loaded skills that a prompt shows, with the parts of their texts, in the order of their names.
pub(super) struct SkillBlocks<'a> {
    skills: Vec<ShownSkill<'a>>,
}

struct ShownSkill<'a> {
    skill: &'a LoadedContent,
    body: BodyOrDoc<'a>,
    docs: Vec<BodyOrDoc<'a>>,
    tools: Option<Vec<String>>,
}

/// Body or doc of a skill, which can be cut.
struct BodyOrDoc<'a> {
    /// Path of the doc; empty for the body.
    doc: &'a str,
    text: String,
}

impl<'a> BodyOrDoc<'a> {
    fn new(doc: &'a str, text: &str) -> Self {
        let text = without_tags(text.trim_end());
        Self { doc, text }
    }

    /// Returns `true` if a tag with these attributes holds this text, or held it before it was cut.
    fn is_in(&self, tag: &str, skill: &LoadedContent) -> bool {
        let has =
            |name: &str, value: &str| tag.contains(&format!("{name}=\"{}\"", attribute(value)));
        let is_doc = match self.doc {
            "" => !tag.contains(" doc=\""),
            doc => has(" doc", doc),
        };
        tag.starts_with(&format!("id=\"{}\"", attribute(&skill.name)))
            && has(" digest", &skill.digest)
            && is_doc
    }
}

impl ShownSkill<'_> {
    fn pieces(&self) -> impl Iterator<Item = &BodyOrDoc<'_>> {
        std::iter::once(&self.body).chain(&self.docs)
    }
}

impl<'a> SkillBlocks<'a> {
    /// Selects the loaded skills that the material has and reports the others.
    pub(super) fn select(
        loaded: &'a [LoadedContent],
        mut names: Vec<String>,
        (state, scope): (&SessionState, LoadScope<'_>),
        report: &mut InjectionReport,
    ) -> Self {
        names.sort();
        let mut skills = Vec::new();
        for name in names {
            match loaded.iter().find(|skill| skill.name == name) {
                None => report.missing.push(name),
                Some(skill) => skills.push(ShownSkill {
                    body: BodyOrDoc::new("", &skill.body),
                    docs: selected_docs(skill, state, scope, report)
                        .into_iter()
                        .map(|doc| BodyOrDoc::new(&doc.path, &doc.content))
                        .collect(),
                    tools: selected_tools(skill, state, scope),
                    skill,
                }),
            }
        }
        Self { skills }
    }

    /// Returns the names of the skills that are shown.
    pub(super) fn names(&self) -> Vec<String> {
        self.skills
            .iter()
            .map(|shown| shown.skill.name.clone())
            .collect()
    }

    /// Keeps the skills that `keep` selects.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.skills.retain(|shown| keep(&shown.skill.name));
    }

    /// Leaves out the skills whose texts a result holds already, in the same tags.
    pub(super) fn skip_shown(&mut self, loads: &[SkillLoadResult]) {
        let is_in_result = |shown: &ShownSkill<'_>| {
            let mut own = loads.iter().filter(|load| load.skill == shown.skill.name);
            own.any(|load| {
                let tags = skill_load_history::tags(&load.text);
                shown.pieces().all(|piece| {
                    piece.text.is_empty() || tags.iter().any(|tag| piece.is_in(tag, shown.skill))
                })
            })
        };
        self.skills.retain(|shown| !is_in_result(shown));
    }

    /// Returns the name and the text of each skill, all of them within the budget.
    pub(super) fn render(
        &self,
        budget: &PromptBudget<'_>,
        report: &mut InjectionReport,
    ) -> Vec<(String, String)> {
        let pieces = || {
            let skills = self.skills.iter();
            skills.flat_map(|shown| shown.pieces().map(move |piece| (shown.skill, piece)))
        };
        let lengths: Vec<usize> = pieces()
            .map(|(_, piece)| piece.text.chars().count())
            .collect();
        let all = |shares: &[usize]| -> String {
            let texts = self.texts(shares).into_iter();
            texts.map(|(_, text)| text).collect()
        };
        let fits = |shares: &[usize]| {
            budget.content == 0 || (budget.count)(&all(shares)) <= budget.content
        };
        let shares = prompt_budget::share_room(&lengths, fits).unwrap_or_else(|| {
            report.over_budget = true;
            vec![0; lengths.len()]
        });
        for (((skill, piece), shown), chars) in pieces().zip(&shares).zip(lengths) {
            if *shown < chars {
                report.cut.push(CutText {
                    skill: skill.name.clone(),
                    doc: piece.doc.to_owned(),
                    shown: *shown,
                    chars,
                });
            }
        }
        self.texts(&shares)
    }

    /// Returns the name and the text of each skill; `shares` are the characters that each piece may have.
    fn texts(&self, shares: &[usize]) -> Vec<(String, String)> {
        let mut shares = shares.iter().copied();
        let texts = self.skills.iter().map(|shown| {
            let text = render_block(shown, &mut shares);
            (shown.skill.name.clone(), text)
        });
        texts.collect()
    }
}

/// Returns the text of a loaded skill as a prompt shows it, uncut, for hosts whose models get it as the result of the
/// loading tool. Empty if the state does not have the skill loaded.
#[must_use]
pub fn loaded_text(skill: &LoadedContent, state: &SessionState, scope: LoadScope<'_>) -> String {
    let uncut = PromptBudget {
        content: 0,
        ..PromptBudget::default()
    };
    loaded_text_within(skill, state, scope, &uncut)
}

/// Returns the text of a loaded skill as [`loaded_text`] does, cut to a budget.
pub(crate) fn loaded_text_within(
    skill: &LoadedContent,
    state: &SessionState,
    scope: LoadScope<'_>,
    budget: &PromptBudget<'_>,
) -> String {
    let mut report = InjectionReport::default();
    let names = match skill_loads::is_loaded(state, scope, &skill.name) {
        true => vec![skill.name.clone()],
        false => Vec::new(),
    };
    let loaded = std::slice::from_ref(skill);
    let blocks = SkillBlocks::select(loaded, names, (state, scope), &mut report);
    let texts = blocks.render(budget, &mut report);
    texts.into_iter().map(|(_, text)| text).collect()
}

/// Returns the selected docs that the skill has. All docs are sorted by path; chosen ones keep their order, so that a
/// new one comes last.
fn selected_docs<'a>(
    skill: &'a LoadedContent,
    state: &SessionState,
    scope: LoadScope<'_>,
    report: &mut InjectionReport,
) -> Vec<&'a SkillDoc> {
    let find = |path: &String| skill.docs.iter().find(|doc| doc.path == *path);
    let mut found: Vec<&SkillDoc> = match skill_loads::docs(state, scope, &skill.name) {
        None => Vec::new(),
        Some(Selection::All) => {
            let mut all: Vec<&SkillDoc> = skill.docs.iter().collect();
            all.sort_by(|a, b| a.path.cmp(&b.path));
            all
        }
        Some(Selection::These(paths)) => {
            for path in paths.iter().filter(|path| find(path).is_none()) {
                report.unknown_docs.push(UnknownDoc {
                    skill: skill.name.clone(),
                    path: path.clone(),
                });
            }
            paths.iter().filter_map(find).collect()
        }
    };
    found.dedup_by(|later, first| later.path == first.path);
    found
}

/// Returns the selected tools, else the declared ones; `None` if the block should not mention tools.
fn selected_tools(
    skill: &LoadedContent,
    state: &SessionState,
    scope: LoadScope<'_>,
) -> Option<Vec<String>> {
    let chosen = match skill_loads::tools(state, scope, &skill.name) {
        Some(Selection::These(names)) => Some(names),
        Some(Selection::All) | None => None,
    };
    let is_chosen = chosen.is_some();
    let mut names = chosen.unwrap_or_else(|| skill.tools.clone());
    names.retain(|name| !skill.unavailable_tools.contains(name));
    (is_chosen || !names.is_empty()).then_some(names)
}

/// Returns the first characters of a piece, with a note if that is not all.
fn render_piece(skill: &LoadedContent, piece: &BodyOrDoc<'_>, chars: usize) -> String {
    let head = prompt_budget::head(&piece.text, chars);
    if head.len() == piece.text.len() {
        return piece.text.clone();
    }
    let file = match piece.doc {
        "" => "SKILL.md",
        doc => doc,
    };
    let all = piece.text.chars().count();
    // Within the tag, like the text.
    let rest = describe_whole(&one_line(&skill.name), &one_line(file), &skill.reader);
    format!("{head}\n[cut: {chars} of {all} characters; {rest}]")
}

/// Describes where all of a text is that is cut, and which tool reads it.
pub(crate) fn describe_whole(skill: &str, file: &str, reader: &str) -> String {
    let reading = match reader {
        "" => String::new(),
        reader => format!(", which {reader} reads in parts"),
    };
    format!("all of it is in skill://{skill}/{file}{reading}")
}

/// Renders the block of a skill, and takes the shares of its pieces.
fn render_block(shown: &ShownSkill<'_>, shares: &mut impl Iterator<Item = usize>) -> String {
    let skill = shown.skill;
    let mut render = |piece| render_piece(skill, piece, shares.next().unwrap_or_default());
    let mut block = format!("\n[Loaded] {}\n\n", one_line(&skill.name));
    let dir = match skill.dir.as_str() {
        "" => String::new(),
        dir => format!(" dir=\"{}\"", attribute(dir)),
    };
    push_tagged(&mut block, skill, &dir, &render(&shown.body));
    let paths = shown.docs.iter().map(|doc| doc.doc);
    block.push_str(&format!("Docs loaded: {}\n", join_names(paths)));
    for doc in &shown.docs {
        let text = render(doc);
        if !text.is_empty() {
            block.push_str(&format!("\n[Doc] {}\n\n", one_line(doc.doc)));
        }
        let path = format!(" doc=\"{}\"", attribute(doc.doc));
        push_tagged(&mut block, skill, &path, &text);
    }
    if let Some(tools) = &shown.tools {
        let tools = join_names(tools.iter().map(String::as_str));
        block.push_str(&format!("Tools selected: {tools}\n"));
    }
    block
}

/// Appends a text in its tag; nothing for an empty text.
fn push_tagged(block: &mut String, skill: &LoadedContent, attributes: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let (id, digest) = (attribute(&skill.name), attribute(&skill.digest));
    block.push_str(&format!(
        "<skill id=\"{id}\" digest=\"{digest}\"{attributes}>\n{text}\n</skill>\n"
    ));
}

/// Joins names with commas; "none" if there are none.
fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = names.map(one_line).collect::<Vec<_>>();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
