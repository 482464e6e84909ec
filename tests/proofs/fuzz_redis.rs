//! A real worker meets names, payloads and keys that the library never leaves in Redis. It does not
//! panic, loses no event, and other objects continue.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use seriatim::async_trait;
use seriatim::emit::{EmitError, Emitter};
use seriatim::event::{EVENT_BYTES_MAX, Json, ObjectName};
use seriatim::keys::{Keys, OBJECT_KINDS, SHARED_KINDS, WORKER_KINDS, is_of_process, type_of};
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Shutdown, Stopped, Worker, WorkerError};
use tokio::task::JoinHandle;

use crate::seeds;
use crate::support::{Redis, until};

const PATIENCE: Duration = Duration::from_secs(30);
/// The time after which a worker has certainly met a key of a wrong type, and waits.
const MEETS: Duration = Duration::from_millis(500);

/// The id, the `prev` and the payload of a delivered event.
type Delivery = (u64, u64, Vec<u8>);

/// All delivered events, by object. This is also the sink.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<BTreeMap<String, Vec<Delivery>>>>);

#[async_trait]
impl Sink for Record {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let mut seen = self.0.lock().expect("no panic");
        for event in batch.events() {
            seen.entry(event.object.to_string()).or_default().push((
                event.id,
                event.prev,
                event.payload.to_vec(),
            ));
        }
        Delivered::all()
    }
}

impl Record {
    /// Returns the number of all delivered events.
    fn count(&self) -> usize {
        let seen = self.0.lock().expect("no panic");
        seen.values().map(Vec::len).sum()
    }

    fn of(&self, object: &str) -> Vec<Vec<u8>> {
        let seen = self.0.lock().expect("no panic");
        let events = seen.get(object).map_or(&[][..], |events| events);
        let mut last = 0;
        for (id, prev, _) in events {
            assert!(
                *prev == last && *id > last,
                "{object:?}: id {id} with prev {prev} after {last}"
            );
            last = *id;
        }
        events
            .iter()
            .map(|(_, _, payload)| payload.clone())
            .collect()
    }
}

/// A worker that runs in the test process.
struct Running {
    shutdown: Shutdown,
    task: JoinHandle<Result<Stopped, WorkerError>>,
}

impl Running {
    fn start(redis: &Redis, keys: &Keys, name: &str, sink: &Record) -> Self {
        let worker = Worker::builder(redis.url())
            .keys(keys.clone())
            .name(name)
            .lease(Duration::from_millis(600))
            .sink(sink.clone());
        let (worker, shutdown) = (worker.build().expect("valid"), Shutdown::new());
        let stop = shutdown.clone();
        Self {
            shutdown,
            task: tokio::spawn(async move { worker.run(stop).await }),
        }
    }

    async fn stop(self) {
        self.shutdown.stop();
        self.task.await.expect("no panic").expect("a graceful stop");
    }
}

async fn run(conn: &mut MultiplexedConnection, command: &str, args: &[&[u8]]) -> Value {
    let mut cmd = cmd(command);
    for arg in args {
        cmd.arg(*arg);
    }
    // An error is allowed, because these tests set keys of wrong types.
    cmd.query_async(conn).await.unwrap_or(Value::Nil)
}

fn key(keys: &Keys, object: &[u8], suffix: &str) -> Vec<u8> {
    [keys.prefix().as_bytes(), object, suffix.as_bytes()].concat()
}

async fn push(conn: &mut MultiplexedConnection, keys: &Keys, object: &[u8], event: &[u8]) {
    run(conn, "LPUSH", &[&key(keys, object, ":events"), event]).await;
    let markers = keys.objects_with_events();
    run(conn, "LPUSH", &[markers.as_bytes(), object]).await;
}

/// Returns the object and the event of each dead letter, oldest first.
async fn dead(conn: &mut MultiplexedConnection, keys: &Keys) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries: Vec<(String, Vec<Vec<u8>>)> = cmd("XRANGE")
        .arg(keys.events_dead())
        .arg("-")
        .arg("+")
        .query_async(conn)
        .await
        .expect("a stream");
    entries
        .into_iter()
        .map(|(_, fields)| (fields[5].clone(), fields[7].clone()))
        .collect()
}

/// A small random generator. It prints its seed.
struct Rng(u64);

