//! `attach`, `renew`, `detach` and `adopt`: the keys that they must not change.

use seriatim::wire::{self, Attached, Detached, Renewed, Sweep};

use crate::state::State;
use crate::support::Redis;
use crate::support::sweep::sweep;
use crate::{LEASE, Suspects, attach, attached, pop};

/// Another process took the name over, and then the lease of that process ended, too. The first
/// process is still fenced: for it this is no lapse.
#[tokio::test]
async fn a_process_that_was_taken_over_is_fenced_even_when_its_successor_is_gone() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let attached = attach(&mut conn, keys, "token-2", "token-1 host 1 1").await;
    assert!(
        matches!(attached, Attached::Attached { .. }),
        "{attached:?}"
    );
    redis.console().await.end_lease("w").await;
    let first = wire::renew(&mut conn, keys, "w", "token-1", LEASE, 2)
        .await
        .expect("an answer");
    assert_eq!(
        first,
        Renewed::Fenced {
            lease: String::new()
        }
    );
    let second = wire::renew(&mut conn, keys, "w", "token-2", LEASE, 2)
        .await
        .expect("an answer");
    assert_eq!(second, Renewed::Lapsed);
}

/// Without a registration, no other process is known to have taken the name. The process attaches
/// again, and its batches count no crash.
#[tokio::test]
async fn a_process_without_lease_and_registration_has_lapsed() {
    let redis = Redis::start();
    for registration in [None, Some("1024 - 1")] {
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        redis.console().await.end_lease("w").await;
        state.run("DEL", &[&keys.event_workers()]).await;
        if let Some(value) = registration {
            state
                .run("HSET", &[&keys.event_workers(), "w", value])
                .await;
        }
        let renewed = wire::renew(&mut state.conn, &keys, "w", "token-1", LEASE, 2)
            .await
            .expect("an answer");
        assert_eq!(renewed, Renewed::Lapsed, "{registration:?}");
        let detached = wire::detach(&mut state.conn, &keys, "w", "token-1")
            .await
            .expect("an answer");
        assert_eq!(detached, Detached::Lapsed, "{registration:?}");
        redis.console().await.end_lease("w").await;
        state.run("DEL", &[&keys.event_workers()]).await;
    }
    for (before, crashes) in [("token-1", "12"), ("", "12 0 0 1")] {
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        state
            .run(
                "DEL",
                &[
                    &keys.event_workers(),
                    &keys.worker_lease("w"),
                    &keys.worker_object("w.0"),
                    &keys.worker_event("w.0"),
                ],
            )
            .await;
        state.own("w.0", "work:1", 12, &["{}"]).await;
        let args = wire::Attach {
            name: "w",
            token: "token-9",
            holder: "host 1 1",
            lease: LEASE,
            slots: 2,
            displace: "",
            before,
            crashes_max: 5,
            suspects: Suspects::NONE,
        };
        wire::attach(&mut state.conn, &keys, &args)
            .await
            .expect("an answer");
        assert_eq!(
            redis
                .console()
                .await
                .text(&keys.worker_event_id("w.0"))
                .await
                .as_deref(),
            Some(crashes),
            "{before:?}"
        );
    }
}

/// Attach replaces only the lease that its caller has read, because another process may have
/// attached meanwhile.
#[tokio::test]
async fn a_lease_that_was_not_seen_is_not_displaced() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let third = attach(&mut conn, keys, "token-3", "token-0 host 1 1").await;
    assert!(
        matches!(&third, Attached::InUse { lease, .. } if lease == "token-1 host 1 1"),
        "{third:?}"
    );
}

/// A process whose name was taken over gives back nothing when it stops.
#[tokio::test]
async fn a_fenced_process_gives_back_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    attach(&mut conn, keys, "token-2", "token-1 host 1 1").await;
    let lease = "token-2 host 1 1".to_owned();
    let detached = wire::detach(&mut conn, keys, "w", "token-1")
        .await
        .expect("an answer");
    assert_eq!(
        detached,
        Detached::Fenced {
            lease: lease.clone()
        }
    );
    assert_eq!(
        redis.console().await.text(&keys.worker_lease("w")).await,
        Some(lease)
    );
}

