//! Tests of a slot's task on a paused clock. A request at the moment of the lease's end is either in time or too late,
//! and never both.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use prost::Message;
use skilld_proto::guest::v1 as pb;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;

use super::*;
use crate::access::TenantName;
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::fake::{EngineOperation, FakeEngine};
use crate::guest::{GuestChannel, GuestClient};
use crate::shutdown::Tasks;
use crate::workspace::launcher::{WorkspaceLauncher, launch_adopted};
use crate::workspace::record::SetupRecord;
use crate::workspace::{Workspace, WorkspaceId, WorkspaceKey, slot_provisioning};

/// Idle timeout or lifetime that ends the workspace of a case.
const SHORT: Duration = Duration::from_secs(1);
/// Idle timeout or lifetime that a case never reaches.
const LONG: Duration = Duration::from_secs(3600);
const CASES: u64 = 10_000;
/// Number of threads that share the cases.
const PARTS: u64 = 4;

/// Guest that answers every call with an idle Hello.
#[derive(Debug, Clone, Default)]
struct IdleGuest {
    delay_ms: Arc<AtomicU64>,
}

/// Response body of one message with status OK.
struct Answer {
    message: Option<Bytes>,
    ended: bool,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

impl NamedService for IdleGuest {
    const NAME: &'static str = "skilld.guest.v1.GuestService";
}

impl tower::Service<Request<Body>> for IdleGuest {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _context: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
        Box::pin(async move {
            // A stream that is answered before its request was read is reset, and only so many may be.
            let body = request.body_mut();
            while let Some(frame) =
                std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
            {
                drop(frame);
            }
            tokio::time::sleep(delay).await;
            let hello = pb::HelloResponse {
                idle_duration: LONG.try_into().ok(),
                ..pb::HelloResponse::default()
            };
            let mut message = BytesMut::new();
            message.put_u8(0);
            message.put_u32(u32::try_from(hello.encoded_len()).expect("short"));
            hello.encode(&mut message).expect("room");
            let mut response = Response::new(Body::new(Answer {
                message: Some(message.freeze()),
                ended: false,
            }));
            response.headers_mut().insert(
                "content-type",
                http::HeaderValue::from_static("application/grpc"),
            );
            Ok(response)
        })
    }
}

fn workspace_key() -> WorkspaceKey {
    WorkspaceId::new("w".to_owned()).of_tenant(&TenantName::default())
}

async fn client(guest: IdleGuest, tasks: &Tasks) -> GuestClient {
    let (near, far) = tokio::io::duplex(1 << 16);
    let incoming = futures::stream::iter([Ok::<_, std::io::Error>(far)]);
    tasks.spawn(async move {
        let incoming = futures::StreamExt::chain(incoming, futures::stream::pending());
        let served = Server::builder().add_service(guest);
        drop(served.serve_with_incoming(incoming).await);
    });
    GuestClient::new(GuestChannel::connect(near).await.expect("connected"))
}

/// Environment that all cases share.
struct Bench {
    engine: Arc<FakeEngine>,
    context: Arc<SharedSlotContext>,
    pool: Arc<Pool>,
    guest: IdleGuest,
    client: GuestClient,
    record: SlotRecord,
}

async fn bench(dir: &std::path::Path) -> Bench {
    let toml = format!("state_dir = {dir:?}\npools.default.warm = 0\n");
    let config = Arc::new(Config::from_toml(&toml).expect("configuration").config);
    let engine = Arc::new(FakeEngine::new());
    let tasks = Tasks::default();
    let info = engine.describe().await.expect("described");
    let context = SharedSlotContext::new(
        &config,
        Arc::clone(&engine) as _,
        info,
        &tasks,
        "0123456789ab",
        0,
    );
    let context = Arc::new(context);
    let pool_config = config.pools.first().expect("one").clone();
    let image = engine.check_image(&pool_config.image).await.expect("image");
    let limits = pool_config.limits();
    let mut record =
        slot_provisioning::new_record(&config, &pool_config, limits, &image, 7, 200_007);
    record.container_id = Some("c".repeat(64));
    let guest = IdleGuest::default();
    Bench {
        client: client(guest.clone(), &tasks).await,
        pool: Pool::start(
            &tasks,
            pool_config,
            image,
            Arc::new(WorkspaceLauncher(Arc::clone(&context))),
            Arc::default(),
        ),
        engine,
        context,
        guest,
        record,
    }
}

