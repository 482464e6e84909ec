//! The pass of `adopt` over all registered names.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{AGES, NOTHING, Scene};

const LOOK: Duration = Duration::from_secs(60);
const MINUTE_MS: u64 = 60_000;

impl Scene {
    async fn departed(&self) -> BTreeMap<String, u64> {
        self.console
            .run(&[
                "ZRANGE",
                &self.keys.event_workers_departed(),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .await
    }
}

/// The score of a name that a pass finds is its last sign of life. A round looks at some of these
/// names at once, the others wait.
#[tokio::test]
async fn a_pass_makes_names_in_neither_set_departed() {
    let mut scene = Scene::new().await;
    let base = scene.now_ms().await;
    for n in 1..=100 {
        scene.register(&n.to_string(), 72, 1000 + n).await;
    }
    // The name is the last one of all, because its last sign of life counts as one of the present.
    scene.register("ahead", 72, base + 3_600_000).await;
    scene.watch("50", base + MINUTE_MS).await;
    scene.depart("51", base + MINUTE_MS).await;
    let forget_ms = u64::try_from(AGES.as_millis()).expect("a time");
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(adopted, NOTHING);
    // Each half of a round looks at 32 names of 72 slots.
    let mut expected = BTreeMap::from([
        ("ahead".to_owned(), now + 1000),
        ("51".to_owned(), base + MINUTE_MS),
    ]);
    for n in (1..=100).filter(|n| ![50, 51].contains(n)) {
        let is_looked_at = n <= 32 || n >= 70;
        expected.insert(
            n.to_string(),
            if is_looked_at {
                1000 + n + forget_ms + 1
            } else {
                1000 + n
            },
        );
    }
    assert_eq!(scene.departed().await, expected);
    let all = scene.all().await;
    let ends = [
        format!("event.workers.watched = 50 {}", base + MINUTE_MS),
        format!(
            "seriatim.meta = clock {now} names.next {} names.indexed {now}",
            now + 1000
        ),
    ];
    assert_eq!(all[all.len() - 2..], ends);
}

/// A round takes one step of the pass, with about 256 names.
#[tokio::test]
async fn a_pass_takes_one_step_in_a_round() {
    let mut scene = Scene::new().await;
    let workers = scene.keys.event_workers();
    let base = scene.now_ms().await;
    for n in 0..1000 {
        scene.register(&n.to_string(), 72, base - 1000 * n).await;
    }
    // Each of these reads moves a part of the table, until all names are in the larger one.
    let read = "for n = 1, 3000 do redis.call('HGET', KEYS[1], 'x') end";
    scene.state.run("EVAL", &[read, "1", &workers]).await;
    let (mut cursor, mut steps, mut found) = ("0".to_owned(), 0, Vec::new());
    loop {
        let scanned: (String, Vec<String>) = scene
            .console
            .run(&["HSCAN", &workers, &cursor, "COUNT", "256"])
            .await;
        found.extend(scanned.1.chunks(2).map(|pair| pair[0].clone()));
        (cursor, steps) = (scanned.0, steps + 1);
        scene
            .state
            .run("HDEL", &[&scene.keys.meta(), "names.next"])
            .await;
        let (adopted, now) = scene.sweep(LOOK, AGES).await;
        assert_eq!(adopted, NOTHING);
        found.sort_unstable();
        assert_eq!(
            scene.departed().await.into_keys().collect::<Vec<_>>(),
            found
        );
        let fields: BTreeMap<String, String> =
            scene.console.run(&["HGETALL", &scene.keys.meta()]).await;
        let (next, now) = ((now + 1000).to_string(), now.to_string());
        let progress = if cursor == "0" {
            ("names.indexed", &now)
        } else {
            ("names.cursor", &cursor)
        };
        let expected = [("clock", &now), ("names.next", &next), progress];
        assert_eq!(
            fields,
            expected
                .map(|(field, value)| (field.to_owned(), value.clone()))
                .into()
        );
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
    for (minutes, cursor, is_pass) in [
        (30, "", false),
        (-30, "", false),
        (90, "", true),
        (-90, "", true),
        (30, "0", true),
    ] {
        let mut scene = Scene::new().await;
        let base = scene.now_ms().await;
        scene.register("a", 1, base - 2000).await;
        let indexed = base.checked_add_signed(minutes * 60_000).expect("a time");
        scene.meta("names.indexed", &indexed.to_string()).await;
        if !cursor.is_empty() {
            scene.meta("names.cursor", cursor).await;
        }
        let (adopted, now) = scene.sweep(LOOK, AGES).await;
        assert_eq!(adopted, NOTHING);
        let mut expected = vec![format!("event.workers = a 1 t {}", base - 2000)];
        expected.extend(is_pass.then(|| format!("event.workers.departed = a {}", base + 8000)));
        let written = if is_pass { now } else { indexed };
        expected.push(format!(
            "seriatim.meta = names.indexed {written} clock {now} names.next {}",
            now + 1000
        ));
        assert_eq!(scene.all().await, expected, "{minutes} {cursor}");
    }
}
