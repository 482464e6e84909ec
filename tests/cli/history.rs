//! Runs `seriatim verify --history` on recorded histories: one without faults, and copies of it
//! with one planted fault each. The verdict must name the fault correctly.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::{Value, json};

/// The distance by which the id counter jumps after Redis went back to an earlier state.
const JUMP: u64 = 1_000_000;

fn invoke(t: u64, emit: &str, object: &str, events: &[&str]) -> Value {
    json!({"op": "invoke", "t": t, "emit": emit, "object": object, "events": events})
}

fn done(op: &str, t: u64, emit: &str) -> Value {
    json!({"op": op, "t": t, "emit": emit})
}

fn received(t: u64, object: &str, event: &str, id: u64, prev: u64) -> Value {
    json!({"op": "receive", "t": t, "object": object, "id": id, "prev": prev, "event": event})
}

fn redis_lost(from: u64, to: u64) -> Value {
    json!({"op": "redis_lost", "from": from, "to": to})
}

/// The recorded history without faults.
///
/// - Object `a`: x1; x2 with the subevent x3; x4; x5; x6; x7; x8. The emit of x4 failed. The
///   emits of x5 and x6 have unknown outcomes, and the emit of x8 has no reply. Of x5, x6 and x8,
///   only x5 was received.
/// - Object `b`: y1; y2, which became a dead letter; y3.
struct Recorded(Vec<Value>);

impl Recorded {
    fn sound() -> Self {
        let mut lines = vec![
            invoke(10, "e1", "a", &["x1"]),
            done("ok", 20, "e1"),
            received(25, "a", "x1", 1, 0),
            invoke(30, "e2", "a", &["x2", "x3"]),
            invoke(35, "e3", "b", &["y1"]),
            done("ok", 40, "e2"),
            done("ok", 45, "e3"),
            received(46, "a", "x2", 3, 1),
            received(47, "a", "x3", 4, 3),
            received(48, "a", "x3", 4, 3),
            received(49, "b", "y1", 5, 0),
            invoke(50, "e4", "a", &["x4"]),
            done("failed", 60, "e4"),
            invoke(70, "e5", "a", &["x5"]),
            done("unknown", 80, "e5"),
            received(85, "a", "x5", 6, 4),
            invoke(90, "e6", "a", &["x6"]),
            done("unknown", 95, "e6"),
            invoke(100, "e7", "a", &["x7"]),
            invoke(105, "e8", "b", &["y2"]),
            done("ok", 110, "e7"),
            received(112, "a", "x7", 7, 6),
            done("ok", 115, "e8"),
            json!({"op": "dead", "t": 118, "object": "b", "id": 8, "prev": 5, "event": "y2", "error": "no"}),
            invoke(120, "e9", "b", &["y3"]),
            done("ok", 130, "e9"),
            received(135, "b", "y3", 9, 5),
            invoke(140, "e10", "a", &["x8"]),
        ];
        // Swaps two lines, because only the times and the order within one emit matter.
        lines.swap(3, 4);
        Self(lines)
    }

    fn find(&mut self, event: &str) -> &mut Value {
        self.0
            .iter_mut()
            .find(|line| line["event"] == event)
            .expect("it came")
    }

    fn set(mut self, event: &str, member: &str, value: impl Into<Value>) -> Self {
        self.find(event)[member] = value.into();
        self
    }

    /// Swaps the ids and the `prev` of two events.
    fn swap(mut self, one: &str, other: &str) -> Self {
        for line in &mut self.0 {
            let event = &line["event"];
            line["event"] = if event == one {
                other.into()
            } else if event == other {
                one.into()
            } else {
                continue;
            };
        }
        self
    }

    fn without(mut self, event: &str) -> Self {
        self.0.retain(|line| line["event"] != event);
        self
    }

    fn with(mut self, line: Value) -> Self {
        self.0.push(line);
        self
    }

    fn text(&self) -> String {
        self.0.iter().map(|line| format!("{line}\n")).collect()
    }

