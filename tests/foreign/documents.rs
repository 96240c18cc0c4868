//! Which test runs which command block of README.md and docs/: all of them, or the reason why none does.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use skilld_tests::binaries;

/// How a section's blocks are covered.
enum Covered {
    /// A test of this package runs them as they stand there.
    By(&'static str),
    /// No test does, for this reason.
    Not(&'static str),
}
use Covered::{By, Not};

const FIRST_STEPS: &str = "the step `the first steps` of tests/run.sh types it";
const HOST: &str = "changes the services of the host";

/// Every section with command blocks: document, title (empty before the first section), and how it is covered.
const SECTIONS: [(&str, &str, Covered); 39] = [
    ("README.md", "", Not(FIRST_STEPS)),
    ("README.md", "Build and start", Not(FIRST_STEPS)),
    (
        "README.md",
        "Run a skill",
        By("the_quick_start_does_what_it_says"),
    ),
    (
        "README.md",
        "From any language",
        By("buf_does_what_the_readme_shows"),
    ),
    (
        "docs/artifacts.md",
        "Artifacts with skillctl",
        By("recipes_for_artifacts_do_what_they_say"),
    ),
    (
        "docs/artifacts.md",
        "Artifacts with grpcurl",
        By("recipes_for_artifacts_do_what_they_say"),
    ),
    ("docs/backup.md", "", Not(HOST)),
    ("docs/backup.md", "Restore", Not(HOST)),
    ("docs/backup.md", "Why a copy is refused", Not(HOST)),
    (
        "docs/backup.md",
        "Directories of a version that did not bind them",
        Not(HOST),
    ),
    ("docs/backup.md", "Move to another disk or host", Not(HOST)),
    (
        "docs/backup.md",
        "An instance file that was lost",
        Not(HOST),
    ),
    (
        "docs/benchmarks.md",
        "",
        Not("takes an idle machine and a quarter of an hour"),
    ),
    (
        "docs/benchmarks.md",
        "What skills cost in prompts",
        Not("tokens/main.rs is this program and tests itself"),
    ),
    (
        "docs/exec.md",
        "Before the recipes",
        By("what_recipes_want_can_be_had"),
    ),
    (
        "docs/exec.md",
        "skillctl",
        By("skillctl_recipes_do_what_they_say"),
    ),
    (
        "docs/exec.md",
        "A terminal with skillctl",
        Not("needs a terminal; a_shell_that_was_left_goes_on_and_is_found_again has one"),
    ),
    (
        "docs/exec.md",
        "grpcurl",
        By("grpcurl_recipes_do_what_they_say"),
    ),
    (
        "docs/exec.md",
        "Python, generated code",
        By("python_recipes_with_generated_code_do_what_they_say"),
    ),
    (
        "docs/exec.md",
        "Python, by reflection",
        By("python_recipes_by_reflection_do_what_they_say"),
    ),
    (
        "docs/files.md",
        "Staging with skillctl",
        By("recipes_for_inputs_do_what_they_say"),
    ),
    (
        "docs/files.md",
        "Staging with grpcurl",
        By("recipes_for_inputs_do_what_they_say"),
    ),
    (
        "docs/files.md",
        "Collecting with skillctl",
        By("recipes_for_outputs_do_what_they_say"),
    ),
    (
        "docs/files.md",
        "Collecting with grpcurl",
        By("recipes_for_outputs_do_what_they_say"),
    ),
    (
        "docs/files.md",
        "Collecting with Python",
        By("recipes_for_outputs_do_what_they_say"),
    ),
    (
        "docs/integrations.md",
        "Claude Code",
        Not("needs Claude Code"),
    ),
    (
        "docs/integrations.md",
        "Run the Rust example",
        By("the_rust_agent_lets_a_model_use_skills"),
    ),
    (
        "docs/integrations.md",
        "Skills as tools in Python",
        By("python_loops_over_grpc_let_a_model_use_skills"),
    ),
    (
        "docs/integrations.md",
        "An OpenAI-style loop in Python",
        By("python_loops_over_grpc_let_a_model_use_skills"),
    ),
    (
        "docs/integrations.md",
        "An Anthropic-style loop in Python",
        By("python_loops_over_grpc_let_a_model_use_skills"),
    ),
    (
        "docs/operations.md",
        "Install the programs",
        By("deploying_takes_what_was_built_and_no_compiler"),
    ),
    ("docs/operations.md", "Start the service", Not(HOST)),
    ("docs/operations.md", "Upgrade", Not(HOST)),
    (
        "docs/operations.md",
        "Drain",
        By("drain_and_watch_do_what_docs_operations_says"),
    ),
    (
        "docs/operations.md",
        "Watch",
        By("drain_and_watch_do_what_docs_operations_says"),
    ),
    (
        "docs/skillctl.md",
        "",
        By("what_docs_skillctl_shows_does_what_it_says"),
    ),
    (
        "docs/skillctl.md",
        "JSON",
        By("what_docs_skillctl_shows_does_what_it_says"),
    ),
    (
        "docs/skillctl.md",
        "Completion",
        By("what_docs_skillctl_shows_does_what_it_says"),
    ),
    (
        "docs/tools.md",
        "From a shell",
        By("skill_tools_are_used_from_a_shell_as_the_document_says"),
    ),
];

/// The sections of docs/skills.md, which are listed apart because they have one test each.
const SKILLS: [(&str, Covered); 5] = [
    (
        "Publishing with skillctl",
        By("recipes_for_publishing_do_what_they_say"),
    ),
    (
        "The store with skillctl",
        By("recipes_for_publishing_do_what_they_say"),
    ),
    (
        "Scripts with skillctl",
        By("recipes_for_scripts_do_what_they_say"),
    ),
    (
        "Reading with skillctl",
        By("recipes_for_reading_and_checking_skills_do_what_they_say"),
    ),
    (
        "Checking with skillctl",
        By("recipes_for_reading_and_checking_skills_do_what_they_say"),
    ),
];

/// First words of a line that is a command.
const PROGRAMS: [&str; 14] = [
    "agent",
    "apt-get",
    "buf",
    "cargo",
    "curl",
    "docker",
    "export",
    "grpcurl",
    "install",
    "make",
    "python",
    "skillctl",
    "sudo",
    "systemctl",
];

/// Sections as document and title.
type Sections = BTreeSet<(String, String)>;

/// Returns the sections of all documents that have command blocks, and the indented lines that are commands.
fn documents() -> Result<(Sections, Vec<String>)> {
    let root = binaries::repository();
    let mut names = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root.join("docs"))? {
        let name = entry?.file_name();
        names.push(format!("docs/{}", name.to_str().context("a name")?));
    }
    let (mut sections, mut indented) = (BTreeSet::new(), Vec::new());
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        let (mut title, mut in_block) = (String::new(), false);
        for line in fs::read_to_string(root.join(name))?.lines() {
            if let Some(language) = line.strip_prefix("```") {
                in_block = !in_block;
                if in_block && matches!(language, "sh" | "bash" | "python") {
                    sections.insert((name.clone(), title.clone()));
                }
            } else if !in_block && line.starts_with("##") {
                line.trim_start_matches('#').trim().clone_into(&mut title);
            } else if let Some(code) = line.strip_prefix("    ").filter(|_| !in_block)
                && PROGRAMS.contains(&code.split(' ').next().unwrap_or_default())
            {
                indented.push(format!("{name}: {code}"));
            }
        }
    }
    Ok((sections, indented))
}

#[test]
fn every_command_block_of_the_documents_has_a_test_or_a_reason() -> Result<()> {
    let (found, indented) = documents()?;
    assert_eq!(indented, [""; 0], "commands stand in fenced blocks");
    let skills = SKILLS
        .iter()
        .map(|(title, covered)| ("docs/skills.md", *title, covered));
    let sections = SECTIONS
        .iter()
        .map(|(document, title, covered)| (*document, *title, covered));
    let mut tests = String::new();
    for entry in fs::read_dir(binaries::repository().join("tests/foreign"))? {
        tests += &fs::read_to_string(entry?.path())?;
    }
    let mut listed = BTreeSet::new();
    for (document, title, covered) in sections.chain(skills) {
        listed.insert((document.to_owned(), title.to_owned()));
        match covered {
            By(test) => assert!(tests.contains(&format!("fn {test}(")), "no test {test}"),
            Not(reason) => assert!(!reason.is_empty()),
        }
    }
    assert_eq!(found, listed);
    Ok(())
}
