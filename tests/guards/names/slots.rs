//! What `attach`, `renew` and `detach` leave of the slots of a name.

use std::time::Duration;

use seriatim::wire::{self, Attach, Attached, Detached, Renewed, ScriptError, Suspects};

use super::Scene;

const LEASE: Duration = Duration::from_secs(600);
const ATTACH: Attach<'static> = Attach {
    name: "w",
    token: "t2",
    holder: "host 1 1 600000ms",
    lease: LEASE,
    slots: 2,
    displace: "",
    before: "",
    crashes_max: 5,
    suspects: Suspects::NONE,
};

impl Scene {
    /// Makes a name with this many slots in its registration. Its slots have three batches, one of
    /// them with four crashes, and an object without a batch. The lists of the slots also have two
    /// names that no slot owns, and a second copy of a name.
    async fn fill(&mut self, slots: u32) {
        self.register("w", slots, 7).await;
        self.watch("w", 1).await;
        let far = 9_000_000_000_000;
        self.depart("w", far).await;
        for (worker, object, first, tag) in [
            ("w.0", "a:1", 1, "1"),
            ("w.1", "a:2", 2, "2 3 2 4"),
            ("w.2", "a:3", 3, "3 1"),
        ] {
            self.state.own(worker, object, first, &["e"]).await;
            let key = self.keys.worker_event_id(worker);
            self.state.run("SET", &[&key, tag]).await;
        }
        let owner = self.keys.event_worker("a:4");
        self.state.run("SET", &[&owner, "w.3"]).await;
        for (worker, object) in [
            ("w.3", "a:4"),
            ("w.0", "a:1"),
            ("w.0", "a:5"),
            ("w.3", "a:6"),
        ] {
            self.push(worker, object).await;
        }
    }

    /// Fills the name's slots, with that of `w.3` in this slot instead, and loses the registration.
    /// The lease is there.
    async fn fill_and_lose_registration(&mut self, slot: u32) {
        self.fill(4).await;
        if slot != 3 {
            let [from, to] = ["w.3".to_owned(), format!("w.{slot}")]
                .map(|worker| self.keys.worker_object(&worker));
            self.state.run("RENAME", &[&from, &to]).await;
            let owner = self.keys.event_worker("a:4");
            self.state.run("SET", &[&owner, &format!("w.{slot}")]).await;
        }
        let (workers, lease) = (self.keys.event_workers(), self.keys.worker_lease("w"));
        self.state.run("DEL", &[&workers]).await;
        self.state
            .run("SET", &[&lease, "t host 1 1", "PX", "1000000"])
            .await;
    }

    /// Checks that so many objects are held, that the slot has nothing, and that the registration
    /// names all slots up to it.
    async fn assert_none_left(&mut self, slot: u32, held: usize) {
        let worker = format!("w.{slot}");
        let all = self.all().await;
        assert!(
            !all.iter()
                .any(|line| line.starts_with(&format!("event.worker:{worker}:"))),
            "{all:#?}"
        );
        assert_eq!(
            all.iter()
                .filter(|line| line.ends_with(":event.worker = held"))
                .count(),
            held,
            "{all:#?}"
        );
        assert!(
            all.iter()
                .any(|line| line.starts_with(&format!("event.workers = w {} ", slot + 1))),
            "{all:#?}"
        );
    }

    /// Returns the time of the last sign of life of the name, which a call has just written.
    async fn at_ms(&self) -> u64 {
        let registered: String = self
            .console
            .run(&["HGET", &self.keys.event_workers(), "w"])
            .await;
        registered
            .rsplit(' ')
            .next()
            .and_then(|at| at.parse().ok())
            .expect("a time")
    }

    async fn attach(&mut self, args: &Attach<'_>) -> Attached {
        wire::attach(&mut self.state.conn, &self.keys, args)
            .await
            .expect("a reply")
    }

    /// Returns the time that the lease has left, ms.
    async fn lease_ms(&self) -> u64 {
        self.console
            .run(&["PTTL", &self.keys.worker_lease("w")])
            .await
    }
}

