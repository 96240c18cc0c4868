//! The sample skills end to end, one per shape that skills come in: listed, staged, and run as their documents say.
//!
//! Docker: each script runs with the interpreter, packages and programs of the real image.

use anyhow::{Context, Result};
use prost_types::value::Kind;
use serde_json::{Value, json};
use skilld_client::Client;
use skilld_client::v1::{
    ExecScript, ExecSpec, ListSkillsRequest, ScriptArg, ScriptArgStyle, ScriptCwd, SkillState,
};
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::{Outcome, run, shell};

/// Sample skills in a folder of their own, with one version.
const SAMPLES: [&str; 14] = [
    "csv-report",
    "doc-check",
    "flash-cards",
    "heading-outline",
    "image-info",
    "incident-report",
    "json-shape",
    "line-ends",
    "python-math",
    "release-kit",
    "sales-workbook",
    "text-stats",
    "trip-planner",
    "unit-convert",
];

fn text(text: &str) -> prost_types::Value {
    prost_types::Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

/// Returns a spec that runs a script of a skill with arguments and options.
fn script(skill: &str, path: &str, argv: &[&str], options: &[(&str, &str)]) -> ExecSpec {
    let args = options.iter().map(|(key, value)| ScriptArg {
        key: (*key).to_owned(),
        value: Some(text(value)),
        literal: String::new(),
    });
    ExecSpec {
        skill: skill.to_owned(),
        script: Some(ExecScript {
            path: path.to_owned(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            args: args.collect(),
            arg_style: ScriptArgStyle::Named.into(),
            cwd: ScriptCwd::SkillRoot.into(),
        }),
        ..Default::default()
    }
}

fn with_stdin(spec: ExecSpec, bytes: &str) -> ExecSpec {
    ExecSpec {
        stdin_data: bytes.as_bytes().to_vec().into(),
        ..spec
    }
}

fn in_skill(skill: &str, command: &str) -> ExecSpec {
    ExecSpec {
        skill: skill.to_owned(),
        ..shell(command)
    }
}

async fn good(client: &Client, name: &str, spec: ExecSpec) -> Result<Outcome> {
    let outcome = run(client, name, spec).await?;
    anyhow::ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
    Ok(outcome)
}

async fn text_of(client: &Client, name: &str, spec: ExecSpec) -> Result<String> {
    Ok(good(client, name, spec).await?.text())
}

async fn json_of(client: &Client, name: &str, spec: ExecSpec) -> Result<Value> {
    let outcome = good(client, name, spec).await?;
    serde_json::from_slice(&outcome.stdout).with_context(|| format!("{outcome:?}"))
}

/// Claims a workspace with these skills and three inputs. Returns its daemon and its name.
async fn stage_samples(skills: &[&str]) -> Result<(DefaultDaemon, String)> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let staged = client.stage_skills(&name, skills).await?;
    let names = staged
        .iter()
        .map(|skill| skill.name.trim_start_matches("skills/"));
    assert!(names.eq(skills.iter().copied()), "{staged:?}");
    let inputs =
        "cd $INPUTS_DIR; printf '# One\\n## Two\\n' >doc.md; printf 'a \\r\\nb\\r\\n' >dos.txt
printf '{\"id\":1}\\n{\"id\":2}\\n' >rows.jsonl";
    good(client, &name, shell(inputs)).await?;
    Ok((daemon, name))
}

#[tokio::test]
async fn every_sample_is_loaded_with_its_description() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let listed = daemon
        .client
        .list_skills(ListSkillsRequest::default())
        .await?;
    let names: Vec<&str> = listed
        .skills
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    for sample in SAMPLES {
        let name = format!("skills/{sample}");
        assert!(names.contains(&name.as_str()), "{name} in {names:?}");
    }
    let is_sample = |name: &str| SAMPLES.contains(&name.trim_start_matches("skills/"));
    for skill in listed.skills.iter().filter(|skill| is_sample(&skill.name)) {
        assert_eq!(skill.state(), SkillState::Loaded, "{skill:?}");
    }
    daemon.stop().await
}

/// Runs the samples that read text: JSON out, a package run as a module, jq, Node.
async fn check_documents_and_data(client: &Client, name: &str) -> Result<()> {
    let spec = script(
        "unit-convert",
        "scripts/convert.py",
        &["1.5"],
        &[("from", "km"), ("to", "m")],
    );
    assert_eq!(
        json_of(client, name, spec).await?["results"][0]["result"],
        "1500"
    );

    let spec = in_skill(
        "doc-check",
        "python -m scripts.check inputs/doc.md && echo fine",
    );
    assert_eq!(text_of(client, name, spec).await?, "fine\n");

    let spec = script(
        "json-shape",
        "scripts/json-shape.sh",
        &["inputs/rows.jsonl"],
        &[],
    );
    let shape = text_of(client, name, spec).await?;
    assert!(shape.contains(".id") && shape.contains("number"), "{shape}");

    let spec = script(
        "heading-outline",
        "scripts/outline.mjs",
        &["inputs/doc.md"],
        &[("depth", "1")],
    );
    assert_eq!(text_of(client, name, spec).await?, "- [One](#one)\n");
    Ok(())
}

#[tokio::test]
async fn samples_with_scripts_do_their_work() -> Result<()> {
    let (daemon, name) = stage_samples(&SAMPLES).await?;
    let client = &daemon.client;
    check_documents_and_data(client, &name).await?;
    let spec = script(
        "image-info",
        "scripts/image_info.py",
        &["assets/sample.png"],
        &[],
    );
    assert_eq!(
        json_of(client, &name, spec).await?["complete"],
        json!(true),
        "the binary arrived whole"
    );

    let spec = script("flash-cards", "scripts/quiz.py", &[], &[("count", "1")]);
    assert_eq!(
        text_of(client, &name, spec.clone()).await?,
        "1/1 France? \nscore 0/0\n",
        "nobody answers"
    );
    let played = text_of(client, &name, with_stdin(spec, "Paris\n")).await?;
    assert_eq!(played, "1/1 France? right\nscore 1/1\n");

    let spec = script(
        "line-ends",
        "scripts/line-ends.sh",
        &["--fix", "inputs/dos.txt"],
        &[],
    );
    assert_eq!(
        text_of(client, &name, spec).await?,
        "inputs/dos.txt crlf blanks\n"
    );
    let direct = in_skill("line-ends", "./scripts/line-ends.sh out/dos.txt");
    assert_eq!(text_of(client, &name, direct).await?, "out/dos.txt lf\n");

    let spec = script(
        "text-stats",
        "scripts/text-stats.sh",
        &["inputs/doc.md"],
        &[("top", "1")],
    );
    assert!(
        text_of(client, &name, spec)
            .await?
            .contains("words         4\n")
    );
    let spec = script(
        "python-math",
        "scripts/python_math.py",
        &["--json", "factor", "12"],
        &[],
    );
    assert_eq!(
        json_of(client, &name, spec).await?["factors"],
        json!([2, 2, 3])
    );
    daemon.stop().await
}