    fn verdict(&self, options: &[&str]) -> (Value, i32) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("history.ndjson");
        std::fs::write(&path, self.text()).expect("written");
        let output = run(&[path], &[&["--json"], options].concat());
        let verdict = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (verdict, output.status.code().expect("an exit code"))
    }

    /// Asserts that exactly these kinds of fault are found, with these counts.
    #[track_caller]
    fn finds(&self, faults: &[(&str, u64)], options: &[&str]) -> Value {
        let (verdict, code) = self.verdict(options);
        let counts = verdict["faults"].as_object().expect("counts by kind");
        let mut found: Vec<(&str, u64)> = counts
            .iter()
            .map(|(kind, count)| (kind.as_str(), count.as_u64().expect("a count")))
            .collect();
        found.retain(|(_, count)| *count > 0);
        let mut faults = faults.to_vec();
        faults.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, faults, "{verdict}");
        assert_eq!(code, i32::from(!faults.is_empty()), "{verdict}");
        verdict
    }
}

fn run(files: &[PathBuf], options: &[&str]) -> Output {
    let mut command = Command::new(crate::support::program());
    command
        .args(["verify", "--history"])
        .args(files)
        .args(options)
        .output()
        .expect("seriatim runs")
}

#[test]
fn a_sound_history_is_clean() {
    let verdict = Recorded::sound().finds(&[], &[]);
    let counts = [
        "events",
        "ok",
        "failed",
        "unknown",
        "unknown_came",
        "applied",
        "objects",
        "duplicates",
        "dead",
    ];
    assert_eq!(
        counts.map(|count| verdict[count].as_u64().expect("a count")),
        [11, 7, 1, 3, 1, 7, 2, 1, 1]
    );
    Recorded::sound().finds(&[], &["--lossy"]);
}

#[test]
fn what_is_allowed_is_no_fault() {
    // x1 is received late. The receiver keeps back the events that follow x1 until x1 comes.
    Recorded::sound().set("x1", "t", 300).finds(&[], &[]);
    // Of two concurrent emits, either may be first.
    Recorded::sound()
        .swap("x5", "x6")
        .set("x6", "t", 91)
        .finds(&[], &[]);
    // An emit without a reply may take effect late.
    Recorded::sound()
        .with(received(999, "a", "x8", 12, 7))
        .finds(&[], &[]);
    // A worker delivered y2 and died before its commit. The next delivery rejected y2. So y3
    // follows the event before y2.
    Recorded::sound()
        .with(received(117, "b", "y2", 8, 5))
        .finds(&[], &[]);
}

#[rstest]
#[case::dropped(Recorded::sound().without("x2"), &[("lost", 1), ("gap", 1)])]
#[case::dropped_last(Recorded::sound().without("x7"), &[("lost", 1)])]
#[case::dropped_with_its_place_in_the_chain(Recorded::sound().without("x2").set("x3", "prev", 1).without("x3").with(received(47, "a", "x3", 4, 1)), &[("lost", 1)])]
#[case::dead_letter_dropped(Recorded::sound().without("y2"), &[("lost", 1)])]
#[case::swapped(Recorded::sound().swap("x1", "x7").set("x7", "t", 101).set("x1", "t", 103), &[("reordered", 3)])]
#[case::subevents_swapped(Recorded::sound().swap("x2", "x3").without("x3").with(received(48, "a", "x3", 3, 1)), &[("reordered", 1)])]
#[case::in_between(
    Recorded::sound().without("x3").without("x5").with(received(86, "a", "x5", 4, 3)).with(received(87, "a", "x3", 6, 4)),
    &[("reordered", 1)])]
#[case::too_late(
    Recorded::sound().without("x2").without("x3").with(received(47, "a", "x3", 4, 1)).with(received(400, "a", "x2", 3, 1)),
    &[("reordered", 1)])]
