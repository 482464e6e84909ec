//! Counts the instructions that Redis executes per event in calls of `advance`, in both ways: as a
//! function and as a script. Counts do not depend on the load of the machine, so small changes of
//! the Lua text are visible. It is for developers who change this text, and a gate.
//!
//!     cargo bench --profile dev --all-features --bench instructions [-- low|distinct|zipf|one|limits|groups]
//!
//! The program needs `valgrind`. Each figure is the difference of two runs of a server under
//! callgrind: one with the calls, one without. Both runs emit the same events, make the same pops,
//! and make one call before. So a figure has the parsing of the call, the script and the reply, but
//! neither emits nor pops nor the load of the script.
//!
//! The columns are the figure, its reference, their ratio and the limit of the ratio. The exit code
//! is 1 if a ratio is above its limit. Two runs differ by at most 0.5 %, and by 1.5 % for `one` on a
//! busy machine.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, Attach, BatchReply, BatchResult, Bounds, ClaimFirst, Report, Scripts,
    Suspects, Way, Ways,
};

const NAME: &str = "w";
const TOKEN: &str = "token-1";
const PAYLOAD_BYTES: usize = 200;
/// The server whose instructions the references count.
const SERVER: &str = "redis-server 7.0.15 (Debian, x86_64)";
/// Longest wait for a server under callgrind, which starts slowly.
const PATIENCE: Duration = Duration::from_secs(120);

/// A workload, with its references.
struct Case {
    name: &'static str,
    what: &'static str,
    slots: usize,
    /// Number of slots that one call names.
    per_call: usize,
    /// Number of objects; object 1 gets most events if `zipf`.
    objects: usize,
    zipf: bool,
    events: usize,
    /// Whether each event is emitted and popped alone, as at low load.
    alone: bool,
    /// Number of groups of objects. Each has a share with a limit of 5 objects in hand, unless `turns`.
    groups: usize,
    /// Whether the groups take turns.
    turns: bool,
    /// Instructions per event of the script (`EVALSHA`) before it had a library.
    reference: f64,
    /// Limits of the ratio to the reference: as a function, as a script.
    limits: [f64; 2],
}

const CASES: [Case; 6] = [
    Case {
        name: "low",
        what: "one slot, one event: claim and commit",
        slots: 1,
        per_call: 1,
        objects: 1,
        zipf: false,
        events: 400,
        alone: true,
        groups: 0,
        turns: false,
        reference: 409_459.0,
        limits: [0.89, 1.72],
    },
    Case {
        name: "distinct",
        what: "128 slots, each event its own object",
        slots: 128,
        per_call: 128,
        objects: 2560,
        zipf: false,
        events: 2560,
        alone: false,
        groups: 0,
        turns: false,
        reference: 93_728.0,
        limits: [1.03, 1.19],
    },
    Case {
        name: "zipf",
        what: "256 slots, 128 per call, Zipf over 1,000 objects",
        slots: 256,
        per_call: 128,
        objects: 1000,
        zipf: true,
        events: 6000,
        alone: false,
        groups: 0,
        turns: false,
        reference: 38_433.0,
        limits: [1.00, 1.10],
    },
    Case {
        name: "one",
        what: "one object",
        slots: 1,
        per_call: 1,
        objects: 1,
        zipf: false,
        events: 20_480,
        alone: false,
        groups: 0,
        turns: false,
        reference: 9_561.0,
        limits: [1.00, 1.09],
    },
    Case {
        name: "limits",
        what: "256 slots, 128 per call, 1,000 groups with a limit, each event its own object",
        slots: 256,
        per_call: 128,
        objects: 6000,
        zipf: false,
        events: 6000,
        alone: false,
        groups: 1000,
        turns: false,
        reference: 283_349.0,
        limits: [0.96, 1.04],
    },
    Case {
        name: "groups",
        what: "256 slots, 128 per call, 1,000 groups that take turns, each event its own object",
        slots: 256,
        per_call: 128,
        objects: 6000,
        zipf: false,
        events: 6000,
        alone: false,
        groups: 1000,
        turns: true,
        reference: 167_549.0,
        limits: [1.03, 1.15],
    },
];

