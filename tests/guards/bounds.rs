//! Bounds of scripts, at their exact values, and replies about keys that do not exist.

use std::collections::BTreeMap;
use std::time::Duration;

use seriatim::wire::{self, Advance};

use crate::scene::{Scene, bounds, done};
use crate::support::{Redis, control};

/// `inspect` shows results of handlers up to 64 KiB together.
#[tokio::test]
async fn results_of_exactly_64_kib_are_shown() {
    let scene = Scene::given("own w.0 work:1 5 1").await;
    let control = control(&scene.conn().await, &scene.keys);
    for (bytes, shown) in [(65_536, 2), (65_537, 1)] {
        let (small, begin) = ("\"a\":1", "\"b\":");
        let large = format!("{begin}{}", "2".repeat(bytes - small.len() - begin.len()));
        let fields = format!("id 5 result:a {small} result:b {large}");
        scene
            .add(&format!("HSET work:1:event.handled {fields}"))
            .await;
        let seen = control.inspect("work:1").await.expect("inspected");
        let results = seen.kept_results.expect("results");
        assert_eq!(results.results().len(), shown, "{bytes} bytes");
    }
}

/// `inspect` reads schedules until it has 1 MiB of their events.
#[tokio::test]
async fn schedules_are_read_up_to_1_mib() {
    let event = "1".repeat(300_000);
    let schedule = |n| format!("HSET work:1:events.scheduled key-{n} {event}; ");
    let scene = Scene::given(&(0..20).map(schedule).collect::<String>()).await;
    let control = control(&scene.conn().await, &scene.keys);
    let seen = control.inspect("work:1").await.expect("inspected");
    let (read, all) = (seen.next_schedules.len(), seen.schedules);
    assert!((4..20).contains(&read) && all == 20, "{read} of {all}");
}

/// A page of the event log ends after the row with which it has 1 MiB.
#[tokio::test]
async fn a_page_of_rows_ends_at_1_mib() {
    let scene = Scene::new().await;
    let control = control(&scene.conn().await, &scene.keys);
    for (bytes, rows) in [((1 << 20) - 1, 2), (1 << 20, 1)] {
        scene.add("DEL event.log").await;
        for (id, bytes) in [("1-0", bytes), ("2-0", 100), ("3-0", 100)] {
            let event = "1".repeat(bytes - "event".len());
            scene
                .add(&format!("XADD event.log {id} event {event}"))
                .await;
        }
        let page = control.log(None, 10).await.expect("a page");
        let found = (page.entries.len(), page.next.is_some());
        assert_eq!(found, (rows, true), "{bytes} bytes");
    }
}

/// A name whose registration is invalid has no slots. The slots of all other names are still read.
#[tokio::test]
async fn a_name_without_slots_hides_no_other() {
    let given = "
        own w.0 work:1 5 1; HSET event.workers odd nonsense; ZADD event.workers.watched 1 odd
    ";
    let scene = Scene::given(given).await;
    let control = control(&scene.conn().await, &scene.keys);
    let seen = control.inspect("work:1").await.expect("inspected");
    assert_eq!(
        (&seen.taken_by[..], seen.names_alive),
        (&["w.0".to_owned()][..], 1)
    );
}

/// A stream that does not exist has no rows, and none was ever written.
#[tokio::test]
async fn an_absent_stream_is_empty() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    let log = control.log(None, 10).await.expect("a page");
    assert_eq!((log.written, log.kept, log.end.as_str()), (0, 0, "0-0"));
    assert_eq!((log.entries.len(), log.next), (0, None));
    let streams = control.stats().await.expect("stats").streams;
    for stream in [streams.log, streams.dead, streams.actions] {
        let found = (stream.rows, stream.written, stream.oldest_ms);
        assert_eq!(found, (0, 0, None), "{streams:?}");
    }
}

