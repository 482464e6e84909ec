//! `event.worker:W:lost`: a batch whose object is not known. A repair gives it back to its object, or
//! makes its events dead letters without an object. An operator then emits these by hand.

use seriatim::control::Repair;
use seriatim::control::dead::{Settle, Settled};

use super::{BY, doing, lines, repair};
use crate::check::{broken_by, told};
use crate::state::State;
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, control};

/// A step writes at most 1,000 dead letters, so a long batch needs several. Each keeps its id.
#[tokio::test]
async fn a_long_batch_of_an_unknown_object_takes_several_steps() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let fill = "EVAL redis.call('RPUSH',KEYS[1],20)~redis.call('SET',KEYS[2],2519)~for~i=2500,1,-1~do~redis.call('RPUSH',KEYS[1],i)~end 2 @event.worker:gone.0:lost @next.event.id";
    broken_by(&mut state, fill).await;
    let done = repair(&state, &doing()).await;
    let line = |count| {
        format!(
            "dead worker gone.0: {count} events of an object that is not known become dead letters without an object"
        )
    };
    assert_eq!(lines(&done), [line(1500), line(2500), line(500)]);
    let console = redis.console().await;
    let dead = console.dead().await;
    let field = |at: usize, name: &str| {
        let (_, value) = dead[at]
            .iter()
            .find(|(field, _)| field == name)
            .expect("a field");
        String::from_utf8_lossy(value).into_owned()
    };
    assert_eq!(dead.len(), 2500);
    for at in [0, 999, 1000, 2499] {
        assert_eq!(
            (field(at, "id"), field(at, "event")),
            ((20 + at).to_string(), (1 + at).to_string())
        );
    }
    assert_eq!(told(&mut state).await, [""; 0]);
}

/// A dead letter without an object cannot be emitted again by `dead retry`. The operator knows the
/// object from the event, emits it, and drops the dead letter.
#[tokio::test]
async fn an_operator_emits_events_of_an_unknown_object_by_hand() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.register("gone", 1).await;
    state.given(7).await;
    state
        .run(
            "RPUSH",
            &[&keys.worker_lost("gone.0"), "6", "work:1,2", "work:1,1"],
        )
        .await;
    let expected = [
        "dead worker gone.0: 2 events of an object that is not known become dead letters without an object",
    ];
    assert_eq!(
        lines(
            &repair(
                &state,
                &Repair {
                    dry_run: true,
                    ..doing()
                }
            )
            .await
        ),
        expected
    );
    assert_eq!(
        console.list(&keys.worker_lost("gone.0")).await,
        ["work:1,1", "work:1,2", "6"]
    );
    assert_eq!(lines(&repair(&state, &doing()).await), expected);
    assert_eq!(lines(&repair(&state, &doing()).await), [""; 0]);
    let control = control(&state.conn, &keys);
    let page = control.dead_letters(None, 10).await.expect("dead letters");
    for letter in page.letters {
        assert_eq!(
            (letter.object.len(), letter.error.as_str()),
            (
                0,
                "repair: keys were lost, and the object of this event is not known"
            )
        );
        let ids = [letter.dead_id.clone()];
        assert_eq!(
            control
                .settle(BY, Settle::Retry, &ids)
                .await
                .expect("an answer"),
            [Settled::Unreadable]
        );
        let (object, event) = std::str::from_utf8(letter.event.bytes())
            .expect("text")
            .split_once(',')
            .expect("an object");
        console.emit(object, event).await;
        assert_eq!(
            control
                .settle(BY, Settle::Drop, &ids)
                .await
                .expect("an answer"),
            [Settled::Dropped]
        );
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| ());
    sink.until_sent(2).await;
    assert_eq!(sink.sent_of("work:1"), ["1", "2"]);
    worker.finish().await;
    console.check().await;
}
