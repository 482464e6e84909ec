//! A way to Redis that loses requests and replies, is slow, or stands still, when told to.

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

/// What gets lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lose {
    /// Redis never sees the request.
    Request,
    /// Redis does what it is asked; the caller never hears of it.
    Reply,
}

type Rule = Box<dyn FnMut(&[u8]) -> Option<Lose> + Send>;

/// Bytes that pass at once over a slow way.
const SLICE: usize = 8 * 1024;

struct Shared {
    rule: Mutex<Rule>,
    /// Bytes per second, of all connections and both directions together; 0: as many as there are.
    rate: AtomicUsize,
    /// When the slow way is free for the next bytes.
    free_at: Mutex<Instant>,
    /// A connection stands still for ever once a reply has brought more bytes than this.
    reply_max: AtomicUsize,
    /// How often that happened.
    stuck: AtomicUsize,
    lost: AtomicUsize,
    closed: AtomicBool,
    closing: Notify,
}

/// Listens on a socket of its own and passes everything on to the server, until its rule says
/// otherwise; then the connection ends.
pub struct Proxy {
    dir: tempfile::TempDir,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Stands before a server of this test's own.
    pub fn before(redis: &Redis) -> Self {
        let server = PathBuf::from(redis.url().strip_prefix("unix://").expect("a server of this test's own"));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(dir.path().join("proxy.sock")).expect("a socket");
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| None)),
            rate: AtomicUsize::new(0),
            free_at: Mutex::new(Instant::now()),
            reply_max: AtomicUsize::new(usize::MAX),
            stuck: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
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

    /// From now on, the rule sees every request and says what gets lost.
    pub fn lose(&self, rule: impl FnMut(&[u8]) -> Option<Lose> + Send + 'static) {
        *self.shared.rule.lock().expect("no panic") = Box::new(rule);
    }

    /// Loses the next request that has these words beside each other, or its reply; after that the
    /// way is closed if `then_closed`.
    pub fn lose_next(&self, words: &[&str], lose: Lose, then_closed: bool) {
        let needle: Vec<u8> = words.iter().flat_map(|word| format!("${}\r\n{word}\r\n", word.len()).into_bytes()).collect();
        let shared = Arc::downgrade(&self.shared);
        let mut over = false;
        self.lose(move |request| {
            let found = !over && request.windows(needle.len()).any(|part| part == needle);
            over |= found;
            if let (true, true, Some(shared)) = (found, then_closed, shared.upgrade()) {
                shared.closed.store(true, Ordering::SeqCst);
            }
            found.then_some(lose)
        });
    }

    /// From now on, so many bytes pass each second, over all connections together.
    pub fn slow_down(&self, bytes_per_second: usize) {
        self.shared.rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// From now on, a connection stands still for ever once a reply has more bytes than this:
    /// nothing moves, and nothing ends.
    pub fn get_stuck_after(&self, reply_bytes: usize) {
        self.shared.reply_max.store(reply_bytes, Ordering::SeqCst);
    }

    /// How many connections stand still.
    pub fn stuck(&self) -> usize {
        self.shared.stuck.load(Ordering::SeqCst)
    }

    /// Ends all connections and takes no more.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.closing.notify_waiters();
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
    }

    /// How many requests or replies were lost.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Waits until so many were lost.
    pub async fn until_lost(&self, count: usize) {
        until(&format!("{count} requests or replies are lost"), PATIENCE, async || (self.lost() >= count).then_some(())).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
        self.task.abort();
    }
}

impl Shared {
    /// Waits until these bytes may pass over a slow way.
    async fn turn(&self, bytes: usize) {
        let rate = self.rate.load(Ordering::SeqCst);
        if rate > 0 {
            let passed_at = {
                let mut free_at = self.free_at.lock().expect("no panic");
                *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
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
    let Ok(mut server) = UnixStream::connect(server).await else { return };
    let (mut request, mut reply) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut reply_bytes = 0;
    loop {
        // Listening begins before the look at the flag: a close that comes in between, or in the
        // middle of a write, is not missed.
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
                    return;
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