/// Emits an event of an object that has a rule of its own.
async fn emit_with_rule(scene: &Scene, object: &str) {
    let rule = format!("HSET event.rules 'pause {object}' '1 0 0 3 0 ada' next never");
    scene.add(&format!("emit {object} 1; {rule}")).await;
}

/// `advance` reads 2,048 fields of rules; the last object may have 18 more. Each object has a name
/// with eight prefixes of its own, and its own rule: 18 fields. The first object also has the two
/// fields for all objects. So the first 113 objects have 2,036 fields. An object with five prefixes
/// has 12 more, which are exactly the rest; an object with four prefixes leaves 2 fields.
#[tokio::test]
async fn a_call_reads_so_many_fields_of_rules() {
    for (short, expected) in [("113:1:2:3:4:5", 114), ("113:1:2:3:4", 115)] {
        let scene = Scene::new().await;
        for n in 0..130 {
            let long = format!("{n}:1:2:3:4:5:6:7:8");
            emit_with_rule(&scene, if n == 113 { short } else { &long }).await;
        }
        let answer = scene.free(0..2, bounds(|b| b.markers = 4096)).await;
        assert_eq!(answer.summary(), ", more");
        assert_eq!(scene.scores("objects.paused").await.len(), expected);
    }
}

/// Pops have moved the names of objects without events, and reading the rules of these objects uses up
/// the fields. The names leave their lists, so another call is of use: it claims the object that waits.
#[tokio::test]
async fn a_call_goes_on_behind_names_that_have_used_up_the_fields_of_rules() {
    const SLOTS: usize = 130;
    let scene = Scene::new().await;
    for n in 0..SLOTS {
        let name = format!("{n}:1:2:3:4:5:6:7:8");
        let rule = format!("HSET event.rules 'pause {name}' '1 0 0 3 0 ada' next never");
        scene
            .add(&format!("{rule}; LPUSH event.worker:w.{n}:object {name}"))
            .await;
    }
    scene.add("emit work:1 1").await;
    let within = bounds(|b| b.claims = SLOTS);
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(scene.free(0..SLOTS, within).await.summary());
        if calls.last().is_some_and(|call| call == "work:1") {
            break;
        }
    }
    let (last, others) = calls.split_last().expect("a call");
    assert_eq!(last, "work:1", "{calls:?}");
    assert!(
        !others.is_empty() && others.iter().all(|call| call == ", more"),
        "{calls:?}"
    );
}

/// A call wakes 64 objects, and each counts as 16 fields of rules. The other 1,024 fields are enough
/// to pause 57 objects with a rule each: 20 fields for the first, 18 for each other one.
#[tokio::test]
async fn objects_that_are_woken_count_as_fields_of_rules() {
    let scene = Scene::new().await;
    for n in 0..64 {
        let given = format!("SET old:{n}:event.worker held; ZADD objects.paused 0 old:{n}");
        scene.add(&given).await;
    }
    for n in 0..70 {
        emit_with_rule(&scene, &format!("{n}:1:2:3:4:5:6:7:8")).await;
    }
    let given = "HSET event.rules 'pause old:*' '1 0 1 3 0 ada' next 0";
    scene.add(given).await;
    scene.free(0..2, bounds(|b| b.markers = 4096)).await;
    assert_eq!(scene.scores("objects.held").await.len(), 64);
    assert_eq!(scene.scores("objects.paused").await.len(), 57);
}

/// The 64 objects that a call wakes may be of several rules, and each rule counts as one of them.
#[tokio::test]
async fn a_call_wakes_so_many_objects_of_all_rules() {
    let scene = Scene::new().await;
    for kind in ["a", "b"] {
        for object in (0..40).map(|n| format!("{kind}:{n}")) {
            scene.add(&format!("SET {object}:event.worker held")).await;
            scene.add(&format!("ZADD objects.paused 0 {object}")).await;
        }
        let given = format!("HSET event.rules 'pause {kind}:*' '1 0 1 3 0 ada' next 0");
        scene.add(&given).await;
    }
    // As long as a rule is left, there is also the field `next`.
    for (woken, fields) in [(63, 2), (80, 0)] {
        scene.free(0..2, bounds(|b| b.claims = 0)).await;
        assert_eq!(scene.scores("objects.held").await.len(), woken);
        let count = ["HLEN", &scene.keys.event_rules()];
        assert_eq!(scene.run::<u64>(&count).await, fields);
    }
}

