//! The metrics of a worker and of a namespace.

mod marks;

use std::collections::BTreeSet;
use std::process::{Child, Stdio};

use seriatim::control::By;
use seriatim::control::rules::Kind;
use seriatim::sink::Stop;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::console::PATIENCE;
use crate::support::output::command_at;
use crate::support::process::Process;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

/// Returns the metrics' names in the tables that follow this line: docs/operations.md has the metrics
/// to watch, and docs/lab/operations.md all others.
fn documented(head: &str) -> BTreeSet<String> {
    let pages = [
        include_str!("../../../docs/operations.md"),
        include_str!("../../../docs/lab/operations.md"),
    ];
    let tables: Vec<&str> = pages
        .iter()
        .filter_map(|page| Some(page.split_once(&format!("\n{head}\n"))?.1))
        .collect();
    assert!(!tables.is_empty(), "no page has the table of {head}");
    let rows = tables.iter().flat_map(|table| {
        let table = table.trim_start().lines();
        table.take_while(|line| line.starts_with('|')).skip(2)
    });
    let names = rows.flat_map(|row| {
        let names = row.split('|').nth(1).expect("a cell").split(", ");
        names.map(|name| name.trim().trim_matches('`'))
    });
    let of_process = [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ];
    names.chain(of_process).map(str::to_owned).collect()
}

/// Returns the metrics' names in a scrape, spelled as in the documents.
fn names(scrape: &str) -> BTreeSet<String> {
    let types = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let spelled = types.map(|line| match line.split_once(' ').expect("a type") {
        (name, "counter") => format!("{name}_total"),
        (name, "info") => format!("{name}_info"),
        (name, _) => name.to_owned(),
    });
    spelled.collect()
}

fn series(scrape: &str) -> usize {
    scrape.lines().filter(|line| !line.starts_with('#')).count()
}

/// Returns the value of a series.
#[track_caller]
fn value(scrape: &str, series: &str) -> f64 {
    let found = scrape
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("no {series} in {scrape}"))
        .parse()
        .expect("a number")
}

/// Asks for metrics with a `host` header that names another host, as a scraper in another pod does.
async fn scrape(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: pod.example\r\n\r\n")
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    Some(body.to_owned())
}

/// Returns the address on which the process listens, from its log.
async fn listening(log: impl Fn() -> String) -> String {
    until("it listens", PATIENCE, async || {
        let log = log();
        let (_, rest) = log.split_once("listening address=http://")?;
        rest.contains('\n')
            .then(|| rest.split_whitespace().next().map(str::to_owned))?
    })
    .await
}

/// An exporter process; killed when it is dropped.
struct Exporter {
    child: Child,
    address: String,
    log: NamedTempFile,
    namespace: String,
}

impl Exporter {
    async fn start(redis: &Redis) -> Self {
        Self::start_at(redis.url(), redis).await
    }

