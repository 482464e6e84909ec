//! Held and paused objects that a filter selects.

use seriatim::control::held::{HeldFilter, LOOKED_MAX, PER_CALL_MAX, WaitsFor};
use seriatim::control::{Cursor, HeldPage};

use crate::state::State;
use crate::support::Redis;

const FAR: &str = "99999999999999";

async fn page(
    state: &State,
    filter: &HeldFilter<'_>,
    after: Option<&Cursor>,
    count: usize,
) -> HeldPage {
    let control = state.control();
    control
        .held_where(filter, after, count)
        .await
        .expect("a page")
}

/// Returns the names of all objects that the filter selects, after a check that pages of each size
/// have the same ones.
async fn all(state: &State, filter: HeldFilter<'_>) -> Vec<String> {
    let mut seen: Option<Vec<String>> = None;
    for count in [PER_CALL_MAX, 1, 2, 3] {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let found = page(state, &filter, after.as_ref(), count).await;
            assert!(
                found.objects.len() <= count && found.objects.len() as u64 <= found.looked,
                "{found:?}"
            );
            names.extend(found.objects.into_iter().map(|held| held.object));
            after = found.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(
            seen.as_ref().unwrap_or(&names),
            &names,
            "pages of {count}: {filter:?}"
        );
        seen = Some(names);
    }
    seen.expect("names")
}

/// A list has the objects with the prefix that wait for what the filter says, in the order of all
/// lists of held objects.
#[tokio::test]
async fn a_filter_selects_held_objects() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let held = [
        ("a:1", "1", "1 0 1 0 retry: down"),
        ("b:1", "2", "2 0 0 1 takeover"),
        ("a:2", "3", "3 0 0 1 stop"),
        ("a:3", FAR, "4 0 2 1 retry: late"),
        ("b:2", FAR, "5 0 2 1 retry: late"),
        ("a:4", "inf", "6 0 0 1 attempts: no"),
        ("a", "inf", "7 0 0 1 attempts: no"),
        ("b:3", "0", "8 0 0 1 attempts: no"),
    ];
    for (object, due, why) in held {
        state.hold(object, due, &["1"], why).await;
    }
    let by = |prefix: &'static str, waits_for, due| HeldFilter {
        prefix: prefix.as_bytes(),
        waits_for,
        due,
    };
    let cases: [(HeldFilter<'_>, &[&str]); 14] = [
        (
            HeldFilter::default(),
            &["b:3", "a:1", "b:1", "a:2", "a:3", "b:2", "a", "a:4"],
        ),
        (by("a:", None, false), &["a:1", "a:2", "a:3", "a:4"]),
        (by("a:4x", None, false), &[]),
        (by("", Some(WaitsFor::Retry), false), &["a:1", "a:3", "b:2"]),
        (by("b", Some(WaitsFor::Retry), false), &["b:2"]),
        (by("", Some(WaitsFor::Takeover), false), &["b:1"]),
        (by("", Some(WaitsFor::Stop), false), &["a:2"]),
        (by("", Some(WaitsFor::Released), false), &["b:3"]),
        (by("", Some(WaitsFor::Operator), false), &["a", "a:4"]),
        (by("a:", Some(WaitsFor::Operator), false), &["a:4"]),
        (by("", None, true), &["b:3", "a:1", "b:1", "a:2"]),
        (by("a", Some(WaitsFor::Retry), true), &["a:1"]),
        (by("", Some(WaitsFor::Operator), true), &[]),
        (by("", Some(WaitsFor::Rule), false), &[]),
    ];
    for (filter, expected) in cases {
        assert_eq!(all(&state, filter).await, expected, "{filter:?}");
    }
    // The rows are those of the other list.
    let whole = state.control().held(false, None, 10).await.expect("a page");
    let page = page(&state, &HeldFilter::default(), None, 10).await;
    assert_eq!(
        (page.objects, page.looked, page.next),
        (whole.objects, 8, None)
    );
}