impl Rng {
    fn new() -> Self {
        let seed = seeds::number("SERIATIM_SEED").unwrap_or_else(seeds::fresh);
        println!("SERIATIM_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)) >> 16) as usize % end
    }

    fn bytes(&mut self, pieces: &[&[u8]]) -> Vec<u8> {
        (0..=self.below(6))
            .map(|_| {
                if self.below(5) == 0 {
                    vec![self.below(256) as u8]
                } else {
                    pieces[self.below(pieces.len())].to_vec()
                }
            })
            .collect::<Vec<_>>()
            .concat()
    }
}

#[tokio::test]
async fn every_name_gets_its_events() {
    let redis = Redis::own(&[]);
    let mut conn = redis.connect().await;
    let mut rng = Rng::new();
    let mut names: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    names.extend([
        b"a:events".to_vec(),
        b"event.worker:w.0".to_vec(),
        b"objects.held".to_vec(),
        b"a}b{:0}:".to_vec(),
        vec![b'n'; 65_536],
    ]);
    let pieces: [&[u8]; 9] = [
        b"{",
        b"}",
        b":",
        b"\0",
        b"events",
        b"event.worker:",
        b"w.0",
        b"held",
        "é".as_bytes(),
    ];
    names.extend((0..200).map(|_| rng.bytes(&pieces)));
    names.sort();
    names.dedup();
    for keys in [redis.keys().clone(), Keys::new()] {
        // Without a namespace, the test leaves out names that begin with a brace.
        let names: Vec<&Vec<u8>> = names
            .iter()
            .filter(|name| !keys.prefix().is_empty() || name[0] != b'{')
            .collect();
        for n in 0..3 {
            for name in &names {
                push(&mut conn, &keys, name, n.to_string().as_bytes()).await;
            }
            // A marker with an empty name only wakes a worker. Events pushed for this name stay
            // queued.
            push(&mut conn, &keys, b"", b"{}").await;
        }
        let sink = Record::default();
        let worker = Running::start(&redis, &keys, "w", &sink);
        let (sound, odd): (Vec<_>, Vec<_>) = names
            .into_iter()
            .partition(|name| ObjectName::from_bytes(name).is_ok());
        let held_key = keys.objects_held();
        until("every name is done with", PATIENCE, async || {
            assert!(!worker.task.is_finished(), "the worker ended");
            let held: usize = cmd("ZCOUNT")
                .arg(&held_key)
                .arg("inf")
                .arg("inf")
                .query_async(&mut redis.connect().await)
                .await
                .expect("ZCOUNT");
            (held == odd.len() && sink.count() == 3 * sound.len()).then_some(())
        })
        .await;
        worker.stop().await;
        for name in &sound {
            let text = std::str::from_utf8(name).expect("UTF-8");
            assert_eq!(sink.of(text), [b"0", b"1", b"2"], "{text:?}");
            let left = [":events", ":event.worker"].map(|suffix| key(&keys, name, suffix));
            let left = run(&mut conn, "EXISTS", &[&left[0], &left[1]]).await;
            assert_eq!(left, Value::Int(0));
        }
        // The library emits no event for these names, so the worker gives their events to no sink.
        // All of them are held or queued.
        for name in &odd {
            let mut lengths = 0;
            for suffix in [":events.held", ":events"] {
                match run(&mut conn, "LLEN", &[&key(&keys, name, suffix)]).await {
                    Value::Int(length) => lengths += length,
                    _ => panic!("a list"),
                }
            }
            assert_eq!(lengths, 3, "{name:?}");
        }
        assert_eq!(
            run(&mut conn, "LLEN", &[&key(&keys, b"", ":events")]).await,
            Value::Int(3)
        );
    }
}

#[tokio::test]
async fn every_payload_is_delivered_or_dead_as_it_was_pushed() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let mut rng = Rng::new();
    let json: Vec<Vec<u8>> = vec![
        b"{}".to_vec(),
        b"9007199254740991".to_vec(),
        b"9007199254740993".to_vec(),
        b"-9007199254740993.000000000000000001e999".to_vec(),
        b"{\"a\":1,\"a\":2}".to_vec(),
        b" {\"a\":\t1} ".to_vec(),
        [b"[".repeat(50_000), b"]".repeat(50_000)].concat(),
        [b"\"".to_vec(), vec![b'x'; EVENT_BYTES_MAX], b"\"".to_vec()].concat(),
        "\"\u{0}\\u0000\u{2028}\"".replace('\u{0}', "").into_bytes(),
    ];
    let not_json: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"\xff".to_vec(),
        b"1 2".to_vec(),
        b"\0".to_vec(),
        b"nan".to_vec(),
        b"[".repeat(50_000),
        b"\"\n\"".to_vec(),
    ];
    let pieces: [&[u8]; 8] = [b"{", b"}", b"\"a\"", b":", b"1", b",", b"[", b"]"];
    let random: Vec<Vec<u8>> = (0..300).map(|_| rng.bytes(&pieces)).collect();
    let mut pushed: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for (at, payload) in json.iter().chain(&not_json).chain(&random).enumerate() {
        let object = format!("o{}", at % 4);
        push(&mut conn, &keys, object.as_bytes(), payload).await;
        pushed.entry(object).or_default().push(payload.clone());
    }
    let sink = Record::default();
    let worker = Running::start(&redis, &keys, "w", &sink);
    let all = json.len() + not_json.len() + random.len();
    let dead = until("every event is done with", PATIENCE, async || {
        assert!(!worker.task.is_finished(), "the worker ended");
        let dead = dead(&mut redis.connect().await, &keys).await;
        (dead.len() + sink.count() == all).then_some(dead)
    })
    .await;
    worker.stop().await;
    for (object, pushed) in &pushed {
        let delivered = sink.of(object);
        let dead: Vec<&Vec<u8>> = dead
            .iter()
            .filter(|(name, _)| name == object.as_bytes())
            .map(|(_, event)| event)
            .collect();
        // Each pushed event is delivered or is a dead letter. Both lists are in the order of the
        // pushes.
        let (mut next, mut next_dead) = (delivered.iter().peekable(), dead.into_iter().peekable());
        for payload in pushed {
            let is_json = next.peek() == Some(&payload);
            let found = if is_json {
                next.next()
            } else {
                next_dead.next()
            };
            assert_eq!(found, Some(payload), "{object}");
            let text = payload.escape_ascii().to_string();
            assert!(is_json || !json.contains(payload), "{text:?} is JSON");
            assert!(
                !is_json || !not_json.contains(payload),
                "{text:?} is no JSON"
            );
        }
        assert!(
            next.next().is_none() && next_dead.next().is_none(),
            "{object}: more than was pushed"
        );
    }
}

