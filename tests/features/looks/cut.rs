//! Events that are cut: lists of the log and of the dead letters with a maximum of bytes.

use serde_json::{Value, json};
use seriatim::control::{By, Control, Cursor, RowEvent, RowId, Settle};

use crate::state::State;
use crate::support::Redis;
use crate::support::operator::Reads;

/// Adds a row with this event to the log and to the dead letters. Both rows have the same id.
async fn row(state: &mut State, id: &str, object: &str, event: &[u8]) {
    for stream in [state.keys.event_log(), state.keys.events_dead()] {
        let mut add = redis::cmd("XADD");
        add.arg(stream)
            .arg(id)
            .arg(&[
                "status", "dead", "id", "7", "object", object, "error", "no", "event",
            ])
            .arg(event);
        add.query_async::<String>(&mut state.conn)
            .await
            .expect("XADD");
    }
}

/// Returns the events and lengths in all lists with this limit, after a check that they agree.
async fn cut(state: &State, bytes: usize) -> Vec<(Vec<u8>, Option<u64>)> {
    let control = state.control().with_event_bytes_max(bytes);
    let log = control.logged(100).await;
    let mut newest_log = control.newest_log(None, 100).await.expect("a page").entries;
    newest_log.reverse();
    let dead = control
        .dead_letters(None, 32)
        .await
        .expect("a page")
        .letters;
    let mut newest_dead = control
        .newest_dead_letters(None, 32)
        .await
        .expect("a page")
        .letters;
    newest_dead.reverse();
    let of = control
        .dead_letters_of("work:1", false, None, 32)
        .await
        .expect("a page")
        .letters;
    let mut each = Vec::new();
    for letter in &dead {
        each.extend(control.dead_letter(&letter.dead_id).await.expect("asked"));
    }
    assert_eq!(
        (&log, &dead, &dead, &dead),
        (&newest_log, &newest_dead, &of, &each)
    );
    let (log, dead) = (
        log.into_iter().map(|row| shown(row.event)),
        dead.into_iter(),
    );
    let log: Vec<_> = log.collect();
    assert_eq!(
        log,
        dead.map(|letter| shown(letter.event)).collect::<Vec<_>>()
    );
    log
}

/// Returns the bytes of an event in a list, and the length of the whole event if they are not all of it.
fn shown(event: RowEvent) -> (Vec<u8>, Option<u64>) {
    (event.bytes().to_vec(), event.whole_bytes())
}

/// A list has at most the given number of bytes of each event, and the length of each cut event. By
/// default events are whole.
#[tokio::test]
async fn events_are_cut_to_the_limit() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let events: [&[u8]; 4] = [
        b"12345678",
        b"\"\xc3\xa9\xc3\xa9\xc3\xa9\"",
        b"\xff\xfe\xfd\xfc\xfb\xfa",
        b"1",
    ];
    for (n, event) in events.iter().enumerate() {
        row(&mut state, &format!("{}-0", n + 1), "work:1", event).await;
    }
    assert_eq!(
        cut(&state, 0).await,
        events.map(|event| (event.to_vec(), None))
    );
    assert_eq!(
        cut(&state, 8).await,
        events.map(|event| (event.to_vec(), None))
    );
    let expected: [(&[u8], Option<u64>); 4] = [
        (b"1234", Some(8)),
        (b"\"\xc3\xa9", Some(8)),
        (b"\xff\xfe\xfd\xfc", Some(6)),
        (b"1", None),
    ];
    assert_eq!(
        cut(&state, 4).await,
        expected.map(|(event, bytes)| (event.to_vec(), bytes))
    );
    assert_eq!(cut(&state, 1).await[3], (b"1".to_vec(), None));
    assert_eq!(cut(&state, 1).await[0], (b"1".to_vec(), Some(8)));
}

/// A cut event is text in JSON, although its beginning may be JSON too. Its length follows.
#[tokio::test]
async fn a_cut_event_is_no_json() {
    let (_redis, mut state) = Redis::start().with_state().await;
    row(&mut state, "1-0", "work:1", b"12345678").await;
    let printed = async |control: Control| {
        let log = control.logged(1).await.remove(0);
        let dead = control
            .dead_letters(None, 1)
            .await
            .expect("a page")
            .letters
            .remove(0);
        let members =
            |value: Value| ["event", "event_text", "event_bytes"].map(|name| value[name].clone());
        [serde_json::to_value(log), serde_json::to_value(dead)]
            .map(|value| members(value.expect("JSON")))
    };
    let whole = state.control();
    assert_eq!(
        printed(whole.clone().with_event_bytes_max(3)).await,
        [
            [Value::Null, json!("123"), json!(8)],
            [Value::Null, json!("123"), json!(8)]
        ]
    );
    assert_eq!(
        printed(whole).await,
        [
            [json!(12345678), Value::Null, Value::Null],
            [json!(12345678), Value::Null, Value::Null]
        ]
    );
}

