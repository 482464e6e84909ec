//! How much one call of the repair moves and reads. It then leaves its other subjects, or the rest of a
//! long batch, to a further call.

use super::call;
use crate::check::told;
use crate::state::State;
use crate::support::Redis;

const MIB: usize = 1 << 20;

/// Pushes so many events of so many bytes to the tail of a list.
async fn fill(state: &mut State, list: &str, count: usize, bytes: usize) {
    let event = "e".repeat(bytes);
    let events = vec![event.as_str(); count];
    state.run("RPUSH", &[&[list], &events[..]].concat()).await;
}

/// Breaks the subject so that a repair moves or reads so many entries of so many bytes.
async fn broken(state: &mut State, how: &str, count: usize, bytes: usize) {
    let keys = state.keys.clone();
    state.run("FLUSHDB", &[]).await;
    state.run("SET", &[&keys.next_event_id(), "2000"]).await;
    state.register("gone", 1).await;
    match how {
        "without ids" => fill(state, &keys.events_held("x"), count, bytes).await,
        "late" => {
            fill(state, &keys.events_held("x"), count, bytes).await;
            state
                .run("SET", &[&keys.events_held_id("x"), "1 2 3 4 stop"])
                .await;
            state.delivered("x", 2000).await;
        }
        "lost" => {
            state
                .run("RPUSH", &[&keys.worker_lost("gone.0"), "1"])
                .await;
            fill(state, &keys.worker_lost("gone.0"), count, bytes).await;
        }
        "progress" => {
            let emits = format!("1 {bytes} x{}", "e".repeat(bytes)).repeat(count);
            let kept = format!("0 {count} {} {emits}", count * (1 + bytes));
            state
                .run(
                    "HSET",
                    &[&keys.event_handled("x"), "id", "5", "emit:h", &kept],
                )
                .await;
        }
        "schedule" => {
            state
                .run("HSET", &[&keys.events_scheduled_of("x"), "k", "1"])
                .await;
            fill(state, &keys.events("x"), count, bytes).await;
        }
        "nothing" => {}
        "names" => fill(state, &keys.worker_object("gone.0"), count, bytes).await,
        _ => panic!("{how}"),
    }
}

/// The numbers are those in the header of the script, with four commands per dead letter, two if its
/// object is not known, and three per emitted event.
#[tokio::test]
async fn a_call_ends_after_1000_entries_or_1_mib() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    // The bytes of the other texts of the progress.
    let kept = "id5emit:h0 1 1048500 1 1048500 x".len();
    for (how, subject, enough, enough_bytes) in [
        ("without ids", ("object", "x"), 1000, None),
        ("late", ("object", "x"), 250, Some(MIB)),
        ("lost", ("worker", "gone.0"), 500, Some(MIB)),
        ("progress", ("object", "x"), 334, Some(MIB - kept)),
        ("schedule", ("schedule", "x\nk"), 1000, Some(MIB)),
        ("names", ("worker", "gone.0"), 1000, None),
    ] {
        let by_count = [(enough, 1, true), (enough - 1, 1, false)];
        let by_bytes = enough_bytes
            .into_iter()
            .flat_map(|bytes| [(1, bytes, true), (1, bytes - 1, false)]);
        for (count, bytes, is_enough) in by_count.into_iter().chain(by_bytes) {
            broken(&mut state, how, count, bytes).await;
            let told = call(&mut state, &[subject, ("shared", "")]).await;
            assert_eq!(
                told.contains(&(1, "again".to_owned())),
                is_enough,
                "{how}: {count} entries of {bytes} bytes: {told:?}"
            );
        }
    }
}

/// A held batch that was overtaken, and a batch of an unknown object, become dead letters in steps.
/// Between two steps the numbers of the batch are those of the rest.
#[tokio::test]
async fn a_long_batch_becomes_dead_letters_in_steps() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, console) = (redis.keys().clone(), redis.console().await);
    let sizes = [
        (1000, 1, 1000),
        (1001, 1, 1000),
        (3, MIB, 1),
        (3, MIB - 1, 2),
    ];
    for (at, (count, bytes, moved)) in sizes.into_iter().chain(sizes).enumerate() {
        let (how, subject) = match at < sizes.len() {
            true => ("late", ("object", "x")),
            false => ("lost", ("worker", "gone.0")),
        };
        broken(&mut state, how, count, bytes).await;
        let mut left = count;
        while left > 0 {
            let words: Vec<_> = call(&mut state, &[subject])
                .await
                .into_iter()
                .map(|(_, word)| word)
                .collect();
            left -= left.min(moved);
            let what = format!("{how}: {count} events of {bytes} bytes, {left} left: {words:?}");
            assert!(words.contains(&"dead".to_owned()), "{what}");
            assert_eq!(words.contains(&"again".to_owned()), left > 0, "{what}");
            let next = 1 + count - left;
            let rest = match how {
                "late" => (console.held_id("x").await, format!("{next} 2 0 0 repair")),
                _ => (
                    console.list(&keys.worker_lost("gone.0")).await.pop(),
                    next.to_string(),
                ),
            };
            assert_eq!(rest.0, (left > 0).then_some(rest.1), "{what}");
        }
        let dead = console.dead().await;
        assert_eq!(dead.len(), count);
        for (at, letter) in dead.iter().enumerate() {
            let id = letter.iter().find(|(field, _)| field == "id");
            let expected = (1 + at).to_string();
            assert_eq!(
                id.map(|(_, id)| id.as_slice()),
                Some(expected.as_bytes()),
                "{how}"
            );
        }
        assert_eq!(told(&mut state).await, [""; 0]);
    }
}

