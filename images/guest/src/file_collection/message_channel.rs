//! Channel for the messages of a collection, bounded in bytes and in number. A small file is three messages, so the
//! channel holds many: a task switch for every few messages would take longer than reading the files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use skilld_proto::v1::CollectOutputsResponse;
use skilld_proto::v1::collect_outputs_response::Payload;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Maximum number of buffered messages.
const MESSAGES_MAX: usize = 64;
/// Maximum size of all buffered messages, in bytes.
const BUFFERED_BYTES_MAX: u32 = 1024 * 1024;
/// Size of a message beside its data, in bytes.
const MESSAGE_BYTES: usize = 512;
/// Maximum duration of a turn on the guest's only thread.
const TURN_MAX: Duration = Duration::from_millis(1);

type CollectMessage = Result<CollectOutputsResponse, Status>;

/// Error of a send after the client closed the stream.
pub(super) struct ReceiverGone;

/// Sending end of the channel.
pub(super) struct MessageSender {
    messages: mpsc::Sender<(CollectMessage, Option<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
    turn: Instant,
}

/// Creates the channel: the sender, and the stream of the response.
pub(super) fn message_channel() -> (
    MessageSender,
    impl Stream<Item = CollectMessage> + Send + use<>,
) {
    let (messages, receiver) = mpsc::channel(MESSAGES_MAX);
    let sender = MessageSender {
        messages,
        room: Arc::new(Semaphore::new(BUFFERED_BYTES_MAX as usize)),
        turn: Instant::now(),
    };
    // The permit is released when the message leaves the channel.
    let stream = ReceiverStream::new(receiver).map(|(message, _room)| message);
    (sender, stream)
}

impl MessageSender {
    /// Sends a message once the channel has room.
    pub(super) async fn send(&self, payload: Payload) -> Result<(), ReceiverGone> {
        let bytes = match &payload {
            Payload::Data(data) => data.len() + MESSAGE_BYTES,
            Payload::File(_) | Payload::FileEnd(_) | Payload::Summary(_) => MESSAGE_BYTES,
        };
        let bytes = u32::try_from(bytes)
            .unwrap_or(BUFFERED_BYTES_MAX)
            .min(BUFFERED_BYTES_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(bytes);
        let room = tokio::select! {
            room = room => room.ok(),
            () = self.messages.closed() => return Err(ReceiverGone),
        };
        let message = CollectOutputsResponse {
            payload: Some(payload),
        };
        let sent = self.messages.send((Ok(message), room)).await;
        sent.map_err(|_| ReceiverGone)
    }

    /// Ends the stream with an error.
    pub(super) async fn fail(&self, error: Status) -> Result<(), ReceiverGone> {
        let sent = self.messages.send((Err(error), None)).await;
        sent.map_err(|_| ReceiverGone)
    }

    /// Lets other tasks run if this turn has lasted long enough.
    pub(super) async fn pause(&mut self) {
        if self.turn.elapsed() >= TURN_MAX {
            tokio::task::yield_now().await;
            self.turn = Instant::now();
        }
    }
}
