//! Roots on servers: a skill is fetched, staged and run, and is there after a restart without its server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_client::v1::{ExecSpec, ListSkillsRequest, ListSkillsResponse};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::{Daemon, Options, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Time within which a fetch from the same host ends, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// HTTP server that answers every request with one file. Dropping the value stops it.
struct Server {
    url: String,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(body: Vec<u8>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/skills-main.tar.gz", listener.local_addr()?);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // One short request fits into one packet.
                let mut request = [0; 4096];
                if stream.read(&mut request).await.is_err() {
                    continue;
                }
                let head = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let answer = [head.as_bytes(), &*body].concat();
                // Who goes away early is the test's business.
                let _ = stream.write_all(&answer).await;
            }
        });
        Ok(Self { url, _tasks: tasks })
    }
}

/// Makes an archive of a skill with a program, in the folder that git's archives have.
fn archive() -> Result<Vec<u8>> {
    let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(encoder);
    for (name, mode, content) in [
        (
            "skills-main/greet/SKILL.md",
            0o644,
            "---\nname: greet\ndescription: Says hello.\n---\nRun bin/greet.\n",
        ),
        (
            "skills-main/greet/bin/greet",
            0o755,
            "#!/bin/sh\necho \"hello $1\"\n",
        ),
    ] {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        builder.append_data(&mut header, name, content.as_bytes())?;
    }
    Ok(builder.into_inner()?.finish()?)
}

async fn list(client: &Client) -> Result<ListSkillsResponse> {
    Ok(client.list_skills(ListSkillsRequest::default()).await?)
}

async fn greeting(client: &Client) -> Result<String> {
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["greet"]).await?;
    let spec = ExecSpec {
        skill: "greet".to_owned(),
        ..shell("greet you")
    };
    Ok(run(client, &name, spec).await?.text())
}

#[tokio::test]
async fn a_skill_of_a_server_is_staged_and_run_and_stays_when_the_server_goes() -> Result<()> {
    let server = Server::start(archive()?).await?;
    let url = server.url.clone();
    let options = Options::default()
        .set("skills.roots", &format!("[{url:?}]"))
        .set("skills.allow_private_addresses", "true");
    let mut daemon = Daemon::start_with(options).await?;
    let skill = wait::until("the skill is fetched", LIMIT, async || {
        let listed = list(&daemon.client).await?;
        Ok(listed.skills.into_iter().next())
    });
    let skill = skill.await?;
    ensure!(skill.name == "skills/greet", "{skill:?}");
    ensure!(skill.root == url, "{skill:?}");
    ensure!(skill.problems.is_empty(), "{skill:?}");
    assert_eq!(greeting(&daemon.client).await?, "hello you\n");

    drop(server);
    daemon.crash().await?;
    daemon.restart().await?;
    assert_eq!(greeting(&daemon.client).await?, "hello you\n");
    let kept = wait::until("the failed refresh is reported", LIMIT, async || {
        let problems = list(&daemon.client).await?.problems;
        Ok(problems
            .into_iter()
            .find(|problem| problem.code == "root.unreachable"))
    });
    let kept = kept.await?;
    assert_eq!(kept.subject, url);
    ensure!(kept.message.contains("is kept"), "{kept:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_server_on_a_private_address_is_refused_unless_that_is_configured() -> Result<()> {
    let server = Server::start(archive()?).await?;
    let url = server.url.replace("127.0.0.1", "localhost");
    // What is allowed for the inputs of callers is not for roots.
    let options = Options::default()
        .set("skills.roots", &format!("[{url:?}]"))
        .set("files.input_urls", "true")
        .set("files.input_private_addresses", "true");
    let daemon = Daemon::start_with(options).await?;
    let refused = wait::until("the refusal is reported", LIMIT, async || {
        let listed = list(&daemon.client).await?;
        ensure!(listed.skills.is_empty(), "{listed:?}");
        Ok(listed
            .problems
            .into_iter()
            .find(|problem| problem.code == "root.refused"))
    });
    let message = refused.await?.message;
    let told = message.split("; ").nth(1).context("it says what to do")?;
    ensure!(told.contains("allowed in the configuration"), "{message}");
    daemon.stop().await
}
