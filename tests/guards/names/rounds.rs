//! Rounds of `adopt`: looks at departed names.

use std::time::Duration;

use seriatim::wire::Adopted;

use super::{AGES, NOTHING, Scene};

const LOOK: Duration = Duration::from_secs(60);
const HOUR_MS: u64 = 3_600_000;

impl Scene {
    /// Returns the departed names whose scores are at most 1,000: those whose looks are still due.
    async fn due(&self) -> Vec<u64> {
        self.console
            .run(&[
                "ZRANGE",
                &self.keys.event_workers_departed(),
                "0",
                "1000",
                "BYSCORE",
            ])
            .await
    }
}

/// Each half of a round takes at most 128 names, and ends after 3,072 keys. A name costs 24 keys,
/// and one for each slot. A name that is forgotten costs two keys for each slot.
#[tokio::test]
async fn a_half_of_a_round_looks_at_3072_keys() {
    for (slots, is_over, half) in [
        (0, false, 128),
        (0, true, 128),
        (72, false, 32),
        (36, true, 32),
        (71, false, 33),
        (59, false, 38),
    ] {
        let mut scene = Scene::new().await;
        let base = scene.now_ms().await;
        let at = base - if is_over { 86_405_000 } else { 2000 };
        let count = 2 * half + 10;
        scene.meta("names.indexed", &base.to_string()).await;
        for n in 1..=count {
            scene.register(&n.to_string(), slots, at).await;
            scene.depart(&n.to_string(), n).await;
        }
        let (adopted, now) = scene.sweep(LOOK, Duration::from_secs(86_400)).await;
        assert_eq!(adopted, NOTHING);
        let left: Vec<u64> = (half + 1..=count - half).collect();
        assert_eq!(scene.due().await, left, "{slots} {is_over}");
        let meta = format!(
            "seriatim.meta = names.indexed {base} clock {now} names.next {}",
            now + 1000
        );
        assert_eq!(scene.all().await.last(), Some(&meta));
        let registered: u64 = scene
            .console
            .run(&["HLEN", &scene.keys.event_workers()])
            .await;
        let departed: u64 = scene
            .console
            .run(&["ZCARD", &scene.keys.event_workers_departed()])
            .await;
        let expected = if is_over { 10 } else { count };
        assert_eq!(
            (registered, departed),
            (expected, expected),
            "{slots} {is_over}"
        );
    }
}

/// After 256 objects and names a round ends, too.
#[tokio::test]
async fn a_round_ends_after_256_objects_and_names() {
    let mut scene = Scene::new().await;
    let at = scene.now_ms().await - 2000;
    for (n, slots) in [(1, 1), (2, 1), (3, 256), (4, 1)] {
        scene.register(&n.to_string(), slots, at).await;
        scene.depart(&n.to_string(), n).await;
    }
    for slot in 0..256 {
        scene.push(&format!("3.{slot}"), "a:1").await;
    }
    // The pass finds a name with an invalid registration, which has no last sign of life.
    let workers = scene.keys.event_workers();
    scene.state.run("HSET", &[&workers, "0", "x"]).await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            strays: 256,
            names: vec!["3".to_owned()],
            ..NOTHING
        }
    );
    let expected = [
        format!("event.workers = 1 1 t {at} 2 1 t {at} 3 256 t {now} 4 1 t {at} 0 x"),
        format!("event.workers.departed = 0 0 1 1 2 2 4 {}", at + 10_000),
        format!("event.workers.watched = 3 {now}"),
        format!("objects.with.events ={}", " a:1".repeat(256)),
        format!(
            "seriatim.meta = clock {now} names.next {} names.indexed {now}",
            now + 1000
        ),
    ];
    assert_eq!(scene.all().await, expected);
}

