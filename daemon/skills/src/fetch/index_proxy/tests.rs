//! Tests of the index proxy over real sockets: tunnels, forwarded requests, refusals and bounds.

use std::collections::BTreeSet;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::super::tests::bounds;
use super::super::tests::server::{Reply, Server};
use super::{HEAD_TIMEOUT, IndexHost, IndexProxy, IndexProxyOptions};
use crate::fetch::{FetchOptions, UrlFetcher};
use crate::task_spawner::TaskSpawner;

mod refusals;

/// Deadline of everything that a test waits for.
const DEADLINE: Duration = Duration::from_secs(60);
/// Proxy that a test connects to.
struct TestProxy {
    directory: TempDir,
    stop: CancellationToken,
    serving: JoinHandle<BTreeSet<String>>,
}

fn options(hosts: &[&str]) -> IndexProxyOptions {
    let parse = |host: &&str| IndexHost::parse(host).expect("an entry");
    IndexProxyOptions {
        hosts: hosts.iter().map(parse).collect(),
        connections_max: 10,
        bytes_max: 1 << 30,
    }
}

impl TestProxy {
    /// Starts a proxy that may reach private addresses.
    fn start(hosts: &[&str]) -> Self {
        Self::start_with(options(hosts), &bounds(), true)
    }

    fn start_with(options: IndexProxyOptions, bounds: &FetchOptions, is_private: bool) -> Self {
        let tasks = TaskSpawner::default();
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("s")).expect("a socket");
        let fetcher = UrlFetcher::new(bounds, is_private, tasks.clone());
        let stop = tasks.stop.clone();
        let proxy = IndexProxy::new(options, fetcher);
        let serving = tasks.spawn(proxy.serve(listener, stop.clone()));
        Self {
            directory,
            stop,
            serving,
        }
    }

    async fn connect(&self) -> UnixStream {
        let path = self.directory.path().join("s");
        UnixStream::connect(path).await.expect("a connection")
    }

    /// Sends a text and returns everything that is answered.
    async fn exchange(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        // A refusal may come, and the connection end, before all of a hostile text is sent.
        let _ = stream.write_all(text.as_bytes()).await;
        read_to_end(&mut stream).await
    }

    /// Opens a tunnel and returns the connection behind the response's head.
    async fn open_tunnel(&self, target: &str) -> UnixStream {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        stream
    }

    async fn finish(self) -> BTreeSet<String> {
        self.stop.cancel();
        let reasons = timeout(DEADLINE, self.serving).await.expect("an end");
        reasons.expect("no panic")
    }
}

/// Reads to the end of a connection, which is a reset if the proxy did not want all that was sent.
async fn read_to_end(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let _ = timeout(DEADLINE, read).await.expect("an end");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(DEADLINE, stream.read_u8()).await.expect("in time");
        head.push(byte.expect("a whole head"));
    }
    String::from_utf8(head).expect("text")
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    (listener, address)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let accepted = timeout(DEADLINE, listener.accept()).await;
    accepted.expect("in time").expect("a connection").0
}

fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n")
}

/// Bytes in which a lost or repeated part shows.
fn pattern(length: usize, factor: usize) -> Vec<u8> {
    (0..length)
        .map(|n| (n * factor / 7 % 251).to_le_bytes()[0])
        .collect()
}