#[tokio::test]
async fn an_event_beyond_the_limit_leaves_nothing_behind() {
    let redis = Redis::own(&[]).empty();
    let emitter = Emitter::connect(redis.url())
        .await
        .expect("Redis answers")
        .with_keys(redis.keys().clone());
    let text = |len: usize| Json::new(format!("\"{}\"", "x".repeat(len - 2)));
    let refused = emitter
        .event("a", text(EVENT_BYTES_MAX))
        .sub(text(EVENT_BYTES_MAX + 1))
        .send()
        .await;
    assert!(matches!(refused, Err(EmitError::Event(_))), "{refused:?}");
    let left: Vec<Vec<u8>> = cmd("KEYS")
        .arg("*")
        .query_async(&mut redis.connect().await)
        .await
        .expect("KEYS");
    assert!(left.is_empty(), "{left:?}");
    emitter
        .event("a", text(EVENT_BYTES_MAX))
        .send()
        .await
        .expect("at the limit");
}

/// Replaces a key by a key of this type.
async fn plant(conn: &mut MultiplexedConnection, kind: &str, key: &[u8]) {
    run(conn, "DEL", &[key]).await;
    match kind {
        "string" => run(conn, "SET", &[key, b"?"]).await,
        "list" => run(conn, "RPUSH", &[key, b"?"]).await,
        "hash" => run(conn, "HSET", &[key, b"?", b"?"]).await,
        "set" => run(conn, "SADD", &[key, b"?"]).await,
        "zset" => run(conn, "ZADD", &[key, b"1", b"?"]).await,
        _ => run(conn, "XADD", &[key, b"*", b"?", b"?"]).await,
    };
}

const TYPES: [&str; 6] = ["string", "list", "hash", "set", "zset", "stream"];

/// Returns the type that the protocol gives to a kind of key.
fn right_type(kind: &str) -> &'static str {
    type_of(kind).expect("a kind of key")
}

