//! Lists the test that runs each command block of README.md and docs/, or the reason why none does, and checks the
//! list.
//!
//! The tests of this suite read the blocks from the documents, so a changed block is what they run. This file checks
//! from the source of each listed test that it exists and names the document.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use skilld_tests::binaries;

use crate::foreign::recipes::sections;

/// Every section with command blocks: `document | title | coverage` a line, without a title before the first section.
/// The coverage is the test of this package that runs the blocks as they are in the document; `the first steps`, the
/// step of tests/run.sh that runs their `make` targets; or `not run`, with the reason. A test that a reason names
/// exists.
const SECTIONS: &str = "
README.md | | readme_typed_from_top_to_bottom_does_what_it_shows
README.md | Try it | the first steps
README.md | Build and start | the first steps
README.md | Run a skill | readme_typed_from_top_to_bottom_does_what_it_shows
README.md | From Python | readme_example_in_python_prints_the_report
README.md | From any language | readme_typed_from_top_to_bottom_does_what_it_shows
README.md | Clean up | readme_typed_from_top_to_bottom_does_what_it_shows
docs/access.md | | not run: changes files of the host; skillctl_does_what_docs_access_shows runs the commands with files of its own
docs/access.md | Tokens for one workspace | not run: wants a daemon of its own; skillctl_does_what_docs_access_shows runs the commands
docs/api.md | Make a call | not run: readme_typed_from_top_to_bottom_does_what_it_shows makes these calls
docs/artifacts.md | Artifacts with skillctl | docs_artifacts_typed_whole_does_what_it_shows
docs/artifacts.md | Artifacts with grpcurl | docs_artifacts_typed_whole_does_what_it_shows
docs/audit.md | Rotation | not run: reads the logs of the host; the tests of skillctl pipe a log to it
docs/backup.md | | not run: changes the services of the host
docs/backup.md | Restore | not run: changes the services of the host
docs/backup.md | Why a copy is refused | not run: changes the services of the host
docs/backup.md | Directories of a version that did not bind them | not run: changes the services of the host
docs/backup.md | Move to another disk or host | not run: changes the services of the host
docs/backup.md | An instance file that was lost | not run: changes the services of the host
docs/benchmarks.md | | not run: takes an idle machine and a quarter of an hour
docs/benchmarks.md | What skills cost in prompts | not run: tests/bench/tokens is this program and tests itself
docs/conformance.md | | not run: tests/run.sh runs the script and every test
docs/checking-skills.md | Checking with skillctl | docs_about_skills_typed_whole_do_what_they_show
docs/checking-skills.md | Check your own collection | not run: the suite of `make compat` runs the program
docs/checking-the-host.md | | not run: doctor_finds_nothing_that_fails_on_the_host_of_the_tests runs the program
docs/deploy.md | Prepare the host | not run: changes the groups of the host
docs/deploy.md | Start it | not run: tests/packages.sh runs the block with directories of its own
docs/deploy.md | Compose | not run: tests/packages.sh starts the daemon of the file with directories of its own
docs/deploy.md | Kubernetes | not run: needs a cluster; tests/packages.sh checks the manifest against its schema
docs/deploy.md | Nomad | not run: needs a cluster; tests/packages.sh parses the job
docs/exec.md | Before the recipes | docs_exec_typed_whole_does_what_it_shows
docs/exec.md | skillctl | docs_exec_typed_whole_does_what_it_shows
docs/exec.md | A terminal with skillctl | not run: needs a terminal; a_shell_in_a_terminal_feels_like_a_login has one
docs/exec.md | grpcurl | docs_exec_typed_whole_does_what_it_shows
docs/exec.md | Python, generated code | docs_exec_typed_whole_does_what_it_shows
docs/exec.md | All in one call, from generated code | docs_exec_typed_whole_does_what_it_shows
docs/exec.md | Python, by reflection | docs_exec_typed_whole_does_what_it_shows
docs/files.md | Staging with skillctl | docs_files_typed_whole_does_what_it_shows
docs/files.md | Staging with grpcurl | docs_files_typed_whole_does_what_it_shows
docs/files.md | Collecting with skillctl | docs_files_typed_whole_does_what_it_shows
docs/files.md | Collecting with grpcurl | docs_files_typed_whole_does_what_it_shows
docs/files.md | Collecting with Python | docs_files_typed_whole_does_what_it_shows
docs/images.md | | not run: takes minutes
docs/images.md | Build an image | not run: takes minutes; tests/run.sh makes and checks the base image
docs/images.md | Update the versions | not run: takes minutes, and changes the lock files
docs/images.md | Bring your own image | not run: tests/images.sh builds the example in a directory of its own
docs/images.md | Credentials of registries | not run: needs an account of a registry
docs/installing.md | Make the packages | not run: tests/packages.sh packs with the script of these targets
docs/installing.md | Debian package | not run: tests/packages.sh installs the package in a container
docs/installing.md | Tarball | not run: changes the programs of the host; tests/packages.sh unpacks the tarball
docs/installing.md | Install the programs | deploying_takes_what_was_built_and_no_compiler
docs/installing.md | Start the service | not run: changes the services of the host
docs/integrations.md | Claude Code | not run: needs Claude Code
docs/integrations.md | AI SDK | the_ai_sdk_lets_a_model_use_skills
docs/integrations.md | OpenAI Agents in JavaScript | openai_agents_in_javascript_let_a_model_use_skills
docs/integrations.md | OpenAI Agents in Python | openai_agents_in_python_let_a_model_use_skills
docs/integrations.md | LangChain in JavaScript | langchain_in_javascript_lets_a_model_use_skills
docs/integrations.md | LangChain in Python | langchain_in_python_lets_a_model_use_skills
docs/integrations.md | Mastra | mastra_lets_a_model_use_skills
docs/integrations.md | Pydantic AI | pydantic_ai_lets_a_model_use_skills
docs/integrations.md | smolagents | smolagents_let_a_model_use_skills
docs/integrations.md | Run the Rust example | the_rust_agent_lets_a_model_use_skills
docs/integrations.md | Skills as tools in Python | python_loops_over_grpc_let_a_model_use_skills
docs/integrations.md | An OpenAI-style loop in Python | python_loops_over_grpc_let_a_model_use_skills
docs/integrations.md | An Anthropic-style loop in Python | python_loops_over_grpc_let_a_model_use_skills
docs/languages.md | Go | not run: installs plugins; go_client_runs_over_socket_and_tls generates the same code
docs/languages.md | Java | not run: needs a directory of the reader; java_client_runs_over_socket_and_tls builds with its pom.xml
docs/languages.md | C++ | not run: installs packages; cpp_client_runs_over_socket_and_tls generates the same code
docs/languages.md | Node.js | not run: installs packages; node_client_runs_over_socket_and_tls runs the sample
docs/languages.md | TypeScript | not run: installs packages; node_client_runs_over_socket_and_tls generates the same code
docs/languages.md | Python | not run: installs packages; python_client_runs_over_socket_and_tls generates the same code
docs/languages.md | Ruby | not run: installs packages; ruby_client_runs_over_socket_and_tls generates the same code
docs/languages.md | PHP | not run: installs packages; php_code_is_valid generates the same code
docs/languages.md | grpcurl and ghz | not run: calls a daemon of another host; grpcurl_calls_by_reflection_and_with_the_protoset and ghz_calls_with_the_protoset make such calls
docs/monitoring.md | Watch | watch_and_drain_do_what_the_documents_say
docs/podman.md | | not run: changes the services of the host; tests/podman.sh runs two suites on a Podman of its own
docs/publishing-skills.md | Publishing with skillctl | docs_about_skills_typed_whole_do_what_they_show
docs/reading-skills.md | Reading with skillctl | docs_about_skills_typed_whole_do_what_they_show
docs/running-scripts.md | Scripts with skillctl | docs_about_skills_typed_whole_do_what_they_show
docs/python.md | Install the package | not run: builds a release; python_package_passes_its_tests_from_the_wheel installs a wheel
docs/python.md | Quick start | docs_python_typed_whole_does_what_it_shows
docs/python.md | Read a failure | docs_python_typed_whole_does_what_it_shows
docs/python.md | Follow the output | docs_python_typed_whole_does_what_it_shows
docs/python.md | Answer a prompt | docs_python_typed_whole_does_what_it_shows
docs/python.md | Leave a command and come back | docs_python_typed_whole_does_what_it_shows
docs/python.md | Repeat a call safely | docs_python_typed_whole_does_what_it_shows
docs/python.md | Move files | docs_python_typed_whole_does_what_it_shows
docs/python.md | Keep results as artifacts | docs_python_typed_whole_does_what_it_shows
docs/python.md | Use asyncio | docs_python_typed_whole_does_what_it_shows
docs/python.md | Give skills to a model | docs_python_typed_whole_does_what_it_shows
docs/python.md | Publish a skill | docs_python_typed_whole_does_what_it_shows
docs/python.md | OpenAI SDK | adapters_for_python_work_with_the_real_frameworks
docs/python.md | Anthropic SDK | adapters_for_python_work_with_the_real_frameworks
docs/python.md | OpenAI Agents SDK | adapters_for_python_work_with_the_real_frameworks
docs/python.md | LangChain and LangGraph | adapters_for_python_work_with_the_real_frameworks
docs/python.md | Pydantic AI | adapters_for_python_work_with_the_real_frameworks
docs/python.md | smolagents | adapters_for_python_work_with_the_real_frameworks
docs/security.md | | not run: tests/run.sh runs the script and every test
docs/skill-packages.md | Packages from a wheelhouse | not run: needs PyPI; prepared_environment_is_there_at_once_and_after_a_restart uses wheels of its own
docs/skill-sources.md | The store with skillctl | docs_about_skills_typed_whole_do_what_they_show
docs/metrics.md | | not run: wants a listener of its own; tests/e2e/foreign/prometheus.rs reads the page
docs/skillctl.md | | docs_skillctl_typed_whole_does_what_it_shows
docs/skillctl.md | Copying | docs_skillctl_typed_whole_does_what_it_shows
docs/skillctl.md | Images | not run: an_image_is_checked_as_a_pool_would_use_it checks the default image
docs/skillctl.md | JSON | docs_skillctl_typed_whole_does_what_it_shows
docs/skillctl.md | Completion | docs_skillctl_typed_whole_does_what_it_shows
docs/tools-agent-zero.md | | not run: the tests of the client call every tool of the family
docs/tools-sherma.md | | not run: the tests of the client call every tool of the family
docs/tools-trpc.md | | not run: the tests of the client call every tool of the family
docs/tools.md | From a shell | skill_tools_are_used_from_a_shell_as_the_document_says
docs/upgrading.md | Upgrade | not run: changes the services of the host
docs/upgrading.md | Drain | watch_and_drain_do_what_the_documents_say
docs/workspaces.md | Workspaces with skillctl | docs_workspaces_typed_whole_does_what_it_shows
docs/workspaces.md | Where commands start | docs_workspaces_typed_whole_does_what_it_shows
docs/workspaces-on-disk.md | Loop devices | not run: changes the services of the host
";

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

