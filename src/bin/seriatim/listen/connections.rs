//! Accepts connections, within limits of number and time.
//!
//! Every wait for a client has a limit: for its TLS handshake, for the head of its next request
//! (which also ends idle connections), and for its reading of an answer. A route limits the time of
//! a body. Only HTTP/1.1 is spoken; a proxy in front may speak HTTP/2.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::LOG;
use super::address::Address;
use super::lingering::Lingering;
use super::tls::Certificate;
use crate::console::exit::{Exit, Failure};
use crate::console::files::raise_limit;

/// The longest wait for the head of a request, or for the next request on a connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The same for a listener for probes, which send their request at once.
const PROBE_HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// The longest TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest wait for a client to read a part of an answer.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// The most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The number of files that the process needs besides connections.
const OTHER_FILES: u64 = 128;
/// The wait after a failed accept, e.g. because the process has too many files open.
const ACCEPT_FAILED: Duration = Duration::from_millis(50);
/// The interval of log lines about refused connections.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The listeners, and the limit of their connections.
pub(super) struct Connections {
    listeners: Vec<(String, Listener)>,
    room: Room,
    connections_max: u32,
    certificate: Option<Arc<Certificate>>,
}

/// The limit of connections.
#[derive(Clone)]
enum Room {
    /// While there are too many, new ones are refused.
    Limited(Arc<Semaphore>),
    /// The newest of each listener are served. So connections that send nothing keep no probe out.
    Newest(usize),
}

/// The place of a connection. It ends with the connection.
struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    /// Cancelled if the connection must make room for a newer one.
    evicted: CancellationToken,
    head_time_max: Duration,
    /// Whether more than one request may come.
    is_kept: bool,
}

enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _socket: Socket },
}

/// Returns whether no process accepts connections to the socket.
fn is_refused(path: &Path) -> bool {
    StdUnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A socket in the file system; removed when it is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Connections {
    pub(super) fn new(connections_max: u32, certificate: Option<Arc<Certificate>>) -> Self {
        let room = Room::Limited(Arc::new(Semaphore::new(connections_max as usize)));
        Self { listeners: Vec::new(), room, connections_max, certificate }
    }

    /// Returns no listeners yet, for probes.
    pub(super) fn for_probes(connections_max: u32) -> Self {
        Self { room: Room::Newest(connections_max as usize), ..Self::new(connections_max, None) }
    }

    /// Opens a listener. `is_guarded`: whether users have tokens. Otherwise only addresses of this
    /// machine are allowed.
    pub(super) async fn open(&mut self, address: &Address, is_guarded: bool) -> anyhow::Result<()> {
        // Time may repair it: the address comes later, or its process ends.
        let failed = |error: io::Error| Failure::with(Exit::Broken, format!("cannot listen on {address}: {error}"));
        let listener = match address {
            Address::Tcp(text) => {
                let listener = TcpListener::bind(text).await.map_err(failed)?;
                let local = listener.local_addr().map_err(failed)?;
                if !is_guarded && !local.ip().is_loopback() {
                    let what = format!(
                        "{address} can be reached from other machines: name a users file with --users, or listen on 127.0.0.1"
                    );
                    return Err(Failure::with(Exit::Input, what));
                }
                let scheme = if self.certificate.is_some() { "https" } else { "http" };
                self.listeners.push((format!("{scheme}://{local}"), Listener::Tcp(listener)));
                return Ok(());
            }
            Address::Unix(path) => {
                match std::fs::symlink_metadata(path) {
                    Ok(found) if !found.file_type().is_socket() => {
                        let what = format!("cannot listen on {address}: the path exists and is not a socket; name another one");
                        return Err(Failure::with(Exit::Input, what));
                    }
                    // A socket without a process behind it is left over from one that was killed.
                    Ok(_) if is_refused(path) => std::fs::remove_file(path).map_err(failed)?,
                    _ => {}
                }
                Listener::Unix { listener: UnixListener::bind(path).map_err(failed)?, _socket: Socket(path.clone()) }
            }
        };
        self.listeners.push((address.to_string(), listener));
        Ok(())
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.iter().map(|(address, _)| address.as_str())
    }

    /// Serves all listeners until `stop` is cancelled, and then the requests under way for at most
    /// `grace`. Meanwhile new connections are still served, with one request each: probes must learn
    /// that the process lives and is not ready.
    pub(super) async fn serve(self, routes: Router, stop: CancellationToken, grace: Duration) {
        self.raise_file_limit();
        let (tasks, refused) = (TaskTracker::new(), Arc::new(AtomicU64::new(0)));
        let cut = CancellationToken::new();
        let _telling = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(tell(refused.clone(), self.connections_max)));
        let mut accepting = tokio::task::JoinSet::new();
        for (_, listener) in self.listeners {
            let accept = Accept {
                routes: TowerToHyperService::new(routes.clone()),
                room: self.room.clone(),
                certificate: self.certificate.clone(),
                tasks: tasks.clone(),
                newest: Mutex::default(),
                refused: refused.clone(),
                stop: stop.clone(),
                cut: cut.clone(),
            };
            accepting.spawn(accept.run(listener));
        }
        stop.cancelled().await;
        tasks.close();
        if timeout(grace, tasks.wait()).await.is_err() {
            warn!(target: LOG, requests = tasks.len(), "stopped before these requests were answered");
        }
        cut.cancel();
        // Removes sockets in the file system.
        accepting.shutdown().await;
    }

    /// Raises the limit of open files, if that is allowed.
    fn raise_file_limit(&self) {
        let wanted = u64::from(self.connections_max) + OTHER_FILES;
        if let Some(files) = raise_limit(wanted).filter(|files| *files < wanted) {
            let connections = self.connections_max;
            warn!(target: LOG, connections, files, "the limit of open files allows fewer connections (ulimit -n)");
        }
    }
}