/// A round begins when it is due. If its time is no number, or is farther ahead than a round, it
/// begins at once.
#[tokio::test]
async fn a_round_begins_at_its_time() {
    let mut scene = Scene::new().await;
    let base = scene.now_ms().await;
    for (next, is_round) in [
        (base.to_string(), true),
        ("x".to_owned(), true),
        ((base + HOUR_MS).to_string(), true),
        (String::new(), false),
    ] {
        loop {
            scene.register("1", 1, base).await;
            scene.depart("1", 1).await;
            let soon = scene.now_ms().await + 950;
            let next = if next.is_empty() {
                soon.to_string()
            } else {
                next.clone()
            };
            scene.meta("names.next", &next).await;
            let (adopted, now) = scene.sweep(LOOK, AGES).await;
            // On a busy machine the next round may be due before the call.
            if !is_round && now >= soon {
                continue;
            }
            assert_eq!(
                (adopted, scene.due().await.is_empty()),
                (NOTHING, is_round),
                "{next}"
            );
            let written: String = scene
                .console
                .run(&["HGET", &scene.keys.meta(), "names.next"])
                .await;
            assert_eq!(
                written,
                if is_round {
                    (now + 1000).to_string()
                } else {
                    next
                }
            );
            break;
        }
    }
}

/// A round counts the names that are grouped, if their number is lost: without it, no worker
/// takes them. A list of a wrong type has no names. The round tells if the summary of the shares is
/// lost, and does neither if the other key is there or its partner is absent.
#[tokio::test]
async fn a_round_puts_lost_numbers_of_groups_right() {
    const MENDED: [&str; 2] = [
        "event.groups.waiting",
        "mended: the number of names that are grouped was absent",
    ];
    const LOST: [&str; 2] = [
        "event.shares.summary",
        "lost: it is absent, so no share is kept; set any share again",
    ];
    for (groups, waiting, shares, summary) in [
        (true, None, true, false),
        (true, Some("7"), true, true),
        (false, None, false, false),
        (true, None, true, true),
        (true, Some("7"), true, false),
    ] {
        let mut scene = Scene::new().await;
        let keys = scene.keys.clone();
        if groups {
            scene
                .state
                .run(
                    "ZADD",
                    &[
                        &keys.event_groups(),
                        "1",
                        "a",
                        "2",
                        "b",
                        "3",
                        "none",
                        "4",
                        "wrong",
                    ],
                )
                .await;
            scene
                .state
                .run("SET", &[&keys.group_waiting("wrong"), "x"])
                .await;
            scene
                .state
                .run("LPUSH", &[&keys.group_waiting("a"), "a:1", "a:2"])
                .await;
            scene
                .state
                .run("LPUSH", &[&keys.group_waiting("b"), "b:1"])
                .await;
        }
        if let Some(waiting) = waiting {
            scene
                .state
                .run("SET", &[&keys.event_groups_waiting(), waiting])
                .await;
        }
        if shares {
            scene
                .state
                .run(
                    "HSET",
                    &[&keys.event_shares(), "a:*", "5 - - - - 1700 3 ada"],
                )
                .await;
        }
        if summary {
            scene
                .state
                .run("SET", &[&keys.event_shares_summary(), "1 1 1700"])
                .await;
        }
        let (adopted, _) = scene.sweep(LOOK, AGES).await;
        let is_mended = groups && waiting.is_none();
        let told = [(is_mended, MENDED), (shares && !summary, LOST)]
            .into_iter()
            .filter(|(is_told, _)| *is_told);
        let expected: Vec<_> = told
            .map(|(_, [key, what])| (key.to_owned(), what.to_owned()))
            .collect();
        assert_eq!(
            adopted.lost, expected,
            "{groups} {waiting:?} {shares} {summary}"
        );
        let left: Option<String> = scene
            .console
            .run(&["GET", &keys.event_groups_waiting()])
            .await;
        assert_eq!(
            left.as_deref(),
            if is_mended { Some("3") } else { waiting },
            "{groups} {waiting:?} {shares} {summary}"
        );
    }
}