/// An owner key of a wrong type reads as no owner. The object's name is a stray, and renewal
/// continues.
#[tokio::test]
async fn a_name_whose_owner_has_a_wrong_type_is_a_stray() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state
        .run("LPUSH", &[&keys.event_worker("work:1"), "wrong"])
        .await;
    state
        .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
        .await;
    let renewed = wire::renew(&mut state.conn, keys, "w", "token-1", LEASE, 2)
        .await
        .expect("an answer");
    assert_eq!(
        renewed,
        Renewed::Renewed {
            strays: 1,
            lost: Vec::new()
        }
    );
    assert_eq!(
        redis
            .console()
            .await
            .list(&keys.objects_with_events())
            .await,
        ["work:1"]
    );
}

/// A key of a wrong type is found before anything is given back. Half a detach would hold objects
/// that the process still delivers.
#[tokio::test]
async fn a_detach_that_meets_a_wrong_type_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    state.own("w.0", "work:1", 1, &["1"]).await;
    state
        .run("SET", &[&keys.worker_object("w.1"), "wrong"])
        .await;
    let refused = wire::detach(&mut state.conn, keys, "w", "token-1")
        .await
        .expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
    let console = redis.console().await;
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.0")
    );
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
    assert!(console.text(&keys.worker_lease("w")).await.is_some());
}

/// Objects given back are due at once, but idle workers wait for markers. The empty name wakes one
/// of them.
#[tokio::test]
async fn a_detach_that_gives_something_back_wakes_a_worker() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    for (held, markers) in [(0, vec![]), (1, vec![""])] {
        attach(&mut conn, keys, "token-1", "").await;
        let mut state = State::new(conn.clone(), keys.clone());
        if held == 1 {
            state.own("w.0", "work:1", 1, &["1"]).await;
        }
        let detached = wire::detach(&mut state.conn, keys, "w", "token-1")
            .await
            .expect("an answer");
        assert_eq!(
            detached,
            Detached::Detached {
                held,
                lost: Vec::new()
            }
        );
        assert_eq!(console.list(&keys.objects_with_events()).await, markers);
    }
}

/// A name whose slots were taken over stays registered for a day from then on. A pop of its process
/// may still move a marker.
#[tokio::test]
async fn a_takeover_is_a_sign_of_life() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    console.end_lease("w").await;
    let _: u64 = console
        .run(&["HSET", &keys.event_workers(), "w", "2 token-1 7"])
        .await;
    sweep(&mut state.conn, &keys, "other", 5, LEASE)
        .await
        .expect("an answer");
    let registered: String = console.run(&["HGET", &keys.event_workers(), "w"]).await;
    let at_ms: u64 = registered
        .strip_prefix("2 token-1 ")
        .and_then(|at| at.parse().ok())
        .expect("a time");
    assert!(at_ms > 7, "{registered}");
}

/// A process whose lease has ended sweeps before it has noticed the end. The sweep does not treat
/// the process's own objects as those of a dead process.
#[tokio::test]
async fn a_sweep_leaves_the_own_name_alone() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 1, &["1"]).await;
    redis.console().await.end_lease("w").await;
    for (own, held) in [("w", 0), ("other", 1)] {
        let adopted = sweep(&mut state.conn, &keys, own, 5, LEASE)
            .await
            .expect("an answer");
        assert_eq!(adopted.held, held, "for {own}");
    }
}

/// The slots of some dead processes have one object of their own, and one name that they do not
/// own. The sweep takes over both, and reports the names of the processes.
#[tokio::test]
async fn a_takeover_of_as_many_objects_as_strays_is_reported() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    for name in ["x", "y"] {
        state.register(name, 1).await;
    }
    for (n, (worker, stray)) in [
        ("w.0", None),
        ("x.0", Some("work:4")),
        ("y.0", Some("work:5")),
    ]
    .into_iter()
    .enumerate()
    {
        state
            .own(worker, &format!("work:{}", n + 1), n as u64 + 1, &["1"])
            .await;
        if let Some(stray) = stray {
            state.emit(stray, "1").await;
            pop(&mut state, worker).await;
        }
    }
    redis.console().await.end_lease("w").await;
    let adopted = sweep(&mut state.conn, &keys, "other", 5, LEASE)
        .await
        .expect("an answer");
    assert_eq!((adopted.held, adopted.strays), (3, 2));
    assert_eq!(adopted.names, ["w", "x", "y"]);
}

