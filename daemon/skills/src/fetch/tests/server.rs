//! A small HTTP server that also does what no server should.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::task_spawner::TaskSpawner;

/// Scripted answer of a path.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Correct answer: status, headers, body.
    Whole(u16, Vec<(String, String)>, Vec<u8>),
    /// Says that it has one byte more than it sends, and closes.
    Short(Vec<u8>),
    /// Without saying how much, for ever.
    Endless,
    /// The head, the first byte, and nothing more.
    Stalled,
    /// Not even a head.
    Silent,
    /// 304 to who has it, else the whole.
    Tagged(String, Vec<u8>),
}

/// Request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The target as sent: a path, or a URL to a proxy.
    pub(crate) target: String,
    /// Lower-case names.
    pub(crate) headers: HashMap<String, String>,
}

#[derive(Debug, Default)]
struct State {
    replies: HashMap<String, Reply>,
    seen: Vec<Seen>,
    down: bool,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: TaskSpawner,
    /// Number of requests that were received, answered or not.
    received: watch::Receiver<usize>,
}

impl Reply {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::Whole(200, Vec::new(), body.into())
    }

    pub(crate) fn status(status: u16) -> Self {
        Self::Whole(status, Vec::new(), Vec::new())
    }

    pub(crate) fn redirect(to: &str) -> Self {
        Self::Whole(302, vec![("Location".into(), to.into())], Vec::new())
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(Mutex::new(State::default()));
        let tasks = TaskSpawner::default();
        let (count, received) = watch::channel(0);
        let (serving, shared) = (tasks.clone(), Arc::clone(&state));
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = serving.stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let (stream, _) = accepted.expect("a connection");
                let (stop, shared) = (serving.stop.clone(), Arc::clone(&shared));
                let count = count.clone();
                serving.spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        _ = answer(stream, &shared, &count) => {}
                    }
                });
            }
        });
        Self {
            address,
            state,
            tasks,
            received,
        }
    }

    /// Returns the URL of a path, which begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn put(&self, path: &str, reply: Reply) {
        let mut state = self.state.lock().expect("no panic");
        state.replies.insert(path.to_owned(), reply);
    }

    /// Down: connections are closed at once.
    pub(crate) fn set_down(&self, down: bool) {
        self.state.lock().expect("no panic").down = down;
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().expect("no panic").seen.clone()
    }

    /// Returns the number of requests for a path.
    pub(crate) fn hits(&self, path: &str) -> usize {
        let seen = self.seen();
        seen.iter().filter(|seen| seen.target == path).count()
    }

    /// Waits until so many requests were received. Several of them may share a connection.
    pub(crate) async fn received(&self, count: usize) {
        let mut received = self.received.clone();
        received
            .wait_for(|received| *received >= count)
            .await
            .expect("the server runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

async fn answer(
    stream: TcpStream,
    state: &Mutex<State>,
    count: &watch::Sender<usize>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    if state.lock().expect("no panic").down {
        return Ok(());
    }
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
                None => break,
            };
        }
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let reply = {
            let mut state = state.lock().expect("no panic");
            state.seen.push(Seen {
                target,
                headers: headers.clone(),
            });
            let known = state.replies.get(&path).cloned();
            known.unwrap_or(Reply::status(404))
        };
        count.send_modify(|received| *received += 1);
        if !send(stream.get_mut(), reply, &headers).await? {
            return Ok(());
        }
    }
}

/// Sends a reply. Returns `true` if the connection may be used again.
async fn send(
    stream: &mut TcpStream,
    reply: Reply,
    headers: &HashMap<String, String>,
) -> std::io::Result<bool> {
    match reply {
        Reply::Whole(status, headers, body) => {
            whole(stream, status, &headers, &body).await?;
            return Ok(true);
        }
        Reply::Tagged(tag, body) => {
            let same = headers.get("if-none-match") == Some(&tag);
            let (status, body) = if same { (304, Vec::new()) } else { (200, body) };
            whole(stream, status, &[("ETag".into(), tag)], &body).await?;
            return Ok(true);
        }
        Reply::Short(body) => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                body.len() + 1
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&body).await?;
        }
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            // Ends when the client has enough.
            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
        Reply::Stalled => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
                .await?;
            std::future::pending::<()>().await;
        }
        Reply::Silent => std::future::pending().await,
    }
    Ok(false)
}

async fn whole(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\n");
    if status != 304 {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await
}
