//! In a library the tables of `advance` live on from call to call. Nothing in them may depend on
//! earlier calls, not even on calls that have failed in the middle. This test makes a call on a
//! random state twice: in a library that has run all calls before, and in a new library. It compares
//! the replies and the keys.
//!
//! `SERIATIM_SEED=… cargo test --test proofs fresh` repeats the calls from one state on.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, Scripts, Suspects, Tag, Ways,
};

use crate::invariants::Rng;
use crate::seeds;
use crate::support::Redis;

const CASES: u64 = 400;
const SLOTS: usize = 3;
/// The last id given before the call.
const COUNTER: u64 = 2_000;

/// A random state, as the commands that build it, and a call.
struct Case {
    commands: Vec<Vec<String>>,
    slots: Vec<(usize, Option<Report>)>,
    bounds: Bounds,
    from: ClaimFirst,
    highest: u64,
    /// Whether unusual values are rare in this state. This is so in half of the states.
    is_tame: bool,
}

impl Case {
    fn run(&mut self, words: &[&str]) {
        self.commands
            .push(words.iter().map(|word| (*word).to_owned()).collect());
    }

    /// Draws whether an unusual value occurs: with a chance of 1 in `chance`, or 20 times rarer in
    /// a tame state.
    fn has(&self, rng: &mut Rng, chance: u64) -> bool {
        rng.below(if self.is_tame { 20 * chance } else { chance }) == 0
    }

    fn queue(&mut self, keys: &Keys, object: &str, events: u64) {
        for n in 0..events {
            self.run(&["LPUSH", &keys.events(object), &format!("{{\"n\":{n}}}")]);
        }
    }

    fn of(keys: &Keys, rng: &mut Rng) -> Self {
        let bounds = Bounds {
            batch: [1, 10][rng.at(2)],
            batch_bytes: 1 << 20,
            reply_bytes: if rng.below(8) == 0 { 1 } else { 1 << 20 },
            claims: rng.at(SLOTS + 1),
            markers: 100,
            forget_after: None,
            group_depth: rng.at(2),
            suspects: Suspects::NONE,
        };
        let from = if rng.below(2) == 0 {
            ClaimFirst::Held
        } else {
            ClaimFirst::Markers
        };
        let is_tame = rng.below(2) == 0;
        let mut case = Self {
            commands: Vec::new(),
            slots: Vec::new(),
            bounds,
            from,
            highest: COUNTER,
            is_tame,
        };
        if case.has(rng, 10) {
            case.highest = COUNTER + 1;
        }
        case.run(&["SET", &keys.next_event_id(), &COUNTER.to_string()]);
        case.run(&["HSET", &keys.event_workers(), "w", "3 token 1"]);
        case.run(&["SET", &keys.worker_lease("w"), "token host 1 1"]);
        for slot in 0..SLOTS {
            match rng.below(6) {
                0 => {}
                1 => case.slots.push((slot, None)),
                2 | 3 if slot == 0 || case.has(rng, 1) => case.popped(keys, rng, slot),
                _ => case.in_flight(keys, rng, slot),
            }
        }
        for n in 0..[0, 1 + rng.below(2)][usize::from(case.has(rng, 2))] {
            let object = format!("more:{n}");
            case.queue(keys, &object, 1 + rng.below(2));
            case.run(&["LPUSH", &keys.objects_with_events(), &object]);
        }
        if case.has(rng, 4) {
            let due = ["1", "9999999999999", "inf"][rng.at(3)];
            case.queue(keys, "held:1", rng.below(2));
            case.run(&["SET", &keys.event_worker("held:1"), "held"]);
            case.run(&["ZADD", &keys.objects_held(), due, "held:1"]);
        }
        if case.has(rng, 3) {
            case.grouped(keys, rng);
        }
        if case.has(rng, 10) {
            case.run(&[
                "HSET",
                &keys.event_rules(),
                "pause work:1",
                "1 0 0 3 0 adanot yet",
                "next",
                "never",
            ]);
        }
        case
    }

