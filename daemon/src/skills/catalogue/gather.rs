//! From what was found in the sources, in the order in which they win, to the catalogue: who is shadowed, what answers
//! to which aliases, and the order.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::Catalogue;
use crate::skills::skill::Key;
use crate::skills::{Problem, Profile, Skill, SkillState, version};

/// A skill that is not what its documents alone make it: it is shadowed, or has aliases. Remembered, so that the same
/// catalogue is made of the same.
#[derive(Debug)]
pub(super) struct Altered {
    plain: Arc<Skill>,
    aliases: Vec<String>,
    shadow: Option<Problem>,
    skill: Arc<Skill>,
}

/// What one look finds, in the order in which it wins.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) entries: Vec<Entry>,
    pub(super) problems: Vec<Problem>,
    skills: usize,
    too_many: usize,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// `None` if it has no name to be listed under.
    skill: Option<Arc<Skill>>,
    /// Place of the skill around it.
    parent: Option<usize>,
}

impl Gathered {
    pub(super) fn add(
        &mut self,
        read: Result<Arc<Skill>, Problem>,
        parent: Option<usize>,
        max: usize,
    ) {
        let skill = match read {
            Ok(_) if self.skills >= max => {
                self.too_many += 1;
                None
            }
            Ok(skill) => {
                self.skills += 1;
                Some(skill)
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        };
        self.entries.push(Entry { skill, parent });
    }

    pub(super) fn folders(&self) -> HashSet<PathBuf> {
        let skills = self.entries.iter().filter_map(|entry| entry.skill.as_ref());
        skills.map(|skill| skill.dir.clone()).collect()
    }

    /// Names with those of the skills around it: from the next one, and from all.
    fn aliases(&self, entry: &Entry) -> Vec<String> {
        let name = |entry: &Entry| entry.skill.as_ref().map(|skill| skill.name.clone());
        let Some(mut alias) = name(entry).filter(|_| entry.parent.is_some()) else {
            return Vec::new();
        };
        let mut aliases = Vec::new();
        let mut around = entry.parent.and_then(|parent| self.entries.get(parent));
        while let Some(parent) = around {
            if let Some(name) = name(parent) {
                alias = format!("{name}/{alias}");
                if aliases.len() == 2 {
                    aliases.pop();
                }
                aliases.push(alias.clone());
            }
            around = parent.parent.and_then(|parent| self.entries.get(parent));
        }
        aliases
    }

    pub(super) fn finish(mut self, known: &mut HashMap<(PathBuf, String), Altered>) -> Catalogue {
        if self.too_many > 0 {
            let message = format!(
                "{} skills are left out: there are more than skills.count_max",
                self.too_many
            );
            self.problems
                .push(Problem::error("root.too_many_skills", message));
        }
        let mut first: HashMap<(String, String), String> = HashMap::new();
        let mut before = std::mem::take(known);
        let mut skills = Vec::with_capacity(self.skills);
        for entry in &self.entries {
            let Some(plain) = &entry.skill else { continue };
            let shadow = shadow(plain, &mut first);
            let aliases = self.aliases(entry);
            if shadow.is_none() && aliases.is_empty() {
                skills.push(Arc::clone(plain));
                continue;
            }
            // Two published names may share a folder.
            let key = (plain.dir.clone(), plain.name.clone());
            let altered = before
                .remove(&key)
                .filter(|it| {
                    Arc::ptr_eq(&it.plain, plain) && it.aliases == aliases && it.shadow == shadow
                })
                .unwrap_or_else(|| Altered::new(plain, aliases, shadow));
            skills.push(Arc::clone(&altered.skill));
            known.insert(key, altered);
        }
        skills.sort_by(|a, b| order(a.key(), b.key()));
        let mut by_alias: HashMap<String, Vec<usize>> = HashMap::new();
        for (place, skill) in skills.iter().enumerate() {
            for alias in &skill.aliases {
                by_alias.entry(alias.clone()).or_default().push(place);
            }
        }
        Catalogue {
            generation: 0,
            skills,
            problems: self.problems,
            aliases: by_alias,
        }
    }
}

impl Altered {
    fn new(plain: &Arc<Skill>, aliases: Vec<String>, shadow: Option<Problem>) -> Self {
        let mut skill = Skill::clone(plain);
        skill.aliases.clone_from(&aliases);
        if let Some(problem) = &shadow {
            skill.shadowed = true;
            skill.others.insert(0, problem.clone());
            skill.judge(Profile::Lenient);
        }
        Self {
            plain: Arc::clone(plain),
            aliases,
            shadow,
            skill: Arc::new(skill),
        }
    }
}

/// Whether an earlier one has the name and the version of this skill.
fn shadow(skill: &Skill, first: &mut HashMap<(String, String), String>) -> Option<Problem> {
    if skill.state == SkillState::Rejected {
        return None;
    }
    let key = (skill.name.clone(), skill.front_matter.version.clone());
    if let Some(winner) = first.get(&key) {
        let message = format!("{winner} has this name and version already and comes first");
        return Some(Problem::warning("skill.shadowed", message).about(&skill.found_at));
    }
    first.insert(key, skill.found_at.display().to_string());
    None
}

/// Names, roots as they are configured, the highest version first.
pub(super) fn order(a: Key<'_>, b: Key<'_>) -> Ordering {
    let version = || version::compare(b.2, a.2);
    let names = (a.0, a.1).cmp(&(b.0, b.1));
    names
        .then_with(version)
        .then_with(|| (a.3, a.4).cmp(&(b.3, b.4)))
}