/// An object that is due at this very time, or was due at it, is due; one that is due later is not.
#[tokio::test]
async fn an_object_is_due_at_its_time() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let now_ms = state.control().now_ms().await.expect("a time");
    state
        .hold("past", &now_ms.to_string(), &["1"], "1 0 0 1 retry: x")
        .await;
    state
        .hold(
            "later",
            &(now_ms + 3_600_000).to_string(),
            &["1"],
            "2 0 0 1 retry: x",
        )
        .await;
    assert_eq!(
        all(
            &state,
            HeldFilter {
                due: true,
                ..HeldFilter::default()
            }
        )
        .await,
        ["past"]
    );
}

/// A call looks at so many objects, and its cursor leads on, even if it has found none.
#[tokio::test]
async fn a_call_looks_at_so_many_objects() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let keys = state.keys.clone();
    let count = 2 * LOOKED_MAX + 10;
    let mut fill = redis::pipe();
    for n in 1..=count {
        let name = if n == count {
            "rare".to_owned()
        } else {
            format!("other:{n}")
        };
        fill.cmd("ZADD")
            .arg(keys.objects_held())
            .arg(n)
            .arg(&name)
            .ignore();
        fill.cmd("SET")
            .arg(keys.events_held_id(&name))
            .arg("1 0 1 0 retry: x")
            .ignore();
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
    let rare = HeldFilter {
        prefix: b"rare",
        ..HeldFilter::default()
    };
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let found = page(&state, &rare, after.as_ref(), 50).await;
        seen.push((found.looked, found.objects.len()));
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(
        seen,
        [(LOOKED_MAX as u64, 0), (LOOKED_MAX as u64, 0), (10, 1)]
    );
    // A call reads the reason of no more objects than a page can have.
    let stopped = HeldFilter {
        waits_for: Some(WaitsFor::Stop),
        ..HeldFilter::default()
    };
    let found = page(&state, &stopped, None, 50).await;
    assert_eq!(
        (found.looked, found.objects.len(), found.next.is_some()),
        (PER_CALL_MAX as u64, 0, true)
    );
    // A page that is full does not look further.
    let found = page(
        &state,
        &HeldFilter {
            prefix: b"other",
            ..HeldFilter::default()
        },
        None,
        50,
    )
    .await;
    assert_eq!(
        (found.looked, found.objects.len(), found.next.is_some()),
        (50, 50, true)
    );
}

/// The list of paused objects with a prefix begins and ends with these objects, whatever bytes their
/// names have.
#[tokio::test]
async fn a_prefix_selects_paused_objects() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let names: [&[u8]; 7] = [b"a", b"a:1", b"a:2", b"a;", b"b", b"\xff", b"\xff\xff1"];
    for name in names {
        let mut add = redis::cmd("ZADD");
        add.arg(state.keys.objects_paused()).arg(0).arg(name);
        add.query_async::<u64>(&mut state.conn).await.expect("ZADD");
    }
    let control = state.control();
    let cases: [(&[u8], &[&[u8]]); 7] = [
        (b"", &names),
        (b"a", &names[..4]),
        (b"a:", &names[1..3]),
        (b"a:2", &names[2..3]),
        (b"\xff", &names[5..]),
        (b"\xff\xff", &names[6..]),
        (b"c", &[]),
    ];
    for (prefix, expected) in cases {
        let expected: Vec<_> = expected
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        for count in [1, 2, 100] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = control
                    .paused_where(prefix, after.as_ref(), count)
                    .await
                    .expect("a page");
                assert_eq!(page.looked, page.objects.len() as u64);
                seen.extend(page.objects.into_iter().map(|paused| paused.object));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, expected, "{prefix:?}");
        }
    }
    // A cursor before the prefix leads to the first object with the prefix.
    let first = control.paused(None, 1).await.expect("a page").next;
    let page = control
        .paused_where("a:", first.as_ref(), 10)
        .await
        .expect("a page");
    assert_eq!(page.objects.len(), 2);
    let last = control.paused(None, 6).await.expect("a page").next;
    assert_eq!(
        control
            .paused_where("a:", last.as_ref(), 10)
            .await
            .expect("a page")
            .objects,
        []
    );
}
