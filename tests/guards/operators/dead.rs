//! `dead` and `release_many`: the word for each subject, and the record of the action.

use seriatim::keys::Keys;
use seriatim::wire::operator::{self, Record, Settle};

use super::{BY, acted, given, joined, row};
use crate::scene::Scene;

/// The most bytes of an event, or of an error, in the record of an action.
const KEPT: usize = 8192;

/// Dead letters. Only the first and the last can be retried.
const LETTERS: &str = "
    XADD events.dead 1-0 id 12 object work:1 event e1 error down
    XADD events.dead 2-0 id 13 object work:1
    XADD events.dead 3-0 event e3 error down
    XADD events.dead 4-0 id 14 object '' event e4
    XADD events.dead 5-0 id 15 object wrong event e5
    XADD events.dead 7-0 object work:2 event e7
    SET wrong:events x
";
const IDS: [&str; 7] = ["1-0", "2-0", "3-0", "4-0", "5-0", "6-0", "7-0"];

/// Settles these dead letters. Returns the words.
async fn settle(scene: &Scene, settle: Settle, ids: &[&str]) -> String {
    let mut conn = scene.conn().await;
    let words = operator::dead(&mut conn, &scene.keys, BY, settle, ids).await;
    joined(&words.expect("settled"))
}

/// Settles these dead letters in one step of an action on all of them. Returns the id of its row,
/// too.
async fn step(scene: &Scene, settle: Settle, row: &str, ids: &[&str]) -> (String, String) {
    let selected = b"work:*";
    let (mut conn, record) = (scene.conn().await, Record { selected, row });
    let done = operator::dead_in(&mut conn, &scene.keys, BY, settle, record, ids).await;
    let (words, row) = done.expect("settled");
    (joined(&words), row)
}

#[tokio::test]
async fn a_retry_queues_what_has_an_object_and_an_event() {
    let scene = given(LETTERS).await;
    assert_eq!(
        settle(&scene, Settle::Retry, &IDS).await,
        "Retried Unreadable Unreadable Unreadable WrongType Gone Retried"
    );
    let [one, two] = ["work:1 id 12 dead_id 1-0", "work:2 id  dead_id 7-0"];
    let changes = format!(
        "
        events.dead = {{2-0 id 13 object work:1, 3-0 event e3 error down, 4-0 id 14 object  event e4, 5-0 id 15 object wrong event e5}}
        objects.with.events = [work:1, work:2]
        operator.actions = {{{}, {}}}
        work:1: events = [e1]
        work:2: events = [e7]
        ",
        row("retry", one),
        row("retry", two)
    );
    scene.changed(&changes).await;
}

/// The word says whether the last delivered event of the object is newer than the dead one.
#[tokio::test]
async fn a_retry_says_whether_newer_events_were_delivered() {
    let scene = given("").await;
    for (last, id, expected) in [
        ("SET work:1:last.event.id 12", "11", "RetriedLate"),
        ("SET work:1:last.event.id 12", "12", "Retried"),
        ("SET work:1:last.event.id 12", "13", "Retried"),
        ("SET work:1:last.event.id 12", "x", "Retried"),
        ("SET work:1:last.event.id x", "11", "Retried"),
        (
            "SET work:1:last.event.id 99999999999999999999",
            "11",
            "Retried",
        ),
        ("LPUSH work:1:last.event.id 12", "11", "Retried"),
        ("", "11", "Retried"),
    ] {
        // With one record for many, it counts, too.
        for is_step in [false, true] {
            let letter = format!("XADD events.dead 1-0 id {id} object work:1 event e1; ");
            scene.again(&(letter + last)).await;
            let (words, record) = if is_step {
                let (words, row) = step(&scene, Settle::Retry, "", &["1-0"]).await;
                assert!(!row.is_empty());
                (words, "work:* id  count 1 first 1-0 last 1-0".to_owned())
            } else {
                let words = settle(&scene, Settle::Retry, &["1-0"]).await;
                (words, format!("work:1 id {id} dead_id 1-0"))
            };
            assert_eq!(words, expected, "{last} {id}");
            let changes = "
                events.dead = {}
                objects.with.events = [work:1]
                work:1: events = [e1]
            ";
            let record = acted("retry", &record);
            scene.changed(&(changes.to_owned() + &record)).await;
        }
    }
}

