//! `seriatim emit`, the command: one event, files of events, and its messages when it stops early.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use redis::Commands as _;

use crate::support::{Redis, assert_matches, until};

/// A Redis, a connection to it, and a directory for files.
struct Bench {
    redis: Redis,
    connection: redis::Connection,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(redis: Redis) -> Self {
        let client = redis::Client::open(redis.url()).expect("a Redis URL");
        let connection = client.get_connection().expect("Redis answers");
        Self {
            redis,
            connection,
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(crate::support::program());
        command
            .args([
                "emit",
                "--redis",
                self.redis.url(),
                "--namespace",
                self.redis.namespace(),
            ])
            .args(args);
        command
            .env_remove("SERIATIM_REDIS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn emit(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program runs")
    }

    /// Runs `seriatim emit` with this text on standard input.
    fn emit_from_input(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input).expect("the program reads");
        drop(stdin);
        child.wait_with_output().expect("the program ends")
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// Returns an object's queue, oldest event first.
    fn queue(&mut self, object: &str) -> Vec<String> {
        let mut events: Vec<String> = self
            .connection
            .lrange(self.redis.keys().events(object), 0, -1)
            .expect("a list");
        events.reverse();
        events
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed
        .write_all(bytes)
        .and_then(|()| packed.finish())
        .expect("writing to memory")
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Checks the exit code, and returns the one line on standard error.
#[track_caller]
fn stderr(output: &Output, exit: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(exit), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    text
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn one_event_with_subevents_and_data_is_emitted_quietly() {
    let mut bench = Bench::new(Redis::start());
    let output = bench.emit(&["work:1", "{\"n\": 1.0}", "2", "-3", "--data", "{}"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b""[..], &b""[..])
    );
    assert_eq!(bench.queue("work:1"), ["{\"n\": 1.0}", "2", "-3"]);
    let keys = bench.redis.keys().clone();
    assert_eq!(
        bench
            .connection
            .get::<_, String>(keys.data("work:1"))
            .expect("GET"),
        "{}"
    );
    assert_eq!(
        bench
            .connection
            .lrange::<_, Vec<String>>(keys.objects_with_events(), 0, -1)
            .expect("a list"),
        ["work:1"]
    );
}

#[test]
fn bad_usage_is_explained() {
    let bench = Bench::new(Redis::start());
    for args in [
        &[][..],
        &["work:1"],
        &["work:1", "1", "--from", "x"],
        &["--data", "1", "--from", "x"],
        &["--from", "-", "--object-field", "x"],
    ] {
        let output = bench.emit(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_has(&String::from_utf8_lossy(&output.stderr), &["--help"]);
    }
    assert_has(
        &stderr(&bench.emit(&["work:1", "created"]), 2),
        &["not JSON", "quote"],
    );
    assert_has(&stderr(&bench.emit(&["", "1"]), 2), &["must not be empty"]);
    assert_has(
        &stderr(&bench.emit(&["--from", "/no/such/file"]), 2),
        &["/no/such/file", "No such file"],
    );
    assert_has(&stderr(&bench.emit(&["--from", "/"]), 2), &["directory"]);
}

const LINES: &str = "\u{feff}{\"object\":\"a\",\"event\":{\"n\":1,  \"big\": 90071992547409931234, \"a\":1}}\r\n\n  \n\
                     {\"event\":2,\"object\":\"b\",\"other\":[{\"event\":0}],\"data\":null,\"subevents\":[]}\n{\"object\":\"a\",\"event\":0,\"event\":\"\\u00e9\"}";
const EVENTS_OF_A: [&str; 2] = [
    "{\"n\":1,  \"big\": 90071992547409931234, \"a\":1}",
    "\"\\u00e9\"",
];

#[test]
fn a_file_is_emitted_byte_for_byte_plain_and_gzip_and_from_standard_input() {
    let mut bench = Bench::new(Redis::start());
    // The file has two gzip members. The first member ends inside a line.
    let (front, back) = LINES.as_bytes().split_at(40);
    let packed = [gzip(front), gzip(back)].concat();
    let plain = bench.file("plain.ndjson", LINES.as_bytes());
    // Gzip is recognized by content, not by file name.
    let zipped = bench.file("zipped.ndjson", &packed);
    let outputs = [
        bench.emit(&["--from", text(&plain)]),
        bench.emit(&["--from", text(&zipped)]),
        bench.emit_from_input(&["--from", "-"], LINES.as_bytes()),
        bench.emit_from_input(&["--from", "-"], &packed),
    ];
    for output in &outputs {
        assert_has(&stderr(output, 0), &["3 events", "up to 5 are done"]);
        assert!(output.stdout.is_empty());
    }
    assert_eq!(bench.queue("a"), EVENTS_OF_A.repeat(4));
    assert_eq!(bench.queue("b"), ["2"].repeat(4));
    let empty = bench.file("empty", b"");
    assert_has(
        &stderr(&bench.emit(&["--from", text(&empty)]), 0),
        &["0 events"],
    );
}

#[test]
fn names_and_events_are_found_by_pointer() {
    let mut bench = Bench::new(Redis::start());
    let line = br#"{"key":{"a/b":["x","work:1"]},"value": 1.50 }"#;
    let args = [
        "--from",
        "-",
        "--object-field",
        "/key/a~1b/1",
        "--event-field",
    ];
    assert_eq!(
        bench
            .emit_from_input(&[&args[..], &["/value"]].concat(), line)
            .status
            .code(),
        Some(0)
    );
    assert_eq!(
        bench
            .emit_from_input(&[&args[..], &[""]].concat(), line)
            .status
            .code(),
        Some(0)
    );
    assert_eq!(
        bench.queue("work:1"),
        ["1.50", str::from_utf8(line).expect("UTF-8")]
    );
}

#[test]
fn it_stops_at_the_first_bad_line_and_goes_on_behind_it() {
    let mut bench = Bench::new(Redis::start());
    let large = format!(
        "{{\"object\":\"a\",\"event\":\"{}\"}}",
        "x".repeat(1024 * 1024)
    );
    let long = format!(
        "{{\"object\":\"a\",\"event\":1}}{}",
        " ".repeat(64 * 1024 * 1024)
    );
    let bad = [
        ("{\"object\":\"a\"", "not JSON"),
        ("{\"object\":\"a\",\"event\":\"\u{1}\"}", "not JSON"),
        ("{\"object\":\"a\"}", "no event at /event"),
        ("{\"event\":1}", "no object at /object"),
        ("{\"object\":7,\"event\":1}", "not a string: 7"),
        ("{\"object\":\"\",\"event\":1}", "must not be empty"),
        ("[]", "no object at /object"),
        (
            "{\"object\":\"a\",\"event\":1,\"subevents\":[2]}",
            "the member \"subevents\"",
        ),
        (
            "{\"object\":\"a\",\"event\":1,\"data\":{}}",
            "the member \"data\"",
        ),
        (
            "{\"object\":\"a\",\"event\":1,\"idempotency_key\":\"k\"}",
            "the member \"idempotency_key\"",
        ),
        (&large, "1048578 bytes"),
        (&long, "more than 67108864 bytes"),
    ];
    for (number, (line, why)) in bad.iter().enumerate() {
        let (object, good) = (format!("o{number}"), |n: usize| {
            format!("{{\"object\":\"o{number}\",\"event\":{n}}}\n")
        });
        let lines = [
            good(1),
            "\n".to_owned(),
            good(3),
            format!("{line}\n"),
            good(5),
        ]
        .concat();
        let path = bench.file("bad.ndjson", lines.as_bytes());
        let message = stderr(&bench.emit(&["--from", text(&path)]), 2);
        assert_has(
            &message,
            &[
                "bad.ndjson:4: ",
                why,
                "3 lines are acknowledged; continue with --skip 3 ",
                "--skip 4",
            ],
        );
        assert_eq!(bench.queue(&object), ["1", "3"]);
        assert_eq!(
            bench
                .emit(&["--from", text(&path), "--skip", "4"])
                .status
                .code(),
            Some(0)
        );
        assert_eq!(bench.queue(&object), ["1", "3", "5"]);
        let message = stderr(&bench.emit(&["--from", text(&path), "--skip", "2"]), 2);
        assert_has(
            &message,
            &["1 line is acknowledged (3 to 3); continue with --skip 3 "],
        );
    }
    let path = bench.file("short.ndjson", b"x\ny\n");
    assert_has(
        &stderr(&bench.emit(&["--from", text(&path), "--skip", "9"]), 0),
        &["2 lines, all skipped"],
    );
    let path = bench.file("torn.gz", &gzip(LINES.as_bytes())[..60]);
    let message = stderr(&bench.emit(&["--from", text(&path)]), 2);
    assert_has(
        &message,
        &[
            "torn.gz after line 0: ",
            "ends too early",
            "emit it again when the file is complete",
        ],
    );
    assert!(!message.contains("--skip"), "{message}");
}

fn numbered(lines: usize) -> String {
    (1..=lines)
        .map(|n| format!("{{\"object\":\"o{}\",\"event\":{n}}}\n", n % 7))
        .collect()
}

#[test]
fn a_file_of_many_batches_keeps_the_order() {
    let mut bench = Bench::new(Redis::start());
    let path = bench.file("many.gz", &gzip(numbered(5000).as_bytes()));
    assert_has(
        &stderr(&bench.emit(&["--from", text(&path)]), 0),
        &["5000 events", "up to 5000 are done"],
    );
    for object in 0..7 {
        let expected: Vec<_> = (1..=5000)
            .filter(|n| n % 7 == object)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(bench.queue(&format!("o{object}")), expected);
    }
}

#[test]
fn a_redis_that_refuses_in_mid_way_is_told_with_the_lines_done() {
    let mut bench = Bench::new(Redis::own(&[]));
    let keys = bench.redis.keys().clone();
    let path = bench.file("many.ndjson", numbered(3000).as_bytes());
    bench
        .connection
        .set::<_, _, ()>(keys.events("o3"), "a string")
        .expect("SET");
    let message = stderr(&bench.emit(&["--from", text(&path)]), 3);
    let parts = [
        "many.ndjson:3: ",
        "o3:events has a wrong type",
        "the lines 3 to 1024 of o3 are not emitted",
        "--skip 1024",
    ];
    assert_has(&message, &parts);
    assert_eq!(bench.queue("o4").len(), 146);

    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("1")
        .exec(&mut bench.connection)
        .expect("CONFIG SET");
    let message = stderr(&bench.emit(&["--from", text(&path), "--skip", "10"]), 3);
    assert_has(
        &message,
        &[
            "many.ndjson:11: ",
            "out of memory",
            "no line is acknowledged; continue with --skip 10",
        ],
    );
    assert_has(&stderr(&bench.emit(&["a", "1"]), 3), &["out of memory"]);
}

#[test]
fn lines_without_an_answer_are_named() {
    let mut bench = Bench::new(Redis::own(&[]));
    let path = bench.file("many.ndjson", numbered(30).as_bytes());
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(60_000)
        .arg("WRITE")
        .exec(&mut bench.connection)
        .expect("CLIENT PAUSE");
    let message = stderr(&bench.emit(&["--from", text(&path), "--skip", "3"]), 5);
    let parts = [
        "many.ndjson:4: ",
        "unknown",
        "lines 4 to 30 were sent together",
        "continue with --skip 3 if",
        "--skip 30 if it does",
    ];
    assert_has(&message, &parts);
}

#[test]
fn without_redis_it_says_where_it_looked_and_shows_no_password() {
    let mut redis = Redis::own(&[]);
    redis.server().kill();
    let program = crate::support::program();
    let emit = |url: &str| {
        Command::new(program)
            .args(["emit", "--redis", url, "a", "1"])
            .output()
            .expect("the program runs")
    };
    assert_has(
        &stderr(&emit(redis.url()), 3),
        &[redis.url().trim_start_matches("unix://"), "is it running?"],
    );
    let message = stderr(&emit("redis://:hush@127.0.0.1:1"), 3);
    assert_has(&message, &["127.0.0.1:1"]);
    for url in [
        "redis://:hush@127.0.0.1:1",
        "redis://u:hush@host:x",
        "ftp://:hush@host",
        "redis://:hu#hush@host",
    ] {
        let output = emit(url);
        assert_matches!(output.status.code(), Some(2 | 3), "{url}");
        let said = [output.stdout, output.stderr].concat();
        assert!(
            !String::from_utf8_lossy(&said).contains("hush"),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

/// Tests that a line on standard input is emitted as soon as it arrives. After Ctrl-C, the command
/// prints how many lines it has emitted.
#[tokio::test]
async fn lines_that_trickle_in_are_emitted_at_once_until_ctrl_c() {
    let bench = Bench::new(Redis::start());
    let connection = bench.redis.connect().await;
    let mut child = bench
        .command(&["--from", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    for n in 1..=3 {
        writeln!(stdin, "{{\"object\":\"a\",\"event\":{n}}}")
            .and_then(|()| stdin.flush())
            .expect("the program reads");
        let key = bench.redis.keys().events("a");
        until("the line is emitted", Duration::from_secs(10), || async {
            let length: u64 = redis::cmd("LLEN")
                .arg(&key)
                .query_async(&mut connection.clone())
                .await
                .expect("LLEN");
            (length == n).then_some(())
        })
        .await;
    }
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(interrupt.success());
    let output = child.wait_with_output().expect("the program ends");
    drop(stdin);
    assert_has(
        &stderr(&output, 1),
        &["standard input: interrupted; 3 lines are acknowledged; continue with --skip 3"],
    );
}

/// Clients in other languages have a copy of the scripts that producers call.
#[test]
fn the_scripts_of_the_clients_are_those_of_the_program() {
    for script in ["emit", "cancel"] {
        let output = Command::new(crate::support::program())
            .args(["script", script])
            .output()
            .expect("the program runs");
        let path = format!(
            "{}/clients/scripts/{script}.lua",
            env!("CARGO_MANIFEST_DIR")
        );
        let copy = std::fs::read(&path).unwrap_or_default();
        assert!(
            output.status.success() && output.stdout == copy,
            "run: seriatim script {script} > clients/scripts/{script}.lua, and copy it to the clients"
        );
    }
}
