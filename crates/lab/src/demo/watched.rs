//! `seriatim demo --dashboard`: a small shop whose queue is watched in the browser.
//!
//! Two workers deliver the events of a shop to a receiver in this process. The receiver is slow for
//! some objects, and refuses the events of others. So every page of the dashboard has something to
//! show. The demo runs until it is stopped.

use std::num::NonZeroU64;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde_json::{Value, json};
use seriatim::control::rules::Kind;
use seriatim::control::{By, Control, CronDraft};
use seriatim::cron::CronSchedule;
use seriatim::{EmitError, Emitter};
use seriatim_console::exit::{Exit, Failure};
use seriatim_web::listen::Listening;
use seriatim_web::listen::address::Address;
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::processes::Process;
use super::show::Show;
use crate::private::{Guard, Listen, Server};

const NAMESPACE: &str = "demo";
const DEMO: By<'static> = By {
    who: "demo",
    why: "the printer of the newsletter is being repaired",
};
/// The time between two emits, and the number of objects of each kind.
const EMIT_EVERY: Duration = Duration::from_millis(10);
const OBJECTS: u64 = 40;
/// The most queued events of an object.
const QUEUED_MAX: u64 = 200;
/// Of ten times this number of events, the last tenth is a burst.
const BURST: u64 = 400;
/// The most bytes of a request of a worker.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Runs until the process is stopped, or one of its processes ends.
pub(super) async fn play(address: String) -> anyhow::Result<Exit> {
    let show = Show::new();
    let mut guard = Guard::start()?;
    let home = super::stage::home(None, &guard)?;
    let (mut redis, _) = Server::start(&mut guard, Listen::Socket).await?;
    let (receiver, stop) = (receiver_address()?, CancellationToken::new());
    let receiving = Listening::for_probes(&receiver, 256).await?;
    let url = receiving
        .addresses()
        .next()
        .map(|base| format!("{base}/events"))
        .unwrap_or_default();
    let mut processes = Vec::new();
    for name in ["shop-a", "shop-b"] {
        let args = [
            "worker",
            "--name",
            name,
            "--concurrency",
            "8",
            "--event-log",
            "--sink",
            &url,
            "--retry",
            "fixed:20s,attempts=4,then=dead-letter",
            "--retry-type",
            "billed=fixed:1s,attempts=2,then=hold",
        ];
        let worker = Process::start(name, &redis.url, &home, &args, Stdio::null())?;
        guard.watch(worker.pid());
        processes.push(worker);
    }
    let emitter = Emitter::connect(redis.url.as_str())
        .await?
        .with_namespace(NAMESPACE)?;
    let control = Control::connect(redis.url.as_str())
        .await?
        .with_namespace(NAMESPACE)?;
    prepare(&emitter, &control).await?;
    let mut dashboard = dashboard(&redis.url, &address)?;
    guard.watch(dashboard.id().unwrap_or_default());
    show.say("a shop with two workers runs in a Redis of its own; open this link, and stop the demo with Ctrl-C:");
    let serving = receiving.serve(Router::new().route("/events", post(receive)), stop);
    tokio::select! {
        served = serving => served?,
        emitted = emit(&emitter) => emitted?,
        ended = dashboard.wait() => {
            return Err(Failure::with(Exit::Broken, format!("the dashboard ended with {}", ended?)));
        }
        ended = redis.child.wait() => {
            return Err(Failure::with(Exit::Redis, format!("the private Redis ended with {}", ended?)));
        }
        ended = worker_end(&mut processes) => return Err(ended),
    }
    Ok(Exit::Done)
}

fn receiver_address() -> anyhow::Result<Address> {
    "127.0.0.1:0"
        .parse()
        .map_err(|error: String| anyhow::anyhow!(error))
}

/// Starts the dashboard. It prints its link to the standard output of this process.
fn dashboard(redis: &str, address: &str) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Command::new(program)
        .args([
            "--redis",
            redis,
            "--namespace",
            NAMESPACE,
            "--log",
            "warn",
            "dashboard",
            "--listen",
            address,
        ])
        .env_remove("SERIATIM_USERS")
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the dashboard")
}

/// Waits until one of the workers ends, and returns the error for it.
async fn worker_end(workers: &mut [Process]) -> anyhow::Error {
    loop {
        for worker in workers.iter_mut() {
            match worker.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return worker.ended_badly(status),
                Err(error) => return error.into(),
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Sets a pause, schedules and a cron job.
async fn prepare(emitter: &Emitter, control: &Control) -> anyhow::Result<()> {
    control
        .set_rule(DEMO, Kind::Pause, &"newsletter:*".parse()?, None)
        .await?;
    let by = By {
        why: "the demo must not grow without bound",
        ..DEMO
    };
    control
        .set_limit(by, &"*".parse()?, NonZeroU64::new(QUEUED_MAX), None)
        .await?;
    for (day, customer) in (1..=5_u32).zip(["ada", "grace", "edsger", "barbara", "tony"]) {
        let event = json!({"type": "reminder", "cart": day});
        let schedule = emitter
            .schedule(format!("customer:{customer}"), &event)
            .key("cart");
        schedule
            .after(Duration::from_secs(24 * 60 * 60) * day)
            .send()
            .await?;
    }
    let event = json!({"type": "close"});
    let accounts = CronDraft::new(
        "accounts",
        CronSchedule::new("* * * * *", None)?,
        "accounts",
        &event,
    );
    let by = By {
        why: "the demo needs a cron job",
        ..DEMO
    };
    control.set_cron(by, accounts.now()).await?;
    Ok(())
}

/// Emits events for ever.
async fn emit(emitter: &Emitter) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::new();
    for n in 0_u64.. {
        let number = random.u64(..OBJECTS);
        let (object, event) = match random.u64(..20) {
            0 => (
                format!("newsletter:{}", number % 10),
                json!({"type": "printed", "n": n}),
            ),
            1..4 => (
                format!("invoice:{number}"),
                json!({"type": "billed", "n": n, "card": {"number": "4111 1111 1111 1111"}}),
            ),
            4..8 => (
                format!("parcel:{number}"),
                json!({"type": "packed", "n": n}),
            ),
            _ => (
                format!("work:{number}"),
                json!({"type": "moved", "n": n, "to": {"shelf": number}}),
            ),
        };
        match emitter.emit(object, &event).await {
            // Objects that wait are full after a while, so that the demo may run for days.
            Ok(_) | Err(EmitError::Full { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Bursts give the charts something to show.
        let is_burst = (n / BURST) % 10 == 9;
        sleep(if is_burst { EMIT_EVERY / 5 } else { EMIT_EVERY }).await;
    }
    Ok(())
}

/// Receives the events. The objects that it fails are always the same.
async fn receive(body: Body) -> Response {
    let read = to_bytes(body, REQUEST_BYTES_MAX)
        .await
        .ok()
        .and_then(|body| serde_json::from_slice::<Value>(&body).ok());
    let Some(envelope) = read else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let object = envelope["object"].as_str().unwrap_or_default();
    let wait = if object == "work:7" { 900 } else { 20 };
    sleep(Duration::from_millis(wait)).await;
    let is_seventh = envelope["event"]["n"].as_u64().is_some_and(|n| n % 7 == 0);
    match object {
        "parcel:13" => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the carrier does not answer",
        )
            .into_response(),
        "parcel:21" if is_seventh => {
            (StatusCode::UNPROCESSABLE_ENTITY, "there is no such address").into_response()
        }
        "invoice:4" => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the bank refuses the card",
        )
            .into_response(),
        _ => StatusCode::OK.into_response(),
    }
}
