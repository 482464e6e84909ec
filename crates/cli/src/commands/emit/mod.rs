//! `seriatim emit`: emits one event from the command line, or a file of events.
//!
//! A file is emitted in batches, each in one transaction. So when the command ends early, the first
//! lines are acknowledged and the last lines are not sent. After a lost connection, there is one
//! batch between them whose outcome is unknown. The final message names these parts by line number.

mod lines;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use seriatim::emit::{EmitManyError, ScheduleManyError};
use seriatim::escape;
use seriatim::event::Json;
use seriatim::event::Pointer;
use seriatim::{EmitError, Emitter};
use tokio::sync::mpsc;

use lines::{Batch, LINES_MAX, Read, Source};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::failures;
use seriatim_console::global::Global;
use seriatim_console::named;
use seriatim_console::replicas::Replicas;
use seriatim_console::shown::{self, Level};
use seriatim_console::units;

/// Emit one event, or a file of events
///
/// `seriatim emit OBJECT EVENT` queues one JSON event for an object, and prints nothing on success.
/// Subevents follow the event directly; no other event comes between them.
///
/// `seriatim emit --from FILE` emits a file of lines such as
/// {"object":"work:1","event":{"type":"created"}}, in order. It stops at the first invalid line, or at one
/// with subevents or data, and prints how to continue. --tasks schedules a file of tasks.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "seriatim emit [OPTIONS] OBJECT EVENT [SUBEVENT]...\n       seriatim emit [OPTIONS] --from FILE",
    after_help = "Examples:\n  seriatim emit work:1 '{\"type\":\"created\"}'\n  seriatim emit --from events.ndjson.gz\n  \
                  seriatim emit --from - --object-field /id --event-field '' < changes.ndjson"
)]
pub(crate) struct Args {
    /// The object of the event, e.g. work:1, as the commands print it: \\ is a backslash
    #[arg(value_name = "OBJECT", value_parser = named::text, required_unless_present_any = ["from", "tasks"], conflicts_with_all = ["from", "tasks"])]
    object: Option<String>,
    /// The event as JSON; further arguments are its subevents
    #[arg(value_name = "EVENT", required_unless_present_any = ["from", "tasks"], conflicts_with_all = ["from", "tasks"], allow_negative_numbers = true)]
    events: Vec<String>,
    /// Also set the object's state (the key OBJECT:data), as JSON, in the same step
    #[arg(long, value_name = "JSON", conflicts_with_all = ["from", "tasks"], allow_negative_numbers = true)]
    data: Option<String>,
    /// Emit every line of this file: JSON lines, plain or gzip; - is standard input
    #[arg(long, value_name = "FILE")]
    from: Option<String>,
    /// Schedule every line of this file as a task. A line is JSON as with --from:
    /// {"key","id","time","url",…}. `key` is the object, and the whole line is the event. A later
    /// line with the same key and id replaces an earlier line. `time` is Unix seconds (a number or a
    /// string, also with a fraction), or 2026-12-24T18:00:00Z
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "object_field", "event_field"])]
    tasks: Option<String>,
    /// The place of the object's name in a line: a JSON pointer (RFC 6901). If several members have
    /// the same name, the last one counts
    #[arg(long, value_name = "POINTER", default_value = "/object")]
    object_field: Pointer,
    /// The place of the event in a line: a JSON pointer; '' is the whole line
    #[arg(long, value_name = "POINTER", default_value = "/event")]
    event_field: Pointer,
    /// Do not emit the first N lines of the file, e.g. because they are already emitted. Empty
    /// lines are counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// Queue the event after this time, e.g. 10m, counted by Redis' clock
    #[arg(long = "in", value_name = "DURATION", value_parser = units::time, conflicts_with_all = ["from", "tasks", "data", "at"])]
    after: Option<Duration>,
    /// Queue the event at this time: 2026-12-24T18:00:00+01:00, or Unix seconds. To give the event
    /// a key, use `seriatim schedule add`
    #[arg(long, value_name = "TIME", value_parser = units::instant, conflicts_with_all = ["from", "tasks", "data"])]
    at: Option<SystemTime>,
    /// Queue the events only if no emit for this object had the same KEY in the last 24 hours. So
    /// the command can be repeated
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "tasks", "after", "at"])]
    idempotency_key: Option<String>,
    #[command(flatten)]
    replicas: Replicas,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let keys = global.keys()?;
    let tasks = args.tasks.is_some();
    match args.from.or(args.tasks) {
        Some(from) => {
            // The file is opened first, so that a wrong file name is reported even without a
            // running Redis.
            let source = Source::open(&from).map_err(|error| {
                Failure::with(Exit::Input, format!("cannot read {from}: {error}"))
            })?;
            let emitter = connect(global, keys, &args.replicas).await?;
            let (object_field, event_field) = match tasks {
                true => (
                    "/key".parse().map_err(anyhow::Error::msg)?,
                    "".parse().map_err(anyhow::Error::msg)?,
                ),
                false => (args.object_field, args.event_field),
            };
            let read = lines::Plan {
                tasks,
                object_field,
                event_field,
                skip: args.skip,
                keys: emitter.keys().clone(),
            };
            let emitter = emitter.with_chunk(LINES_MAX, usize::MAX);
            File {
                emitter,
                name: source.name().to_owned(),
                skip: args.skip,
                events: 0,
            }
            .emit(source, read)
            .await
        }
        None => {
            // Clap guarantees that the object and the event are present.
            let object = args.object.unwrap_or_default();
            let mut events = args.events.into_iter().map(Json::new);
            let emitter = connect(global, keys, &args.replicas).await?;
            if args.after.is_some() || args.at.is_some() {
                if events.len() > 1 {
                    return Err(Failure::with(
                        Exit::Input,
                        "--in and --at take one event, without subevents",
                    ));
                }
                let schedule =
                    emitter.schedule(object, events.next().unwrap_or_else(|| Json::new("")));
                let schedule = match (args.after, args.at) {
                    (Some(after), _) => schedule.after(after),
                    (None, at) => schedule.at(at.unwrap_or(UNIX_EPOCH)),
                };
                schedule.send().await.map_err(failures::emit)?;
                return Ok(Exit::Done);
            }
            let mut emit = emitter.event(object, events.next().unwrap_or_else(|| Json::new("")));
            for sub in events {
                emit = emit.sub(sub);
            }
            if let Some(data) = args.data {
                emit = emit.data(Json::new(data));
            }
            let Some(key) = args.idempotency_key else {
                emit.send().await.map_err(failures::emit)?;
                return Ok(Exit::Done);
            };
            if emit
                .idempotency_key(key)
                .send()
                .await
                .map_err(failures::emit)?
                .repeated
            {
                shown::tell(
                    Level::Info,
                    "the emit was done before, or by an earlier try; it is queued once",
                );
            }
            Ok(Exit::Done)
        }
    }
}

