//! `seriatim worker`.

mod programs;
pub(crate) mod sink;
pub(crate) mod spec;
mod supervised;
#[cfg(feature = "otlp")]
mod traces;

use std::time::Duration;

use seriatim::control::Control;
use seriatim::event::Pointer;
use seriatim::worker::{
    ConfigError, EventLog, RetryPolicy, Scripts, Shutdown, StopReason, UsedUp, UsedUpError, Worker,
    WorkerConfig,
};
use tracing::{info, warn};

use seriatim_console::exit::{Exit, Failure};
use seriatim_console::failures;
use seriatim_console::global::Global;
use seriatim_console::replicas::Replicas;
use seriatim_console::units::{bytes, time};
use seriatim_web::listen::address::Address;
use sink::{ExecArgs, HttpArgs, Opened};
use spec::Spec;
use supervised::Supervised;

/// Module name for log filters: the library's worker.
const LOG: &str = "seriatim::worker";

/// Claim objects that have events, and send their events to a sink, in order.
///
/// Start any number of workers, on any number of machines: only one worker at a time works on an
/// object. When the lease of a killed worker has ended, other workers take over its objects. A
/// worker that starts again under the same name on the same host continues its objects at once.
/// After SIGTERM or Ctrl-C the worker finishes the events in hand and leaves the rest to other
/// workers. A second signal stops it at once. After a rotation of the file of --sink file:PATH,
/// SIGHUP lets the worker open the path again. The files of HTTP sinks are read again at SIGHUP.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The target of events: stdout, file:PATH (NDJSON, one event per line), null (discards them),
    /// http(s)://HOST/PATH[?batch=N] (one request per event, or per list of up to N events of one
    /// object), event-url[:/POINTER] (one request per event, to the URL that the event has at
    /// POINTER, by default /url), exec:COMMAND (handlers in any language, in a program that the
    /// worker starts), stdio (the same, in the program that has started the worker), or
    /// exec-each:COMMAND (one process per event)
    #[arg(long, value_name = "SINK")]
    sink: String,
    /// The name of this worker, unique among running workers: 1 to 64 of A-Z a-z 0-9 _ - [default:
    /// the host's name and 8 hex digits]
    #[arg(long, env = "SERIATIM_NAME", value_name = "NAME")]
    name: Option<String>,
    /// The number of objects whose events are delivered at the same time: 1 to 1024
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().concurrency)]
    concurrency: usize,
    /// The most events of one object given to the sink at once: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().batch)]
    batch: usize,
    /// The most bytes of events in one reply of Redis: 1 to 4MiB. After a failed call the worker
    /// asks for fewer bytes, down to 64KiB
    #[arg(long, value_name = "BYTES", default_value = "2MiB", value_parser = bytes)]
    reply_bytes: usize,
    /// End with exit code 3 if Redis is loading or cannot be reached for this long at the start: up
    /// to 1h [default: wait without a limit]
    #[arg(long, value_name = "TIME", value_parser = time)]
    connect_timeout: Option<Duration>,
    /// Replace the connection to Redis if a call waits for its reply and no byte moves for this
    /// time: 100ms to 10m
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    response_timeout: Duration,
    /// The most events of one object that a worker delivers in a row; then other objects get a turn
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().turn_max)]
    turn_max: usize,
    /// The number of parts of an object's name that are its group; parts end at colons: 0 to 8.
    /// While many objects wait, the groups take turns. 0: no groups, objects are claimed in the
    /// order of their markers
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().group_depth)]
    group_depth: usize,
    /// The time after which other workers take over the objects of a killed worker: 300ms to 1h
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    lease: Duration,
    /// The number of worker processes that may die with an event in hand, and what then becomes of
    /// this event: N[,then=hold|dead-letter|complete-with-errors]
    #[arg(long, value_name = "N", default_value = "5,then=hold", value_parser = crashes_max)]
    crashes_max: (u32, UsedUp),
    /// The time after which a worker whose sink is unavailable gives its objects to other workers:
    /// 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    unavailable_max: Duration,
    /// The longest time that an event waits for a worker that knows it, if this worker's sink does
    /// not know it: up to 30d. Then the event is rejected
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    unknown_max: Duration,
    /// The longest time that the sink may block the worker's threads: 1s to 1h. After that the
    /// worker lets its lease end, and other workers take over its objects. A sink that blocks for
    /// ever ends the worker process
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    stall_max: Duration,
    /// The longest time that a graceful stop waits until the sink has finished the events in hand:
    /// up to 1h
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = time)]
    grace: Duration,
    /// The retry policy after a failure: default, fixed-5m-2, scheduler, minute, or a backoff with
    /// an optional end: fixed:5m | exponential:100ms..1m
    /// [,attempts=N,then=dead-letter|complete-with-errors|hold]
    /// [,rejected=dead-letter|complete-with-errors|hold] (the fate of an event that the sink
    /// rejects) [,jitter=PERCENT] (the spread of each wait: 0 to 100, default 50)
    #[arg(long, value_name = "POLICY", default_value = "default")]
    retry: RetryPolicy,
    /// The retry policy for events whose member "type" is TYPE; may be given more than once
    #[arg(long, value_name = "TYPE=POLICY", value_parser = retry_type)]
    retry_type: Vec<(String, RetryPolicy)>,
    /// Forget an object this long after its last event: 1s to 10years. Its next event then has
    /// "prev" 0 [default: never]
    #[arg(long, env = "SERIATIM_FORGET_AFTER", value_name = "TIME", value_parser = time)]
    forget_after: Option<Duration>,
    /// Write a row to the event log for each finalized event (delivered, completed with errors,
    /// dead), in the step that finalizes it. `seriatim log` shows the log. The value of the
    /// environment variable is true or false, 1 or 0, yes or no, on or off
    #[arg(long, env = "SERIATIM_EVENT_LOG")]
    event_log: bool,
    /// With --event-log: keep about the last N rows
    #[arg(long, env = "SERIATIM_EVENT_LOG_KEEP", value_name = "N", default_value_t = EventLog::default().keep, requires = "event_log")]
    event_log_keep: u64,
    /// With --event-log: keep rows about this long: 1s to 10years [default: no limit]
    #[arg(long, env = "SERIATIM_EVENT_LOG_KEEP_FOR", value_name = "TIME", value_parser = time, requires = "event_log")]
    event_log_keep_for: Option<Duration>,
    /// How Redis runs the script that commits and claims: auto (as a function of a library if Redis
    /// accepts the library), functions (do not start if Redis refuses it), or eval (as a script)
    #[arg(
        long,
        env = "SERIATIM_SCRIPTS",
        value_name = "WAY",
        default_value = "auto"
    )]
    scripts: Scripts,
    /// If another worker has the name, take the name from it at once; the other worker then stops
    #[arg(long)]
    takeover: bool,
    /// Measure the age of events from the time that each event has at this JSON pointer, e.g.
    /// /created. The time is Unix seconds or ms, or RFC 3339. /metrics shows the age
    #[arg(long, value_name = "POINTER")]
    event_time: Option<Pointer>,
    #[command(flatten)]
    replicas: Replicas,
    /// The first id in a Redis without data, for users who want small ids. With this option, ids
    /// are given a second time if Redis loses its data while no worker runs [default: the server's
    /// time in microseconds]
    #[arg(
        long,
        env = "SERIATIM_FIRST_ID",
        value_name = "ID",
        default_value_t = 0,
        hide_default_value = true
    )]
    first_id: u64,
    /// Answer probes and scrapers at this address: HOST:PORT or unix:PATH. /healthz is 200 as long
    /// as the worker's loop runs, whatever Redis and the sink do, and 503 if the loop has stood
    /// still for --stall-max. /readyz is 200 as long as the worker has its name, and 503 from the
    /// first stop signal on. /metrics has the metrics of the worker for Prometheus
    #[arg(long = "http", env = "SERIATIM_HTTP", value_name = "ADDRESS")]
    probes: Option<Address>,
    #[command(flatten)]
    http: Box<HttpArgs>,
    #[command(flatten)]
    exec: ExecArgs,
    #[cfg(feature = "otlp")]
    #[command(flatten)]
    traces: traces::TraceArgs,
}