fn main() -> ExitCode {
    let chosen: Vec<_> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    println!("Instructions per event; reference: EVALSHA on {SERVER}");
    println!("here: {}", version());
    let mut is_above = false;
    for case in &CASES {
        if !chosen.is_empty() && !chosen.iter().any(|name| name == case.name) {
            continue;
        }
        println!("\n{} ({})", case.name, case.what);
        for (setting, limit) in [Scripts::Functions, Scripts::Eval]
            .into_iter()
            .zip(case.limits)
        {
            let count = |calls| runtime.block_on(count(case, setting, calls));
            let (with, without) = (count(true), count(false));
            let per_event = (with.saturating_sub(without)) as f64 / case.events as f64;
            let ratio = per_event / case.reference;
            is_above |= ratio > limit;
            println!(
                "  {:<9} {per_event:>9.0}  of {:>9.0}  {ratio:.3}  limit {limit:.2}{}",
                setting.to_string(),
                case.reference,
                if ratio > limit { "  ABOVE" } else { "" }
            );
        }
    }
    ExitCode::from(u8::from(is_above))
}

fn version() -> String {
    let version = Command::new("redis-server").arg("--version").output();
    version.map_or_else(
        |error| format!("redis-server: {error}"),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    )
}

/// Returns the instructions of a server that runs the workload, or only its emits and pops.
async fn count(case: &Case, setting: Scripts, calls: bool) -> u64 {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut server, log) = (start(dir.path()), dir.path().join("log"));
    let conn = connect(dir.path()).await;
    let mut world = World::attach(conn, case, setting).await;
    world.run(calls).await;
    let _: Result<(), _> = redis::cmd("SHUTDOWN")
        .arg("NOSAVE")
        .exec_async(&mut world.conn)
        .await;
    server.wait().expect("the server ends");
    let log = fs::read_to_string(log).expect("the log of callgrind");
    log.lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("callgrind has counted nothing:\n{log}"))
}

fn start(dir: &Path) -> Child {
    // A server that does nothing still runs its periodic work, so it gets as little of it as possible.
    let options = [
        "--port 0 --save '' --appendonly no --hz 1 --dynamic-hz no --activerehashing no",
        "--maxmemory-clients 0 --jemalloc-bg-thread no --latency-tracking no",
    ];
    Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg("--callgrind-out-file=/dev/null")
        .arg(format!("--log-file={}", dir.join("log").display()))
        .args(["redis-server", "--unixsocket"])
        .arg(dir.join("redis"))
        .args(
            options
                .iter()
                .flat_map(|line| line.split(' '))
                .map(|word| word.trim_matches('\'')),
        )
        .current_dir(dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("valgrind starts")
}

async fn connect(dir: &Path) -> MultiplexedConnection {
    let url = format!("unix://{}", dir.join("redis").display());
    let client = redis::Client::open(url).expect("a URL");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let began = Instant::now();
    loop {
        match client
            .get_multiplexed_async_connection_with_config(&config)
            .await
        {
            Ok(conn) => return conn,
            Err(error) if began.elapsed() > PATIENCE => panic!("no server: {error}"),
            Err(_) => sleep(Duration::from_millis(50)),
        }
    }
}

/// A worker process and its slots.
struct World<'a> {
    conn: MultiplexedConnection,
    keys: Keys,
    case: &'a Case,
    ways: Arc<Ways>,
    in_flight: Vec<Option<BatchReply>>,
    delivered: usize,
}

impl<'a> World<'a> {
    /// Attaches the process, and makes one call, which loads the script.
    async fn attach(mut conn: MultiplexedConnection, case: &'a Case, setting: Scripts) -> Self {
        let keys = Keys::new();
        let args = Attach {
            name: NAME,
            token: TOKEN,
            holder: "host 1 1",
            lease: Duration::from_secs(3600),
            slots: case.slots,
            displace: "",
            before: "",
            crashes_max: 5,
            suspects: Suspects::NONE,
        };
        wire::attach(&mut conn, &keys, &args)
            .await
            .expect("attached");
        let mut world = Self {
            conn,
            keys,
            case,
            ways: Arc::new(Ways::new(setting)),
            in_flight: (0..case.slots).map(|_| None).collect(),
            delivered: 0,
        };
        world.emit(&["first".to_owned()]).await;
        while world.delivered == 0 {
            world.call(0..1).await;
        }
        world.delivered = 0;
        world.limit_groups().await;
        let expected = match setting {
            Scripts::Functions => Way::Function,
            _ => Way::Script,
        };
        assert_eq!(world.ways.way(), expected);
        world
    }