/// A process has died, so each batch that it had in flight counts one crash more. Objects of slots
/// that the next process does not run are held, and so is an object at the limit of crashes.
#[tokio::test]
async fn an_attach_counts_a_crash_for_each_batch() {
    let mut scene = Scene::new().await;
    scene.fill(4).await;
    let before = scene.now_ms().await;
    assert_eq!(
        scene.attach(&ATTACH).await,
        Attached::Attached {
            kept: 1,
            held: 3,
            lost: Vec::new()
        }
    );
    let now = scene.at_ms().await;
    assert!((before..=scene.now_ms().await).contains(&now), "{now}");
    let expected = [
        "a:1:event.worker = w.0".to_owned(),
        "a:2:event.worker = held".to_owned(),
        "a:2:events.held = e".to_owned(),
        "a:2:events.held.id = 2 3 2 5 crashes: died 5 times with this event in hand".to_owned(),
        "a:3:event.worker = held".to_owned(),
        "a:3:events.held = e".to_owned(),
        "a:3:events.held.id = 3 1 0 1 slots".to_owned(),
        "a:4:event.worker = held".to_owned(),
        "event.worker:w.0:event = e".to_owned(),
        "event.worker:w.0:event.id = 1 0 0 1".to_owned(),
        "event.worker:w.0:object = a:1".to_owned(),
        "event.worker:w:lease = t2 host 1 1 600000ms".to_owned(),
        format!("event.workers = w 4 t2 {now}"),
        format!("event.workers.watched = w {now}"),
        format!("objects.held = a:3 {now} a:4 {now} a:2 inf"),
        "objects.with.events = a:5 a:6".to_owned(),
    ];
    assert_eq!(scene.all().await, expected);
    let left = scene.lease_ms().await;
    assert!((590_000..=600_000).contains(&left), "{left}");
}

/// A call that repeats an attach counts no crash, and neither does a process that had the batches
/// itself. An object without a batch stays with its slot.
#[tokio::test]
async fn an_attach_of_the_same_process_counts_no_crash() {
    for (lease, token, before, crashes) in [
        ("t host 1 1", "t", "", 0),
        ("", "t", "", 0),
        ("", "t2", "t", 0),
        ("", "t2", "other", 1),
    ] {
        let mut scene = Scene::new().await;
        scene.fill(1).await;
        if !lease.is_empty() {
            let key = scene.keys.worker_lease("w");
            scene.state.run("SET", &[&key, lease]).await;
        }
        let args = Attach {
            token,
            before,
            slots: 5,
            crashes_max: 6,
            ..ATTACH
        };
        assert_eq!(
            scene.attach(&args).await,
            Attached::Attached {
                kept: 3,
                held: 0,
                lost: Vec::new()
            }
        );
        let now = scene.at_ms().await;
        let tags = match crashes {
            0 => ["1", "2 3 2 4", "3 1"],
            _ => ["1 0 0 1", "2 3 2 5", "3 1 0 1"],
        };
        let expected = [
            "a:1:event.worker = w.0".to_owned(),
            "a:2:event.worker = w.1".to_owned(),
            "a:3:event.worker = w.2".to_owned(),
            "a:4:event.worker = w.3".to_owned(),
            "event.worker:w.0:event = e".to_owned(),
            format!("event.worker:w.0:event.id = {}", tags[0]),
            "event.worker:w.0:object = a:1".to_owned(),
            "event.worker:w.1:event = e".to_owned(),
            format!("event.worker:w.1:event.id = {}", tags[1]),
            "event.worker:w.1:object = a:2".to_owned(),
            "event.worker:w.2:event = e".to_owned(),
            format!("event.worker:w.2:event.id = {}", tags[2]),
            "event.worker:w.2:object = a:3".to_owned(),
            "event.worker:w.3:object = a:4".to_owned(),
            format!("event.worker:w:lease = {token} host 1 1 600000ms"),
            format!("event.workers = w 5 {token} {now}"),
            format!("event.workers.watched = w {now}"),
            "objects.with.events = a:5 a:6".to_owned(),
        ];
        assert_eq!(scene.all().await, expected, "{lease} {token} {before}");
    }
}

