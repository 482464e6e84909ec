//! Lists of one object that were filtered in Redis: actions and dead letters.

use seriatim::control::actions::{LOOKED_MAX, PER_CALL_MAX};
use seriatim::control::dead;
use seriatim::control::{By, ControlError, Cursor, RowEvent, Settle};

use crate::support::operator::Reads;
use crate::support::{Redis, assert_matches};

/// The list has the actions on one object and no other, with all their fields.
#[tokio::test]
async fn the_actions_on_one_object_are_listed() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let by = By {
        who: "ada@host",
        why: "a look",
    };
    let control = state.control();
    for (id, object, bytes) in [
        ("1-0", "work:1", 10_000),
        ("2-0", "work:2", 1),
        ("3-0", "work:1", 1),
    ] {
        state
            .dead_letter(id, object, "x".repeat(bytes).as_bytes())
            .await;
        control
            .settle(by, Settle::Drop, &[id.into()])
            .await
            .expect("settled");
    }
    state
        .hold("work:1", "inf", &["1"], "7 1 1 1 retry: down")
        .await;
    control.release(by, "work:1").await.expect("released");
    let all = control.recorded(32).await;
    let of = control
        .actions_of("work:1", None, 32)
        .await
        .expect("the actions");
    assert_eq!(
        (of.actions, of.next),
        (vec![all[0].clone(), all[1].clone(), all[3].clone()], None)
    );
    assert_eq!(
        all[3].event.as_ref().and_then(RowEvent::whole_bytes),
        Some(10_000)
    );
    // Pages of any size give the same list.
    let first = control
        .actions_of("work:1", None, 1)
        .await
        .expect("the actions");
    assert_eq!(first.actions, [all[0].clone()]);
    let rest = control
        .actions_of("work:1", first.next.as_ref(), 2)
        .await
        .expect("the actions");
    assert_eq!(rest.actions, [all[1].clone(), all[3].clone()]);
    let refused = control
        .actions_of("work:1", Some(&Cursor::from("x")), 1)
        .await
        .expect_err("no cursor");
    assert_matches!(refused, ControlError::Cursor(_));
    state.add("DEL operator.actions").await;
    assert_eq!(
        control
            .actions_of("work:1", None, 1)
            .await
            .expect("the actions")
            .next,
        None
    );
    state.add("SET operator.actions 1").await;
    assert_matches!(
        control.actions_of("work:1", None, 1).await,
        Err(ControlError::Redis { .. })
    );
}

/// Story: the key of a cancelled schedule, and the name of a cron job, were not read for one object.
#[tokio::test]
async fn the_actions_on_one_object_have_the_fields_of_all_actions() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    let row = [
        "action", "odd", "who", "ada", "why", "a look", "object", "work:1", "id", "7", "dead_id",
        "1-0", "cron", "c\\d",
    ];
    let more = [
        "key",
        "k\\l",
        "error",
        "no",
        "event",
        "1",
        "event_bytes",
        "9",
        "count",
        "2",
        "first",
        "a\\b",
        "last",
        "z",
    ];
    let end = ["began_ms", "5", "until_released", "1", "held_why", "down"];
    state
        .run(
            "XADD",
            &[&[&*keys.operator_actions(), "1-0"][..], &row, &more, &end].concat(),
        )
        .await;
    let control = state.control();
    let all = control.recorded(1).await;
    assert_eq!(
        control
            .actions_of("work:1", None, 1)
            .await
            .expect("the actions")
            .actions,
        all
    );
    assert_eq!(
        (all[0].key.as_deref(), all[0].key_escaped.as_deref()),
        (Some("k\\l"), Some("k\\\\l"))
    );
    assert_eq!(
        (all[0].cron.as_deref(), all[0].cron_escaped.as_deref()),
        (Some("c\\d"), Some("c\\\\d"))
    );
    let many = all[0].many.as_ref().expect("many objects");
    assert_eq!(
        (
            &*many.first,
            many.first_escaped.as_deref(),
            many.last_escaped.as_deref()
        ),
        ("a\\b", Some("a\\\\b"), None)
    );
}

/// A call looks at so many rows, and its cursor leads on, even if it has found none.
#[tokio::test]
async fn a_call_looks_at_so_many_rows() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    let dead_max = dead::LOOKED_MAX / 4;
    let mut fill = redis::pipe();
    for (stream, looked) in [
        (keys.operator_actions(), LOOKED_MAX),
        (keys.events_dead(), dead_max),
    ] {
        let count = 2 * looked + 20;
        for n in 1..=count {
            let object = if [1, count].contains(&n) {
                "rare"
            } else {
                "other"
            };
            fill.cmd("XADD")
                .arg(&stream)
                .arg(format!("{n}-0"))
                .arg(&["action", "drop", "object", object, "event", "1"])
                .ignore();
        }
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
    let whole = state.control();
    let cut = whole.clone().with_event_bytes_max(100);
    let (mut actions, mut letters, mut places) = (Vec::new(), Vec::new(), [None, None]);
    for page in 1..=3 {
        let of = whole
            .actions_of("rare", places[0].as_ref(), PER_CALL_MAX)
            .await
            .expect("a page");
        let dead = cut
            .dead_letters_of("rare", true, places[1].as_ref(), 32)
            .await
            .expect("a page");
        actions.push(of.actions.len());
        letters.push(dead.letters.len());
        let expected = |looked| {
            (page < 3).then(|| Cursor::from(format!("{}-0", 2 * looked + 21 - page * looked)))
        };
        assert_eq!(
            (&of.next, &dead.next),
            (&expected(LOOKED_MAX), &expected(dead_max))
        );
        places = [of.next, dead.next];
    }
    assert_eq!((actions, letters), (vec![1, 0, 1], vec![1, 0, 1]));
    // Without the limit, a call looks at more dead letters.
    let dead = whole
        .dead_letters_of("rare", false, None, 32)
        .await
        .expect("a page");
    assert_eq!((dead.letters.len(), dead.next), (2, None));
}

/// A call reads about 1 MiB of actions, however large they are.
#[tokio::test]
async fn a_call_reads_so_many_bytes() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let log = state.keys.operator_actions();
    let large = "x".repeat(400_000);
    for n in 1..=7 {
        state
            .run(
                "XADD",
                &[&log, &format!("{n}-0"), "object", "other", "event", &large],
            )
            .await;
    }
    let page = control
        .actions_of("work:1", None, 32)
        .await
        .expect("a page");
    assert_eq!(
        (page.actions.len(), page.next),
        (0, Some(Cursor::from("5-0")))
    );
}
