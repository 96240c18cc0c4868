//! The examples of `skillctl --help`, for every command, run as they are printed.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use skilld_tests::binaries;
use tokio::process::Command;

use crate::foreign::output;
use crate::foreign::recipes::Place;

/// Examples that are not run here, by how they begin, with the reason.
const NOT_RUN: [(&str, &str); 12] = [
    (
        "skillctl run -it ",
        "needs a terminal; terminal_cli.rs has one",
    ),
    (
        "skillctl exec job-7 -it ",
        "needs a terminal; terminal_cli.rs has one",
    ),
    (
        "skillctl attach job-7/shell -i",
        "needs a terminal; terminal_cli.rs has one",
    ),
    (
        "skillctl mcp",
        "needs an MCP client; mcp.rs and commands_mcp.rs are some",
    ),
    (
        "skillctl audit verify ",
        "needs an audit log; access.rs has one",
    ),
    (
        "zcat audit.log.2.gz ",
        "needs an audit log; access.rs has one",
    ),
    ("skillctl tenant show ", "needs tenants; access.rs has some"),
    (
        "skillctl token ",
        "writes to /etc; commands_json_all.rs writes elsewhere",
    ),
    (
        "(umask 077; sudo skillctl token ",
        "writes to /etc; commands_json_all.rs writes elsewhere",
    ),
    (
        "skillctl workspace token ",
        "needs identities; access.rs has some",
    ),
    (
        "skillctl skill prepare queue-model ",
        "needs an index; environments/added_packages.rs has wheels",
    ),
    (
        "skillctl skill prepare letters ",
        "needs npm and its registry; environments/registries.rs has both",
    ),
];

/// Commands whose examples the first test runs; the empty one is skillctl itself. No example of another command needs
/// what these do.
const FIRST_COMMANDS: [&str; 9] = [
    "", "run", "stage", "cp", "exec", "ps", "logs", "attach", "poll",
];

/// Commands that create the files of the examples.
const FILES: &str = "
cp \"$REPOSITORY/tests/data/sales.csv\" sales.csv
printf 'pear\\napple\\n' > names.txt
echo note > notes.txt
echo report > report.pdf
mkdir data && echo 1 > data/a.csv
cp -r \"$REPOSITORY/skills/csv-report\" csv-report
sed -i 's/version: \".*\"/version: \"1.2\"/' csv-report/SKILL.md
tar czf csv-report-1.2.tar.gz csv-report
";

/// Commands that create the workspace of the examples.
const WORKSPACE: &str = "
skillctl workspace create --id job-7
skillctl stage job-7 --skill csv-report sales.csv=inputs/in.csv names.txt=work/names.txt
skillctl exec job-7 'echo \"# Report\" | tee out/report.md > out/report.pdf; touch work/a.log'
";

/// Creates what an example of a command needs.
fn setup(command: &str, example: &str) -> String {
    let mut script = "rm -rf results; skillctl rm --allow-missing job-7\n".to_owned();
    if example.contains("job-7") && command != "workspace create" {
        script += WORKSPACE;
    }
    let program = match command {
        "signal" | "kill" => "sleep 1000",
        _ => "seq 2000",
    };
    for (name, program) in [
        ("x-1", program),
        ("x-2", program),
        ("python", "python3 -i"),
        ("sort", "sort"),
    ] {
        if example.contains(&format!("job-7/{name}")) {
            script += &format!("skillctl exec job-7 -di --id {name} {program}\n");
        }
    }
    script += match command {
        "stage" => "for i in 1 2 3; do skillctl artifact save report.pdf report.pdf; done\n",
        "artifact delete" => {
            "for i in 1 2 3; do skillctl artifact save report.pdf report.pdf --app shop --user ada; done\n"
        }
        "skill delete" => "skillctl skill publish ./csv-report\n",
        // An offset must not lie beyond the output so far.
        "attach" | "poll" => "skillctl poll job-7/x-1 --wait 60s > first-output\n",
        _ => "",
    };
    script
}

async fn help(words: &[String]) -> Result<String> {
    let mut command = Command::new(binaries::binary("skillctl")?);
    output(command.args(words).arg("--help")).await
}

/// Returns the names in the list of commands of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .map(ToOwned::to_owned)
        .collect()
}

/// Returns the examples of a help text, with lines joined that end with a backslash.
fn examples(help: &str) -> Vec<String> {
    let (_, rest) = help.split_once("\nExample:\n").unwrap_or_default();
    let mut examples: Vec<String> = Vec::new();
    for line in rest.lines().take_while(|line| !line.is_empty()) {
        match examples.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.push('\n');
                last.push_str(line);
            }
            Some(_) | None => examples.push(line.trim_start().to_owned()),
        }
    }
    examples
}

/// Runs the examples of the commands whose full name `is_selected` accepts, and returns their number.
async fn run_examples(is_selected: impl Fn(&str) -> bool) -> Result<usize> {
    let mut place = Place::new().await?;
    let repository = binaries::repository().display().to_string();
    place.env.push(("REPOSITORY", repository));
    place.run(FILES).await?;
    let mut open = VecDeque::from([Vec::new()]);
    let (mut run, mut last) = (0, Vec::new());
    while let Some(words) = open.pop_front() {
        let text = help(&words).await?;
        let command = words.join(" ");
        let selected = examples(&text).into_iter();
        for example in selected.filter(|_| is_selected(&command)) {
            if NOT_RUN.iter().any(|(begin, _)| example.starts_with(begin)) {
                continue;
            }
            run += 1;
            if command == "drain" {
                last.push(example);
                continue;
            }
            // Output of a listing may be cut by `head`.
            let script = format!("{}set +o pipefail\n{example}\n", setup(&command, &example));
            let ran = place.run(&script).await;
            ran.with_context(|| format!("{command}: {example}"))?;
        }
        for name in subcommands(&text) {
            open.push_back([&words[..], &[name]].concat());
        }
    }
    for example in last {
        place.run(&example).await?;
    }
    place.daemon.stop().await?;
    Ok(run)
}

#[tokio::test]
async fn every_example_of_the_first_commands_runs_as_printed() -> Result<()> {
    let run = run_examples(|command| FIRST_COMMANDS.contains(&command)).await?;
    assert!(run > 15, "{run} examples");
    Ok(())
}

#[tokio::test]
async fn every_example_of_the_other_commands_runs_as_printed() -> Result<()> {
    let run = run_examples(|command| !FIRST_COMMANDS.contains(&command)).await?;
    assert!(run > 45, "{run} examples");
    Ok(())
}