pub(crate) async fn connect(
    global: &Global,
    keys: seriatim::keys::Keys,
    replicas: &Replicas,
) -> anyhow::Result<Emitter> {
    let emitter = replicas.emitter(global, keys)?;
    emitter.reach().await.map_err(failures::emit)?;
    Ok(emitter)
}

/// A file that is being emitted.
struct File {
    emitter: Emitter,
    name: String,
    skip: u64,
    events: u64,
}

impl File {
    async fn emit(mut self, source: Source, plan: lines::Plan) -> anyhow::Result<Exit> {
        let started = Instant::now();
        let bar = progress_bar(source.bytes());
        let (sender, mut batches) = mpsc::channel(2);
        // The file is read in its own thread, because a read of standard input cannot be cancelled.
        // At the end of the process, this thread ends as well.
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn({
                let bar = bar.clone();
                move || plan.read(source, &bar, &sender)
            })?;
        let mut interrupted = pin_interrupt();
        let mut done = self.skip;
        let outcome = loop {
            let read = tokio::select! {
                biased;
                () = &mut interrupted => break Err(self.interrupted(done)),
                read = batches.recv() => read,
            };
            match read {
                Some(Read::Batch(batch)) => {
                    if let Err(error) = self.send(&batch).await {
                        break Err(error);
                    }
                    done = batch.through;
                    bar.set_message(format!("{done} lines"));
                }
                Some(Read::Bad { line, why }) => break Err(self.bad_line(line, &why)),
                Some(Read::Broken { after, why }) => break Err(self.broken(after, done, &why)),
                Some(Read::End { lines }) => break Ok(lines),
                None => {
                    break Err(anyhow::anyhow!(
                        "reading {} stopped before its end; {}",
                        self.name,
                        self.go_on(done)
                    ));
                }
            }
        };
        bar.finish_and_clear();
        let lines = outcome?;
        if lines <= self.skip && self.skip > 0 {
            shown::tell(
                Level::Info,
                &format!("{} has {lines} lines, all skipped", self.name),
            );
        } else {
            let (name, events, seconds) =
                (&self.name, self.events, started.elapsed().as_secs_f64());
            let done = format!(
                "{events} events of {name} are acknowledged, all lines up to {lines} are done, {seconds:.1} s"
            );
            shown::tell(Level::Info, &done);
        }
        Ok(Exit::Done)
    }