/// Command blocks of each section, which is a document and a title.
type Sections = BTreeMap<(String, String), Vec<String>>;

/// Returns the titles of a document's sections that this test covers.
pub(crate) fn titles(document: &str, test: &str) -> Vec<&'static str> {
    let rows = SECTIONS
        .trim()
        .lines()
        .map(|row| row.split('|').map(str::trim));
    rows.filter_map(|mut columns| {
        let (name, title, coverage) = (columns.next()?, columns.next()?, columns.next()?);
        (name == document && coverage == test).then_some(title)
    })
    .collect()
}

/// Returns the sections of all documents that have command blocks, and the indented lines that are commands.
fn read_documents() -> Result<(Sections, Vec<String>)> {
    let root = binaries::repository();
    let mut names = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root.join("docs"))? {
        let name = entry?.file_name();
        names.push(format!("docs/{}", name.to_str().context("a name")?));
    }
    let (mut found, mut indented) = (Sections::new(), Vec::new());
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        for section in sections(name)? {
            let is_typed =
                |language: &str| matches!(language, "sh" | "bash" | "js" | "python" | "console");
            let blocks: Vec<String> = section
                .blocks
                .into_iter()
                .filter(|(language, _)| is_typed(language))
                .map(|(_, code)| code)
                .collect();
            if !blocks.is_empty() {
                found
                    .entry((name.clone(), section.title))
                    .or_default()
                    .extend(blocks);
            }
        }
        let text = fs::read_to_string(root.join(name))?;
        // Every other part is a block.
        let outside = text.split("```").step_by(2).flat_map(str::lines);
        let commands = outside.filter_map(|line| line.strip_prefix("    "));
        let commands =
            commands.filter(|code| PROGRAMS.contains(&code.split(' ').next().unwrap_or_default()));
        indented.extend(commands.map(|code| format!("{name}: {code}")));
    }
    Ok((found, indented))
}

