//! The way to Redis: makes connections to a [`Server`].
//!
//! With Sentinels, each connection leads to the master that a majority of them names. If they later
//! name another master, all connections to the former master are closed. A master whose epoch is
//! lower than the highest epoch seen is refused: it was replaced, and its writes will be lost.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, select, select_ok};
use redis::io::tcp::{TcpSettings, socket2::SockRef};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ProtocolVersion, RedisConnectionInfo, RedisError,
    RedisResult,
};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::errors::at_master;
use super::patient::{Driver, PatientConnection};
use super::role;
use super::sentinel::{self, Master, Sentinels};
use super::server::Server;
use super::tls::Tls;
use super::url::{self, Target, tcp_settings};

/// The reason why a [`Server`] cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteError {
    /// The URL is invalid. The reason repeats no part of the URL.
    Url(String),
    /// The settings of TLS cannot be used.
    Tls(String),
    /// The map of the addresses that Sentinels announce is invalid.
    Sentinels(String),
}

/// Makes connections. All clones share the highest epoch seen and the list of open connections.
#[derive(Clone)]
pub struct Route(Arc<Inner>);

struct Inner {
    place: Target,
    settings: RedisConnectionInfo,
    password_file: Option<PathBuf>,
    sentinel_user: Option<String>,
    sentinel_password_file: Option<PathBuf>,
    /// The address under which a server is reached, by the address that the Sentinels announce.
    sentinel_map: HashMap<Master, Master>,
    tcp: TcpSettings,
    tls: Option<Tls>,
    met: Mutex<Met>,
    /// Notified when the Sentinels name another master.
    changed: Notify,
    /// Last time at which `ask_while_used` has asked the Sentinels.
    asked: Mutex<Option<Instant>>,
}

/// Longest wait for the reply to a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Largest size, in bytes, of a file with a password or with certificates.
pub(super) const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Interval at which the Sentinels are asked while a connection is in use.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// The master that the Sentinels named last, and the connections to it.
#[derive(Default)]
struct Met {
    /// The highest configuration epoch seen.
    epoch: u64,
    master: Option<Master>,
    /// The open connections to this master.
    open: Vec<Weak<Driver>>,
}

impl Met {
    /// Remembers a new connection, so that it can be closed when the Sentinels name another master.
    fn keep(&mut self, conn: &PatientConnection) {
        self.open.retain(|driver| driver.strong_count() > 0);
        self.open.push(Arc::downgrade(conn.driver()));
    }
}

impl Route {
    /// Reads the settings, but does not connect yet. `response_timeout` is the time without
    /// progress after which a call is given up.
    ///
    /// # Errors
    /// [`RouteError`] for an invalid URL, or for TLS settings that cannot be used.
    pub fn new(server: &Server, response_timeout: Duration) -> Result<Self, RouteError> {
        let url::Parsed {
            place,
            settings,
            with_tls,
        } = url::parse(&server.url).map_err(|error| RouteError::Url(error.reason))?;
        if !with_tls && (server.ca_file.is_some() || server.identity.is_some()) {
            return Err(RouteError::Tls(
                "files for TLS need a URL that begins with rediss:// or rediss-sentinel://"
                    .to_owned(),
            ));
        }
        let sentinel_map = sentinel::map(&server.sentinel_map).map_err(RouteError::Sentinels)?;
        if !sentinel_map.is_empty() && matches!(place, Target::Address(_)) {
            let text = "a map of addresses needs a URL that begins with redis-sentinel:// or rediss-sentinel://";
            return Err(RouteError::Sentinels(text.to_owned()));
        }
        Ok(Self(Arc::new(Inner {
            place,
            // A URL may ask for RESP3, but all parts of the program use RESP2.
            settings: settings.set_protocol(ProtocolVersion::RESP2),
            password_file: server.password_file.clone(),
            sentinel_user: server.sentinel_user.clone(),
            sentinel_password_file: server.sentinel_password_file.clone(),
            sentinel_map,
            tcp: tcp_settings(response_timeout),
            tls: with_tls
                .then(|| Tls::new(server))
                .transpose()
                .map_err(RouteError::Tls)?,
            met: Mutex::default(),
            changed: Notify::new(),
            asked: Mutex::default(),
        })))
    }

    /// Returns the address without user and password.
    pub fn address(&self) -> String {
        match &self.0.place {
            Target::Address(address) => address.to_string(),
            Target::Sentinels(Sentinels { hosts, service }) => {
                let hosts: Vec<_> = hosts
                    .iter()
                    .map(|(host, port)| sentinel::address(host, *port))
                    .collect();
                format!("{} (master {service} of these Sentinels)", hosts.join(","))
            }
        }
    }

    /// Returns the number of the database.
    pub fn db(&self) -> i64 {
        self.0.settings.db()
    }

