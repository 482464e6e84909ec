//! A task, from HTTP to its URL: the scheduler as a service.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::receiver::Receiver;
use crate::serving::Serving;
use crate::support::Redis;
use crate::support::process::Process;

fn unix_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_millis()
}

/// Tests that a task that is posted twice with different times is posted to its URL once, at the
/// second time, although everything is killed in between: server, worker and Redis.
#[tokio::test]
async fn a_task_posted_twice_is_delivered_once_at_its_second_time_after_kills() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let receiver = Receiver::start().await;
    let (url, prefix) = (receiver.url("/renew/user/1"), receiver.url("/"));
    let options = ["--allow", prefix.as_str(), "--lease", "1s"];
    let serving = Serving::start(&redis, &[]).await;
    let mut worker = Process::start(&redis, "a", "event-url", &options);
    let now = unix_ms() / 1000;
    let task = |time: u128| format!("{{\"id\":\"renew\",\"time\":{time},\"url\":\"{url}\"}}");
    let post = async |serving: &Serving, time: u128| {
        let answer = serving.post("/v1/objects/user:1/tasks", &task(time)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["change"]
            .as_str()
            .expect("a change")
            .to_owned()
    };
    assert_eq!(post(&serving, now + 3).await, "new");
    assert_eq!(post(&serving, now + 7).await, "replaced");
    drop(serving);
    worker.kill();
    redis.server().kill();
    redis.server().restart();
    let worker = Process::start(&redis, "b", "event-url", &options);
    receiver.until_accepted(1).await;
    let late = unix_ms() - (now + 7) * 1000;
    assert!(late < 5_000, "{late} ms late");
    // Waits longer, so that a delivery for the first time would have come as well.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let got = receiver.got();
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(
        (got[0].target.as_str(), got[0].events()[0].3.as_str()),
        ("/renew/user/1", task(now + 7).as_str())
    );
    worker.terminate();
}