/// Logs the number of refused connections once a minute.
async fn tell(refused: Arc<AtomicU64>, connections_max: u32) {
    loop {
        sleep(TELL_EVERY).await;
        match refused.swap(0, Ordering::Relaxed) {
            0 => {}
            refused => warn!(target: LOG, refused, connections_max, "refused connections: there are too many"),
        }
    }
}

/// The parts that a listener shares with the other listeners.
struct Accept {
    routes: TowerToHyperService<Router>,
    room: Room,
    /// The evictions of the newest connections, oldest first. Some may have ended.
    newest: Mutex<VecDeque<CancellationToken>>,
    certificate: Option<Arc<Certificate>>,
    /// The connections that a stop waits for.
    tasks: TaskTracker,
    refused: Arc<AtomicU64>,
    /// Ends idle connections.
    stop: CancellationToken,
    /// Ends all connections.
    cut: CancellationToken,
}

impl Accept {
    async fn run(self, listener: Listener) {
        let mut told_at: Option<Instant> = None;
        loop {
            match accept(&listener).await {
                Ok(stream) => self.begin(stream),
                Err(error) => {
                    if told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                        told_at = Some(Instant::now());
                        warn!(target: LOG, %error, "a connection cannot be accepted");
                    }
                    sleep(ACCEPT_FAILED).await;
                }
            }
        }
    }

    /// Returns the place of a new connection; `None` if there is no room.
    fn place(&self) -> Option<Place> {
        let evicted = CancellationToken::new();
        match &self.room {
            Room::Limited(room) => {
                let permit = room.clone().try_acquire_owned().ok()?;
                Some(Place { _permit: Some(permit), evicted, head_time_max: HEAD_TIME_MAX, is_kept: true })
            }
            Room::Newest(max) => {
                let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
                newest.push_back(evicted.clone());
                if newest.len() > *max
                    && let Some(oldest) = newest.pop_front()
                {
                    oldest.cancel();
                }
                Some(Place { _permit: None, evicted, head_time_max: PROBE_HEAD_TIME_MAX, is_kept: false })
            }
        }
    }

    /// Begins to serve a connection, if there is room. Otherwise it is closed.
    fn begin(&self, stream: Stream) {
        let Some(place) = self.place() else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (routes, stop, cut) = (self.routes.clone(), self.stop.clone(), self.cut.clone());
        let certificate = self.certificate.clone();
        let evicted = place.evicted.clone();
        let task = async move {
            let serving = async {
                match (stream, certificate) {
                    (Stream::Tcp(stream), Some(certificate)) => {
                        let secured = timeout(HANDSHAKE_TIME_MAX, certificate.acceptor().accept(stream)).await;
                        if let Ok(Ok(stream)) = secured {
                            serve(stream, routes, stop, place).await;
                        }
                    }
                    (Stream::Tcp(stream), None) => serve(stream, routes, stop, place).await,
                    (Stream::Unix(stream), _) => serve(stream, routes, stop, place).await,
                }
            };
            tokio::select! {
                () = serving => {}
                () = evicted.cancelled() => {}
                () = cut.cancelled() => {}
            }
        };
        if self.stop.is_cancelled() {
            tokio::spawn(task);
        } else {
            self.tasks.spawn(task);
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        Listener::Unix { listener, .. } => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

/// Serves a connection in its place.
async fn serve<S>(stream: S, routes: TowerToHyperService<Router>, stop: CancellationToken, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_stopping = stop.is_cancelled();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIME_MAX));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(place.head_time_max).max_buf_size(HEAD_BYTES_MAX);
    http.keep_alive(place.is_kept && !is_stopping);
    let stream = Lingering::new(Box::pin(stream));
    let connection = http.serve_connection(TokioIo::new(stream), routes);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled(), if !is_stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(target: LOG, %error, "connection");
    }
}