#[case::forked(Recorded::sound().set("x7", "prev", 4), &[("forked", 1)])]
#[case::starts_twice(Recorded::sound().set("x5", "prev", 0), &[("forked", 1)])]
#[case::two_prevs(Recorded::sound().set("x3", "prev", 1), &[("forked", 2)])]
#[case::prev_of_another_object(Recorded::sound().set("x5", "prev", 5), &[("gap", 1)])]
#[case::prev_is_a_dead_letter(Recorded::sound().set("y3", "prev", 8), &[("gap", 1)])]
#[case::does_not_start_at_0(Recorded::sound().set("y1", "prev", 2), &[("gap", 1)])]
#[case::id_reused_by_another_object(Recorded::sound().set("y3", "id", 7), &[("id_reused", 1)])]
#[case::id_reused_by_the_same_object(Recorded::sound().set("x7", "id", 6).set("x7", "prev", 4), &[("id_reused", 1), ("reordered", 1)])]
#[case::id_reused_by_a_dead_letter(Recorded::sound().set("y2", "id", 7), &[("id_reused", 1)])]
#[case::again_under_another_id(Recorded::sound().with(received(200, "a", "x1", 10, 7)), &[("doubled", 1)])]
#[case::dead_letter_under_another_id(Recorded::sound().with(received(200, "b", "y2", 10, 9)), &[("doubled", 1), ("reordered", 1)])]
#[case::unknown_twice(Recorded::sound().with(received(200, "a", "x5", 10, 7)), &[("doubled", 1)])]
#[case::failed_and_came(Recorded::sound().with(received(200, "a", "x4", 10, 7)), &[("undone", 1)])]
#[case::failed_and_dead(Recorded::sound().set("y2", "event", "x4").set("x4", "object", "a"), &[("undone", 1), ("lost", 1)])]
#[case::nobody_emitted_it(Recorded::sound().with(received(200, "a", "z", 10, 7)), &[("unexpected", 1)])]
#[case::under_another_object(Recorded::sound().without("y3").with(received(200, "a", "y3", 10, 7)), &[("unexpected", 1)])]
#[case::before_it_was_emitted(Recorded::sound().set("x7", "t", 99), &[("unexpected", 1)])]
#[case::payloads_exchanged(Recorded::sound().swap("x1", "y1"), &[("unexpected", 2)])]
#[case::prev_not_below_id(Recorded::sound().with(received(200, "a", "x8", 10, 10)), &[("malformed", 1)])]
#[case::emitted_twice(Recorded::sound().with(invoke(200, "e11", "a", &["x1"])), &[("malformed", 1)])]
#[case::emitted_twice_in_one_emit(Recorded::sound().with(invoke(200, "e11", "a", &["x1", "x1", "x9"])), &[("malformed", 2)])]
#[case::answered_twice(Recorded::sound().with(done("failed", 200, "e1")), &[("malformed", 1)])]
#[case::answered_and_never_invoked(Recorded::sound().with(done("ok", 200, "e11")), &[("malformed", 1)])]
fn a_planted_fault_is_found(#[case] recorded: Recorded, #[case] faults: &[(&str, u64)]) {
    recorded.finds(faults, &["--never-forgotten"]);
    // `--lossy` excuses a fault only within a time window in which Redis lost writes. Here no
    // window, or a window at another time, is recorded.
    recorded.finds(faults, &["--lossy", "--never-forgotten"]);
    recorded
        .with(redis_lost(5000, 6000))
        .finds(faults, &["--lossy", "--never-forgotten"]);
}

/// Tests that a forgotten object may begin a new chain. A later event that follows on the old chain
/// is still a fork.
#[test]
fn a_chain_begins_anew_where_its_object_was_forgotten() {
    let verdict = Recorded::sound().set("x5", "prev", 0).finds(&[], &[]);
    assert_eq!(verdict["anew"], 1);
    assert_eq!(Recorded::sound().finds(&[], &[])["anew"], 0);
    Recorded::sound()
        .set("x5", "prev", 0)
        .set("x7", "prev", 4)
        .finds(&[("forked", 1)], &[]);
}

#[test]
fn what_redis_lost_is_counted_apart() {
    let recorded = Recorded::sound().without("x7").with(redis_lost(108, 109));
    recorded.finds(&[("lost", 1)], &[]);
    let verdict = recorded.finds(&[], &["--lossy"]);
    assert_eq!(verdict["lost_by_redis"], 1);
    // x7 was acknowledged before Redis lost writes, so Redis still had x7.
    Recorded::sound()
        .without("x7")
        .with(redis_lost(111, 115))
        .finds(&[("lost", 1)], &["--lossy"]);
}

#[test]
fn what_comes_again_after_redis_went_back_is_counted_apart() {
    let again = |id| {
        Recorded::sound()
            .with(redis_lost(84, 113))
            .with(received(200, "a", "x7", id, 6))
    };
    again(JUMP + 7).finds(&[("doubled", 1), ("forked", 1)], &[]);
    let verdict = again(JUMP + 7).finds(&[], &["--lossy"]);
    assert_eq!(verdict["redelivered"], 1);
    // The second id of x7 does not come after a jump of the counter, so no lost write of Redis
    // explains it.
    again(10).finds(&[("doubled", 1), ("forked", 1)], &["--lossy"]);
    // x7 came again while Redis was still away, so no lost write of Redis explains it either.
    let too_soon = Recorded::sound()
        .with(redis_lost(84, 113))
        .with(received(112, "a", "x7", JUMP, 6));
    too_soon.finds(&[("doubled", 1), ("forked", 1)], &["--lossy"]);
}

