//! Measures HTTP: delivery by the sink, and emits through `seriatim serve`.
//!
//!     cargo build --release
//!     cargo bench --bench http [-- --events N | --exclusive]
//!
//! Each part has its own private Redis on loopback.
//!
//! - Delivery: a worker with 64 slots sends to a receiver that answers each request with 204. Both
//!   run in this process, which has two threads. In the first measurement each request has one
//!   event (by default 50,000 events of 10,000 objects). In the second one each request has a list
//!   of up to 100 events (of 1,000 objects).
//! - Exclusive delivery (`--sink-exclusive`), compared with plain delivery, in turn, three times each:
//!   with one event per object and request, with five events per object, and with lists. The figures
//!   are the medians. Only `--exclusive` measures this part, and then no other.
//! - Emits: this process keeps 64 connections to `seriatim serve`. Each connection sends an emit,
//!   and waits for its answer before the next emit.
//! - Lines: a file of 200 MB at most is emitted with `seriatim emit --from FILE` and with `POST
//!   /v1/events`, in turn, three times each. The figures are the medians.
//! - Connections: the memory of `seriatim serve` with 10,000 idle connections.
//!
//! The exit code is 1 in two cases. With one event per request, delivery or emits reach less than
//! 10,000 events per second. Or lines over HTTP reach less than half the rate of `emit --from`.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use seriatim::Emitter;
use seriatim::event::Json;
use seriatim::worker::{Shutdown, Worker, WorkerConfig};
use seriatim_http::{Exclusive, Http, Options};
use seriatim_lab::statistics::median;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The allocator of the program, because the worker of this bench stands for the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SLOTS: usize = 64;
const IDLE: usize = 10_000;
const PER_SECOND_MIN: f64 = 10_000.0;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let events = match args.as_slice() {
        [] => 50_000,
        [option, number] if option == "--events" => number.parse()?,
        [option] if option == "--exclusive" => 50_000,
        _ => anyhow::bail!("usage: http [--events N | --exclusive]"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let comparisons = [
        ("one event per object", events, events, ""),
        ("five events per object", events, events / 5, ""),
        ("lists of up to 100", events * 16, events / 10, "?batch=100"),
    ];
    if args.iter().any(|arg| arg == "--exclusive") {
        for (what, events, objects, query) in comparisons {
            let ratio = runtime.block_on(exclusive(events, objects, query))?;
            println!("exclusive to plain:    {ratio:.2} with {what}");
        }
        return Ok(());
    }
    let single = runtime.block_on(deliver(events, 10_000, "", Exclusive::None))?;
    println!(
        "one event per request: {:.0} events/s, {:.0} requests/s",
        single.0, single.1
    );
    let lists = runtime.block_on(deliver(events * 4, 1_000, "?batch=100", Exclusive::None))?;
    println!(
        "lists of up to 100:    {:.0} events/s, {:.0} requests/s",
        lists.0, lists.1
    );
    let emits = runtime.block_on(emit(events))?;
    println!("single emits:          {emits:.0} events/s over {SLOTS} connections");
    let (file, lines) = runtime.block_on(emit_lines(events * 10))?;
    println!(
        "lines:                 {lines:.0} events/s, emit --from {file:.0}: ratio {:.2}",
        lines / file
    );
    let (before, after) = runtime.block_on(idle())?;
    let each = (after - before) as f64 / IDLE as f64;
    println!(
        "{IDLE} idle connections: {} MB, {each:.0} KiB each",
        after / 1024
    );
    anyhow::ensure!(
        single.0.min(emits) >= PER_SECOND_MIN,
        "less than {PER_SECOND_MIN} events/s"
    );
    anyhow::ensure!(lines >= file / 2.0, "less than half of emit --from");
    Ok(())
}

/// A running `seriatim serve`. Its process is killed when this value is dropped.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(server: &support::Server) -> anyhow::Result<Self> {
        let mut child = Command::new(crate::support::program())
            .args(["--redis", &server.url(), "serve", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let log = child
            .stderr
            .take()
            .ok_or_else(|| anyhow::anyhow!("no log"))?;
        let mut this = Self {
            child,
            address: String::new(),
        };
        for line in BufReader::new(log).lines() {
            if let Some((_, address)) = line?.split_once("address=http://") {
                this.address = address.trim().to_owned();
                break;
            }
        }
        anyhow::ensure!(!this.address.is_empty(), "seriatim serve has not started");
        Ok(this)
    }

    /// Returns the resident memory of `seriatim serve`, in KiB.
    fn resident(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let size = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        });
        size.ok_or_else(|| anyhow::anyhow!("no size"))
    }
}

