//! Shared parts of the tests: a private Redis per test, or the one in `SERIATIM_TEST_REDIS`.
#![allow(dead_code, unreachable_pub, clippy::zombie_processes)]

pub mod answering;
pub mod clock;
pub mod console;
pub mod jobs;
pub mod operator;
pub mod output;
pub mod pages;
pub mod process;
pub mod program;
pub mod proxy;
pub mod recorder;
pub mod running;
pub mod sweep;
pub mod users;

pub use self::program::program;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use seriatim::keys::Keys;

/// A Redis for one test. Its keys have their own namespace, so that tests can share a server.
pub struct Redis {
    url: String,
    server: Option<Server>,
    keys: Keys,
    namespace: String,
}

/// A private `redis-server` (or `valkey-server`), on a socket in a temporary directory. It ends
/// when the value is dropped.
pub struct Server {
    program: String,
    child: Child,
    dir: tempfile::TempDir,
    options: Vec<String>,
    environment: Vec<(String, PathBuf)>,
}

/// Returns a text of source code without white space, so that its format does not matter.
pub fn without_spaces(source: &str) -> String {
    source.split_whitespace().collect()
}

static TESTS: AtomicU32 = AtomicU32::new(0);

/// Returns the server in `SERIATIM_REDIS_SERVER`, or else the first one on the PATH.
pub fn redis_server() -> String {
    let is_there = |name: &String| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    if let Some(named) = std::env::var("SERIATIM_REDIS_SERVER")
        .ok()
        .filter(|named| !named.is_empty())
    {
        assert!(
            is_there(&named),
            "SERIATIM_REDIS_SERVER names {named}, which cannot be run"
        );
        return named;
    }
    let found = ["redis-server", "valkey-server"]
        .map(str::to_owned)
        .into_iter()
        .find(is_there);
    found.expect("these tests need redis-server >= 7.0 or valkey-server on the PATH; scripts/test installs one")
}