    /// Connects and authenticates, within `connect_timeout`. Later calls time out after the time
    /// `patience` without progress. All parts of the program connect in this way, with RESP2: some
    /// proxies do not know `HELLO`, which RESP3 needs.
    ///
    /// # Errors
    /// The error of the attempt, or a timeout after `connect_timeout`. If the Sentinels announced
    /// the address that failed, the error names this address.
    pub async fn open(
        &self,
        config: AsyncConnectionConfig,
        connect_timeout: Duration,
        patience: Duration,
    ) -> RedisResult<PatientConnection> {
        let announced = OnceLock::new();
        let attempt = async {
            let settings =
                with_password(self.0.settings.clone(), self.0.password_file.as_deref()).await?;
            let sentinels = match &self.0.place {
                Target::Sentinels(sentinels) => sentinels,
                Target::Address(address) => {
                    let conn = self.attempt(address, settings, config, patience).await?;
                    self.met().keep(&conn);
                    return Ok(conn);
                }
            };
            let (epoch, master) = self.ask(sentinels).await?;
            let reached = self.0.sentinel_map.get(&master).unwrap_or(&master);
            let address = ConnectionAddr::Tcp(reached.host.clone(), reached.port);
            let _ = announced.set(master.clone());
            let attempt = async {
                let opened = self.attempt(&address, settings, config, patience).await;
                let mut conn = opened.map_err(|error| self.about(&master, error))?;
                role::must_be_master(&mut conn).await?;
                RedisResult::Ok(conn)
            };
            // A master that is gone does not reply, so the attempt would take all of its time. It
            // is given up as soon as the Sentinels name another master.
            let conn = match select(pin!(attempt), pin!(self.until_replaced(epoch, &master))).await
            {
                Either::Left((conn, _)) => conn?,
                Either::Right(((), _)) => return Err(replaced()),
            };
            let mut met = self.met();
            if met.epoch != epoch || met.master.as_ref() != Some(&master) {
                return Err(replaced());
            }
            met.keep(&conn);
            Ok(conn)
        };
        timeout(connect_timeout, attempt).await.unwrap_or_else(|_| {
            let error = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
            Err(match announced.get() {
                Some(master) => self.about(master, error),
                None => error,
            })
        })
    }

    /// Adds the address of the master to the error of an attempt to connect to it. The URL has only
    /// the addresses of the Sentinels.
    fn about(&self, master: &Master, error: RedisError) -> RedisError {
        let mapped = self.0.sentinel_map.get(master).map(Master::to_string);
        at_master(error, &master.to_string(), mapped.as_deref())
    }

    /// Connects like [`open`](Self::open), but the server may be a replica. A Sentinel is refused.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open). If the server is a Sentinel, the error names the right
    /// URL.
    pub async fn open_to_read(
        &self,
        config: AsyncConnectionConfig,
        connect_timeout: Duration,
        patience: Duration,
    ) -> RedisResult<PatientConnection> {
        let mut conn = self.open(config, connect_timeout, patience).await?;
        role::must_be_no_sentinel(&mut conn, &self.address(), self.scheme()).await?;
        Ok(conn)
    }

    /// Asks the Sentinels, if the server is given by Sentinels. If they name another master, closes
    /// all connections to the former one.
    ///
    /// # Errors
    /// No majority of the Sentinels agrees, or they name a master that was already replaced. After
    /// an error, connections stay as they are.
    pub async fn ask_again(&self) -> RedisResult<()> {
        match &self.0.place {
            Target::Sentinels(sentinels) => self.ask(sentinels).await.map(|_| ()),
            Target::Address(_) => Ok(()),
        }
    }

    /// Returns whether the server is given by Sentinels.
    pub fn has_sentinels(&self) -> bool {
        matches!(self.0.place, Target::Sentinels(_))
    }

    /// Asks the Sentinels in the background, if there are any, at most every 5 s. Emitters call
    /// this at each use of their connection. As long as a connection is not used, the Sentinels are
    /// not asked.
    pub fn ask_while_used(&self) {
        if !matches!(self.0.place, Target::Sentinels(_)) {
            return;
        }
        let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if asked.is_none_or(|at| now - at >= ASK_EVERY) {
            *asked = Some(now);
            let route = self.clone();
            // If no majority of the Sentinels replies, the connection stays.
            tokio::spawn(async move { drop(route.ask_again().await) });
        }
    }

    /// Returns whether connections need more than plain TCP: TLS, Sentinels, or a password file.
    pub fn is_more_than_tcp(&self) -> bool {
        matches!(self.0.place, Target::Sentinels(_))
            || self.scheme() == "rediss"
            || self.0.password_file.is_some()
    }

    /// Returns whether the address of the server is on this machine.
    pub fn is_local(&self) -> bool {
        match &self.0.place {
            Target::Address(ConnectionAddr::Tcp(host, _)) => {
                host == "localhost"
                    || host
                        .parse()
                        .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
            }
            Target::Address(_) => true,
            Target::Sentinels(_) => false,
        }
    }