#[tokio::test]
async fn a_wrong_type_under_an_object_stops_no_other_object() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let mut planted = Vec::new();
    for (kind, suffix) in OBJECT_KINDS {
        for wrong in TYPES.iter().filter(|wrong| **wrong != right_type(kind)) {
            let victim = format!("{kind}:{wrong}");
            // Sets the wrong key before the event is pushed, because overwriting a queue would lose
            // its events.
            let wrong_key = key(&keys, victim.as_bytes(), suffix);
            plant(&mut conn, wrong, &wrong_key).await;
            for object in [&victim, &format!("beside {victim}")] {
                push(&mut conn, &keys, object.as_bytes(), b"1").await;
            }
            planted.push((victim, *kind, wrong_key, *wrong));
        }
    }
    let sink = Record::default();
    let worker = Running::start(&redis, &keys, "w", &sink);
    until("the objects beside are done with", PATIENCE, async || {
        assert!(!worker.task.is_finished(), "the worker ended");
        planted
            .iter()
            .all(|(victim, ..)| sink.of(&format!("beside {victim}")).len() == 1)
            .then_some(())
    })
    .await;
    // Acts as an operator: deletes each wrong key and releases its object. These objects lose no
    // event either.
    for (victim, kind, key, wrong) in &planted {
        let Value::SimpleString(found) = run(&mut conn, "TYPE", &[key]).await else {
            panic!("a type")
        };
        if found == *wrong {
            run(&mut conn, "DEL", &[key]).await;
        }
        let held = keys.objects_held();
        let release = [held.as_bytes(), b"XX", b"0", victim.as_bytes()];
        run(&mut conn, "ZADD", &release).await;
        let event: &[u8] = if *kind == "events" { b"1" } else { b"2" };
        push(&mut conn, &keys, victim.as_bytes(), event).await;
    }
    until("the victims are done with", PATIENCE, async || {
        assert!(!worker.task.is_finished(), "the worker ended");
        planted
            .iter()
            .all(|(victim, kind, ..)| {
                sink.of(victim).len() == if *kind == "events" { 1 } else { 2 }
            })
            .then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn a_wrong_type_of_a_shared_or_a_workers_key_loses_nothing() {
    let redis = Redis::own(&[]);
    let mut conn = redis.connect().await;
    let shared = SHARED_KINDS
        .iter()
        .map(|(kind, name)| (*kind, (*name).to_owned()));
    let workers = WORKER_KINDS.iter().map(|(kind, suffix)| {
        let name = if is_of_process(kind) { "w" } else { "w.0" };
        (*kind, format!("event.worker:{name}{suffix}"))
    });
    for (at, (kind, name)) in shared.chain(workers).enumerate() {
        let wrong = TYPES[(at + 1) % TYPES.len()];
        let wrong = if wrong == right_type(kind) {
            TYPES[(at + 2) % TYPES.len()]
        } else {
            wrong
        };
        let keys = Keys::with_namespace(&format!("n{at}")).expect("valid");
        for object in ["a", "b"] {
            push(&mut conn, &keys, object.as_bytes(), b"1").await;
        }
        let (key, aside) = ([keys.prefix(), &name].concat(), b"aside");
        run(&mut conn, "RENAME", &[key.as_bytes(), aside]).await;
        plant(&mut conn, wrong, key.as_bytes()).await;
        let sink = Record::default();
        let worker = Running::start(&redis, &keys, "w", &sink);
        let done = || sink.of("a").len() == 1 && sink.of("b").len() == 1;
        // The worker delivers both events, or waits for the repair of the key, or ends with the
        // reason.
        let since = Instant::now();
        until("the worker has met the key", PATIENCE, async || {
            (worker.task.is_finished() || done() || since.elapsed() > MEETS).then_some(())
        })
        .await;
        // Puts the right key back in one step. In two steps, a waiting worker could create the key
        // in between.
        match run(&mut conn, "EXISTS", &[aside]).await {
            Value::Int(1) => run(&mut conn, "RENAME", &[aside, key.as_bytes()]).await,
            _ => run(&mut conn, "DEL", &[key.as_bytes()]).await,
        };
        // A worker may have met the wrong key just before the repair, and may end only now.
        until(
            "everything is delivered or the worker has ended",
            PATIENCE,
            async || (worker.task.is_finished() || done()).then_some(()),
        )
        .await;
        let worker = if worker.task.is_finished() {
            let ended = worker.task.await.expect("no panic");
            let error = ended.expect_err("nobody stopped it").to_string();
            assert!(
                error.contains(&key) && !error.contains('\n'),
                "{kind} as a {wrong}: {error}"
            );
            Running::start(&redis, &keys, "w", &sink)
        } else {
            worker
        };
        until("everything is delivered", PATIENCE, async || {
            done().then_some(())
        })
        .await;
        worker.shutdown.stop();
        if let Err(error) = worker.task.await.expect("no panic") {
            assert!(
                error.to_string().contains(&key),
                "{kind} as a {wrong}: {error}"
            );
        }
    }
}
