//! A TCP proxy in front of Redis. It can cut a connection at a chosen byte, delay all bytes, or
//! block all bytes.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The direction of bytes: from the client to Redis, or from Redis to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Request = 0,
    Reply = 1,
}

/// The faults of the proxy that are set now. A cut affects the connection that carries the next
/// bytes in the direction of the cut. A half-open fault affects the connection that carries the
/// next bytes in any direction. This connection stays open, but no more of its bytes pass.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    cuts: Mutex<[Vec<usize>; 2]>,
    half_open: AtomicI64,
    latency_ms: AtomicU64,
    /// Bytes per second of the link that all connections share; 0: no limit.
    rate: AtomicU64,
    /// By direction: the time at which the link is free again.
    busy_until: Mutex<[Option<Instant>; 2]>,
    /// Whether all bytes are blocked.
    stopped: AtomicBool,
    /// For each direction, the number of connections that were cut. `half_opened`: the number of
    /// connections that became half-open.
    pub(crate) cut: [AtomicU64; 2],
    pub(crate) half_opened: AtomicU64,
    /// Closes the half-open connections when it is notified.
    end: Notify,
}

impl Faults {
    pub(crate) fn cut(&self, way: Way, bytes: usize) {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)[way as usize].push(bytes);
    }

    pub(crate) fn half_open(&self) {
        self.half_open.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn latency(&self, delay: Duration) {
        self.latency_ms
            .store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Limits the link to this many bytes per second in each direction; 0 lifts the limit.
    pub(crate) fn rate(&self, bytes_per_second: u64) {
        self.rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// Adds this many bytes to the link. Returns the time at which the link has carried them;
    /// `None` if the link has no limit.
    fn link_free_at(&self, way: Way, bytes: usize) -> Option<Instant> {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return None;
        }
        let mut busy_until = self
            .busy_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let from = busy_until[way as usize].map_or(now, |at| at.max(now));
        let until = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
        busy_until[way as usize] = Some(until);
        Some(until)
    }

    /// Blocks all bytes, or lets the waiting bytes pass.
    pub(crate) fn stop(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::SeqCst);
    }

    /// Lifts all faults.
    pub(crate) fn lift(&self) {
        *self.cuts.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        self.half_open.store(0, Ordering::SeqCst);
        self.latency(Duration::ZERO);
        self.rate(0);
        self.end.notify_waiters();
    }

    fn take_cut(&self, way: Way) -> Option<usize> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)[way as usize].pop()
    }

    fn take_half_open(&self) -> bool {
        self.half_open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                (left > 0).then(|| left - 1)
            })
            .is_ok()
    }
}

/// Listens on a free port and forwards everything to Redis. Returns the port.
pub(crate) async fn start(redis_port: u16, faults: Arc<Faults>) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        loop {
            // An accept fails e.g. if the process has too many open files. Then the client will
            // connect again.
            let Ok((client, _)) = listener.accept().await else {
                continue;
            };
            tokio::spawn(serve(client, redis_port, Arc::clone(&faults)));
        }
    });
    Ok(port)
}

/// Forwards the bytes of one connection in both directions. If one direction ends, the connection
/// is closed.
async fn serve(client: TcpStream, redis_port: u16, faults: Arc<Faults>) {
    let Ok(redis) = TcpStream::connect(("127.0.0.1", redis_port)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), redis.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_redis, to_redis) = redis.into_split();
    let stuck = Arc::new(Notify::new());
    tokio::select! {
        () = pump(Way::Request, from_client, to_redis, &faults, &stuck) => {}
        () = pump(Way::Reply, from_redis, to_client, &faults, &stuck) => {}
    }
}

async fn pump(
    way: Way,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: &Faults,
    stuck: &Notify,
) {
    let mut bytes = vec![0; 64 * 1024];
    let mut left: Option<usize> = None;
    loop {
        let read = tokio::select! {
            read = from.read(&mut bytes) => read,
            // The other direction of this connection has become half-open, so this direction stops
            // as well.
            () = stuck.notified() => return faults.end.notified().await,
        };
        let Ok(read @ 1..) = read else { return };
        if faults.take_half_open() {
            faults.half_opened.fetch_add(1, Ordering::Relaxed);
            stuck.notify_one();
            return faults.end.notified().await;
        }
        if left.is_none() {
            left = faults.take_cut(way);
        }
        let delay_ms = faults.latency_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        if let Some(at) = faults.link_free_at(way, read) {
            tokio::time::sleep_until(at).await;
        }
        while faults.stopped.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let pass = left.map_or(read, |left| left.min(read));
        if to.write_all(&bytes[..pass]).await.is_err() {
            return;
        }
        if let Some(left) = &mut left {
            *left -= pass;
            if pass < read || *left == 0 {
                faults.cut[way as usize].fetch_add(1, Ordering::Relaxed);
                // The short wait lets the forwarded bytes arrive before the connection is closed.
                tokio::time::sleep(Duration::from_millis(1)).await;
                return;
            }
        }
    }
}
