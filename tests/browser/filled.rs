//! A Redis with objects in every state. Names, events, errors, reasons, keys and worker names are
//! hostile: HTML, quotes, a direction mark, paths, foreign URLs, very long names, and names that
//! only other programs can push.

use std::num::NonZeroU64;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use seriatim::async_trait;
use seriatim::control::cron::CronDraft;
use seriatim::control::dead::Settle;
use seriatim::control::rules::{Kind, Selector};
use seriatim::control::{By, Control};
use seriatim::cron::CronSchedule;
use seriatim::emit::Emitter;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use seriatim::worker::EventLog;
use tracing_subscriber::filter::LevelFilter;

use crate::support::console::PATIENCE;
use crate::support::running::{Running, start};
use crate::support::{Redis, control, until};

/// Texts that a page must show as they are, or escaped.
pub(crate) const HOSTILE: [&str; 7] = [
    "<script>alert(1)</script>",
    r#""'><img src=x onerror=alert(1)>&lt;"#,
    "user\u{202e}gpj.exe\u{2066}",
    "../../x?name=a&b=c#d",
    "//foreign.invalid/x.png",
    "</title></script><base href=//foreign.invalid/>",
    "javascript:alert(1)",
];

/// Names that only other programs can push. Workers hold these objects for an operator. A further
/// such name has 1 MiB.
const UNFIT: [&[u8]; 4] = [
    b"bad\0name",
    b"bad\xff\xfe<b>",
    b"\x1b[31mred\nline",
    b"bad:\xc2\x85<script>alert(1)</script>",
];

/// Number of objects that wait for a retry, besides those with hostile names: more than a page has.
const MANY: usize = 60;

/// A filled Redis, and the workers that keep it busy.
pub(crate) struct Filled {
    pub(crate) redis: Redis,
    /// A busy worker, and one whose sink is down.
    _running: [Running; 2],
}

/// A sink that treats an event as its `type` says. `text` of the event is the error.
#[derive(Clone)]
struct ByType {
    name: &'static str,
    /// Whether no event can be delivered.
    is_down: bool,
}

#[async_trait]
impl Sink for ByType {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        for (at, event) in batch.events().enumerate() {
            let event: Value = serde_json::from_slice(&event.payload).unwrap_or_default();
            let error = event["text"].as_str().unwrap_or_default();
            let stop = match event["type"].as_str().unwrap_or_default() {
                _ if self.is_down => Stop::unavailable(HOSTILE[0]),
                "retry" | "operator" | "errors" => Stop::transient(error),
                "dead" => Stop::rejected(error),
                "hang" => std::future::pending().await,
                _ => continue,
            };
            return Delivered::stopped(at, stop);
        }
        Delivered::all()
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

impl Filled {
    /// Fills a Redis of its own, and waits until each object has its state.
    pub(crate) async fn start() -> Self {
        // The workers would log the name of 1 MiB, and bury the report of a failed test.
        let _ = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::OFF)
            .try_init();
        let redis = Redis::own(&[]);
        let conn = redis.connect().await;
        let operator = control(&conn, redis.keys());
        let emitter = Emitter::new(conn.clone()).with_keys(redis.keys().clone());
        rules(&operator).await;

        // A worker whose sink is down delivers nothing.
        let down = start(
            &redis,
            "down",
            &ByType {
                name: HOSTILE[1],
                is_down: true,
            },
            |_| (),
        );
        emit(&emitter, "down:1", "down", HOSTILE[0]).await;
        until("the sink is down", PATIENCE, async || {
            let status: Option<String> = redis::cmd("GET")
                .arg(redis.keys().worker_status("down"))
                .query_async(&mut conn.clone())
                .await
                .expect("GET");
            status
                .filter(|status| status.contains("<script>"))
                .map(drop)
        })
        .await;
        let busy = start(
            &redis,
            "busy",
            &ByType {
                name: HOSTILE[0],
                is_down: false,
            },
            |config| {
                config.concurrency = 64;
                config.batch = 3;
                config.event_log = Some(EventLog::default());
                config.retry = "fixed:1h,jitter=0,attempts=10,then=dead-letter"
                    .parse()
                    .expect("a policy");
                for (kind, policy) in [
                    ("operator", "fixed:1ms,attempts=3,then=hold"),
                    ("errors", "fixed:1ms,attempts=1,then=complete-with-errors"),
                ] {
                    config
                        .retry_types
                        .insert(kind.to_owned(), policy.parse().expect("a policy"));
                }
            },
        );

