//! The handle of an operator (`Control`): it connects and reconnects, and its clones share a
//! connection.

use seriatim::control::held::ReleaseFilter;
use seriatim::control::{By, Control, ControlError, Cursor, Settle};

use crate::support::{Redis, assert_matches};

const BY: By<'static> = By {
    who: "ada@host",
    why: "a test",
};

async fn killed(redis: &Redis) {
    let killed: u64 = redis
        .console()
        .await
        .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    assert!(killed > 0, "no connection was there");
}

/// If the connection is lost during an operation, this operation may fail. The next operation
/// reconnects, even on a clone.
#[tokio::test]
async fn the_next_operation_after_a_lost_connection_connects_again() {
    let redis = Redis::own(&[]);
    let control = Control::connect(redis.url())
        .await
        .expect("connected")
        .with_keys(redis.keys().clone());
    let clone = control.clone();
    for _ in 0..3 {
        killed(&redis).await;
        match control.now_ms().await {
            Ok(_) | Err(ControlError::Redis { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let (stats, report) = tokio::join!(clone.stats(), control.check());
        assert_eq!(stats.expect("stats").markers, 0);
        assert!(report.expect("a report").is_clean());
    }
    let connections: String = redis
        .console()
        .await
        .run(&["CLIENT", "LIST", "TYPE", "normal"])
        .await;
    assert_eq!(
        connections.lines().count(),
        2,
        "the handle and this console: {connections}"
    );
}

/// Tests that the error for an invalid URL or an absent server does not contain the password.
#[tokio::test]
async fn a_url_that_leads_nowhere_is_told_without_its_password() {
    let refused = Control::connect("redis://u:hush#hush@host")
        .await
        .expect_err("no URL");
    assert!(
        matches!(refused, ControlError::Url { .. }) && !refused.to_string().contains("hush"),
        "{refused}"
    );
    let refused = Control::connect("redis://u:hush@127.0.0.1:1")
        .await
        .expect_err("nobody listens");
    assert!(
        matches!(refused, ControlError::Redis { .. }) && !refused.to_string().contains("hush"),
        "{refused}"
    );
    assert!(!format!("{refused:?}").contains("hush"));
}

/// Each list refuses a cursor that is from another list, before it reads from Redis.
#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let redis = Redis::start();
    let control = Control::new(redis.connect().await).with_keys(redis.keys().clone());
    let wrong = Cursor::from("work:1");
    for refused in [
        control.held(false, Some(&wrong), 1).await.err(),
        control.paused(Some(&wrong), 1).await.err(),
        control.actions(Some(&wrong), 1).await.err(),
    ] {
        assert_matches!(refused, Some(ControlError::Cursor(text)) if text == "work:1");
    }
    let refused = control.dead_letters(Some(&wrong), 1).await;
    assert_matches!(refused, Err(ControlError::DeadId(_)));
    let refused = control.log(Some(&wrong), 1).await;
    assert_matches!(refused, Err(ControlError::LogId(_)));
}

/// Checks at compile time that the future of every operation can run in a task of its own. A server
/// needs this to share the handle among its requests.
#[allow(dead_code)]
fn every_operation_can_be_a_task_of_its_own(control: &'static Control) {
    fn task<T>(_: impl Future<Output = T> + Send + 'static) {}
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(control);
    task(control.now_ms());
    task(control.warnings());
    task(control.check());
    task(control.paced_check(1, 0.5));
    task(control.stats());
    task(control.depth(1));
    task(control.depth_step(None, 1));
    task(control.under_work(1));
    task(control.workers(None, 1));
    task(control.worker("w", None, 1));
    task(control.inspect("work:1"));
    task(control.paced_inspect("work:1", 0.5, |_| {}));
    task(control.ended("work:1"));
    task(control.dead_letters(None, 1));
    task(control.dead_letters_of("work:1", true, None, 1));
    task(control.settle(BY, Settle::Retry, &[]));
    task(control.settle_all(BY, Settle::Drop, None));
    task(control.held(false, None, 1));
    task(control.paused(None, 1));
    task(control.release(BY, "work:1"));
    const ALL: &ReleaseFilter<'static> = &ReleaseFilter {
        prefix: "",
        why: "",
        until_released: false,
        over: None,
    };
    task(control.release_all(BY, ALL, |_| {}));
    task(control.skip(BY, "work:1", None));
    task(control.rules());
    task(control.actions(None, 1));
    task(control.log(None, 1));
    task(control.is_log_on());
    task(control.forget(&["work:1"]));
}
