//! Operators see the figures of each share, and the share that an object waits for.

use seriatim::control::inspect::Standing;
use seriatim::control::rules::Selector;
use seriatim::control::shares::{SHARES_MAX, Share, ShareFigures};
use seriatim::control::stats::SHARES_LISTED_MAX;
use seriatim::control::{By, Control};

use crate::state::State;
use crate::support::console::PATIENCE;
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// The number that is added to the score of a group while it waits for a limit.
const PARKED: f64 = 4_398_046_511_104.0;

async fn scene() -> (Redis, State, Control) {
    let (redis, state) = Redis::start().with_state().await;
    let control = state.control();
    (redis, state, control)
}

async fn set(control: &Control, selector: &str, share: Share) {
    let selector: Selector = selector.parse().expect("a selector");
    control
        .set_share(
            By {
                who: "ada",
                why: "a test",
            },
            &selector,
            share,
        )
        .await
        .expect("set");
}

/// Groups a name for its group, as workers do.
async fn grouped(state: &mut State, group: &str, object: &str) {
    let (list, groups, waiting) = (
        state.keys.group_waiting(group),
        state.keys.event_groups(),
        state.keys.event_groups_waiting(),
    );
    state.run("LPUSH", &[&list, object]).await;
    state.run("ZADD", &[&groups, "5", group]).await;
    state.run("INCR", &[&waiting]).await;
}

async fn in_hand(state: &mut State, objects: &[&str]) {
    let key = state.keys.objects_in_hand();
    for object in objects {
        state.run("ZADD", &[&key, "0", &format!("{object}:")]).await;
    }
}

/// Writes that a share has used its rate up to a time this long after now.
async fn used(state: &mut State, control: &Control, selector: &str, ahead_ms: u64) {
    let (key, now_ms) = (
        state.keys.event_shares_used(),
        control.now_ms().await.expect("a time"),
    );
    let value = format!("9 {} {} 0 0", (now_ms + ahead_ms) * 1000, now_ms / 10_000);
    state.run("HSET", &[&key, selector, &value]).await;
}

/// Returns the figures of a share.
async fn figures(control: &Control, selector: &str) -> ShareFigures {
    let all = control.share_figures().await.expect("figures");
    all.into_iter()
        .find(|figures| figures.share.selector == selector)
        .expect("a share")
}

/// A share counts the names of its own group, and the objects and events of all its objects.
#[tokio::test]
async fn each_share_has_its_figures() {
    let (_redis, mut state, control) = scene().await;
    assert_eq!(control.share_figures().await.expect("figures"), []);
    set(&control, "acme:*", Share::new().in_flight(3).rate(20.0)).await;
    set(&control, "acme:batch:*", Share::new().weight(2)).await;
    set(&control, "*", Share::new().in_flight(100)).await;
    let new = figures(&control, "acme:*").await;
    assert_eq!(
        (
            new.waiting,
            new.oldest_ms,
            new.in_hand,
            new.taken,
            new.taken_per_second
        ),
        (Some(0), None, Some(0), Some(0), Some(0.0))
    );
    let now_ms = control.now_ms().await.expect("a time");
    for (group, object) in [
        ("acme", "acme:1"),
        ("acme", "acme:2"),
        ("acme:batch", "acme:batch:1"),
        ("other", "other:1"),
    ] {
        grouped(&mut state, group, object).await;
    }
    let list = state.keys.group_waiting("acme");
    state.run("LPUSH", &[&list, &format!("\0t{now_ms}")]).await;
    let times = state.keys.event_groups_times();
    state
        .run(
            "HSET",
            &[&times, "acme", &format!("{now_ms} {} 1", now_ms - 60_000)],
        )
        .await;
    state
        .run(
            "HSET",
            &[&times, "other", &format!("{now_ms} {} 0", now_ms - 600_000)],
        )
        .await;
    in_hand(
        &mut state,
        &[
            "acme",
            "acme:7",
            "acme:batch:1",
            "acmeb:1",
            "acme;",
            "other:2",
        ],
    )
    .await;
    let key = state.keys.event_shares_used();
    state
        .run(
            "HSET",
            &[&key, "acme:*", &format!("120 0 {} 30 0", now_ms / 10_000)],
        )
        .await;
    let acme = figures(&control, "acme:*").await;
    assert_eq!(
        (acme.waiting, acme.in_hand, acme.taken),
        (Some(2), Some(3), Some(120))
    );
    assert!(
        acme.oldest_ms
            .is_some_and(|ms| (60_000..90_000).contains(&ms)),
        "{acme:?}"
    );
    assert!(
        acme.taken_per_second
            .is_some_and(|events| (1.0..=3.0).contains(&events)),
        "{acme:?}"
    );
    let batch = figures(&control, "acme:batch:*").await;
    assert_eq!(
        (batch.waiting, batch.oldest_ms, batch.in_hand, batch.taken),
        (Some(1), None, Some(1), Some(0))
    );
    let all = figures(&control, "*").await;
    assert_eq!(
        (all.waiting, all.in_hand, all.taken),
        (Some(4), Some(6), Some(0))
    );
    assert!(
        all.oldest_ms
            .is_some_and(|ms| (600_000..630_000).contains(&ms)),
        "{all:?}"
    );
    // A mark at the tail says that the names behind it are younger.
    state
        .run("RPUSH", &[&list, &format!("\0t{}", now_ms - 30_000)])
        .await;
    state
        .run(
            "HSET",
            &[&times, "acme", &format!("{now_ms} {} 2", now_ms - 60_000)],
        )
        .await;
    let acme = figures(&control, "acme:*").await;
    assert_eq!(acme.waiting, Some(2));
    assert!(
        acme.oldest_ms
            .is_some_and(|ms| (30_000..60_000).contains(&ms)),
        "{acme:?}"
    );
}

