//! What a loaded skill looks like in a prompt: its body and docs, each in a tag that names skill and digest.
//!
//! ```text
//! [Loaded] NAME                                  Docs loaded: a.md, b.md
//!                                                [Doc] a.md
//! <skill id="NAME" digest="…" dir="…">
//! BODY                                           <skill id="NAME" digest="…" doc="a.md">…</skill>
//! </skill>                                       Tools selected: x, y
//! ```

use super::budget::{self, Budget};
use super::clean::{attribute, one_line, without_tags};
use super::history::{self, Load};
use super::material::{Cut, Doc, Loaded, Report, UnknownDoc};
use crate::state::{Scope, Selection, SessionState, loading};

/// Skills that are shown, in the order of their names.
pub(super) struct Blocks<'a> {
    skills: Vec<Shown<'a>>,
}

struct Shown<'a> {
    skill: &'a Loaded,
    docs: Vec<&'a Doc>,
    tools: Option<Vec<String>>,
}

/// A text that can be cut.
struct Piece<'a> {
    skill: &'a str,
    doc: &'a str,
    text: String,
}

impl Piece<'_> {
    /// Whether a tag with these attributes has this text, or had it before it was cut.
    fn is_in(&self, tag: &str, skill: &Loaded) -> bool {
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

impl<'a> Blocks<'a> {
    /// Those of the loaded skills that the material has; says which it has not.
    pub(super) fn of(
        loaded: &'a [Loaded],
        mut names: Vec<String>,
        (state, scope): (&SessionState, Scope<'_>),
        report: &mut Report,
    ) -> Self {
        names.sort();
        let mut skills = Vec::new();
        for name in names {
            match loaded.iter().find(|skill| skill.name == name) {
                None => report.missing.push(name),
                Some(skill) => skills.push(Shown {
                    docs: docs(skill, state, scope, report),
                    tools: tools(skill, state, scope),
                    skill,
                }),
            }
        }
        Self { skills }
    }

    /// Names of those that are shown.
    pub(super) fn names(&self) -> Vec<String> {
        self.skills
            .iter()
            .map(|shown| shown.skill.name.clone())
            .collect()
    }

    /// Leaves out some.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.skills.retain(|shown| keep(&shown.skill.name));
    }

    /// Leaves out those of which a result holds everything already, in the same tags.
    pub(super) fn without_told(&mut self, loads: &[Load<'_>]) {
        let is_told = |shown: &Shown<'_>| {
            let mut own = loads.iter().filter(|load| load.skill == shown.skill.name);
            own.any(|load| {
                let tags = history::tags(&load.text);
                pieces(shown).iter().all(|piece| {
                    piece.text.is_empty() || tags.iter().any(|tag| piece.is_in(tag, shown.skill))
                })
            })
        };
        self.skills.retain(|shown| !is_told(shown));
    }

    /// The text of each skill by name, all of them within the budget.
    pub(super) fn render(&self, budget: &Budget<'_>, report: &mut Report) -> Vec<(String, String)> {
        let pieces: Vec<Piece<'_>> = self.skills.iter().flat_map(pieces).collect();
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
        let shares = budget::share(&lengths, fits).unwrap_or_else(|| {
            report.over_budget = true;
            vec![0; lengths.len()]
        });
        for ((piece, shown), chars) in pieces.iter().zip(&shares).zip(lengths) {
            if *shown < chars {
                report.cut.push(Cut {
                    skill: piece.skill.to_owned(),
                    doc: piece.doc.to_owned(),
                    shown: *shown,
                    chars,
                });
            }
        }
        self.texts(&pieces, &shares)
    }

    fn texts(&self, pieces: &[Piece<'_>], shares: &[usize]) -> Vec<(String, String)> {
        let mut cut = pieces.iter().zip(shares);
        let mut texts = Vec::with_capacity(self.skills.len());
        for shown in &self.skills {
            let own = cut.by_ref().take(shown.docs.len() + 1);
            let own: Vec<String> = own.map(|(piece, share)| show(piece, *share)).collect();
            texts.push((shown.skill.name.clone(), block(shown, &own)));
        }
        texts
    }
}

/// One loaded skill as a prompt shows it, whole: for hosts that give a model its text as the result of loading it. Empty if
/// the state does not have it loaded.
#[must_use]
pub fn loaded_text(skill: &Loaded, state: &SessionState, scope: Scope<'_>) -> String {
    let mut report = Report::default();
    let names = match loading::is_loaded(state, scope, &skill.name) {
        true => vec![skill.name.clone()],
        false => Vec::new(),
    };
    let loaded = std::slice::from_ref(skill);
    let blocks = Blocks::of(loaded, names, (state, scope), &mut report);
    let texts = blocks.render(&Budget::default(), &mut report);
    texts.into_iter().map(|(_, text)| text).collect()
}

/// What is selected and there. Of all, by path; of chosen ones, in their order, so that one more comes last.
fn docs<'a>(
    skill: &'a Loaded,
    state: &SessionState,
    scope: Scope<'_>,
    report: &mut Report,
) -> Vec<&'a Doc> {
    let find = |path: &String| skill.docs.iter().find(|doc| doc.path == *path);
    let mut found: Vec<&Doc> = match loading::docs(state, scope, &skill.name) {
        None => Vec::new(),
        Some(Selection::All) => {
            let mut all: Vec<&Doc> = skill.docs.iter().collect();
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

/// What is selected, else what the skill declares; none where there is nothing to say of tools.
fn tools(skill: &Loaded, state: &SessionState, scope: Scope<'_>) -> Option<Vec<String>> {
    let is_there = |name: &String| !skill.unavailable_tools.contains(name);
    let there = |names: &[String]| {
        names
            .iter()
            .filter(|name| is_there(name))
            .cloned()
            .collect()
    };
    match loading::tools(state, scope, &skill.name) {
        None | Some(Selection::All) => {
            Some(there(&skill.tools)).filter(|names: &Vec<String>| !names.is_empty())
        }
        Some(Selection::These(names)) => Some(there(&names)),
    }
}

fn pieces<'a>(shown: &Shown<'a>) -> Vec<Piece<'a>> {
    let piece = |doc: &'a str, text: &str| Piece {
        skill: &shown.skill.name,
        doc,
        text: without_tags(text.trim_end()),
    };
    let docs = shown.docs.iter().map(|doc| piece(&doc.path, &doc.content));
    std::iter::once(piece("", &shown.skill.body))
        .chain(docs)
        .collect()
}

fn show(piece: &Piece<'_>, chars: usize) -> String {
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

/// `texts` are the body and the docs.
fn block(shown: &Shown<'_>, texts: &[String]) -> String {
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
    block.push_str(&format!("Docs loaded: {}\n", join(paths)));
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
        let tools = join(tools.iter().map(String::as_str));
        block.push_str(&format!("Tools selected: {tools}\n"));
    }
    block
}

fn push_tagged(block: &mut String, skill: &Loaded, attributes: &str, text: &str) {
    let (id, digest) = (attribute(&skill.name), attribute(&skill.digest));
    block.push_str(&format!(
        "<skill id=\"{id}\" digest=\"{digest}\"{attributes}>\n{text}\n</skill>\n"
    ));
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = names.map(one_line).collect::<Vec<_>>();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