#[tokio::test]
async fn a_tunnel_carries_every_byte_and_half_closes_in_either_order() {
    let (up, down) = (pattern(3_000_000, 3), pattern(2_000_000, 5));
    for client_first in [true, false] {
        let (listener, address) = listen().await;
        let proxy = TestProxy::start(&[&address]);
        let mut client = proxy.open_tunnel(&address).await;
        let mut server = accept(&listener).await;
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let whole = async {
            if client_first {
                let send = async {
                    client.write_all(&up).await.expect("sent");
                    client.shutdown().await.expect("half closed");
                };
                let (read, ()) = tokio::join!(server.read_to_end(&mut at_server), send);
                read.expect("all of it");
                let send = async {
                    server.write_all(&down).await.expect("sent");
                    server.shutdown().await.expect("half closed");
                };
                let (read, ()) = tokio::join!(client.read_to_end(&mut at_client), send);
                read.expect("all of it");
            } else {
                let send = async {
                    server.write_all(&down).await.expect("sent");
                    server.shutdown().await.expect("half closed");
                };
                let (read, ()) = tokio::join!(client.read_to_end(&mut at_client), send);
                read.expect("all of it");
                let send = async {
                    client.write_all(&up).await.expect("sent");
                    client.shutdown().await.expect("half closed");
                };
                let (read, ()) = tokio::join!(server.read_to_end(&mut at_server), send);
                read.expect("all of it");
            }
        };
        timeout(DEADLINE, whole).await.expect("in time");
        assert!(at_server == up && at_client == down, "{client_first}");
        assert_eq!(proxy.finish().await, BTreeSet::new());
    }
}

#[tokio::test]
async fn bytes_sent_with_a_tunnels_head_arrive_with_http_1_0_and_1_1() {
    let (listener, address) = listen().await;
    let proxy = TestProxy::start(&[&address]);
    for version in ["1.1", "1.0"] {
        let mut client = proxy.connect().await;
        let text = format!("CONNECT {address} HTTP/{version}\r\n\r\nearly");
        client.write_all(text.as_bytes()).await.expect("sent");
        let mut server = accept(&listener).await;
        let mut early = [0; 5];
        let read = timeout(DEADLINE, server.read_exact(&mut early)).await;
        read.expect("in time").expect("all of it");
        assert_eq!(&early, b"early");
        let head = read_head(&mut client).await;
        assert!(head.contains(" 200 "), "{head}");
        server.write_all(b"late").await.expect("sent");
        drop(server);
        client.shutdown().await.expect("half closed");
        assert_eq!(read_to_end(&mut client).await, "late");
    }
}