/// A key of a wrong type leaves only the figures out that come from it.
#[tokio::test]
async fn a_key_of_a_wrong_type_gives_no_figure() {
    let (_redis, mut state, control) = scene().await;
    set(&control, "acme:*", Share::new().in_flight(3)).await;
    set(&control, "*", Share::new().in_flight(9)).await;
    let keys = state.keys.clone();
    let known = async || {
        let (acme, all) = (
            figures(&control, "acme:*").await,
            figures(&control, "*").await,
        );
        let parts = |of: &ShareFigures| {
            (
                of.waiting.is_some(),
                of.in_hand.is_some(),
                of.taken.is_some(),
                of.taken_per_second.is_some(),
            )
        };
        (parts(&acme), parts(&all))
    };
    let whole = (true, true, true, true);
    for (key, expected) in [
        (
            keys.group_waiting("acme"),
            ((false, true, true, true), whole),
        ),
        (
            keys.event_groups_times(),
            ((false, true, true, true), whole),
        ),
        (
            keys.event_groups_waiting(),
            (whole, (false, true, true, true)),
        ),
        (
            keys.objects_in_hand(),
            ((true, false, true, true), (true, false, true, true)),
        ),
        (
            keys.event_shares_used(),
            ((true, true, false, false), (true, true, false, false)),
        ),
    ] {
        assert_eq!(known().await, (whole, whole));
        state.run("XADD", &[&key, "*", "wrong", "type"]).await;
        assert_eq!(known().await, expected, "{key}");
        state.run("DEL", &[&key]).await;
    }
    state.add("DEL event.shares; SET event.shares mine").await;
    assert!(
        control
            .share_figures()
            .await
            .expect_err("no hash")
            .to_string()
            .contains("event.shares")
    );
    let stats = control.stats().await.expect("stats");
    assert_eq!(
        (stats.unreadable, stats.shares.total),
        (vec![keys.event_shares()], 0)
    );
}

/// The stats list the shares for which most names wait. All shares have figures.
#[tokio::test]
async fn the_stats_list_the_shares_with_most_names() {
    let (_redis, mut state, control) = scene().await;
    let mut fields = redis::cmd("HSET");
    fields.arg(state.keys.event_shares());
    for n in 0..SHARES_MAX {
        fields.arg(format!("work{n:04}:*")).arg("1 - - - - 5 0 ");
    }
    fields
        .query_async::<u64>(&mut state.conn)
        .await
        .expect("HSET");
    for (group, names) in [("work0900", 3), ("work0077", 5), ("work1023", 1)] {
        for n in 0..names {
            grouped(&mut state, group, &format!("{group}:{n}")).await;
        }
    }
    let shares = control.stats().await.expect("stats").shares;
    assert_eq!(
        (shares.total, shares.listed.len()),
        (SHARES_MAX, SHARES_LISTED_MAX)
    );
    let first: Vec<_> = shares.listed[..4]
        .iter()
        .map(|of| (of.share.selector.as_str(), of.waiting))
        .collect();
    assert_eq!(
        first,
        [
            ("work0077:*", Some(5)),
            ("work0900:*", Some(3)),
            ("work1023:*", Some(1)),
            ("work0000:*", Some(0))
        ]
    );
    let all = control.share_figures().await.expect("figures");
    assert!(
        all.len() as u64 == SHARES_MAX
            && all.is_sorted_by(|one, other| one.share.selector < other.share.selector)
    );
    assert_eq!(
        all.iter()
            .map(|of| of.waiting.expect("a number"))
            .sum::<u64>(),
        9
    );
}