/// Checks that one of these files has the test and names the document, whose sections it then types.
fn check_test(files: &[String], test: &str, document: &str) -> Result<()> {
    let file = files
        .iter()
        .find(|file| file.contains(&format!("fn {test}(")))
        .with_context(|| format!("no test {test} for {document}"))?;
    ensure!(
        file.contains(&format!("\"{document}\"")),
        "the file of {test} does not name {document}"
    );
    Ok(())
}

/// Checks that the step `the first steps` makes the targets that these blocks make.
fn check_first_steps(blocks: &[String]) -> Result<()> {
    let script = fs::read_to_string(binaries::repository().join("tests/run.sh"))?;
    ensure!(
        script.contains(" step 'the first steps' first_steps\n"),
        "tests/run.sh has no such step"
    );
    let lines = blocks.iter().flat_map(|block| block.lines());
    let targets = lines.filter_map(|line| line.strip_prefix("make ")?.split('#').next());
    // `make test` is that script.
    for targets in targets.map(str::trim).filter(|targets| *targets != "test") {
        let command = format!("make --no-print-directory {targets}");
        ensure!(script.contains(&command), "tests/run.sh has no `{command}`");
    }
    Ok(())
}

/// Reads the modules of a suite beneath `tests/e2e/`, without this one.
fn read_tests(suite: &str) -> Result<Vec<String>> {
    let directory = binaries::repository().join("tests/e2e").join(suite);
    let list = fs::read_to_string(directory.with_extension("rs"))?;
    let modules = list
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let files = modules.map(|module| directory.join(format!("{module}.rs")));
    // A module with a `path` attribute is elsewhere.
    files
        .filter(|file| !file.ends_with("documents.rs") && file.exists())
        .map(|file| Ok(fs::read_to_string(file)?))
        .collect()
}

