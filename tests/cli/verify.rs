//! Tests that `seriatim verify` finds every planted fault and names it correctly.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

/// The files for one run of `seriatim verify`, in a directory of their own.
struct Case {
    dir: tempfile::TempDir,
    args: Vec<String>,
}

impl Case {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            args: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    fn output(mut self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.file(name, text);
        self.args.push(path);
        self
    }

    fn option(mut self, option: &str, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.file(name, text);
        self.args.extend([option.to_owned(), path]);
        self
    }

    fn run(&self, more: &[&str]) -> Output {
        Command::new(crate::support::program())
            .arg("verify")
            .args(&self.args)
            .args(more)
            .output()
            .expect("seriatim runs")
    }

    /// Returns the verdict and the exit code.
    fn verdict(&self) -> (Value, i32) {
        let output = self.run(&["--json"]);
        let code = output.status.code().expect("an exit code");
        let verdict = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (verdict, code)
    }

    /// Asserts that exactly these kinds of fault are found, with these counts.
    #[track_caller]
    fn finds(&self, faults: &[(&str, u64)], code: i32) -> Value {
        let (verdict, exit) = self.verdict();
        let found: Vec<(&str, u64)> = [
            "lost",
            "reordered",
            "forked",
            "ids_reused",
            "unexpected",
            "malformed",
            "torn",
        ]
        .into_iter()
        .map(|kind| (kind, verdict[kind].as_u64().expect("a count")))
        .filter(|(_, count)| *count > 0)
        .collect();
        assert_eq!(found, faults, "{verdict}");
        assert_eq!(exit, code, "{verdict}");
        verdict
    }
}

/// Returns one line of a sink's output. The event is `{"n":N}`.
fn sent(id: u64, prev: u64, object: &str, n: u64) -> String {
    format!("{{\"id\":{id},\"prev\":{prev},\"object\":\"{object}\",\"event\":{{\"n\":{n}}}}}\n")
}

/// Returns output lines of object `a` with these pairs of id and `prev`. Each event contains its id
/// as its number.
fn chain(of: &[(u64, u64)]) -> String {
    of.iter()
        .map(|(id, prev)| sent(*id, *prev, "a", *id))
        .collect()
}

/// Returns the input lines of object `a` with these numbers.
fn input(of: &[u64]) -> String {
    of.iter()
        .map(|n| format!("{{\"object\":\"a\",\"event\":{{\"n\":{n}}}}}\n"))
        .collect()
}

const CLEAN: &[(u64, u64)] = &[(1, 0), (2, 1), (5, 2), (6, 5)];
const CLEAN_INPUT: &[u64] = &[1, 2, 5, 6];

#[test]
fn clean_outputs_of_two_workers_pass() {
    let case = Case::new()
        .output(
            "a.ndjson",
            [chain(&CLEAN[..2]), sent(3, 0, "b", 3)].concat(),
        )
        .output(
            "b.ndjson",
            [sent(4, 3, "b", 3), chain(&CLEAN[2..])].concat(),
        )
        .option(
            "--against",
            "in",
            [input(CLEAN_INPUT), input(&[3, 3]).replace("\"a\"", "\"b\"")].concat(),
        );
    let verdict = case.finds(&[], 0);
    assert_eq!(
        (
            &verdict["events"],
            &verdict["objects"],
            &verdict["duplicates"]
        ),
        (&6.into(), &2.into(), &0.into())
    );
    let shown = String::from_utf8(case.run(&[]).stdout).expect("text");
    assert!(
        shown.ends_with("clean\n") && shown.contains("reordered"),
        "{shown}"
    );
}

#[test]
fn resends_are_counted_and_allowed() {
    // The first worker died after its second event. The second worker begins with the events that
    // were in flight. A late delivery of the first worker comes in addition.
    let case = Case::new()
        .output("a", [chain(&CLEAN[..3]), chain(&CLEAN[1..3])].concat())
        .output("b", chain(&CLEAN[1..]))
        .option("--against", "in", input(CLEAN_INPUT));
    let verdict = case.finds(&[], 0);
    assert_eq!(
        (&verdict["events"], &verdict["duplicates"]),
        (&4.into(), &4.into())
    );
}

