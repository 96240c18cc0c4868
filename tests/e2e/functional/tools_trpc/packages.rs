//! Software that a skill needs and that the daemon cannot install: the model reads it when it loads the skill.
//!
//! Docker: the real image decides which packages are missing, and real builds fail or succeed.

use anyhow::Result;
use serde_json::{Value, json};
use skilld_client::v1::PreflightSkillRequest;
use skilld_tests::test_image::TestImage;
use skilld_tests::{Daemon, Options};
use skilld_tools::ToolOptions;

use super::Talk;
use crate::functional::environments::Fixture;
use crate::functional::preflight::preflight;

/// Loads a skill in a new conversation. Returns the warnings of the result.
async fn load(daemon: &Daemon, skill: &str) -> Result<Value> {
    let mut talk = Talk::new(daemon, "packages", ToolOptions::default())?;
    let loaded = talk.call("skill_load", json!({"skill": skill})).await?;
    Ok(loaded["warnings"].clone())
}

fn contains(warnings: &Value, part: &str) -> bool {
    let list = warnings.as_array();
    let mut texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.any(|text| text.contains(part))
}

async fn fixture() -> Result<Fixture> {
    let fixture = Fixture::new().await?;
    for (name, requirements) in [
        ("absent", "skilld-no-such-package\nrequests\n"),
        ("editable", "-e .\nskilld-compat-greeting\n"),
        ("letters", "skilld-compat-letters\n"),
        // The image has this one.
        ("provided", "requests\n"),
    ] {
        fixture.skill(name, &[("requirements.txt", requirements)])?;
    }
    fixture.skill("plain", &[])?;
    fixture.skill("video", &[("scripts/cut.sh", "ffmpeg -i in.mp4 out.mp4\n")])?;
    Ok(fixture)
}

#[tokio::test]
async fn loading_a_skill_names_uninstallable_packages_and_why() -> Result<()> {
    let fixture = fixture().await?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    // The names of missing packages come from a container of the image, for which loading a skill waits 5 s only.
    preflight(&daemon.client, "plain").await?;
    for skill in ["absent", "letters", "provided", "plain"] {
        // Whether a build succeeds is known when it was tried, which the first run does.
        assert_eq!(load(&daemon, skill).await?, Value::Null, "{skill}");
    }
    let warnings = load(&daemon, "editable").await?;
    // The other packages that it names will be installed.
    let said = "packages of this skill may not be installed, and scripts that import them will fail: \
                requirements.txt:1: \"-e .\" is an option of pip";
    assert!(contains(&warnings, said), "{warnings}");

    let mut talk = Talk::new(&daemon, "packages", ToolOptions::default())?;
    let run = |skill: &str, command: &str| json!({"skill": skill, "command": command});
    let failing = run("absent", "python3 -c 'import skilld_no_such_package'");
    let failed = talk.call("skill_run", failing).await?;
    let said = "packages of this skill may not be installed, and scripts that import them will fail: the packages of \
                skill absent were not built";
    assert!(contains(&failed["warnings"], said), "{failed}");
    let well = talk
        .call("skill_run", run("absent", "python3 -c 'import requests'"))
        .await?;
    assert_eq!(
        (&well["exit_code"], &well["warnings"]),
        (&json!(0), &Value::Null)
    );
    let python = run("letters", "python3 -c 'import skilld_compat_letters'");
    let well = talk.call("skill_run", python).await?;
    assert_eq!(
        (&well["exit_code"], &well["warnings"]),
        (&json!(0), &Value::Null)
    );
    let warnings = load(&daemon, "absent").await?;
    let said = "packages of this skill are not installed: skilld-no-such-package; scripts that import them will fail. \
                Reason: the packages of skill absent were not built";
    assert!(contains(&warnings, said), "{warnings}");
    assert_eq!(load(&daemon, "letters").await?, Value::Null);
    daemon.stop().await
}

#[tokio::test]
async fn missing_program_is_named_at_loading_and_at_a_run() -> Result<()> {
    let fixture = fixture().await?;
    let daemon = Daemon::start_with(fixture.options()).await?;
    preflight(&daemon.client, "plain").await?;
    let warnings = load(&daemon, "video").await?;
    let said = "not installed here: ffmpeg; commands that need it will fail";
    assert_eq!(warnings, json!([said]));
    let mut talk = Talk::new(&daemon, "programs", ToolOptions::default())?;
    let run = json!({"skill": "video", "command": "bash scripts/cut.sh"});
    let failed = talk.call("skill_run", run).await?;
    assert_eq!(failed["exit_code"], 127, "{failed}");
    let said = "the image lacks the program ffmpeg: ";
    assert!(contains(&failed["warnings"], said), "{failed}");
    daemon.stop().await
}

#[tokio::test]
async fn loading_a_skill_names_the_pool_that_has_what_is_missing() -> Result<()> {
    let image = TestImage::build(
        "media",
        "USER root\nRUN mkdir -p /usr/local/lib/node_modules/docx && cp /bin/true /usr/local/bin/ffmpeg && \
         echo '{\"name\": \"docx\"}' >/usr/local/lib/node_modules/docx/package.json\n",
        None,
    )?;
    let fixture = fixture().await?;
    let recipe = "# npm install -g docx\nffmpeg -i in.mp4 out.mp4\n";
    fixture.skill("recipe", &[("scripts/make.sh", recipe)])?;
    let other = "# npm install -g docx left-pad\n";
    fixture.skill("other", &[("scripts/make.sh", other)])?;
    let options = fixture
        .options()
        .set("pools.media.image", image.name())
        .set("pools.media.warm", "1")
        .set("pools.media.max", "2")
        .set("pools.media.claim_timeout", "4m");
    let daemon = Daemon::start_with(options).await?;
    for pool in ["default", "media"] {
        let request = PreflightSkillRequest {
            name: "plain".to_owned(),
            pool: pool.to_owned(),
            ..PreflightSkillRequest::default()
        };
        daemon.client.preflight_skill(request).await?;
    }
    for (skill, missing, pools) in [
        (
            "recipe",
            "ffmpeg, npm docx",
            ". The pool media has all of it",
        ),
        ("other", "npm docx, npm left-pad", ""),
    ] {
        let said = format!("not installed here: {missing}; commands that need it will fail{pools}");
        assert_eq!(load(&daemon, skill).await?, json!([said]), "{skill}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn loading_a_skill_names_packages_the_daemon_does_not_install() -> Result<()> {
    let fixture = fixture().await?;
    let skills = fixture.skills();
    let options = || Options::default().skills(&skills);
    for (options, reason) in [
        (options(), "no source from which the packages"),
        (
            options().set("skills.environment_builds", "never"),
            "this daemon builds no environments",
        ),
        (
            options().set("skills.environment_builds", "prepare"),
            "skillctl skill prepare letters",
        ),
    ] {
        let daemon = Daemon::start_with(options).await?;
        preflight(&daemon.client, "plain").await?;
        let warnings = load(&daemon, "letters").await?;
        let said = "packages of this skill are not installed: skilld-compat-letters; scripts that import them will fail";
        assert!(
            contains(&warnings, said) && contains(&warnings, reason),
            "{warnings}"
        );
        for skill in ["provided", "plain"] {
            assert_eq!(
                load(&daemon, skill).await?,
                Value::Null,
                "{reason}: {skill}"
            );
        }
        daemon.stop().await?;
    }
    Ok(())
}