#[test]
fn every_command_block_of_the_documents_has_a_test_or_a_reason() -> Result<()> {
    let (found, indented) = read_documents()?;
    assert_eq!(indented, [""; 0], "commands stand in fenced blocks");
    let (tests, functional) = (read_tests("foreign")?, read_tests("functional")?);
    let mut listed = BTreeSet::new();
    for row in SECTIONS.trim().lines() {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [document, title, coverage] = columns[..] else {
            anyhow::bail!("not a row: {row}");
        };
        let section = (document.to_owned(), title.to_owned());
        let blocks = found
            .get(&section)
            .with_context(|| format!("{section:?} has no command block"))?;
        if coverage == "the first steps" {
            check_first_steps(blocks)?;
        } else if let Some(reason) = coverage.strip_prefix("not run: ") {
            for name in reason.split(' ').filter(|word| word.contains('_')) {
                let test = format!("fn {name}(");
                let exists = functional
                    .iter()
                    .chain(&tests)
                    .any(|file| file.contains(&test));
                ensure!(exists, "no test {name}, which a reason names");
            }
        } else {
            check_test(&tests, coverage, document)?;
        }
        listed.insert(section);
    }
    let existing: BTreeSet<_> = found.into_keys().collect();
    assert_eq!(existing, listed);
    Ok(())
}
