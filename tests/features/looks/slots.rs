//! The search of `inspect` in the lists of workers.

use seriatim::control::Control;
use seriatim::control::inspect::Standing;

use super::empty;
use crate::support::control;

/// Tests that a bounded look reads only some slots of many, says so, and does not call an object
/// broken whose marker may be in one of the others.
#[tokio::test]
async fn a_bounded_look_says_how_many_slots_it_has_read() {
    let (_redis, mut state) = empty().await;
    let keys = state.keys.clone();
    for n in 0..4 {
        state.register(&format!("w{n}"), 200).await;
    }
    state.run("HSET", &[&keys.meta(), "names.indexed", "1"]).await;
    for (object, list) in [("near", "w0.7"), ("far", "w3.199")] {
        state.run("LPUSH", &[&keys.worker_object(list), object]).await;
        state.run("LPUSH", &[&keys.events(object), "{}"]).await;
    }
    state.run("LPUSH", &[&keys.events("lost"), "{}"]).await;
    state.run("SET", &[&keys.worker_object("w0.8"), "a wrong type"]).await;
    for n in 0..4 {
        state.run("ZADD", &[&keys.event_workers_watched(), &n.to_string(), &format!("w{n}")]).await;
    }
    let whole = control(&state.conn, &keys);
    let bounded = whole.clone().with_event_bytes_max(10);
    let look = async |control: &Control, object| {
        let seen = control.inspect(object).await.expect("an inspection");
        let read = seen.searched.map(|searched| (searched.slots, searched.names, searched.all));
        (seen.standing, seen.taken_by.join(" "), read, seen.why)
    };
    let near = look(&bounded, "near").await;
    assert_eq!((near.0, &near.1[..], near.2), (Standing::Taken, "w0.7", Some((384, 2, false))));
    for object in ["far", "lost"] {
        let (standing, _, read, why) = look(&bounded, object).await;
        assert_eq!((standing, read), (Standing::Unclear, Some((384, 2, false))), "{object}");
        let told = "(not found in 384 slots of 2 worker names; there are more); `seriatim inspect ";
        assert!(why.contains(told) && !why.contains("no worker process"), "{why}");
    }
    let (standing, taken, read, _) = look(&whole, "far").await;
    assert_eq!((standing, &taken[..], read), (Standing::Taken, "w3.199", Some((800, 4, true))));
    // Each of three passes has two steps.
    let mut steps = 0;
    let seen = whole.paced_inspect("lost", 0.5, |_| steps += 1).await.expect("an inspection");
    assert_eq!((seen.standing, steps), (Standing::Uncovered, 6));
    // In a small system, a bounded look is a whole one.
    for n in 0..3 {
        state.run("ZREM", &[&keys.event_workers_watched(), &format!("w{n}")]).await;
    }
    assert_eq!(look(&bounded, "lost").await.0, Standing::Uncovered);
    assert_eq!(look(&bounded, "far").await.1, "w3.199");
    // An object with a marker needs no search.
    state.run("RPUSH", &[&keys.objects_with_events(), "lost"]).await;
    let (standing, _, read, why) = look(&bounded, "lost").await;
    assert_eq!((standing, read), (Standing::Marked, None), "{why}");
}
