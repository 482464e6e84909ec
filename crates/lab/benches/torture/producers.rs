//! The producers. Each producer emits with the library, and makes several emits at the same time
//! over one connection. It records its calls and their replies in the history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};
use tokio::task::JoinSet;

use crate::history::History;
use crate::random::{Draw as _, Random};

const PRODUCERS: usize = 3;
/// Number of concurrent emits of one producer.
const AT_ONCE: usize = 4;
const OBJECTS: u64 = 150;
/// Number of different prefixes of object names.
const PREFIXES: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn object(number: u64) -> String {
    format!("{}{number}", prefix(number))
}

/// Returns the prefix of an object's name, with its colon.
pub(crate) fn prefix(number: u64) -> String {
    format!("object-{}:", number % PREFIXES)
}

/// The state shared by all producers.
pub(crate) struct Producers {
    pub(crate) url: String,
    pub(crate) history: Arc<History>,
    pub(crate) seed: u64,
    pub(crate) stop: AtomicBool,
    /// Counter that gives each emit a unique name.
    emits: AtomicU64,
    /// Number of replicas that an emit waits for; `None` in a run without replicas.
    wait: Option<u32>,
}

impl Producers {
    pub(crate) fn new(url: String, history: Arc<History>, seed: u64) -> Self {
        Self {
            url,
            history,
            seed,
            stop: AtomicBool::new(false),
            emits: AtomicU64::new(0),
            wait: None,
        }
    }

    /// Lets each emit wait for replicas. In such a run every producer uses the library. A producer
    /// without the library would have to ask the Sentinels itself.
    pub(crate) fn waiting_for(mut self, replicas: u32) -> Self {
        self.wait = Some(replicas);
        self
    }

    /// Runs all producers until `stop` is set.
    pub(crate) async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        for producer in 0..PRODUCERS {
            let builder = Emitter::builder(&self.url)
                .connection_timeout(TIMEOUT)
                .response_timeout(TIMEOUT);
            let emitter = builder
                .wait(self.wait.unwrap_or(0), TIMEOUT)
                .connect()
                .await?;
            for lane in 0..AT_ONCE {
                let random = Random::with_seed(
                    self.seed
                        .wrapping_add((producer * AT_ONCE + lane) as u64 + 1),
                );
                tasks.spawn(Arc::clone(&self).lane(emitter.clone(), random));
            }
        }
        if self.wait.is_none() {
            tasks.spawn(Arc::clone(&self).any_language(Random::with_seed(self.seed)));
        }
        while let Some(done) = tasks.join_next().await {
            done?;
        }
        Ok(())
    }

    /// Draws an object at random. A few objects are drawn often, and many objects are drawn rarely.
    fn object(random: &mut Random) -> String {
        let limit = random.u64(1..=OBJECTS);
        object(random.below(limit))
    }

    fn names(&self, events: u64) -> (String, Vec<String>) {
        let emit = self.emits.fetch_add(1, Ordering::Relaxed).to_string();
        let events = (0..events).map(|sub| format!("{emit}.{sub}")).collect();
        (emit, events)
    }

    async fn lane(self: Arc<Self>, emitter: Emitter, mut random: Random) {
        while !self.stop.load(Ordering::Relaxed) {
            // Mostly this emits one event at a time. Now and then it emits a burst, so that batches
            // have several events.
            let burst = if random.chance(10) { 20 } else { 1 };
            let one = random.chance(50).then(|| Self::object(&mut random));
            for _ in 0..burst {
                let object = one.clone().unwrap_or_else(|| Self::object(&mut random));
                let done = match random.chance(20)
                    && !self.history.is_clock_wrong.load(Ordering::SeqCst)
                {
                    true => self.schedule(&emitter, &object, &mut random).await,
                    false => self.emit(&emitter, &object, &mut random).await,
                };
                if !done {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            tokio::time::sleep(random.ms(20, 120)).await;
        }
    }

    /// Emits once. Returns whether the emit succeeded.
    async fn emit(&self, emitter: &Emitter, object: &str, random: &mut Random) -> bool {
        let (name, events) = self.names(if random.chance(20) {
            random.u64(2..=4)
        } else {
            1
        });
        let mut payloads = events.iter().map(|event| {
            let padding = if random.chance(1) {
                random.below(40_000)
            } else {
                random.below(100)
            };
            Json::new(format!(
                "{{\"name\":\"{event}\",\"padding\":\"{}\"}}",
                "x".repeat(padding as usize)
            ))
        });
        let main = payloads.next().unwrap_or_else(|| Json::new("null"));
        let mut emit = emitter.event(object, main);
        for payload in payloads {
            emit = emit.sub(payload);
        }
        if random.chance(10) {
            emit = emit.data(Json::new("{}"));
        }
        self.history.invoke(&name, object, &events);
        // About one emit in fifty is cancelled within a few milliseconds: its future is dropped.
        let patience = if random.chance(2) {
            random.ms(0, 3)
        } else {
            Duration::from_secs(60)
        };
        let answer = tokio::time::timeout(patience, emit.send()).await;
        let op = match &answer {
            Ok(Ok(_)) => "ok",
            Ok(Err(EmitError::Unknown { .. } | EmitError::Unreplicated { .. })) | Err(_) => {
                "unknown"
            }
            Ok(Err(_)) => "failed",
        };
        self.history.done(op, &name);
        op == "ok"
    }

    /// Schedules an event. Returns whether it was scheduled.
    async fn schedule(&self, emitter: &Emitter, object: &str, random: &mut Random) -> bool {
        let (name, events) = self.names(1);
        let after = if random.chance(30) {
            Duration::ZERO
        } else {
            random.ms(0, 3000)
        };
        let event = Json::new(format!("{{\"name\":\"{}\"}}", events[0]));
        self.history.invoke_later(&name, object, &events, after);
        let mut schedule = emitter.schedule(object, event).after(after);
        if random.chance(50) {
            // The event of a schedule with a key waits in the object's queue as a reference.
            schedule = schedule.key(format!("key of {name}"));
        }
        let answer = schedule.send().await;
        match &answer {
            Ok(scheduled) => self.history.scheduled(&name, scheduled.due_ms),
            Err(error) => self.history.done(
                if error.is_unknown() {
                    "unknown"
                } else {
                    "failed"
                },
                &name,
            ),
        }
        answer.is_ok()
    }

    /// Runs a producer that does not use the library, but sends a plain MULTI. Now and then it
    /// pushes a text that is not JSON. Such an event becomes a dead letter.
    async fn any_language(self: Arc<Self>, mut random: Random) {
        let mut conn: Option<MultiplexedConnection> = None;
        while !self.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(random.ms(50, 250)).await;
            let Some(open) = &mut conn else {
                conn = self.connect().await;
                continue;
            };
            let object = Self::object(&mut random);
            let (name, events) = self.names(1);
            let event = if random.chance(30) {
                format!("!{}", events[0])
            } else {
                format!("{{\"name\":\"{}\"}}", events[0])
            };
            let mut pipe = redis::pipe();
            pipe.atomic()
                .lpush(format!("{object}:events"), event)
                .ignore()
                .lpush("objects.with.events", &object)
                .ignore();
            self.history.invoke(&name, &object, &events);
            let answer: Result<(), _> = pipe.query_async(open).await;
            // Every error counts as an unknown outcome. The exact error does not matter here.
            self.history
                .done(if answer.is_ok() { "ok" } else { "unknown" }, &name);
            if answer.is_err() {
                conn = None;
            }
        }
    }

    async fn connect(&self) -> Option<MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        redis::Client::open(self.url.as_str())
            .ok()?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .ok()
    }
}