#[tokio::test]
async fn get_is_forwarded_without_the_headers_of_the_connection() {
    let server = Server::start().await;
    let headers = [
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("ETag", "\"1\""),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let reply = Reply::Whole(200, headers.to_vec(), b"the list".to_vec());
    server.put("/simple/x", reply);
    let address = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&address]);
    let request = format!(
        "GET http://{address}/simple/x?a=%20b HTTP/1.1\r\nHost: other.example\r\nAccept: text/html\r\n\
         Authorization: Basic eDp5\r\nProxy-Authorization: Basic secret\r\nProxy-Connection: keep-alive\r\n\
         Connection: keep-alive, X-Named\r\nX-Named: 1\r\nTE: trailers\r\nUpgrade: websocket\r\n\r\n"
    );
    let answer = proxy.exchange(&request).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nthe list"), "{answer}");
    assert!(answer.contains("\r\netag: \"1\"\r\n"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    for dropped in ["x-hop", "keep-alive"] {
        assert!(!answer.contains(dropped), "{dropped}: {answer}");
    }
    let seen = server.seen().remove(0);
    assert_eq!(seen.target, "/simple/x?a=%20b");
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    assert_eq!(header("host"), Some(address.as_str()));
    assert_eq!(header("connection"), Some("close"));
    assert_eq!(header("accept"), Some("text/html"));
    assert_eq!(header("authorization"), Some("Basic eDp5"));
    for dropped in [
        "proxy-authorization",
        "proxy-connection",
        "x-named",
        "te",
        "upgrade",
    ] {
        assert_eq!(header(dropped), None, "{dropped}");
    }
    assert_eq!(proxy.finish().await, BTreeSet::new());
}

#[tokio::test]
async fn head_is_answered_with_the_length_and_no_body() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("0123456789"));
    let address = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&address]);
    let request = format!("HEAD http://{address}/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let answer = proxy.exchange(&request).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(answer.contains("\r\ncontent-length: 10\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_not_followed() {
    let server = Server::start().await;
    server.put("/from", Reply::redirect("http://elsewhere.example/to"));
    let address = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&address]);
    let answer = proxy.exchange(&get(&server.url("/from"))).await;
    assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
    let location = "\r\nlocation: http://elsewhere.example/to\r\n";
    assert!(answer.contains(location), "{answer}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_connection_carries_one_request() {
    let server = Server::start().await;
    server.put("/x", Reply::ok("one"));
    let address = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&address]);
    let two = get(&server.url("/x")).repeat(2);
    let answer = proxy.exchange(&two).await;
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(server.hits("/x"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_head_incomplete_after_ten_seconds_ends_the_connection() {
    let proxy = TestProxy::start(&["index.example"]);
    for begun in ["", "GET http://index.example/ HTTP/1.1\r\nHost:"] {
        let begin = Instant::now();
        let answer = proxy.exchange(begun).await;
        assert_eq!(answer, "", "{begun:?}");
        let passed = begin.elapsed();
        assert!(passed >= HEAD_TIMEOUT, "{begun:?}: {passed:?}");
    }
}

#[tokio::test]
async fn connections_beyond_the_bound_get_503_until_one_ends() {
    let (listener, address) = listen().await;
    let options = IndexProxyOptions {
        connections_max: 2,
        ..options(&[&address])
    };
    let proxy = TestProxy::start_with(options, &bounds(), true);
    let first = proxy.open_tunnel(&address).await;
    let _first_server = accept(&listener).await;
    let _second = proxy.open_tunnel(&address).await;
    let _second_server = accept(&listener).await;
    let request = format!("CONNECT {address} HTTP/1.1\r\n\r\n");
    for _ in 0..40 {
        let answer = proxy.exchange(&request).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("2 open connections"), "{answer}");
    }
    drop((first, _first_server));
    let again = async {
        loop {
            let mut stream = proxy.connect().await;
            stream.write_all(request.as_bytes()).await.expect("sent");
            if read_head(&mut stream).await.starts_with("HTTP/1.1 200 ") {
                return;
            }
        }
    };
    timeout(DEADLINE, again).await.expect("a free connection");
}

#[tokio::test]
async fn stop_ends_every_tunnel_and_every_response() {
    let (listener, address) = listen().await;
    let server = Server::start().await;
    server.put("/stalled", Reply::Stalled);
    let http = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start(&[&address, &http]);
    let mut tunnel = proxy.open_tunnel(&address).await;
    let mut at_server = accept(&listener).await;
    let mut response = proxy.connect().await;
    let request = get(&server.url("/stalled"));
    response.write_all(request.as_bytes()).await.expect("sent");
    read_head(&mut response).await;
    let _idle = proxy.connect().await;
    proxy.finish().await;
    assert_eq!(read_to_end(&mut tunnel).await, "");
    read_to_end(&mut response).await;
    let mut rest = Vec::new();
    let read = timeout(DEADLINE, at_server.read_to_end(&mut rest)).await;
    let _ = read.expect("an end");
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_build_that_exceeds_its_bytes_is_cut_off() {
    let server = Server::start().await;
    server.put("/x", Reply::ok(vec![b'x'; 600]));
    server.put("/endless", Reply::Endless);
    let (listener, address) = listen().await;
    let http = format!("127.0.0.1:{}", server.port());
    let bounded = |bytes_max| {
        let options = IndexProxyOptions {
            bytes_max,
            ..options(&[&address, &http])
        };
        TestProxy::start_with(options, &bounds(), true)
    };
    // All connections share the bytes.
    let proxy = bounded(1000);
    assert!(proxy.exchange(&get(&server.url("/x"))).await.ends_with("x"));
    let cut = proxy.exchange(&get(&server.url("/x"))).await;
    assert!(!cut.ends_with('x'), "{cut}");
    let refused = proxy.exchange(&get(&server.url("/x"))).await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    assert!(refused.contains("transferred 1000 bytes"), "{refused}");
    let reasons = proxy.finish().await;
    assert!(
        reasons
            .iter()
            .any(|reason| reason.contains("transferred 1000 bytes")),
        "{reasons:?}"
    );

    let proxy = bounded(100_000);
    let endless = proxy.exchange(&get(&server.url("/endless"))).await;
    assert!(endless.len() < 101_000, "{}", endless.len());
    drop(proxy);

    for from_client in [true, false] {
        let proxy = bounded(100_000);
        let mut client = proxy.open_tunnel(&address).await;
        let mut server = accept(&listener).await;
        let (mut received, sent) = (Vec::new(), vec![b'y'; 1_000_000]);
        let cut = async {
            // Writing fails once the tunnel has ended.
            if from_client {
                let (_, _) =
                    tokio::join!(client.write_all(&sent), server.read_to_end(&mut received));
            } else {
                let (_, _) =
                    tokio::join!(server.write_all(&sent), client.read_to_end(&mut received));
            }
        };
        timeout(DEADLINE, cut).await.expect("an end");
        assert!(received.len() <= 100_000, "{}", received.len());
        let reasons = proxy.finish().await;
        assert!(
            reasons
                .iter()
                .any(|reason| reason.ends_with(super::BYTES_LIMIT_ADVICE)),
            "{reasons:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_504() {
    let server = Server::start().await;
    server.put("/silent", Reply::Silent);
    let http = format!("127.0.0.1:{}", server.port());
    let hasty = FetchOptions {
        timeout: Duration::from_millis(300),
        ..bounds()
    };
    let proxy = TestProxy::start_with(options(&[&http]), &hasty, true);
    let answer = proxy.exchange(&get(&server.url("/silent"))).await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    server.set_down(true);
    let proxy = TestProxy::start(&[&http]);
    let answer = proxy.exchange(&get(&server.url("/x"))).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test]
async fn a_configured_proxy_opens_the_tunnels_and_gets_the_requests() {
    let (listener, address) = listen().await;
    let behind = |address: &str| FetchOptions {
        proxy: Some(format!("http://{address}").parse().expect("a URL")),
        ..bounds()
    };
    let hosts = options(&["index.example", "169.254.169.254"]);
    let proxy = TestProxy::start_with(hosts.clone(), &behind(&address), false);
    let relay = async {
        let mut stream = accept(&listener).await;
        let head = read_head(&mut stream).await;
        let established = b"HTTP/1.1 200 Connection established\r\n\r\n";
        stream.write_all(established).await.expect("sent");
        let mut text = [0; 4];
        stream.read_exact(&mut text).await.expect("what was sent");
        stream.write_all(&text).await.expect("sent");
        head
    };
    let client = async {
        let mut tunnel = proxy.open_tunnel("index.example:443").await;
        tunnel.write_all(b"ping").await.expect("sent");
        read_to_end(&mut tunnel).await
    };
    let (head, echo) = tokio::join!(relay, client);
    assert!(
        head.starts_with("CONNECT index.example:443 HTTP/1.1\r\n"),
        "{head}"
    );
    assert_eq!(echo, "ping");

    let relay = async {
        let mut stream = accept(&listener).await;
        read_head(&mut stream).await;
        let refused = b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(refused).await.expect("sent");
    };
    let request = "CONNECT index.example:443 HTTP/1.1\r\n\r\n";
    let ((), refused) = tokio::join!(relay, proxy.exchange(request));
    assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
    assert!(refused.contains("fetch.proxy answered 407"), "{refused}");
    let no_port = proxy
        .exchange("CONNECT index.example:80 HTTP/1.1\r\n\r\n")
        .await;
    assert!(no_port.starts_with("HTTP/1.1 400 "), "{no_port}");
    assert!(no_port.contains("request an http:// URL"), "{no_port}");
    let metadata = proxy
        .exchange("CONNECT 169.254.169.254:443 HTTP/1.1\r\n\r\n")
        .await;
    assert!(metadata.starts_with("HTTP/1.1 403 "), "{metadata}");

    let server = Server::start().await;
    server.put("http://index.example/simple/", Reply::ok("a list"));
    let address = format!("127.0.0.1:{}", server.port());
    let proxy = TestProxy::start_with(hosts, &behind(&address), false);
    let answer = proxy.exchange(&get("http://index.example/simple/")).await;
    assert!(answer.ends_with("a list"), "{answer}");
}