    /// Schedules one batch of tasks in one transaction.
    async fn schedule(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let schedules = batch.lines.iter().filter_map(|line| {
            let (key, at) = line.task.as_ref()?;
            Some(
                self.emitter
                    .schedule(&line.object, Json::new(line.event.clone()))
                    .at(*at)
                    .key(key),
            )
        });
        let ScheduleManyError {
            scheduled, error, ..
        } = match self.emitter.schedule_many(schedules).await {
            Ok(scheduled) => {
                self.events += scheduled.len() as u64;
                return Ok(());
            }
            Err(error) => error,
        };
        self.events += scheduled.len() as u64;
        let line = batch
            .lines
            .get(scheduled.len())
            .map_or(batch.through, |line| line.number);
        // Even if the outcome is unknown, the command can continue with this line: a task has a
        // key, so it can be scheduled again without harm.
        let (name, done) = (&self.name, self.go_on(line - 1));
        Err(Failure::with(
            failures::emit_exit(&error),
            format!(
                "{name}:{line}: {error}{}; {done}",
                failures::emit_hint(&error)
            ),
        ))
    }

    /// Sends one batch in one transaction.
    async fn send(&mut self, batch: &Batch) -> anyhow::Result<()> {
        if batch.lines.first().is_some_and(|line| line.task.is_some()) {
            return self.schedule(batch).await;
        }
        let events = batch
            .lines
            .iter()
            .map(|line| (line.object.as_str(), Json::new(line.event.clone())));
        match self.emitter.emit_many(events).await {
            Ok(emitted) => {
                self.events += emitted.events;
                Ok(())
            }
            Err(error) => {
                self.events += error.acknowledged;
                Err(self.batch_failed(batch, &error))
            }
        }
    }