/// Starts a claimed slot with this idle timeout and lifetime.
fn claimed(bench: &Bench, idle: Duration, remaining: Duration) -> Slot {
    let link = GuestLink::for_test(bench.client.clone(), CancellationToken::new());
    claimed_with(bench, link, idle, remaining)
}

fn claimed_with(bench: &Bench, link: GuestLink, idle: Duration, remaining: Duration) -> Slot {
    let (mut actor, slot) = claimed_actor(bench, idle, remaining);
    actor.link = Some(link);
    actor.publish();
    bench.context.tasks.spawn(actor.run());
    slot
}

/// Makes the task of a claimed slot that has no connection to its guest, and does not start it.
fn claimed_actor(bench: &Bench, idle: Duration, remaining: Duration) -> (SlotActor, Slot) {
    let mut record = bench.record.clone();
    let ms = |time: Duration| u64::try_from(time.as_millis()).expect("short");
    record.phase = SlotPhase::Claimed;
    record.claim = Some(WorkspaceClaim {
        tenant: TenantName::default(),
        creator: "anonymous".to_owned(),
        workspace: "w".to_owned(),
        request: String::new(),
        labels: BTreeMap::new(),
        env: BTreeMap::new(),
        create_time_ms: 0,
        idle_timeout_ms: ms(idle),
        end_time_ms: 0,
        skills: BTreeMap::new(),
        inputs: Vec::new(),
        setup: SetupRecord::default(),
    });
    std::fs::create_dir_all(bench.context.slot_dir(record.number).join("skills"))
        .expect("directory");
    let (mut actor, slot) = SlotActor::new(
        Arc::clone(&bench.context),
        Arc::clone(&bench.pool),
        record,
        SlotState::Claimed,
    );
    actor.lease = Some(WorkspaceLease::new(idle, remaining, 960));
    (actor, slot)
}

/// Runs one interleaving of renewal, use and deletion, in milliseconds around the end of the lease.
async fn race(bench: &Bench, case: u64) {
    let by_idleness = case.is_multiple_of(2);
    let (idle, remaining) = if by_idleness {
        (SHORT, LONG)
    } else {
        (LONG, SHORT)
    };
    let around = |digit: u64| SHORT + Duration::from_millis(digit % 7) - Duration::from_millis(3);
    bench.guest.delay_ms.store(case / 2 % 4, Ordering::Relaxed);
    let removals = bench.engine.call_count(EngineOperation::Remove);
    let slot = claimed(bench, idle, remaining);
    let workspace = Workspace {
        key: workspace_key(),
        slot,
    };
    let start = Instant::now();
    let renewing = async {
        tokio::time::sleep_until(start + around(case / 8)).await;
        let asked = Instant::now();
        let renewed = match by_idleness {
            true => workspace.renew(Some(SHORT), None).await,
            false => workspace.renew(None, Some(SHORT)).await,
        };
        renewed.is_ok().then_some(asked)
    };
    let using = async {
        tokio::time::sleep_until(start + around(case / 56)).await;
        let asked = Instant::now();
        workspace.grant().await.is_ok().then_some(asked)
    };
    let deleting = async {
        // In every eighth case a client deletes the workspace as well.
        if case / 392 % 8 != 7 {
            return None;
        }
        tokio::time::sleep_until(start + around(case / 3136)).await;
        let asked = Instant::now();
        workspace.delete().await.expect("deleted");
        Some(asked)
    };
    let gone = async {
        workspace.wait_until_removed().await;
        Instant::now()
    };
    let (renewed, used, deleted, gone) = tokio::join!(renewing, using, deleting, gone);

    let kept_by_use = used.filter(|_| by_idleness);
    for in_time in [renewed, kept_by_use].into_iter().flatten() {
        let promised = in_time + SHORT;
        let early = deleted.is_none_or(|asked| gone < asked) && gone < promised;
        assert!(
            !early,
            "case {case}: in time, and gone {:?} later",
            gone - in_time
        );
    }
    let latest = [renewed, kept_by_use, Some(start)]
        .into_iter()
        .flatten()
        .max();
    let late = gone - latest.expect("at least the start");
    assert!(
        late <= SHORT + Duration::from_millis(20),
        "case {case}: gone {late:?} late"
    );
    let removed = bench.engine.call_count(EngineOperation::Remove) - removals;
    assert_eq!(removed, 1, "case {case}: removed {removed} times");
    assert!(workspace.grant().await.is_err() && workspace.renew(None, None).await.is_err());
}

