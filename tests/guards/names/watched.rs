//! The looks of `adopt` at watched names.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Sweep};

use super::{AGES, NOTHING, Scene};

const LOOK: Duration = Duration::from_secs(60);
const LOOK_MS: u64 = 60_000;
/// A time that never comes.
const NEVER: u64 = 9_000_000_000_000;

impl Scene {
    /// Gives the name this lease, with an hour left.
    async fn lease(&mut self, name: &str, lease: &str) {
        let key = self.keys.worker_lease(name);
        self.state.run("SET", &[&key, lease, "PX", "3600000"]).await;
    }

    /// Returns the time that the lease of the name has left, ms.
    async fn left_ms(&self, name: &str) -> u64 {
        self.console
            .run(&["PTTL", &self.keys.worker_lease(name)])
            .await
    }
}

/// A name with a lease is looked at again after the time between two looks. Its lease is cut to the
/// length that it has. If a look is farther ahead than any process sets it, it comes at once. The
/// caller's own name stays.
#[tokio::test]
async fn a_name_with_a_lease_is_looked_at_again() {
    let mut scene = Scene::new().await;
    let base = scene.now_ms().await;
    let (near, far) = (base + 10 * LOOK_MS + 900, base + 10 * LOOK_MS + 30_000);
    let looks = [
        ("due", 1),
        ("bare", 2),
        ("soon", base + 30_000),
        ("near", near),
        ("far", far),
    ];
    for (name, look_ms) in looks {
        scene.register(name, 1, 7).await;
        scene.watch(name, look_ms).await;
        scene.lease(name, "t host 1 1 120000ms").await;
    }
    scene.lease("bare", "t host 1 1").await;
    scene.depart("due", NEVER).await;
    scene.register("own", 1, 7).await;
    scene.watch("own", 3).await;
    scene.push("own.0", "a:1").await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(adopted, NOTHING);
    let next = now + LOOK_MS;
    let lease = "t host 1 1 120000ms";
    let expected = [
        "event.worker:bare:lease = t host 1 1".to_owned(),
        format!("event.worker:due:lease = {lease}"),
        format!("event.worker:far:lease = {lease}"),
        format!("event.worker:near:lease = {lease}"),
        "event.worker:own.0:object = a:1".to_owned(),
        format!("event.worker:soon:lease = {lease}"),
        "event.workers = due 1 t 7 bare 1 t 7 soon 1 t 7 near 1 t 7 far 1 t 7 own 1 t 7".to_owned(),
        format!(
            "event.workers.watched = own 3 soon {} bare {next} due {next} far {next} near {near}",
            base + 30_000
        ),
        format!(
            "seriatim.meta = clock {now} names.next {} names.indexed {now}",
            now + 1000
        ),
    ];
    assert_eq!(scene.all().await, expected);
    for name in ["due", "far"] {
        assert!(scene.left_ms(name).await <= 120_000, "{name}");
    }
    for name in ["bare", "soon", "near"] {
        assert!(scene.left_ms(name).await > 120_000, "{name}");
    }
}

/// Story: a lease without an end, as a copy of a key or PERSIST leaves it, was cut by no look. Its name
/// was never taken over, an inspection said that the lease lasts 0 s, and the check was clean.
#[tokio::test]
async fn a_lease_without_an_end_gets_one() {
    let mut scene = Scene::new().await;
    for (name, lease) in [("endless", "t host 1 1 120000ms"), ("bare", "t host 1 1")] {
        scene.register(name, 1, 7).await;
        scene.watch(name, 1).await;
        scene.lease(name, lease).await;
        let key = scene.keys.worker_lease(name);
        scene.state.run("PERSIST", &[&key]).await;
    }
    assert_eq!(scene.sweep(LOOK, AGES).await.0, NOTHING);
    assert!((90_000..=120_000).contains(&scene.left_ms("endless").await));
    // The value does not tell the length.
    let bare: i64 = scene
        .console
        .run(&["PTTL", &scene.keys.worker_lease("bare")])
        .await;
    assert_eq!(bare, -1);
    scene.state.own("bare.0", "a:1", 7, &["1"]).await;
    let control = crate::support::control(&scene.state.conn, &scene.keys);
    let seen = control.inspect("a:1").await.expect("an inspection");
    assert!(
        seen.why
            .contains("whose lease has no end until a worker process looks at it"),
        "{seen:?}"
    );
}

