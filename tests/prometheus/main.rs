//! Runs a real Prometheus that scrapes a running system. Tests the documented metrics, the alerts
//! and the dashboard.
//!
//! Needs `prometheus` and `promtool` on the PATH; `scripts/test-prometheus` installs and runs it.

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use serde_json::Value;
use seriatim::consume::Envelope;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::{Redis, free_port, until};

/// Number of objects that must add no series.
const OBJECTS: usize = 100_000;

/// A child process; killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Prometheus that scrapes twice a second.
struct Prometheus {
    _process: Running,
    _dir: tempfile::TempDir,
    url: String,
    client: Client,
}

impl Prometheus {
    /// Starts Prometheus with the alerts of `deploy/prometheus`. Here they fire after 1 s instead
    /// of minutes.
    fn start(targets: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let rules = include_str!("../../deploy/prometheus/seriatim.rules.yml");
        let quick = rules.lines().map(|line| match line.trim_start() {
            wait if wait.starts_with("for: ") => "        for: 1s".to_owned(),
            _ => line.replace("> 300", "> 2"),
        });
        std::fs::write(
            dir.path().join("rules.yml"),
            quick.collect::<Vec<_>>().join("\n"),
        )
        .expect("written");
        let jobs = targets.iter().map(|(job, address)| {
            format!("  - job_name: {job}\n    static_configs: [{{ targets: ['{address}'] }}]\n")
        });
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\nrule_files: [rules.yml]\nscrape_configs:\n{}",
            jobs.collect::<String>()
        );
        std::fs::write(dir.path().join("prometheus.yml"), config).expect("written");
        let address = format!("127.0.0.1:{}", free_port());
        let mut program = Command::new("prometheus");
        program
            .arg("--config.file")
            .arg(dir.path().join("prometheus.yml"));
        program
            .arg("--storage.tsdb.path")
            .arg(dir.path().join("data"))
            .args(["--web.listen-address", &address]);
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let process = program
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus is on the PATH: scripts/test-prometheus");
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().build().expect("a client");
        Self {
            _process: Running(process),
            _dir: dir,
            url: format!("http://{address}"),
            client,
        }
    }

    /// Returns the data of a response, or `None` if Prometheus has not started yet.
    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let mut url: reqwest::Url = format!("{}{path}", self.url).parse().expect("a URL");
        url.query_pairs_mut().extend_pairs(parameters);
        let text = self.client.get(url).send().await.ok()?.text().await.ok()?;
        let mut answer: Value = serde_json::from_str(&text).ok()?;
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        Some(answer["data"].take())
    }

    /// Returns the values of a query expression, one for each series.
    async fn query(&self, expression: &str) -> Vec<f64> {
        let Some(data) = self.get("/api/v1/query", &[("query", expression)]).await else {
            return Vec::new();
        };
        let series = data["result"].as_array().expect("a vector").iter();
        series
            .map(|one| {
                one["value"][1]
                    .as_str()
                    .expect("a value")
                    .parse()
                    .expect("a number")
            })
            .collect()
    }

    /// Returns all series that Prometheus has ever stored, except those of the alerts.
    async fn series(&self) -> BTreeSet<String> {
        let selector = "{__name__=~\".+\",__name__!~\"ALERTS.*\"}";
        let data = self
            .get("/api/v1/series", &[("match[]", selector)])
            .await
            .expect("an answer");
        data.as_array()
            .expect("series")
            .iter()
            .map(Value::to_string)
            .collect()
    }

    async fn until_firing(&self, alert: &str) {
        until(&format!("{alert} fires"), 2 * PATIENCE, async || {
            let data = self.get("/api/v1/alerts", &[]).await?;
            let mut alerts = data["alerts"].as_array().expect("alerts").iter();
            alerts
                .any(|one| one["labels"]["alertname"] == alert && one["state"] == "firing")
                .then_some(())
        })
        .await;
    }

    async fn until_quiet(&self, alert: &str) {
        until(&format!("{alert} is over"), 2 * PATIENCE, async || {
            let data = self.get("/api/v1/alerts", &[]).await?;
            let mut alerts = data["alerts"].as_array().expect("alerts").iter();
            alerts
                .all(|one| one["labels"]["alertname"] != alert)
                .then_some(())
        })
        .await;
    }
}

/// An HTTP receiver. It returns 400 for objects `bad:*` and 500 for `fails:*`. It answers for
/// `hangs:*` only when the test allows it.
struct Receiver {
    address: String,
    go_on: Arc<Semaphore>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let go_on = Arc::new(Semaphore::new(0));
        let waits = Arc::clone(&go_on);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&waits)));
            }
        });
        Self { address, go_on }
    }
}

