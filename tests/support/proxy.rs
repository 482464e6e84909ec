//! A proxy in front of Redis. If a test asks for it, the proxy loses requests or replies, is slow,
//! or stands still.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::Redis;
use super::console::PATIENCE;
use super::until;

/// The part of a call that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lose {
    /// Redis never receives the request.
    Request,
    /// Redis runs the command, but the caller never gets the reply.
    Reply,
    /// Nothing is lost, but the caller gets the reply only after [`Proxy::release`].
    Late,
}

type Rule = Box<dyn FnMut(&[u8]) -> Option<Lose> + Send>;

/// Number of bytes that pass at once if the link is slow.
const SLICE: usize = 8 * 1024;

struct Shared {
    rule: Mutex<Rule>,
    /// Bytes per second, of all connections and both directions together; 0: no limit.
    rate: AtomicUsize,
    /// Time at which the slow link is free for the next bytes.
    free_at: Mutex<Instant>,
    /// Size of a reply after which its connection stands still for ever.
    reply_max: AtomicUsize,
    /// Number of connections that stand still.
    stuck: AtomicUsize,
    lost: AtomicUsize,
    release: Notify,
    closed: AtomicBool,
    closing: Notify,
}

/// Listens on its own socket and forwards everything to the server, until its rule loses a request
/// or a reply. Then the proxy ends that connection.
pub struct Proxy {
    dir: tempfile::TempDir,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Makes a proxy in front of a private server.
    pub fn before(redis: &Redis) -> Self {
        let server = PathBuf::from(
            redis
                .url()
                .strip_prefix("unix://")
                .expect("a server of this test's own"),
        );
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(dir.path().join("proxy.sock")).expect("a socket");
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| None)),
            rate: AtomicUsize::new(0),
            free_at: Mutex::new(Instant::now()),
            reply_max: AtomicUsize::new(usize::MAX),
            stuck: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            release: Notify::new(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        });
        let accepting = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !accepting.closed.load(Ordering::SeqCst) {
                    tokio::spawn(pass_on(client, server.clone(), Arc::clone(&accepting)));
                }
            }
        });
        Self { dir, shared, task }
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("proxy.sock").display())
    }

    /// Sets the rule. It sees every request, and decides whether the request or its reply is lost.
    pub fn lose(&self, rule: impl FnMut(&[u8]) -> Option<Lose> + Send + 'static) {
        *self.shared.rule.lock().expect("no panic") = Box::new(rule);
    }

    /// Loses the next request that contains these words next to each other, or its reply. Then
    /// closes the proxy if `then_closed`.
    pub fn lose_next(&self, words: &[&str], lose: Lose, then_closed: bool) {
        let needle: Vec<u8> = words
            .iter()
            .flat_map(|word| format!("${}\r\n{word}\r\n", word.len()).into_bytes())
            .collect();
        let shared = Arc::downgrade(&self.shared);
        let mut over = false;
        self.lose(move |request| {
            let found = !over && request.windows(needle.len()).any(|part| part == needle);
            over |= found;
            if let (true, true, Some(shared)) = (found, then_closed, shared.upgrade()) {
                shared.close();
            }
            found.then_some(lose)
        });
    }

    /// Limits the link to this many bytes per second, over all connections together.
    pub fn slow_down(&self, bytes_per_second: usize) {
        self.shared.rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// Lets a connection stand still for ever when a reply exceeds this many bytes: no byte moves,
    /// and the connection does not end.
    pub fn get_stuck_after(&self, reply_bytes: usize) {
        self.shared.reply_max.store(reply_bytes, Ordering::SeqCst);
    }

    /// Returns the number of connections that stand still.
    pub fn stuck(&self) -> usize {
        self.shared.stuck.load(Ordering::SeqCst)
    }

    /// Ends all connections and accepts no new connections.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Accepts connections again.
    pub fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
    }

    /// Passes on a late reply.
    pub fn release(&self) {
        self.shared.release.notify_one();
    }

    /// Returns the number of lost requests, and of lost and late replies.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Waits until this many requests and replies were lost.
    pub async fn until_lost(&self, count: usize) {
        until(
            &format!("{count} requests or replies are lost"),
            PATIENCE,
            async || (self.lost() >= count).then_some(()),
        )
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
        self.task.abort();
    }
}

impl Shared {
    /// Ends all connections but one whose request is being looked at, and accepts no new ones.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
    }

    /// Waits until these bytes may pass the slow link.
    async fn turn(&self, bytes: usize) {
        let rate = self.rate.load(Ordering::SeqCst);
        if rate > 0 {
            let passed_at = {
                let mut free_at = self.free_at.lock().expect("no panic");
                *free_at = (*free_at).max(Instant::now())
                    + Duration::from_secs_f64(bytes as f64 / rate as f64);
                *free_at
            };
            sleep_until(passed_at).await;
        }
    }

    async fn write(&self, to: &mut UnixStream, bytes: &[u8]) -> std::io::Result<()> {
        for slice in bytes.chunks(SLICE) {
            self.turn(slice.len()).await;
            to.write_all(slice).await?;
        }
        Ok(())
    }
}

async fn pass_on(mut client: UnixStream, server: impl AsRef<Path>, shared: Arc<Shared>) {
    let Ok(mut server) = UnixStream::connect(server).await else {
        return;
    };
    let (mut request, mut reply) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut reply_bytes = 0;
    loop {
        // Begins to listen for the close before it reads the flag. So it does not miss a close that
        // comes between these two steps, or during a write.
        let closing = shared.closing.notified();
        tokio::pin!(closing);
        closing.as_mut().enable();
        if shared.closed.load(Ordering::SeqCst) {
            return;
        }
        tokio::select! {
            () = closing.as_mut() => return,
            Ok(n) = client.read(&mut request) => {
                if n == 0 {
                    return;
                }
                let lose = (shared.rule.lock().expect("no panic"))(&request[..n]);
                reply_bytes = 0;
                if lose != Some(Lose::Request) && shared.write(&mut server, &request[..n]).await.is_err() {
                    return;
                }
                if lose == Some(Lose::Reply) {
                    let _ = server.read(&mut reply).await;
                }
                if lose.is_some() {
                    shared.lost.fetch_add(1, Ordering::SeqCst);
                }
                match lose {
                    Some(Lose::Late) => shared.release.notified().await,
                    Some(Lose::Request | Lose::Reply) => return,
                    None => {}
                }
            }
            Ok(n) = server.read(&mut reply) => {
                reply_bytes += n;
                if reply_bytes > shared.reply_max.load(Ordering::SeqCst) {
                    shared.stuck.fetch_add(1, Ordering::SeqCst);
                    return closing.await;
                }
                if n == 0 || shared.write(&mut client, &reply[..n]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}