/// A name without a lease and with empty slots departs. It goes if it was without a sign of life
/// for too long.
#[tokio::test]
async fn a_name_without_a_lease_and_with_empty_slots_departs() {
    let mut scene = Scene::new().await;
    let base = scene.now_ms().await;
    let (left, soon, day) = (base - 2000, base + 900, 86_400_000);
    for (name, at) in [
        ("gone", base - day - 5000),
        ("last", base - day + 60_000),
        ("left", left),
        ("soon", soon),
    ] {
        scene.register(name, 2, at).await;
    }
    scene.register("ahead", 3, base + 3_600_000).await;
    let workers = scene.keys.event_workers();
    scene.state.run("HSET", &[&workers, "odd", "4 t 7 x"]).await;
    for name in ["gone", "last", "left", "soon", "ahead", "odd"] {
        scene.watch(name, 1).await;
        scene.depart(name, NEVER).await;
    }
    let (adopted, now) = scene.sweep(LOOK, Duration::from_millis(day)).await;
    assert_eq!(adopted, NOTHING);
    let looks = format!(
        "soon {} ahead {} left {} last {} odd {}",
        soon + 1000,
        now + 1000,
        left + 10_000,
        base + 60_001,
        now + day + 1
    );
    let expected = [
        format!(
            "event.workers = last 2 t {} left 2 t {left} soon 2 t {soon} ahead 3 t {now} odd 4 t 7 x",
            base - day + 60_000
        ),
        format!("event.workers.departed = {}", in_order(&looks)),
        format!(
            "seriatim.meta = clock {now} names.next {} names.indexed {now}",
            now + 1000
        ),
    ];
    assert_eq!(scene.all().await, expected);
}

/// The time of the next look depends on the last sign of life. The last look comes when the name is
/// forgotten, so no other look comes then.
#[tokio::test]
async fn a_departed_name_is_looked_at_at_its_times() {
    for (forget_ms, looks) in [
        (
            86_400_000,
            &[
                (2, 10_000),
                (30, 60_000),
                (300, 600_000),
                (1800, 3_600_000),
                (7200, 86_400_001),
            ][..],
        ),
        (60_000, &[(2, 10_000), (30, 60_001)]),
    ] {
        let mut scene = Scene::new().await;
        let base = scene.now_ms().await;
        let mut expected = String::new();
        for (age_s, after_ms) in looks {
            let (name, at) = (format!("left-{age_s}"), base - age_s * 1000);
            scene.register(&name, 2, at).await;
            scene.watch(&name, 1).await;
            expected += &format!(" {name} {}", at + after_ms);
        }
        let (adopted, _) = scene.sweep(LOOK, Duration::from_millis(forget_ms)).await;
        assert_eq!(adopted, NOTHING);
        let departed = format!("event.workers.departed = {}", in_order(expected.trim()));
        let all = scene.all().await;
        assert!(all.contains(&departed), "{departed}: {all:?}");
        assert!(
            !all.iter()
                .any(|line| line.starts_with("event.workers.watched")),
            "{all:?}"
        );
    }
}

/// Sorts names by their scores, as Redis does.
fn in_order(text: &str) -> String {
    let words: Vec<_> = text.split(' ').collect();
    let mut pairs: Vec<_> = words
        .chunks(2)
        .map(|pair| (pair[1].parse::<u64>().expect("a score"), pair[0]))
        .collect();
    pairs.sort_unstable();
    pairs
        .iter()
        .map(|(score, name)| format!("{name} {score}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// A look at a name without a lease costs 24 keys, and two for each slot. After 1,024 keys the call
/// ends.
#[tokio::test]
async fn a_call_looks_at_1024_keys() {
    for (slots, looked) in [(500, 1), (499, 2), (244, 2), (243, 3)] {
        let mut scene = Scene::new().await;
        let at = scene.now_ms().await - 2000;
        for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            scene.register(name, slots, at).await;
            scene.watch(name, n as u64 + 1).await;
        }
        let (adopted, now) = scene.sweep(LOOK, AGES).await;
        assert_eq!(
            adopted,
            Adopted {
                more: true,
                ..NOTHING
            },
            "{slots}"
        );
        let next = at + 10_000;
        let (departed, watched) = match looked {
            1 => (format!("a {next}"), "b 2 c 3 d 4"),
            2 => (format!("a {next} b {next}"), "c 3 d 4"),
            _ => (format!("a {next} b {next} c {next}"), "d 4"),
        };
        let registered = ["a", "b", "c", "d"]
            .map(|name| format!("{name} {slots} t {at}"))
            .join(" ");
        let expected = [
            format!("event.workers = {registered}"),
            format!("event.workers.departed = {departed}"),
            format!("event.workers.watched = {watched}"),
            format!("seriatim.meta = clock {now}"),
        ];
        assert_eq!(scene.all().await, expected, "{slots}");
    }
}

/// A call goes on as long as a single key is left. A name with an object in a slot costs no keys of
/// batches.
#[tokio::test]
async fn a_call_goes_on_with_one_key_left() {
    for (slots, is_looked_at) in [(999, true), (1000, false)] {
        let mut scene = Scene::new().await;
        let at = scene.now_ms().await - 2000;
        scene.register("a", slots, at).await;
        scene.watch("a", 1).await;
        scene.push("a.7", "a:1").await;
        scene.register("b", 1, at).await;
        scene.watch("b", 2).await;
        let (adopted, now) = scene.sweep(LOOK, AGES).await;
        assert_eq!(
            adopted,
            Adopted {
                more: !is_looked_at,
                strays: 1,
                names: vec!["a".to_owned()],
                ..NOTHING
            }
        );
        let mut expected = vec![format!("event.workers = a {slots} t {now} b 1 t {at}")];
        match is_looked_at {
            true => expected.extend([
                format!("event.workers.departed = b {}", at + 10_000),
                format!("event.workers.watched = a {now}"),
            ]),
            false => expected.push(format!("event.workers.watched = b 2 a {now}")),
        }
        expected.push("objects.with.events = a:1".to_owned());
        expected.push(format!("seriatim.meta = clock {now}"));
        assert_eq!(scene.all().await, expected, "{slots}");
    }
}

/// A call that looks at 255 due names and at 256 names with looks far ahead has looked at all due
/// names, so it says that no more are due.
#[tokio::test]
async fn names_with_looks_far_ahead_are_not_due_names() {
    let mut scene = Scene::new().await;
    for n in 0..511 {
        let name = format!("live-{n:03}");
        scene.lease(&name, "t host 1 1").await;
        scene.watch(&name, if n < 255 { 1 } else { NEVER }).await;
    }
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(adopted, NOTHING);
    let watched = scene.keys.event_workers_watched();
    let next = (now + LOOK_MS).to_string();
    assert_eq!(
        scene
            .console
            .run::<u64>(&["ZCOUNT", &watched, &next, &next])
            .await,
        511
    );
}

/// After a step of the clock ahead, nothing is taken over. Names with something in their slots are
/// watched, and looked at again like names with a lease. All others depart.
#[tokio::test]
async fn a_name_waits_after_a_step_of_the_clock_ahead() {
    let mut scene = Scene::new().await;
    let base = scene.now_ms().await;
    for name in ["dead", "empty", "late"] {
        scene.register(name, 2, base - 2000).await;
    }
    for name in ["dead", "empty"] {
        scene.watch(name, 1).await;
    }
    scene.depart("late", 1).await;
    for name in ["dead", "late"] {
        scene.push(&format!("{name}.1"), "a:1").await;
    }
    scene.meta("clock.ahead", &base.to_string()).await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            is_ahead: true,
            ..NOTHING
        }
    );
    let (at, next) = (base - 2000, now + LOOK_MS);
    let expected = [
        "event.worker:dead.1:object = a:1".to_owned(),
        "event.worker:late.1:object = a:1".to_owned(),
        format!("event.workers = dead 2 t {at} empty 2 t {at} late 2 t {at}"),
        format!("event.workers.departed = empty {}", at + 10_000),
        format!("event.workers.watched = dead {next} late {next}"),
        format!(
            "seriatim.meta = clock.ahead {base} clock {now} names.next {} names.indexed {now}",
            now + 1000
        ),
    ];
    assert_eq!(scene.all().await, expected);
}

