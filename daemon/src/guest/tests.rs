//! Tests of the check of who connects to a guest's socket; links without a guest for other tests.

use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

use super::*;

/// Connections of strangers that are in the socket's queue before the guest's.
const STRANGERS: usize = 300;

impl GuestLink {
    /// Creates a link over any channel, for tests.
    pub(crate) fn for_test(client: GuestClient, lost: CancellationToken) -> Self {
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a socket");
        Self {
            client,
            lost,
            version: String::new(),
            workspace: String::new(),
            socket: Arc::new(socket),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_peers_do_not_delay_the_guest() {
    let run = tempfile::tempdir().expect("a directory");
    let socket = GuestSocket::bind(run.path()).expect("bound");
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        let stranger = UnixStream::connect(run.path().join(SOCKET)).await;
        strangers.push(stranger.expect("connected"));
    }
    let expected = ExpectedGuest {
        uid: Some(u32::MAX),
        ..ExpectedGuest::default()
    };
    let begin = Instant::now();
    let turn_away = async {
        for stranger in &mut strangers {
            let read = stranger.read(&mut [0]).await.expect("closed");
            assert_eq!(read, 0, "a stranger was told something");
        }
    };
    tokio::select! {
        link = socket.accept(&expected) => panic!("a stranger was let in: {link:?}"),
        () = turn_away => {}
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[test]
fn a_guest_without_the_nonce_of_its_slot_is_refused() {
    let hello = |nonce: &[u8], generation| pb::HelloResponse {
        nonce: nonce.to_vec().into(),
        generation,
        ..pb::HelloResponse::default()
    };
    assert_eq!(
        check_hello(&hello(b"secret", GENERATION), b"secret"),
        Ok(())
    );
    for (sent, expected) in [
        (b"secret".as_slice(), b"".as_slice()),
        (b"", b""),
        (b"secre", b"secret"),
    ] {
        let refused = check_hello(&hello(sent, GENERATION), expected);
        assert_eq!(
            refused,
            Err("wrong nonce".to_owned()),
            "{sent:?} {expected:?}"
        );
    }
    for generation in [0, GENERATION - 1, GENERATION + 1] {
        let refused = check_hello(&hello(b"secret", generation), b"secret");
        assert_eq!(refused, Err(format!("generation {generation}")));
    }
}
