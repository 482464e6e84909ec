//! The cases of `cases.txt`: a clean state is broken by commands, and a repair puts it right. A case
//! has the commands, the steps of the repair, and each key that the repair changes, before and after
//! it.
//!
//! With `SERIATIM_WRITE_CASES=1` the tests write what they have found into the file. Read the
//! difference before you commit it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use redis::{Value, cmd, from_redis_value_ref};
use rstest::rstest;
use seriatim::control::Repair;

use super::{doing, lines, repair};
use crate::check::{broken_by, told};
use crate::state::State;
use crate::support::Redis;

/// The option of a case in which the tag of a worker may be removed before the repair of its object does
/// so. That depends on the order in which Redis returns keys.
const ANY_ORDER: &str = "any-order";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guards/repair/cases.txt")
}

/// One case of the file.
struct Case<'a> {
    /// The line with the commands, as for [`broken_by`]. `|` and options of the repair may follow.
    given: &'a str,
    /// The other lines.
    expected: Vec<&'a str>,
}

/// Returns the text of a section, without its heading.
fn section<'a>(text: &'a str, name: &str) -> &'a str {
    let heading = format!("## {name}\n");
    let from = text
        .find(&heading)
        .unwrap_or_else(|| panic!("cases.txt has no section {name}"))
        + heading.len();
    text[from..].split("\n## ").next().unwrap_or_default()
}

fn cases(section: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for line in section.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("> "), cases.last_mut()) {
            (Some(given), _) => cases.push(Case {
                given,
                expected: Vec::new(),
            }),
            (None, Some(case)) => case.expected.push(line),
            (None, None) => panic!("cases.txt: {line:?} comes before the first case"),
        }
    }
    cases
}

/// Returns the repair that the words after `|` ask for.
fn with(words: &str) -> Repair {
    let mut repair = doing();
    for word in words.split_whitespace() {
        match word.split_once('=') {
            Some(("dead", owner)) => repair.dead_owners.push(owner.to_owned()),
            None if word == ANY_ORDER => {}
            Some(("due", ms)) => repair.schedules_due_ms = Some(ms.parse().expect("ms")),
            _ => panic!("cases.txt: unknown option {word}"),
        }
    }
    repair
}

/// Writes times of the last minute as NOW, and a day later as NOW+1d, so that they can be compared.
fn steady(text: &str, now_ms: u64) -> String {
    let mut steady = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[at..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(rest.len(), |end| at + end);
        let number: u64 = rest[at..end].parse().unwrap_or_default();
        let is_now = |ms: u64| ms.abs_diff(now_ms) < 60_000;
        steady += &rest[..at];
        match () {
            () if is_now(number) => steady += "NOW",
            () if is_now(number.saturating_sub(86_400_000)) => steady += "NOW+1d",
            () if is_now(number / 1000) => steady += "NOW_US",
            () => steady += &rest[at..end],
        }
        rest = &rest[end..];
    }
    steady + rest
}

/// Returns the values of an array as texts.
fn texts(value: &Value) -> Vec<String> {
    let all: Vec<Vec<u8>> = from_redis_value_ref(value).expect("an array of texts");
    all.iter()
        .map(|text| String::from_utf8_lossy(text).escape_debug().to_string())
        .collect()
}

/// Returns all keys with their values in one line each, without the namespace.
async fn dump(state: &mut State, now_ms: u64) -> BTreeMap<String, String> {
    let keys: Vec<String> = cmd("KEYS")
        .arg("*")
        .query_async(&mut state.conn)
        .await
        .expect("KEYS");
    let mut all = BTreeMap::new();
    for key in keys {
        let kind: String = cmd("TYPE")
            .arg(&key)
            .query_async(&mut state.conn)
            .await
            .expect("TYPE");
        let command: &[&str] = match kind.as_str() {
            "string" => &["MGET"],
            "list" => &["LRANGE", "0", "-1"],
            "hash" => &["HGETALL"],
            "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
            _ => &["XRANGE", "-", "+"],
        };
        let mut read = cmd(command[0]);
        read.arg(&key).arg(&command[1..]);
        let value: Value = read.query_async(&mut state.conn).await.expect("a value");
        let text = match kind.as_str() {
            "stream" => {
                let rows: Vec<(String, Value)> = from_redis_value_ref(&value).expect("rows");
                rows.iter()
                    .map(|(_, fields)| texts(fields).join(" "))
                    .collect::<Vec<_>>()
                    .join(" | ")
            }
            "hash" | "zset" => {
                let mut pairs: Vec<_> = texts(&value)
                    .chunks(2)
                    .map(|pair| pair.join(" = "))
                    .collect();
                pairs.sort();
                pairs.join(", ")
            }
            _ => texts(&value).join(", "),
        };
        let name = key
            .strip_prefix(state.keys.prefix())
            .unwrap_or(&key)
            .to_owned();
        all.insert(name, steady(&text.replace(state.keys.prefix(), ""), now_ms));
    }
    all
}

