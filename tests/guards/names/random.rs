//! Names without `--name`: random, so no process takes them again. Story: `event.workers` kept such a
//! name for a day, and each start left one more.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Attach, Attached, Detached, Suspects};
use seriatim::worker::WorkerConfig;

use super::{NOTHING, Scene};
use crate::support::recorder::Recorder;
use crate::support::running::start;

const DAY: Duration = Duration::from_secs(86_400);
const LOOK: Duration = Duration::from_secs(60);

impl Scene {
    /// Registers a departed name with this token and this age, due for a look.
    async fn left(&mut self, name: &str, token: &str, age_ms: u64) {
        let at = self.now_ms().await - age_ms;
        let key = self.keys.event_workers();
        self.state
            .run("HSET", &[&key, name, &format!("2 {token} {at}")])
            .await;
        self.depart(name, 1).await;
    }

    async fn registered(&self, name: &str) -> Option<String> {
        self.console
            .run(&["HGET", &self.keys.event_workers(), name])
            .await
    }

    /// Sweeps in a new round.
    async fn next_round(&mut self) -> Adopted {
        let meta = self.keys.meta();
        self.state.run("HDEL", &[&meta, "names.next"]).await;
        self.sweep(LOOK, DAY).await.0
    }
}

/// A random name goes ten minutes after its detach; a name that a process may take again, and the
/// name of a process that has died, stay for a day.
#[tokio::test]
async fn a_random_name_is_forgotten_ten_minutes_after_its_detach() {
    let mut scene = Scene::new().await;
    for (name, token) in [("fixed", "t"), ("died", "t-once"), ("left", "t-once-left")] {
        scene.left(name, token, 590_000).await;
    }
    assert_eq!(scene.next_round().await, NOTHING);
    for name in ["fixed", "died", "left"] {
        assert!(scene.registered(name).await.is_some(), "{name}");
        scene
            .left(
                name,
                if name == "left" {
                    "t-once-left"
                } else {
                    "t-once"
                },
                600_002,
            )
            .await;
    }
    assert_eq!(scene.next_round().await, NOTHING);
    assert_eq!(scene.registered("left").await, None);
    assert!(scene.registered("died").await.is_some() && scene.registered("fixed").await.is_some());
}

/// A pop that ends late is found at the looks before, and by the last look. Then the looks start
/// again.
#[tokio::test]
async fn a_late_pop_of_a_random_name_is_found() {
    let mut scene = Scene::new().await;
    for age_ms in [2000, 30_000, 600_002] {
        scene.left("left", "t-once-left", age_ms).await;
        scene.push("left.1", "a:1").await;
        let found = scene.next_round().await;
        assert_eq!(
            (found.strays, found.names.as_slice()),
            (1, &["left".to_owned()][..]),
            "{age_ms}"
        );
        let registered = scene.registered("left").await.expect("registered");
        let at: u64 = registered
            .rsplit(' ')
            .next()
            .and_then(|at| at.parse().ok())
            .expect("a time");
        assert!(
            registered.starts_with("2 t-once-left ") && scene.now_ms().await - at < 60_000,
            "{registered}"
        );
        let watched = scene.keys.event_workers_watched();
        scene.state.run("DEL", &[&watched]).await;
    }
}

/// The token shows whether the name is random, and whether its process has detached.
#[tokio::test]
async fn a_detach_marks_a_random_name() {
    let mut scene = Scene::new().await;
    for (name, token, left) in [
        ("a", "t-once", "t-once-left"),
        ("b", "t", "t"),
        ("c", "t-once-", "t-once-"),
    ] {
        let attach = Attach {
            name,
            token,
            holder: "host 1 1 60000ms",
            lease: LOOK,
            slots: 2,
            displace: "",
            before: "",
            crashes_max: 5,
            suspects: Suspects::NONE,
        };
        let attached = wire::attach(&mut scene.state.conn, &scene.keys, &attach)
            .await
            .expect("a reply");
        assert!(
            matches!(attached, Attached::Attached { .. }),
            "{attached:?}"
        );
        let detached = wire::detach(&mut scene.state.conn, &scene.keys, name, token)
            .await
            .expect("a reply");
        assert_eq!(
            detached,
            Detached::Detached {
                held: 0,
                lost: Vec::new()
            }
        );
        assert!(
            scene
                .registered(name)
                .await
                .is_some_and(|value| value.starts_with(&format!("2 {left} "))),
            "{name}"
        );
        // A copy of the call changes nothing.
        let again = wire::detach(&mut scene.state.conn, &scene.keys, name, token)
            .await
            .expect("a reply");
        assert!(
            matches!(again, Detached::Lapsed | Detached::Fenced { .. }),
            "{again:?}"
        );
    }
}

/// A worker without a name of its own has a random one.
#[tokio::test]
async fn a_worker_without_a_name_leaves_no_entry_for_long() {
    let scene = Scene::new().await;
    for has_name in [true, false] {
        let worker = start(&scene._redis, "w", &Recorder::new(), |config| {
            if !has_name {
                let random = WorkerConfig::default();
                let (keys, block, sweep) = (config.keys.clone(), config.block, config.sweep);
                *config = random;
                (config.keys, config.block, config.sweep) = (keys, block, sweep);
            }
        });
        crate::support::until("it has its name", Duration::from_secs(20), async || {
            worker.vitals.is_attached().then_some(())
        })
        .await;
        worker.finish().await;
    }
    let all: Vec<String> = scene
        .console
        .run(&["HGETALL", &scene.keys.event_workers()])
        .await;
    for pair in all.chunks_exact(2) {
        assert_eq!(pair[1].contains("-once-left "), pair[0] != "w", "{pair:?}");
    }
    assert_eq!(all.len(), 4);
}
