//! Tests `--watch`: a command prints its output again and again.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::Redis;

fn watching(redis: &Redis, args: &str) -> Child {
    let mut program = redis.command(args);
    program
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs")
}

/// Tests that `--watch` prints each look as one line, and that a later line shows the change.
#[tokio::test]
async fn stats_are_shown_again_and_again() {
    let (redis, console) = Redis::start().with_console().await;
    let mut program = watching(&redis, "stats --json --watch=100ms");
    let mut lines = BufReader::new(program.stdout.take().expect("output")).lines();
    let mut next = || {
        serde_json::from_str::<Value>(&lines.next().expect("a line").expect("text")).expect("JSON")
            ["markers"]
            .clone()
    };
    assert_eq!(next(), 0);
    console.emit("work:1", "1").await;
    let mut looks = 0;
    while next() != 1 {
        looks += 1;
        assert!(looks < 100, "it is never shown");
    }
    // The program ends when no process reads its output any more.
    drop(lines);
    assert!(program.wait().expect("it ends").success());
}

/// Tests that the command reports an outage of Redis, and that it prints again after the outage.
#[tokio::test]
async fn looks_go_on_after_an_outage() {
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    let mut program = watching(&redis, "inspect work:1 --watch=100ms");
    let mut lines = BufReader::new(program.stdout.take().expect("output"))
        .lines()
        .map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("object     work:1")));
    redis.server().kill();
    let mut errors = BufReader::new(program.stderr.take().expect("errors"));
    let mut message = String::new();
    errors.read_line(&mut message).expect("text");
    assert!(message.contains("Redis"), "{message}");
    redis.server().restart();
    // The command printed only a few lines before the outage, so some of the 30 lines come after
    // it. If the program prints no more, the thread kills it, so that the test ends.
    let pid = rustix::process::Pid::from_child(&program);
    let ending = std::thread::spawn(move || {
        std::thread::sleep(crate::support::console::PATIENCE);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    });
    assert_eq!(
        lines
            .filter(|line| line.starts_with("object     work:1"))
            .take(30)
            .count(),
        30
    );
    drop(ending);
    program.kill().expect("it runs");
    program.wait().expect("it ends");
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("text");
}

#[test]
fn a_wrong_interval_and_a_wrong_url_end_it_at_once() {
    for (args, code) in [
        (&["stats", "--watch=1ms"][..], 2),
        (&["stats", "--watch=2h"], 2),
        (&["--redis", "localhost:1", "stats", "--watch"], 3),
    ] {
        let output = Command::new(crate::support::program())
            .args(args)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    }
}
