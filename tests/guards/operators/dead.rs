//! `dead` and `release_many`: the word for each subject, and the record of the action.

use seriatim::keys::Keys;
use seriatim::wire::operator::{self, Record, ReleasedOne, Settle, Settled};

use super::{BY, Scene};

/// The most bytes of an event, or of an error, in the record of an action.
const KEPT: usize = 8192;
const LATER: &str = "99999999999999";

async fn settle(scene: &mut Scene, settle: Settle, ids: &[&str]) -> Vec<Settled> {
    let keys = scene.state.keys.clone();
    operator::dead(&mut scene.state.conn, &keys, BY, settle, ids)
        .await
        .expect("settled")
}

/// Settles these dead letters in one step of an action on all of them. Returns the id of its row.
async fn step(
    scene: &mut Scene,
    settle: Settle,
    row: &str,
    ids: &[&str],
) -> (Vec<Settled>, String) {
    let (keys, record) = (
        scene.state.keys.clone(),
        Record {
            selected: b"work:*",
            row,
        },
    );
    operator::dead_in(&mut scene.state.conn, &keys, BY, settle, record, ids)
        .await
        .expect("settled")
}

/// Adds the letters 1 to 7. Only the first and the last can be retried.
async fn letters(scene: &mut Scene) {
    for (id, fields) in [
        (
            "1-0",
            &[
                "id", "12", "object", "work:1", "event", "e1", "error", "down",
            ][..],
        ),
        ("2-0", &["id", "13", "object", "work:1"]),
        ("3-0", &["event", "e3", "error", "down"]),
        ("4-0", &["id", "14", "object", "", "event", "e4"]),
        ("5-0", &["id", "15", "object", "wrong", "event", "e5"]),
        ("7-0", &["object", "work:2", "event", "e7"]),
    ] {
        scene
            .put("XADD", "events.dead", &[&[id], fields].concat())
            .await;
    }
    scene.put("SET", "wrong:events", &["x"]).await;
}

const IDS: [&str; 7] = ["1-0", "2-0", "3-0", "4-0", "5-0", "6-0", "7-0"];

#[tokio::test]
async fn a_retry_queues_what_has_an_object_and_an_event() {
    let mut scene = Scene::new().await;
    letters(&mut scene).await;
    let words = settle(&mut scene, Settle::Retry, &IDS).await;
    let [unreadable, retried] = [Settled::Unreadable, Settled::Retried];
    assert_eq!(
        words,
        [
            retried,
            unreadable,
            unreadable,
            unreadable,
            Settled::WrongType,
            Settled::Gone,
            retried
        ]
    );
    let expected = [
        "events.dead: 2-0 id 13 object work:1",
        "events.dead: 3-0 event e3 error down",
        "events.dead: 4-0 id 14 object  event e4",
        "events.dead: 5-0 id 15 object wrong event e5",
        "objects.with.events: work:2",
        "objects.with.events: work:1",
        "operator.actions: NOW action retry who ada why a test object work:1 id 12 dead_id 1-0",
        "operator.actions: NOW action retry who ada why a test object work:2 id  dead_id 7-0",
        "work:1:events: e1",
        "work:2:events: e7",
        "wrong:events: x",
    ];
    assert_eq!(scene.shown().await, expected);
}

