//! `seriatim bench`: measures seriatim on the user's Redis. For comparison, it measures two simpler
//! systems on the same Redis.
//!
//! - `workload`: the events
//! - `system`: the interface of a measured system. The systems are `seriatim`, `streams` and `raw`
//! - `phases`: the measurements; `tally` checks the deliveries, `pace` times the emits of the
//!   latency phase
//! - `place`, `redis_info`, `redis_benchmark`: the measured Redis
//! - `figures`, `report`: statistics and output
//! - `against`: the same events through other tools
//!
//! All keys are in one namespace, or on a private Redis. If the bench is killed with SIGKILL, the
//! keys of the namespace stay in Redis.

mod against;
mod figures;
mod pace;
mod phases;
mod place;
mod raw;
mod redis_benchmark;
mod redis_info;
mod report;
mod seriatim;
mod streams;
mod system;
mod tally;
mod workload;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ::seriatim::connection::url::connection_info;
use ::seriatim::event::EVENT_BYTES_MAX;
use ::seriatim::keys::Keys;
use ::seriatim::worker::{ConfigError, WorkerConfig};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::shown;
use seriatim_console::stop::stop_signal;

use self::against::Tool;
use self::figures::Samples;
use self::phases::{Phases, Wanted};
use self::place::Target;
use self::raw::Raw;
use self::redis_benchmark::Lpush;
use self::redis_info::Info;
use self::report::Report;
use self::seriatim::Seriatim;
use self::streams::Streams;
use self::workload::{Chain, EVENTS_MAX, PAYLOAD_MIN, Skew, Workload};
use crate::private::{Guard, Listen, Server};
use ::seriatim::control::shares::{NUMBER_MAX, SHARES_MAX};

/// Measure throughput, latency and memory on this Redis, compared with plain streams and lists
///
/// Emits events, and drains them with workers in this process. The sink of these workers only
/// counts. The bench checks that every event came exactly once and in order. Two other systems are
/// measured in turn with seriatim, on the same Redis and with the same payloads. `streams` has 16
/// static partitions on Redis Streams with one consumer each. `raw` is one list that is pushed and
/// popped. The table shows the medians over all repetitions. Compare the ratios of the systems, not
/// their absolute figures.
///
/// The bench works under its own namespace (bench- and 8 hex digits, or --namespace NAME, which
/// must be empty). It touches no other key, and deletes its keys, also after Ctrl-C. Memory and
/// processor time are those of the whole server. So other users of the server disturb the figures,
/// and the bench slows these users down. The Redis user needs every command on these keys. With
/// --private the bench starts its own redis-server on the loopback interface. With --private it
/// uses no namespace, so that the bytes per event are those of plain keys.
#[derive(Debug, clap::Args, Serialize)]
pub struct Args {
    /// Start a private Redis and measure it, instead of the Redis that --redis names; redis-server
    /// >= 7.0 or valkey-server must be on the PATH, or SERIATIM_REDIS_SERVER names one
    #[arg(long)]
    private: bool,
    /// The number of objects: 1 to 10000000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    objects: u64,
    /// The number of events emitted in each phase: 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    events: u64,
    /// The size of an event, which is a JSON object: 32 to 1048576 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    payload: usize,
    /// The spread of events over objects: zipf:EXPONENT (0 to 10), uniform, distinct (each event
    /// has its own object), single (all events have one object)
    #[arg(long, value_name = "SKEW", default_value_t = Skew::Zipf(1.0))]
    #[serde(serialize_with = "shown_as_text")]
    skew: Skew,
    /// The number of groups over which the objects are spread: 0 to 100000. The workers then run
    /// with --group-depth 1. 0: no groups
    #[arg(long, value_name = "N", default_value_t = 0)]
    groups: u32,
    /// Gives each group a share with a limit of objects in hand, 1 to 1000000. This needs 1 to 1024
    /// groups. The groups of other systems have no limit
    #[arg(long, value_name = "N", requires = "groups")]
    in_flight: Option<u64>,
    /// The number of emits in flight when events are emitted one by one: 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 64)]
    producers: usize,
    /// The number of workers that drain. Each has its own name and slots, like a worker process: 1
    /// to 64
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The number of objects that each worker delivers at the same time: 1 to 1024
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().concurrency)]
    concurrency: usize,
    /// The most events of one object given to the sink at once: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = WorkerConfig::default().batch)]
    batch: usize,
    /// The number of events emitted per second in the latency phase: 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 500)]
    rate: u32,
    /// The number of repetitions: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 5)]
    repetitions: u32,
    /// The number of repetitions at the start that are not counted: 0 to 1000
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u32,
    /// The phases to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PHASE,...",
        default_value = "enqueue,drain,both,latency,memory"
    )]
    phases: Vec<Phase>,
    /// Spread the events over objects as an earlier run did: the seed that the earlier run printed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Compare with these tools instead, on a private Redis: the same events, the order of each
    /// object checked. seriatim also runs with its packages for their languages. Installs the tools,
    /// with npm and pip
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "TOOL,...",
        conflicts_with_all = ["groups", "in_flight", "phases"]
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    against: Vec<Tool>,
    /// The folder for the tools of --against [default: seriatim/against in XDG_CACHE_HOME or
    /// ~/.cache]
    #[arg(long, value_name = "DIR", requires = "against")]
    #[serde(skip)]
    against_dir: Option<PathBuf>,
    /// The most seconds for one step of a tool of --against: 1 to 3600
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        requires = "against"
    )]
    #[serde(skip)]
    time_limit: u64,
    /// Print one JSON object, with every repetition, instead of a table
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Phase {
    /// Rate of emits in bulk, and of emits one by one with many in flight; processor time of Redis
    /// per event
    Enqueue,
    /// Rate of draining the queues after each of the two kinds of emits; processor time of Redis
    /// per event
    Drain,
    /// Rate of emits one by one while workers drain
    Both,
    /// Time from the planned time of an emit to the arrival of its event at the sink, at a fixed
    /// rate for 3 s; processor time of Redis per event
    Latency,
    /// Bytes per queued event, and per idle object
    Memory,
}