    /// Starts an exporter that reaches Redis with this URL, for example as another user.
    async fn start_at(url: &str, redis: &Redis) -> Self {
        let log = NamedTempFile::new().expect("a log");
        let namespace = redis.namespace().to_owned();
        let options = "exporter --listen 127.0.0.1:0 --depth=many,few,more:1 --check";
        let child = command_at(url, &format!("--namespace {namespace} {options}"))
            .stdout(Stdio::null())
            .stderr(log.reopen().expect("a log"))
            .spawn()
            .expect("it starts");
        let address = listening(|| std::fs::read_to_string(log.path()).expect("a log")).await;
        Self {
            child,
            address,
            log,
            namespace,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("a log")
    }

    /// Scrapes until the series of this namespace has this value, and returns that scrape.
    async fn until_of(&self, name: &str, label: &str, wanted: f64) -> String {
        let series = labelled(&self.namespace, name, label);
        self.until(&series, wanted).await
    }

    /// Scrapes, and returns the scrape.
    async fn scrape(&self) -> String {
        scrape(&self.address).await.expect("a scrape")
    }

    /// Scrapes until the series has this value, and returns that scrape.
    async fn until(&self, series: &str, wanted: f64) -> String {
        until(&format!("{series} is {wanted}"), PATIENCE, async || {
            let scrape = scrape(&self.address).await?;
            let is_there = scrape
                .lines()
                .any(|line| line.starts_with(&format!("{series} ")));
            (is_there && (value(&scrape, series) - wanted).abs() < 1e-9).then_some(scrape)
        })
        .await
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a metric's name with its labels, of which the first is the namespace.
fn of(redis: &Redis, name: &str, label: &str) -> String {
    labelled(redis.namespace(), name, label)
}

fn labelled(namespace: &str, name: &str, label: &str) -> String {
    let more = if label.is_empty() {
        String::new()
    } else {
        format!(",{label}")
    };
    format!("{name}{{namespace=\"{namespace}\"{more}}}")
}

/// Returns the value of a series of this namespace.
#[track_caller]
fn value_of(redis: &Redis, scrape: &str, name: &str, label: &str) -> f64 {
    value(scrape, &of(redis, name, label))
}

#[tokio::test]
async fn a_worker_shows_the_documented_metrics() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = Process::start(&redis, "w", "null", &["--http", "127.0.0.1:0"]);
    let address = listening(|| worker.log()).await;
    console
        .emit_all("work:1", (0..50).map(|n| n.to_string()))
        .await;
    let delivered = of(&redis, "seriatim_events_total", "outcome=\"delivered\"");
    let seen = until("50 events are counted", PATIENCE, async || {
        let scrape = scrape(&address).await?;
        (value(&scrape, &delivered) >= 50.0).then_some(scrape)
    })
    .await;
    assert_eq!(names(&seen), documented("Metrics of a worker:"));
    assert!(series(&seen) < 360, "{}", series(&seen));
    assert_eq!(
        value_of(&redis, &seen, "seriatim_event_attempts_sum", ""),
        50.0
    );
    assert_eq!(
        value_of(
            &redis,
            &seen,
            "seriatim_event_attempts_bucket",
            "le=\"+Inf\""
        ),
        50.0
    );
    assert_eq!(value_of(&redis, &seen, "seriatim_sink_up", ""), 1.0);
    let slots = ["free", "asked", "delivering", "reported", "parked"];
    let slots = slots.map(|state| {
        let label = format!("state=\"{state}\"");
        value_of(&redis, &seen, "seriatim_slots", &label)
    });
    assert_eq!(slots.iter().sum::<f64>(), 256.0);
    assert!(value(&seen, "process_resident_memory_bytes") > 1e6 && seen.ends_with("# EOF\n"));
}

/// Tests the further metrics of a worker with programs: one that handles its event, and one that ends
/// with it, until the object is held.
#[tokio::test]
async fn a_worker_with_programs_has_their_metrics() {
    let dies = "sh -c 'echo {\\\"type\\\":\\\"hello\\\",\\\"protocol\\\":1}; read -r a; read -r b'";
    let lives = format!(
        "python3 -B '{}/examples/handlers.py'",
        env!("CARGO_MANIFEST_DIR")
    );
    for (program, crashes) in [(dies, 2.0), (&lives, 0.0)] {
        let (redis, console) = Redis::start().with_console().await;
        let sink = format!("exec:{program}");
        let options = ["--http", "127.0.0.1:0", "--crashes-max", "2"];
        let worker = Process::start(&redis, "w", &sink, &options);
        let address = listening(|| worker.log()).await;
        console.emit("a", "1").await;
        let seen = until("the program is ready again", PATIENCE, async || {
            let scrape = scrape(&address).await?;
            let of = |name: &str| value_of(&redis, &scrape, name, "");
            let is_over = console.number(&console.keys.next_event_id()).await == 1
                && of("seriatim_program_crashes_total") == crashes
                && of("seriatim_programs_ready") == 1.0
                && of("seriatim_program_batches") == 0.0;
            is_over.then_some(scrape)
        })
        .await;
        let more = documented("Further metrics of a worker with the sink `exec` or `stdio`:");
        let all: BTreeSet<_> = documented("Metrics of a worker:")
            .union(&more)
            .cloned()
            .collect();
        assert_eq!(names(&seen), all);
        assert_eq!(value_of(&redis, &seen, "seriatim_programs", ""), 1.0);
        let starts = value_of(&redis, &seen, "seriatim_program_starts_total", "");
        assert_eq!(starts, crashes + 1.0);
    }
}

/// Tests the metrics of a namespace that has something of each kind.
#[tokio::test]
async fn an_exporter_shows_the_documented_metrics() {
    let (redis, console) = Redis::start().with_console().await;
    let exporter = Exporter::start(&redis).await;
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| match offer.text().as_str() {
        "\"hangs\"" => Act::Wait(waits.clone()),
        "\"bad\"" => Act::Stop(Stop::rejected("bad")),
        "\"down\"" => Act::Stop(Stop::unavailable("down")),
        "\"later\"" => Act::Stop(Stop::transient("later")),
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    let control = redis.control().await;
    let by = By {
        who: "ada",
        why: "a test",
    };
    let paused = "paused:*".parse().expect("a selector");
    let set = control.set_rule(by, Kind::Pause, &paused, None).await;
    set.expect("set");
    for event in ["bad", "later", "paused"] {
        let text = format!("\"{event}\"");
        console.emit(&format!("{event}:1"), text).await;
    }
    for (series, label, wanted) in [
        ("seriatim_dead_letters", "", 1.0),
        ("seriatim_dead_letters_written_total", "", 1.0),
        ("seriatim_objects_held", "waits_for=\"time\"", 1.0),
        ("seriatim_objects_held", "waits_for=\"operator\"", 0.0),
        ("seriatim_objects_paused", "", 1.0),
        ("seriatim_rules", "state=\"in_force\"", 1.0),
        ("seriatim_operator_actions_total", "", 1.0),
        ("seriatim_workers", "state=\"alive\"", 1.0),
        ("seriatim_slots_registered", "", 4.0),
        ("seriatim_markers", "", 0.0),
        ("seriatim_up", "", 1.0),
        // The first check may end after the first scrape.
        ("seriatim_check_violations", "", 0.0),
    ] {
        exporter.until_of(series, label, wanted).await;
    }
    // The object in hand when the worker dies.
    console.emit("hangs:1", "\"hangs\"").await;
    gate.until_reached(1).await;
    console.emit("down:1", "\"down\"").await;
    let seen = exporter
        .until_of("seriatim_workers_sink_down", "", 1.0)
        .await;
    let mut documented_names = documented("Metrics of a namespace:");
    documented_names.extend(documented("With `--depth` also:"));
    documented_names.extend(documented("With `--check` also:"));
    documented_names.insert("seriatim_build_info".to_owned());
    assert_eq!(names(&seen), documented_names);
    assert!(series(&seen) < 60, "{}", series(&seen));
    assert!(value_of(&redis, &seen, "seriatim_dead_letter_oldest_seconds", "") < 60.0);
    worker.crash().await;
    console.end_lease("w").await;
    exporter
        .until_of("seriatim_workers", "state=\"gone_with_work\"", 1.0)
        .await;
    exporter
        .until_of("seriatim_slots_registered", "", 0.0)
        .await;
}

/// Tests the metrics of shares, also if there are more shares than have series.
#[tokio::test]
async fn an_exporter_shows_how_far_shares_are_used() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let exporter = Exporter::start(&redis).await;
    let run = async |words: &[&str]| drop(console.run::<redis::Value>(words).await);
    let shares = "acme:* '- - 50 20 - 5 0 ' b:* '2 - - - - 5 0 '";
    console.add(&format!("HSET event.shares {shares}")).await;
    run(&["LPUSH", &keys.group_waiting("acme"), "acme:1", "acme:2"]).await;
    run(&["SET", &keys.event_groups_waiting(), "2"]).await;
    run(&["HSET", &keys.event_groups_times(), "acme", "5 5 0"]).await;
    run(&["ZADD", &keys.objects_in_hand(), "0", "acme:7:"]).await;
    run(&["HSET", &keys.event_shares_used(), "acme:*", "120 0 0 0 0"]).await;
    let label = |of: &str| format!("selector=\"{of}\"");
    let seen = exporter
        .until_of("seriatim_share_taken_total", &label("acme:*"), 120.0)
        .await;
    for (series, selector, wanted) in [
        ("seriatim_share_waiting", "acme:*", 2.0),
        ("seriatim_share_waiting", "b:*", 0.0),
        ("seriatim_share_in_hand", "acme:*", 1.0),
        ("seriatim_share_in_flight_limit", "acme:*", 50.0),
        ("seriatim_share_oldest_seconds", "b:*", 0.0),
    ] {
        assert_eq!(
            value_of(&redis, &seen, series, &label(selector)),
            wanted,
            "{series} {selector}"
        );
    }
    assert!(
        value_of(
            &redis,
            &seen,
            "seriatim_share_oldest_seconds",
            &label("acme:*")
        ) > 1e6
    );
    assert_eq!(value_of(&redis, &seen, "seriatim_shares", ""), 2.0);
    assert!(
        !seen.contains(&of(&redis, "seriatim_share_in_flight_limit", &label("b:*"))),
        "{seen}"
    );
    let of_acme = seen.lines().filter(|line| line.contains(&label("acme:*")));
    assert_eq!(of_acme.count(), 5, "{seen}");
    for n in 0..118 {
        let share = format!("HSET event.shares c{n:03}:* '2 - - - - 5 0 '");
        console.add(&share).await;
    }
    run(&["LPUSH", &keys.group_waiting("c117"), "c117:1"]).await;
    let seen = exporter.until_of("seriatim_shares", "", 120.0).await;
    let listed = seen
        .lines()
        .filter(|line| line.starts_with("seriatim_share_waiting{"))
        .count();
    assert_eq!(listed, 100, "{seen}");
    assert!(series(&seen) < 65 + 5 * 100, "{}", series(&seen));
    // The first ones have series, whatever waits.
    assert!(
        seen.contains(&label("c097:*"))
            && !seen.contains(&label("c098:*"))
            && !seen.contains(&label("c117:*")),
        "{seen}"
    );
}

/// Tests that queued events are counted by prefix, and that `--depth` refuses too many prefixes.
///
/// Story: a prefix of two parts was accepted, and always counted 0.
#[tokio::test]
async fn queued_events_are_counted_by_prefix() {
    let (redis, console) = Redis::start().with_console().await;
    for n in 0..30 {
        console.emit_all(&format!("many:{n}"), ["1", "2"]).await;
    }
    console.emit("few", "1").await;
    console.emit_all("more:1", ["1", "2", "3"]).await;
    console.emit("more:1:x", "1").await;
    console.emit("more:2", "1").await;
    console.emit("more:11", "1").await;
    let exporter = Exporter::start(&redis).await;
    for (prefix, objects, events) in [
        ("many", 30.0, 60.0),
        ("few", 1.0, 1.0),
        ("more:1", 2.0, 4.0),
        ("other", 2.0, 2.0),
    ] {
        let label = format!("prefix=\"{prefix}\"");
        exporter
            .until_of("seriatim_events_queued", &label, events)
            .await;
        exporter
            .until_of("seriatim_objects_with_events", &label, objects)
            .await;
    }
    let seen = exporter.scrape().await;
    assert!(value_of(&redis, &seen, "seriatim_depth_age_seconds", "") < 60.0);
    let many = (0..21).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    for (wrong, why) in [
        (&*many, "21 prefixes"),
        ("more:", "no colon"),
        ("more:*", "no star"),
        ("a\\q", "backslash"),
        ("a,", "empty"),
    ] {
        let depth = format!("--depth={wrong}");
        let refused = redis.run(&["exporter", "--listen", "127.0.0.1:0", &depth]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(2) && said.contains(why),
            "{wrong}: {refused:?}"
        );
    }
}

/// A worker that meets a lost key logs it once, and counts it.
#[tokio::test]
async fn a_worker_logs_and_counts_the_lost_keys_that_it_meets() {
    let (redis, mut state) = Redis::start().with_state().await;
    let keys = redis.keys().clone();
    let worker = Process::start(&redis, "w", "null", &["--http", "127.0.0.1:0"]);
    let address = listening(|| worker.log()).await;
    worker.until_logged("recover: attached").await;
    let lost = of(&redis, "seriatim_lost_keys_total", "");
    let counted = async || value(&scrape(&address).await.expect("a scrape"), &lost);
    assert_eq!(counted().await, 0.0);
    for (object, numbers, keys_lost) in [
        ("work:1", "7 0 1 0 retry: down", 1.0),
        ("work:2", "8 0 1 0 retry: down", 2.0),
    ] {
        state.hold(object, "99999999999999", &["1"], numbers).await;
        state.run("DEL", &[&keys.event_worker(object)]).await;
        state.emit(object, "2").await;
        let what = format!("{keys_lost} keys are counted");
        until(&what, PATIENCE, async || {
            (counted().await >= keys_lost).then_some(())
        })
        .await;
        assert_eq!(counted().await, keys_lost);
        let log = worker.log();
        let lines = log
            .lines()
            .filter(|line| line.contains(&format!("{object}:event.worker")))
            .count();
        assert!(
            lines == 1 && log.contains("the owner of a held object was absent"),
            "{log}"
        );
    }
}

/// Events that no worker knows show in a metric, on which an alert fires, and in `stats`.
#[tokio::test]
async fn events_that_no_worker_knows_show_in_a_metric() {
    let (redis, console) = Redis::start().with_console().await;
    let exporter = Exporter::start(&redis).await;
    let sink = Recorder::with(|_| {
        Act::Stop(Stop::Unknown {
            error: "no handler for \"titled\"".to_owned(),
        })
    });
    let worker = start(&redis, "w", &sink, |_| {});
    exporter
        .until_of("seriatim_workers_met_unknown", "", 0.0)
        .await;
    console.emit("work:1", "1").await;
    exporter
        .until_of("seriatim_workers_met_unknown", "", 1.0)
        .await;
    let printed = redis.prints("stats");
    let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "times in the last minute, the objects wait for another worker: no handler for"
        ),
        "{printed}"
    );
    worker.stop().await;
}

