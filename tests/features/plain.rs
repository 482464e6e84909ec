//! From the plain algorithm to seriatim: what its dead workers had in hand is delivered.

use seriatim::control::{By, Control, Repair};

use crate::state::State;
use crate::support::Redis;
use crate::support::operator::Reads;
use crate::support::recorder::Recorder;
use crate::support::running::start;

const BY: By<'_> = By {
    who: "ada",
    why: "moved to seriatim",
};

/// The workers of the plain algorithm, by the place at which each of them died.
const DIED: [(&str, &str); 5] = [
    (
        "popped",
        "it has popped the name and does not own the object",
    ),
    ("owns", "it owns the object and has taken no event"),
    ("took", "it has taken an event"),
    ("sent", "it has ended an event, and more are queued"),
    (
        "over",
        "it has ended the last event, and has not let the object go",
    ),
];

/// Leaves the keys as the worker of this name leaves them when it dies. The object is `work:WORKER`.
/// Each object has the events 1 to 3, as far as they are not delivered.
async fn dies(state: &mut State, worker: &str) {
    let (keys, object) = (state.keys.clone(), format!("work:{worker}"));
    let events: &[&str] = match worker {
        "over" => &[],
        "took" | "sent" => &["2", "3"],
        _ => &["1", "2", "3"],
    };
    for event in events {
        state.run("LPUSH", &[&keys.events(&object), event]).await;
    }
    state
        .run("LPUSH", &[&keys.worker_object(worker), &object])
        .await;
    if worker != "popped" {
        state
            .run("SETNX", &[&keys.event_worker(&object), worker])
            .await;
    }
    match worker {
        "took" => state.batch(worker, 41, &["1"]).await,
        "sent" | "over" => state.delivered(&object, 40).await,
        _ => {}
    }
}

/// Returns the violations that the check finds, and the reason that an inspection gives.
async fn texts(control: &Control) -> (Vec<String>, Vec<String>) {
    let report = control.check().await.expect("a report");
    let mut found: Vec<_> = report
        .violations
        .iter()
        .map(|found| format!("{} {}", found.invariant, found.subject))
        .collect();
    found.sort();
    let owned = control.inspection_of("work:took").await;
    (found, vec![owned.why])
}

/// A worker of the plain algorithm has no lease. So nothing can tell whether it is dead, and its event
/// could be delivered twice.
#[tokio::test]
async fn the_owner_is_left_until_somebody_says_that_it_is_dead() {
    let redis = Redis::start();
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    dies(&mut state, "took").await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:took", "4").await;
    console.emit("other", "1").await;
    sink.until_sent(1).await;
    let control = state.control();
    for with in [
        Repair::default(),
        Repair {
            dry_run: false,
            dead_owners: vec!["other".to_owned()],
            ..Repair::default()
        },
    ] {
        let report = control.repair(BY, &with).await.expect("a report");
        assert_eq!(
            (report.steps_total, report.left_total),
            (0, 1),
            "{report:?}"
        );
        let way_out = "its owner took is no slot of a worker process of seriatim: if that worker is dead, --dead-owner took frees the object";
        assert_eq!(report.left[0].what, way_out);
    }
    let (found, inspected) = texts(&control).await;
    assert_eq!(found, ["I1 object work:took", "I2 object work:took"]);
    let expected = "its owner took is no slot of a worker process of seriatim, so no process takes the object over: \
                    if that worker is dead, `seriatim repair --dead-owner 'took'` frees the object";
    assert_eq!(inspected, [expected]);
    assert_eq!(sink.sent_of("work:took"), [""; 0]);
    worker.finish().await;
}

#[tokio::test]
async fn what_a_dead_worker_of_the_plain_algorithm_had_is_delivered() {
    for all in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = (
            State::new(redis.connect().await, redis.keys().clone()),
            redis.console().await,
        );
        for (worker, _) in DIED {
            dies(&mut state, worker).await;
        }
        let sink = Recorder::new();
        let process = start(&redis, "w", &sink, |_| {});
        let dead = if all {
            vec!["*".to_owned()]
        } else {
            DIED.map(|(worker, _)| worker.to_owned()).to_vec()
        };
        let with = Repair {
            dry_run: false,
            dead_owners: dead,
            ..Repair::default()
        };
        let control = state.control();
        let report = control.repair(BY, &with).await.expect("a report");
        assert_eq!(report.left, [], "{report:#?}");
        sink.until_sent(3 + 3 + 3 + 2).await;
        console.until_at_rest_after(1).await;
        for (worker, how) in DIED {
            let expected: &[&str] = match worker {
                "over" => &[],
                "sent" => &["2", "3"],
                _ => &["1", "2", "3"],
            };
            assert_eq!(sink.sent_of(&format!("work:{worker}")), *expected, "{how}");
        }
        let took: Vec<_> = sink
            .sent()
            .into_iter()
            .filter(|sent| sent.object == "work:took")
            .collect();
        assert_eq!(
            (took[0].id, took[0].prev),
            (41, 0),
            "the event in hand keeps its id"
        );
        assert!(
            took.windows(2)
                .all(|two| two[0].id < two[1].id && two[1].prev == two[0].id),
            "{took:?}"
        );
        assert_eq!(texts(&control).await.0, [""; 0]);
        let again = control.repair(BY, &with).await.expect("a report");
        assert_eq!((again.steps_total, again.left_total), (0, 0), "{again:?}");
        process.finish().await;
    }
}