#[test]
fn a_late_send_is_a_duplicate_only_if_its_event_came_in_time_elsewhere() {
    let late = chain(&[(1, 0), (5, 2), (2, 1), (6, 5)]);
    Case::new()
        .output("a", &late)
        .output("b", chain(&[(2, 1)]))
        .finds(&[], 0);
    let verdict = Case::new().output("a", &late).finds(&[("reordered", 1)], 1);
    assert_eq!(verdict["examples"][0]["line"], 3);
}

#[rstest]
#[case::dropped(&[(1, 0), (2, 1), (6, 5)], &[("lost", 1)])]
#[case::first_dropped(&[(2, 1), (5, 2), (6, 5)], &[("lost", 1)])]
#[case::starts_elsewhere(&[(3, 2), (5, 3)], &[("lost", 1)])]
#[case::swapped(&[(1, 0), (5, 2), (2, 1), (6, 5)], &[("reordered", 1)])]
#[case::forked(&[(1, 0), (2, 1), (5, 1), (6, 5)], &[("forked", 1)])]
#[case::starts_twice_and_goes_on_from_before(&[(1, 0), (2, 1), (5, 0), (6, 2)], &[("forked", 1)])]
#[case::starts_twice_with_one_event(&[(1, 0), (2, 1), (2, 0)], &[("forked", 1)])]
#[case::two_prevs(&[(1, 0), (2, 1), (5, 2), (5, 1)], &[("forked", 1)])]
#[case::prev_not_below_id(&[(1, 0), (2, 2)], &[("malformed", 1)])]
#[case::id_zero(&[(1, 0), (0, 0)], &[("malformed", 1)])]
#[case::id_too_high(&[(1, 0), (1 << 53, 1)], &[("malformed", 1)])]
fn a_broken_chain_is_found_without_the_input(
    #[case] chain_of: &[(u64, u64)],
    #[case] faults: &[(&str, u64)],
) {
    Case::new().output("a", chain(chain_of)).finds(faults, 1);
}

/// Tests that the next event of a forgotten object has `prev` 0. This new chain is counted but is a
/// fault only with `--never-forgotten`.
#[test]
fn a_chain_begins_anew_where_its_object_was_forgotten() {
    let case = Case::new().output("a", chain(&[(1, 0), (2, 1), (5, 0), (6, 5)]));
    assert_eq!(case.finds(&[], 0)["anew"], 1);
    let shown = String::from_utf8(case.run(&[]).stdout).expect("text");
    assert!(
        shown.contains("begun anew") && shown.ends_with("clean\n"),
        "{shown}"
    );
    assert_eq!(case.run(&["--never-forgotten"]).status.code(), Some(1));
}

#[rstest]
#[case::dropped(&[(1, 0), (2, 1), (6, 5)], CLEAN_INPUT, &[("lost", 1)])]
#[case::run_dropped(&[(1, 0), (6, 5)], CLEAN_INPUT, &[("lost", 2)])]
#[case::last_dropped(&[(1, 0), (2, 1), (5, 2)], CLEAN_INPUT, &[("lost", 1)])]
#[case::all_dropped(&[], CLEAN_INPUT, &[("lost", 4)])]
#[case::dropped_before_it_had_an_id(CLEAN, &[1, 2, 3, 5, 6], &[("lost", 1)])]
#[case::unexpected(CLEAN, &[1, 2, 6], &[("unexpected", 1)])]
#[case::reordered(CLEAN, &[1, 5, 2, 6], &[("reordered", 1)])]
#[case::reordered_far(CLEAN, &[2, 5, 6, 1], &[("reordered", 1)])]
#[case::twice_where_once_was_emitted(CLEAN, &[1, 2, 2, 5, 6], &[("lost", 1)])]
#[case::altered(CLEAN, &[1, 2, 4, 6], &[("lost", 1), ("unexpected", 1)])]
fn a_difference_to_the_input_is_found(
    #[case] chain_of: &[(u64, u64)],
    #[case] emitted: &[u64],
    #[case] faults: &[(&str, u64)],
) {
    Case::new()
        .output("a", chain(chain_of))
        .option("--against", "in", input(emitted))
        .finds(faults, 1);
}

