//! Groups that wait for a limit of a share: which of them a call looks at.

use seriatim::control::By;
use seriatim::control::shares::{Priority, Share};
use seriatim::wire::{Advanced, Bounds};

use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, ask, attached, objects};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The number that is added to the score of a group while the group waits for a limit.
const PARKED: f64 = 4_398_046_511_104.0;
/// The number that is added to the time, in ms, since when a group waits for an object in hand.
pub(crate) const LATER: u64 = 1_000_000_000_000_000;
/// The most groups of a shorter prefix, and the most shorter prefixes, that a call looks at.
const CHILDREN_MAX: usize = 16;
const PREFIXES_MAX: usize = 4;

pub(crate) async fn set(state: &State, selector: &str, share: Share) {
    let selector = selector.parse().expect("a selector");
    control(&state.conn, &state.keys)
        .set_share(BY, &selector, share)
        .await
        .expect("set");
}

/// Returns a state with a share of all objects, so that names wait in the lists of groups.
async fn scene() -> (Redis, State) {
    let redis = Redis::start();
    let state = attached(&redis).await;
    set(&state, "*", Share::new().in_flight(1000)).await;
    (redis, state)
}

/// Sets a limit for each of these groups.
pub(crate) async fn limit(state: &State, groups: &[&str]) {
    for group in groups {
        set(state, &format!("{group}:*"), Share::new().in_flight(1)).await;
    }
}

/// Makes a group wait, with this pass and an object that has an event. A later change of a share ends
/// the wait.
pub(crate) async fn park(state: &mut State, group: &str, pass: f64) {
    let (keys, object) = (state.keys.clone(), format!("{group}:1"));
    state.run("LPUSH", &[&keys.events(&object), "{}"]).await;
    state
        .run("LPUSH", &[&keys.group_waiting(group), &object])
        .await;
    state.run("INCR", &[&keys.event_groups_waiting()]).await;
    state
        .run(
            "ZADD",
            &[&keys.event_groups(), &(PARKED + pass).to_string(), group],
        )
        .await;
}

pub(crate) async fn block(state: &mut State, member: &str, score: u64) {
    let key = state.keys.event_groups_blocked();
    state.run("ZADD", &[&key, &score.to_string(), member]).await;
}

