//! Fairness: objects that always have events give way to an object that rarely has any.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink};

use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, until};

const HOT: usize = 63;
/// Number of events queued for each hot object before the worker starts, each with its own marker.
const QUEUED: usize = 1000;
const BATCH: usize = 5;
const TURN_MAX: usize = 10;
/// Number of events of the rare object.
const ROUNDS: usize = 10;
/// Maximum number of turns of a hot object between the reply to an emit for the rare object and the
/// delivery of that event.
const TURNS_MAX: usize = 3;

/// Counts turns. A hot object never runs out of events, so each of its turns has exactly `TURN_MAX`
/// of them.
#[derive(Clone, Default)]
struct Turns(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// Number of events delivered to the sink, by object.
    given: HashMap<String, usize>,
    /// For each event of the rare object: the number of turns that each object had begun when the
    /// event came.
    at_seldom: Vec<HashMap<String, usize>>,
}

impl Log {
    fn turns(&self) -> HashMap<String, usize> {
        self.given
            .iter()
            .map(|(object, events)| (object.clone(), events.div_ceil(TURN_MAX)))
            .collect()
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
            assert_eq!(
                event.payload,
                given.to_string().as_bytes(),
                "the order of {}",
                batch.object()
            );
            *given += 1;
        }
        Delivered::all()
    }
}

/// Emits the next events of every hot object, with a marker for each.
async fn feed(redis: &Redis, console: &Console, from: usize, count: usize) {
    let mut pipe = redis::pipe();
    for n in from..from + count {
        pipe.cmd("MULTI").ignore();
        let mut markers = redis::cmd("LPUSH");
        markers.arg(console.keys.objects_with_events());
        for hot in 0..HOT {
            let object = format!("hot:{hot}");
            pipe.cmd("LPUSH")
                .arg(console.keys.events(&object))
                .arg(n)
                .ignore();
            markers.arg(object);
        }
        pipe.add_command(markers).ignore().cmd("EXEC").ignore();
    }
    let () = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("emitted");
}

/// 63 hot objects have 1,000 queued events each, with more to come, and there are 4 slots. An event
/// of a 64th object is delivered before any hot object has more than three further turns. This
/// holds even behind tens of thousands of markers of the hot objects.
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
        until(
            "every hot object has had a turn more",
            PATIENCE,
            async || {
                let turns = sink.log().turns();
                (turns.len() == HOT && turns.values().all(|turns| *turns > round)).then_some(())
            },
        )
        .await;
        console.emit("seldom", "1").await;
        let at_emit = sink.log().turns();
        let markers: usize = console
            .run(&["LLEN", &console.keys.objects_with_events()])
            .await;
        let at_delivery = until("the seldom object is delivered", PATIENCE, async || {
            sink.log().at_seldom.get(round).cloned()
        })
        .await;
        let further = |hot: &String| at_delivery[hot].saturating_sub(at_emit[hot]);
        let most = at_emit.keys().map(further).max();
        println!("round {round}: {markers} markers, at most {most:?} further turns");
        assert!(
            most <= Some(TURNS_MAX),
            "round {round}: {most:?} further turns of a hot object"
        );
    }
    done.store(true, Ordering::Relaxed);
    feeder.await.expect("fed");
    worker.stop().await;
    for hot in 0..HOT {
        let queued: usize = console
            .run(&["LLEN", &console.keys.events(&format!("hot:{hot}"))])
            .await;
        assert!(queued > 0, "hot:{hot} ran out of events");
    }
    console.check().await;
}
