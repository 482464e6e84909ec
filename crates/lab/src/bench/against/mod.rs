//! `seriatim bench --against`: the same events through other tools, on a private Redis.
//!
//! - `rows`: the rows of the table, and their programs, which the binary carries
//! - `install`: writes the programs into a folder, and installs the tools there
//! - `program`: a running program of a tool, and its commands
//! - `notes`: the check of the order, by the notes of handlers
//! - `slow`: the handlers in Rust that take time
//! - `table`: the output
//!
//! The row of Rust is measured by the phases of the other systems. Its time ends with the commit of the
//! last event; that of a program ends when its last handler begins.

mod install;
mod notes;
mod program;
mod rows;
mod slow;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use self::install::Installed;
use self::notes::Notes;
use self::program::Program;
use self::rows::{RUST, Row};
use self::table::Table;
use super::figures::{Figure, Samples};
use super::phases::{LATENCY_TIME, Phases, Wanted, cpu_us_since};
use super::place::Target;
use super::redis_info::Info;
use super::seriatim::Seriatim;
use super::workload::{Chain, Workload};
use super::{Args, Progress};
use crate::private::Guard;
use crate::statistics::percentile;
use ::seriatim::worker::WorkerConfig;

/// Number of events whose handlers take time, and the longest time of such a handler.
const SLOW_EVENTS: usize = 1000;
const SLOW_TIME: Duration = Duration::from_millis(2);

/// A tool that is compared with seriatim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tool {
    /// BullMQ (Node), with concurrency 1, which keeps the order, and with 64, which does not
    Bullmq,
    /// Celery (Python), with one worker of concurrency 1
    Celery,
    /// groupmq (Node), with a group for each object
    Groupmq,
}

/// The events, and what all rows of a run share.
struct Run<'a> {
    place: &'a Target,
    load: Arc<Workload>,
    chain: Arc<Chain>,
    /// The file into which a program writes its notes.
    file: PathBuf,
}

pub(super) async fn measure(
    args: &Args,
    config: WorkerConfig,
    place: &Target,
    guard: &mut Guard,
) -> anyhow::Result<String> {
    let rows = Row::of(&args.against);
    let installed = Installed::new(&rows, args.against_dir.clone()).await?;
    let rows: Vec<&Row> = rows.into_iter().filter(|row| installed.has(row)).collect();
    let progress = Progress::new(args, 3);
    progress.say(&args.describe(place));
    let (load, chain, of_many) = args.workload().await?;
    let phases = Phases {
        place: place.clone(),
        load: Arc::new(load),
        of_one: Arc::new(chain),
        of_many: Arc::new(of_many),
        producers: args.producers,
        per_second: args.rate,
        wanted: Wanted {
            enqueue: true,
            drain: true,
            both: false,
            latency: true,
            memory: true,
        },
    };
    let ours = Seriatim {
        place: place.clone(),
        config,
        workers: args.workers,
        limits: None,
    };
    let run = Run {
        place,
        load: Arc::clone(&phases.load),
        chain: Arc::clone(&phases.of_one),
        file: guard.dir().join("notes"),
    };
    let keys = guard.dir().join("keys");
    std::fs::write(&keys, run.keys()).context("cannot write to the temporary directory")?;
    let limit = Duration::from_secs(args.time_limit);
    let mut programs = Vec::with_capacity(rows.len());
    for row in &rows {
        let arguments = [
            place.url.clone(),
            keys.display().to_string(),
            args.payload.to_string(),
        ];
        let command = installed.command(row, arguments)?;
        programs.push(Program::start(row, command, guard, limit)?);
    }
    let (mut samples, mut unused) = (Samples::default(), Samples::default());
    for round in 0..args.warm_up + args.repetitions {
        let out = if round >= args.warm_up {
            &mut samples
        } else {
            &mut unused
        };
        progress.at(round, "bulk");
        phases.bulk(&ours, out).await?;
        for program in &mut programs {
            run.bulk(program, out).await?;
        }
        progress.at(round, "latency");
        phases.latency(&ours, out).await?;
        for program in &mut programs {
            run.latency(program, args.rate, out).await?;
        }
        progress.at(round, "order");
        let notes = slow::notes(&ours, &run.load, run.slow_events()).await?;
        run.check(&notes, RUST, run.slow_events(), out)?;
        for program in &mut programs {
            run.slow(program, out).await?;
        }
    }
    for program in programs {
        program.end(guard).await;
    }
    progress.end();
    let mut versions = installed.versions;
    let info = Info::ask(&place.conn).await?;
    versions.insert("redis", info.version().to_owned());
    let table = Table {
        settings: args,
        versions,
        events: run.load.events(),
        slow_events: run.slow_events(),
        rows: &rows,
        samples: &samples,
    };
    if args.json {
        table.json()
    } else {
        table.markdown()
    }
}

