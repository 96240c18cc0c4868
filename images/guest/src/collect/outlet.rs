//! The way to who collects: messages in order, bounded in bytes and not only in number. Small files are three messages
//! each, and changing tasks for every few of them would take longer than reading them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use skilld_proto::v1::CollectOutputsResponse;
use skilld_proto::v1::collect_outputs_response::Payload;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Messages on their way.
const MESSAGES: usize = 64;
/// What they may hold together, bytes.
const BYTES: u32 = 1024 * 1024;
/// What a message takes beside its data.
const MESSAGE_BYTES: usize = 512;
/// Work before others get their turn: the guest has one thread.
const TURN: Duration = Duration::from_millis(1);

type Message = Result<CollectOutputsResponse, Status>;

/// The reader of the stream has gone away.
pub(super) struct Gone;

/// The sending end.
pub(super) struct Outlet {
    messages: mpsc::Sender<(Message, Option<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
    turn: Instant,
}

/// Both ends.
pub(super) fn outlet() -> (Outlet, impl Stream<Item = Message> + Send + use<>) {
    let (messages, receiver) = mpsc::channel(MESSAGES);
    let outlet = Outlet {
        messages,
        room: Arc::new(Semaphore::new(BYTES as usize)),
        turn: Instant::now(),
    };
    // The room is free again when the message has left.
    let stream = ReceiverStream::new(receiver).map(|(message, _room)| message);
    (outlet, stream)
}

impl Outlet {
    pub(super) async fn send(&self, payload: Payload) -> Result<(), Gone> {
        let bytes = match &payload {
            Payload::Data(data) => data.len() + MESSAGE_BYTES,
            Payload::File(_) | Payload::FileEnd(_) | Payload::Summary(_) => MESSAGE_BYTES,
        };
        let bytes = u32::try_from(bytes).unwrap_or(BYTES).min(BYTES);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes);
        let room = tokio::select! {
            room = room => room.ok(),
            () = self.messages.closed() => return Err(Gone),
        };
        let message = CollectOutputsResponse {
            payload: Some(payload),
        };
        let sent = self.messages.send((Ok(message), room)).await;
        sent.map_err(|_| Gone)
    }

    pub(super) async fn fail(&self, error: Status) -> Result<(), Gone> {
        let sent = self.messages.send((Err(error), None)).await;
        sent.map_err(|_| Gone)
    }

    /// Lets others have their turn, if this one has lasted long enough.
    pub(super) async fn pause(&mut self) {
        if self.turn.elapsed() >= TURN {
            tokio::task::yield_now().await;
            self.turn = Instant::now();
        }
    }
}