/// Runs `test` on a runtime of its own with a paused clock.
fn on_a_clock_of_its_own<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F) {
    // Each case writes records, so they go to memory where the host has such a directory.
    let memory = std::path::Path::new("/dev/shm");
    let created = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let dir = created.expect("temporary directory");
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build();
    runtime
        .expect("runtime")
        .block_on(test(dir.path().to_owned()));
}

#[test]
fn renew_races_expiry() {
    std::thread::scope(|scope| {
        for part in 0..PARTS {
            scope.spawn(move || {
                on_a_clock_of_its_own(async |dir| {
                    let bench = bench(&dir).await;
                    for case in (part..CASES).step_by(usize::try_from(PARTS).expect("few")) {
                        race(&bench, case).await;
                    }
                });
            });
        }
    });
}

/// Gives the bench's slot a container that runs and whose guest never connects.
async fn run_without_guest(bench: &mut Bench) {
    let slot_dir = bench.context.slot_dir(bench.record.number);
    for name in ["run", "skills", "passwd", "group"] {
        std::fs::create_dir_all(slot_dir.join(name)).expect("directory");
    }
    bench.engine.start_without_guest();
    let pool = &bench.pool.config;
    let spec = slot_provisioning::container_spec(&bench.context, pool, &bench.record, None);
    let id = bench.engine.create(&spec).await.expect("created");
    bench.engine.start(&id).await.expect("started");
    bench.record.container_id = Some(id);
}

/// A command may run in it, but no one can ever find out, so the workspace is lost before its lifetime ends.
#[test]
fn an_idle_workspace_whose_guest_never_answers_is_lost() {
    on_a_clock_of_its_own(async |dir| {
        let mut bench = bench(&dir).await;
        run_without_guest(&mut bench).await;
        bench.guest.delay_ms.store(86_400_000, Ordering::Relaxed);
        let slot = claimed(&bench, SHORT, LONG);
        let start = Instant::now();
        let mut view = slot.view.clone();
        let lost = view
            .wait_for(|view| view.state != SlotState::Claimed)
            .await
            .expect("published")
            .state;
        assert_eq!(lost, SlotState::Failed(LossCause::GuestLost));
        let took = start.elapsed();
        assert!(
            took > SHORT && took < Duration::from_secs(20),
            "lost only after {took:?}"
        );
    });
}

/// Docker's own commands pause a container for a moment, and the report that it was resumed may be lost.
#[test]
fn a_pause_that_is_over_breaks_no_call() {
    on_a_clock_of_its_own(async |dir| {
        let mut bench = bench(&dir).await;
        run_without_guest(&mut bench).await;
        let slot = claimed(&bench, LONG, LONG);
        let looks = bench.engine.call_count(EngineOperation::Inspect);
        slot.container_paused(true);
        tokio::time::sleep(2 * SHORT).await;
        assert_eq!(bench.engine.call_count(EngineOperation::Inspect), looks + 1);
        let key = workspace_key();
        let workspace = Workspace { key, slot };
        let start = Instant::now();
        workspace.grant().await.expect("usable");
        assert_eq!(start.elapsed(), Duration::ZERO, "it was not awaited again");
    });
}

/// A request that looked at the workspace before its end began must not start another command.
#[test]
fn nothing_is_granted_once_the_end_has_begun() {
    on_a_clock_of_its_own(async |dir| {
        let bench = bench(&dir).await;
        let slot = claimed(&bench, LONG, LONG);
        // The guest delays the end.
        bench.guest.delay_ms.store(500, Ordering::Relaxed);
        let before = slot.snapshot().lease.clone().expect("claimed");
        let mut view = slot.view.clone();
        let key = workspace_key();
        let workspace = Workspace { key, slot };
        let during = async {
            let ending = view.wait_for(|view| view.state == SlotState::Closing);
            ending.await.expect("published");
            assert_eq!(before.try_hold().expect_err("ends"), HoldError::Closed);
            let refused = workspace.grant().await.expect_err("ends");
            assert!(
                matches!(refused, Error::WorkspaceNotReady { .. }),
                "{refused}"
            );
        };
        let (deleted, ()) = tokio::join!(workspace.delete(), during);
        deleted.expect("deleted");
    });
}

