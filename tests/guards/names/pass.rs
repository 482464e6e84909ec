//! The pass of `adopt` over all registered names.

use std::collections::BTreeMap;

use super::{AGES, LOOK, NOTHING, given, sweep};
use crate::scene::Scene;

/// Returns the departed names, each with the time of its next look.
async fn departed(scene: &Scene) -> BTreeMap<String, u64> {
    let key = scene.keys.event_workers_departed();
    scene.run(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await
}

/// The score of a name that a pass finds is its last sign of life. A round looks at some of these
/// names at once, the others wait.
#[tokio::test]
async fn a_pass_makes_names_in_neither_set_departed() {
    let name = |n| format!(" {n} '72 t {}'", 1000 + n);
    let names: String = (1..=100).map(name).collect();
    // The name is the last one of all, because its last sign of life counts as one of the present.
    let scene = given(&format!(
        "
        HSET event.workers{names} ahead '72 t NOW+60m'
        ZADD event.workers.watched NOW+1m 50; ZADD event.workers.departed NOW+1m 51
        "
    ))
    .await;
    assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
    let now = scene.now_ms().await;
    let forget_ms = u64::try_from(AGES.as_millis()).expect("a time");
    // Each half of a round looks at 32 names of 72 slots.
    let mut expected = BTreeMap::from([
        ("ahead".to_owned(), now + 1000),
        ("51".to_owned(), now + 60_000),
    ]);
    for n in (1..=100).filter(|n| ![50, 51].contains(n)) {
        let is_looked_at = n <= 32 || n >= 70;
        let ends = if is_looked_at { forget_ms + 1 } else { 0 };
        expected.insert(n.to_string(), 1000 + n + ends);
    }
    assert_eq!(departed(&scene).await, expected);
    assert_eq!(scene.at("event.workers.watched").await, "<50: NOW+1m>");
    let meta = "{clock: NOW, names.indexed: NOW, names.next: NOW+1s}";
    assert_eq!(scene.at("seriatim.meta").await, meta);
}

/// A round takes one step of the pass, with about 256 names.
#[tokio::test]
async fn a_pass_takes_one_step_in_a_round() {
    let names: String = (0..1000).map(|n| format!(" {n} '72 t NOW-{n}s'")).collect();
    let scene = given(&format!("HSET event.workers{names}")).await;
    let workers = scene.keys.event_workers();
    // Each of these reads moves a part of the table, until all names are in the larger one.
    let read = "for n = 1, 3000 do redis.call('HGET', KEYS[1], 'x') end";
    scene.run::<()>(&["EVAL", read, "1", &workers]).await;
    let (mut cursor, mut steps, mut found) = ("0".to_owned(), 0, Vec::new());
    loop {
        let words = ["HSCAN", &workers, &cursor, "COUNT", "256"];
        let scanned: (String, Vec<String>) = scene.run(&words).await;
        found.extend(scanned.1.chunks(2).map(|pair| pair[0].clone()));
        (cursor, steps) = (scanned.0, steps + 1);
        scene.add("HDEL seriatim.meta names.next").await;
        assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
        found.sort_unstable();
        let names: Vec<_> = departed(&scene).await.into_keys().collect();
        assert_eq!(names, found);
        let progress = match cursor.as_str() {
            "0" => "names.indexed: NOW".to_owned(),
            _ => format!("names.cursor: {cursor}"),
        };
        let meta = format!("{{clock: NOW, {progress}, names.next: NOW+1s}}");
        assert_eq!(scene.at("seriatim.meta").await, meta);
        if cursor == "0" {
            break;
        }
    }
    assert!(steps >= 3, "{steps}");
}

/// A pass begins an hour after the end of the pass before. A time farther ahead was written before
/// the clock stepped back. A pass that has begun goes on.
#[tokio::test]
async fn a_pass_begins_an_hour_after_the_last_one() {
    let scene = given("").await;
    for (indexed, cursor, is_pass) in [
        ("NOW-30m", "", false),
        ("NOW+30m", "", false),
        ("NOW-90m", "", true),
        ("NOW+90m", "", true),
        ("NOW-30m", " names.cursor 0", true),
        // Texts that are no cursors: the pass begins again.
        ("NOW-30m", " names.cursor x", true),
        ("NOW-30m", " names.cursor 99999999999999999999", true),
        ("NOW-30m", " clock nan", false),
    ] {
        let workers = "HSET event.workers a '1 t NOW-2s'";
        let meta = format!("HSET seriatim.meta names.indexed {indexed}{cursor}");
        scene.again(&format!("{workers}; {meta}")).await;
        assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
        let (departed, indexed) = match is_pass {
            true => ("event.workers.departed = <a: NOW+8s>\n", "NOW"),
            false => ("", indexed),
        };
        let meta = format!("clock: NOW, names.indexed: {indexed}, names.next: NOW+1s");
        let changes = format!("{departed}seriatim.meta = {{{meta}}}");
        scene.changed(&changes).await;
    }
}