/// A call pauses 256 objects. A lifted rule without objects counts as one of the 64 objects that a
/// call wakes.
#[tokio::test]
async fn a_call_pauses_so_many_objects_and_deletes_so_many_rules() {
    let scene = Scene::new().await;
    scene.add("each work:0..299").await;
    for n in 0..100 {
        let given = format!("HSET event.rules 'block old:{n}' '1 0 1 3 0 ada' next 0");
        scene.add(&given).await;
    }
    let given = "HSET event.rules 'pause work:*' '1 0 0 3 0 ada' next 0";
    scene.add(given).await;
    let bounds = bounds(|b| b.markers = 4096);
    for (paused, rules) in [(256, 37), (300, 1)] {
        let answer = scene.free(0..2, bounds).await;
        assert_eq!(answer.objects(), [""; 0]);
        assert_eq!(scene.scores("objects.paused").await.len(), paused);
        // One more field is `next`.
        let count = ["HLEN", &scene.keys.event_rules()];
        assert_eq!(scene.run::<u64>(&count).await, rules + 1);
    }
}

/// A reply counts as full at 0 bytes. As long as one byte is left, a slot gets a batch of any size:
/// the batch in hand again, the object of a marker or of a popped name, a held batch, or more events
/// of its object.
#[tokio::test]
async fn a_reply_is_full_at_0_bytes() {
    // Of each case: what is given, and whether the object is held if the reply is full.
    for (given, is_held) in [
        ("own w.0 work:1 1 12", false),
        ("emit work:1 12", false),
        ("emit work:1 12; pop w.0", false),
        (
            "emit work:1 12; pop w.0; LPUSH event.worker:w.0:object ''",
            false,
        ),
        ("hold work:1 1 '1 0 1 0 retry: down' 12", true),
        ("own w.0 work:1 1 12; LPUSH work:1:events 34", true),
    ] {
        for (bytes, expected) in [(0, &[][..]), (1, &["work:1"][..])] {
            let scene = Scene::given(given).await;
            // A slot that goes on with its object claims nothing.
            let goes_on = given.ends_with("34");
            let fill = |call: &mut Advance| match goes_on {
                true => call.report(0, &done("work:1", 1)),
                false => call.free(0),
            };
            let within = bounds(|b| (b.reply_bytes, b.claims) = (bytes, usize::from(!goes_on)));
            let answer = scene.advance(within, fill).await;
            assert_eq!(answer.objects(), expected, "{given}, {bytes} bytes");
            let due = (expected.is_empty() && is_held).then_some(Duration::ZERO);
            assert_eq!(answer.next_due, due, "{given}, {bytes} bytes");
        }
    }
}

/// Another call is of use if the reply is full, and not if it has a byte left.
#[tokio::test]
async fn a_full_reply_asks_for_another_call() {
    for (bytes, is_full) in [(1, true), (2, true), (3, false)] {
        let scene = Scene::given("emit work:1 12").await;
        let answer = scene.free(0..2, bounds(|b| b.reply_bytes = bytes)).await;
        assert_eq!(answer.objects(), ["work:1"]);
        assert_eq!(answer.more, is_full, "{bytes} bytes");
    }
}

