//! Measures single pieces of the path of an event, against a private Redis. It is for developers
//! who change one of these pieces.
//!
//!     cargo bench --bench pieces [-- envelope|advance|emit]
//!
//! `seriatim bench` measures the whole path.

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use redis::aio::MultiplexedConnection;
use seriatim::Emitter;
use seriatim::event::{Event, Json, ObjectName};
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, Attach, BatchReply, BatchResult, Bounds, ClaimFirst, Report, Suspects,
};
use tokio::runtime::Runtime;

const PAYLOAD_BYTES: usize = 200;
const NAME: &str = "w";
const TOKEN: &str = "token-1";

fn payload() -> String {
    let frame = r#"{"text":""}"#.len();
    format!(r#"{{"text":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - frame))
}

fn envelope(c: &mut Criterion) {
    let object = ObjectName::new("work:1").expect("a name");
    let event = Event {
        id: 12_345,
        prev: 12_340,
        object,
        payload: payload().into(),
    };
    let mut out = Vec::new();
    c.bench_function("envelope", |b| {
        b.iter(|| {
            out.clear();
            black_box(&event).write_envelope(&mut out);
            black_box(&out);
        });
    });
}

/// Measures one call of `advance` that commits the batch of every slot and takes the next batch.
/// The queues are filled again between two calls.
fn advance(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let redis = support::Redis::own(&[]);
    let mut group = c.benchmark_group("advance");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    for slots in [1, 16, 64, 256] {
        for batch in [1, 16, 256] {
            group.throughput(Throughput::Elements((slots * batch) as u64));
            group.bench_function(
                BenchmarkId::from_parameter(format!("{slots} x {batch}")),
                |b| {
                    b.iter_custom(|calls| {
                        runtime.block_on(async {
                            let mut slots = Slots::attach(
                                redis.connect().await,
                                redis.keys().clone(),
                                slots,
                                batch,
                            )
                            .await;
                            let mut took = Duration::ZERO;
                            for _ in 0..calls {
                                slots.fill().await;
                                took += slots.call().await;
                            }
                            took
                        })
                    });
                },
            );
        }
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("nothing to do, by Redis' clock", |b| {
        b.iter_custom(|calls| {
            runtime.block_on(async {
                let mut slots =
                    Slots::attach(redis.connect().await, redis.keys().clone(), 1, 1).await;
                let before = slots.in_scripts().await;
                for _ in 0..calls {
                    slots.call_for_nothing().await;
                }
                slots.in_scripts().await - before
            })
        });
    });
    group.finish();
}

/// A worker process. Each of its slots has a batch of a different object.
struct Slots {
    conn: MultiplexedConnection,
    keys: Keys,
    batch: usize,
    in_flight: Vec<Option<BatchReply>>,
}

impl Slots {
    async fn attach(
        mut conn: MultiplexedConnection,
        keys: Keys,
        slots: usize,
        batch: usize,
    ) -> Self {
        redis::cmd("FLUSHALL")
            .exec_async(&mut conn)
            .await
            .expect("FLUSHALL");
        let lease = Duration::from_secs(600);
        let args = Attach {
            name: NAME,
            token: TOKEN,
            holder: "host 1 1",
            lease,
            slots,
            displace: "",
            before: "",
            crashes_max: 5,
            suspects: Suspects::NONE,
        };
        wire::attach(&mut conn, &keys, &args)
            .await
            .expect("attached");
        let mut slots = Self {
            conn,
            keys,
            batch,
            in_flight: (0..slots).map(|_| None).collect(),
        };
        slots.fill().await;
        slots.mark().await;
        slots.call().await;
        slots
    }

    /// Emits one more batch for each object.
    async fn fill(&mut self) {
        let events = vec![payload(); self.batch];
        let mut pipe = redis::pipe();
        for object in 0..self.in_flight.len() {
            pipe.cmd("LPUSH")
                .arg(self.keys.events(&format!("work:{object}")))
                .arg(&events)
                .ignore();
        }
        pipe.exec_async(&mut self.conn).await.expect("LPUSH");
    }

    async fn mark(&mut self) {
        let objects: Vec<_> = (0..self.in_flight.len())
            .map(|object| format!("work:{object}"))
            .collect();
        let mut mark = redis::cmd("LPUSH");
        mark.arg(self.keys.objects_with_events()).arg(objects);
        mark.exec_async(&mut self.conn).await.expect("LPUSH");
    }

    /// Makes a call of `advance` without results and without free slots. Such a call shows the
    /// fixed cost.
    async fn call_for_nothing(&mut self) {
        let bounds = Bounds {
            batch: 1,
            batch_bytes: 1 << 20,
            reply_bytes: 8 << 20,
            claims: 0,
            markers: 1024,
            forget_after: None,
            group_depth: 0,
            suspects: Suspects::NONE,
        };
        let call = Advance::new(&self.keys, NAME, TOKEN, bounds, ClaimFirst::Markers);
        let reply = wire::advance(&mut self.conn, &call)
            .await
            .expect("an answer");
        assert!(
            matches!(&reply, Advanced::Ok { batches, .. } if batches.is_empty()),
            "{reply:?}"
        );
    }

    /// Returns the time that Redis has spent in scripts, as its INFO counts it.
    async fn in_scripts(&mut self) -> Duration {
        let stats: redis::InfoDict = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.conn)
            .await
            .expect("commandstats");
        let usec = |command| -> u64 {
            let calls: Option<String> = stats.get(command);
            calls.map_or(0, |calls| {
                let usec = calls
                    .split(',')
                    .find_map(|field| field.strip_prefix("usec="));
                usec.and_then(|usec| usec.parse().ok()).expect("usec")
            })
        };
        Duration::from_micros(usec("cmdstat_evalsha") + usec("cmdstat_fcall"))
    }

    /// Makes one call of `advance` for all slots. The call is built, and its reply is read, as in a
    /// worker.
    async fn call(&mut self) -> Duration {
        let slots = self.in_flight.len();
        let bounds = Bounds {
            batch: self.batch,
            batch_bytes: 1 << 20,
            reply_bytes: 8 << 20,
            claims: slots,
            markers: 1024,
            forget_after: None,
            group_depth: 0,
            suspects: Suspects::NONE,
        };
        let began = Instant::now();
        let mut call = Advance::new(&self.keys, NAME, TOKEN, bounds, ClaimFirst::Markers);
        for (slot, batch) in self.in_flight.iter_mut().enumerate() {
            match batch.take() {
                None => call.free(slot),
                Some(BatchReply {
                    object,
                    tag,
                    events,
                    ..
                }) => {
                    let last = Some(tag.first + events.len() as u64 - 1);
                    call.report(
                        slot,
                        &Report {
                            object,
                            tag,
                            count: events.len(),
                            last,
                            then: BatchResult::Done,
                        },
                    );
                }
            }
        }
        let reply = wire::advance(&mut self.conn, &call)
            .await
            .expect("an answer");
        let took = began.elapsed();
        let Advanced::Ok { batches, .. } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(
            batches
                .iter()
                .map(|batch| batch.events.len())
                .sum::<usize>(),
            slots * self.batch
        );
        for batch in batches {
            let slot = batch.slot;
            self.in_flight[slot] = Some(batch);
        }
        took
    }
}

fn emit(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let redis = support::Redis::own(&[]);
    let emitter = runtime
        .block_on(Emitter::connect(redis.url()))
        .expect("connected");
    let mut conn = runtime.block_on(redis.connect());
    let mut empty = async || {
        redis::cmd("FLUSHALL")
            .exec_async(&mut conn)
            .await
            .expect("FLUSHALL")
    };
    let event = payload();
    let mut group = c.benchmark_group("emit");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(1));
    group.bench_function("single", |b| {
        b.iter_custom(|emits| {
            runtime.block_on(async {
                empty().await;
                let began = Instant::now();
                for _ in 0..emits {
                    emitter
                        .emit("work:1", Json::new(event.clone()))
                        .await
                        .expect("emitted");
                }
                began.elapsed()
            })
        });
    });
    for objects in [1, 1000] {
        const EVENTS: usize = 10_000;
        group.throughput(Throughput::Elements(EVENTS as u64));
        group.bench_function(
            BenchmarkId::new("many", format!("{EVENTS} of {objects} objects")),
            |b| {
                let names: Vec<_> = (0..objects)
                    .map(|object| format!("work:{object}"))
                    .collect();
                b.iter_custom(|rounds| {
                    runtime.block_on(async {
                        let mut took = Duration::ZERO;
                        for _ in 0..rounds {
                            empty().await;
                            let events = (0..EVENTS)
                                .map(|n| (&names[n % objects], Json::new(event.clone())));
                            let began = Instant::now();
                            emitter.emit_many(events).await.expect("emitted");
                            took += began.elapsed();
                        }
                        took
                    })
                });
            },
        );
    }
    group.finish();
}

criterion_group!(pieces, envelope, advance, emit);
criterion_main!(pieces);
