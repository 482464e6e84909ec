//! Takes the picture of the overview for the README, of a running system.
//!
//! `scripts/dashboard-picture` sets `SERIATIM_PICTURE` to a file, and gives the system five
//! minutes, so that the charts are full. As a test, it takes a picture after a few seconds.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::async_trait;
use seriatim::control::rules::Kind;
use seriatim::control::{By, Control};
use seriatim::emit::Emitter;
use seriatim::keys::Keys;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::time::{Instant, sleep};

use crate::dashboard::{Dashboard, Users};
use crate::driver::{Driver, Scheme};
use crate::support::running::{Running, start};
use crate::support::{Redis, free_port};

/// Width and height of the picture.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 1060;
/// Maximum size of the picture in bytes. The repository has it.
const BYTES_MAX: u64 = 200_000;
/// The time for which the charts are filled; and in a test.
const WHOLE: Duration = Duration::from_secs(310);
const SHORT: Duration = Duration::from_secs(5);

/// A sink as of a web service: it needs some time, and refuses some events.
#[derive(Clone)]
struct Service {
    name: &'static str,
}

#[async_trait]
impl Sink for Service {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        for (at, event) in batch.events().enumerate() {
            let event: Value = serde_json::from_slice(&event.payload).unwrap_or_default();
            let stop = match event["type"].as_str().unwrap_or_default() {
                "hang" => std::future::pending().await,
                "refused" => Stop::rejected("422: the order has no lines"),
                "failed" | "busy" => Stop::transient("503: the warehouse does not answer"),
                _ => {
                    sleep(Duration::from_millis(event["ms"].as_u64().unwrap_or(1))).await;
                    continue;
                }
            };
            return Delivered::stopped(at, stop);
        }
        Delivered::all()
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium; scripts/dashboard-picture runs it"]
async fn the_overview_of_a_running_system() {
    let file = std::env::var_os("SERIATIM_PICTURE").map(PathBuf::from);
    let time = if file.is_some() { WHOLE } else { SHORT };
    let dir = tempfile::tempdir().expect("a directory");
    let file = file.unwrap_or_else(|| dir.path().join("dashboard.png"));

    // The usual port, if it is free.
    let port = TcpListener::bind(("127.0.0.1", 6379)).map_or_else(|_| free_port(), |_| 6379).to_string();
    let redis = Redis::own(&["--port", &port]);
    let keys = Keys::default();
    redis.begin_ids(&keys);
    let conn = redis.connect().await;
    let operator = Control::new(conn.clone());
    let emitter = Emitter::new(conn);
    let users = Users::new(&[("ada", "view,pause,operate")]);
    let dashboard = Dashboard::start_at(&format!("127.0.0.1:{port}"), None, &users.arguments()).await;
    let driver = Driver::start().await;
    driver.resize(WIDTH, HEIGHT).await;
    driver.prefer(Scheme::Light).await;

    let _workers = workers(&redis, &keys);
    troubles(&operator, &emitter).await;
    dashboard.log_in_with(&driver, users.token("ada")).await;
    run(&emitter, time).await;
    driver.screenshot(&file).await;
    assert!(driver.console().await.is_empty());
    let bytes = std::fs::metadata(&file).expect("a picture").len();
    assert!((10_000..BYTES_MAX).contains(&bytes), "{}: {bytes} bytes", file.display());
    assert_eq!(width_of(&file), WIDTH);
}

fn workers(redis: &Redis, keys: &Keys) -> Vec<Running> {
    let worker = |name: &str| {
        start(redis, name, &Service { name: "https://orders.example/events" }, |config| {
            config.keys = keys.clone();
            config.concurrency = 8;
            config.batch = 8;
            config.retry = "fixed:1h,attempts=10,then=dead-letter".parse().expect("a policy");
            config.retry_types.insert("failed".to_owned(), "fixed:1ms,attempts=2,then=hold".parse().expect("a policy"));
        })
    };
    ["orders-1", "orders-2", "orders-3"].map(worker).into()
}

/// Makes the things that need somebody.
async fn troubles(operator: &Control, emitter: &Emitter) {
    let by = By { who: "ada", why: "the warehouse moves" };
    operator.set_rule(by, Kind::Pause, &"stock:*".parse().expect("a selector"), None).await.expect("set");
    for number in 0..40 {
        emitter.emit(&format!("stock:{number}"), &json!({ "type": "moved" })).await.expect("emitted");
    }
    for (object, kind) in [("order:1042", "hang"), ("order:1077", "failed"), ("order:1078", "failed"), ("order:1093", "failed")] {
        emitter.emit(object, &json!({ "type": kind })).await.expect("emitted");
    }
    for number in 0..12 {
        emitter.emit(&format!("invoice:{number}"), &json!({ "type": "busy" })).await.expect("emitted");
        let reminder = emitter.schedule(format!("user:{number}"), &json!({ "type": "reminder" }));
        reminder.after(Duration::from_secs(7200)).key("reminder").send().await.expect("scheduled");
    }
    for number in 0..7 {
        emitter.emit(&format!("order:11{number}"), &json!({ "type": "refused" })).await.expect("emitted");
    }
}

/// Emits events for this time: few and many in turn, and most of them for a few objects.
async fn run(emitter: &Emitter, time: Duration) {
    let begin = Instant::now();
    let mut number: u64 = 0;
    while begin.elapsed() < time {
        let second = begin.elapsed().as_secs_f64();
        let wave = 20.0 + 12.0 * (second / 19.0).sin() + 5.0 * (second / 4.3).sin();
        let burst = if (second as u64).rem_euclid(100) < 4 { 40.0 } else { 0.0 };
        for _ in 0..(wave + burst) as u64 {
            number += 1;
            let object = match number % 10 {
                0 => format!("order:{}", 1000 + number % 3),
                1..=6 => format!("order:{}", 1000 + number % 397),
                _ => format!("user:{}", number % 89),
            };
            let ms = if number.is_multiple_of(10) { 60 } else { 4 };
            emitter.emit(&object, &json!({ "type": "changed", "ms": ms })).await.expect("emitted");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the width of a PNG.
fn width_of(file: &Path) -> u32 {
    let bytes = std::fs::read(file).expect("a picture");
    u32::from_be_bytes(bytes[16..20].try_into().expect("four bytes"))
}