/// `inspect` names the share whose limit stops the object.
#[tokio::test]
async fn an_object_waits_for_its_share() {
    let (_redis, mut state, control) = scene().await;
    set(&control, "acme:*", Share::new().in_flight(2).weight(5)).await;
    set(&control, "*", Share::new().rate(1.0).burst(5)).await;
    set(&control, "acmeb:*", Share::new().in_flight(1)).await;
    let queue = state.keys.events("acme:1");
    state.run("LPUSH", &[&queue, "1"]).await;
    grouped(&mut state, "acme", "acme:1").await;
    let why = async || {
        let seen = control.inspection_of("acme:1").await;
        assert_eq!(seen.standing, Standing::Marked, "{seen:?}");
        let selectors: Vec<_> = seen
            .shares
            .iter()
            .map(|share| share.selector.clone())
            .collect();
        assert_eq!(selectors, ["*", "acme:*"]);
        let wait = seen.waits_for_share.map(|wait| wait.to_string());
        assert!(
            seen.why.contains(
                wait.as_deref()
                    .unwrap_or("it waits for a free worker in its group")
            ),
            "{}",
            seen.why
        );
        wait
    };
    assert_eq!(why().await, None);
    let share = &control.inspection_of("acme:1").await.shares[1];
    assert_eq!(
        (share.weight, share.in_flight, share.actor.as_str()),
        (Some(5), Some(2), "ada")
    );
    in_hand(&mut state, &["acme", "acmeb:1", "other:1"]).await;
    assert_eq!(why().await, None);
    in_hand(&mut state, &["acme:batch:9"]).await;
    assert_eq!(
        why().await.as_deref(),
        Some("its share acme:*: 2 of 2 in hand")
    );
    let key = state.keys.objects_in_hand();
    state.run("ZREM", &[&key, "acme:"]).await;
    assert_eq!(why().await, None);
    // The rate of all objects is used up: 5 events at once are taken, and the next comes in 4 s.
    used(&mut state, &control, "*", 4_900).await;
    assert_eq!(
        why().await.as_deref(),
        Some("its share *: 1 event per second is taken")
    );
    used(&mut state, &control, "*", 500).await;
    assert_eq!(why().await, None);
    // The group waits for a rate although an event is allowed again.
    set(&control, "acme:*", Share::new().rate(2.0).burst(100)).await;
    used(&mut state, &control, "acme:*", 20_000).await;
    assert_eq!(why().await, None);
    let (groups, blocked) = (state.keys.event_groups(), state.keys.event_groups_blocked());
    state.run("ZADD", &[&blocked, "7", "acme"]).await;
    assert_eq!(why().await, None, "the group has turns");
    state
        .run("ZADD", &[&groups, &(PARKED + 5.0).to_string(), "acme"])
        .await;
    assert_eq!(
        why().await.as_deref(),
        Some("its share acme:*: 2 events per second are taken")
    );
    state.run("DEL", &[&blocked]).await;
    state.run("ZADD", &[&blocked, "7", "acme\n"]).await;
    assert_eq!(why().await, None, "only other groups wait for it");
    // Without the name in a list, no share stops the object.
    in_hand(&mut state, &["acme"]).await;
    set(&control, "acme:*", Share::new().in_flight(1)).await;
    in_hand(&mut state, &["acme"]).await;
    assert!(why().await.is_some());
    let list = state.keys.group_waiting("acme");
    state.run("DEL", &[&list]).await;
    assert_eq!(control.inspection_of("acme:1").await.waits_for_share, None);
}

/// In a long list, the name of the object may be behind those that are searched. The share is still
/// named, but not if a marker of the object is found.
#[tokio::test]
async fn an_object_behind_many_names_waits_for_its_share() {
    let (_redis, mut state, control) = scene().await;
    set(&control, "acme:*", Share::new().rate(2.0).burst(100)).await;
    let (queue, list, markers) = (
        state.keys.events("acme:1"),
        state.keys.group_waiting("acme"),
        state.keys.objects_with_events(),
    );
    state.run("LPUSH", &[&queue, "1"]).await;
    state
        .run(
            "RPUSH",
            &[&[&list[..], "acme:1"], &["acme:other"; 10_001][..]].concat(),
        )
        .await;
    let (groups, blocked) = (state.keys.event_groups(), state.keys.event_groups_blocked());
    state.run("ZADD", &[&groups, "5", "acme"]).await;
    state.run("ZADD", &[&blocked, "7", "acme"]).await;
    used(&mut state, &control, "acme:*", 20_000).await;
    let seen = async || control.inspection_of("acme:1").await;
    let free = seen().await;
    assert!(
        free.group_beyond && free.waits_for_share.is_none() && free.why.contains("a free worker"),
        "{}",
        free.why
    );
    state
        .run("ZADD", &[&groups, &(PARKED + 5.0).to_string(), "acme"])
        .await;
    let stopped = seen().await;
    assert_eq!((stopped.standing, stopped.group), (Standing::Marked, None));
    let why = "it waits for its share acme:*: 2 events per second are taken, behind more than 10000 names of its group";
    assert!(
        stopped.waits_for_share.is_some() && stopped.why.starts_with(why),
        "{}",
        stopped.why
    );
    state.run("LPUSH", &[&markers, "acme:1"]).await;
    assert_eq!(seen().await.waits_for_share, None);
}