/// Story: the score 0 of a released object was read as a time in 1970, so the alert on objects that
/// are overdue fired. The score 0 of a schedule was read so, too.
#[tokio::test]
async fn a_score_that_is_no_time_is_in_no_metric() {
    let (redis, mut state) = Redis::start().with_state().await;
    state
        .hold("work:1", "0", &["1"], "7 0 1 0 retry: down")
        .await;
    state.add("HSET work:2:events.scheduled k 1").await;
    state.add("ZADD events.scheduled 0 'work:2\nk'").await;
    let exporter = Exporter::start(&redis).await;
    let seen = exporter
        .until_of("seriatim_objects_held", "waits_for=\"worker\"", 1.0)
        .await;
    for name in [
        "seriatim_held_overdue_seconds",
        "seriatim_schedule_overdue_seconds",
    ] {
        assert_eq!(value_of(&redis, &seen, name, ""), 0.0, "{name}");
    }
    let large = seen.lines().filter(|line| {
        !line.starts_with('#') && !line.contains("_start_time_") && line.contains("_seconds")
    });
    let large: Vec<_> = large
        .filter(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()) > Some(1e8))
        .collect();
    assert!(large.is_empty(), "{large:?}");
}

/// Story: each scrape during an outage of Redis logged a warning.
#[tokio::test]
async fn an_exporter_warns_once_of_an_outage() {
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    let exporter = Exporter::start(&redis).await;
    let up = of(&redis, "seriatim_up", "");
    exporter.until(&up, 1.0).await;
    for outage in 1..=2 {
        redis.server().kill();
        exporter.until(&up, 0.0).await;
        // A look at Redis is shared by all scrapes of a second.
        let looks = async |looks: usize| {
            for _ in 0..looks {
                tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
                assert_eq!(value(&exporter.scrape().await, &up), 0.0);
            }
        };
        looks(3).await;
        let log = exporter.log();
        let warnings = log.lines().filter(|line| line.contains("WARN")).count();
        assert_eq!(warnings, outage, "{log}");
        redis.server().restart();
        exporter.until(&up, 1.0).await;
    }
}

