//! Accepts connections, within limits of number and time.
//!
//! The number of connections is limited by `places`: an older connection gives way to a new one.
//!
//! Every wait for a client has a time limit. There are limits for the TLS handshake, for the head
//! of the next request, and for the reading of an answer. The limit for the head also ends idle
//! connections. The routes limit the time of a body. The server speaks only HTTP/1.1; a proxy in
//! front of it may speak HTTP/2.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::files::raise_limit;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::LOG;
use super::address::Address;
use super::lingering::Lingering;
use super::places::{Answering, Permit, Places};
use super::tls::Certificate;

/// The longest wait for the head of a request, or for the next request on a connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest wait for the head of a request on a listener for probes. It is short, because probes
/// send their request at once.
const PROBE_HEAD_TIME_MAX: Duration = Duration::from_secs(3);
/// The longest TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest wait for a client to read a part of an answer.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// The most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The number of open files that the process needs in addition to its connections.
const OTHER_FILES: u64 = 256;
/// The wait after a failed accept, e.g. because the process has too many files open.
const ACCEPT_FAILED: Duration = Duration::from_millis(50);
/// The interval of log lines about connections that have given way.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The listeners, and the limit of their connections.
pub(super) struct Connections {
    listeners: Vec<(String, Listener)>,
    connections_max: u32,
    is_for_probes: bool,
    certificate: Option<Arc<Certificate>>,
    /// The option that names the addresses, for errors.
    option: &'static str,
    /// The options that guard the requests from other machines, for errors.
    guards: &'static str,
}

/// The other end of a connection. Every request has it as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The address of the client, or of a proxy before it.
    Ip(IpAddr),
    /// A process of this machine, by a socket in the file system.
    Unix,
}

enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _socket: Socket,
    },
}