/// The clock has gone on by a second less than the caller's own clock since its sweep before. This
/// is no step ahead.
#[tokio::test]
async fn a_clock_that_goes_on_has_not_stepped_ahead() {
    let since = Some(Duration::from_secs(60));
    let sweep = Sweep {
        own: "own",
        crashes_max: 5,
        look: LOOK,
        forget: AGES,
        since,
        notice: LOOK,
    };
    loop {
        let mut scene = Scene::new().await;
        let noted = scene.now_ms().await - 59_000;
        scene.meta("clock", &noted.to_string()).await;
        let adopted = wire::adopt(&mut scene.state.conn, &scene.keys, &sweep)
            .await
            .expect("a reply");
        let now: u64 = scene
            .console
            .run(&["HGET", &scene.keys.meta(), "clock"])
            .await;
        // On a very busy machine, the call may come too late.
        if now > noted + 62_000 {
            continue;
        }
        assert_eq!(adopted, NOTHING);
        let expected = format!(
            "seriatim.meta = clock {now} names.next {} names.indexed {now}",
            now + 1000
        );
        assert_eq!(scene.all().await, [expected]);
        break;
    }
}

/// After a step back of the clock, some calls only move times. They say how many held objects they
/// have moved, and look at no name.
#[tokio::test]
async fn a_call_that_moves_times_looks_at_no_name() {
    let mut scene = Scene::new().await;
    let (base, keys) = (scene.now_ms().await, scene.keys.clone());
    scene.register("dead", 1, 7).await;
    scene.watch("dead", 1).await;
    scene.push("dead.0", "a:1").await;
    let due = [base + 3_600_000, base + 3_700_000];
    let scores = due.map(|due| due.to_string());
    scene
        .state
        .run(
            "ZADD",
            &[&keys.objects_held(), &scores[0], "b:1", &scores[1], "b:2"],
        )
        .await;
    scene.meta("clock.step", "60000 held 0").await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            more: true,
            moved: 2,
            mark: false,
            ..NOTHING
        }
    );
    let expected = [
        "event.worker:dead.0:object = a:1".to_owned(),
        "event.workers = dead 1 t 7".to_owned(),
        "event.workers.watched = dead 1".to_owned(),
        format!(
            "objects.held = b:1 {} b:2 {}",
            due[0] - 60_000,
            due[1] - 60_000
        ),
        format!("seriatim.meta = clock.step 60000 departed 0 clock {now}"),
    ];
    assert_eq!(scene.all().await, expected);
}