/// Returns the keys that differ, before and after.
fn changed(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let mut keys: Vec<_> = before
        .keys()
        .chain(after.keys())
        .filter(|key| before.get(*key) != after.get(*key))
        .collect();
    keys.sort();
    keys.dedup();
    let line = |sign: char, all: &BTreeMap<String, String>, key: &String| {
        all.get(key).map(|value| format!("{sign} {key}: {value}"))
    };
    // The record of the repair has a test of its own.
    let keys = keys.into_iter().filter(|key| *key != "operator.actions");
    keys.flat_map(|key| [line('-', before, key), line('+', after, key)])
        .flatten()
        .collect()
}

/// A repair makes the steps and the changes of the case, and a dry run changes nothing. Further lines
/// have what is not as usual: `planned`, the steps that a dry run tells, if they are others; `check`,
/// what the check finds after the repair; `again`, the steps of a second repair.
#[rstest]
#[tokio::test]
async fn a_repair_makes_these_changes(
    #[values(
        "held",
        "batches",
        "owners",
        "slots",
        "lost",
        "progress",
        "schedules",
        "indexes",
        "types"
    )]
    name: &str,
) {
    let text = std::fs::read_to_string(file()).expect("cases.txt");
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (mut found, mut wrong) = (format!("## {name}\n"), Vec::new());
    let cases = cases(section(&text, name));
    assert!(!cases.is_empty(), "{name}");
    for case in &cases {
        let (commands, options) = case.given.split_once(" | ").unwrap_or((case.given, ""));
        let with = with(options);
        broken_by(
            &mut state,
            &commands.replace("\\n", "\n").replace("\\0", "\0"),
        )
        .await;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("a time");
        let now_ms = u64::try_from(now.as_millis()).expect("ms");
        let before = dump(&mut state, now_ms).await;
        let planned = repair(
            &state,
            &Repair {
                dry_run: true,
                ..with.clone()
            },
        )
        .await;
        assert_eq!(
            changed(&before, &dump(&mut state, now_ms).await),
            [""; 0],
            "{}: a dry run writes nothing",
            case.given
        );
        let done = repair(&state, &with).await;
        let after = dump(&mut state, now_ms).await;
        let steady = |lines: Vec<String>| {
            lines
                .into_iter()
                .map(|line| steady(&line, now_ms))
                .collect::<Vec<_>>()
        };
        let (planned, mut lines_found) = (steady(lines(&planned)), steady(lines(&done)));
        let named = |word: &str, lines: Vec<String>| {
            lines
                .into_iter()
                .map(|line| format!("{word}: {line}"))
                .collect::<Vec<_>>()
        };
        if planned != lines_found {
            lines_found.extend(named("planned", planned));
        }
        lines_found.extend(changed(&before, &after));
        let mut findings = told(&mut state).await;
        findings.sort();
        lines_found.extend(named("check", steady(findings)));
        let again = steady(lines(&repair(&state, &with).await));
        lines_found.extend(named(
            "again",
            again
                .into_iter()
                .filter(|line| !line.starts_with("left "))
                .collect(),
        ));
        if options.contains(ANY_ORDER) {
            lines_found
                .retain(|line| !line.starts_with("removed worker") && !line.starts_with("planned"));
        }
        if lines_found != case.expected {
            wrong.push(format!("> {}\n{}", case.given, lines_found.join("\n")));
        }
        found += &format!("> {}\n{}\n\n", case.given, lines_found.join("\n"));
    }
    if std::env::var_os("SERIATIM_WRITE_CASES").is_some() {
        // The sections run one after the other with --test-threads 1.
        let text = std::fs::read_to_string(file()).expect("cases.txt");
        let old = format!("## {name}\n{}", section(&text, name));
        std::fs::write(file(), text.replace(old.trim_end(), found.trim_end()))
            .expect("cases.txt is written");
    }
    assert!(
        wrong.is_empty(),
        "cases.txt, section {name}, differs:\n{}",
        wrong.join("\n\n")
    );
}
