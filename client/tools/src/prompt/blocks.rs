//! Block of a loaded skill in a prompt: its body and docs, each in a tag that names skill and digest.
//!
//! ```text
//! [Loaded] NAME                                  Docs loaded: a.md, b.md
//!                                                [Doc] a.md
//! <skill id="NAME" digest="…" dir="…">
//! BODY                                           <skill id="NAME" digest="…" doc="a.md">…</skill>
//! </skill>                                       Tools selected: x, y
//! ```

use super::budget::{self, PromptBudget};
use super::clean::{attribute, one_line, without_tags};
use super::history::{self, LoaderResult};
use super::material::{CutText, Injection, LoadedContent, SkillDoc, UnknownDoc};
use crate::state::{LoadScope, Selection, SessionState, skill_loads};

/// Skills that are shown, in the order of their names.
pub(super) struct SkillBlocks<'a> {
    skills: Vec<ShownSkill<'a>>,
}

struct ShownSkill<'a> {
    skill: &'a LoadedContent,
    docs: Vec<&'a SkillDoc>,
    tools: Option<Vec<String>>,
}

/// Body or doc of a skill, which can be cut.
struct TextPiece<'a> {
    skill: &'a str,
    doc: &'a str,
    text: String,
}

impl TextPiece<'_> {
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

