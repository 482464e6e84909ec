//! The finalized events of one object, from the event log and the dead letters.

use serde_json::{Value, json};
use seriatim::control::chain::{EVENT_BYTES_MAX, LOOKED_MAX};
use seriatim::control::{
    ChainPage, ControlError, Cursor, EndedEvent, EventStatus, RowEvent, RowId,
};

use crate::state::State;
use crate::support::{Redis, assert_matches};

/// Adds a row to the log.
async fn logged(state: &mut State, row: &str, object: &str, fields: &[&str]) {
    let log = state.keys.event_log();
    state
        .run("XADD", &[&[&log, row, "object", object], fields].concat())
        .await;
}

/// Reads all pages. Returns the rows, and the number of pages.
async fn all(state: &State, object: &str, count: usize) -> (Vec<EndedEvent>, usize) {
    let control = state.control();
    let (mut rows, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = control
            .chain(object, after.as_ref(), count)
            .await
            .expect("a page");
        assert!(
            page.rows.len() <= count && page.log_rows + page.dead_letters <= LOOKED_MAX,
            "{page:?}"
        );
        rows.extend(page.rows);
        (after, pages) = (page.next, pages + 1);
        if after.is_none() {
            return (rows, pages);
        }
    }
}

/// A row has everything that both streams have of an event.
#[tokio::test]
async fn a_row_shows_the_event_and_its_end() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    assert_eq!(
        state
            .control()
            .chain("work:1", None, 10)
            .await
            .expect("a page"),
        ChainPage::default()
    );
    let both = [
        "id", "12", "prev", "7", "error", "no\nway", "attempts", "3", "event", "{}",
    ];
    let log = ["status", "dead", "taken", "1690", "results", "{\"mail\":1}"];
    logged(&mut state, "1700-0", "work:1", &[&both[..], &log].concat()).await;
    state.dead_letter("1701-0", "work:1", b"{}").await;
    state.dead_letter("1800-0", "work:2", b"other").await;
    let mut add = redis::cmd("XADD");
    add.arg(keys.events_dead())
        .arg("1801-0")
        .arg(&["id", "15", "object", "work:1", "event"])
        .arg(b"\xff");
    add.query_async::<String>(&mut state.conn)
        .await
        .expect("XADD");
    let whole = format!("\"{}\"", "x".repeat(EVENT_BYTES_MAX));
    logged(
        &mut state,
        "1900-0",
        "work:1",
        &["status", "completed", "id", "13", "event", &whole],
    )
    .await;
    let page = state
        .control()
        .chain("work:1", None, 10)
        .await
        .expect("a page");
    assert_eq!(
        (
            page.next,
            page.log_rows,
            page.dead_letters,
            page.unreadable.len()
        ),
        (None, 2, 3, 0)
    );
    let [large, letter, dead] = &page.rows[..] else {
        panic!("{:?}", page.rows)
    };
    assert_eq!(
        (
            large.id,
            large.event.as_ref().map(|event| event.bytes().len()),
            large.event.as_ref().and_then(RowEvent::whole_bytes)
        ),
        (Some(13), Some(4096), Some(4098))
    );
    // This dead letter has no log row.
    assert_eq!(
        (letter.status.clone(), letter.at_ms, letter.taken_ms),
        (EventStatus::Dead, 1801, None)
    );
    let shown: Value = serde_json::to_value(letter).expect("JSON");
    assert_eq!(
        (&shown["event_hex"], &shown["dead_id"]),
        (&json!("ff"), &json!("1801-0"))
    );
    let expected = json!({
        "id": 12, "prev": 7, "status": "dead", "attempts": 3, "error": "no\nway", "results": {"mail": 1},
        "taken_ms": 1690, "at_ms": 1700, "dead_id": "1701-0", "event": {},
    });
    assert_eq!(serde_json::to_value(dead).expect("JSON"), expected);
    // The limit of the handle is used instead, also if it is higher.
    for (limit, bytes) in [(3, 3), (EVENT_BYTES_MAX + 10, whole.len())] {
        let control = state.control().with_event_bytes_max(limit);
        let page = control.chain("work:1", None, 1).await.expect("a page");
        let event = page.rows[0].event.as_ref().expect("an event");
        assert_eq!(
            (event.bytes().len(), !event.is_whole()),
            (bytes, bytes == 3)
        );
    }
}

