//! `advance` as a function of a library, whose Lua values live on between calls.

use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, BatchResult, ClaimFirst, EventLog, Report, Tag};

use crate::limits::with_limit;
use crate::scene::{BOUNDS, Scene, bounds, done, slots};
use crate::support::Redis;
use crate::support::console::Console;

/// The bytes of the large text of each slot.
const TEXT_BYTES: usize = 64 << 10;
const SLOTS: usize = 64;

/// Returns the memory of the Lua values of all libraries, in bytes.
async fn memory(console: &Console) -> usize {
    let info: String = console.run(&["INFO", "memory"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_vm_functions:"));
    line.expect("the memory of functions")
        .parse()
        .expect("a number")
}

/// Many slots have had an event with results of handlers, or with a long error. The library keeps
/// these texts no longer than the call.
#[tokio::test]
async fn a_library_keeps_no_results_and_no_errors() {
    for with_results in [true, false] {
        let scene = Scene::on(Redis::own(&[])).await;
        let no_claim = bounds(|b| b.claims = 0);
        let mut before = None;
        for slot in 0..SLOTS {
            let (object, id) = (format!("work:{slot}"), slot as u64 + 1);
            scene.add(&format!("own w.{slot} {object} {id} 1")).await;
            // Lua keeps equal texts only once.
            let text = format!("{slot}{}", "2".repeat(TEXT_BYTES));
            let mut report = done(&object, id);
            if with_results {
                let fields = format!("id {id} result:a \"a\":{text}");
                scene
                    .add(&format!("HSET {object}:event.handled {fields}"))
                    .await;
            } else {
                report = rejected(report, text);
            }
            let fill = |call: &mut Advance| {
                call.log(EventLog::default());
                if with_results {
                    call.handled(slot);
                }
                call.report(slot, &report);
            };
            scene.advance(no_claim, fill).await;
            if before.is_none() {
                before = Some(memory(&scene).await);
            }
        }
        // Redis collects the garbage of Lua once in 50 calls.
        for _ in 0..500 {
            scene.advance(no_claim, |_| ()).await;
        }
        let kept = memory(&scene).await;
        let kept = kept.saturating_sub(before.expect("a call"));
        assert!(
            kept < SLOTS * TEXT_BYTES / 4,
            "{kept} bytes are kept; with results: {with_results}"
        );
    }
}

/// Returns the report that the event of this batch is rejected with this error.
fn rejected(report: Report, error: String) -> Report {
    let Tag { first, .. } = report.tag;
    let then = BatchResult::Reject {
        next: None,
        id: first,
        error,
        attempts: 0,
    };
    Report {
        count: 0,
        last: None,
        then,
        ..report
    }
}

/// A library remembers the slots that it has met, some thousands at most. Here 40 names have 1,024 slots
/// each, which would take more than 30 MB.
#[tokio::test]
async fn a_library_forgets_slots_in_the_end() {
    let scene = Scene::on(Redis::own(&[])).await;
    let mut conn = scene.conn().await;
    for n in 0..40 {
        let (name, token) = (format!("name{n}"), format!("t{n}"));
        let registered = format!("HSET event.workers {name} '1024 {token} 1'");
        let lease = format!("SET event.worker:{name}:lease '{token} host 1 1'");
        scene.add(&format!("{registered}; {lease}")).await;
        let no_claim = bounds(|b| b.claims = 0);
        let mut call = Advance::new(&scene.keys, &name, &token, no_claim, ClaimFirst::Markers);
        (0..1024).for_each(|slot| call.free(slot));
        wire::advance(&mut conn, &call).await.expect("an answer");
    }
    // Lua collects its garbage a little in each call.
    let mut kept = memory(&scene).await;
    for _ in 0..200 {
        if kept < 15 << 20 {
            return;
        }
        for _ in 0..100 {
            let no_claim = bounds(|b| b.claims = 0);
            scene.advance(no_claim, |call| call.free(0)).await;
        }
        kept = memory(&scene).await;
    }
    panic!("{kept} bytes are kept");
}

/// A library remembers the bounds that it has met, 100 at most. Here 20,000 calls have different ones,
/// which would take more than 8 MB.
#[tokio::test]
async fn a_library_forgets_bounds_in_the_end() {
    let scene = Scene::on(Redis::own(&[])).await;
    let call = async |n: u64| {
        let other = bounds(|b| {
            b.claims = 0;
            b.forget_after = Some(std::time::Duration::from_millis(1_000_000 + n));
        });
        scene.advance(other, |_| ()).await;
    };
    call(0).await;
    let before = memory(&scene).await;
    for n in 1..20_000 {
        call(n).await;
    }
    let kept = memory(&scene).await.saturating_sub(before);
    assert!(kept < 3 << 20, "{kept} bytes are kept");
}

/// A name counts as a slot, because a call may name no slot. Here 20,000 names have none, which would
/// take more than 15 MB.
#[tokio::test]
async fn a_library_forgets_names_without_slots_in_the_end() {
    let scene = Scene::on(Redis::own(&[])).await;
    let no_claim = bounds(|b| b.claims = 0);
    let mut conn = scene.conn().await;
    for n in 0..20_000 {
        let name = format!("{n:0>300}");
        let call = Advance::new(&scene.keys, &name, "t", no_claim, ClaimFirst::Markers);
        let answer = wire::advance(&mut conn, &call).await.expect("an answer");
        assert!(matches!(answer, Advanced::Lapsed), "{answer:?}");
    }
    // Lua collects its garbage a little in each call.
    for _ in 0..500 {
        scene.advance(no_claim, |_| ()).await;
    }
    let kept = memory(&scene).await;
    assert!(kept < 10 << 20, "{kept} bytes are kept");
}

/// A namespace counts as a slot, too. Here each of 10,000 namespaces has one name without slots, which
/// would take more than 15 MB.
#[tokio::test]
async fn a_library_forgets_namespaces_in_the_end() {
    let scene = Scene::on(Redis::own(&[])).await;
    let no_claim = bounds(|b| b.claims = 0);
    let mut conn = scene.conn().await;
    for n in 0..10_000 {
        let keys = Keys::with_namespace(&format!("{n:0>60}")).expect("a namespace");
        let call = Advance::new(&keys, "w", "t", no_claim, ClaimFirst::Markers);
        let answer = wire::advance(&mut conn, &call).await.expect("an answer");
        assert!(matches!(answer, Advanced::Lapsed), "{answer:?}");
    }
    // Lua collects its garbage a little in each call.
    for _ in 0..500 {
        scene.advance(no_claim, |_| ()).await;
    }
    let kept = memory(&scene).await;
    assert!(kept < 10 << 20, "{kept} bytes are kept");
}

/// A call fails while it reads its arguments, before it knows any slot. The next call is as any other
/// one.
#[tokio::test]
async fn a_call_that_fails_at_its_arguments_leaves_nothing() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.advance(BOUNDS, |_| ()).await;
    // A server without libraries has no function, and runs each call anew.
    if let Some(function) = function(&scene).await {
        let (lease, prefix) = (scene.keys.worker_lease("w"), scene.keys.prefix());
        let begin = ["FCALL", &function, "1", &lease, prefix, "w", "token-1"];
        let unknown_word = ["1 1 1 1 0 0", "0", "markers", "0", "1", "0", "odd"];
        let words = [&begin[..], &unknown_word[..]].concat();
        let failed = scene.try_run::<redis::Value>(&words).await;
        let error = failed.expect_err("an unknown word").to_string();
        assert!(!error.contains("not found"), "{error}");
    }
    scene.add("emit work:1 1").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
}

/// A call fails when it writes its keys. No later call of the library writes them: by then, others may
/// have changed them.
#[tokio::test]
async fn a_library_forgets_the_writes_of_a_call_that_failed() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("emit work:1 1").await;
    scene.login("~* +@all -mset").await;
    scene.fails(BOUNDS, slots(&[], 0..1)).await;
    scene.login("+@all").await;
    scene.again("").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), [""; 0]);
    scene.changed("").await;
}