impl Server {
    /// Starts a server with these further options, e.g. `["--maxmemory", "10mb"]`, and waits until
    /// it replies.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with(options, Vec::new())
    }

    /// Starts a server with these options and environment variables.
    pub fn start_with(options: &[&str], environment: Vec<(String, PathBuf)>) -> Self {
        Self::start_program(redis_server(), options, environment)
    }

    fn start_program(
        program: String,
        options: &[&str],
        environment: Vec<(String, PathBuf)>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        let child = Self::spawn(&program, dir.path().to_path_buf(), &options, &environment);
        Self {
            program,
            child,
            dir,
            options,
            environment,
        }
    }

    fn spawn(
        program: &str,
        dir: PathBuf,
        options: &Vec<String>,
        environment: &[(String, PathBuf)],
    ) -> Child {
        let socket = dir.join("redis.sock");
        let _ = std::fs::remove_file(&socket);
        let child = Command::new(program)
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--enable-debug-command",
                "yes",
            ])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(&dir)
            .args(options)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(std::fs::File::create(dir.join("redis.log")).expect("a log file"))
            .stdin(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        let client = Client::open(format!("unix://{}", socket.display())).expect("a socket URL");
        loop {
            let answer = client
                .get_connection()
                .and_then(|mut c| redis::cmd("PING").query::<String>(&mut c));
            if answer.is_ok() {
                return child;
            }
            assert!(
                Instant::now() < deadline,
                "redis-server does not answer: {answer:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the URL of the server's socket.
    pub fn url(&self) -> String {
        format!("unix://{}", self.dir.path().join("redis.sock").display())
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts the server with the same options and the same directory.
    pub fn restart(&mut self) {
        self.kill();
        self.child = Self::spawn(
            &self.program,
            self.dir.path().to_path_buf(),
            &self.options,
            &self.environment,
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Redis {
    /// Returns the Redis in `SERIATIM_TEST_REDIS`, or else a private server.
    pub fn start() -> Self {
        match std::env::var("SERIATIM_TEST_REDIS") {
            Ok(url) => Self::over(url, None),
            Err(_) => Self::own(&[]),
        }
    }

    /// Starts a private server in any case: for tests that kill or configure it.
    pub fn own(options: &[&str]) -> Self {
        let server = Server::start(options);
        Self::over(server.url(), Some(server))
    }

    /// Starts a private server with TLS. It is always the redis-server on the PATH, because some
    /// builds of other servers have no TLS.
    pub fn with_tls(options: &[&str]) -> Self {
        let server = Server::start_program("redis-server".to_owned(), options, Vec::new());
        Self::over(server.url(), Some(server))
    }

    /// Starts a node of a cluster. It has no keys yet.
    pub fn cluster_node(options: &[&str]) -> Self {
        let server = Server::start(options);
        let namespace = format!("test-{}", TESTS.fetch_add(1, Ordering::Relaxed));
        let keys = Keys::with_namespace(&namespace).expect("a valid namespace");
        Self {
            url: server.url(),
            server: Some(server),
            keys,
            namespace,
        }
    }

    /// Starts a private server with these environment variables.
    pub fn with(options: &[&str], environment: Vec<(String, PathBuf)>) -> Self {
        let server = Server::start_with(options, environment);
        Self::over(server.url(), Some(server))
    }

    /// Starts a private server whose clock can stand still. It is always the redis-server on the PATH:
    /// Valkey takes the time within a command from a clock that counts from a start.
    pub fn with_stopped_clock(clock: &clock::Clock) -> Self {
        let server = Server::start_program("redis-server".to_owned(), &[], clock.environment());
        Self::over(server.url(), Some(server))
    }

    fn over(url: String, server: Option<Server>) -> Self {
        let namespace = format!(
            "test-{}-{}",
            std::process::id(),
            TESTS.fetch_add(1, Ordering::Relaxed)
        );
        let keys = Keys::with_namespace(&namespace).expect("a valid namespace");
        let redis = Self {
            url,
            server,
            keys,
            namespace,
        };
        redis.begin_ids(&redis.keys);
        redis
    }

    /// Deletes the id counter, for tests that check that no key is left.
    pub fn empty(self) -> Self {
        let mut conn = Client::open(self.url.as_str())
            .and_then(|client| client.get_connection())
            .expect("Redis answers");
        redis::cmd("DEL")
            .arg(self.keys.next_event_id())
            .exec(&mut conn)
            .expect("deleted");
        self
    }

    /// Lets ids begin with 1, for tests that call scripts without `connect`. Workers of tests use
    /// `first_id` for this.
    pub fn begin_ids(&self, keys: &Keys) {
        let client = Client::open(self.url.as_str()).expect("a Redis URL");
        let mut conn = client.get_connection().expect("Redis answers");
        redis::cmd("SET")
            .arg(keys.next_event_id())
            .arg(0)
            .exec(&mut conn)
            .expect("set");
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a connected emitter.
    pub async fn emitter(&self) -> seriatim::Emitter {
        let emitter = seriatim::Emitter::connect(self.url()).await;
        emitter.expect("Redis answers").with_keys(self.keys.clone())
    }

    /// Returns an emitter whose builder has the keys. So it has looked for limits when it
    /// connected.
    pub async fn built_emitter(&self) -> seriatim::Emitter {
        let builder = seriatim::Emitter::builder(self.url()).keys(self.keys.clone());
        builder.connect().await.expect("Redis answers")
    }

    /// Returns the handle of an operator.
    pub async fn control(&self) -> seriatim::control::Control {
        control(&self.connect().await, &self.keys)
    }

    /// Returns the server, if it is private.
    pub fn server(&mut self) -> &mut Server {
        self.server
            .as_mut()
            .expect("a server of this test's own: Redis::own")
    }

    /// Returns a connection that waits up to ten seconds for a reply.
    pub async fn connect(&self) -> MultiplexedConnection {
        let client = Client::open(self.url.as_str()).expect("a Redis URL");
        client
            .get_multiplexed_async_connection_with_config(&patient())
            .await
            .expect("Redis answers")
    }
}

/// Returns settings of a connection with long time limits. The usual limit for a reply is 500 ms, and
/// a busy host may need longer.
pub fn patient() -> AsyncConnectionConfig {
    let patience = Some(Duration::from_secs(10));
    AsyncConnectionConfig::new()
        .set_connection_timeout(patience)
        .set_response_timeout(patience)
}

/// Returns a TCP port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Fails unless a value has this pattern. A further text is for the failure.
#[allow(unused_macros)]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{other:?} is not {}", stringify!($pattern $(if $guard)?)),
        }
    };
    ($value:expr, $pattern:pat $(if $guard:expr)?, $($text:tt)+) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{}: {other:?}", format!($($text)+)),
        }
    };
}
#[allow(unused_imports)]
pub(crate) use assert_matches;

/// Returns the handle of an operator over this connection.
pub fn control(conn: &MultiplexedConnection, keys: &Keys) -> seriatim::control::Control {
    seriatim::control::Control::new(conn.clone()).with_keys(keys.clone())
}

/// Waits for a state: calls `ready` every few milliseconds until it returns a value. Fails after
/// `patience`.
pub async fn until<T, F>(what: &str, patience: Duration, mut ready: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = ready().await {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "waited {patience:?} in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}