/// The limit of crashes may be 1. With 0 there is no limit.
#[tokio::test]
async fn an_attach_knows_any_limit_of_crashes() {
    for (crashes_max, tag, held) in [(1, "1", 1), (2, "1", 0), (0, "1 0 0 99", 0)] {
        let mut scene = Scene::new().await;
        scene.register("w", 1, 7).await;
        scene.state.own("w.0", "a:1", 1, &["e"]).await;
        let key = scene.keys.worker_event_id("w.0");
        scene.state.run("SET", &[&key, tag]).await;
        assert_eq!(
            scene
                .attach(&Attach {
                    crashes_max,
                    ..ATTACH
                })
                .await,
            Attached::Attached {
                kept: 1 - held,
                held,
                lost: Vec::new()
            },
            "{crashes_max}"
        );
        let due: Vec<String> = scene
            .console
            .run(&[
                "ZRANGE",
                &scene.keys.objects_held(),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .await;
        let expected: &[&str] = if held == 1 { &["a:1", "inf"] } else { &[] };
        assert_eq!(due, expected, "{crashes_max}");
    }
}

/// A batch without a crash needs no room for suspects, and a call that counts no crash adds none.
#[tokio::test]
async fn a_batch_without_a_crash_needs_no_room() {
    let mut scene = Scene::new().await;
    scene.register("w", 2, 7).await;
    for (worker, object, first, tag) in [("w.0", "a:1", 1, "1"), ("w.1", "a:2", 2, "2 0 0 1")] {
        scene.state.own(worker, object, first, &["e"]).await;
        let key = scene.keys.worker_event_id(worker);
        scene.state.run("SET", &[&key, tag]).await;
    }
    let args = Attach {
        before: "t",
        suspects: Suspects::of(2, false).full(),
        ..ATTACH
    };
    assert_eq!(
        scene.attach(&args).await,
        Attached::Attached {
            kept: 1,
            held: 1,
            lost: Vec::new()
        }
    );
    let now = scene.at_ms().await;
    let expected = [
        "a:1:event.worker = w.0".to_owned(),
        "a:2:event.worker = held".to_owned(),
        "a:2:events.held = e".to_owned(),
        "a:2:events.held.id = 2 0 0 1 slots".to_owned(),
        "event.worker:w.0:event = e".to_owned(),
        "event.worker:w.0:event.id = 1".to_owned(),
        "event.worker:w.0:object = a:1".to_owned(),
        "event.worker:w:lease = t2 host 1 1 600000ms".to_owned(),
        format!("event.workers = w 2 t2 {now}"),
        format!("event.workers.watched = w {now}"),
        format!("objects.held = a:2 {now}"),
    ];
    assert_eq!(scene.all().await, expected);
}

/// Another process has the lease. The caller learns the time that the lease has left, which is at
/// most the length of the lease.
#[tokio::test]
async fn a_lease_in_use_is_cut_to_its_length() {
    for (lease, left_ms, most_ms) in [
        ("t host 1 1 120000ms", "3600000", 120_000),
        ("t host 1 1 120000ms", "60000", 60_000),
        ("t host 1 1", "3600000", 3_600_000),
    ] {
        let mut scene = Scene::new().await;
        let key = scene.keys.worker_lease("w");
        scene.state.run("SET", &[&key, lease, "PX", left_ms]).await;
        for displace in ["", "t host 1 2"] {
            let Attached::InUse { lease: found, left } =
                scene.attach(&Attach { displace, ..ATTACH }).await
            else {
                panic!()
            };
            let left_ms = u64::try_from(left.as_millis()).expect("a time");
            assert_eq!(found, lease);
            for left in [left_ms, scene.lease_ms().await] {
                assert!(
                    (most_ms - 30_000..=most_ms).contains(&left),
                    "{lease}: {left}"
                );
            }
        }
        assert_eq!(
            scene.all().await,
            [format!("event.worker:w:lease = {lease}")]
        );
    }
}

/// A renewal moves back every name that a slot does not own, in all slots that the name ever had.
#[tokio::test]
async fn a_renewal_looks_at_all_slots_that_the_name_ever_had() {
    for (registered, slots) in [(4, 2), (1, 4)] {
        let mut scene = Scene::new().await;
        scene.fill(registered).await;
        let key = scene.keys.worker_lease("w");
        scene
            .state
            .run("SET", &[&key, "t host 1 1", "PX", "1000000"])
            .await;
        let before = scene.all().await;
        let renewed = wire::renew(&mut scene.state.conn, &scene.keys, "w", "t", LEASE, slots)
            .await
            .expect("a reply");
        assert_eq!(
            renewed,
            Renewed::Renewed {
                strays: 2,
                lost: Vec::new()
            }
        );
        let now = scene.at_ms().await;
        let changed = [
            "event.worker:w.0:object = a:1".to_owned(),
            "event.worker:w.3:object = a:4".to_owned(),
            format!("event.workers = w 4 t {now}"),
            format!("event.workers.watched = w {now}"),
            "objects.with.events = a:5 a:6".to_owned(),
        ];
        let after = scene.all().await;
        let new: Vec<_> = after
            .iter()
            .filter(|line| !before.contains(line))
            .cloned()
            .collect();
        assert_eq!(
            (new, after.len()),
            (changed.to_vec(), before.len()),
            "{registered} {slots}"
        );
        let left = scene.lease_ms().await;
        assert!((590_000..=600_000).contains(&left), "{left}");
    }
}

/// The renewal of a name that was watched says nothing of the other names. If the name was in no
/// set, the sets are lost, so a new pass over all names begins.
#[tokio::test]
async fn a_renewal_of_a_name_in_no_set_begins_a_pass() {
    for is_watched in [true, false] {
        let mut scene = Scene::new().await;
        scene.register("w", 2, 7).await;
        if is_watched {
            scene.watch("w", 1).await;
        }
        scene.meta("names.indexed", "5").await;
        let key = scene.keys.worker_lease("w");
        scene.state.run("SET", &[&key, "t host 1 1"]).await;
        let renewed = wire::renew(&mut scene.state.conn, &scene.keys, "w", "t", LEASE, 2)
            .await
            .expect("a reply");
        let nothing = Renewed::Renewed {
            strays: 0,
            lost: Vec::new(),
        };
        assert_eq!(renewed, nothing);
        let indexed: Option<String> = scene
            .console
            .run(&["HGET", &scene.keys.meta(), "names.indexed"])
            .await;
        assert_eq!(indexed.as_deref(), is_watched.then_some("5"));
    }
}

/// A detach counts no crash, and each object is due at once.
#[tokio::test]
async fn a_detach_holds_the_objects_of_all_slots() {
    let mut scene = Scene::new().await;
    scene.fill(4).await;
    let key = scene.keys.worker_lease("w");
    scene.state.run("SET", &[&key, "t host 1 1"]).await;
    let before = scene.now_ms().await;
    let detached = wire::detach(&mut scene.state.conn, &scene.keys, "w", "t")
        .await
        .expect("a reply");
    assert_eq!(
        detached,
        Detached::Detached {
            held: 4,
            lost: Vec::new()
        }
    );
    let now = scene.at_ms().await;
    assert!((before..=scene.now_ms().await).contains(&now), "{now}");
    let mut expected = vec!["a:4:event.worker = held".to_owned()];
    for (object, held) in [
        ("a:1", "1 0 0 0 stop"),
        ("a:2", "2 3 2 4 stop"),
        ("a:3", "3 1 0 0 stop"),
    ] {
        expected.push(format!("{object}:event.worker = held"));
        expected.push(format!("{object}:events.held = e"));
        expected.push(format!("{object}:events.held.id = {held}"));
    }
    expected.push(format!("event.workers = w 4 t {now}"));
    expected.push(format!("event.workers.departed = w {}", now + 1000));
    expected.push(format!(
        "objects.held = a:1 {now} a:2 {now} a:3 {now} a:4 {now}"
    ));
    expected.push("objects.with.events = a:5 a:6 ".to_owned());
    expected.sort_unstable();
    assert_eq!(scene.all().await, expected);
}

/// The registration of the name is lost, so any slot may have something of an earlier process. A
/// start with fewer slots, a renewal and a detach all find it.
#[tokio::test]
async fn a_lost_registration_hides_no_slot() {
    let attached = Attached::Attached {
        kept: 1,
        held: 3,
        lost: Vec::new(),
    };
    for slot in [3, 4, 1023] {
        let mut scene = Scene::new().await;
        scene.fill_and_lose_registration(slot).await;
        let args = Attach {
            displace: "t host 1 1",
            ..ATTACH
        };
        assert_eq!(scene.attach(&args).await, attached, "{slot}");
        scene.assert_none_left(slot, 3).await;

        let mut scene = Scene::new().await;
        scene.fill_and_lose_registration(slot).await;
        scene.push(&format!("w.{slot}"), "a:7").await;
        let renewed = wire::renew(&mut scene.state.conn, &scene.keys, "w", "t", LEASE, 2)
            .await
            .expect("a reply");
        assert_eq!(
            renewed,
            Renewed::Renewed {
                strays: 3,
                lost: Vec::new()
            },
            "{slot}"
        );
        let detached = wire::detach(&mut scene.state.conn, &scene.keys, "w", "t")
            .await
            .expect("a reply");
        assert_eq!(
            detached,
            Detached::Detached {
                held: 4,
                lost: Vec::new()
            },
            "{slot}"
        );
        scene.assert_none_left(slot, 4).await;

        let mut scene = Scene::new().await;
        scene.fill_and_lose_registration(slot).await;
        let detached = wire::detach(&mut scene.state.conn, &scene.keys, "w", "t")
            .await
            .expect("a reply");
        assert_eq!(
            detached,
            Detached::Detached {
                held: 4,
                lost: Vec::new()
            },
            "{slot}"
        );
        scene.assert_none_left(slot, 4).await;
    }
}

/// The registration of the name is lost, and its slots have nothing. A detach writes a registration
/// that is valid: it has at least one slot.
#[tokio::test]
async fn a_detach_writes_a_valid_registration() {
    let mut scene = Scene::new().await;
    let key = scene.keys.worker_lease("w");
    scene.state.run("SET", &[&key, "t host 1 1"]).await;
    wire::detach(&mut scene.state.conn, &scene.keys, "w", "t")
        .await
        .expect("a reply");
    let now = scene.at_ms().await;
    let expected = [
        format!("event.workers = w 1 t {now}"),
        format!("event.workers.departed = w {}", now + 1000),
    ];
    assert_eq!(scene.all().await, expected);
    scene.console.check().await;
}

/// A batch without the name of its object is in a slot that only the lost registration named.
#[tokio::test]
async fn a_lost_registration_hides_no_batch() {
    let mut scene = Scene::new().await;
    scene.state.own("w.900", "a:1", 1, &["e"]).await;
    let list = scene.keys.worker_object("w.900");
    scene.state.run("DEL", &[&list]).await;
    let Attached::Attached {
        kept: 0,
        held: 0,
        lost,
    } = scene.attach(&ATTACH).await
    else {
        panic!()
    };
    assert_eq!(lost.len(), 1);
    let all = scene.all().await;
    assert!(
        all.contains(&"event.worker:w.900:lost = 1 e".to_owned()),
        "{all:?}"
    );
    assert!(
        all.iter()
            .any(|line| line.starts_with("event.workers = w 901 ")),
        "{all:?}"
    );
}

/// The lists of many slots are lost. An attach tells of 64 batches without an object, and moves
/// all.
#[tokio::test]
async fn an_attach_tells_of_64_lost_batches() {
    let mut scene = Scene::new().await;
    scene.register("w", 70, 7).await;
    for slot in 0..70 {
        scene.state.batch(&format!("w.{slot}"), 1, &["e"]).await;
    }
    let Attached::Attached {
        kept: 0,
        held: 0,
        lost,
    } = scene.attach(&ATTACH).await
    else {
        panic!()
    };
    assert_eq!(lost.len(), 64);
    let all = scene.all().await;
    let moved = all.iter().filter(|line| line.ends_with(":lost = 1 e"));
    assert_eq!(moved.count(), 70);
}

/// A key of a wrong type ends a call before its first write.
#[tokio::test]
async fn a_key_of_a_wrong_type_ends_a_call_before_its_first_write() {
    let keys = Scene::new().await.keys;
    let namespace = keys.prefix().len();
    let shared = [
        keys.objects_with_events(),
        keys.objects_held(),
        keys.event_workers(),
        keys.event_workers_watched(),
        keys.event_workers_departed(),
    ];
    let slots = ["w.0", "w.1"].map(|w| {
        [
            keys.worker_object(w),
            keys.worker_event(w),
            keys.worker_event_id(w),
        ]
    });
    for (n, key) in shared.iter().chain(slots.iter().flatten()).enumerate() {
        let mut scene = Scene::new().await;
        scene.fill(2).await;
        let lease = scene.keys.worker_lease("w");
        scene
            .state
            .run("SET", &[&lease, "t host 1 1", "PX", "1000000"])
            .await;
        let wrong = [scene.keys.prefix(), &key[namespace..]].concat();
        scene.state.run("DEL", &[&wrong]).await;
        match key.ends_with(":event.id") {
            true => scene.state.run("LPUSH", &[&wrong, "wrong"]).await,
            false => scene.state.run("SET", &[&wrong, "wrong"]).await,
        }
        let before = scene.all().await;
        let refused = |refused: Result<(), ScriptError>, call: &str| {
            let refused = refused.expect_err("a wrong type");
            assert!(refused.is_wrong_type(), "{call}, {key}: {refused}");
        };
        let (conn, keys) = (&mut scene.state.conn, &scene.keys);
        let attach = Attach {
            displace: "t host 1 1",
            ..ATTACH
        };
        refused(wire::attach(conn, keys, &attach).await.map(drop), "attach");
        refused(wire::detach(conn, keys, "w", "t").await.map(drop), "detach");
        // A renewal reads no held objects, and no batches.
        if n != 1 && n < shared.len() {
            refused(
                wire::renew(conn, keys, "w", "t", LEASE, 2).await.map(drop),
                "renew",
            );
        }
        assert_eq!(scene.all().await, before, "{key}");
        assert!(scene.lease_ms().await > 900_000, "{key}");
        // It leaves out a slot's list of a wrong type, and keeps the name.
        if n >= shared.len() {
            let (conn, keys) = (&mut scene.state.conn, &scene.keys);
            wire::renew(conn, keys, "w", "t", LEASE, 2)
                .await
                .expect("renewed");
            assert!(scene.lease_ms().await <= 600_000, "{key}");
        }
    }
}