    fn batch_failed(&self, batch: &Batch, error: &EmitManyError) -> anyhow::Error {
        let name = &self.name;
        let number = |position: u64| {
            usize::try_from(position)
                .ok()
                .and_then(|at| batch.lines.get(at))
                .map_or(batch.through, |line| line.number)
        };
        let Some(first) = error.failed.first() else {
            return anyhow::anyhow!("{name}: {error}");
        };
        // If the call stopped early, the lines from `stopped` on were not sent.
        let last = error
            .stopped
            .and_then(|stopped| stopped.checked_sub(1))
            .map_or(batch.through, number);
        let last = if error
            .stopped
            .is_none_or(|stopped| stopped >= batch.lines.len() as u64)
        {
            batch.through
        } else {
            last
        };
        let (line, why) = (number(first.first), &first.error);
        let done = self.go_on(line - 1);
        let message = match why {
            EmitError::Unknown { .. } => format!(
                "{name}:{line}: {why}; lines {line} to {last} were sent together: either all of them took effect or none; {done} \
                 if `seriatim inspect` does not show them, with --skip {last} if it does"
            ),
            EmitError::Unreplicated { .. } => format!(
                "{name}:{line}: {why}; lines {line} to {last} are queued: when the replicas are back, {}, but {done} if the master was \
                 lost and `seriatim inspect` does not show them",
                self.go_on(last)
            ),
            _ if error.stopped.is_none() => {
                let objects: Vec<_> = error
                    .failed
                    .iter()
                    .take(5)
                    .map(|failed| escape::name(failed.object.as_str()))
                    .collect();
                let (objects, more) = (
                    objects.join(", "),
                    if error.failed.len() > 5 {
                        " and others"
                    } else {
                        ""
                    },
                );
                format!(
                    "{name}:{line}: {why}; the lines {line} to {last} of {objects}{more} are not emitted, all other lines up to {last} are \
                     acknowledged; emit those first, then continue with --skip {last}"
                )
            }
            EmitError::WrongType { .. } => {
                format!(
                    "{name}:{line}: {why}; lines {line} to {last} are queued, but without a marker; {}",
                    self.go_on(last)
                )
            }
            _ => format!("{name}:{line}: {why}{}; {done}", failures::emit_hint(why)),
        };
        Failure::with(failures::emit_exit(why), message)
    }

    fn bad_line(&self, line: u64, why: &str) -> anyhow::Error {
        let (name, done) = (&self.name, self.go_on(line - 1));
        Failure::with(
            Exit::Input,
            format!(
                "{name}:{line}: {why}; {done} after the line is corrected, or skip the line with --skip {line}"
            ),
        )
    }

    /// Returns the error for a file that cannot be read to its end. There is no bad line that could
    /// be skipped, so the message says how to emit the rest when the file is complete.
    fn broken(&self, after: u64, done: u64, why: &str) -> anyhow::Error {
        let (name, acknowledged) = (&self.name, self.acknowledged(done));
        let next = match done {
            0 => "emit it again when the file is complete".to_owned(),
            done => format!("when the file is complete, continue behind them with --skip {done}"),
        };
        Failure::with(
            Exit::Input,
            format!("cannot read {name} after line {after}: {why}; {acknowledged}; {next}"),
        )
    }

    fn interrupted(&self, done: u64) -> anyhow::Error {
        Failure::with(
            Exit::Broken,
            format!("{}: interrupted; {}", self.name, self.go_on(done)),
        )
    }

    /// Returns a text that says how many lines are acknowledged, and how to continue after them.
    fn go_on(&self, done: u64) -> String {
        format!("{}; continue with --skip {done}", self.acknowledged(done))
    }

    fn acknowledged(&self, done: u64) -> String {
        let acknowledged = match done.saturating_sub(self.skip) {
            0 => "no line is acknowledged".to_owned(),
            1 => "1 line is acknowledged".to_owned(),
            count => format!("{count} lines are acknowledged"),
        };
        let range = if self.skip > 0 && done > self.skip {
            format!(" ({} to {done})", self.skip + 1)
        } else {
            String::new()
        };
        format!("{acknowledged}{range}")
    }
}

/// Returns a future that ends at the first Ctrl-C. The future is polled only between two batches,
/// so that the command still gets the reply of a transaction in flight. If signals cannot be
/// watched, the future never ends, and Ctrl-C ends the process at once.
fn pin_interrupt() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        let _ = sender.send(());
        // A second Ctrl-C ends the process at once, without waiting for a reply of Redis.
        if tokio::signal::ctrl_c().await.is_ok() {
            shown::tell(
                Level::Error,
                "interrupted twice; the outcome of the last lines is unknown",
            );
            std::process::exit(Exit::Unknown as i32);
        }
    });
    Box::pin(async move {
        if receiver.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Returns the progress bar. It shows a percentage if the size of the file is known, and otherwise
/// the bytes read so far. It is hidden if standard error is not a terminal.
fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{wide_bar} {percent:>3} % {msg} {eta}",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {bytes} {msg} {elapsed}",
        ),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