fn shown_as_text<S: serde::Serializer>(
    value: &impl fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub async fn run(mut args: Args, global: &Global) -> anyhow::Result<Exit> {
    let mut config = args.checked()?;
    args.seed.get_or_insert_with(|| fastrand::u64(..1_000_000));
    let mut guard = None;
    let mut server = None;
    let private = args.private || !args.against.is_empty();
    let (url, keys) = if private {
        let guard = guard.insert(Guard::start()?);
        let (started, _) = Server::start(guard, Listen::Loopback).await?;
        (server.insert(started).url.clone(), Keys::new())
    } else {
        let namespace = global
            .namespace
            .clone()
            .unwrap_or_else(|| format!("bench-{:08x}", fastrand::u32(..)));
        if global.route()?.is_more_than_tcp() {
            return Err(Failure::with(
                Exit::Input,
                "a bench measures over redis:// only, without TLS and without Sentinels",
            ));
        }
        let keys =
            Keys::with_namespace(&namespace).map_err(|error| Failure::with(Exit::Input, error))?;
        (global.redis.clone(), keys)
    };
    config.keys = keys.clone();
    let info = connection_info(&url).map_err(|error| Failure::with(Exit::Input, error))?;
    let place = Target::claim(url, info, keys, private).await?;
    // If a stop signal comes first, the future of the measurement is dropped. This also ends all
    // its tasks that write to Redis.
    let measuring = async {
        match &mut guard {
            Some(guard) if !args.against.is_empty() => {
                against::measure(&args, config, &place, guard).await
            }
            _ => measure(&args, config, &place).await,
        }
    };
    let measured = tokio::select! {
        measured = measuring => measured,
        stopped = stop_signal() => stopped.and(Err(Failure::with(Exit::Broken, "stopped by a signal; all written keys are deleted"))),
    };
    let cleaned = tokio::select! {
        cleaned = clean_up(&place) => cleaned,
        stopped = stop_signal() => stopped.and(Err(Failure::with(Exit::Broken, left_behind(&place, "stopped by a second signal")))),
    };
    drop((server, guard));
    let text = measured.and_then(|text| cleaned.map(|()| text))?;
    shown::print(&text)?;
    Ok(Exit::Done)
}

/// Deletes all keys of the run. Does so twice, because commands that were in flight when the run
/// stopped may write keys after the first deletion.
async fn clean_up(place: &Target) -> anyhow::Result<()> {
    if place.is_private() {
        return Ok(());
    }
    for _ in 0..2 {
        place
            .clean()
            .await
            .map_err(|error| Failure::with(Exit::Redis, left_behind(place, &error.to_string())))?;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    Ok(())
}

fn left_behind(place: &Target, why: &str) -> String {
    format!(
        "{why}; keys that begin with {} may be left, delete them",
        place.keys.prefix()
    )
}

async fn measure(args: &Args, config: WorkerConfig, place: &Target) -> anyhow::Result<String> {
    let progress = Progress::new(args, 5);
    progress.say(&args.describe(place));
    let (load, of_one, of_many) = args.workload().await?;
    let phases = Phases {
        place: place.clone(),
        load: Arc::new(load),
        of_one: Arc::new(of_one),
        of_many: Arc::new(of_many),
        producers: args.producers,
        per_second: args.rate,
        wanted: args.wanted(),
    };
    let limits = args.in_flight.map(|objects| (args.groups, objects));
    let ours = Seriatim {
        place: place.clone(),
        config,
        workers: args.workers,
        limits,
    };
    let (streams, raw) = (
        Streams {
            place: place.clone(),
        },
        Raw {
            place: place.clone(),
        },
    );
    let mut lpush = Lpush::new(place, args.payload, args.events);
    let (mut samples, mut unused) = (Samples::default(), Samples::default());
    for round in 0..args.warm_up + args.repetitions {
        let record = round >= args.warm_up;
        let out = if record { &mut samples } else { &mut unused };
        // In each phase, the systems are measured directly one after another, so that a disturbance
        // of the machine affects all of them.
        macro_rules! in_turn {
            ($($phase:ident)*) => {$(
                progress.at(round, stringify!($phase));
                phases.$phase(&ours, out).await?;
                phases.$phase(&streams, out).await?;
                phases.$phase(&raw, out).await?;
            )*};
        }
        in_turn!(bulk single both latency);
        progress.at(round, "redis-benchmark");
        lpush.run(place, record).await?;
    }
    progress.end();
    let version = Info::ask(&place.conn).await?.version().to_owned();
    let report = Report {
        settings: args,
        redis: report::Redis {
            version,
            private: place.is_private(),
        },
        objects_used: phases.load.objects_used(),
        figures: &samples,
        redis_benchmark: (&lpush, &samples),
    };
    if args.json {
        report.json()
    } else {
        report.table()
    }
}

impl Args {
    /// Checks that all numbers are in their ranges. Returns the settings of the workers.
    fn checked(&self) -> anyhow::Result<WorkerConfig> {
        let in_range = |option: &str, value: u64, min: u64, max: u64, what: &str| {
            let wrong = || {
                Failure::with(
                    Exit::Input,
                    format!("--{option} is {value}; it must be {min} to {max} {what}"),
                )
            };
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(wrong())
            }
        };
        in_range("objects", self.objects, 1, 10_000_000, "objects")?;
        in_range("events", self.events, 1, EVENTS_MAX, "events")?;
        in_range(
            "payload",
            self.payload as u64,
            PAYLOAD_MIN as u64,
            EVENT_BYTES_MAX as u64,
            "bytes",
        )?;
        in_range("groups", u64::from(self.groups), 0, 100_000, "groups")?;
        if let Some(objects) = self.in_flight {
            in_range("in-flight", objects, 1, NUMBER_MAX, "objects")?;
            in_range(
                "groups",
                u64::from(self.groups),
                1,
                SHARES_MAX,
                "groups with --in-flight",
            )?;
        }
        in_range(
            "producers",
            self.producers as u64,
            1,
            10_000,
            "emits in flight",
        )?;
        in_range("workers", self.workers as u64, 1, 64, "workers")?;
        in_range(
            "rate",
            u64::from(self.rate),
            1,
            100_000,
            "events per second",
        )?;
        in_range(
            "repetitions",
            u64::from(self.repetitions),
            1,
            1000,
            "repetitions",
        )?;
        in_range("warm-up", u64::from(self.warm_up), 0, 1000, "repetitions")?;
        in_range("time-limit", self.time_limit, 1, 3600, "seconds")?;
        for (at, tool) in self.against.iter().enumerate() {
            if self.against[..at].contains(tool) {
                let name = tool.to_possible_value();
                let name = name.as_ref().map_or("", |value| value.get_name());
                return Err(Failure::with(
                    Exit::Input,
                    format!("--against has {name} twice; name each tool once"),
                ));
            }
        }
        let mut config = WorkerConfig::default();
        config.concurrency = self.concurrency;
        config.batch = self.batch;
        config.group_depth = usize::from(self.groups > 0);
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

    fn wanted(&self) -> Wanted {
        let has = |phase| self.phases.contains(&phase);
        Wanted {
            enqueue: has(Phase::Enqueue),
            drain: has(Phase::Drain),
            both: has(Phase::Both),
            latency: has(Phase::Latency),
            memory: has(Phase::Memory),
        }
    }

    /// Returns the events of the run, and two chains: the order of the events if one producer emits
    /// them, and the order if `--producers` producers emit them.
    async fn workload(&self) -> anyhow::Result<(Workload, Chain, Chain)> {
        let (payload, skew, seed, producers) = (
            self.payload,
            self.skew,
            self.seed.unwrap_or_default(),
            self.producers,
        );
        let (events, objects, groups) = (
            u32::try_from(self.events)?,
            u32::try_from(self.objects)?,
            self.groups,
        );
        let made = tokio::task::spawn_blocking(move || {
            let load = Workload::new(events, objects, groups, payload, skew, seed);
            let chains = (load.chain(1), load.chain(producers));
            (load, chains.0, chains.1)
        });
        Ok(made.await?)
    }

    fn describe(&self, place: &Target) -> String {
        let number = |n: u64| indicatif::HumanCount(n);
        let seed = self.seed.unwrap_or_default();
        let whereabouts = if place.is_private() {
            "a private Redis".to_owned()
        } else {
            format!("keys {}*", place.keys.prefix())
        };
        let objects = match self.skew {
            Skew::Distinct => "of an object each".to_owned(),
            Skew::Single => "of one object".to_owned(),
            skew => format!("of {} objects, {skew}, --seed {seed}", number(self.objects)),
        };
        let groups = match self.groups {
            0 => String::new(),
            1 => ", one group".to_owned(),
            groups => format!(", {} groups", number(groups.into())),
        };
        let limits = self.in_flight.map_or_else(String::new, |objects| {
            format!(", each with at most {} objects in hand", number(objects))
        });
        format!(
            "{} events of {} bytes, {objects}{groups}{limits}; {whereabouts}",
            number(self.events),
            number(self.payload as u64)
        )
    }
}

/// Progress for a person: a bar, or a line for each repetition if there is no terminal.
struct Progress {
    bar: ProgressBar,
    warm_up: u32,
    rounds: u32,
}

impl Progress {
    /// `phases`: the number of phases in a repetition.
    fn new(args: &Args, phases: u64) -> Self {
        let rounds = args.warm_up + args.repetitions;
        let bar = ProgressBar::new(u64::from(rounds) * phases);
        let style = ProgressStyle::with_template("{msg:>32} {wide_bar:.cyan/blue} {elapsed}");
        Self {
            bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            warm_up: args.warm_up,
            rounds,
        }
    }

    fn say(&self, what: &str) {
        self.bar.suspend(|| shown::say(what));
    }

    fn at(&self, round: u32, phase: &str) {
        let what = match round.checked_sub(self.warm_up) {
            None => format!("warm-up {} of {}", round + 1, self.warm_up),
            Some(repetition) => format!(
                "repetition {} of {}",
                repetition + 1,
                self.rounds - self.warm_up
            ),
        };
        if self.bar.is_hidden() {
            if phase == "bulk" {
                shown::say(&what);
            }
        } else {
            self.bar.set_message(format!("{what}: {phase}"));
            self.bar.inc(1);
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