/// After 256 objects, or 256 names that go back to the markers, a call takes over no further worker
/// name. The next call does.
#[tokio::test]
async fn objects_and_strays_count_alike_in_a_call() {
    for has_owner in [false, true] {
        let redis = Redis::start();
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        for (name, first) in [("a", 1), ("b", 257)] {
            state.register(name, 256).await;
            for slot in 0..256 {
                let (worker, object) = (format!("{name}.{slot}"), format!("{name}:{slot}"));
                match has_owner {
                    false => {
                        state
                            .run("LPUSH", &[&keys.worker_object(&worker), &object])
                            .await
                    }
                    true => state.own(&worker, &object, first + slot, &["1"]).await,
                }
            }
        }
        // After so many, a name may have more, so another call is of use.
        for (count, more, names) in [
            (256, true, &["a"][..]),
            (256, true, &["b"]),
            (0, false, &[]),
        ] {
            let adopted = sweep(&mut state.conn, &keys, "other", 5, LEASE)
                .await
                .expect("an answer");
            let expected = if has_owner { (count, 0) } else { (0, count) };
            assert_eq!(
                ((adopted.held, adopted.strays), adopted.more),
                (expected, more),
                "{names:?}"
            );
            assert_eq!(adopted.names, names);
        }
    }
}

/// A call looks at 256 watched names that are due. If more are due, it says so.
#[tokio::test]
async fn a_call_looks_at_256_names_with_a_lease() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, console) = (state.keys.clone(), redis.console().await);
    for n in 0..257 {
        let name = format!("live-{n:03}");
        state.register(&name, 1).await;
        state.lease(&name).await;
        state
            .run("ZADD", &[&keys.event_workers_watched(), "1", &name])
            .await;
    }
    let call = Sweep {
        own: "other",
        crashes_max: 5,
        look: LEASE,
        forget: LEASE,
        since: None,
        notice: LEASE,
    };
    for (more, left) in [(true, 1), (false, 0)] {
        let adopted = wire::adopt(&mut state.conn, &keys, &call)
            .await
            .expect("an answer");
        let due: u64 = console
            .run(&["ZCOUNT", &keys.event_workers_watched(), "1", "1"])
            .await;
        assert_eq!((adopted.more, due), (more, left));
    }
}

/// The sets of names were changed: a live name counts as departed, and would be forgotten. Its
/// renewal is a sign of life, so the name is watched again.
#[tokio::test]
async fn a_departed_name_that_renews_its_lease_is_watched() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let (watched, departed) = (keys.event_workers_watched(), keys.event_workers_departed());
    state.run("ZREM", &[&watched, "w"]).await;
    state.run("ZADD", &[&departed, "1", "w"]).await;
    wire::renew(&mut state.conn, &keys, "w", "token-1", LEASE, 2)
        .await
        .expect("an answer");
    for (set, names) in [(&watched, vec!["w"]), (&departed, vec![])] {
        assert_eq!(
            console
                .run::<Vec<String>>(&["ZRANGE", set, "0", "-1"])
                .await,
            names,
            "{set}"
        );
    }
}

/// The registrations have a wrong type. The sweep fails before its first write; otherwise it would
/// write the time, and forget a step of the clock.
#[tokio::test]
async fn a_sweep_that_meets_a_wrong_type_writes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    let _: () = console.run(&["SET", &keys.event_workers(), "wrong"]).await;
    let refused = sweep(&mut conn, keys, "other", 5, LEASE)
        .await
        .expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
    assert_eq!(console.run::<u64>(&["EXISTS", &keys.meta()]).await, 0);
}

/// One half of a round takes the departed names that fell due first, the other half those that fell
/// due last. The names between wait for the next rounds.
#[tokio::test]
async fn a_round_takes_the_oldest_and_the_newest_departed_names() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (keys, console) = (state.keys.clone(), redis.console().await);
    for n in 1..=300 {
        state.register(&n.to_string(), 1).await;
        state
            .run(
                "ZADD",
                &[
                    &keys.event_workers_departed(),
                    &n.to_string(),
                    &n.to_string(),
                ],
            )
            .await;
    }
    let call = Sweep {
        own: "other",
        crashes_max: 5,
        look: LEASE,
        forget: LEASE,
        since: None,
        notice: LEASE,
    };
    let adopted = wire::adopt(&mut state.conn, &keys, &call)
        .await
        .expect("an answer");
    assert!(!adopted.more, "{adopted:?}");
    let left: Vec<u32> = console
        .run(&["ZRANGE", &keys.event_workers_departed(), "0", "-1"])
        .await;
    assert!(left.iter().all(|n| (101..=200).contains(n)), "{left:?}");
    assert!((125..=176).all(|n| left.contains(&n)), "{left:?}");
    assert_eq!(
        console.run::<usize>(&["HLEN", &keys.event_workers()]).await,
        left.len(),
        "the others are forgotten"
    );
}
