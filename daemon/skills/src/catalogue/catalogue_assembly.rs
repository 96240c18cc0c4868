//! Assembles a catalogue, or the view of a tenant, from scanned folders. It decides which skill is shadowed and which
//! aliases skills have, and finds different names with one id.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::catalogue_snapshot::Catalogue;
use super::folder_precedence::compare_folders;
use super::skill::{SHADOWED, Skill, SkillState};
use super::source_ingest::IngestedFolder;
use super::source_scan_result::SourceScanResult;
use crate::content_store::link_policy::LinkPolicy;
use crate::parse::finding::{ValidationProfile, quote_excerpt};
use crate::parse::problem::Problem;
use crate::parse::skill_name::{id_of_name, normalise_name};
use crate::skill_scope::SkillScope;

/// Builds the catalogue of all sources, given in the order in which they win.
pub(crate) fn assemble_catalogue(
    scans: &[Arc<SourceScanResult>],
    skills_max: usize,
    link_policy: Arc<LinkPolicy>,
) -> Catalogue {
    let (mut winners, mut scoped, mut written) = (HashMap::new(), HashSet::new(), HashMap::new());
    let (mut skills, mut problems, mut left_out) = (Vec::new(), Vec::new(), 0_usize);
    for scan in scans {
        problems.extend(scan.problems.iter().cloned());
        for folder in in_precedence(&scan.folders) {
            match &folder.skill {
                Err(problem) => problems.push(problem.clone()),
                Ok(_) if skills.len() >= skills_max => left_out += 1,
                Ok(skill) => {
                    let has_scoped_name = keeps_scoped_name(skill, &mut scoped);
                    let other_name = other_name_problem(skill, &mut written);
                    let shadow = find_shadow(skill, has_scoped_name, &mut winners);
                    let mut aliases = nested_aliases(&scan.folders, folder);
                    if has_scoped_name {
                        aliases.splice(0..0, skill.aliases.iter().cloned());
                    }
                    let problems = shadow.problem.into_iter().chain(other_name);
                    skills.push(adjust_skill(
                        skill,
                        aliases,
                        shadow.is_shadowed,
                        problems.collect(),
                    ));
                }
            }
        }
    }
    if left_out > 0 {
        let message = format!("{left_out} skills are left out: there are more than {skills_max}");
        problems.push(Problem::error("root.too_many_skills", message));
    }
    let is_readable = scans.iter().all(|scan| scan.is_readable);
    Catalogue::new(skills, problems, is_readable, link_policy)
}

/// Returns what a scope sees of a catalogue of all sources. The first call for a tenant makes its view, for which it
/// reads all scans; a second one waits for it, and other tenants do not. Blocks.
pub(crate) fn make_view(
    catalogue: &Arc<Catalogue>,
    scope: &SkillScope,
    skills_max: usize,
) -> Arc<Catalogue> {
    let SkillScope::Tenant { name, .. } = scope else {
        return Arc::clone(catalogue);
    };
    let make = || {
        let is_own = |scan: &&Arc<SourceScanResult>| scan.source.tenant.as_ref() == Some(name);
        let is_granted = |scan: &&Arc<SourceScanResult>| {
            scan.source.tenant.is_none() && scope.sees_root(&scan.source.root)
        };
        let own = catalogue
            .scans
            .iter()
            .filter(is_own)
            .map(|scan| Arc::new(scan.with_rank(0)));
        let granted = catalogue.scans.iter().filter(is_granted).map(Arc::clone);
        let scans: Vec<_> = own.chain(granted).collect();
        let mut view = assemble_catalogue(&scans, skills_max, Arc::clone(&catalogue.link_policy));
        (view.generation, view.is_view) = (catalogue.generation, true);
        Arc::new(view)
    };
    Arc::clone(catalogue.view_cell(scope).get_or_init(make))
}

/// Returns the folders of a root in the order in which their skills win.
fn in_precedence(folders: &[IngestedFolder]) -> Vec<&IngestedFolder> {
    let mut ordered: Vec<_> = folders.iter().collect();
    ordered.sort_by(|a, b| {
        let [a, b] = [a, b].map(|folder| folder.skill.as_ref().map_or("", |skill| &skill.within));
        compare_folders(a, b)
    });
    ordered
}

