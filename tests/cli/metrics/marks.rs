//! The marks that an exporter pushes, and the rights that it needs for them.

use super::*;

/// Returns the text between two marks on the page of the protocol, in one line, for this namespace.
fn rights(redis: &Redis, begin: &str, end: &str) -> Vec<String> {
    let page = include_str!("../../../docs/protocol.md")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let (_, rest) = page.split_once(begin).expect("the rights");
    let (rights, _) = rest.split_once(end).expect("their end");
    rights
        .replace("{shop:0}:", redis.keys().prefix())
        .split(' ')
        .map(str::to_owned)
        .collect()
}

/// Tests that an exporter with exactly the documented rights pushes marks, so that the age is known
/// without a worker. Without the right to push marks, the age is NaN, and the log says so once.
#[tokio::test]
async fn an_exporter_pushes_marks_if_its_user_may() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let reads = rights(
        &redis,
        "ACL SETUSER viewer on >PASSWORD ~{shop:0}:* ",
        " ACL SETUSER",
    );
    let marks = rights(&redis, "add these selectors to its user: `", "`");
    let keys = format!("~{}*", redis.keys().prefix());
    console.emit("work:1", "1").await;
    let oldest = of(&redis, "seriatim_queue_oldest_seconds", "");
    let start = async |user: &str, more: &[String]| {
        let words = ["ACL", "SETUSER", user, "on", ">p", &keys].into_iter();
        let words: Vec<&str> = words
            .chain(reads.iter().chain(more).map(String::as_str))
            .collect();
        let _: String = console.run(&words).await;
        Exporter::start_at(&format!("{}?user={user}&pass=p", redis.url()), &redis).await
    };

    const TOLD: &str = "the exporter pushes no marks";
    let weak = start("weak", &[]).await;
    until("it is told", PATIENCE, async || {
        weak.log().contains(TOLD).then_some(())
    })
    .await;
    let seen = weak.until_of("seriatim_up", "", 1.0).await;
    assert!(value(&seen, &oldest).is_nan(), "{seen}");
    let calls = async || {
        let stats: String = console.run(&["INFO", "commandstats"]).await;
        let (_, rest) = stats
            .split_once("cmdstat_evalsha:calls=")
            .expect("scripts are called");
        rest.split(',')
            .next()
            .and_then(|number| number.parse::<u64>().ok())
            .expect("a number")
    };
    // Without a scrape, the exporter calls only the script that pushes marks. A failed call is
    // repeated after 10 s.
    let before = calls().await;
    until("it tries again", PATIENCE, async || {
        (calls().await > before).then_some(())
    })
    .await;
    assert_eq!(weak.log().matches(TOLD).count(), 1, "{}", weak.log());

    let able = start("able", &marks).await;
    let shown = until("the age is 2 s", PATIENCE, async || {
        let seen = scrape(&able.address).await?;
        Some(value(&seen, &oldest)).filter(|age| *age >= 2.0)
    })
    .await;
    println!("an age of {shown} s is shown");
    assert!(!able.log().contains(TOLD), "{}", able.log());
    let seen = weak.until_of("seriatim_markers", "", 1.0).await;
    assert!(
        value(&seen, &oldest) >= 2.0,
        "the marks of the other exporter count"
    );
}