/// The word says whether the last delivered event of the object is newer than the dead one.
#[tokio::test]
async fn a_retry_says_whether_newer_events_were_delivered() {
    for (last, id, expected) in [
        (&["SET", "12"][..], "11", Settled::RetriedLate),
        (&["SET", "12"], "12", Settled::Retried),
        (&["SET", "12"], "13", Settled::Retried),
        (&["SET", "12"], "x", Settled::Retried),
        (&["SET", "x"], "11", Settled::Retried),
        (&["SET", "99999999999999999999"], "11", Settled::Retried),
        (&["LPUSH", "12"], "11", Settled::Retried),
        (&[], "11", Settled::Retried),
    ] {
        let mut scene = Scene::new().await;
        scene
            .put(
                "XADD",
                "events.dead",
                &["1-0", "id", id, "object", "work:1", "event", "e1"],
            )
            .await;
        if let [command, value] = last {
            scene.put(command, "work:1:last.event.id", &[value]).await;
        }
        assert_eq!(
            settle(&mut scene, Settle::Retry, &["1-0"]).await,
            [expected],
            "{last:?} {id}"
        );
        assert_eq!(scene.items("work:1:events").await, ["e1"]);
        // With one record for many, it counts, too.
        scene
            .put(
                "XADD",
                "events.dead",
                &["2-0", "id", id, "object", "work:1", "event", "e2"],
            )
            .await;
        let (words, row) = step(&mut scene, Settle::Retry, "", &["2-0"]).await;
        assert!(words == [expected] && !row.is_empty(), "{words:?}");
    }
}

#[tokio::test]
async fn a_drop_deletes_each_letter() {
    let mut scene = Scene::new().await;
    letters(&mut scene).await;
    let words = settle(&mut scene, Settle::Drop, &IDS).await;
    let dropped = Settled::Dropped;
    assert_eq!(
        words,
        [
            dropped,
            dropped,
            dropped,
            dropped,
            dropped,
            Settled::Gone,
            dropped
        ]
    );
    let dropped =
        |rest: &str| format!("operator.actions: NOW action drop who ada why a test object {rest}");
    let expected = [
        "work:1 id 12 dead_id 1-0 error down event e1",
        "work:1 id 13 dead_id 2-0 error  event ",
        " id  dead_id 3-0 error down event e3",
        " id 14 dead_id 4-0 error  event e4",
        "wrong id 15 dead_id 5-0 error  event e5",
        "work:2 id  dead_id 7-0 error  event e7",
    ];
    // A stream stays when it becomes empty.
    assert_eq!(
        scene.shown().await,
        [
            expected.map(dropped).to_vec(),
            vec!["wrong:events: x".to_owned()]
        ]
        .concat()
    );
}

/// The record has the first 8 KiB of the event and of the error.
#[tokio::test]
async fn the_record_of_a_drop_is_cut() {
    for bytes in [KEPT, KEPT + 1] {
        let mut scene = Scene::new().await;
        let (event, error) = ("e".repeat(bytes), "r".repeat(bytes));
        scene
            .put(
                "XADD",
                "events.dead",
                &["1-0", "object", "o", "event", &event, "error", &error],
            )
            .await;
        assert_eq!(
            settle(&mut scene, Settle::Drop, &["1-0"]).await,
            [Settled::Dropped]
        );
        let length = if bytes > KEPT {
            format!(" event_bytes {bytes}")
        } else {
            String::new()
        };
        let (event, error) = ("e".repeat(KEPT), "r".repeat(KEPT));
        let row = format!(
            "NOW action drop who ada why a test object o id  dead_id 1-0 error {error} event {event}{length}"
        );
        assert!(scene.items("operator.actions").await == [row], "{bytes}");
    }
}

/// Without a namespace, a name that begins with a brace belongs to another one, and gets no event.
#[tokio::test]
async fn a_letter_of_a_foreign_name_is_not_retried() {
    let mut scene = Scene::new().await;
    let keys = Keys::new();
    scene
        .state
        .run(
            "XADD",
            &[&keys.events_dead(), "1-0", "object", "{x", "event", "1"],
        )
        .await;
    let words = operator::dead(&mut scene.state.conn, &keys, BY, Settle::Retry, &["1-0"])
        .await
        .expect("settled");
    assert_eq!(words, [Settled::Unreadable]);
    let written = [
        "EXISTS",
        &keys.events("{x"),
        &keys.objects_with_events(),
        &keys.operator_actions(),
    ];
    assert_eq!(scene.console.run::<u64>(&written).await, 0);
    assert_eq!(
        scene
            .console
            .run::<u64>(&["XLEN", &keys.events_dead()])
            .await,
        1
    );
}