    /// Groups names of up to three groups: idle objects, objects that a slot may have, and held
    /// objects. The number of names may be wrong.
    fn grouped(&mut self, keys: &Keys, rng: &mut Rng) {
        let mut count = 0;
        for group in &["more", "held", "alone"][..1 + rng.at(3)] {
            self.run(&[
                "ZADD",
                &keys.event_groups(),
                &rng.below(3).to_string(),
                group,
            ]);
            for n in 0..rng.below(4) {
                let name = if *group == "alone" {
                    (*group).to_owned()
                } else {
                    format!("{group}:{n}")
                };
                let (events, is_held) = (rng.below(3), *group == "held" && rng.below(3) > 0);
                self.queue(keys, &name, events);
                if is_held {
                    let due = ["-1", "-1000", "1", "9999999999999", "inf"]
                        [if self.has(rng, 4) { rng.at(5) } else { 0 }];
                    self.run(&["SET", &keys.event_worker(&name), "held"]);
                    self.run(&["ZADD", &keys.objects_held(), due, &name]);
                }
                self.run(&["LPUSH", &keys.group_waiting(group), &name]);
                count += 1;
            }
        }
        if self.has(rng, 2) {
            self.run(&[
                "ZADD",
                &keys.event_marks(),
                "1700000000000",
                "1700000000000",
            ]);
        }
        if self.has(rng, 8) {
            count = [0, count + 2][rng.at(2)];
        }
        self.run(&["SET", &keys.event_groups_waiting(), &count.to_string()]);
    }

    /// Adds a free slot into whose list a pop has moved an object.
    fn popped(&mut self, keys: &Keys, rng: &mut Rng, slot: usize) {
        let (worker, mut object) = (format!("w.{slot}"), "work:3");
        if self.has(rng, 1) {
            object = ["", "{x}", "work:0", "work:1", "work:2"][rng.at(5)];
        }
        if rng.below(8) == 0 {
            // The call fails after its first writes.
            self.run(&["SET", &keys.worker_object(&worker), "wrong type"]);
        }
        self.run(&["LPUSH", &keys.worker_object(&worker), object]);
        if self.has(rng, 10) {
            self.run(&["LPUSH", &keys.worker_object(&worker), "other"]);
        }
        let events = if self.has(rng, 2) { rng.below(3) } else { 1 };
        self.queue(keys, object, events);
        let last = if self.has(rng, 2) {
            rng.below(3)
        } else {
            3 + rng.below(2)
        };
        match last {
            0 => self.run(&["SET", &keys.last_event_id(object), "5000"]),
            1 => self.run(&["SET", &keys.last_event_id(object), "no id"]),
            2 => self.run(&["HSET", &keys.last_event_id(object), "wrong", "type"]),
            3 => self.run(&["SET", &keys.last_event_id(object), "900"]),
            _ => {}
        }
        if self.has(rng, 3) {
            match rng.below(3) {
                0 => self.run(&["SET", &keys.event_worker(object), "x.1"]),
                1 => self.run(&["SET", &keys.event_worker(object), &worker]),
                _ => self.run(&["HSET", &keys.event_worker(object), "wrong", "type"]),
            }
        }
        self.slots.push((slot, None));
    }

    /// Adds a slot with a batch, and usually its report.
    fn in_flight(&mut self, keys: &Keys, rng: &mut Rng, slot: usize) {
        let (worker, object, count) = (format!("w.{slot}"), format!("busy:{slot}"), 1 + rng.at(2));
        let first = 1_000 + 10 * slot as u64;
        let failed = u32::from(self.has(rng, 5));
        let tag = Tag {
            first,
            handouts: failed,
            attempts: failed,
            ..Tag::default()
        };
        for n in 0..count {
            self.run(&[
                "LPUSH",
                &keys.worker_event(&worker),
                &format!("{{\"n\":{n}}}"),
            ]);
        }
        self.run(&["SET", &keys.worker_event_id(&worker), &tag.to_string()]);
        self.run(&["LPUSH", &keys.worker_object(&worker), &object]);
        self.run(&["SET", &keys.event_worker(&object), &worker]);
        let more = if self.has(rng, 2) {
            1 + rng.below(2)
        } else {
            0
        };
        self.queue(keys, &object, more);
        let sent = if self.has(rng, 6) {
            Tag {
                first: 1,
                ..Tag::default()
            }
        } else {
            tag
        };
        let then = if self.has(rng, 6) {
            BatchResult::Yield
        } else {
            BatchResult::Done
        };
        let last = Some(first + count as u64 - 1);
        let report = Report {
            object: object.into_bytes().into(),
            tag: sent,
            count,
            last,
            then,
        };
        self.slots
            .push((slot, (!self.has(rng, 8)).then_some(report)));
    }

