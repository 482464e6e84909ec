//! Names that are grouped: their ages, and numbers that are wrong.

use seriatim::wire::Bounds;

use crate::scene::{BOUNDS, Scene, bounds};
use crate::support::control;

const GROUPED: Bounds = Bounds {
    group_depth: 1,
    ..BOUNDS
};

/// Marks, and names that came between them, each with its time: `GROUP:MS`.
async fn push(scene: &Scene, seconds: u64) -> u64 {
    let base = scene.now_ms().await - seconds * 1000;
    let (mut marks, mut names) = (format!(" {base} met"), String::new());
    for second in 0..seconds {
        let at = base + second * 1000;
        if second > 0 {
            marks += &format!(" {at} {at}");
            names += &format!(" \0t{at}");
        }
        // One group came early, one late, and one all the time. The last has an empty name.
        let third = seconds / 3;
        let group = if second < third { "early" } else { "" };
        names += &format!(" all:{} {group}:{}", at + 300, at + 600);
        if second > 2 * third {
            names += &format!(" late:{}", at + 900);
        }
    }
    let names = format!("LPUSH objects.with.events{names}");
    scene
        .add(&format!("ZADD event.marks{marks}; {names}"))
        .await;
    base
}

/// Returns the time of the oldest name that waits, which is in its name.
async fn oldest(scene: &Scene) -> Option<u64> {
    let lists = ["all", "early", "late", ""].map(|group| scene.keys.group_waiting(group));
    let mut times = Vec::new();
    for list in [scene.keys.objects_with_events()].iter().chain(&lists) {
        let tail: Vec<String> = scene.run(&["LRANGE", list, "-2", "-1"]).await;
        let names = tail.iter().filter(|name| !name.starts_with('\0'));
        times.extend(names.filter_map(|name| name.rsplit(':').next()?.parse::<u64>().ok()));
    }
    times.into_iter().min()
}

/// Story: names were grouped, and their marks were met. So the age of the oldest marker was 0
/// while names had waited for an hour.
#[tokio::test]
async fn the_age_of_names_that_are_grouped_is_known() {
    let scene = Scene::new().await;
    let control = control(&scene.conn().await, &scene.keys);
    let base = push(&scene, 3600).await;
    let (mut calls, mut worst, mut aside_most) = (0, 0, 0);
    while let Some(oldest_ms) = oldest(&scene).await {
        let stats = control.stats().await.expect("stats");
        let is = stats.now_ms - oldest_ms;
        let shown = stats.oldest_waiting_ms.expect("the age is known");
        worst = worst.max(is.abs_diff(shown));
        aside_most = aside_most.max(stats.groups.names);
        assert!(
            is.abs_diff(shown) <= 1100,
            "after {calls} calls: {is} ms, shown {shown} ms, base {base}: {stats:?}"
        );
        if calls % 20 == 0 {
            scene.check().await;
        }
        // A worker without groups drains the lists, too.
        let depth = usize::from(calls % 3 < 2);
        let within = bounds(|b| (b.markers, b.group_depth, b.claims) = (90 + calls % 7, depth, 2));
        scene.free(0..2, within).await;
        calls += 1;
        assert!(calls < 1000, "the names are used up: {stats:?}");
    }
    let summary = format!("{calls} calls, at most {aside_most} names, wrong by at most {worst} ms");
    println!("{summary}");
    assert!(calls > 80 && aside_most > 3000, "{summary}");
    scene.free(0..2, GROUPED).await;
    for key in ["event.groups", "event.groups.waiting", "event.groups.times"] {
        assert_eq!(scene.at(key).await, "nil", "{key}");
    }
    let stats = control.stats().await.expect("stats");
    assert_eq!(stats.oldest_waiting_ms, Some(0));
}

/// Without marks there are no times, and the age is unknown. A key of a wrong type stops no claim.
#[tokio::test]
async fn without_marks_the_age_of_names_that_are_grouped_is_unknown() {
    for wrong in ["", "SET event.groups.times x; ZADD event.marks 1 met"] {
        let scene = Scene::given("each a:1..4 b").await;
        scene.add(wrong).await;
        let answer = scene
            .free(0..2, bounds(|b| (b.group_depth, b.claims) = (1, 2)))
            .await;
        assert_eq!(answer.objects(), ["a:1", "b"]);
        let control = control(&scene.conn().await, &scene.keys);
        let stats = control.stats().await.expect("stats");
        assert_eq!(
            (stats.markers, stats.oldest_waiting_ms),
            (3, None),
            "{stats:?}"
        );
        let unreadable = [scene.keys.event_groups_times()];
        assert_eq!(
            stats.unreadable,
            unreadable[usize::from(wrong.is_empty())..]
        );
    }
}

/// Groups take turns if more objects wait than there are free slots, even if the caller has room
/// for more, or if a slot has become free because it has lost its tag. The end of the last group is
/// no loss.
#[tokio::test]
async fn groups_take_turns_if_more_objects_wait_than_free_slots() {
    for (lost, slots) in [
        ("", 1),
        ("own w.1 work:1 7 1; DEL event.worker:w.1:event.id", 2),
    ] {
        let scene = Scene::given(lost).await;
        scene.add(&format!("each a:0..{slots}")).await;
        let answer = scene.free(0..slots, GROUPED).await;
        assert_eq!(answer.objects().len(), slots);
        let last = format!("a:{slots}");
        assert_eq!(scene.at("event.group:a:waiting").await, format!("[{last}]"));
        // Both slots are free again.
        for worker in ["w.0", "w.1"] {
            let tag = format!("DEL event.worker:{worker}:event.id");
            scene
                .add(&format!("DEL event.worker:{worker}:event; {tag}"))
                .await;
        }
        let answer = scene.free(0..2, GROUPED).await;
        assert_eq!((answer.objects(), answer.texts()), (vec![&*last], vec![]));
        assert_eq!(scene.at("event.groups.waiting").await, "nil");
    }
}

/// A number of names that is too high, as after the loss of all lists, does not stop Redis. The
/// loss is told.
#[tokio::test]
async fn a_number_of_names_that_is_too_high_is_corrected() {
    for groups in ["", "ZADD event.groups 1 a 1 b"] {
        for depth in [0, 1] {
            let scene = Scene::given("SET event.groups.waiting 1").await;
            scene.add(groups).await;
            let answer = scene.free(0..2, bounds(|b| b.group_depth = depth)).await;
            assert_eq!(answer.objects(), [""; 0]);
            let texts = answer.texts();
            assert!(
                texts.len() == 1 && texts[0].starts_with("event.groups: "),
                "{texts:?}"
            );
            assert_eq!(scene.at("event.groups").await, "nil", "{groups} {depth}");
            assert_eq!(
                scene.at("event.groups.waiting").await,
                "nil",
                "{groups} {depth}"
            );
        }
    }
}
