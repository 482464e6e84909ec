//! `seriatim exporter`.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use seriatim::control::Control;
use seriatim::escape;
use seriatim::event::ObjectName;
use seriatim::metrics::prometheus_client::registry::Registry;
use seriatim::metrics::{NamespaceMetrics, PREFIXES_MAX};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::named;
use seriatim_console::notify::Notices;
use seriatim_console::reach::Reached;
use seriatim_console::shown;
use seriatim_console::stop::stop_signals;
use seriatim_web::listen::address::Address;
use seriatim_web::listen::{Listening, metrics, probes};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Module name for log filters.
const LOG: &str = "seriatim::exporter";
/// The most connections of scrapers and probes.
const CONNECTIONS_MAX: u32 = 256;
/// The age up to which the result of a look at Redis is used for further scrapes.
const LOOK_AGE_MAX: Duration = Duration::from_secs(1);
/// The time between two marks. `MARK_AGAIN`: the time until the next try after a mark that failed.
const MARK_EVERY: Duration = Duration::from_secs(1);
const MARK_AGAIN: Duration = Duration::from_secs(10);
/// The time between two counts of the queues.
const COUNT_AGAIN: Duration = Duration::from_secs(10);
/// The time between two checks: of the shared keys, and of all keys.
const CHECK_AGAIN: Duration = Duration::from_secs(10);
/// The longest time of a look at Redis.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// Serve the metrics of the namespace for Prometheus: /metrics, and /healthz and /readyz for probes
///
/// One exporter is enough for a namespace. It looks at Redis when it is scraped, but at most once
/// per second. Anybody who can reach the address may scrape the exporter. If its Redis user has the
/// right, the exporter pushes a mark once per second. So the age of the oldest marker is known even
/// if no worker runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9188")]
    listen: Address,
    /// Count the queued events, over and over, with 1 % of Redis' time
    ///
    /// With prefixes (at most 20), each prefix has its own series, and all other objects have one
    /// series together. A prefix is the name of an object up to one of its colons, escaped as the
    /// commands print names: --depth=work,mail:batch. An object counts for the longest prefix
    #[arg(long, value_name = "PREFIX,…", num_args = 0.., require_equals = true, value_delimiter = ',', value_parser = depth_prefix)]
    depth: Option<Vec<String>>,
    /// Check the invariants of all objects, over and over, with 1 % of Redis' time
    ///
    /// Without this option the exporter only checks the keys that all objects share. A lost key of an
    /// object, or a lost `objects.held`, shows only in a check of all objects.
    #[arg(long)]
    check: bool,
}

/// Parses a prefix of `--depth`.
fn depth_prefix(text: &str) -> Result<String, String> {
    let prefix = named::text(text)?;
    match prefix
        .strip_suffix('*')
        .unwrap_or(&prefix)
        .strip_suffix(':')
    {
        Some(bare) => Err(format!(
            "a prefix has no colon and no star at its end; write {:?}",
            escape::name(bare)
        )),
        None => ObjectName::new(&prefix)
            .map_err(|error| error.to_string())
            .map(|_| prefix),
    }
}

/// The parts that all scrapes share.
struct Exporter {
    control: Control,
    metrics: NamespaceMetrics,
    registry: Registry,
    looked_at: Mutex<Option<Instant>>,
    /// Whether the last look at Redis failed. Only the first of several failures is logged.
    has_failed: AtomicBool,
    reached: Reached,
    stop: CancellationToken,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let mut stopping = stop_signals()?;
    global.route()?;
    let keys = global.keys()?;
    let prefixes = args.depth.as_ref().map_or(0, Vec::len);
    if prefixes > PREFIXES_MAX {
        return Err(Failure::with(
            Exit::Input,
            format!("--depth has {prefixes} prefixes; at most {PREFIXES_MAX} are allowed"),
        ));
    }
    let listening = Listening::for_probes(&args.listen, CONNECTIONS_MAX).await?;
    let control = Control::unconnected(global.server())
        .map_err(shown::failure)?
        .with_keys(keys);
    let reached = Reached::default();
    reached.first(control.now_ms()).await?;
    let waiting = {
        let (reached, control) = (reached.clone(), control.clone());
        async move { reached.until(async || control.now_ms().await).await }
    };
    let (metrics, stop) = (NamespaceMetrics::default(), CancellationToken::new());
    let registry = metrics::registry(global.namespace.as_deref(), |registry| {
        registry.register_collector(Box::new(metrics.clone()))
    });
    let marking = mark(control.clone());
    let counting = count(control.clone(), metrics.clone(), args.depth);
    let checking = check(control.clone(), metrics.clone(), args.check);
    let exporter = Exporter {
        control,
        metrics,
        registry,
        looked_at: Mutex::default(),
        has_failed: AtomicBool::new(false),
        reached,
        stop: stop.clone(),
    };
    let mut notices = Notices::begin();
    notices.tell(true, false);
    let serving = listening.serve(routes(&Arc::new(exporter)), stop.clone());
    tokio::pin!(serving, marking, counting, checking, waiting);
    tokio::select! {
        served = &mut serving => served?,
        failed = &mut waiting => failed?,
        () = &mut marking => {}
        () = &mut counting => {}
        () = &mut checking => {}
        () = stopping.next() => {
            notices.tell(true, true);
            stop.cancel();
            serving.await?;
        }
    }
    Ok(Exit::Done)
}