#[test]
fn an_altered_payload_is_found_without_the_input_where_it_was_sent_twice() {
    let case = Case::new()
        .output("a", chain(CLEAN))
        .output("b", sent(5, 2, "a", 99));
    let verdict = case.finds(&[("ids_reused", 1)], 1);
    assert!(
        verdict["examples"][0]["file"]
            .as_str()
            .expect("a name")
            .ends_with('b'),
        "{verdict}"
    );
}

#[test]
fn an_id_of_two_objects_is_found() {
    let case = Case::new().output("a", [chain(CLEAN), sent(5, 0, "b", 1)].concat());
    case.finds(&[("ids_reused", 1)], 1);
}

#[test]
fn an_event_under_the_wrong_object_is_found() {
    let lines = [chain(&CLEAN[..2]), sent(5, 2, "b", 5), chain(&CLEAN[3..])].concat();
    // Without the input, the chains lack event 5 of object `a` and event 2 of object `b`. With the
    // input, event 5 of `a` is lost, and `b` has an unexpected event.
    Case::new().output("a", &lines).finds(&[("lost", 2)], 1);
    Case::new()
        .output("a", &lines)
        .option("--against", "in", input(CLEAN_INPUT))
        .finds(&[("lost", 2), ("unexpected", 1)], 1);
}

#[test]
fn payloads_are_compared_byte_for_byte_but_for_line_breaks() {
    let output = "{\"id\":1,\"prev\":0,\"object\":\"a\",\"event\":{\"n\":  1.0}}\n";
    let same = b"{\"object\":\"a\",\"event\":{\"n\":\r\r1.0}}\n";
    Case::new()
        .output("a", output)
        .option("--against", "in", same)
        .finds(&[], 0);
    let other = "{\"object\":\"a\",\"event\":{\"n\":  1}}\n";
    Case::new()
        .output("a", output)
        .option("--against", "in", other)
        .finds(&[("lost", 1), ("unexpected", 1)], 1);
}

#[test]
fn a_dead_letter_excuses_the_absence_of_its_event() {
    let dead = "{\"id\":5,\"prev\":2,\"object\":\"a\",\"event\":{\"n\":5},\"error\":\"no\",\"attempts\":1}\n";
    // Event 5 is a dead letter, which leaves the last id unchanged. So event 6 follows 2.
    let case = || {
        Case::new()
            .output("a", chain(&[(1, 0), (2, 1), (6, 2)]))
            .option("--against", "in", input(CLEAN_INPUT))
    };
    case().finds(&[("lost", 1)], 1);
    let verdict = case().option("--dead", "dead", dead).finds(&[], 0);
    assert_eq!(verdict["dead"], 1);
    // One worker delivered the event and died. The next worker's delivery of the event was
    // rejected.
    let delivered = [chain(&CLEAN[..3]), sent(6, 2, "a", 6)].concat();
    Case::new()
        .output("a", &delivered)
        .option("--dead", "dead", dead)
        .finds(&[], 0);
    Case::new()
        .output("a", &delivered)
        .finds(&[("forked", 1)], 1);
    // A dead letter does not excuse the absence of another event.
    case()
        .option("--dead", "dead", dead.replace(":5}", ":4}"))
        .finds(&[("lost", 1)], 1);
}

#[test]
fn a_dead_letter_that_is_not_json_is_read() {
    let dead =
        r#"{"id":5,"prev":2,"object":"a","event_text":"{oops","error":"not JSON","attempts":0}"#;
    Case::new()
        .output("a", chain(&[(1, 0), (2, 1), (6, 2)]))
        .option("--dead", "dead", dead)
        .finds(&[], 0);
}