/// A history with two masters, of which Redis loses the old one's events. The new master has
/// acknowledged x1, x2 and x9. Then the old master accepts x7, and a worker delivers x7 at once.
/// Last comes x9 from the new master. Its `prev` is not x7, because Redis has lost x7.
#[test]
fn what_comes_behind_an_event_that_redis_lost_is_counted_apart() {
    let crossed = |prev| {
        let lines = Recorded::sound().without("x5").set("x7", "prev", 4);
        let lines = lines
            .with(invoke(71, "e11", "a", &["x9"]))
            .with(done("ok", 72, "e11"));
        lines
            .with(received(200, "a", "x9", JUMP, prev))
            .with(redis_lost(95, 150))
    };
    crossed(4).finds(&[("reordered", 1), ("forked", 1)], &[]);
    let verdict = crossed(4).finds(&[], &["--lossy"]);
    assert_eq!(verdict["behind_lost"], 1);
    // The last event follows on x7, so Redis had not lost x7.
    crossed(7).finds(&[("reordered", 1)], &["--lossy"]);
}

/// z1 and z2 are scheduled events, due at 300 and at 400. The receiver must get z1 first.
#[test]
fn a_schedule_is_not_early_and_comes_in_the_order_of_due_times() {
    let scheduled = |t: u64, emit: &str, event: &str, due: u64| {
        let mut invoked = invoke(t, emit, "s", &[event]);
        invoked["due"] = due.into();
        let mut answered = done("ok", t + 5, emit);
        answered["due_ms"] = due.into();
        [invoked, answered]
    };
    let both = |first: u64, second: u64| {
        let lines = scheduled(200, "e20", "z1", 300)
            .into_iter()
            .chain(scheduled(210, "e21", "z2", 400));
        let recorded = lines.fold(Recorded::sound(), Recorded::with);
        let (low, high) = (first.min(second), first.max(second));
        let (one, other) = if first < second {
            ("z1", "z2")
        } else {
            ("z2", "z1")
        };
        recorded
            .with(received(low, "s", one, 20, 0))
            .with(received(high, "s", other, 21, 20))
    };
    both(310, 410).finds(&[], &[]);
    both(299, 410).finds(&[("early", 1)], &[]);
    both(420, 410).finds(&[("reordered", 1)], &[]);
    // Redis' clock was set ahead, so an event may come earlier by this step.
    let step = |by: u64| json!({"op": "clock_ahead", "t": 250, "by": by});
    both(299, 410).with(step(10)).finds(&[], &[]);
    both(280, 410).with(step(10)).finds(&[("early", 1)], &[]);
}

#[test]
fn an_id_is_never_reused_and_nothing_older_is_applied_whatever_redis_lost() {
    let lost = || Recorded::sound().with(redis_lost(1, 2000));
    lost()
        .with(received(200, "a", "x8", 7, 6))
        .finds(&[("id_reused", 1)], &["--lossy"]);
    // x2 was acknowledged before x7 was emitted, but the receiver applies x2 after x7.
    let older = lost()
        .without("x2")
        .without("x3")
        .with(received(200, "a", "x2", JUMP, 7))
        .with(received(201, "a", "x3", JUMP + 1, JUMP));
    older.finds(&[("reordered", 2), ("gap", 1)], &["--lossy"]);
}

#[test]
fn several_files_gzip_and_a_torn_last_line_are_read() {
    let recorded = Recorded::sound();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (producers, receiver): (Vec<&Value>, Vec<&Value>) =
        recorded.0.iter().partition(|line| line["event"].is_null());
    let text = |lines: &[&Value]| {
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let paths = [dir.path().join("receiver.gz"), dir.path().join("producers")];
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed
        .write_all(text(&receiver).as_bytes())
        .expect("packed");
    std::fs::write(&paths[0], packed.finish().expect("packed")).expect("written");
    std::fs::write(&paths[1], text(&producers) + "{\"op\":\"invo").expect("written");
    let output = run(&paths, &[]);
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.status.success() && shown.ends_with("clean\n"),
        "{shown}"
    );
    // A torn line is an error if it is not the last line of its file.
    std::fs::write(&paths[1], "{\"op\":\"invo\n").expect("written");
    let output = run(&paths, &[]);
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(
        (output.status.code(), message.lines().count()),
        (Some(2), 1),
        "{message}"
    );
    assert!(
        message.contains("producers:1: not a line of a history"),
        "{message}"
    );
}