/// Pushes marks until the future is dropped.
async fn mark(control: Control) {
    let mut has_told = false;
    loop {
        let failed = match timeout(LOOK_TIME_MAX, control.mark()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("Redis did not reply within {LOOK_TIME_MAX:?}")),
        };
        if let Some(error) = &failed
            && !std::mem::replace(&mut has_told, true)
        {
            info!(target: LOG, error, "the exporter pushes no marks; without workers the age of the oldest marker is unknown");
        }
        has_told &= failed.is_some();
        sleep(if failed.is_some() {
            MARK_AGAIN
        } else {
            MARK_EVERY
        })
        .await;
    }
}

/// Counts the queued events again and again until the future is dropped. If `prefixes` is `None`,
/// counts nothing.
async fn count(control: Control, metrics: NamespaceMetrics, prefixes: Option<Vec<String>>) {
    let Some(prefixes) = prefixes else {
        return pending().await;
    };
    loop {
        // A failed count is not reported here, because the next look at Redis reports the failure.
        let _ = metrics.count(&control, &prefixes).await;
        sleep(COUNT_AGAIN).await;
    }
}

/// Checks the shared keys again and again until the future is dropped, and all keys if `all` is set.
/// A failed check is not reported here, because the next look at Redis reports the failure.
async fn check(control: Control, metrics: NamespaceMetrics, all: bool) {
    let shared = async {
        loop {
            let _ = timeout(LOOK_TIME_MAX, metrics.check_shared(&control)).await;
            sleep(CHECK_AGAIN).await;
        }
    };
    let whole = async {
        if !all {
            pending::<()>().await;
        }
        loop {
            let _ = metrics.check(&control).await;
            sleep(CHECK_AGAIN).await;
        }
    };
    tokio::select! {
        () = shared => {}
        () = whole => {}
    }
}

fn routes(exporter: &Arc<Exporter>) -> Router {
    let (scraped, ready) = (exporter.clone(), exporter.clone());
    Router::new()
        .route(metrics::METRICS, get(async move || scraped.scrape().await))
        .route(
            probes::HEALTH,
            get(async || probes::answer(Ok::<(), &str>(()))),
        )
        .route(
            probes::READY,
            get(async move || probes::answer(ready.ready())),
        )
}

impl Exporter {
    /// Returns the answer to a scrape. Scrapes that come within a second share one look at Redis.
    async fn scrape(&self) -> axum::response::Response {
        let mut looked_at = self.looked_at.lock().await;
        if looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGE_MAX) {
            let failed = match timeout(LOOK_TIME_MAX, self.metrics.look(&self.control)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => {
                    self.metrics.forget();
                    Some(format!("no reply within {LOOK_TIME_MAX:?}"))
                }
            };
            let had_failed = self.has_failed.swap(failed.is_some(), Ordering::Relaxed);
            match failed {
                Some(error) if !had_failed => {
                    warn!(target: LOG, error, "Redis cannot be asked; until it can, seriatim_up is 0")
                }
                None if had_failed => info!(target: LOG, "Redis can be asked again"),
                _ => {}
            }
            *looked_at = Some(Instant::now());
        }
        drop(looked_at);
        metrics::answer(&self.registry)
    }

    fn ready(&self) -> Result<(), &'static str> {
        if self.stop.is_cancelled() {
            Err("the exporter stops")
        } else {
            self.reached.ready()
        }
    }
}