/// An event of a schedule with a key counts as twelve of the 4,096 events that a call of `advance`
/// takes.
#[tokio::test]
async fn a_call_claims_so_many_events_with_a_key() {
    const OBJECTS: usize = 400;
    let reference = |n| {
        let entry = format!("ZADD events.scheduled -1000000000000005 'work:{n}\nkey'");
        let event = format!("HSET work:{n}:events.scheduled key 1");
        format!("{event}; {entry}; emit work:{n} '\0queued 5 key'; ")
    };
    let scene = Scene::given(&(0..OBJECTS).map(reference).collect::<String>()).await;
    let within = bounds(|b| (b.claims, b.markers) = (OBJECTS, 4096));
    assert_eq!(scene.free(0..OBJECTS, within).await.objects().len(), 342);
}

/// The upper bounds of lateness in ms, as the protocol has them.
const LATENESS_MS: [u64; 16] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000,
];

/// An event that is exactly as late as a bound counts below this bound; an event that is 1 ms later
/// counts below the next bound. The time of the call is not known before. So for each bound there
/// is a due time in each ms around the call. The first schedule that is not due shows the time.
#[tokio::test]
async fn lateness_is_counted_up_to_and_including_a_bound() {
    const AROUND_MS: u64 = 13;
    let scene = Scene::new().await;
    for _ in 0..500 {
        let from_ms = scene.now_ms().await - 2;
        let around = |bound| (0..=AROUND_MS).map(move |ms| from_ms + ms - bound);
        let due: Vec<u64> = LATENESS_MS.iter().flat_map(around).collect();
        let (mut values, mut times) = (String::new(), String::new());
        for (n, due_ms) in due.iter().enumerate() {
            values += &format!(" -{n} 1");
            times += &format!(" {due_ms} 'work:1\n-{n}'");
        }
        let old = "DEL events.scheduled; DEL events.scheduled.lateness; DEL objects.with.events";
        let new = format!("HSET work:1:events.scheduled{values}; ZADD events.scheduled{times}");
        // No time is lost to look at the keys.
        let mut conn = scene.conn().await;
        scene.add(&format!("{old}; {new}")).await;
        let reply = wire::promote(&mut conn, &scene.keys, 256, 1 << 20).await;
        let reply = reply.expect("a reply");
        let first = scene.scores("events.scheduled").await;
        let Some(now_ms) = first.first().map(|(_, due_ms)| *due_ms as u64 - 1) else {
            continue;
        };
        if now_ms <= from_ms {
            continue;
        }
        let mut expected = BTreeMap::new();
        for late_ms in due.iter().filter_map(|due_ms| now_ms.checked_sub(*due_ms)) {
            let bound = LATENESS_MS.iter().find(|bound| late_ms <= **bound);
            *expected
                .entry(bound.map_or_else(|| "inf".to_owned(), u64::to_string))
                .or_insert(0) += 1;
        }
        let lateness = scene.keys.events_scheduled_lateness();
        let counted: BTreeMap<String, u64> = scene.run(&["HGETALL", &lateness]).await;
        let sum: u64 = counted.values().sum();
        assert_eq!((sum, counted), (reply.events as u64, expected));
        return;
    }
    panic!("no call came in time");
}

/// A call takes 4,096 events, of which the first of each batch counts as four. It ends with the batch that
/// reaches this number.
#[tokio::test]
async fn a_call_takes_4096_events() {
    const OBJECTS: usize = 300;
    let scene = Scene::new().await;
    let emit = |n| format!("emit work:{n} {}; ", ["1"; 20].join(" "));
    scene.add(&(0..OBJECTS).map(emit).collect::<String>()).await;
    let within = bounds(|b| (b.claims, b.batch, b.markers) = (OBJECTS, 20, 8192));
    let answer = scene.free(0..OBJECTS, within).await;
    assert_eq!(answer.objects().len(), OBJECTS);
    // 4,096 less four for each object, in batches with 19 further events.
    let batches = (4096 - 4 * OBJECTS).div_ceil(19);
    let events: usize = answer.lengths().iter().sum();
    assert_eq!(events, OBJECTS + 19 * batches);
}