/// A row of another program has several events, and a wrong length. All its events are cut, and an
/// event that is whole has no length.
#[tokio::test]
async fn a_row_of_another_program_is_cut_too() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let log = state.keys.event_log();
    state
        .run(
            "XADD",
            &[
                &log,
                "1-0",
                "event",
                "12345678",
                "event",
                "123456",
                "event_bytes",
                "3",
            ],
        )
        .await;
    state
        .run("XADD", &[&log, "2-0", "event_bytes", "1", "event", "1"])
        .await;
    let rows = control.with_event_bytes_max(2).logged(10).await;
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.event.bytes(), row.event.whole_bytes()))
        .collect();
    assert_eq!(shown, [(&b"12"[..], Some(6)), (b"1", None)]);
}

/// With a limit, a page ends when its rows have 1 MiB in Redis, and the cursor leads to all others.
/// Story: a page of dead letters read until it had all its rows, so 32 MiB for events of 1 MiB.
#[tokio::test]
async fn a_page_ends_when_enough_was_read() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let large = format!("\"{}\"", "x".repeat(400_000));
    for n in 1..=7 {
        row(
            &mut state,
            &format!("{n}-0"),
            ["work:1", "work:2"][n % 2],
            large.as_bytes(),
        )
        .await;
    }
    let control = state.control();
    assert_eq!(
        control
            .dead_letters(None, 32)
            .await
            .expect("a page")
            .letters
            .len(),
        7
    );
    let control = control.with_event_bytes_max(10);
    for newest in [false, true] {
        let (mut pages, mut of, mut after): (Vec<usize>, Vec<usize>, Option<Cursor>) =
            (Vec::new(), Vec::new(), None);
        loop {
            let page = match newest {
                true => control.newest_dead_letters(after.as_ref(), 32).await,
                false => control.dead_letters(after.as_ref(), 32).await,
            };
            let page = page.expect("a page");
            let found = control
                .dead_letters_of("work:1", newest, after.as_ref(), 32)
                .await
                .expect("a page");
            assert_eq!(found.next, page.next);
            pages.push(page.letters.len());
            of.push(found.letters.len());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(
            (pages, of),
            (vec![3, 3, 1], vec![1, 2, 0]),
            "newest: {newest}"
        );
    }
    // A page with all requested rows is not the last one.
    assert!(
        control
            .dead_letters(None, 3)
            .await
            .expect("a page")
            .next
            .is_some()
    );
    assert_eq!(control.logged(100).await.len(), 3);
}

/// After 256 KiB, a read has one row, so that it takes Redis no longer than the largest row. Before,
/// it has two.
#[tokio::test]
async fn a_read_after_large_rows_has_one_row() {
    for (first, rows) in [(100, 3), (230_000, 3), (300_000, 2), (1_048_576, 1)] {
        let (_redis, mut state) = Redis::start().with_state().await;
        for (n, bytes) in [first, 1_048_576, 1_048_576, 1_048_576]
            .into_iter()
            .enumerate()
        {
            row(
                &mut state,
                &format!("{}-0", n + 1),
                "work:1",
                format!("\"{}\"", "x".repeat(bytes)).as_bytes(),
            )
            .await;
        }
        let control = state.control().with_event_bytes_max(10);
        assert_eq!(
            control.logged(100).await.len(),
            rows,
            "the log after {first} bytes"
        );
        assert_eq!(
            control
                .dead_letters(None, 32)
                .await
                .expect("a page")
                .letters
                .len(),
            rows,
            "{first} bytes"
        );
    }
}

/// Actions on all dead letters reach each of them, whatever the limit and the size of the events.
#[tokio::test]
async fn steps_reach_all_dead_letters_with_any_limit() {
    let by = By {
        who: "ada",
        why: "a test",
    };
    for limit in [0, 1, 10] {
        let (_redis, mut state) = Redis::start().with_state().await;
        let large = format!("\"{}\"", "x".repeat(700_000));
        for n in 1..=5 {
            row(&mut state, &format!("{n}-0"), "work:1", large.as_bytes()).await;
        }
        row(&mut state, "6-0", "work:2", b"1").await;
        let control = state.control().with_event_bytes_max(limit);
        // A step does not read more than its bytes, so it covers two of these dead letters.
        let first = control
            .settle_step(by, Settle::Drop, Some(b"work:1"), None)
            .await
            .expect("a step");
        assert_eq!((first.done, first.next.is_some()), (2, true));
        let all = control
            .settle_all(by, Settle::Retry, None)
            .await
            .expect("settled");
        assert_eq!((all.done, all.left), (4, 0));
        let left: usize = redis::cmd("LLEN")
            .arg(state.keys.events("work:1"))
            .query_async(&mut state.conn)
            .await
            .expect("LLEN");
        assert_eq!(left, 3);
        // The events are retried whole.
        let event: String = redis::cmd("LINDEX")
            .arg(state.keys.events("work:1"))
            .arg(0)
            .query_async(&mut state.conn)
            .await
            .expect("LINDEX");
        assert!(event == large, "{} bytes", event.len());
        let none = control
            .dead_letter(&RowId::from("1-0"))
            .await
            .expect("asked");
        assert_eq!(none, None);
    }
}
