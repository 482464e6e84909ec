//! Tests that the files of `deploy/` fit the program.

use std::path::Path;
use std::process::Command;

/// Returns the names and texts of the systemd units.
fn units() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd");
    let files = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|file| file.expect("a file").path());
    let units = files.filter(|path| path.extension().is_some_and(|kind| kind == "service"));
    let read = |path: std::path::PathBuf| {
        (
            path.display().to_string(),
            std::fs::read_to_string(path).expect("text"),
        )
    };
    units.map(read).collect()
}

fn value<'a>(unit: &'a str, key: &str) -> Option<&'a str> {
    unit.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the default of a flag, in seconds, from the help of a command.
fn default_seconds(command: &str, flag: &str) -> u64 {
    let help = Command::new(crate::support::program())
        .args([command, "--help"])
        .output()
        .expect("it runs");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    let (_, rest) = help
        .split_once(&format!("--{flag} <TIME>"))
        .expect("the flag");
    let (_, rest) = rest.split_once("[default: ").expect("a default");
    let (text, _) = rest.split_once("s]").expect("seconds");
    text.parse().expect("a number")
}

#[test]
fn the_units_call_the_program_with_flags_that_it_has() {
    let units = units();
    assert_eq!(units.len(), 4);
    for (name, unit) in units {
        let call = value(&unit, "ExecStart")
            .expect("a call")
            .strip_prefix("/usr/bin/seriatim ")
            .expect("the program");
        let config = tempfile::NamedTempFile::new().expect("a file");
        let path = config.path().display().to_string();
        let words: Vec<&str> = call
            .split(' ')
            .map(|word| {
                if word.starts_with("/etc/seriatim/") {
                    &path
                } else {
                    word
                }
            })
            .collect();
        let output = Command::new(crate::support::program())
            .args(&words)
            .arg("--help")
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{name}: {output:?}");
        let command = words.last().expect("a command");
        let seconds =
            |key: &str| value(&unit, key).map(|text| text.parse::<u64>().expect("seconds"));
        if *command != "exporter" {
            assert!(
                seconds("TimeoutStopSec") > Some(default_seconds(command, "grace")),
                "{name}"
            );
        }
        if *command == "worker" {
            assert!(
                seconds("WatchdogSec") > Some(default_seconds(command, "stall-max")),
                "{name}"
            );
            // A worker waits for Redis without a limit.
            assert_eq!(value(&unit, "TimeoutStartSec"), Some("infinity"), "{name}");
        }
        // The program ends with exit code 2 if its configuration is wrong. A restart does not
        // repair this.
        assert_eq!(
            value(&unit, "RestartPreventExitStatus"),
            Some("2"),
            "{name}"
        );
    }
}

/// Tests that the table in the documents has each alert of the rules, in the same order, and no
/// other alert.
#[test]
fn each_alert_has_its_row() {
    let rules = include_str!("../../deploy/prometheus/seriatim.rules.yml");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let page = include_str!("../../docs/operations.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `Seriatim"));
    let rows: Vec<String> = rows
        .map(|row| format!("Seriatim{}", row.split('`').next().expect("a name")))
        .collect();
    assert!(alerts.len() >= 15 && alerts == rows, "{alerts:?} {rows:?}");
    // Each link to the runbook leads to a heading.
    for (at, _) in page.match_indices("](#") {
        let rest = page[at + 3..].split(')').next().unwrap_or_default();
        let heading = page
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .map(|line| line.trim_start_matches('#').trim());
        let mut links = heading.map(|text| {
            text.to_lowercase()
                .replace([',', '`'], "")
                .replace(' ', "-")
        });
        assert!(links.any(|link| link == rest), "no heading for #{rest}");
    }
}

/// Returns, for each container in the manifests, its manifest's text and its arguments.
fn containers() -> Vec<(String, Vec<String>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes");
    let mut all = Vec::new();
    for file in std::fs::read_dir(dir).expect("a directory") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let Some((_, rest)) = text.split_once("          args:") else {
            continue;
        };
        let list: Vec<&str> = match rest.trim_start_matches(' ').strip_prefix('[') {
            Some(inline) => inline
                .split(']')
                .next()
                .expect("its end")
                .split(", ")
                .collect(),
            None => rest
                .lines()
                .skip(1)
                .map_while(|line| line.strip_prefix("            - "))
                .collect(),
        };
        let arguments = list
            .into_iter()
            .map(|word| word.replace("$(POD_NAME)", "worker-0"))
            .collect();
        all.push((text, arguments));
    }
    all
}

#[test]
fn the_manifests_call_the_program_with_flags_that_it_has() {
    let containers = containers();
    assert_eq!(containers.len(), 3);
    for (text, arguments) in containers {
        let output = Command::new(crate::support::program())
            .args(&arguments)
            .arg("--help")
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        // The probes use the port on which the program listens.
        let address = arguments.iter().find_map(|word| {
            word.strip_prefix("--listen=")
                .or(word.strip_prefix("--http="))
        });
        let port = address
            .and_then(|address| address.rsplit(':').next())
            .expect("an address");
        assert!(
            text.contains(&format!("containerPort: {port} ")),
            "{arguments:?}"
        );
        assert!(
            text.contains("path: /healthz") && text.contains("path: /readyz"),
            "{arguments:?}"
        );
        if arguments[0] != "exporter" {
            let grace = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: "));
            let grace: u64 = grace.expect("a time").parse().expect("seconds");
            assert!(
                grace > default_seconds(&arguments[0], "grace") + 2,
                "{arguments:?}"
            );
        }
    }
}
