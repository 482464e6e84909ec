//! Fairness: objects that always have events leave room for one that seldom has any.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink};

use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, until};

const HOT: usize = 63;
/// Events queued of each hot object before the worker starts, each with a marker of its own.
const QUEUED: usize = 1000;
const BATCH: usize = 5;
const TURN_MAX: usize = 10;
/// How often the seldom object has an event.
const ROUNDS: usize = 10;
/// Turns a hot object may begin between the answer to the emit and the delivery.
const TURNS_MAX: usize = 3;

/// Counts turns: a hot object never runs out of events, so each of its turns has exactly `TURN_MAX`
/// of them.
#[derive(Clone, Default)]
struct Turns(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// Events given to the sink, by object.
    given: HashMap<String, usize>,
    /// The turns begun by each object when an event of the seldom one came.
    at_seldom: Vec<HashMap<String, usize>>,
}

impl Log {
    fn turns(&self) -> HashMap<String, usize> {
        self.given.iter().map(|(object, events)| (object.clone(), events.div_ceil(TURN_MAX))).collect()
    }
}

impl Turns {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("the sink does not panic")
    }
}

#[async_trait]
impl Sink for Turns {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let mut log = self.log();
        if batch.object().as_str() == "seldom" {
            let turns = log.turns();
            log.at_seldom.push(turns);
            return Delivered::all();
        }
        assert_eq!(batch.len(), BATCH, "{} ran out of events", batch.object());
        let given = log.given.entry(batch.object().to_string()).or_default();
        for event in batch.events() {
            assert_eq!(event.payload, given.to_string().as_bytes(), "the order of {}", batch.object());
            *given += 1;
        }
        Delivered::all()
    }
}

/// Emits the next event of every hot object, with a marker for each.
async fn feed(redis: &Redis, console: &Console, from: usize, count: usize) {
    let mut pipe = redis::pipe();
    for n in from..from + count {
        pipe.cmd("MULTI").ignore();
        let mut markers = redis::cmd("LPUSH");
        markers.arg(console.keys.objects_with_events());
        for hot in 0..HOT {
            let object = format!("hot:{hot}");
            pipe.cmd("LPUSH").arg(console.keys.events(&object)).arg(n).ignore();
            markers.arg(object);
        }
        pipe.add_command(markers).ignore().cmd("EXEC").ignore();
    }
    let () = pipe.query_async(&mut redis.connect().await).await.expect("emitted");
}

/// 63 hot objects with 1,000 events queued each and still fed, 4 slots: an event of a 64th object
/// is delivered before any hot object has had more than three further turns, also behind tens of
/// thousands of markers that the hot objects have left.
#[tokio::test]
async fn hot_objects_have_at_most_three_turns_before_another_one_has_its_own() {
    let redis = Arc::new(Redis::start());
    let console = redis.console().await;
    feed(&redis, &console, 0, QUEUED).await;
    let done = Arc::new(AtomicBool::new(false));
    let feeder = tokio::spawn({
        let (redis, console, done) = (Arc::clone(&redis), console.clone(), Arc::clone(&done));
        async move {
            let mut next = QUEUED;
            while !done.load(Ordering::Relaxed) {
                feed(&redis, &console, next, 4).await;
                next += 4;
            }
        }
    });
    let sink = Turns::default();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 4;
        config.batch = BATCH;
        config.turn_max = TURN_MAX;
    });
    for round in 0..ROUNDS {
        until("every hot object has had a turn more", PATIENCE, async || {
            let turns = sink.log().turns();
            (turns.len() == HOT && turns.values().all(|turns| *turns > round)).then_some(())
        })
        .await;
        console.emit("seldom", "1").await;
        let at_emit = sink.log().turns();
        let markers: usize = console.run(&["LLEN", &console.keys.objects_with_events()]).await;
        let at_delivery =
            until("the seldom object is delivered", PATIENCE, async || sink.log().at_seldom.get(round).cloned()).await;
        let further = |hot: &String| at_delivery[hot].saturating_sub(at_emit[hot]);
        let most = at_emit.keys().map(further).max();
        println!("round {round}: {markers} markers, at most {most:?} further turns");
        assert!(most <= Some(TURNS_MAX), "round {round}: {most:?} further turns of a hot object");
    }
    done.store(true, Ordering::Relaxed);
    feeder.await.expect("fed");
    worker.stop().await;
    for hot in 0..HOT {
        let queued: usize = console.run(&["LLEN", &console.keys.events(&format!("hot:{hot}"))]).await;
        assert!(queued > 0, "hot:{hot} ran out of events");
    }
    console.check().await;
}