/// Parses N, or N,then=WORD.
fn crashes_max(text: &str) -> Result<(u32, UsedUp), String> {
    let (count, then) = text.split_once(",then=").unwrap_or((text, "hold"));
    let count = count.parse().map_err(|_| {
        format!("{count:?} is not a number of crashes; write e.g. 5,then=dead-letter")
    })?;
    Ok((
        count,
        then.parse()
            .map_err(|error: UsedUpError| error.to_string())?,
    ))
}

/// Parses TYPE=POLICY, split at the first `=`.
fn retry_type(text: &str) -> Result<(String, RetryPolicy), String> {
    let (event_type, policy) = text
        .split_once('=')
        .ok_or("write TYPE=POLICY, e.g. moved=fixed-5m-2")?;
    let policy = policy
        .parse::<RetryPolicy>()
        .map_err(|error| error.to_string())?;
    Ok((event_type.to_owned(), policy))
}

impl Args {
    /// Returns the settings of the worker.
    fn worker_config(&self, global: &Global) -> anyhow::Result<WorkerConfig> {
        let mut config = WorkerConfig::default();
        config.keys = global.keys()?;
        config.concurrency = self.concurrency;
        config.batch = self.batch;
        config.reply_bytes = self.reply_bytes;
        config.connect_timeout = self.connect_timeout.unwrap_or(Duration::MAX);
        config.response_timeout = self.response_timeout;
        config.turn_max = self.turn_max;
        config.group_depth = self.group_depth;
        config.lease = self.lease;
        (config.crashes_max, config.crashes_then) = self.crashes_max;
        config.unavailable_max = self.unavailable_max;
        config.unknown_max = self.unknown_max;
        config.stall_max = self.stall_max;
        config.grace = self.grace;
        config.retry = self.retry;
        for (event_type, policy) in &self.retry_type {
            if let Some(before) = config.retry_types.insert(event_type.clone(), *policy) {
                let message = format!(
                    "--retry-type {event_type} is given twice, as {before} and as {policy}; give it once"
                );
                return Err(Failure::with(Exit::Input, message));
            }
        }
        config.forget_after = self.forget_after;
        config.event_log = self.event_log.then(|| {
            let mut log = EventLog::default();
            (log.keep, log.keep_for) = (self.event_log_keep, self.event_log_keep_for);
            log
        });
        config.scripts = self.scripts;
        config.takeover = self.takeover;
        config.event_time = self.event_time.clone();
        (config.wait, config.wait_timeout, config.wait_local) = (
            self.replicas.wait,
            self.replicas.wait_timeout,
            self.replicas.wait_local,
        );
        config.first_id = self.first_id;
        if let Some(name) = &self.name {
            config.name = name.clone();
        }
        config.validate().map_err(
            |ConfigError {
                 setting,
                 value,
                 range,
             }| {
                Failure::with(
                    Exit::Input,
                    format!("--{} is {value}; {range}", setting.replace('_', "-")),
                )
            },
        )?;
        Ok(config)
    }

