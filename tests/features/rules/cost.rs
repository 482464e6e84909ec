//! The cost of rules for a call if no rule is set.

use futures_util::StreamExt as _;
use seriatim::wire::{
    self, Advance, Advanced, Attach, BatchResult, Bounds, ClaimFirst, Report, Suspects,
};

use super::{Kind, lift, set};
use crate::support::Redis;

/// The text of an ECHO that marks the end of the recorded commands.
const END: &str = "that was all";

/// Without a rule, each call of a worker asks once whether any of the rare keys exists, and if so, once
/// for the time of the rules. This holds for any number of objects. The call reads no other key of rules.
/// With a rule it reads more. After the last rule is deleted, the cost is as before.
#[tokio::test]
async fn without_rules_a_call_asks_once_whether_there_is_one() {
    const SLOTS: usize = 8;
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let console = redis.console().await;
    let lease = std::time::Duration::from_secs(600);
    let args = Attach {
        name: "w",
        token: "t",
        holder: "host 1 1",
        lease,
        slots: SLOTS,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    wire::attach(&mut conn, &keys, &args)
        .await
        .expect("attached");
    let bounds = Bounds {
        batch: 1,
        batch_bytes: 1 << 20,
        reply_bytes: 1 << 20,
        claims: SLOTS,
        markers: 4096,
        forget_after: None,
        group_depth: 0,
        suspects: Suspects::NONE,
    };
    let mut counted = Vec::new();
    for with_rule in [false, true, false] {
        for object in 0..SLOTS {
            console
                .emit_all(&format!("work:{object}"), ["1", "2", "3"])
                .await;
        }
        if with_rule {
            set(&conn, &keys, Kind::Pause, "never:*").await;
        }
        let client = redis::Client::open(redis.url()).expect("a URL");
        let monitor = client.get_async_monitor().await.expect("a monitor");
        // The calls claim batches, commit them and go on, and at last commit the last events.
        let mut reports: Vec<Option<Report>> = vec![None; SLOTS];
        let (mut calls, mut sent) = (0, 0);
        loop {
            let mut call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Markers);
            for (slot, report) in reports.iter().enumerate() {
                match report {
                    Some(report) => call.report(slot, report),
                    None => call.free(slot),
                }
            }
            let answer = wire::advance(&mut conn, &call).await.expect("an answer");
            calls += 1;
            let Advanced::Ok { batches, .. } = answer else {
                panic!("{answer:?}")
            };
            if batches.is_empty() {
                break;
            }
            sent += batches.len();
            reports = vec![None; SLOTS];
            for batch in batches {
                let then = BatchResult::Done;
                let report = Report {
                    object: batch.object.clone(),
                    tag: batch.tag,
                    count: 1,
                    last: Some(batch.tag.first),
                    then,
                };
                reports[batch.slot] = Some(report);
            }
        }
        assert_eq!((calls, sent), (4, 3 * SLOTS));
        let _: String = console.run(&["ECHO", END]).await;
        let ran: Vec<String> = monitor
            .into_on_message()
            .take_while(|line: &String| std::future::ready(!line.contains(END)))
            .collect()
            .await;
        // The text of the script in SCRIPT LOAD contains these keys, but is not a command that a
        // script runs.
        let in_script = ran.iter().filter(|line| line.contains(" lua] "));
        let of_rules: Vec<_> = in_script
            .filter(|line| {
                line.contains(&keys.event_rules()) || line.contains(&keys.objects_paused())
            })
            .collect();
        let asked = format!(r#""HGET" "{}" "next""#, keys.event_rules());
        let with = |words: &str| of_rules.iter().filter(|line| line.contains(words)).count();
        counted.push((with(r#" lua] "EXISTS" "#), with(&asked), of_rules.len()));
        if with_rule {
            lift(&conn, &keys, Kind::Pause, "never:*").await;
            // The next call finds no object to wake, and deletes the lifted rule.
            let call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Markers);
            wire::advance(&mut conn, &call).await.expect("an answer");
            assert_eq!(
                console.run::<u64>(&["EXISTS", &keys.event_rules()]).await,
                0
            );
        }
    }
    println!("EXISTS and HGET in 4 calls, and all commands of rules: {counted:?}");
    for (exists, times, all) in [counted[0], counted[2]] {
        assert_eq!((exists, times, all), (4, 4, 8), "{counted:?}");
    }
    assert!(counted[1].2 > 8, "{counted:?}");
}