        emit_all(&emitter).await;
        schedules_and_cron(&emitter, &operator).await;
        by_hand(&redis, &mut conn.clone()).await;
        until_settled(&operator).await;
        act(&operator).await;
        let filled = Self {
            redis,
            _running: [busy, down],
        };
        filled.assert_has_every_state(&operator).await;
        filled
    }

    /// Returns names of objects in every state, one of them for each hostile text, and one without
    /// any event.
    pub(crate) fn objects() -> Vec<Vec<u8>> {
        let states = [
            "retry", "operator", "dead", "errors", "done", "paused", "later",
        ];
        let mut names: Vec<_> = states
            .iter()
            .zip(HOSTILE)
            .map(|(state, text)| format!("{state}:{text}").into_bytes())
            .collect();
        names.extend(
            [
                "hang:1",
                "blocked:1",
                "wide:queue",
                "raw:1",
                "absent:1",
                &long(),
            ]
            .map(|name| name.as_bytes().to_vec()),
        );
        names.extend(UNFIT.map(<[u8]>::to_vec));
        names
    }

    /// Fails if a state that the pages show is not there.
    async fn assert_has_every_state(&self, operator: &Control) {
        let stats = operator.stats().await.expect("the counts");
        assert!(
            stats.held.until_released > 0 && stats.held.waiting > 50 && stats.paused > 0,
            "{:?}",
            stats.held
        );
        assert!(
            stats.events_in_flight > 0 && stats.workers.len() >= 3,
            "{:?}",
            stats.workers
        );
        assert!(!stats.projections.is_empty() && stats.unreadable.is_empty());
        for key in [
            self.redis.keys().event_log(),
            self.redis.keys().operator_actions(),
            self.redis.keys().events_cron(),
            self.redis.keys().events_scheduled(),
            self.redis.keys().event_rules(),
            self.redis.keys().event_limits(),
        ] {
            let there: bool = redis::cmd("EXISTS")
                .arg(&key)
                .query_async(&mut self.redis.connect().await)
                .await
                .expect("EXISTS");
            assert!(there, "{key}");
        }
    }
}

/// Returns the longest name that an object may have, without a place to break it.
fn long() -> String {
    "x".repeat(512)
}

fn by(why: &str) -> By<'_> {
    By {
        who: HOSTILE[0],
        why,
    }
}

async fn emit(emitter: &Emitter, object: &str, kind: &str, text: &str) {
    let event = json!({ "type": kind, "text": text, text: [text, { "card": "4111" }] });
    emitter
        .emit(object, &event)
        .await
        .unwrap_or_else(|error| panic!("{object}: {error}"));
}

/// Sets rules, before any event is there.
async fn rules(operator: &Control) {
    let prefix = |text: &str| text.parse::<Selector>().expect("a selector");
    let hour = Some(Duration::from_secs(3600));
    operator
        .set_rule(by(HOSTILE[1]), Kind::Pause, &prefix("paused:*"), hour)
        .await
        .expect("set");
    operator
        .set_rule(by(HOSTILE[2]), Kind::Block, &prefix("blocked:*"), None)
        .await
        .expect("set");
    for text in HOSTILE {
        let exact = Selector::exact(&format!("paused:{text}")).expect("a selector");
        operator
            .set_rule(by(text), Kind::Block, &exact, None)
            .await
            .expect("set");
    }
    operator
        .set_limit(
            by(HOSTILE[3]),
            &prefix("*"),
            NonZeroU64::new(1_000_000),
            None,
        )
        .await
        .expect("set");
}

async fn emit_all(emitter: &Emitter) {
    for text in HOSTILE {
        for kind in [
            "retry", "operator", "dead", "errors", "done", "paused", "blocked",
        ] {
            emit(emitter, &format!("{kind}:{text}"), kind, text).await;
        }
    }
    for number in 0..MANY {
        emit(
            emitter,
            &format!("many:{number}"),
            "retry",
            "connection refused",
        )
        .await;
    }
    let wide = "e".repeat(5000);
    for kind in ["retry", "operator", "dead", "errors", "done"] {
        emit(emitter, "wide:queue", kind, &wide).await;
    }
    emit(emitter, &long(), "operator", &wide).await;
    emit(emitter, "blocked:1", "done", "").await;
    // A delivery that never ends, and the queue behind it.
    for _ in 0..100 {
        emit(emitter, "hang:1", "hang", HOSTILE[0]).await;
    }
}