#[tokio::test]
async fn a_drop_deletes_each_letter() {
    let scene = given(LETTERS).await;
    assert_eq!(
        settle(&scene, Settle::Drop, &IDS).await,
        "Dropped Dropped Dropped Dropped Dropped Gone Dropped"
    );
    let rows = [
        "work:1 id 12 dead_id 1-0 error down event e1",
        "work:1 id 13 dead_id 2-0 error  event ",
        " id  dead_id 3-0 error down event e3",
        " id 14 dead_id 4-0 error  event e4",
        "wrong id 15 dead_id 5-0 error  event e5",
        "work:2 id  dead_id 7-0 error  event e7",
    ];
    let rows = rows.map(|rest| row("drop", rest)).join(", ");
    let changes = format!("events.dead = {{}}\noperator.actions = {{{rows}}}");
    scene.changed(&changes).await;
}

/// The record has the first 8 KiB of the event and of the error.
#[tokio::test]
async fn the_record_of_a_drop_is_cut() {
    for (bytes, length) in [(KEPT, ""), (KEPT + 1, " event_bytes 8193")] {
        let (event, error) = ("e".repeat(bytes), "r".repeat(bytes));
        let letter = format!("XADD events.dead 1-0 object o event {event} error {error}");
        let scene = given(&letter).await;
        assert_eq!(settle(&scene, Settle::Drop, &["1-0"]).await, "Dropped");
        let words = ["XRANGE", &scene.keys.operator_actions(), "-", "+"];
        let rows: Vec<(String, Vec<String>)> = scene.run(&words).await;
        let (event, error) = (&event[..KEPT], &error[..KEPT]);
        let kept = format!("o id  dead_id 1-0 error {error} event {event}{length}");
        let fields = format!("NOW {}", rows[0].1.join(" "));
        assert!(rows.len() == 1 && fields == row("drop", &kept), "{bytes}");
    }
}

/// Without a namespace, a name that begins with a brace belongs to another one, and gets no event.
#[tokio::test]
async fn a_letter_of_a_foreign_name_is_not_retried() {
    let scene = Scene::under(Keys::new()).await;
    scene.add("XADD events.dead 1-0 object {x event 1").await;
    assert_eq!(settle(&scene, Settle::Retry, &["1-0"]).await, "Unreadable");
    scene.changed("").await;
}

/// The steps of an action replace their row. The row says what all steps have done, and when the
/// first one began.
#[tokio::test]
async fn the_steps_of_an_action_share_a_row() {
    let letter = |n| format!("XADD events.dead {n}-0 object work:1 event e; ");
    let scene = given(&(1..=5).map(letter).collect::<String>()).await;
    let no_row = ("Gone".to_owned(), String::new());
    assert_eq!(step(&scene, Settle::Drop, "", &["9-0"]).await, no_row);
    scene.changed("").await;
    let ids = ["9-0", "2-0", "9-1", "1-0", "9-2"];
    let (words, row) = step(&scene, Settle::Drop, "", &ids).await;
    assert_eq!(words, "Gone Dropped Gone Dropped Gone");
    let letters = "events.dead = {3-0 object work:1 event e, 4-0 object work:1 event e, 5-0 object work:1 event e}\n";
    let of_all = |rest: &str| acted("drop", &format!("work:* id  {rest}"));
    let rows = of_all("count 2 first 2-0 last 1-0");
    scene.changed(&(letters.to_owned() + &rows)).await;
    let nothing = ("Gone".to_owned(), row.clone());
    assert_eq!(step(&scene, Settle::Drop, &row, &["9-0"]).await, nothing);
    scene.changed("").await;
    let (_, next) = step(&scene, Settle::Drop, &row, &["4-0"]).await;
    assert_ne!(next, row);
    let letters = "events.dead = {3-0 object work:1 event e, 5-0 object work:1 event e}\n";
    let rows = of_all("count 3 first 2-0 last 4-0 began_ms NOW");
    scene.changed(&(letters.to_owned() + &rows)).await;
    // The rows of dead letters that are retried have another action, so they are other rows.
    let (words, other) = step(&scene, Settle::Retry, &next, &["3-0"]).await;
    assert_eq!((words.as_str(), other == next), ("Retried", false));
    let retried = super::row("retry", "work:* id  count 1 first 3-0 last 3-0");
    let changes = format!(
        "
        events.dead = {{5-0 object work:1 event e}}
        objects.with.events = [work:1]
        {}, {retried}}}
        work:1: events = [e]
        ",
        rows.trim_end().trim_end_matches('}')
    );
    scene.changed(&changes).await;
}