    /// Checks the ranges of the settings, and the sink. Does not connect, and creates no file.
    pub(crate) fn check(&self, global: &Global) -> anyhow::Result<()> {
        let spec = sink::parse(&self.sink)?;
        self.worker_config(global)?;
        #[cfg(feature = "otlp")]
        self.traces.check()?;
        sink::check(&spec, &self.http, &self.exec, self.concurrency, global)
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let spec = sink::parse(&args.sink)?;
    #[cfg_attr(
        not(feature = "otlp"),
        expect(unused_mut, reason = "traces are set below")
    )]
    let mut config = args.worker_config(global)?;
    // The options of the connection are checked before the sink is opened, because opening the sink
    // may create a file.
    global.route()?;
    let name = config.name.clone();
    let shutdown = Shutdown::on_signals()?;
    let supervised = Supervised::open(args.probes.as_ref(), args.stall_max)?;
    #[cfg(feature = "otlp")]
    let exporting = args.traces.begin(&mut config)?;
    sink::warn_of_slips(&args.sink);
    let Opened { sink, exec, gone } = sink::open(
        &spec,
        &args.http,
        &args.exec,
        args.concurrency,
        global,
        &shutdown,
    )?;
    let worker = Worker::builder(global.server())
        .config(config)
        .sink(sink)
        .build()
        .map_err(failures::worker)?;
    warn_of_settings(
        global.clone(),
        args.connect_timeout.unwrap_or(Duration::MAX),
    );
    let _supervised = supervised
        .map(|supervised| {
            let namespace = global.namespace.as_deref();
            supervised.watch(worker.vitals(), exec.clone(), namespace)
        })
        .transpose()?;
    #[cfg(feature = "otlp")]
    let stop = shutdown.clone();
    // The events of a worker without a program would wait, and count a crash if the program never comes.
    if let (Spec::Stdio, Some(exec)) = (&spec, &exec) {
        tokio::select! {
            () = exec.ready() => {}
            () = shutdown.stopped() => {}
        }
    }
    let stopped = worker.run(shutdown).await;
    if let Some(exec) = exec {
        exec.close().await;
    }
    #[cfg(feature = "otlp")]
    if let Some(exporting) = exporting {
        exporting.end(&stop).await;
    }
    if let Some(why) = gone.get() {
        return Err(sink::parent_failure(why));
    }
    let stopped = stopped.map_err(failures::worker)?;
    if stopped.reason == StopReason::Unreachable {
        warn!(target: LOG, name, "stopped without an answer from Redis; others take over when the lease ends");
    }
    info!(target: LOG, name, delivered = stopped.delivered, "stopped");
    Ok(Exit::Done)
}

/// Starts a background task that logs the settings of Redis that break the promise.
fn warn_of_settings(global: Global, patience: Duration) {
    tokio::spawn(tokio::time::timeout(patience, async move {
        loop {
            if let Ok(control) = Control::connect(global.server()).await
                && let Ok(warnings) = control.warnings().await
            {
                return warnings
                    .iter()
                    .for_each(|warning| warn!(target: LOG, "{warning}"));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }));
}
