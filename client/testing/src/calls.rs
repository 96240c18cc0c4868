//! Calls of a test's server: a record of those that came, and faults of those to come. A layer in front of the server,
//! which knows no method: tests name methods without their service, several separated by `|`.

use std::future::poll_fn;
use std::mem::{replace, take};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use futures::future::BoxFuture;
use http_body::Body as _;
use prost::Message;
use tokio::sync::Notify;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response, header};
use tower::{Layer, Service};

use super::DEADLINE;
use super::call_body::{BodyEnd, EndingBody, RecordedBody, take_message};

/// Methods that start a command.
pub const STARTS: &str = "RunExec|StartExec";
/// Methods that stream the events of a command.
pub const EVENTS: &str = "RunExec|AttachExec";

/// Record and faults of the calls of one server. Clones share them.
#[derive(Clone, Default)]
pub struct CallFaults {
    state: Arc<Mutex<CallState>>,
    /// Wakes calls that wait, and tests that wait for calls.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct CallState {
    /// Calls that came: the name of each as `Service/Method`, and the bytes of its messages.
    calls: Vec<(String, Arc<Mutex<BytesMut>>)>,
    /// Names of the calls that were answered.
    answered: Vec<String>,
    /// Methods and their faults, in the order in which they count.
    faults: Vec<(String, CallFault)>,
}

enum CallFault {
    /// Refuses one call.
    Refuse(Status),
    /// Calls wait until they are released.
    Hold,
    /// Calls wait until one of these methods was answered.
    HoldUntil(String),
    /// Answers calls with this number of messages.
    Reply(BytesMut, usize),
    /// Ends the answer of one call after a number of messages.
    Break(usize, BodyEnd),
}

impl CallFaults {
    /// Refuses the next calls, one with each status, after their messages have come.
    pub fn refuse(&self, methods: &str, statuses: impl IntoIterator<Item = Status>) {
        for status in statuses {
            self.add(methods, CallFault::Refuse(status));
        }
    }

    /// Lets calls wait until they are released.
    pub fn hold(&self, methods: &str) {
        self.add(methods, CallFault::Hold);
    }

    /// Lets all calls that are held go on.
    pub fn release(&self) {
        let is_kept = |(_, fault): &(String, CallFault)| !matches!(fault, CallFault::Hold);
        self.lock().faults.retain(is_kept);
        self.changed.notify_waiters();
    }

    /// Lets calls wait until a call of another method was answered.
    pub fn hold_until(&self, methods: &str, answered: &str) {
        self.add(methods, CallFault::HoldUntil(answered.to_owned()));
    }

    /// Ends the answer of the next call after some messages: with a status, or with OK.
    pub fn break_after(&self, methods: &str, messages: usize, status: Option<Status>) {
        let end = BodyEnd::Status(status.unwrap_or_else(|| Status::ok("")));
        self.add(methods, CallFault::Break(messages, end));
    }

    /// Lets nothing follow some messages of the answer of the next call, not even its end.
    pub fn hang_after(&self, methods: &str, messages: usize) {
        self.add(methods, CallFault::Break(messages, BodyEnd::Never));
    }

    /// Answers calls with these messages from now on. The server does not see them.
    pub fn reply<M: Message>(&self, methods: &str, messages: impl IntoIterator<Item = M>) {
        let (mut bytes, mut number) = (BytesMut::new(), 0);
        for message in messages {
            bytes.put_u8(0);
            bytes.put_u32(u32::try_from(message.encoded_len()).expect("small"));
            message.encode(&mut bytes).expect("it has room");
            number += 1;
        }
        let is_kept = |(of, fault): &(String, CallFault)| {
            of != methods || !matches!(fault, CallFault::Reply(..))
        };
        self.lock().faults.retain(is_kept);
        self.add(methods, CallFault::Reply(bytes, number));
    }

    /// Returns the names of the calls that came, as `Service/Method`, and forgets the calls and their answers.
    pub fn take(&self) -> Vec<String> {
        let mut state = self.lock();
        state.answered.clear();
        let calls = take(&mut state.calls);
        calls.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the number of calls that came.
    pub fn count(&self, methods: &str) -> usize {
        let state = self.lock();
        let names = state.calls.iter().map(|(name, _)| name);
        names.filter(|name| is_among(methods, name)).count()
    }

    /// Waits until a number of calls have come.
    pub async fn wait_for(&self, methods: &str, number: usize) {
        let came = async {
            loop {
                let changed = self.changed.notified();
                if self.count(methods) >= number {
                    return;
                }
                changed.await;
            }
        };
        let came = tokio::time::timeout(DEADLINE, came).await;
        came.expect("they come");
    }

    /// Returns the requests of the calls that came: of a stream of requests, each.
    pub fn requests<M: Message + Default>(&self, methods: &str) -> Vec<M> {
        self.streams(methods).into_iter().flatten().collect()
    }

    /// Returns the requests of each call that came.
    pub fn streams<M: Message + Default>(&self, methods: &str) -> Vec<Vec<M>> {
        let state = self.lock();
        let calls = state
            .calls
            .iter()
            .filter(|(name, _)| is_among(methods, name));
        let requests = calls.map(|(_, body)| {
            let mut bytes = body.lock().expect("no test panics with it").clone();
            let messages = std::iter::from_fn(|| take_message(&mut bytes));
            let decoded = messages.map(|message| M::decode(message.slice(5..)));
            decoded
                .map(|request| request.expect("one of the method"))
                .collect::<Vec<M>>()
        });
        requests.collect()
    }

    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().expect("no test panics with it")
    }

