//! Uploads of one tenant that never end, and what is left for another one.

use std::time::Duration;

use skilld_client::Client;
use skilld_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::byte_quotas::save;
use super::harness::AccessServer;
use super::skills::try_publish;

/// Time within which the daemon serves what does not wait. A slow upload lasts twice as long: the daemon ends a save
/// that makes no progress for two minutes.
const PROMPT: Duration = Duration::from_secs(60);
/// Time after which a call counts as waiting. One that would be served later only costs another round.
const WAITING: Duration = Duration::from_millis(300);

/// Uploads that have begun, and send nothing more.
#[derive(Default)]
struct SlowUploads {
    calls: JoinSet<()>,
    artifacts: Vec<mpsc::Sender<pb::SaveArtifactRequest>>,
    skills: Vec<mpsc::Sender<pb::PublishSkillRequest>>,
}

impl SlowUploads {
    async fn begin(&mut self, client: &Client, name: &str) {
        let (sender, receiver) = mpsc::channel(1);
        let header = pb::SaveArtifactHeader {
            name: format!("artifacts/{name}"),
            ..pb::SaveArtifactHeader::default()
        };
        let first = pb::SaveArtifactRequest {
            payload: Some(pb::save_artifact_request::Payload::Header(header)),
        };
        sender.send(first).await.expect("open");
        self.artifacts.push(sender);
        let mut artifacts = client.artifacts();
        self.calls.spawn(async move {
            let saved = artifacts.save_artifact(ReceiverStream::new(receiver));
            drop(saved.await);
        });

        let (sender, receiver) = mpsc::channel(1);
        let header = pb::PublishSkillHeader {
            name: format!("skills/{name}"),
            ..pb::PublishSkillHeader::default()
        };
        let first = pb::PublishSkillRequest {
            payload: Some(pb::publish_skill_request::Payload::Header(header)),
        };
        sender.send(first).await.expect("open");
        self.skills.push(sender);
        let mut skills = client.skills();
        self.calls.spawn(async move {
            let published = skills.publish_skill(ReceiverStream::new(receiver));
            drop(published.await);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_uploads_of_one_tenant_keep_no_other_tenant_waiting() {
    let server = AccessServer::start_after(|config| {
        (config.artifacts.saves_max, config.skills.publishes_max) = (4, 4);
        config.server.upload_timeout = Duration::from_secs(600);
    })
    .await;
    let (a, b) = (
        server.client("a", "publisher").await,
        server.client("b", "publisher").await,
    );
    let mut slow = SlowUploads::default();
    for number in 0..8 {
        slow.begin(&a, &format!("slow-{number}")).await;
    }
    let start = Instant::now();
    let (mut saves_wait, mut publishes_wait) = (false, false);
    while !(saves_wait && publishes_wait) {
        saves_wait = timeout(WAITING, save(&a, "artifacts/a", 1)).await.is_err();
        let version = start.elapsed().as_micros().to_string();
        let published = try_publish(&a, "of-a", &version, "a");
        publishes_wait = timeout(WAITING, published).await.is_err();
        assert!(start.elapsed() < PROMPT, "tenant a takes all it may have");
    }
    let saved = timeout(PROMPT, save(&b, "artifacts/b", 1)).await;
    saved.expect("tenant b does not wait").expect("saved");
    let published = timeout(PROMPT, try_publish(&b, "of-b", "1.0", "b")).await;
    published
        .expect("tenant b does not wait")
        .expect("published");
    drop(slow);
    let saved = timeout(PROMPT, save(&a, "artifacts/a", 1)).await;
    saved
        .expect("what ended gives its permit back")
        .expect("saved");
    assert!(server.stop().await);
}