/// A step goes on with a row only if it has the same action, the same actor and a number. A row
/// without a beginning began with its own id.
#[tokio::test]
async fn a_step_goes_on_only_with_its_own_row() {
    let scene = given("").await;
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
        let letter = "XADD events.dead 1-0 object work:1 event e; XADD operator.actions 5-0 ";
        scene.again(&(letter.to_owned() + fields)).await;
        let (words, _) = step(&scene, Settle::Drop, "5-0", &["1-0"]).await;
        assert_eq!(words, "Dropped");
        let row = |rest| row("drop", &format!("work:* id  {rest}"));
        let rows = expected.map_or_else(
            || format!("5-0 {fields}, {}", row("count 1 first 1-0 last 1-0")),
            row,
        );
        let changes = format!("events.dead = {{}}\noperator.actions = {{{rows}}}");
        scene.changed(&changes).await;
    }
}

/// A release of many objects says which of them are due now, and wakes one worker. The record has
/// the conditions.
#[tokio::test]
async fn many_objects_are_released_under_conditions() {
    const HELD: &str = "
        hold retry 99999999999999 '7 0 1 0 retry: down'; hold due 1 '7 0 1 0 retry: down'
        hold operator inf '7 0 1 0 attempts: down'
        hold paused 99999999999999 '7 0 1 0 retry: down'
        ZADD objects.held 99999999999999 bare; ZADD objects.paused 0 paused
    ";
    const ALL: &str = "<bare: 0, operator: 0, retry: 0, due: 1, paused: 99999999999999>";
    const TWO: &str =
        "<operator: 0, retry: 0, due: 1, bare: 99999999999999, paused: 99999999999999>";
    const ONE: &str = "<operator: 0, due: 1, bare: 99999999999999, paused: 99999999999999, retry: 99999999999999>";
    let objects = ["gone", "paused", "retry", "bare", "due", "operator"];
    let scene = given("").await;
    for (until_released, text, words, held, record) in [
        (
            false,
            "",
            "Released Released Due Released",
            ALL,
            "count 3 first retry last operator",
        ),
        (
            true,
            "",
            "Other Other Other Released",
            ONE,
            "count 1 first operator last operator until_released 1",
        ),
        (
            false,
            "down",
            "Released Other Due Released",
            TWO,
            "count 2 first retry last operator held_why down",
        ),
        (
            true,
            "down",
            "Other Other Other Released",
            ONE,
            "count 1 first operator last operator until_released 1 held_why down",
        ),
        (
            false,
            "attempts: down",
            "Other Other Other Released",
            ONE,
            "count 1 first operator last operator held_why attempts: down",
        ),
        (true, "up", "Other Other Other Other", "", ""),
        (false, "%w", "Other Other Other Other", "", ""),
    ] {
        scene.again(HELD).await;
        let which = operator::ReleaseMany {
            until_released,
            text,
            over: std::time::Duration::ZERO,
        };
        let (selected, row) = (&b"*"[..], "");
        let (mut conn, one) = (scene.conn().await, Record { selected, row });
        let done = operator::release_many(&mut conn, &scene.keys, BY, which, one, &objects).await;
        let (found, row) = done.expect("a reply");
        assert_eq!(
            joined(&found),
            format!("NotHeld Paused {words}"),
            "{text:?}"
        );
        assert_eq!(row.is_empty(), record.is_empty());
        if record.is_empty() {
            scene.changed("").await;
            continue;
        }
        let changes = format!("objects.held = {held}\nobjects.with.events = []\n");
        let record = acted("release", &format!("* id  {record}"));
        scene.changed(&(changes + &record)).await;
    }
}