    /// Runs the workload; without `calls`, only its emits and pops.
    async fn run(&mut self, calls: bool) {
        if self.case.alone {
            for _ in 0..self.case.events {
                self.emit(&["object".to_owned()]).await;
                self.pop().await;
                if calls {
                    self.call(0..1).await;
                    self.call(0..1).await;
                }
            }
        } else {
            let objects: Vec<_> = (0..self.case.events).map(|n| self.object(n)).collect();
            for objects in objects.chunks(1000) {
                self.emit(objects).await;
            }
            let mut next = 0;
            while calls && self.delivered < self.case.events {
                let end = (next + self.case.per_call).min(self.case.slots);
                self.call(next..end).await;
                next = end % self.case.slots;
            }
        }
        assert!(
            !calls || self.delivered == self.case.events,
            "{}",
            self.delivered
        );
    }

    /// Returns the object of the n-th event. With Zipf, object k gets a share of about 1/k.
    fn object(&self, n: usize) -> String {
        let objects = self.case.objects;
        let number = if self.case.zipf {
            // The inverse of the sum of 1/k, at evenly spread places in a fixed, mixed order.
            let place = (n * 7919 % self.case.events) as f64 / self.case.events as f64;
            ((objects as f64).powf(place) as usize).clamp(1, objects)
        } else {
            n % objects
        };
        match self.case.groups {
            0 => format!("work:{number}"),
            groups => format!("work{}:{number}", number % groups),
        }
    }

    /// Sets a share for each group, as the command `share set` does.
    async fn limit_groups(&mut self) {
        if self.case.groups == 0 || self.case.turns {
            return;
        }
        let mut pipe = redis::pipe();
        for group in 0..self.case.groups {
            let share = "- - 5 - - 1700000000000 0  ";
            pipe.hset(self.keys.event_shares(), format!("work{group}:*"), share);
        }
        pipe.set(self.keys.event_shares_summary(), "2 1 1700000000000");
        pipe.exec_async(&mut self.conn).await.expect("set");
    }

    /// Emits one event for each of these objects, as `emit` does without limits.
    async fn emit(&mut self, objects: &[String]) {
        let payload = format!(r#"{{"text":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - 11));
        let mut pipe = redis::pipe();
        for object in objects {
            pipe.lpush(self.keys.events(object), &payload).ignore();
            pipe.lpush(self.keys.objects_with_events(), object).ignore();
        }
        pipe.exec_async(&mut self.conn).await.expect("emitted");
    }

    /// Moves a marker into the list of the first slot, as an idle worker does.
    async fn pop(&mut self) {
        let mut pop = redis::cmd("BLMOVE");
        pop.arg(self.keys.objects_with_events())
            .arg(self.keys.worker_object(&format!("{NAME}.0")))
            .arg(&["RIGHT", "LEFT", "1"]);
        pop.exec_async(&mut self.conn).await.expect("popped");
    }

    /// Commits the batches of these slots and claims for them.
    async fn call(&mut self, slots: std::ops::Range<usize>) {
        let bounds = Bounds {
            batch: 256,
            batch_bytes: 1 << 20,
            reply_bytes: 2 << 20,
            claims: slots.len(),
            markers: 1024,
            forget_after: None,
            group_depth: usize::from(self.case.turns),
            suspects: Suspects::NONE,
        };
        let from = ClaimFirst::Markers;
        let mut call = Advance::beyond(&self.keys, NAME, TOKEN, bounds, from, 0, &self.ways);
        for slot in slots {
            let Some(batch) = self.in_flight[slot].take() else {
                call.free(slot);
                continue;
            };
            self.delivered += batch.events.len();
            let report = Report {
                object: batch.object,
                tag: batch.tag,
                count: batch.events.len(),
                last: Some(batch.tag.first + batch.events.len() as u64 - 1),
                then: BatchResult::Done,
            };
            call.report(slot, &report);
        }
        let reply = wire::advance(&mut self.conn, &call).await.expect("a reply");
        let Advanced::Ok { batches, .. } = reply else {
            panic!("{reply:?}")
        };
        for batch in batches {
            let slot = batch.slot;
            self.in_flight[slot] = Some(batch);
        }
    }
}