    fn add(&self, methods: &str, fault: CallFault) {
        self.lock().faults.push((methods.to_owned(), fault));
        self.changed.notify_waiters();
    }

    /// Waits until no fault holds a call. Returns the status that one refuses it with.
    async fn begin(&self, name: &str) -> Option<Status> {
        loop {
            let changed = self.changed.notified();
            if let Poll::Ready(refusal) = self.lock().poll_begin(name) {
                return refusal;
            }
            changed.await;
        }
    }

    /// Answers a call as the faults say, else by the server.
    async fn serve<S>(
        self,
        mut server: S,
        request: Request<Body>,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<Body>>,
    {
        let path = request.uri().path();
        let name = path.trim_start_matches("/skilld.v1.").to_owned();
        let record = Arc::<Mutex<BytesMut>>::default();
        self.lock().calls.push((name.clone(), Arc::clone(&record)));
        self.changed.notify_waiters();
        let mut request = request.map(|body| Body::new(RecordedBody::new(body, record)));
        let refusal = self.begin(&name).await;
        let reply = self.lock().find_reply(&name);
        let response = if let Some(status) = refusal {
            receive(request.body_mut()).await;
            status.into_http()
        } else if let Some(body) = reply {
            receive(request.body_mut()).await;
            let mut response = Response::new(Body::new(body));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(header::CONTENT_TYPE, grpc);
            response
        } else {
            server.call(request).await?
        };
        // An error in place of messages has its status in the headers.
        let broken = match response.headers().contains_key("grpc-status") {
            true => None,
            false => self.lock().take_break(&name),
        };
        self.lock().answered.push(name);
        self.changed.notify_waiters();
        Ok(match broken {
            None => response,
            Some((messages, end)) => {
                response.map(|body| Body::new(EndingBody::new(body, messages, end)))
            }
        })
    }
}

impl CallState {
    /// Returns the status that a call is refused with, if it is; `Pending` while it has to wait.
    fn poll_begin(&mut self, name: &str) -> Poll<Option<Status>> {
        let first = self.faults.iter().position(|(methods, fault)| {
            let is_in_force = match fault {
                CallFault::Refuse(_) | CallFault::Hold => true,
                CallFault::HoldUntil(others) => {
                    let mut answered = self.answered.iter();
                    !answered.any(|answered| is_among(others, answered))
                }
                CallFault::Reply(..) | CallFault::Break(..) => false,
            };
            is_in_force && is_among(methods, name)
        });
        let Some(index) = first else {
            return Poll::Ready(None);
        };
        let Some((_, CallFault::Refuse(status))) = self.faults.get(index) else {
            return Poll::Pending;
        };
        let refusal = status.clone();
        self.faults.remove(index);
        Poll::Ready(Some(refusal))
    }

    /// Returns the answer to a call that a test gave.
    fn find_reply(&self, name: &str) -> Option<EndingBody> {
        self.faults.iter().find_map(|(methods, fault)| {
            let CallFault::Reply(bytes, messages) = fault else {
                return None;
            };
            is_among(methods, name).then(|| EndingBody::reply(bytes.clone(), *messages))
        })
    }

    /// Takes the fault that ends the answer to a call.
    fn take_break(&mut self, name: &str) -> Option<(usize, BodyEnd)> {
        let index = self.faults.iter().position(|(methods, fault)| {
            matches!(fault, CallFault::Break(..)) && is_among(methods, name)
        })?;
        let CallFault::Break(messages, end) = self.faults.remove(index).1 else {
            return None;
        };
        Some((messages, end))
    }
}

/// Service of [`CallFaults`] in front of a server.
#[derive(Clone)]
pub struct CallService<S> {
    calls: CallFaults,
    server: S,
}

impl<S> Layer<S> for CallFaults {
    type Service = CallService<S>;

    fn layer(&self, server: S) -> CallService<S> {
        CallService {
            calls: self.clone(),
            server,
        }
    }
}

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let clone = self.server.clone();
        // The service that was polled is the one that is ready.
        let ready = replace(&mut self.server, clone);
        Box::pin(self.calls.clone().serve(ready, request))
    }
}

/// Returns `true` if a call, given as `Service/Method`, is one of some methods.
fn is_among(methods: &str, name: &str) -> bool {
    let method = name.rsplit('/').next();
    methods.split('|').any(|one| Some(one) == method)
}

/// Receives the messages of a request that no server sees.
async fn receive(body: &mut Body) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {}
}
