//! Whole conversations of a host, over each provider's requests: skill text is in the request after the model loaded the
//! skill, and disappears when it should. The model is a script that may only call offered tools.

mod agent;

use anyhow::{Context, Result};
use serde_json::json;
use skilld_tests::Daemon;
use skilld_tools::{Family, LoadMode, ToolOptions};

use agent::Agent;

/// Words that only the skills' own texts have.
const CSV: &str = "Reads one table, row by row";
const IMAGES: &str = "What is read of each format";
const UNITS: &str = "Converts numbers between units of one kind";

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_skill_is_in_the_requests_of_its_turn_and_not_in_the_next() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut agent = Agent::new(&daemon.client, ToolOptions::default())?;
    agent.user("What is in table.csv?");
    let request = agent.prompt().await?;
    assert!(request.shows("- csv-report: Profiles a CSV file") && !request.shows(CSV));

    agent.call("skill_list", json!({})).await?;
    let docs = agent.call("skill_list_docs", json!({"skill": "image-info"}));
    assert_eq!(docs.await?[0], "references/formats.md");
    agent
        .call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    let request = agent.prompt().await?;
    assert!(request.shows(CSV) && !request.shows(IMAGES));
    assert_eq!(request.shown, ["csv-report"]);
    let load = json!({"skill": "image-info", "docs": ["references/formats.md"]});
    agent.call("skill_load", load).await?;
    let request = agent.prompt().await?;
    assert!(request.shows(CSV) && request.shows(IMAGES));

    let run = json!({
        "skill": "csv-report",
        "command": "printf 'a\\n1\\n' > $WORK_DIR/t.csv; python scripts/csv_report.py $WORK_DIR/t.csv",
        "output_files": ["out/report.md"],
    });
    let ran = agent.call("skill_run", run).await?;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    let read = json!({"file_name": "workspace://out/report.md"});
    let read = agent.call("read_file", read).await?;
    assert_eq!(read["content"], ran["output_files"][0]["content"]);
    assert!(
        agent.prompt().await?.shows(CSV),
        "as long as the turn goes on"
    );

    // The user speaks again, in another process with the kept state.
    let mut agent = agent.restarted()?;
    agent.user("Thanks. And in other.csv?");
    let request = agent.prompt().await?;
    assert!(!request.shows(CSV) && !request.shows(IMAGES));
    assert_eq!(request.shown, Vec::<String>::new());
    assert!(
        !request.shows("loaded: csv-report"),
        "that would read like it were there"
    );
    assert!(request.shows("csv-report was loaded earlier and is not now"));
    agent
        .call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    assert!(agent.prompt().await?.shows(CSV));
    // The result that stood for it is cut away.
    agent.forget();
    assert!(agent.prompt().await?.shows(CSV));
    agent.end().await?;
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_loaded_for_one_prompt_is_in_one_and_one_too_many_is_in_none() -> Result<()> {
    let daemon = Daemon::start().await?;
    let options = |load_mode, max_loaded_skills| ToolOptions {
        load_mode,
        max_loaded_skills,
        ..ToolOptions::default()
    };
    let mut agent = Agent::new(&daemon.client, options(LoadMode::Once, 0))?;
    agent.user("What is in table.csv?");
    agent
        .call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    assert!(agent.prompt().await?.shows(CSV));
    assert!(!agent.prompt().await?.shows(CSV));

    let mut agent = Agent::new(&daemon.client, options(LoadMode::Session, 1))?;
    agent.user("What is in table.csv?");
    agent
        .call("skill_load", json!({"skill": "csv-report"}))
        .await?;
    let units = agent
        .call("skill_load", json!({"skill": "unit-convert"}))
        .await?;
    assert_eq!(units["evicted"], json!(["csv-report"]));
    let request = agent.prompt().await?;
    assert!(request.shows(UNITS) && !request.shows(CSV));
    agent.user("And how long is it in miles?");
    assert!(agent.prompt().await?.shows(UNITS), "for the session");
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_zeros_skills_stay_and_survive_a_history_that_is_cut() -> Result<()> {
    let daemon = Daemon::start().await?;
    let options = ToolOptions {
        family: Family::AgentZero,
        ..ToolOptions::default()
    };
    let mut agent = Agent::new(&daemon.client, options)?;
    agent.user("How long is 0.1 km?");
    let found = agent.call(
        "skills_tool",
        json!({"method": "search", "query": "unit temperatures"}),
    );
    let name = found.await?["matches"][0]["name"].clone();
    assert_eq!(name, "unit-convert");
    assert!(!agent.prompt().await?.shows(UNITS));
    agent
        .call("skills_tool", json!({"method": "load", "skill_name": name}))
        .await?;
    assert!(agent.prompt().await?.shows(UNITS));
    let ran = agent.call(
        "skills_tool",
        json!({
            "method": "execute_script", "skill_name": name, "script_path": "scripts/convert.py",
            "argv": ["0.1", "--from", "km", "--to", "m", "--quiet"],
        }),
    );
    assert_eq!(ran.await?["stdout"], "100\n");
    let mut agent = agent.restarted()?;
    agent.user("And in miles?");
    agent.forget();
    let request = agent.prompt().await?;
    assert!(request.shows(UNITS));
    assert_eq!(request.shown, ["unit-convert"]);
    agent.end().await?;
    daemon.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn shermas_skills_stay_in_their_version_and_survive_a_history_that_is_cut() -> Result<()> {
    let daemon = Daemon::start().await?;
    let options = ToolOptions {
        family: Family::Sherma,
        additions: true,
        ..ToolOptions::default()
    };
    let mut agent = Agent::new(&daemon.client, options)?;
    agent.user("Write to Bob.");
    assert!(agent.prompt().await?.shows("- letter-template: "));
    let listed = agent.call("list_skills", json!({})).await?;
    assert!(listed.as_array().is_some_and(|skills| skills.len() > 1));
    let load = json!({"skill_id": "letter-template", "version": "^1"});
    let loaded = agent.call("load_skill_md", load).await?;
    let text = "# letter-template, version 1";
    assert!(loaded["content"].as_str().context("text")?.contains(text));
    assert!(agent.prompt().await?.shows(text));
    let mut agent = agent.restarted()?;
    agent.user("And to Ann.");
    assert!(agent.prompt().await?.shows(text));
    let script = json!({
        "skill_id": "letter-template", "script_path": "scripts/letter.py", "stdin": "At four?",
        "script_args": {"to": "Ann", "subject": "Tea"}, "arg_style": "named",
    });
    let ran = agent.call("run_skill_script", script).await?;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    // In the version that was loaded, though the current one is another.
    agent.forget();
    assert!(agent.prompt().await?.shows(text));
    agent.end().await?;
    daemon.stop().await
}
