//! The counts of paused objects by selector.

use seriatim::control::rules::Selector;
use seriatim::keys::Keys;

use super::selector;
use crate::support::{Redis, control};

#[tokio::test]
async fn paused_objects_are_counted_by_selector() {
    let redis = Redis::start();
    let mut conn = redis.connect().await;
    let keys = Keys::new();
    let _: () = redis::cmd("ZADD")
        .arg(keys.objects_paused())
        .arg(&[
            "0", "a", "0", "a:1", "0", "a:1:x", "0", "a;", "0", "b:1", "0", "a:", "0", "ab:1",
        ])
        .query_async(&mut conn)
        .await
        .expect("objects");
    let control = control(&conn, &keys);
    let selectors: Vec<Selector> = ["*", "a:*", "a:1:*", "a:1", "a", "c:*", "c"]
        .map(selector)
        .to_vec();
    let counts = control
        .count_paused(&selectors.iter().collect::<Vec<_>>())
        .await
        .expect("counts");
    assert_eq!(counts, [7, 3, 1, 1, 1, 0, 0].map(Some));
    assert_eq!(control.count_paused(&[]).await.expect("no counts"), []);
    let many = vec![&selectors[0]; 300];
    let counts = control.count_paused(&many).await.expect("counts");
    assert!(
        counts[..250].iter().all(|count| *count == Some(7))
            && counts[250..].iter().all(Option::is_none)
            && counts.len() == 300
    );
}
