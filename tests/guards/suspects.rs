//! Suspects: batches that may kill their worker are taken only while there is room.

use std::time::Duration;

use seriatim::wire::{self, Advanced, Attach, Attached, Bounds, Suspects};

use crate::state::State;
use crate::support::Redis;
use crate::support::sweep::sweep;
use crate::{BOUNDS, LEASE, ask, attached, objects};

/// Adds a held batch for each of these numbers of crashes. They are due in this order.
async fn held(state: &mut State, crashes: &[u32]) {
    for (n, crashes) in crashes.iter().enumerate() {
        let id = n + 1;
        state
            .hold(
                &format!("work:{id}"),
                &id.to_string(),
                &["1"],
                &format!("{id} 0 0 {crashes} takeover"),
            )
            .await;
    }
}

fn with(suspects: Suspects) -> Bounds {
    Bounds { suspects, ..BOUNDS }
}

/// A suspect without room waits for a moment, and does not delay due objects behind it.
#[tokio::test]
async fn a_suspect_without_room_is_put_off() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    held(&mut state, &[4, 4, 1]).await;
    let wait = Duration::from_secs(600);
    let room = Suspects::of(5, false).put_off(wait.as_millis() as u64);
    let answer = ask(&mut state, with(room)).await.expect("an answer");
    assert_eq!(
        objects(&answer),
        ["work:1", "work:3"],
        "one of the suspects, and what is none"
    );
    let Advanced::Ok {
        next_due: Some(due),
        more: false,
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert!(due <= wait && due > wait / 2, "{due:?}");
    redis.console().await.check().await;
}

/// A batch with more crashes leaves less room for others.
#[tokio::test]
async fn what_is_taken_leaves_less_room() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    held(&mut state, &[2, 4]).await;
    let answer = ask(&mut state, with(Suspects::of(5, false)))
        .await
        .expect("an answer");
    assert_eq!(
        objects(&answer),
        ["work:1"],
        "a second one has no place beside one with 4 crashes"
    );
    let mut room = Suspects::of(5, false);
    room.has(4);
    held(&mut state, &[]).await;
    state.hold("work:3", "1", &["1"], "7 0 0 2 takeover").await;
    let answer = ask(&mut state, with(room)).await.expect("an answer");
    assert_eq!(
        objects(&answer),
        ["work:1"],
        "given again, and nothing else"
    );
}

/// A batch with many crashes leaves no room for one with few.
#[tokio::test]
async fn one_with_many_crashes_is_alone() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    held(&mut state, &[4, 2]).await;
    assert_eq!(
        objects(
            &ask(&mut state, with(Suspects::of(5, false)))
                .await
                .expect("an answer")
        ),
        ["work:1"]
    );
}

/// A reply was lost. The batch in it, which the process does not know, still uses up room of the
/// process, even if it has crashed only once.
#[tokio::test]
async fn a_batch_given_again_takes_room() {
    for (crashes_max, crashes) in [(5, 4), (2, 1)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        held(&mut state, &[crashes; 2]).await;
        let room = with(Suspects::of(crashes_max, false));
        assert_eq!(
            objects(&ask(&mut state, room).await.expect("an answer")),
            ["work:1"]
        );
        let console = redis.console().await;
        console.release("work:2").await;
        assert_eq!(
            objects(&ask(&mut state, room).await.expect("an answer")),
            ["work:1"]
        );
    }
}

/// If the process settles batches with so many crashes without a delivery, they need no room.
#[tokio::test]
async fn what_is_settled_needs_no_room() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    held(&mut state, &[5, 5]).await;
    let answer = ask(&mut state, with(Suspects::of(5, true).full()))
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["work:1", "work:2"]);
}

/// A call puts off a limited number of suspects. The next call continues with the others.
#[tokio::test]
async fn a_call_puts_off_so_many() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    held(&mut state, &[4; 300]).await;
    let mut room = with(Suspects::of(5, false).full().put_off(600_000));
    room.claims = 300;
    let answer = ask(&mut state, room).await.expect("an answer");
    assert!(
        matches!(answer, Advanced::Ok { more: true, .. }),
        "{answer:?}"
    );
    let key = state.keys.objects_held();
    let left: u64 = redis
        .console()
        .await
        .run(&["ZCOUNT", &key, "-inf", "1000"])
        .await;
    assert_eq!(left, 300 - 256);
}

/// A process that starts keeps as many suspects as it has room for, and holds the others.
#[tokio::test]
async fn attach_keeps_few_suspects() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    for (slot, object) in ["work:1", "work:2"].into_iter().enumerate() {
        let w = format!("w.{slot}");
        state.own(&w, object, slot as u64 + 1, &["1"]).await;
        state
            .run(
                "SET",
                &[
                    &state.keys.worker_event_id(&w),
                    &format!("{} 0 0 3", slot + 1),
                ],
            )
            .await;
    }
    console.end_lease("w").await;
    let (keys, suspects) = (state.keys.clone(), Suspects::of(5, false));
    let args = Attach {
        name: "w",
        token: "token-2",
        holder: "host 1 1",
        lease: LEASE,
        slots: 2,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects,
    };
    let attached = wire::attach(&mut state.conn, &keys, &args)
        .await
        .expect("an answer");
    assert_eq!(
        attached,
        Attached::Attached {
            kept: 1,
            held: 1,
            lost: Vec::new()
        }
    );
    assert_eq!(
        console.text(&keys.worker_event_id("w.0")).await.as_deref(),
        Some("1 0 0 4")
    );
    assert_eq!(
        console.held_id("work:2").await.as_deref(),
        Some("2 0 0 4 slots")
    );
    console.check().await;
}

/// If the takeover has no limit of crashes, it makes the event due, whatever its crashes. No event
/// waits for an operator: the next worker settles it.
#[tokio::test]
async fn without_a_limit_a_takeover_makes_it_due() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.0"), "1 0 0 8"])
        .await;
    console.end_lease("w").await;
    let adopted = sweep(&mut state.conn, &keys, "other", 0, LEASE)
        .await
        .expect("an answer");
    assert_eq!(adopted.held, 1);
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("1 0 0 9 takeover")
    );
    let due: String = console
        .run(&["ZSCORE", &keys.objects_held(), "work:1"])
        .await;
    assert_ne!(due, "inf");
}