/// The steps of an action replace their row. The row says what all steps have done, and when the
/// first one began.
#[tokio::test]
async fn the_steps_of_an_action_share_a_row() {
    let mut scene = Scene::new().await;
    for n in 1..=5 {
        scene
            .put(
                "XADD",
                "events.dead",
                &[&format!("{n}-0"), "object", "work:1", "event", "e"],
            )
            .await;
    }
    // A step that does nothing begins no row.
    assert_eq!(
        step(&mut scene, Settle::Drop, "", &["9-0"]).await,
        (vec![Settled::Gone], String::new())
    );
    assert_eq!(scene.items("operator.actions").await, [""; 0]);
    let (words, row) = step(
        &mut scene,
        Settle::Drop,
        "",
        &["9-0", "2-0", "9-1", "1-0", "9-2"],
    )
    .await;
    assert_eq!(
        words,
        [
            Settled::Gone,
            Settled::Dropped,
            Settled::Gone,
            Settled::Dropped,
            Settled::Gone
        ]
    );
    let shared = "NOW action drop who ada why a test object work:* id ";
    assert_eq!(
        scene.items("operator.actions").await,
        [format!("{shared} count 2 first 2-0 last 1-0")]
    );
    assert_eq!(
        step(&mut scene, Settle::Drop, &row, &["9-0"]).await,
        (vec![Settled::Gone], row.clone())
    );
    assert_eq!(
        scene.items("operator.actions").await,
        [format!("{shared} count 2 first 2-0 last 1-0")]
    );
    let (_, next) = step(&mut scene, Settle::Drop, &row, &["4-0"]).await;
    assert_ne!(next, row);
    assert_eq!(
        scene.items("operator.actions").await,
        [format!("{shared} count 3 first 2-0 last 4-0 began_ms NOW")]
    );
    // The rows of dead letters that are retried have another action, so they are other rows.
    let (words, other) = step(&mut scene, Settle::Retry, &next, &["3-0"]).await;
    assert_eq!((words, other == next), (vec![Settled::Retried], false));
    let retried =
        "NOW action retry who ada why a test object work:* id  count 1 first 3-0 last 3-0";
    let expected = [
        format!("{shared} count 3 first 2-0 last 4-0 began_ms NOW"),
        retried.to_owned(),
    ];
    assert_eq!(scene.items("operator.actions").await, expected);
    assert_eq!(scene.items("objects.with.events").await, ["work:1"]);
}

/// A step goes on with a row only if it has the same action, the same actor and a number. A row
/// without a beginning began with its own id.
#[tokio::test]
async fn a_step_goes_on_only_with_its_own_row() {
    for (fields, expected) in [
        (
            "action drop who ada count 7 first a last b began_ms 3",
            Some("count 8 first a last 1-0 began_ms 3"),
        ),
        (
            "action drop who ada count 7 last b",
            Some("count 8 first 1-0 last 1-0 began_ms 5"),
        ),
        ("action drop who ada first a last b", None),
        ("action drop who ada count x first a last b", None),
        ("action drop who bob count 7 first a last b", None),
        ("action retry who ada count 7 first a last b", None),
        ("action retry who bob count 7 first a last b", None),
    ] {
        let mut scene = Scene::new().await;
        scene
            .put(
                "XADD",
                "events.dead",
                &["1-0", "object", "work:1", "event", "e"],
            )
            .await;
        let words: Vec<&str> = fields.split(' ').collect();
        scene
            .put("XADD", "operator.actions", &[&["5-0"], &words[..]].concat())
            .await;
        step(&mut scene, Settle::Drop, "5-0", &["1-0"]).await;
        let row =
            |rest: &str| format!("NOW action drop who ada why a test object work:* id  {rest}");
        let kept = format!("5-0 {fields}");
        let rows = expected.map_or_else(
            || vec![kept, row("count 1 first 1-0 last 1-0")],
            |rest| vec![row(rest)],
        );
        assert_eq!(scene.items("operator.actions").await, rows, "{fields}");
    }
}