/// Long results are left out, and long errors are cut. The fields of a row of another program have
/// any form.
#[tokio::test]
async fn each_value_of_a_row_is_bounded() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let (fits, long) = (
        format!("\"{}\"", "x".repeat(65_534)),
        format!("\"{}\"", "x".repeat(65_535)),
    );
    logged(
        &mut state,
        "1-0",
        "o",
        &[
            "results", &long, "error", &long, "status", "new", "id", "x", "prev", "-1",
        ],
    )
    .await;
    logged(
        &mut state,
        "2-0",
        "o",
        &["results", &fits, "object", "p", "object", "o"],
    )
    .await;
    logged(&mut state, "3-0", "o", &["object", "p"]).await;
    let page = state.control().chain("o", None, 10).await.expect("a page");
    let [second, first] = &page.rows[..] else {
        panic!("{:?}", page.rows)
    };
    assert_eq!(
        (
            second.results.as_ref().map(String::len),
            first.results.clone()
        ),
        (Some(65_536), None)
    );
    assert_eq!(
        (
            first.error.as_ref().map(String::len),
            first.id,
            first.prev,
            first.event.clone()
        ),
        (Some(4096), None, None, None)
    );
    assert_eq!(first.status.as_str(), "new");
}

/// All pages together have each event once, whatever the size of a page is. A page may be empty
/// although there is a next one.
#[tokio::test]
async fn pages_have_each_event_once() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let (mut fill, mut expected) = (redis::pipe(), Vec::new());
    for id in 1..=1500_u64 {
        let object = if id % 97 < 3 { "work:1" } else { "other" };
        let (row, number) = (format!("{}-0", 1000 + id), id.to_string());
        let fields = ["id", &number, "object", object];
        let is_dead = id % 3 == 0;
        if is_dead {
            fill.cmd("XADD")
                .arg(state.keys.events_dead())
                .arg(&row)
                .arg(&fields)
                .ignore();
        }
        // In the middle, the event log was off.
        let is_logged = !(700..800).contains(&id);
        if is_logged {
            let status = if is_dead { "dead" } else { "completed" };
            fill.cmd("XADD")
                .arg(state.keys.event_log())
                .arg(&row)
                .arg(&fields)
                .arg(&["status", status])
                .ignore();
        }
        if object == "work:1" && (is_dead || is_logged) {
            expected.insert(0, (Some(id), is_dead.then(|| RowId::from(row))));
        }
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
    for count in [1, 7, 100] {
        let (rows, pages) = all(&state, "work:1", count).await;
        assert_eq!(
            rows.into_iter()
                .map(|row| (row.id, row.dead_id))
                .collect::<Vec<_>>(),
            expected,
            "pages of {count}"
        );
        assert!(pages > expected.len() / count, "{pages} pages of {count}");
    }
    let (rows, pages) = all(&state, "work:none", 100).await;
    assert!(rows.is_empty() && (4..=8).contains(&pages), "{pages} pages");
    // An event that is added later does not change the next page.
    let control = state.control();
    let first = control.chain("work:1", None, 2).await.expect("a page");
    state.dead_letter("9000-0", "work:1", b"{}").await;
    let second = control
        .chain("work:1", first.next.as_ref(), 2)
        .await
        .expect("a page");
    assert_eq!(
        [second.rows[0].id, second.rows[1].id],
        [expected[2].0, expected[3].0]
    );
}

/// A call reads about 1 MiB of each stream, however large the rows are.
#[tokio::test]
async fn a_page_ends_when_enough_was_read() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let large = "x".repeat(400_000);
    for n in 1..=7 {
        logged(&mut state, &format!("{n}-0"), "other", &["event", &large]).await;
        state
            .dead_letter(&format!("{n}-0"), "other", large.as_bytes())
            .await;
    }
    let control = state.control();
    let page = control.chain("work:1", None, 10).await.expect("a page");
    assert_eq!(
        (
            page.log_rows,
            page.dead_letters,
            page.rows.len(),
            page.next.is_some()
        ),
        (3, 3, 0, true)
    );
    // The look at the last events goes on.
    let ended = control.ended("work:1").await.expect("an answer");
    assert_eq!(
        (ended.log_rows, ended.dead_letters, ended.complete),
        (7, 7, true)
    );
}

/// A stream of a wrong type is named, and the other one is read. A cursor of another list is
/// refused.
#[tokio::test]
async fn the_chain_goes_on_beside_a_wrong_type() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    state.dead_letter("1700-0", "work:1", b"{}").await;
    state.add("SET event.log 1").await;
    let control = state.control();
    let page = control.chain("work:1", None, 10).await.expect("a page");
    assert_eq!(
        (page.unreadable, page.rows.len(), page.next),
        (vec![keys.event_log()], 1, None)
    );
    for cursor in [
        "1700-0",
        "chain 1700-0",
        "chain x -",
        "chain - - -",
        "name x",
    ] {
        let refused = control
            .chain("work:1", Some(&Cursor::from(cursor)), 10)
            .await
            .expect_err("no cursor");
        assert_matches!(refused, ControlError::Cursor(text) if text == cursor);
    }
    assert_matches!(
        control.chain("", None, 10).await,
        Err(ControlError::Name(_))
    );
}
