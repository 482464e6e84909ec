//! Names without `--name`: random, so no process takes them again. Story: `event.workers` kept such a
//! name for a day, and each start left one more.

use std::time::Duration;

use seriatim::wire::{Adopted, Attach, Attached, Detached};
use seriatim::worker::WorkerConfig;

use super::{DAY, LOOK, NOTHING, given, strays, sweep};
use crate::scene::{ATTACH, Scene};
use crate::support::Redis;
use crate::support::recorder::Recorder;
use crate::support::running::start;

/// Sweeps in a new round, in which these names have departed and are due for a look. `names`: each
/// name, its token, and the time since its last sign of life.
async fn next_round(scene: &Scene, names: &[(&str, &str, &str)]) -> Adopted {
    scene.add("HDEL seriatim.meta names.next").await;
    for (name, token, age) in names {
        let workers = format!("HSET event.workers {name} '2 {token} NOW-{age}'");
        let departed = format!("ZADD event.workers.departed 1 {name}");
        scene.add(&format!("{workers}; {departed}")).await;
    }
    sweep(scene, LOOK, DAY).await
}

/// A random name goes ten minutes after its detach; a name that a process may take again, and the
/// name of a process that has died, stay for a day.
#[tokio::test]
async fn a_random_name_is_forgotten_ten_minutes_after_its_detach() {
    let scene = given("").await;
    let soon = ["fixed t", "died t-once", "left t-once-left"];
    for (tokens, age, left) in [
        (
            soon,
            "590s",
            "{died: 2 t-once NOW-590s, fixed: 2 t NOW-590s, left: 2 t-once-left NOW-590s}",
        ),
        (
            ["fixed t-once", "died t-once", "left t-once-left"],
            "600002ms",
            "{died: 2 t-once NOW-600002ms, fixed: 2 t-once NOW-600002ms}",
        ),
    ] {
        let names = tokens.map(|pair| pair.split_once(' ').expect("a name and a token"));
        let names = names.map(|(name, token)| (name, token, age));
        assert_eq!(next_round(&scene, &names).await, NOTHING);
        assert_eq!(scene.at("event.workers").await, left);
    }
}

/// A pop that ends late is found at the looks before, and by the last look. Then the looks start
/// again.
#[tokio::test]
async fn a_late_pop_of_a_random_name_is_found() {
    let scene = given("").await;
    for age in ["2s", "30s", "600002ms"] {
        scene.again("LPUSH event.worker:left.1:object a:1").await;
        let found = next_round(&scene, &[("left", "t-once-left", age)]).await;
        assert_eq!(found, strays(1, &["left"]), "{age}");
        let changes = "
            event.worker:left.1: object = nil
            event.workers = {left: 2 t-once-left NOW}
            event.workers.departed = nil
            event.workers.watched = <left: NOW>
            objects.with.events = [a:1]
            seriatim.meta = {clock: NOW, names.indexed: NOW, names.next: NOW+1s}
        ";
        scene.changed(changes).await;
    }
}

/// The token shows whether the name is random, and whether its process has detached.
#[tokio::test]
async fn a_detach_marks_a_random_name() {
    let scene = given("").await;
    for (token, left) in [
        ("t-once", "t-once-left"),
        ("t", "t"),
        ("t-once-", "t-once-"),
    ] {
        scene.again("").await;
        let attached = scene.attach(&Attach { token, ..ATTACH }).await;
        let is_attached = matches!(attached, Attached::Attached { .. });
        assert!(is_attached, "{attached:?}");
        let nothing = Detached::Detached {
            held: 0,
            lost: Vec::new(),
        };
        assert_eq!(scene.detach(token).await.expect("a reply"), nothing);
        let registered = format!("{{w: 2 {left} NOW}}");
        assert_eq!(scene.at("event.workers").await, registered);
        // A copy of the call changes nothing.
        scene.changes().await;
        let again = scene.detach(token).await.expect("a reply");
        let is_refused = matches!(again, Detached::Lapsed | Detached::Fenced { .. });
        assert!(is_refused, "{again:?}");
        scene.changed("").await;
    }
}

/// A worker without a name of its own has a random one.
#[tokio::test]
async fn a_worker_without_a_name_leaves_no_entry_for_long() {
    let scene = Scene::bare(Redis::start()).await;
    for has_name in [true, false] {
        let worker = start(&scene.redis, "w", &Recorder::new(), |config| {
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
    let key = scene.keys.event_workers();
    let all: Vec<(String, String)> = scene.run(&["HGETALL", &key]).await;
    for (name, value) in &all {
        assert_eq!(
            value.contains("-once-left "),
            name != "w",
            "{name}: {value}"
        );
    }
    assert_eq!(all.len(), 2);
}