/// A held batch without ids goes back to the queue in steps, also beside a batch in hand. Its events keep
/// their order, and come before those that were queued.
#[tokio::test]
async fn a_long_held_batch_without_ids_is_queued_in_steps() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, console) = (redis.keys().clone(), redis.console().await);
    for (count, in_hand, calls) in [
        (1000, false, 1),
        (1001, false, 2),
        (1000, true, 1),
        (1001, true, 2),
    ] {
        broken(&mut state, "nothing", 0, 0).await;
        let events: Vec<String> = (1..=count).map(|n| n.to_string()).collect();
        let batch: Vec<&str> = events.iter().map(String::as_str).collect();
        let (held, queue) = (keys.events_held("x"), keys.events("x"));
        state
            .run("LPUSH", &[&[held.as_str()], &batch[..]].concat())
            .await;
        state.run("LPUSH", &[&queue, "behind"]).await;
        if in_hand {
            state.own("gone.0", "x", 7, &["0"]).await;
        }
        for at in 1..=calls {
            let told = call(&mut state, &[("object", "x")]).await;
            assert_eq!(
                told.contains(&(0, "again".to_owned())),
                at < calls,
                "{count}: {told:?}"
            );
        }
        let expected: Vec<_> = batch.iter().copied().chain(["behind"]).collect();
        assert_eq!(console.list(&queue).await, expected);
        assert_eq!(told(&mut state).await, [""; 0], "{count}");
    }
}

/// Of a long queue, only the oldest 1,000 entries, up to about 1 MiB, are searched for the reference to
/// a schedule. If it is not among them, it may be behind them.
#[tokio::test]
async fn a_reference_is_searched_among_the_oldest_entries() {
    const REFERENCE: &str = "\0queued 1700000000000000 k";
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    for (before, bytes, with_reference, behind, is_queued, expected) in [
        (1, MIB - 1, true, 0, false, "schedule"),
        (1, MIB, true, 0, false, "left"),
        (0, 0, true, MIB, false, "schedule"),
        (999, 1, true, 0, false, "schedule"),
        (1000, 1, true, 0, false, "left"),
        // The reference is lost, so the event is due now.
        (1, MIB, false, 0, true, "schedule"),
        (1, MIB, false, 1, true, "nothing"),
        (999, 1, false, 1, true, "schedule"),
        (1000, 1, false, 1, true, "nothing"),
    ] {
        broken(&mut state, "nothing", 0, 0).await;
        let queue = keys.events("x");
        state
            .run("HSET", &[&keys.events_scheduled_of("x"), "k", "1"])
            .await;
        if is_queued {
            state
                .run(
                    "ZADD",
                    &[&keys.events_scheduled(), "-2700000000000000", "x\nk"],
                )
                .await;
        }
        // The oldest entry is at the tail.
        if behind > 0 {
            fill(&mut state, &queue, 1, behind).await;
        }
        if with_reference {
            state.run("RPUSH", &[&queue, REFERENCE]).await;
        }
        if before > 0 {
            fill(&mut state, &queue, before, bytes).await;
        }
        let told = call(&mut state, &[("schedule", "x\nk")]).await;
        let word = told.first().map_or("nothing", |(_, word)| word.as_str());
        assert_eq!(
            word, expected,
            "{before} entries of {bytes} bytes, {behind} bytes behind"
        );
    }
}

/// Workers make at most 2,049 groups. The names of more groups are not counted.
#[tokio::test]
async fn more_groups_than_workers_make_are_left() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let key = redis.keys().event_groups();
    for (count, expected) in [(2049, None), (2050, Some((0, "left".to_owned())))] {
        broken(&mut state, "nothing", 0, 0).await;
        let members: Vec<String> = (0..count)
            .flat_map(|n| ["1".to_owned(), n.to_string()])
            .collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        state
            .run("ZADD", &[&[key.as_str()], &members[..]].concat())
            .await;
        let told = call(&mut state, &[("shared", "")]).await;
        assert_eq!(told, Vec::from_iter(expected), "{count}");
    }
}
