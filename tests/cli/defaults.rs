//! Each default stated in the documentation or the help is the real one. Story: rustdoc once said
//! 64 slots instead of 256.

use std::collections::HashMap;
use std::process::Command;

use seriatim::worker::{EventLog, WorkerConfig};

/// Returns the fields of a value with their values, as printed by `{:?}`.
fn fields(value: &impl std::fmt::Debug) -> HashMap<String, String> {
    let text = format!("{value:#?}");
    let own = text.lines().filter_map(|line| {
        line.strip_prefix("    ")
            .filter(|line| !line.starts_with(' '))
    });
    own.filter_map(|line| line.trim_end_matches(',').split_once(": "))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Converts a stated value to the form of `{:?}`: `5 s` to `5s`, `1 MiB` to `1048576`, `100,000` to
/// `100000`. None for words.
fn value_of(stated: &str) -> Option<String> {
    let mut words = stated
        .split([' ', '.', ';', ':'])
        .filter(|word| !word.is_empty());
    let number = words.next()?.replace(',', "");
    if matches!(stated.trim_end_matches('.'), "no" | "yes") {
        return Some((number == "yes").to_string());
    }
    let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = if digits == number {
        words.next().unwrap_or_default()
    } else {
        &number[digits.len()..]
    };
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "ms" => format!("{number}ms"),
        "s" => format!("{number}s"),
        "min" | "m" | "minute" | "minutes" => format!("{}s", number * 60),
        "h" | "hour" | "hours" => format!("{}s", number * 3600),
        "KiB" => (number << 10).to_string(),
        "MiB" => (number << 20).to_string(),
        _ => number.to_string(),
    })
}

/// Returns the settings of a source file whose documentation states a default: each name with the
/// stated value.
fn documented(source: &str) -> Vec<(String, String)> {
    let (mut all, mut doc) = (Vec::new(), String::new());
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push_str(text);
            continue;
        }
        let named = line
            .strip_prefix("pub fn ")
            .or_else(|| line.strip_prefix("pub "));
        let name = named
            .and_then(|rest| rest.split([':', '(', '<']).next())
            .unwrap_or_default();
        let stated = ["Default: ", "default: ", "default "]
            .iter()
            .find_map(|word| doc.rsplit_once(word));
        if let (Some((_, stated)), false) = (stated, name.is_empty() || name.contains(' ')) {
            all.push((name.to_owned(), stated.to_owned()));
        }
        doc.clear();
    }
    all
}

/// Compares the stated defaults with the real defaults. Returns the number of comparisons.
fn compare(place: &str, stated: &[(String, String)], real: &HashMap<String, String>) -> usize {
    let both = stated
        .iter()
        .filter_map(|(name, stated)| Some((name, stated, value_of(stated)?, real.get(name)?)));
    both.map(|(name, stated, value, real)| {
        assert_eq!(&value, real, "{place}: {name} states {stated:?}")
    })
    .count()
}

#[test]
fn the_documentation_states_the_real_defaults() {
    let config = fields(&WorkerConfig::default());
    let compared = compare(
        "config.rs",
        &documented(include_str!("../../src/worker/config.rs")),
        &config,
    );
    assert!(compared >= 12, "{compared}");
    let compared = compare(
        "mod.rs",
        &documented(include_str!("../../src/worker/mod.rs")),
        &config,
    );
    assert!(compared >= 5, "{compared}");
    let compared = compare(
        "advance.rs",
        &documented(include_str!("../../src/wire/worker/advance.rs")),
        &fields(&EventLog::default()),
    );
    assert!(compared >= 1, "{compared}");
}

#[test]
fn the_help_of_the_worker_states_the_real_defaults() {
    let help = Command::new(crate::support::program())
        .args(["worker", "--help"])
        .output()
        .expect("the program runs");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    let (mut stated, mut name) = (Vec::new(), String::new());
    for line in help.lines().map(str::trim) {
        if let Some(option) = line.strip_prefix("--") {
            name = option
                .split([' ', '='])
                .next()
                .unwrap_or_default()
                .replace('-', "_");
        } else if let Some((_, value)) = line.split_once("[default: ") {
            stated.push((name.clone(), value.trim_end_matches(']').to_owned()));
        }
    }
    let compared = compare("worker --help", &stated, &fields(&WorkerConfig::default()));
    assert!(compared >= 5, "{compared}: {stated:?}");
}
