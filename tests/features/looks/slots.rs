//! The search of `inspect` in the lists of workers.

use seriatim::control::Control;
use seriatim::control::inspect::Standing;

use crate::support::Redis;
use crate::support::operator::Reads;

/// Tests that a bounded look reads only some slots of many, says so, and does not call an object
/// broken whose marker may be in one of the others.
#[tokio::test]
async fn a_bounded_look_says_how_many_slots_it_has_read() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    for n in 0..4 {
        state.register(&format!("w{n}"), 200).await;
    }
    state.add("HSET seriatim.meta names.indexed 1").await;
    for (object, list) in [("near", "w0.7"), ("far", "w3.199")] {
        state
            .run("LPUSH", &[&keys.worker_object(list), object])
            .await;
        state.run("LPUSH", &[&keys.events(object), "{}"]).await;
    }
    state
        .add("LPUSH lost:events {}; SET event.worker:w0.8:object 'a wrong type'")
        .await;
    for n in 0..4 {
        state
            .run(
                "ZADD",
                &[
                    &keys.event_workers_watched(),
                    &n.to_string(),
                    &format!("w{n}"),
                ],
            )
            .await;
    }
    let whole = state.control();
    let bounded = whole.clone().with_event_bytes_max(10);
    let look = async |control: &Control, object| {
        let seen = control.inspection_of(object).await;
        let read = seen
            .searched
            .map(|searched| (searched.slots, searched.names, searched.all));
        (seen.standing, seen.taken_by.join(" "), read, seen.why)
    };
    let near = look(&bounded, "near").await;
    assert_eq!(
        (near.0, &near.1[..], near.2),
        (Standing::Taken, "w0.7", Some((384, 2, false)))
    );
    for object in ["far", "lost"] {
        let (standing, _, read, why) = look(&bounded, object).await;
        assert_eq!(
            (standing, read),
            (Standing::Unclear, Some((384, 2, false))),
            "{object}"
        );
        let finding =
            "(not found in 384 slots of 2 worker names; there are more); `seriatim inspect ";
        assert!(
            why.contains(finding) && !why.contains("no worker process"),
            "{why}"
        );
    }
    let (standing, taken, read, _) = look(&whole, "far").await;
    assert_eq!(
        (standing, &taken[..], read),
        (Standing::Taken, "w3.199", Some((800, 4, true)))
    );
    // Each of three passes has two steps.
    let mut steps = 0;
    let seen = whole
        .paced_inspect("lost", 0.5, |_| steps += 1)
        .await
        .expect("an inspection");
    assert_eq!((seen.standing, steps), (Standing::Uncovered, 6));
    // In a small system, a bounded look is a whole one.
    for n in 0..3 {
        state
            .run("ZREM", &[&keys.event_workers_watched(), &format!("w{n}")])
            .await;
    }
    assert_eq!(look(&bounded, "lost").await.0, Standing::Uncovered);
    assert_eq!(look(&bounded, "far").await.1, "w3.199");
    // An object with a marker needs no search.
    state.add("RPUSH objects.with.events lost").await;
    let (standing, _, read, why) = look(&bounded, "lost").await;
    assert_eq!((standing, read), (Standing::Marked, None), "{why}");
}

/// Both searches read the first 1,000 names in the list of a slot. A pop adds names at the head, so no
/// list of a live system has so many.
#[tokio::test]
async fn so_many_names_of_a_slot_are_read() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    state.register("w", 1).await;
    let names: Vec<String> = (0..999)
        .map(|n| format!("other:{n}"))
        .chain(["in".to_owned(), "out".to_owned()])
        .collect();
    let list = keys.worker_object("w.0");
    let push: Vec<&str> = [list.as_str()]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    state.run("RPUSH", &push).await;
    for object in ["in", "out"] {
        state.run("LPUSH", &[&keys.events(object), "{}"]).await;
    }
    let control = state.control();
    for (object, standing) in [("in", Standing::Taken), ("out", Standing::Uncovered)] {
        assert_eq!(
            control.inspection_of(object).await.standing,
            standing,
            "{object}"
        );
    }
    let report = control.check().await.expect("a report");
    let uncovered = |object: &str| {
        report
            .violations
            .iter()
            .any(|found| found.subject.to_string().contains(object))
    };
    assert!(uncovered("out") && !uncovered("in"), "{report:?}");
}