impl Run<'_> {
    /// Returns the key of each event, a line each.
    fn keys(&self) -> String {
        let keys = (0..self.load.events()).map(|event| self.load.object(event));
        keys.flat_map(|key| [key, "\n"]).collect()
    }

    fn slow_events(&self) -> usize {
        SLOW_EVENTS.min(self.load.events())
    }

    /// Enqueues the events in bulk, then drains them.
    async fn bulk(&self, program: &mut Program, out: &mut Samples) -> anyhow::Result<()> {
        let (place, name) = (self.place, program.row.name);
        let events = program.row.events(self.load.events());
        place.clean().await?;
        let before = Info::ask(&place.conn).await?;
        let took_ms: f64 = program.ask(&format!("enqueue {events}")).await?;
        let cpu_us = cpu_us_since(&before, place, events).await?;
        out.add(Figure::EnqueueBulkCpu, name, cpu_us);
        out.add(Figure::EnqueueBulk, name, events as f64 / took_ms * 1e3);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let queued = Info::ask(&place.conn).await?;
        let bytes = queued.memory_bytes() - before.memory_bytes();
        out.add(Figure::BytesQueued, name, bytes / events as f64);
        let () = program.ask(&self.drain(events, Duration::ZERO)).await?;
        let cpu_us = cpu_us_since(&queued, place, events).await?;
        out.add(Figure::DrainBulkCpu, name, cpu_us);
        let notes = self.notes(program, events, out)?;
        out.add(
            Figure::DrainBulk,
            name,
            events as f64 / notes.took_ms() * 1e3,
        );
        Ok(())
    }

    /// Emits events at a fixed rate, while the worker handles them.
    async fn latency(
        &self,
        program: &mut Program,
        rate: u32,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        let events = (LATENCY_TIME.as_secs_f64() * f64::from(rate)) as usize;
        let events = events.clamp(1, self.load.events());
        self.place.clean().await?;
        let command = format!("latency {events} {} {rate}", self.file.display());
        let emitted_ms: Vec<f64> = program.ask(&command).await?;
        let notes = self.notes(program, events, out)?;
        let took = notes.since(&emitted_ms);
        for (figure, percent) in [(Figure::LatencyP50, 50.0), (Figure::LatencyP99, 99.0)] {
            let ms = percentile(&took, percent).context("nothing was measured")?;
            out.add(figure, program.row.name, ms);
        }
        Ok(())
    }

    /// Drains events whose handlers take time, so that handlers of one key can be seen to overlap.
    async fn slow(&self, program: &mut Program, out: &mut Samples) -> anyhow::Result<()> {
        let events = self.slow_events();
        self.place.clean().await?;
        let _: f64 = program.ask(&format!("enqueue {events}")).await?;
        let () = program.ask(&self.drain(events, SLOW_TIME)).await?;
        self.notes(program, events, out).map(|_| ())
    }

    fn drain(&self, events: usize, handler_takes: Duration) -> String {
        let ms = handler_takes.as_millis();
        format!("drain {events} {} {ms}", self.file.display())
    }

    /// Reads the notes that a program has written, and checks them.
    fn notes(&self, program: &Program, events: usize, out: &mut Samples) -> anyhow::Result<Notes> {
        let text = std::fs::read_to_string(&self.file)
            .and_then(|text| std::fs::remove_file(&self.file).map(|()| text))
            .with_context(|| format!("{} has left no notes", program.row.name))?;
        // A Python worker also leaves the file that says that it is ready.
        let _ = std::fs::remove_file(self.file.with_extension("ready"));
        self.check(&text, program.row.name, events, out)
    }

    fn check(
        &self,
        text: &str,
        name: &'static str,
        events: usize,
        out: &mut Samples,
    ) -> anyhow::Result<Notes> {
        let notes = Notes::read(text, &self.load, &self.chain, events)
            .map_err(|why| program::failed(name, &why))?;
        out.add(Figure::OutOfOrder, name, notes.out_of_order as f64);
        out.add(Figure::Handled, name, events as f64);
        Ok(notes)
    }
}