/// Makes a call that claims one object at most. Returns its objects, and whether a further call is of
/// use.
async fn call(state: &mut State) -> (Vec<String>, bool) {
    let answer = ask(
        state,
        Bounds {
            claims: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    let Advanced::Ok {
        more, quarantined, ..
    } = &answer
    else {
        panic!("{answer:?}")
    };
    assert!(quarantined.is_empty(), "{answer:?}");
    (
        objects(&answer).into_iter().map(str::to_owned).collect(),
        *more,
    )
}

async fn scores(state: &mut State, key: String) -> Vec<(String, f64)> {
    redis::cmd("ZRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .arg("WITHSCORES")
        .query_async(&mut state.conn)
        .await
        .expect("scores")
}

/// Returns the passes of the groups that still wait.
async fn waiting(state: &mut State) -> Vec<(String, f64)> {
    let key = state.keys.event_groups();
    let parked = scores(state, key)
        .await
        .into_iter()
        .filter(|(_, score)| *score >= PARKED / 2.0);
    parked
        .map(|(group, score)| (group, score - PARKED))
        .collect()
}

pub(crate) async fn blocked(state: &mut State) -> Vec<(String, f64)> {
    let key = state.keys.event_groups_blocked();
    scores(state, key).await
}

async fn markers(state: &mut State) -> Vec<String> {
    let key = state.keys.objects_with_events();
    redis::cmd("LRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .query_async(&mut state.conn)
        .await
        .expect("markers")
}

pub(crate) fn pair(name: &str, number: f64) -> (String, f64) {
    (name.to_owned(), number)
}

#[tokio::test]
async fn a_call_looks_at_all_groups_that_are_due() {
    let (_redis, mut state) = scene().await;
    limit(&state, &["a", "b", "c"]).await;
    for (group, pass) in [("a", 2.0), ("b", 5.0), ("c", 9.0)] {
        park(&mut state, group, pass).await;
    }
    for group in ["a", "b", "c"] {
        block(&mut state, group, 0).await;
    }
    let (got, _) = call(&mut state).await;
    assert_eq!(got, ["a:1"]);
    assert_eq!(
        (waiting(&mut state).await, blocked(&mut state).await),
        (vec![], vec![])
    );
}

/// Of groups that wait for an object in hand, a call looks at those that have waited for a second. A
/// time that is too far ahead comes from another clock.
#[tokio::test]
async fn a_call_looks_at_groups_that_have_waited_for_long() {
    let (_redis, mut state) = scene().await;
    limit(&state, &["long", "fresh", "soon", "far"]).await;
    let now = control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time");
    let members = [
        ("long", LATER + now - 1000),
        ("fresh", LATER + now + 900),
        ("soon", now + 15_000),
        ("far", now + 25_000),
    ];
    for (pass, (group, score)) in (2..).zip(members) {
        park(&mut state, group, f64::from(pass)).await;
        block(&mut state, group, score).await;
    }
    let (got, _) = call(&mut state).await;
    assert_eq!(got, ["long:1"]);
    assert_eq!(
        waiting(&mut state).await,
        [pair("fresh", 3.0), pair("soon", 4.0)]
    );
    let members: Vec<String> = blocked(&mut state)
        .await
        .into_iter()
        .map(|(member, _)| member)
        .collect();
    assert_eq!(members, ["soon", "fresh"]);
}

/// The next call goes on with the prefixes that this one has no time for.
#[tokio::test]
async fn a_call_looks_at_so_many_shorter_prefixes() {
    let (_redis, mut state) = scene().await;
    let prefixes: Vec<String> = (0..=PREFIXES_MAX).map(|n| format!("p{n}")).collect();
    for prefix in &prefixes {
        set(&state, &format!("{prefix}:*"), Share::new().in_flight(1)).await;
        set(&state, &format!("{prefix}:x:*"), Share::new().weight(1)).await;
    }
    for prefix in &prefixes {
        park(&mut state, &format!("{prefix}:x"), 2.0).await;
        block(&mut state, &format!("{prefix}\n"), 0).await;
    }
    let (_, more) = call(&mut state).await;
    assert_eq!(
        (waiting(&mut state).await, more),
        (vec![pair("p4:x", 2.0)], true)
    );
    assert_eq!(blocked(&mut state).await, [pair("p4\n", 0.0)]);
    call(&mut state).await;
    assert_eq!(
        (waiting(&mut state).await, blocked(&mut state).await),
        (vec![], vec![])
    );
}

/// The next call goes on with the groups of a prefix that this one has no time for.
#[tokio::test]
async fn a_call_looks_at_so_many_groups_of_a_prefix() {
    for deleted in [false, true] {
        let (_redis, mut state) = scene().await;
        set(&state, "p:*", Share::new().in_flight(1000)).await;
        for n in 0..CHILDREN_MAX + 3 {
            set(&state, &format!("p:{n}:*"), Share::new().weight(1)).await;
        }
        for n in 0..CHILDREN_MAX + 3 {
            park(&mut state, &format!("p:{n}"), 2.0 + n as f64).await;
        }
        // Without the key, a call looks at groups that wait, whatever they wait for.
        if !deleted {
            block(&mut state, "p\n", 0).await;
            block(&mut state, "other", LATER * 2 - 1).await;
        }
        let (got, more) = call(&mut state).await;
        assert_eq!((got, more), (vec!["p:0:1".to_owned()], true));
        let left = [pair("p:16", 18.0), pair("p:17", 19.0), pair("p:18", 20.0)];
        assert_eq!(waiting(&mut state).await, left);
        assert_eq!(
            blocked(&mut state).await.contains(&pair("p\n", 0.0)),
            !deleted
        );
        call(&mut state).await;
        assert_eq!(waiting(&mut state).await, []);
        assert!(!blocked(&mut state).await.contains(&pair("p\n", 0.0)));
    }
}

/// Groups that have waited go before the others by half a claim, and keep their order.
#[tokio::test]
async fn groups_that_have_waited_come_back_half_a_claim_before_the_others() {
    let (_redis, mut state) = scene().await;
    limit(&state, &["a", "b", "c"]).await;
    for (group, pass) in [("a", 2.0), ("b", 5.0), ("c", 20.0)] {
        park(&mut state, group, pass).await;
    }
    let key = state.keys.event_groups();
    state.run("ZADD", &[&key, "20", "c"]).await;
    for group in ["a", "b"] {
        block(&mut state, group, 0).await;
    }
    let (got, _) = call(&mut state).await;
    assert_eq!(got, ["a:1"]);
    assert_eq!(
        scores(&mut state, key).await,
        [pair("c", 20.0), pair("a", 20.5), pair("b", 22.5)]
    );
}

/// A call that claims all that it may claim says whether it had no time for other groups that wait.
#[tokio::test]
async fn a_call_says_whether_other_groups_may_have_turns() {
    for further in [false, true] {
        let (_redis, mut state) = scene().await;
        let prefixes: Vec<String> = (0..PREFIXES_MAX + usize::from(further))
            .map(|n| format!("p{n}"))
            .collect();
        for prefix in &prefixes {
            set(&state, &format!("{prefix}:*"), Share::new().in_flight(1)).await;
            set(&state, &format!("{prefix}:x:*"), Share::new().weight(1)).await;
        }
        let in_hand = state.keys.objects_in_hand();
        for prefix in &prefixes {
            park(&mut state, &format!("{prefix}:x"), 2.0).await;
            block(&mut state, &format!("{prefix}\n"), 0).await;
            if prefix != "p4" {
                state
                    .run("ZADD", &[&in_hand, "0", &format!("{prefix}:x:9:")])
                    .await;
            }
        }
        state.emit("z:1", "1").await;
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        let Advanced::Ok { more, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!((objects(&answer), *more), (vec!["z:1"], further));
        // This worker has a free slot, so it needs no other one.
        assert_eq!(markers(&mut state).await, [""; 0]);
        assert_eq!(waiting(&mut state).await.len(), prefixes.len());
        if further {
            let answer = ask(&mut state, BOUNDS).await.expect("an answer");
            assert_eq!(objects(&answer), ["z:1", "p4:x:1"]);
        }
    }
}

/// The same for the groups of one prefix.
#[tokio::test]
async fn a_call_says_whether_other_groups_of_a_prefix_may_have_turns() {
    for groups in [CHILDREN_MAX, CHILDREN_MAX + 1] {
        let (_redis, mut state) = scene().await;
        set(&state, "p:*", Share::new().in_flight(1)).await;
        for n in 0..groups {
            set(&state, &format!("p:{n}:*"), Share::new().weight(1)).await;
        }
        let in_hand = state.keys.objects_in_hand();
        state.run("ZADD", &[&in_hand, "0", "p:9:"]).await;
        for n in 0..groups {
            park(&mut state, &format!("p:{n}"), 2.0).await;
        }
        block(&mut state, "p\n", 0).await;
        state.emit("z:1", "1").await;
        let answer = ask(&mut state, BOUNDS).await.expect("an answer");
        let Advanced::Ok { more, .. } = &answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            (objects(&answer), *more),
            (vec!["z:1"], groups > CHILDREN_MAX)
        );
        assert_eq!(waiting(&mut state).await.len(), groups);
    }
}

/// A group that waits costs a call nothing until its time has come. The call wakes no other worker.
#[tokio::test]
async fn a_call_leaves_groups_that_are_not_due() {
    let (_redis, mut state) = scene().await;
    let now = control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time");
    limit(&state, &["a", "b"]).await;
    for (group, score) in [("a", LATER + now + 5000), ("b", now + 15_000)] {
        park(&mut state, group, 2.0).await;
        block(&mut state, group, score).await;
    }
    for object in ["z:1", "z:2", "z:3"] {
        state.emit(object, "1").await;
    }
    let before = (waiting(&mut state).await, blocked(&mut state).await);
    assert_eq!(call(&mut state).await, (vec!["z:1".to_owned()], true));
    assert_eq!(
        (waiting(&mut state).await, blocked(&mut state).await),
        before
    );
    assert_eq!(markers(&mut state).await, [""; 0]);
}

/// A call that leaves groups behind which it has let have turns wakes another worker.
#[tokio::test]
async fn a_call_wakes_another_worker_for_groups_that_are_due() {
    for (claims, woken) in [(1, &[""][..]), (2, &[])] {
        let (_redis, mut state) = scene().await;
        limit(&state, &["a", "b"]).await;
        for group in ["a", "b"] {
            park(&mut state, group, 2.0).await;
        }
        for group in ["a", "b"] {
            block(&mut state, group, 0).await;
        }
        let answer = ask(&mut state, Bounds { claims, ..BOUNDS })
            .await
            .expect("an answer");
        assert_eq!(objects(&answer), ["a:1", "b:1"][..claims]);
        assert_eq!(markers(&mut state).await, woken);
    }
}

/// Of several limits that allow no claim, a group waits for the one that it exceeds by most.
#[tokio::test]
async fn a_group_waits_for_the_limit_that_it_exceeds_by_most() {
    let (_redis, mut state) = scene().await;
    set(&state, "a:x:*", Share::new().in_flight(1)).await;
    state.emit("a:x:1", "1").await;
    for (limit, member) in [(3, "a:x"), (1, "a\n")] {
        set(&state, "a:*", Share::new().in_flight(limit)).await;
        let in_hand = state.keys.objects_in_hand();
        state
            .run(
                "ZADD",
                &[&in_hand, "0", "a:x:7:", "0", "a:x:8:", "0", "a:x:9:"],
            )
            .await;
        assert_eq!(call(&mut state).await.0, [""; 0]);
        let blocked: Vec<_> = blocked(&mut state)
            .await
            .into_iter()
            .map(|(member, score)| (member, score > LATER as f64))
            .collect();
        assert_eq!(blocked, [(member.to_owned(), true)]);
    }
}

/// A call looks at so many groups that are due, and at so many that have waited for long. Those with the
/// lowest times come first.
#[tokio::test]
async fn a_call_looks_at_so_many_groups() {
    for (time, most) in [(1, 64), (LATER, 16)] {
        let (_redis, mut state) = scene().await;
        for n in 0..most + 2 {
            park(&mut state, &format!("a{n}"), 2.0).await;
            block(&mut state, &format!("a{n}"), time + n).await;
        }
        call(&mut state).await;
        let left = [most, most + 1].map(|n| (format!("a{n}"), (time + n) as f64));
        assert_eq!(blocked(&mut state).await, left);
        assert_eq!(
            waiting(&mut state).await,
            left.map(|(group, _)| (group, 2.0))
        );
    }
}

/// A group of a high priority may have the lowest score of all that wait. A group that has turns keeps
/// its pass, although event.groups.blocked has it.
#[tokio::test]
async fn only_groups_that_wait_come_back() {
    const CLASS: f64 = PARKED / 4.0;
    let (_redis, mut state) = scene().await;
    set(&state, "a:*", Share::new().priority(Priority::High)).await;
    park(&mut state, "a", -CLASS).await;
    for group in ["b", "c"] {
        park(&mut state, group, 40.0).await;
    }
    let key = state.keys.event_groups();
    state.run("ZADD", &[&key, "20", "b"]).await;
    for group in ["a", "b", "c"] {
        block(&mut state, group, 0).await;
    }
    assert_eq!(call(&mut state).await.0, ["a:1"]);
    assert_eq!(
        scores(&mut state, key).await,
        [pair("a", 1.0 - CLASS), pair("b", 20.0), pair("c", 40.0)]
    );
}

/// The members of groups that wait were lost. As soon as the key is empty, a call looks at groups that
/// wait, also if only one name does.
#[tokio::test]
async fn groups_whose_members_were_lost_come_back() {
    let (_redis, mut state) = scene().await;
    limit(&state, &["other"]).await;
    for group in ["a", "b"] {
        park(&mut state, group, 2.0).await;
    }
    block(&mut state, "a", 0).await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(
        (objects(&answer), waiting(&mut state).await),
        (vec!["a:1"], vec![pair("b", 2.0)])
    );
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(
        (objects(&answer), waiting(&mut state).await),
        (vec!["a:1", "b:1"], vec![])
    );
}

/// Story: 16 groups waited for their own limits, and had lower passes than a group that waited for the
/// limit of the prefix. Each call looked at the same 16, so that group waited as long as they did.
#[tokio::test]
async fn groups_that_wait_for_their_own_limits_stop_no_group_behind_them() {
    let (_redis, mut state) = scene().await;
    set(&state, "p:*", Share::new().in_flight(100)).await;
    set(&state, "p:free:*", Share::new().weight(1)).await;
    let groups: Vec<String> = (0..CHILDREN_MAX).map(|n| format!("p:{n}")).collect();
    limit(
        &state,
        &groups.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let in_hand = state.keys.objects_in_hand();
    for (pass, group) in (2..).zip(&groups) {
        park(&mut state, group, f64::from(pass)).await;
        state
            .run("ZADD", &[&in_hand, "0", &format!("{group}:9:")])
            .await;
    }
    park(&mut state, "p:free", 50.0).await;
    block(&mut state, "p\n", 0).await;
    assert_eq!(call(&mut state).await.0, [""; 0]);
    assert_eq!(call(&mut state).await.0, ["p:free:1"]);
}

/// Story: the groups of four prefixes waited for rates, and a call had no time for all of them. Each call
/// looked at these prefixes again, although their rates allowed nothing, and never at a fifth one.
#[tokio::test]
async fn prefixes_that_wait_for_their_rates_stop_no_other_prefix() {
    let (_redis, mut state) = scene().await;
    let prefixes: Vec<(String, usize)> = (0..=PREFIXES_MAX)
        .map(|n| (format!("p{n}"), if n < PREFIXES_MAX { 5 } else { 1 }))
        .collect();
    for (prefix, groups) in &prefixes {
        set(&state, &format!("{prefix}:*"), Share::new().rate(0.001)).await;
        for n in 0..*groups {
            set(&state, &format!("{prefix}:{n}:*"), Share::new().weight(1)).await;
        }
    }
    let (used, now) = (
        state.keys.event_shares_used(),
        control(&state.conn, &state.keys)
            .now_ms()
            .await
            .expect("a time"),
    );
    for (prefix, groups) in &prefixes {
        for n in 0..*groups {
            park(&mut state, &format!("{prefix}:{n}"), 2.0 + n as f64).await;
        }
        if *groups > 1 {
            state
                .run(
                    "HSET",
                    &[
                        &used,
                        &format!("{prefix}:*"),
                        &format!("9 {} 0 0 0", (now + 600_000) * 1000),
                    ],
                )
                .await;
        }
    }
    for (prefix, _) in &prefixes {
        block(&mut state, &format!("{prefix}\n"), 0).await;
    }
    assert_eq!(call(&mut state).await.0, [""; 0]);
    let due: Vec<_> = blocked(&mut state)
        .await
        .into_iter()
        .map(|(member, score)| (member, score > now as f64))
        .collect();
    let expected = [
        ("p4\n", false),
        ("p0\n", true),
        ("p1\n", true),
        ("p2\n", true),
        ("p3\n", true),
    ];
    assert_eq!(
        due,
        expected.map(|(member, is_later)| (member.to_owned(), is_later))
    );
    assert_eq!(call(&mut state).await.0, ["p4:0:1"]);
}

/// Without names, no group is left. That is no loss.
#[tokio::test]
async fn a_call_without_names_tells_of_no_lost_group() {
    let (_redis, mut state) = scene().await;
    assert_eq!(call(&mut state).await, (Vec::new(), false));
}