/// Returns whether the socket refuses connections, because no process listens on it.
fn is_refused(path: &Path) -> bool {
    StdUnixStream::connect(path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// A socket in the file system. The file is removed when this value is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the remedy for an error of listening; empty if none is known. `option`: the option that
/// names the address.
fn hint(kind: io::ErrorKind, option: &str) -> String {
    match kind {
        io::ErrorKind::AddrInUse => {
            format!(
                ": another process listens there; end that process, or name another address with {option}, e.g. with port 0 for a free port"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            format!(": this machine does not have this address; name another one with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!(": name a port from 1024, or a path that this user may write, with {option}")
        }
        _ => String::new(),
    }
}

impl Connections {
    pub(super) fn new(connections_max: u32, certificate: Option<Arc<Certificate>>) -> Self {
        Self {
            listeners: Vec::new(),
            connections_max,
            is_for_probes: false,
            certificate,
            option: "--listen",
            guards: "name a users file with --users",
        }
    }

    /// Sets the options that guard the requests from other machines, for errors.
    pub(super) fn with_guards(mut self, guards: &'static str) -> Self {
        self.guards = guards;
        self
    }

    /// Returns the limits for probes, without any listener yet. `option`: the one that names the
    /// address.
    pub(super) fn for_probes(connections_max: u32, option: &'static str) -> Self {
        Self {
            option,
            is_for_probes: true,
            ..Self::new(connections_max, None)
        }
    }

    /// Opens a listener. If `is_guarded` is false, only addresses of this machine are allowed,
    /// because then requests need no token.
    pub(super) async fn open(&mut self, address: &Address, is_guarded: bool) -> anyhow::Result<()> {
        // Such an error may pass by itself, e.g. if the address comes later or another process
        // frees it. So its exit code is not that of a wrong input.
        let option = self.option;
        let failed = |error: io::Error| {
            Failure::with(
                Exit::Broken,
                format!(
                    "cannot listen on {address}: {error}{}",
                    hint(error.kind(), option)
                ),
            )
        };
        let listener = match address {
            Address::Tcp(text) => {
                let listener = TcpListener::bind(text).await.map_err(failed)?;
                let local = listener.local_addr().map_err(failed)?;
                if !is_guarded && !local.ip().is_loopback() {
                    let what = format!(
                        "{address} can be reached from other machines: {}; or listen on this machine only, e.g. --listen 127.0.0.1:{}",
                        self.guards,
                        local.port()
                    );
                    return Err(Failure::with(Exit::Input, what));
                }
                let scheme = if self.certificate.is_some() {
                    "https"
                } else {
                    "http"
                };
                self.listeners
                    .push((format!("{scheme}://{local}"), Listener::Tcp(listener)));
                return Ok(());
            }
            Address::Unix(path) => {
                match std::fs::symlink_metadata(path) {
                    Ok(found) if !found.file_type().is_socket() => {
                        let what = format!(
                            "cannot listen on {address}: the path exists and is not a socket; name another one"
                        );
                        return Err(Failure::with(Exit::Input, what));
                    }
                    // A socket on which no process listens was left by a process that was killed,
                    // so it is removed.
                    Ok(_) if is_refused(path) => std::fs::remove_file(path).map_err(failed)?,
                    _ => {}
                }
                Listener::Unix {
                    listener: UnixListener::bind(path).map_err(failed)?,
                    _socket: Socket(path.clone()),
                }
            }
        };
        self.listeners.push((address.to_string(), listener));
        Ok(())
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.iter().map(|(address, _)| address.as_str())
    }

    /// Serves all listeners until `stop` is cancelled. After that, requests under way have at most
    /// `grace` to end. During this time new connections are still accepted, with one request each,
    /// because probes must learn that the process lives and is not ready. `has_users`: whether there
    /// can be several users.
    pub(super) async fn serve(
        self,
        routes: Router,
        stop: CancellationToken,
        grace: Duration,
        has_users: bool,
    ) {
        let connections_max = self.raise_file_limit();
        let (tasks, places) = (TaskTracker::new(), Places::new(connections_max, has_users));
        let _telling = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(tell(
            places.clone(),
            connections_max,
        )));
        let mut accepting = tokio::task::JoinSet::new();
        for (_, listener) in self.listeners {
            let accept = Accept {
                routes: TowerToHyperService::new(routes.clone()),
                places: places.clone(),
                is_for_probes: self.is_for_probes,
                certificate: self.certificate.clone(),
                tasks: tasks.clone(),
                stop: stop.clone(),
            };
            accepting.spawn(accept.run(listener));
        }
        stop.cancelled().await;
        tasks.close();
        if timeout(grace, tasks.wait()).await.is_err() {
            warn!(target: LOG, requests = tasks.len(), "stopped before these requests were answered");
        }
        places.cut();
        // The end of the listeners also removes their sockets in the file system.
        accepting.shutdown().await;
    }

    /// Raises the limit of open files to the number that the connections need. If a lower limit
    /// remains, logs a warning. Returns the number of connections that the limit allows, so that
    /// connections give way before the process has too many open files.
    fn raise_file_limit(&self) -> usize {
        let connections = u64::from(self.connections_max);
        let wanted = connections + OTHER_FILES;
        let allowed = match raise_limit(wanted).filter(|files| *files < wanted) {
            Some(files) => {
                warn!(target: LOG, connections, files, "the limit of open files allows fewer connections (ulimit -n)");
                files.saturating_sub(OTHER_FILES).max(files / 2)
            }
            None => connections,
        };
        usize::try_from(allowed).unwrap_or(usize::MAX)
    }
}

/// Logs once a minute how many connections have given way, if any.
async fn tell(places: Places, connections_max: usize) {
    loop {
        sleep(TELL_EVERY).await;
        match places.gone() {
            0 => {}
            closed => {
                warn!(target: LOG, closed, connections_max, "closed connections to make room for new ones: there are too many")
            }
        }
    }
}

/// The state with which one listener accepts connections. Most parts are shared with the other
/// listeners.
struct Accept {
    routes: TowerToHyperService<Router>,
    /// The places of the connections of all listeners together.
    places: Places,
    is_for_probes: bool,
    certificate: Option<Arc<Certificate>>,
    /// The connections that a stop waits for.
    tasks: TaskTracker,
    /// When this token is cancelled, idle connections end.
    stop: CancellationToken,
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

    /// Begins to serve a connection.
    fn begin(&self, stream: Stream) {
        let place = self.places.arrive(stream.peer());
        let is_for_probes = self.is_for_probes;
        let (routes, stop) = (self.routes.clone(), self.stop.clone());
        let certificate = self.certificate.clone();
        let evicted = place.evicted.clone();
        let task = async move {
            let serving = async {
                match (stream, certificate) {
                    // The state of TLS is large. So it is apart, and other connections have no room
                    // for it.
                    (Stream::Tcp(stream, from), Some(certificate)) => {
                        Box::pin(async move {
                            let secured =
                                timeout(HANDSHAKE_TIME_MAX, certificate.acceptor().accept(stream))
                                    .await;
                            if let Ok(Ok(stream)) = secured {
                                serve(stream, Peer::Ip(from), routes, stop, (place, is_for_probes))
                                    .await;
                            }
                        })
                        .await
                    }
                    (Stream::Tcp(stream, from), None) => {
                        serve(stream, Peer::Ip(from), routes, stop, (place, is_for_probes)).await
                    }
                    (Stream::Unix(stream), _) => {
                        serve(stream, Peer::Unix, routes, stop, (place, is_for_probes)).await
                    }
                }
            };
            tokio::select! {
                biased;
                () = evicted.cancelled() => {}
                () = serving => {}
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
    Tcp(tokio::net::TcpStream, IpAddr),
    Unix(tokio::net::UnixStream),
}

impl Stream {
    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, from) => Peer::Ip(*from),
            Self::Unix(_) => Peer::Unix,
        }
    }
}

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, from) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream, from.ip().to_canonical()))
        }
        Listener::Unix { listener, .. } => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

/// Serves the requests of one connection, until the connection ends. A connection for probes has one
/// request.
async fn serve<S>(
    stream: S,
    peer: Peer,
    routes: TowerToHyperService<Router>,
    stop: CancellationToken,
    (place, is_for_probes): (Permit, bool),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_stopping = stop.is_cancelled();
    // Each poll takes the lock of the token, so connections do not share one.
    let stop = stop.child_token();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIME_MAX));
    let mut http = http1::Builder::new();
    let head_time_max = if is_for_probes {
        PROBE_HEAD_TIME_MAX
    } else {
        HEAD_TIME_MAX
    };
    http.timer(TokioTimer::new())
        .header_read_timeout(head_time_max)
        .max_buf_size(HEAD_BYTES_MAX);
    http.keep_alive(!is_for_probes && !is_stopping);
    let stream = Lingering::new(Box::pin(stream));
    let door = place.door.clone();
    let with_peer = service_fn(move |mut request: Request<Incoming>| {
        // A request is done wholly, or not at all. If the connection has given way at this moment, it
        // ends without an answer, and nothing was done.
        let under_way = door
            .begin()
            .ok_or_else(|| io::Error::other("the connection has given way"));
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(door.clone());
        let answer = routes.call(request);
        async move {
            let under_way = under_way?;
            let Ok::<Response<axum::body::Body>, Infallible>(answer) = answer.await;
            Ok::<_, io::Error>(answer.map(|body| Answering::new(body, under_way)))
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), with_peer);
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
