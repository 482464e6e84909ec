//! Repairs without a namespace, where any key may belong to another program.

use seriatim::control::Repair;
use seriatim::keys::Keys;

use super::{doing, lines, repair};
use crate::check::broken_by;
use crate::state::State;
use crate::support::Redis;

/// A list becomes a queue only if another key shows that it is one, or if the user says so. A key of
/// another type is left alone, unless the object has keys.
#[tokio::test]
async fn keys_of_other_programs_are_left_alone() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, Keys::new());
    let all = Repair {
        all_lists: true,
        ..doing()
    };
    let marked = "marker object x: has 1 events queued: it gets a marker";
    for (commands, with, expected) in [
        (
            "LPUSH x:events 1",
            doing(),
            "left object x: x:events has 1 entries and no marker, but no other key shows that it is a queue of seriatim: --all-lists makes it one",
        ),
        ("LPUSH x:events 1", all, marked),
        ("LPUSH x:events 1; SET x:last.event.id 5", doing(), marked),
        ("SET x:events 1", doing(), ""),
        (
            "SET x:events 1; SET x:last.event.id 5",
            doing(),
            "left object x: x:events is a string, it should be a list: move it away",
        ),
    ] {
        broken_by(&mut state, commands).await;
        let expected = Some(expected).filter(|line| !line.is_empty());
        assert_eq!(
            lines(&repair(&state, &with).await),
            Vec::from_iter(expected),
            "{commands}"
        );
    }
}