/// A library forgets the limits of shares that an earlier call has read. The same namespace is empty
/// now, and has no share.
#[tokio::test]
async fn a_library_forgets_the_shares_of_an_earlier_call() {
    let scene = with_limit().await;
    scene.add("emit work:1 1").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
    scene.again("emit work:2 2").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:2"]);
    assert_eq!(scene.at("objects.in.hand").await, "nil");
}

/// A library remembers the shares that it has read, 1,024 at most. Here 3,000 calls read another text of
/// the share of all objects, which would take more than 9 MB.
#[tokio::test]
async fn a_library_forgets_shares_in_the_end() {
    let scene = Scene::on(Redis::own(&[])).await;
    let call = async |n: usize| {
        let share = format!("- - 1000 - - 1700000000000 0  {n:0>3000}");
        let summary = "SET event.shares.summary '2 0 1700000000000'";
        let shares = format!("{summary}; HSET event.shares * '{share}'; emit work:1 1");
        scene.again(&shares).await;
        assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
    };
    call(0).await;
    let before = memory(&scene).await;
    for n in 1..3_000 {
        call(n).await;
    }
    let kept = memory(&scene).await.saturating_sub(before);
    assert!(kept < 6 << 20, "{kept} bytes are kept");
}

/// A library forgets how many names wait in groups. The same namespace has no groups now, and its only
/// slot goes on with its object. So another call is of no use.
#[tokio::test]
async fn a_library_forgets_the_names_of_an_earlier_call() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("names g 1 a b c").await;
    let no_claim = bounds(|b| {
        b.claims = 0;
        b.group_depth = 1;
    });
    scene.free(0..1, no_claim).await;
    scene
        .again("own w.0 work:1 5 1; LPUSH work:1:events 2")
        .await;
    let answer = scene.report(0, &done("work:1", 5), BOUNDS).await;
    assert_eq!(answer.summary(), "work:1");
}

/// Returns the name of the function that commits and claims, if the server has it.
async fn function(console: &Console) -> Option<String> {
    let words = ["FUNCTION", "LIST"];
    let list = console.run::<redis::Value>(&words).await;
    let list = format!("{list:?}");
    let (_, hash) = list.split_once("advance_")?;
    let hash: String = hash.chars().take_while(char::is_ascii_hexdigit).collect();
    Some(format!("advance_{hash}"))
}

/// A library forgets which objects a call has claimed. So a later call claims an object again.
#[tokio::test]
async fn a_library_claims_an_object_again() {
    let scene = Scene::new().await;
    for id in 1..=2 {
        scene.add("emit work:1 1; pop w.0").await;
        assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"], "{id}");
        scene.report(0, &done("work:1", id), BOUNDS).await;
    }
}