async fn serve(stream: TcpStream, go_on: Arc<Semaphore>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 2) {
            let value = line
                .to_ascii_lowercase()
                .strip_prefix("content-length:")
                .map(|value| value.trim().to_owned());
            length = value.and_then(|value| value.parse().ok()).unwrap_or(length);
            line.clear();
        }
        if length == 0 {
            return;
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let envelope = Envelope::parse(&body).expect("an envelope");
        let status = match envelope.object.split(':').next() {
            Some("bad") => "400 No",
            Some("fails") => "500 No",
            Some("hangs") => {
                let _ = go_on.acquire().await;
                "200 OK"
            }
            _ => "200 OK",
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the names of the samples that docs/operations.md and docs/lab/operations.md promise.
fn documented() -> BTreeSet<String> {
    let pages = [
        include_str!("../../docs/operations.md"),
        include_str!("../../docs/lab/operations.md"),
    ];
    let chapters = pages.map(|page| {
        let (_, chapter) = page.split_once("\n## Metrics\n").expect("a chapter");
        chapter.split_once("\n## ").expect("its end").0
    });
    let mut names = BTreeSet::from([
        "process_cpu_seconds_total".to_owned(),
        "process_resident_memory_bytes".to_owned(),
        "process_open_fds".to_owned(),
        "process_start_time_seconds".to_owned(),
    ]);
    for row in chapters
        .iter()
        .flat_map(|chapter| chapter.lines())
        .filter(|line| line.starts_with("| `seriatim_"))
    {
        let mut cells = row.split('|').skip(1);
        let (name, kind) = (cells.next().expect("names"), cells.next().expect("types"));
        for name in name.split(", ").map(|name| name.trim().trim_matches('`')) {
            match kind.trim() {
                "histogram" => {
                    names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")))
                }
                _ => drop(names.insert(name.to_owned())),
            }
        }
    }
    names
}

/// Returns the query expressions of the dashboard, with values for their variables.
fn expressions() -> Vec<String> {
    let board: Value =
        serde_json::from_str(include_str!("../../deploy/grafana/seriatim.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let expressions = targets.map(|target| target["expr"].as_str().expect("an expression"));
    expressions
        .map(|text| {
            text.replace("$namespace", ".*")
                .replace("$__rate_interval", "30s")
        })
        .collect()
}

fn promtool(arguments: &[&str]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    let checked = Command::new("promtool")
        .args(arguments)
        .current_dir(dir)
        .output()
        .expect("promtool is on the PATH");
    assert!(
        checked.status.success(),
        "{}{}",
        String::from_utf8_lossy(&checked.stdout),
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
#[ignore = "needs Prometheus: scripts/test-prometheus"]
fn the_alerts_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "seriatim.rules.yml"]);
    promtool(&["test", "rules", "seriatim.rules.test.yml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

/// Tests each documented metric, and each expression of the dashboard. Tests the alerts of an
/// unavailable sink, a dead worker, a dead letter, a held object, and a delivery that hangs.
#[tokio::test]
#[ignore = "needs Prometheus: scripts/test-prometheus"]
async fn a_real_prometheus_sees_a_running_system() {
    let (redis, console) = Redis::start().with_console().await;
    let addresses: Vec<String> = (0..3)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    let [exporter_at, first_at, second_at] = &addresses[..] else {
        panic!("three addresses")
    };
    let mut exporter = Command::new(crate::support::program());
    exporter.args([
        "--redis",
        redis.url(),
        "--namespace",
        redis.namespace(),
        "exporter",
        "--listen",
        exporter_at,
        "--depth",
        "--check",
    ]);
    let _exporter = Running(exporter.stderr(Stdio::null()).spawn().expect("it starts"));
    let prometheus = Prometheus::start(&[
        ("seriatim-exporter", exporter_at),
        ("seriatim-worker", first_at),
        ("seriatim-worker2", second_at),
    ]);

    // At first no worker runs. Then a worker whose sink is unavailable starts, and dies with a
    // batch in flight.
    prometheus.until_firing("SeriatimNoWorker").await;
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    let mut first = Process::start(
        &redis,
        "first",
        &nobody,
        &["--http", first_at, "--lease", "2s", "--event-log"],
    );
    console.emit("work:1", "1").await;
    prometheus.until_firing("SeriatimSinkDown").await;
    prometheus.until_quiet("SeriatimNoWorker").await;
    first.kill();
    prometheus.until_firing("SeriatimNoWorker").await;
    prometheus.until_firing("SeriatimWorkNotTakenOver").await;

    let receiver = Receiver::start().await;
    let sink = format!("http://{}/", receiver.address);
    let options = [
        "--http",
        second_at,
        "--event-log",
        "--retry",
        "fixed:10ms,attempts=2,then=hold",
    ];
    let _second = Process::start(&redis, "second", &sink, &options);
    prometheus.until_quiet("SeriatimWorkNotTakenOver").await;
    prometheus.until_quiet("SeriatimSinkDown").await;
    for (event, alert) in [
        ("bad", "SeriatimNewDeadLetters"),
        ("fails", "SeriatimHeldForOperator"),
        ("hangs", "SeriatimDeliveryHangs"),
    ] {
        console.emit(&format!("{event}:1"), "{}").await;
        prometheus.until_firing(alert).await;
    }
    receiver.go_on.close();
    prometheus.until_quiet("SeriatimDeliveryHangs").await;

    // Makes a projection and a schedule, so that no panel of the dashboard is empty.
    for (field, value) in [("p", "0 0 0-0")] {
        let _: u64 = console
            .run(&["HSET", &console.keys.event_projections(), field, value])
            .await;
    }
    let mut schedule = Command::new(crate::support::program());
    schedule.args([
        "--redis",
        redis.url(),
        "--namespace",
        redis.namespace(),
        "emit",
        "--in",
        "1s",
        "later:1",
        "1",
    ]);
    assert!(schedule.status().expect("it runs").success());
    // Only a share has the figures of shares.
    let mut share = Command::new(crate::support::program());
    share.args([
        "--redis",
        redis.url(),
        "--namespace",
        redis.namespace(),
        "share",
        "set",
        "work:*",
        "--in-flight",
        "1000",
    ]);
    assert!(
        share
            .args(["--reason", "a test"])
            .status()
            .expect("it runs")
            .success()
    );
    // Only a worker with a program has its figures.
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/handlers.py");
    let program = format!("exec:python3 -B '{example}'");
    let _third = Process::start(&redis, "third", &program, &["--http", first_at]);
    let wanted = documented();
    let seen = until(
        "each documented metric is there",
        2 * PATIENCE,
        async || {
            console.emit_all("work:2", ["1", "2", "3"]).await;
            let data = prometheus.get("/api/v1/label/__name__/values", &[]).await?;
            let names = data
                .as_array()
                .expect("names")
                .iter()
                .map(|name| name.as_str().expect("a name").to_owned());
            let names: BTreeSet<String> = names.collect();
            wanted.is_subset(&names).then_some(names)
        },
    )
    .await;
    let own =
        |name: &&String| *name == "up" || name.starts_with("scrape_") || name.starts_with("ALERTS");
    let more: Vec<_> = seen.difference(&wanted).filter(|name| !own(name)).collect();
    assert!(more.is_empty(), "without a word in the documents: {more:?}");
    assert_eq!(prometheus.query("seriatim_up").await, [1.0]);
    let expressions = expressions();
    assert!(expressions.len() > 20);
    for expression in expressions {
        until(&format!("{expression} has a value"), PATIENCE, async || {
            console.emit_all("work:2", ["1", "2", "3"]).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            prometheus
                .query(&expression)
                .await
                .iter()
                .any(|value| value.is_finite())
                .then_some(())
        })
        .await;
    }
}

/// Tests that objects and types of events add no series to Prometheus.
#[tokio::test]
#[ignore = "needs Prometheus: scripts/test-prometheus"]
async fn objects_add_no_series_in_prometheus() {
    let (redis, console) = Redis::start().with_console().await;
    let addresses: Vec<String> = (0..2)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    let [exporter_at, worker_at] = &addresses[..] else {
        panic!("two addresses")
    };
    let mut exporter = Command::new(crate::support::program());
    exporter.args([
        "--redis",
        redis.url(),
        "--namespace",
        redis.namespace(),
        "exporter",
        "--listen",
        exporter_at,
        "--depth",
        "--check",
    ]);
    let _exporter = Running(exporter.stderr(Stdio::null()).spawn().expect("it starts"));
    let _worker = Process::start(&redis, "w", "null", &["--http", worker_at]);
    let prometheus = Prometheus::start(&[
        ("seriatim-exporter", exporter_at),
        ("seriatim-worker", worker_at),
    ]);
    // One event for each program, before the series are counted.
    console.emit("many-first:1", "1").await;
    let is_there = async |expression: &str| !prometheus.query(expression).await.is_empty();
    until("both are scraped", 2 * PATIENCE, async || {
        let seen = is_there("seriatim_events_total{outcome=\"delivered\"} == 1").await
            && is_there("seriatim_events_queued").await;
        seen.then_some(())
    })
    .await;
    let before = prometheus.series().await;
    assert!(before.len() > 100, "{before:?}");
    for from in (0..OBJECTS).step_by(10_000) {
        let mut pipe = redis::pipe();
        for n in from..from + 10_000 {
            let object = format!("many-{n}:1");
            pipe.cmd("LPUSH")
                .arg(console.keys.events(&object))
                .arg(format!("{{\"type\":\"t{n}\"}}"))
                .ignore();
            pipe.cmd("LPUSH")
                .arg(console.keys.objects_with_events())
                .arg(object)
                .ignore();
        }
        pipe.exec_async(&mut redis.connect().await)
            .await
            .expect("emitted");
    }
    until("all are delivered, and scraped", 4 * PATIENCE, async || {
        let all = format!(
            "seriatim_events_total{{outcome=\"delivered\"}} == {}",
            OBJECTS + 1
        );
        (is_there(&all).await && is_there(&format!("seriatim_ids_given >= {OBJECTS}")).await)
            .then_some(())
    })
    .await;
    let after = prometheus.series().await;
    println!(
        "{} series before and {} after {OBJECTS} objects",
        before.len(),
        after.len()
    );
    let more: Vec<_> = after.difference(&before).collect();
    assert!(
        more.is_empty(),
        "{} more series, for example {:?}",
        more.len(),
        &more[..more.len().min(5)]
    );
}