/// Returns the skill with its aliases, and with the problems that it has because of other skills.
fn adjust_skill(
    skill: &Arc<Skill>,
    aliases: Vec<String>,
    is_shadowed: bool,
    problems: Vec<Problem>,
) -> Arc<Skill> {
    if aliases == skill.aliases && !is_shadowed && problems.is_empty() {
        return Arc::clone(skill);
    }
    let mut skill = Skill::clone(skill);
    skill.aliases = aliases;
    skill.is_shadowed |= is_shadowed;
    skill.other_problems.splice(0..0, problems);
    skill.judge(ValidationProfile::Lenient);
    Arc::new(skill)
}

/// Returns a problem if an earlier skill has the same id and another name. `written` has the name and folder of the first
/// skill of each id.
fn other_name_problem<'a>(
    skill: &'a Skill,
    written: &mut HashMap<&'a str, (String, &'a Skill)>,
) -> Option<Problem> {
    if skill.state == SkillState::Rejected {
        return None;
    }
    let title = &skill.front_matter.display_name;
    // A card's title is no name: its id is another text.
    let is_name = id_of_name(title).as_ref() == Some(&skill.name);
    let name = match is_name {
        true => normalise_name(title),
        false => skill.name.clone(),
    };
    let (first, of) = written
        .entry(&skill.name)
        .or_insert_with(|| (name.clone(), skill));
    if *first == name {
        return None;
    }
    let message = format!(
        "the name {} has the same id as {} of {}, so both count as versions of one skill: rename one of them",
        quote_excerpt(&name),
        quote_excerpt(first),
        of.found_at.display()
    );
    Some(Problem::warning("skill.same_id", message).about(&skill.found_at))
}

/// Returns the names of a nested skill: with its parent's name, and with those of all skills around it.
fn nested_aliases(folders: &[IngestedFolder], folder: &IngestedFolder) -> Vec<String> {
    let around = |folder: &IngestedFolder| folders.get(folder.parent?);
    let (Ok(skill), Some(parent)) = (&folder.skill, around(folder)) else {
        return Vec::new();
    };
    let (mut alias, mut aliases) = (skill.name.clone(), Vec::new());
    for folder in std::iter::successors(Some(parent), |folder| around(folder)) {
        if let Ok(skill) = &folder.skill {
            alias = format!("{}/{alias}", skill.name);
            aliases.truncate(1);
            aliases.push(alias.clone());
        }
    }
    aliases
}

/// Returns `true` if a skill has a scoped name and no earlier skill has that name and version. `scoped` has the plugin,
/// name and version of each earlier one.
fn keeps_scoped_name<'a>(skill: &'a Skill, scoped: &mut HashSet<[&'a str; 3]>) -> bool {
    let key = [
        skill.plugin_name(),
        skill.name.as_str(),
        skill.front_matter.version.as_str(),
    ];
    !skill.aliases.is_empty() && (skill.state == SkillState::Rejected || scoped.insert(key))
}

/// Effect of the skills that come before a skill of the same name and version.
#[derive(Debug, Default)]
struct Shadow {
    /// `true` if a skill with the same name and version comes before.
    is_shadowed: bool,
    /// Warning about it; `None` if the files of both are the same.
    problem: Option<Problem>,
}

/// Finds out whether a skill that comes before this one has its name and version. `winners` has the first skill of each
/// name and version.
fn find_shadow<'a>(
    skill: &'a Skill,
    has_scoped_name: bool,
    winners: &mut HashMap<(&'a str, &'a str), &'a Skill>,
) -> Shadow {
    if skill.state == SkillState::Rejected {
        return Shadow::default();
    }
    let key = (skill.name.as_str(), skill.front_matter.version.as_str());
    let winner = *winners.entry(key).or_insert(skill);
    if std::ptr::eq(winner, skill) {
        return Shadow::default();
    }
    let is_copy = !skill.digest().is_empty() && skill.digest() == winner.digest();
    let make_problem = || {
        let first = winner.found_at.display();
        let advice = match skill.aliases.first().filter(|_| has_scoped_name) {
            Some(scoped) => format!("use it as {scoped}"),
            None => "rename one of the two, or give it another version".to_owned(),
        };
        let message =
            format!("{first} has this name and version already and comes first; {advice}");
        Problem::warning(SHADOWED, message).about(&skill.found_at)
    };
    Shadow {
        is_shadowed: true,
        problem: (!is_copy).then(make_problem),
    }
}