/// Sends emits to `seriatim serve`, one per request. Returns the emits per second.
async fn emit(events: usize) -> anyhow::Result<f64> {
    let server = support::Server::start(&[]);
    let serving = Serving::start(&server)?;
    let body = format!("{{\"type\":\"moved\",\"text\":\"{}\"}}", "x".repeat(160));
    let mut clients = JoinSet::new();
    let began = Instant::now();
    for client in 0..SLOTS {
        let (address, body, count) = (serving.address.clone(), body.clone(), events / SLOTS);
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut answer = vec![0; 4096];
            for number in 0..count {
                let object = (client * count + number) % 10_000;
                let request = format!(
                    "POST /v1/objects/work:{object}/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(request.as_bytes()).await?;
                // An answer is short, so one read gets all of it.
                let read = stream.read(&mut answer).await?;
                anyhow::ensure!(answer[..read].starts_with(b"HTTP/1.1 202"), "{}", String::from_utf8_lossy(&answer[..read]));
            }
            Ok(count)
        });
    }
    let mut emitted = 0;
    while let Some(done) = clients.join_next().await {
        emitted += done??;
    }
    Ok(emitted as f64 / began.elapsed().as_secs_f64())
}

/// Emits the lines of a file with `seriatim emit --from`, and over HTTP. Returns the events per
/// second of both ways, in this order.
async fn emit_lines(events: usize) -> anyhow::Result<(f64, f64)> {
    let file = tempfile::NamedTempFile::new()?;
    let mut lines = Vec::new();
    for n in 0..events {
        writeln!(
            lines,
            "{{\"object\":\"work:{}\",\"event\":{{\"type\":\"moved\",\"n\":{n},\"text\":\"{}\"}}}}",
            n % 1000,
            "x".repeat(150)
        )?;
    }
    std::fs::write(file.path(), &lines)?;
    let (mut by_file, mut by_http) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = support::Server::start(&[]);
        let began = Instant::now();
        let mut emit = Command::new(crate::support::program());
        emit.args(["--redis", &server.url(), "--log", "warn", "emit", "--from"])
            .arg(file.path());
        anyhow::ensure!(
            emit.stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?
                .success(),
            "emit --from failed"
        );
        by_file.push(events as f64 / began.elapsed().as_secs_f64());
        drop(server);
        let server = support::Server::start(&[]);
        let serving = Serving::start(&server)?;
        let began = Instant::now();
        let stream = TcpStream::connect(&serving.address).await?;
        let (mut reader, mut writer) = stream.into_split();
        let head = format!(
            "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            lines.len()
        );
        let body = lines.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(head.as_bytes()).await?;
            writer.write_all(&body).await?;
            Ok::<_, std::io::Error>(writer)
        });
        let mut answers = Vec::new();
        reader.read_to_end(&mut answers).await?;
        let _ = writing.await??;
        let accepted = answers
            .windows(12)
            .filter(|part| part == b"\"status\":202")
            .count();
        anyhow::ensure!(
            accepted == events,
            "{accepted} of {events} lines are accepted"
        );
        by_http.push(events as f64 / began.elapsed().as_secs_f64());
    }
    let [by_file, by_http] = [by_file, by_http].map(|rates| median(&rates).unwrap_or(f64::NAN));
    Ok((by_file, by_http))
}