async fn schedules_and_cron(emitter: &Emitter, operator: &Control) {
    for (number, text) in HOSTILE.into_iter().enumerate() {
        let object = format!("later:{text}");
        let event = json!({ "type": "done", "text": text });
        let time = Duration::from_secs(3600 * (number as u64 + 1));
        emitter
            .schedule(&object, &event)
            .after(time)
            .key(text)
            .send()
            .await
            .expect("scheduled");
        let schedule = CronSchedule::new("0 3 * * *", Some("Europe/Berlin")).expect("a schedule");
        let job = CronDraft::new(text, schedule, &object, &event);
        operator.set_cron(by(text), job).await.expect("set");
    }
    operator
        .pause_cron(by("a look"), HOSTILE[0])
        .await
        .expect("paused");
    operator
        .run_cron(by(HOSTILE[4]), HOSTILE[1])
        .await
        .expect("run");
}

/// Pushes names and values that the library refuses, and worker names that no worker has.
async fn by_hand(redis: &Redis, conn: &mut MultiplexedConnection) {
    let keys = redis.keys();
    let prefix = keys.prefix().as_bytes();
    let huge = vec![b'h'; 1024 * 1024];
    for name in UNFIT.into_iter().chain([&huge[..]]) {
        let mut multi = redis::pipe();
        multi.atomic();
        for event in [&b"{\"type\":\"done\"}"[..], b"</script>\xff\0"] {
            multi
                .cmd("LPUSH")
                .arg([prefix, name, b":events"].concat())
                .arg(event)
                .ignore();
        }
        multi
            .cmd("LPUSH")
            .arg(keys.objects_with_events())
            .arg(name)
            .ignore();
        multi.query_async::<()>(conn).await.expect("pushed");
    }
    // Events that are not JSON become dead letters.
    let mut multi = redis::pipe();
    for event in [&b"<script>alert(1)</script>"[..], b"\xff\xfe\0", &huge] {
        multi
            .cmd("LPUSH")
            .arg(keys.events("raw:1"))
            .arg(event)
            .ignore();
    }
    multi
        .cmd("LPUSH")
        .arg(keys.objects_with_events())
        .arg("raw:1")
        .ignore();
    for text in HOSTILE {
        multi
            .cmd("HSET")
            .arg(keys.event_workers())
            .arg(text)
            .arg("2 token 1767225600000")
            .ignore();
        multi
            .cmd("ZADD")
            .arg(keys.event_workers_departed())
            .arg(9_000_000_000_000_u64)
            .arg(text)
            .ignore();
        multi
            .cmd("HSET")
            .arg(keys.event_projections())
            .arg(text)
            .arg("0 0 0-0")
            .ignore();
    }
    multi.query_async::<()>(conn).await.expect("pushed");
}

/// Waits until all objects have their states.
async fn until_settled(operator: &Control) {
    // The unfit names, and both very long names, wait for an operator, too.
    let operator_min = (HOSTILE.len() + UNFIT.len()) as u64 + 2;
    until("each object has its state", PATIENCE, async || {
        let stats = operator.stats().await.expect("the counts");
        let held = stats.held.until_released >= operator_min
            && stats.held.total >= operator_min + (MANY + HOSTILE.len()) as u64;
        let done = stats.paused > 2 * HOSTILE.len() as u64
            && stats.dead_letters >= HOSTILE.len() as u64 + 3
            && stats.markers == 0;
        (held && done).then_some(())
    })
    .await;
}

/// Performs some actions, so that their records are there.
async fn act(operator: &Control) {
    let dead = operator
        .dead_letters(None, 10)
        .await
        .expect("dead letters")
        .letters;
    let ids: Vec<_> = dead.iter().map(|letter| letter.dead_id.clone()).collect();
    operator
        .settle(by(HOSTILE[0]), Settle::Drop, &ids[..1])
        .await
        .expect("dropped");
    operator
        .settle(by(HOSTILE[1]), Settle::Retry, &ids[1..2])
        .await
        .expect("retried");
    operator
        .release(by(HOSTILE[5]), "many:0")
        .await
        .expect("released");
    operator
        .skip(by(HOSTILE[6]), "many:1", None)
        .await
        .expect("skipped");
    for number in 2..42 {
        operator
            .release(by("the upstream is back"), format!("many:{number}"))
            .await
            .expect("released");
    }
}