/// A request that waits for the guest's connection must not start another command either.
#[test]
fn a_waiting_request_is_refused_once_the_deletion_begins() {
    on_a_clock_of_its_own(async |dir| {
        let mut bench = bench(&dir).await;
        run_without_guest(&mut bench).await;
        bench.guest.delay_ms.store(500, Ordering::Relaxed);
        let (mut actor, slot) = claimed_actor(&bench, LONG, LONG);
        let link = GuestLink::for_test(bench.client.clone(), CancellationToken::new());
        actor.start_reconnect(Some(link)).await;
        actor.publish();
        bench.context.tasks.spawn(actor.run());
        let key = workspace_key();
        let workspace = Workspace { key, slot };
        let start = Instant::now();
        let refuse = async {
            let refused = workspace.grant().await.expect_err("ends");
            assert!(
                matches!(refused, Error::WorkspaceNotReady { .. }),
                "{refused}"
            );
            assert!(start.elapsed() < Duration::from_millis(500), "it waited");
        };
        // In this order they reach the slot's task.
        let ((), deleted) = tokio::join!(refuse, workspace.delete());
        deleted.expect("deleted");
    });
}

#[test]
fn a_guest_whose_connection_is_lost_is_not_granted() {
    on_a_clock_of_its_own(async |dir| {
        let mut bench = bench(&dir).await;
        run_without_guest(&mut bench).await;
        let lost = CancellationToken::new();
        let link = GuestLink::for_test(bench.client.clone(), lost.clone());
        let slot = claimed_with(&bench, link, LONG, LONG);
        let key = workspace_key();
        let workspace = Workspace { key, slot };
        drop(workspace.grant().await.expect("connected"));
        // The slot's task has not run since.
        lost.cancel();
        let refused = workspace.grant().await.expect_err("lost");
        assert!(matches!(refused, Error::GuestLost { .. }), "{refused}");
    });
}

#[test]
fn a_workspace_takes_960_calls_at_once_and_refuses_the_next() {
    on_a_clock_of_its_own(async |dir| {
        let bench = bench(&dir).await;
        let slot = claimed(&bench, LONG, LONG);
        let key = workspace_key();
        let workspace = Workspace { key, slot };
        let mut grants = Vec::new();
        for _ in 0..960 {
            grants.push(workspace.grant().await.expect("room"));
        }
        let refused = workspace.grant().await.expect_err("full");
        assert!(
            matches!(refused, Error::QuotaExceeded { limit: 960, .. }),
            "{refused}"
        );
        grants.pop();
        workspace.grant().await.expect("room again");
    });
}

/// An engine that refuses the removal immediately gets as much time as one that hangs.
#[test]
fn a_delete_refused_by_the_engine_is_answered_at_its_timeout() {
    on_a_clock_of_its_own(async |dir| {
        let bench = bench(&dir).await;
        for _ in 0..100 {
            let error = Error::Engine {
                operation: "remove container",
                message: "device or resource busy".to_owned(),
            };
            bench.engine.fail_next(EngineOperation::Remove, error);
        }
        let slot = claimed(&bench, LONG, LONG);
        let view = slot.view.clone();
        let key = workspace_key();
        let start = Instant::now();
        Workspace { key, slot }.delete().await.expect("answered");
        let took = start.elapsed();
        let limit = bench.context.config.engine.remove_timeout;
        assert!(took >= limit && took < limit + SHORT, "{took:?}");
        assert_eq!(view.borrow().state, SlotState::Quarantined);
    });
}

#[test]
fn a_warm_slot_is_handed_out_once() {
    on_a_clock_of_its_own(async |dir| {
        let bench = bench(&dir).await;
        std::fs::create_dir_all(bench.context.slot_dir(bench.record.number)).expect("directory");
        let mut record = bench.record.clone();
        record.phase = SlotPhase::Ready;
        let lost = CancellationToken::new();
        let link = GuestLink::for_test(bench.client.clone(), lost);
        bench.pool.resize(1).await;
        let adopted = AdoptedSlot::Warm(link);
        let slot = launch_adopted(&bench.context, &bench.pool, record, adopted).await;
        while bench.pool.snapshot().warm == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(slot.snapshot().state, SlotState::Ready);
        let limits = bench.pool.config.limits();
        let first = bench.pool.claim(limits).await.expect("warm");
        assert_eq!(first.number, slot.number);
        let second = futures::FutureExt::now_or_never(bench.pool.claim(limits));
        assert!(!matches!(second, Some(Ok(_))), "it was handed out twice");
        drop(first);
        let again = bench.pool.claim(limits).await.expect("returned");
        assert_eq!(again.number, slot.number);
    });
}