/// A held object that is due and grouped waits for its share, too. Others do not.
#[tokio::test]
async fn a_held_object_waits_for_its_share() {
    let (_redis, mut state, control) = scene().await;
    let held = async |object: &str| {
        let page = control.held(false, None, 100).await.expect("a page");
        let found = page
            .objects
            .into_iter()
            .find(|held| held.object == object)
            .expect("held");
        let seen = control.inspection_of(object).await;
        let wait = found.waits_for_share.map(|wait| wait.to_string());
        assert_eq!(
            seen.waits_for_share.map(|wait| wait.to_string()),
            wait,
            "{}",
            seen.why
        );
        assert!(
            seen.why.contains(wait.as_deref().unwrap_or_default()),
            "{}",
            seen.why
        );
        wait
    };
    for (object, score, events) in [
        ("acme:1", "-5000", &["1"][..]),
        ("acme:2", "-6000", &["1", "2", "3"]),
        ("acme:3", "7000", &["1"]),
        ("other:1", "-1", &["1"]),
    ] {
        state
            .hold(object, score, events, "1 0 1 0 retry: down")
            .await;
        if score.starts_with('-') {
            grouped(
                &mut state,
                object.split(':').next().expect("a group"),
                object,
            )
            .await;
        }
    }
    assert_eq!(held("acme:1").await, None);
    set(&control, "acme:*", Share::new().rate(1.0).burst(5)).await;
    set(&control, "acme:batch:*", Share::new().in_flight(1)).await;
    for object in ["acme:1", "acme:2", "other:1"] {
        assert_eq!(held(object).await, None, "{object}");
    }
    // Two events are allowed, so the batch of three has to wait.
    used(&mut state, &control, "acme:*", 2_900).await;
    let rate = "its share acme:*: 1 event per second is taken";
    assert_eq!(held("acme:2").await.as_deref(), Some(rate));
    for object in ["acme:1", "acme:3", "other:1"] {
        assert_eq!(held(object).await, None, "{object}");
    }
    let (groups, blocked) = (state.keys.event_groups(), state.keys.event_groups_blocked());
    state
        .run("ZADD", &[&groups, &(PARKED + 5.0).to_string(), "acme"])
        .await;
    state.run("ZADD", &[&blocked, "7", "acme"]).await;
    assert_eq!(held("acme:1").await.as_deref(), Some(rate));
    assert_eq!(held("acme:3").await, None, "its name is not grouped");
    set(&control, "*", Share::new().in_flight(2)).await;
    in_hand(&mut state, &["x", "y", "z"]).await;
    assert_eq!(
        held("other:1").await.as_deref(),
        Some("its share *: 3 of 2 in hand")
    );
    let shares = state.keys.event_shares();
    state.run("DEL", &[&shares]).await;
    state.run("SET", &[&shares, "mine"]).await;
    assert_eq!(held("other:1").await, None);
}

/// With a worker at work, the figures and the reason follow from what the worker writes.
#[tokio::test]
async fn a_worker_at_its_limit_is_seen() {
    let (redis, mut state, control) = scene().await;
    set(&control, "acme:*", Share::new().in_flight(1)).await;
    for n in 1..=5 {
        state.emit(&format!("acme:{n}"), "1").await;
    }
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(at_gate.clone()));
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 4);
    until("four names wait", PATIENCE, async || {
        let of = figures(&control, "acme:*").await;
        (of.waiting == Some(4) && of.in_hand == Some(1) && of.taken == Some(1)).then_some(())
    })
    .await;
    let mut waits = Vec::new();
    for n in 1..=5 {
        waits.extend(
            control
                .inspection_of(format!("acme:{n}"))
                .await
                .waits_for_share
                .map(|wait| wait.to_string()),
        );
    }
    assert_eq!(waits, ["its share acme:*: 1 of 1 in hand"; 4]);
    gate.open();
    sink.until_sent(5).await;
    worker.finish().await;
    let of = figures(&control, "acme:*").await;
    assert_eq!(
        (of.waiting, of.in_hand, of.taken),
        (Some(0), Some(0), Some(5))
    );
    assert!(
        of.taken_per_second.is_some_and(|events| events > 0.0),
        "{of:?}"
    );
}