/// A lost index shows: one that other indexes tell of at once, any other with `--check`.
#[tokio::test]
async fn a_lost_key_shows_in_a_metric() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let run = async |words: &[&str]| console.run::<redis::Value>(words).await;
    let exporter = Exporter::start(&redis).await;
    exporter
        .until_of("seriatim_shared_keys_broken", "", 0.0)
        .await;
    exporter
        .until_of("seriatim_check_violations", "", 0.0)
        .await;
    run(&["SET", &keys.event_worker("x"), "held"]).await;
    run(&["ZADD", &keys.objects_paused(), "0", "x"]).await;
    run(&["SET", &keys.event_worker("y"), "held"]).await;
    exporter
        .until_of("seriatim_shared_keys_broken", "", 1.0)
        .await;
    let seen = exporter
        .until_of("seriatim_check_violations", "", 2.0)
        .await;
    assert!(
        value_of(&redis, &seen, "seriatim_check_age_seconds", "") < 60.0,
        "{seen}"
    );
}

#[tokio::test]
async fn objects_add_no_series() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = Process::start(&redis, "w", "null", &["--http", "127.0.0.1:0"]);
    let address = listening(|| worker.log()).await;
    let exporter = Exporter::start(&redis).await;
    let before = until("it listens", PATIENCE, async || scrape(&address).await).await;
    exporter
        .until_of("seriatim_events_queued", "prefix=\"other\"", 0.0)
        .await;
    exporter
        .until_of("seriatim_check_violations", "", 0.0)
        .await;
    let before = (series(&before), series(&exporter.scrape().await));
    for number in 0..3000 {
        let event = format!("{{\"type\":\"t{number}\"}}");
        console.emit(&format!("work-{number}:1"), event).await;
    }
    let delivered = of(&redis, "seriatim_events_total", "outcome=\"delivered\"");
    let after = until("all are counted", PATIENCE, async || {
        let scrape = scrape(&address).await?;
        (value(&scrape, &delivered) >= 3000.0).then_some(scrape)
    })
    .await;
    let after = (series(&after), series(&exporter.scrape().await));
    assert_eq!(after, before);
}

/// Tests that an exporter starts although Redis is not running yet. With a wrong password it does
/// not start.
#[tokio::test]
async fn an_exporter_starts_without_redis() {
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    redis.server().kill();
    let exporter = Exporter::start(&redis).await;
    let up = of(&redis, "seriatim_up", "");
    exporter.until(&up, 0.0).await;
    redis.server().restart();
    exporter.until(&up, 1.0).await;
    let refused = format!("{}?pass=wrong", redis.url());
    let mut program = command_at(&refused, "exporter --listen 127.0.0.1:0");
    let ended = program.output().expect("it runs");
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
}

#[tokio::test]
async fn an_exporter_outlives_an_outage() {
    let mut redis = Redis::own(&["--appendonly", "yes"]);
    let exporter = Exporter::start(&redis).await;
    let up = of(&redis, "seriatim_up", "");
    exporter.until(&up, 1.0).await;
    redis.server().kill();
    let seen = exporter.until(&up, 0.0).await;
    assert!(
        !seen.contains("seriatim_markers") && seen.contains("process_open_fds"),
        "{seen}"
    );
    redis.server().restart();
    assert!(exporter.until(&up, 1.0).await.contains("seriatim_markers"));
}
