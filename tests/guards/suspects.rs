//! Suspects: batches that may kill their worker are taken only while there is room.

use std::time::Duration;

use seriatim::wire::{Attach, Attached, Bounds, Suspects};

use crate::scene::{ATTACH, BOUNDS, LEASE, Scene};
use crate::stopped::{NOW, NOW_US};
use crate::support::sweep::sweep;

/// Returns a scene with a held batch for each of these numbers of crashes. They are due in this order.
async fn held(crashes: &[u32]) -> Scene {
    let hold = |(n, crashes)| format!("hold work:{n} {n} '{n} 0 0 {crashes} takeover' 1; ");
    let given: String = (1..).zip(crashes).map(hold).collect();
    Scene::given(&given).await
}

fn with(suspects: Suspects) -> Bounds {
    Bounds { suspects, ..BOUNDS }
}

/// A suspect without room waits for a moment, and does not delay due objects behind it.
#[tokio::test]
async fn a_suspect_without_room_is_put_off() {
    let scene = held(&[4, 4, 1]).await;
    let wait = Duration::from_secs(600);
    let room = Suspects::of(5, false).put_off(wait.as_millis() as u64);
    let answer = scene.free(0..2, with(room)).await;
    // One of the suspects, and what is none.
    assert_eq!(answer.summary(), "work:1 work:3");
    let due = answer.next_due.expect("a time");
    assert!(due <= wait && due > wait / 2, "{due:?}");
    scene.check().await;
}

/// The owner of a due suspect is lost, and there is no room for the suspect. The owner is written again,
/// so that no later marker leads to the events behind the batch.
#[tokio::test]
async fn a_lost_owner_of_a_suspect_without_room_is_written_again() {
    let scene = held(&[4]).await;
    scene.add("DEL work:1:event.worker").await;
    let room = with(Suspects::of(5, false).full().put_off(600_000));
    let answer = scene.free(0..2, room).await;
    assert_eq!(
        answer.texts(),
        ["work:1:event.worker: mended: the owner of a held object was absent"]
    );
    assert!(answer.objects().is_empty());
    assert_eq!(scene.at("work:1:event.worker").await, "held");
    scene.check().await;
}

/// A batch with more crashes leaves less room for others.
#[tokio::test]
async fn what_is_taken_leaves_less_room() {
    let scene = held(&[2, 4]).await;
    let answer = scene.free(0..2, with(Suspects::of(5, false))).await;
    // A second one has no place beside one with 4 crashes.
    assert_eq!(answer.objects(), ["work:1"]);
    let mut room = Suspects::of(5, false);
    room.has(4);
    scene.add("hold work:3 1 '7 0 0 2 takeover' 1").await;
    let answer = scene.free(0..2, with(room)).await;
    // It is given again, and nothing else.
    assert_eq!(answer.objects(), ["work:1"]);
}

/// A batch with many crashes leaves no room for one with few.
#[tokio::test]
async fn one_with_many_crashes_is_alone() {
    let scene = held(&[4, 2]).await;
    let answer = scene.free(0..2, with(Suspects::of(5, false))).await;
    assert_eq!(answer.objects(), ["work:1"]);
}

/// A reply was lost. The batch in it, which the process does not know, still uses up room of the
/// process, even if it has crashed only once.
#[tokio::test]
async fn a_batch_given_again_takes_room() {
    for (crashes_max, crashes) in [(5, 4), (2, 1)] {
        let scene = held(&[crashes; 2]).await;
        let room = with(Suspects::of(crashes_max, false));
        assert_eq!(scene.free(0..2, room).await.objects(), ["work:1"]);
        scene.release("work:2").await;
        assert_eq!(scene.free(0..2, room).await.objects(), ["work:1"]);
    }
}

/// If the process settles batches with so many crashes without a delivery, they need no room.
#[tokio::test]
async fn what_is_settled_needs_no_room() {
    let scene = held(&[5, 5]).await;
    let answer = scene.free(0..2, with(Suspects::of(5, true).full())).await;
    assert_eq!(answer.objects(), ["work:1", "work:2"]);
}

/// A call puts off a limited number of suspects. The next call continues with the others.
#[tokio::test]
async fn a_call_puts_off_so_many() {
    let scene = held(&[4; 300]).await;
    let mut room = with(Suspects::of(5, false).full().put_off(600_000));
    room.claims = 300;
    assert!(scene.free(0..2, room).await.more);
    let key = scene.keys.objects_held();
    let left: u64 = scene.run(&["ZCOUNT", &key, "-inf", "1000"]).await;
    assert_eq!(left, 300 - 256);
}

/// A process that starts keeps as many suspects as it has room for, and holds the others.
#[tokio::test]
async fn attach_keeps_few_suspects() {
    let given = "
        own w.0 work:1 1 1; SET event.worker:w.0:event.id '1 0 0 3'; own w.1 work:2 2 1
        SET event.worker:w.1:event.id '2 0 0 3'; DEL event.worker:w:lease
    ";
    let scene = Scene::given(given).await;
    let args = Attach {
        token: "token-2",
        suspects: Suspects::of(5, false),
        ..ATTACH
    };
    let (kept, held, lost) = (1, 1, Vec::new());
    assert_eq!(
        scene.attach(&args).await,
        Attached::Attached { kept, held, lost }
    );
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "1 0 0 4");
    assert_eq!(scene.at("work:2:events.held.id").await, "2 0 0 4 slots");
    scene.check().await;
}

/// If the takeover has no limit of crashes, it makes the event due, whatever its crashes. No event
/// waits for an operator: the next worker settles it.
#[tokio::test]
async fn without_a_limit_a_takeover_makes_it_due() {
    let given = "
        own w.0 work:1 1 1; SET event.worker:w.0:event.id '1 0 0 8'; DEL event.worker:w:lease
    ";
    let scene = Scene::given(given).await;
    let adopted = sweep(&mut scene.conn().await, &scene.keys, "other", 0, LEASE).await;
    assert_eq!(adopted.expect("an answer").held, 1);
    assert_eq!(scene.at("work:1:events.held.id").await, "1 0 0 9 takeover");
    assert_eq!(scene.at("objects.held").await, "<work:1: NOW>");
}

/// A suspect without room waits for half a ms for each held object, but not for more than 10 s. The
/// caller learns this time.
#[tokio::test]
async fn a_suspect_waits_longer_among_many_held_objects() {
    for (others, wait_ms) in [(399, 200), (20_003, 10_000)] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene.attach(&ATTACH).await;
        scene.add("hold work:1 1 '1 0 0 4 takeover' 1").await;
        let add = "for n = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 'inf', n) end";
        let (key, others) = (scene.keys.objects_held(), others.to_string());
        scene.run::<()>(&["EVAL", add, "1", &key, &others]).await;
        let room = with(Suspects::of(5, false).full());
        let answer = scene.free(0..2, room).await;
        let wait = Some(Duration::from_millis(wait_ms));
        assert_eq!((answer.summary(), answer.next_due), (String::new(), wait));
        let due = scene.due("work:1").await;
        assert_eq!(due, Some((NOW + wait_ms) as f64), "{others} others");
    }
}