/// Opens idle connections to `seriatim serve`. Returns its memory before and after that, in KiB.
async fn idle() -> anyhow::Result<(u64, u64)> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised)?;
    let server = support::Server::start(&[]);
    let serving = Serving::start(&server)?;
    let request = b"GET /v1/rules HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let before = serving.resident()?;
    let (mut kept, mut answer) = (Vec::with_capacity(IDLE), vec![0; 4096]);
    for number in 0..IDLE {
        let mut stream = TcpStream::connect(&serving.address).await?;
        // Every second connection sends one request before it is idle.
        if number % 2 == 0 {
            stream.write_all(request).await?;
            anyhow::ensure!(
                stream.read(&mut answer).await? > 0,
                "connection {number} is closed"
            );
        }
        kept.push(stream);
    }
    Ok((before, serving.resident()?))
}

/// Returns the events per second of an exclusive sink, divided by those of a plain one.
async fn exclusive(events: usize, objects: usize, query: &str) -> anyhow::Result<f64> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (rates, exclusive) in rates.iter_mut().zip([Exclusive::None, Exclusive::All]) {
            rates.push(deliver(events, objects, query, exclusive).await?.0);
        }
    }
    let [plain, exclusive] = rates.map(|rates| median(&rates).unwrap_or(f64::NAN));
    Ok(exclusive / plain)
}

/// Emits all events first, then measures their delivery. Returns the events and the requests per
/// second.
async fn deliver(
    events: usize,
    objects: usize,
    query: &str,
    exclusive: Exclusive,
) -> anyhow::Result<(f64, f64)> {
    let server = support::Server::start(&[]);
    let emitter = Emitter::connect(server.url()).await?;
    let event = format!("{{\"type\":\"moved\",\"text\":\"{}\"}}", "x".repeat(160));
    emitter
        .emit_many((0..events).map(|n| (format!("work:{}", n % objects), Json::new(event.clone()))))
        .await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/{query}", listener.local_addr()?);
    let requests = Arc::new(AtomicUsize::new(0));
    let receiver = tokio::spawn(receive(listener, requests.clone()));
    let mut config = WorkerConfig::default();
    config.name = "http".to_owned();
    config.concurrency = SLOTS;
    let mut options = Options::default();
    options.exclusive = exclusive;
    let sink = Http::to(url.parse()?).options(options).open()?;
    let worker = Worker::builder(server.url())
        .config(config)
        .sink(sink)
        .build()?;
    let (shutdown, began) = (Shutdown::new(), Instant::now());
    let working = tokio::spawn(worker.run(shutdown.clone()));
    let mut conn = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    loop {
        let left: (usize, usize) = redis::pipe()
            .cmd("LLEN")
            .arg("objects.with.events")
            .cmd("DBSIZE")
            .query_async(&mut conn)
            .await?;
        // Everything is delivered if almost only idle objects are left. An idle object has one key.
        // The worker process has two keys, and there are two counters.
        if left.0 == 0 && left.1 <= objects + 8 {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    shutdown.stop();
    let delivered = working.await??.delivered;
    receiver.abort();
    anyhow::ensure!(
        delivered == events as u64,
        "{delivered} of {events} events are delivered"
    );
    Ok((
        events as f64 / seconds,
        requests.load(Ordering::Relaxed) as f64 / seconds,
    ))
}

async fn receive(listener: TcpListener, requests: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream, requests.clone()));
    }
}

/// Answers the requests of a connection.
async fn answer(mut stream: TcpStream, requests: Arc<AtomicUsize>) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut bytes = Vec::with_capacity(64 * 1024);
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            stream
                .read_buf(&mut bytes)
                .await
                .ok()
                .filter(|read| *read > 0)?;
        };
        let text = std::str::from_utf8(&bytes[..head]).ok()?;
        let length: usize = text
            .split("content-length: ")
            .nth(1)?
            .split("\r\n")
            .next()?
            .parse()
            .ok()?;
        while bytes.len() < head + length {
            stream
                .read_buf(&mut bytes)
                .await
                .ok()
                .filter(|read| *read > 0)?;
        }
        bytes.drain(..head + length);
        requests.fetch_add(1, Ordering::Relaxed);
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .ok()?;
    }
}