    /// Returns the scheme for the URL of a single server.
    pub fn scheme(&self) -> &'static str {
        if self.0.tls.is_some() {
            return "rediss";
        }
        "redis"
    }

    /// Closes all connections except this one.
    pub fn close_all_but(&self, conn: &PatientConnection) {
        self.met().open.retain(|driver| {
            let Some(other) = driver.upgrade() else {
                return false;
            };
            let stays = Arc::ptr_eq(&other, conn.driver());
            if !stays {
                other.close();
            }
            stays
        });
    }

    async fn ask(&self, sentinels: &Sentinels) -> RedisResult<(u64, Master)> {
        let (epoch, master) = sentinels
            .master(|host, port| self.to_sentinel(host, port))
            .await?;
        let mut met = self.met();
        if epoch < met.epoch {
            let text = format!(
                "the Sentinels name a master of epoch {epoch}, but this process has seen epoch {}; if the Sentinels were set up anew, \
                 restart this process",
                met.epoch
            );
            return Err(io::Error::new(io::ErrorKind::NotConnected, text).into());
        }
        if epoch > met.epoch || met.master.as_ref() != Some(&master) {
            for driver in met.open.drain(..).filter_map(|driver| driver.upgrade()) {
                driver.close();
            }
            (met.epoch, met.master) = (epoch, Some(master.clone()));
            self.0.changed.notify_waiters();
        }
        Ok((epoch, master))
    }

    /// Connects to one Sentinel.
    async fn to_sentinel(&self, host: String, port: u16) -> RedisResult<PatientConnection> {
        let mut settings = RedisConnectionInfo::default();
        if let Some(user) = &self.0.sentinel_user {
            settings = settings.set_username(user);
        }
        let settings = with_password(settings, self.0.sentinel_password_file.as_deref()).await?;
        self.attempt(
            &ConnectionAddr::Tcp(host, port),
            settings,
            AsyncConnectionConfig::new(),
            sentinel::PATIENCE,
        )
        .await
    }

    /// Waits until the Sentinels have named another master.
    async fn until_replaced(&self, epoch: u64, master: &Master) {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = pin!(changed);
            changed.as_mut().enable();
            {
                let met = self.met();
                if met.epoch != epoch || met.master.as_ref() != Some(master) {
                    return;
                }
            }
            changed.await;
        }
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        self.0.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attempt(
        &self,
        address: &ConnectionAddr,
        settings: RedisConnectionInfo,
        config: AsyncConnectionConfig,
        patience: Duration,
    ) -> RedisResult<PatientConnection> {
        let made_at = Instant::now();
        match address {
            ConnectionAddr::Tcp(host, port) => {
                let stream = tcp_stream(host, *port, &self.0.tcp).await?;
                if let Some(tls) = &self.0.tls {
                    let stream = timeout(HANDSHAKE, tls.connect(host, stream)).await.unwrap_or_else(|_| {
                        let text = format!("no reply to the TLS handshake within {HANDSHAKE:?}: is this a port with TLS?");
                        Err(io::Error::new(io::ErrorKind::NotConnected, text))
                    })?;
                    return PatientConnection::over(stream, &settings, config, patience, made_at)
                        .await;
                }
                PatientConnection::over(stream, &settings, config, patience, made_at).await
            }
            ConnectionAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                PatientConnection::over(stream, &settings, config, patience, made_at).await
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no such way to Redis is built in",
            )
            .into()),
        }
    }
}

fn replaced() -> RedisError {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the master was replaced during the attempt to connect",
    )
    .into()
}

/// Sets the password from the file. The file is read for each connection, because it may have
/// changed.
async fn with_password(
    settings: RedisConnectionInfo,
    file: Option<&Path>,
) -> RedisResult<RedisConnectionInfo> {
    let Some(path) = file.map(Path::to_owned) else {
        return Ok(settings);
    };
    let read = tokio::task::spawn_blocking(move || {
        read_file(&path).map_err(|error| {
            // The file may be absent for a moment while it is being replaced. So the error counts
            // as a missing connection, not as a wrong setting.
            io::Error::new(
                io::ErrorKind::NotConnected,
                format!("the password in {} cannot be read: {error}", path.display()),
            )
        })
    });
    let text = read.await.map_err(io::Error::other)??;
    Ok(settings.set_password(text.trim_end_matches(['\r', '\n'])))
}

/// Reads a file of bounded size. Refuses a FIFO: reading it would block, and the next connection
/// would find it empty.
pub(super) fn read_file(path: &Path) -> io::Result<String> {
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it has more than 16 MiB",
        ));
    }
    std::fs::read_to_string(path)
}

async fn tcp_stream(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}