/// A release of many objects says which of them are due now, and wakes one worker. The record has
/// the conditions.
#[tokio::test]
async fn many_objects_are_released_under_conditions() {
    let objects = ["gone", "paused", "retry", "bare", "due", "operator"];
    let [paused, not_held, other, released] = [
        ReleasedOne::Paused,
        ReleasedOne::NotHeld,
        ReleasedOne::Other,
        ReleasedOne::Released,
    ];
    let due = ReleasedOne::Due;
    for (until_released, text, words, conditions) in [
        (
            false,
            "",
            [not_held, paused, released, released, due, released],
            "",
        ),
        (
            true,
            "",
            [not_held, paused, other, other, other, released],
            " until_released 1",
        ),
        (
            false,
            "down",
            [not_held, paused, released, other, due, released],
            " held_why down",
        ),
        (
            true,
            "down",
            [not_held, paused, other, other, other, released],
            " until_released 1 held_why down",
        ),
        (
            false,
            "attempts: down",
            [not_held, paused, other, other, other, released],
            " held_why attempts: down",
        ),
        (
            true,
            "up",
            [not_held, paused, other, other, other, other],
            "",
        ),
        (
            false,
            "%w",
            [not_held, paused, other, other, other, other],
            "",
        ),
    ] {
        let mut scene = Scene::new().await;
        for (object, due, why) in [
            ("retry", LATER, "retry: down"),
            ("due", "1", "retry: down"),
            ("operator", "inf", "attempts: down"),
            ("paused", LATER, "retry: down"),
        ] {
            scene
                .state
                .hold(object, due, &[], &format!("7 0 1 0 {why}"))
                .await;
        }
        scene.put("ZADD", "objects.held", &[LATER, "bare"]).await;
        scene.put("ZADD", "objects.paused", &["0", "paused"]).await;
        let (keys, record) = (
            scene.state.keys.clone(),
            Record {
                selected: b"*",
                row: "",
            },
        );
        let done = operator::release_many(
            &mut scene.state.conn,
            &keys,
            BY,
            operator::ReleaseMany {
                until_released,
                text,
                over: std::time::Duration::ZERO,
            },
            record,
            &objects,
        )
        .await;
        let (told, row) = done.expect("a reply");
        assert_eq!(told, words, "{until_released} {text:?}");
        let freed: Vec<&str> = objects
            .into_iter()
            .zip(words)
            .filter(|(_, word)| *word == released)
            .map(|(name, _)| name)
            .collect();
        let mut held: Vec<(u64, &str, &str)> = [
            ("retry", LATER),
            ("due", "1"),
            ("operator", "inf"),
            ("paused", LATER),
            ("bare", LATER),
        ]
        .map(|(name, due)| {
            if freed.contains(&name) {
                ("0", name)
            } else {
                (due, name)
            }
        })
        .map(|(due, name)| (due.parse().unwrap_or(u64::MAX), name, due))
        .to_vec();
        held.sort_unstable();
        let held: Vec<_> = held
            .into_iter()
            .map(|(_, name, due)| format!("{name} {due}"))
            .collect();
        assert_eq!(
            scene.items("objects.held").await,
            held,
            "{until_released} {text:?}"
        );
        let rows: Vec<String> = match &freed[..] {
            [] => Vec::new(),
            [first, ..] => {
                let (count, last) = (freed.len(), freed[freed.len() - 1]);
                vec![format!(
                    "NOW action release who ada why a test object * id  count {count} first {first} last {last}{conditions}"
                )]
            }
        };
        assert_eq!(
            (
                row.is_empty(),
                scene.items("objects.with.events").await.len()
            ),
            (rows.is_empty(), rows.len())
        );
        assert_eq!(
            scene.items("operator.actions").await,
            rows,
            "{until_released} {text:?}"
        );
    }
}
