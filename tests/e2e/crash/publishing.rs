//! The daemon dies between every two steps of publishing a skill, of taking it back and of clearing the store. Started
//! again, it has the skill or it does not; nothing is half there, and what was asked for can be asked for again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use futures::stream;
use skilld_client::{Client, RetryPolicy};
use skilld_proto::v1::publish_skill_request::Payload;
use skilld_proto::v1::{
    DeleteSkillRequest, ListSkillsRequest, PublishSkillHeader, PublishSkillRequest, Skill,
    SkillState,
};
use skilld_tests::{Daemon, Options, files, wait};

use crate::crash::DEADLINE;
use crate::crash::fault_points::points;

#[tokio::test]
async fn publishing_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("publish.") {
        let mut daemon = daemon(point).await?;
        let client = daemon.client.clone().with_retry(RetryPolicy::none());
        assert!(publish(&client, "1.0").await.is_err(), "{point}");
        died(&mut daemon).await?;

        let there = skills(&daemon).await?;
        assert_eq!(
            there.len(),
            usize::from(point == "publish.recorded"),
            "{point}"
        );
        let published = publish(&daemon.client, "1.0").await.context(point)?;
        whole(&daemon, &published).await.context(point)?;
        daemon.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn unpublishing_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("unpublish.") {
        let mut daemon = daemon(point).await?;
        let client = daemon.client.clone().with_retry(RetryPolicy::none());
        publish(&client, "1.0").await?;
        publish(&client, "2.0").await?;
        assert!(delete(&client).await.is_err(), "{point}");
        died(&mut daemon).await?;
        assert_eq!(skills(&daemon).await?.len(), 0, "{point}");
        let published = publish(&daemon.client, "1.0").await.context(point)?;
        whole(&daemon, &published).await.context(point)?;
        daemon.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn clearing_the_store_survives_a_crash() -> Result<()> {
    for point in points("clear.") {
        let mut daemon = daemon(point).await?;
        let client = daemon.client.clone().with_retry(RetryPolicy::none());
        publish(&client, "1.0").await?;
        let store = daemon.state_dir().join("skills/sha256");
        assert_eq!(names(&store)?.len(), 1);
        // The sweep that follows may be quicker than the answer.
        let _answer = delete(&client).await;
        died(&mut daemon).await?;
        assert_eq!(names(&store)?, Vec::<String>::new());
        let published = publish(&daemon.client, "1.0").await?;
        whole(&daemon, &published).await?;
        daemon.stop().await?;
    }
    Ok(())
}

/// Settings of a daemon without containers and roots that removes unused skills at once.
async fn daemon(point: &str) -> Result<Daemon> {
    let options = Options::default()
        .set("pools.default.warm", "0")
        .set("skills.roots", "[]")
        .set("skills.keep_unused", "1ms")
        .dies_at(point);
    Daemon::start_with(options).await
}

async fn died(daemon: &mut Daemon) -> Result<()> {
    assert_eq!(daemon.wait().await?, None, "it was not killed");
    daemon.heal("pools.default.warm", "0");
    daemon.restart().await.map(drop)
}

async fn publish(client: &Client, version: &str) -> Result<Skill> {
    let front = format!("---\nname: csv\ndescription: d\nversion: \"{version}\"\n---\n");
    let archive = files::tar(&[
        ("csv/SKILL.md", front.as_bytes(), 0o644),
        ("csv/bin/run.sh", version.as_bytes(), 0o755),
    ])?;
    let header = PublishSkillHeader {
        name: "skills/csv".to_owned(),
        ..PublishSkillHeader::default()
    };
    let messages = [Payload::Header(header), Payload::Data(archive.into())].map(|payload| {
        PublishSkillRequest {
            payload: Some(payload),
        }
    });
    let published = client.skills().publish_skill(stream::iter(messages)).await;
    Ok(published?.into_inner())
}

async fn delete(client: &Client) -> Result<()> {
    let request = DeleteSkillRequest {
        name: "skills/csv".to_owned(),
        allow_missing: false,
    };
    client.skills().delete_skill(request).await?;
    Ok(())
}

async fn skills(daemon: &Daemon) -> Result<Vec<Skill>> {
    let listed = daemon
        .client
        .list_skills(ListSkillsRequest::default())
        .await?;
    let skills = listed.skills.into_iter();
    Ok(skills.filter(|skill| skill.name == "skills/csv").collect())
}

/// Checks that the skill has all of its files and, once the store is swept, that nothing else is left.
async fn whole(daemon: &Daemon, published: &Skill) -> Result<()> {
    assert_eq!(
        published.state(),
        SkillState::Loaded,
        "{:?}",
        published.problems
    );
    let listed = skills(daemon).await?;
    let digests: Vec<&str> = listed.iter().map(|skill| skill.digest.as_str()).collect();
    assert_eq!(digests, [published.digest.as_str()]);
    let base = daemon.state_dir().join("skills");
    let digest = published.digest.trim_start_matches("sha256:");
    let script = base.join("sha256").join(digest).join("bin/run.sh");
    assert_eq!(fs::read_to_string(script)?, published.version);
    assert_eq!(names(&base.join("published"))?, ["csv"]);
    wait::until("the store is cleared", DEADLINE, async || {
        let cleared =
            names(&base.join("sha256"))? == [digest] && names(&base.join("tmp"))?.is_empty();
        Ok(cleared.then_some(()))
    })
    .await?;
    Ok(())
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