impl<'a> SkillBlocks<'a> {
    /// Selects the loaded skills that the material has and reports the others.
    pub(super) fn select(
        loaded: &'a [LoadedContent],
        mut names: Vec<String>,
        (state, scope): (&SessionState, LoadScope<'_>),
        report: &mut Injection,
    ) -> Self {
        names.sort();
        let mut skills = Vec::new();
        for name in names {
            match loaded.iter().find(|skill| skill.name == name) {
                None => report.missing.push(name),
                Some(skill) => skills.push(ShownSkill {
                    docs: selected_docs(skill, state, scope, report),
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
    pub(super) fn skip_shown(&mut self, loads: &[LoaderResult]) {
        let is_in_result = |shown: &ShownSkill<'_>| {
            let mut own = loads.iter().filter(|load| load.skill == shown.skill.name);
            own.any(|load| {
                let tags = history::tags(&load.text);
                text_pieces(shown).iter().all(|piece| {
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
        report: &mut Injection,
    ) -> Vec<(String, String)> {
        let pieces: Vec<TextPiece<'_>> = self.skills.iter().flat_map(text_pieces).collect();
        let lengths: Vec<usize> = pieces
            .iter()
            .map(|piece| piece.text.chars().count())
            .collect();
        let all = |shares: &[usize]| -> String {
            let texts = self.texts(&pieces, shares).into_iter();
            texts.map(|(_, text)| text).collect()
        };
        let fits = |shares: &[usize]| {
            budget.content == 0 || (budget.count)(&all(shares)) <= budget.content
        };
        let shares = budget::share_room(&lengths, fits).unwrap_or_else(|| {
            report.over_budget = true;
            vec![0; lengths.len()]
        });
        for ((piece, shown), chars) in pieces.iter().zip(&shares).zip(lengths) {
            if *shown < chars {
                report.cut.push(CutText {
                    skill: piece.skill.to_owned(),
                    doc: piece.doc.to_owned(),
                    shown: *shown,
                    chars,
                });
            }
        }
        self.texts(&pieces, &shares)
    }

    fn texts(&self, pieces: &[TextPiece<'_>], shares: &[usize]) -> Vec<(String, String)> {
        let mut cut = pieces.iter().zip(shares);
        let mut texts = Vec::with_capacity(self.skills.len());
        for shown in &self.skills {
            let own = cut.by_ref().take(shown.docs.len() + 1);
            let own: Vec<String> = own
                .map(|(piece, share)| render_piece(piece, *share))
                .collect();
            texts.push((shown.skill.name.clone(), render_block(shown, &own)));
        }
        texts
    }
}

/// Returns the text of a loaded skill as a prompt shows it, uncut, for hosts whose models get it as the result of the
/// loading tool. Empty if the state does not have the skill loaded.
#[must_use]
pub fn loaded_text(skill: &LoadedContent, state: &SessionState, scope: LoadScope<'_>) -> String {
    let mut report = Injection::default();
    let names = match skill_loads::is_loaded(state, scope, &skill.name) {
        true => vec![skill.name.clone()],
        false => Vec::new(),
    };
    let loaded = std::slice::from_ref(skill);
    let blocks = SkillBlocks::select(loaded, names, (state, scope), &mut report);
    let texts = blocks.render(&PromptBudget::default(), &mut report);
    texts.into_iter().map(|(_, text)| text).collect()
}

/// Returns the selected docs that the skill has. All docs are sorted by path; chosen ones keep their order, so that a
/// new one comes last.
fn selected_docs<'a>(
    skill: &'a LoadedContent,
    state: &SessionState,
    scope: LoadScope<'_>,
    report: &mut Injection,
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
    let is_there = |name: &String| !skill.unavailable_tools.contains(name);
    let there = |names: &[String]| {
        names
            .iter()
            .filter(|name| is_there(name))
            .cloned()
            .collect()
    };
    match skill_loads::tools(state, scope, &skill.name) {
        None | Some(Selection::All) => {
            Some(there(&skill.tools)).filter(|names: &Vec<String>| !names.is_empty())
        }
        Some(Selection::These(names)) => Some(there(&names)),
    }
}

fn text_pieces<'a>(shown: &ShownSkill<'a>) -> Vec<TextPiece<'a>> {
    let piece = |doc: &'a str, text: &str| TextPiece {
        skill: &shown.skill.name,
        doc,
        text: without_tags(text.trim_end()),
    };
    let docs = shown.docs.iter().map(|doc| piece(&doc.path, &doc.content));
    std::iter::once(piece("", &shown.skill.body))
        .chain(docs)
        .collect()
}

/// Returns the first characters of a piece, with a note if that is not all.
fn render_piece(piece: &TextPiece<'_>, chars: usize) -> String {
    let head = budget::head(&piece.text, chars);
    if head.len() == piece.text.len() {
        return piece.text.clone();
    }
    let file = if piece.doc.is_empty() {
        "SKILL.md"
    } else {
        piece.doc
    };
    let all = piece.text.chars().count();
    // Within the tag, like the text.
    let (skill, file) = (one_line(piece.skill), one_line(file));
    format!("{head}\n[cut: {chars} of {all} characters; all of it is in skill://{skill}/{file}]")
}

/// Renders the block of a skill; `texts` are the body and the docs.
fn render_block(shown: &ShownSkill<'_>, texts: &[String]) -> String {
    let skill = shown.skill;
    let mut block = format!("\n[Loaded] {}\n\n", one_line(&skill.name));
    let mut texts = texts.iter();
    if let Some(body) = texts.next().filter(|body| !body.is_empty()) {
        let dir = match skill.dir.as_str() {
            "" => String::new(),
            dir => format!(" dir=\"{}\"", attribute(dir)),
        };
        push_tagged(&mut block, skill, &dir, body);
    }
    let paths = shown.docs.iter().map(|doc| doc.path.as_str());
    block.push_str(&format!("Docs loaded: {}\n", join_names(paths)));
    for (doc, text) in shown
        .docs
        .iter()
        .zip(texts)
        .filter(|(_, text)| !text.is_empty())
    {
        block.push_str(&format!("\n[Doc] {}\n\n", one_line(&doc.path)));
        push_tagged(
            &mut block,
            skill,
            &format!(" doc=\"{}\"", attribute(&doc.path)),
            text,
        );
    }
    if let Some(tools) = &shown.tools {
        let tools = join_names(tools.iter().map(String::as_str));
        block.push_str(&format!("Tools selected: {tools}\n"));
    }
    block
}

fn push_tagged(block: &mut String, skill: &LoadedContent, attributes: &str, text: &str) {
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