#[test]
fn a_dead_letter_that_is_not_text_is_read() {
    let lines = r#"{"id":null,"prev":null,"object":"","event_text":"","error":"","attempts":null}
{"id":5,"prev":2,"object":"a","event_hex":"ff00","error":"not JSON","attempts":0}"#;
    let case = || Case::new().output("a", chain(&[(1, 0), (2, 1), (6, 2)]));
    assert_eq!(
        case().option("--dead", "dead", lines).finds(&[], 0)["dead"],
        1
    );
    for bad in ["ff0", "zz", "+f"] {
        let output = case()
            .option("--dead", "dead", lines.replace("ff00", bad))
            .run(&[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn without_any_event_there_is_no_verdict() {
    let case = || Case::new().output("a", "").output("b", "\n");
    let output = case().run(&[]);
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(2), 0),
        "{output:?}"
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no event"),
        "{output:?}"
    );
    // The input is empty, and so is the output. So no event is missing, and the verdict is clean.
    let output = case().option("--against", "in", "").run(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.ends_with(b"clean: no events\n"), "{output:?}");
}

#[test]
fn standard_input_is_read_once() {
    let output = Case::new()
        .output("a", chain(CLEAN))
        .run(&["-", "--against", "-"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("only once"),
        "{output:?}"
    );
}

#[test]
fn an_output_that_is_closed_or_full_is_no_panic() {
    let case = Case::new().output("a", chain(CLEAN));
    let program = || {
        let mut program = Command::new(crate::support::program());
        program.arg("verify").args(&case.args);
        program
    };
    let full = fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    let output = program().stdout(full).output().expect("seriatim runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"),
        "{output:?}"
    );
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = program().stdout(writer).output().expect("seriatim runs");
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{output:?}"
    );
}

#[test]
fn a_torn_last_line_is_told_and_breaks_nothing() {
    let torn = [chain(&CLEAN[..2]), "{\"id\":5,\"prev\":2,\"obj".to_owned()].concat();
    Case::new()
        .output("a", torn)
        .output("b", chain(&CLEAN[2..]))
        .finds(&[("torn", 1)], 0);
    // A last line without a line break is a normal event if it is complete.
    Case::new()
        .output("a", chain(CLEAN).trim_end())
        .option("--against", "in", input(CLEAN_INPUT))
        .finds(&[], 0);
    // A torn line in the middle of a file has merged with the next line of the file.
    let glued = ["{\"id\":1,\"pr".to_owned(), chain(CLEAN)].concat();
    Case::new()
        .output("a", glued)
        .finds(&[("lost", 1), ("malformed", 1)], 1);
}

#[test]
fn gzip_and_other_fields_are_read() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(chain(CLEAN).as_bytes()).expect("packed");
    let lines: String = CLEAN_INPUT
        .iter()
        .map(|n| format!("{{\"x\":[\"a\"],\"y\":{{\"z\":{{\"n\":{n}}}}}}}\n"))
        .collect();
    let lines = format!("\u{feff}{lines}");
    let case = Case::new()
        .output("a.gz", packed.finish().expect("packed"))
        .option("--against", "in", lines);
    let output = case.run(&["--object-field", "/x/0", "--event-field", "/y/z"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn members_that_are_not_known_are_ignored() {
    let line =
        r#"{"v":2,"event":[1],"object":"\u0061","partition":0,"prev":0,"id":9007199254740991}"#;
    Case::new()
        .output("a", line)
        .option("--against", "in", r#"{"object":"a","event":[1]}"#)
        .finds(&[], 0);
}

#[test]
fn what_cannot_be_read_is_told_apart_from_what_is_broken() {
    for case in [
        Case::new().output("a", "not JSON\n"),
        Case::new()
            .output("a", chain(CLEAN))
            .option("--against", "in", "not JSON\n"),
        Case::new()
            .output("a", chain(CLEAN))
            .option("--against", "in", "{\"object\":\"a\"}\n"),
        Case::new().output("a", chain(CLEAN)).option(
            "--dead",
            "dead",
            "{\"id\":1,\"object\":\"a\"}\n",
        ),
    ] {
        let output = case.run(&[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8(output.stderr).expect("text");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.contains(case.dir.path().to_str().expect("a name")),
            "{message}"
        );
    }
    let mut missing = Case::new();
    missing
        .args
        .push(missing.path("missing").display().to_string());
    assert_eq!(missing.run(&[]).status.code(), Some(2));
}

#[test]
fn many_differences_are_counted_too() {
    // The exact comparison cannot handle so many differences: all events are reversed, and a tenth
    // is missing.
    let numbers: Vec<u64> = (1..=4000).collect();
    let output: String = numbers
        .iter()
        .map(|id| sent(*id, id - 1, "a", 4001 - id))
        .collect();
    let (verdict, code) = Case::new()
        .output("a", output)
        .option("--against", "in", input(&(1..=4400).collect::<Vec<_>>()))
        .verdict();
    assert_eq!(
        (
            code,
            &verdict["lost"],
            &verdict["reordered"],
            &verdict["unexpected"]
        ),
        (1, &400.into(), &3999.into(), &0.into())
    );
}