    /// Builds the state and makes the call. `is_new` says whether the library is new then. Returns
    /// the reply and all keys.
    async fn call(
        &self,
        conn: &mut MultiplexedConnection,
        keys: &Keys,
        is_new: bool,
    ) -> (String, BTreeMap<String, String>) {
        run::<()>(conn, &["FLUSHALL"]).await;
        for command in &self.commands {
            // Two commands may name the same object. A command that does not fit the state fails
            // and is ignored.
            let _ = try_run::<redis::Value>(conn, command).await;
        }
        let mut call = Advance::beyond(
            keys,
            "w",
            "token",
            self.bounds,
            self.from,
            self.highest,
            &Arc::new(Ways::new(Scripts::Functions)),
        );
        for (slot, report) in &self.slots {
            match report {
                Some(report) => call.report(*slot, report),
                None => call.free(*slot),
            }
        }
        if is_new {
            run::<()>(conn, &["FUNCTION", "FLUSH"]).await;
        }
        let reply = match wire::advance(conn, &call).await {
            Ok(Advanced::Ok {
                next_due,
                more,
                unsorted,
                from,
                batches,
                quarantined,
            }) => {
                // The two calls are some seconds apart.
                let is_soon = next_due.map(|due| due.as_secs() < 60);
                format!(
                    "soon {is_soon:?} more {more} {unsorted} from {from:?} {batches:?} {quarantined:?}"
                )
            }
            other => format!("{other:?}"),
        };
        (masked(&reply), keyspace(conn).await)
    }
}

async fn try_run<T: redis::FromRedisValue>(
    conn: &mut MultiplexedConnection,
    words: &[impl redis::ToRedisArgs],
) -> redis::RedisResult<T> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query_async(conn).await
}

async fn run<T: redis::FromRedisValue>(
    conn: &mut MultiplexedConnection,
    words: &[impl redis::ToRedisArgs],
) -> T {
    try_run(conn, words).await.expect("an answer")
}

/// Masks ids and times that come from the clock, because both calls get different ones.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.trim_end_matches(|c: char| !c.is_ascii_digit());
        masked += if digits.len() >= 13 && digits.starts_with("17") {
            "TIME"
        } else {
            digits
        };
        masked += &piece[digits.len()..];
    }
    masked
}

/// Returns every key with its value.
async fn keyspace(conn: &mut MultiplexedConnection) -> BTreeMap<String, String> {
    let names: Vec<String> = run(conn, &["KEYS", "*"]).await;
    let mut all = BTreeMap::new();
    for name in names {
        let kind: String = run(conn, &["TYPE", &name]).await;
        let words: &[&str] = match kind.as_str() {
            "string" => &["GET", &name],
            "list" => &["LRANGE", &name, "0", "-1"],
            "zset" => &["ZRANGE", &name, "0", "-1", "WITHSCORES"],
            "hash" => &["HGETALL", &name],
            other => panic!("{name} is a {other}"),
        };
        let value: redis::Value = run(conn, words).await;
        all.insert(name.clone(), masked(&format!("{kind} {value:?}")));
    }
    all
}

#[tokio::test]
async fn a_call_does_the_same_in_a_new_library() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, Keys::new());
    let first = seeds::number("SERIATIM_SEED").unwrap_or_else(seeds::fresh);
    let cases: Vec<_> = (first..first + CASES)
        .map(|seed| (seed, Case::of(&keys, &mut Rng(seed))))
        .collect();
    let mut after_others = Vec::new();
    for (_, case) in &cases {
        after_others.push(case.call(&mut conn, &keys, false).await);
    }
    let (mut claims, mut grouped, mut failed) = (0, 0, 0);
    for ((seed, case), (reply, left)) in cases.iter().zip(after_others) {
        let (new_reply, new_left) = case.call(&mut conn, &keys, true).await;
        let what = format!(
            "SERIATIM_SEED={first}, state {seed}\n{:#?}\n{:?} {:?}",
            case.commands, case.slots, case.bounds
        );
        assert_eq!(
            reply, new_reply,
            "the replies; right: in a new library; {what}"
        );
        assert_eq!(left, new_left, "the keys; right: in a new library; {what}");
        claims += u64::from(reply.contains(" after "));
        grouped += u64::from(left.contains_key(&keys.event_groups()));
        failed += u64::from(reply.starts_with("Err"));
    }
    assert!(claims > CASES / 4, "{claims} of {CASES} calls gave a batch");
    assert!(
        grouped > CASES / 20,
        "{grouped} of {CASES} calls left names that are grouped"
    );
    assert!(failed > CASES / 50, "{failed} of {CASES} calls failed");
}
