//! The notices of a worker for systemd, and its watchdog.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::{Redis, free_port, until};

/// A stand-in for systemd that only records the notices it gets.
struct Supervisor {
    socket: UnixDatagram,
    dir: tempfile::TempDir,
    within: Duration,
}

impl Supervisor {
    fn start() -> Self {
        Self::with_watchdog(Duration::from_secs(2))
    }

    /// Starts a systemd that expects a sign of life within this time.
    fn with_watchdog(within: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("set");
        Self {
            socket,
            dir,
            within,
        }
    }

    fn variables(&self) -> Vec<(String, String)> {
        let socket = self.dir.path().join("notify").display().to_string();
        vec![
            ("NOTIFY_SOCKET".to_owned(), socket),
            (
                "WATCHDOG_USEC".to_owned(),
                self.within.as_micros().to_string(),
            ),
        ]
    }

    /// Waits for this time. Returns the notices that arrived meanwhile.
    async fn heard_for(&self, time: Duration) -> Vec<String> {
        let (mut heard, since) = (Vec::new(), Instant::now());
        while since.elapsed() < time {
            let mut bytes = [0; 500];
            match self.socket.recv(&mut bytes) {
                Ok(length) => heard.extend(
                    String::from_utf8_lossy(&bytes[..length])
                        .lines()
                        .map(str::to_owned),
                ),
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
        heard
    }

    /// Listens for this time. Returns the longest time without a sign of life.
    fn longest_silence(&self, time: Duration) -> Duration {
        let (mut longest, mut last, since) = (Duration::ZERO, Instant::now(), Instant::now());
        while since.elapsed() < time {
            let mut bytes = [0; 500];
            let lives = self
                .socket
                .recv(&mut bytes)
                .is_ok_and(|length| bytes[..length].starts_with(b"WATCHDOG=1"));
            longest = longest.max(last.elapsed());
            last = if lives { Instant::now() } else { last };
        }
        longest
    }

    async fn until_heard(&self, text: &str) {
        let what = format!("{text} is heard");
        until(&what, PATIENCE, async || {
            self.heard_for(Duration::from_millis(60))
                .await
                .iter()
                .any(|line| line.contains(text))
                .then_some(())
        })
        .await;
    }
}

fn signs_of_life(heard: &[String]) -> usize {
    heard.iter().filter(|line| *line == "WATCHDOG=1").count()
}

/// Tests that a worker sends signs of life even while Redis is away, and sends a notice when it
/// stops.
#[tokio::test]
async fn systemd_hears_of_the_start_the_life_and_the_stop() {
    const WITHIN: Duration = Duration::from_secs(3);
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    let systemd = Supervisor::with_watchdog(WITHIN);
    let variables = systemd.variables();
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let options = ["--lease", "1s", "--response-timeout", "500ms"];
    let mut worker = Process::start_with(&redis, "w", "null", &options, &variables);
    systemd.until_heard("READY=1").await;
    assert!(systemd.longest_silence(Duration::from_secs(5)) < WITHIN);
    redis.server().kill();
    assert!(systemd.longest_silence(Duration::from_secs(6)) < WITHIN);
    redis.server().restart();
    worker.until_logged("Redis answers again").await;
    worker.terminate();
    systemd.until_heard("STOPPING=1").await;
    assert!(worker.ended().await.success());
}

/// Tests that a worker sends no signs of life while its loop stands still, and sends them again
/// when the loop turns.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn systemd_hears_nothing_of_a_loop_that_stands_still() {
    let (redis, systemd) = (Redis::start(), Supervisor::start());
    let mut variables = systemd.variables();
    variables.push(("FAILPOINTS".to_owned(), "advance.before=block@1".to_owned()));
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let worker = Process::start_with(&redis, "w", "null", &[], &variables);
    systemd.until_heard("READY=1").await;
    let (mut longest, mut last, since) = (Duration::ZERO, Instant::now(), Instant::now());
    // The sign of life that ends the silence shows that the loop turns again.
    while longest <= Duration::from_secs(4) {
        if signs_of_life(&systemd.heard_for(Duration::from_millis(100)).await) > 0 {
            (longest, last) = (longest.max(last.elapsed()), Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "{longest:?}");
    }
    drop(worker);
}

/// Tests that signs of life go on, closer together than the time of the watchdog, while the sink
/// never answers, while the sink is down, and while Redis is away. All settings are the defaults.
#[tokio::test]
async fn the_watchdog_is_fed_whatever_the_sink_and_redis_do() {
    const WITHIN: Duration = Duration::from_secs(4);
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("an address");
    let (mute, down) = (
        mute.local_addr()
            .map(|address| (address, mute))
            .expect("an address"),
        free_port(),
    );
    let sinks = [
        "stdout".to_owned(),
        format!("http://{}/", mute.0),
        format!("http://127.0.0.1:{down}/"),
        "null".to_owned(),
    ];
    let mut started = Vec::new();
    for sink in &sinks {
        let (redis, systemd) = (
            Redis::own(&["--appendonly", "yes"]),
            Supervisor::with_watchdog(WITHIN),
        );
        let variables = systemd.variables();
        let variables: Vec<(&str, &str)> = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let worker = Process::start_with(&redis, "w", sink, &[], &variables);
        systemd.until_heard("READY=1").await;
        started.push((redis, systemd, worker));
    }
    for (redis, _, worker) in &started[..3] {
        let console = redis.console().await;
        // The event does not fit into the pipe, so its delivery to standard output stands still.
        console
            .emit("work:1", format!("\"{}\"", "x".repeat(200_000)))
            .await;
        let queue = console.keys.events("work:1");
        until("it is in hand", PATIENCE, async || {
            console.list(&queue).await.is_empty().then_some(())
        })
        .await;
        assert!(!worker.log().contains("panicked"));
    }
    // One sink accepts the connection, but sends no answer; the other one refuses connections.
    let _hanging = tokio::task::spawn_blocking(move || mute.1.accept())
        .await
        .expect("joined")
        .expect("a connection");
    started[2].2.until_logged("the sink is unavailable").await;
    started[3].0.server().kill();
    started[3].2.until_logged("waiting for Redis").await;
    let listen = |systemd: &Supervisor| systemd.longest_silence(3 * WITHIN);
    let silences: Vec<Duration> = std::thread::scope(|scope| {
        let listening: Vec<_> = started
            .iter()
            .map(|(_, systemd, _)| scope.spawn(move || listen(systemd)))
            .collect();
        listening
            .into_iter()
            .map(|listening| listening.join().expect("no panic"))
            .collect()
    });
    println!("the longest silences: {silences:?}");
    for (sink, silence) in sinks.iter().zip(&silences) {
        assert!(*silence < WITHIN, "{sink}: {silence:?}");
    }
    // The deliveries have stood still, or been refused, all the time.
    for (redis, ..) in &started[..3] {
        let delivered = redis.keys().last_event_id("work:1");
        assert_eq!(redis.console().await.number(&delivered).await, 0);
    }
}
