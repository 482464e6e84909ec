//! `seriatim schedule`: events with a due time, which are queued at that time.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::control::Cursor;
use seriatim::control::schedules::{PER_CALL_MAX, ScheduledEvent};
use seriatim::emit::{Cancelled, Change};
use seriatim::escape;
use seriatim::event::Json;
use seriatim_console::exit::Exit;
use seriatim_console::failures;
use seriatim_console::global::Global;
use seriatim_console::replicas::Replicas;
use seriatim_console::shown::{self, Level};
use seriatim_console::{named, units};

use super::emit::connect;
use super::listing::{self, Listing};

/// Schedule an event for later, list the schedules, or cancel one
///
/// A worker process queues the event when its due time has come by Redis' clock. The event gets an
/// id when a worker takes it from the queue. Until a worker takes the event, and while it waits for
/// a retry, it can be replaced or cancelled by its key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Add(Add),
    List(List),
    Cancel(Cancel),
}

/// Schedule an event, and print its key and its due time
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seriatim schedule add user:1 '{\"type\":\"trial ends\"}' --in 14d --key trial\n  \
                        seriatim schedule add user:1 '{\"type\":\"renew\"}' --at 2026-12-24T18:00:00+01:00"
)]
struct Add {
    /// The object of the event, e.g. user:1, as the commands print it: \\ is a backslash
    #[arg(value_parser = named::text)]
    object: String,
    /// The event as JSON
    #[arg(allow_negative_numbers = true)]
    event: String,
    /// The time until the event is due, e.g. 90s, 10m or 14d, counted by Redis' clock
    #[arg(long = "in", value_name = "DURATION", value_parser = units::time, required_unless_present = "at")]
    after: Option<Duration>,
    /// The time at which the event is due: 2026-12-24T18:00:00+01:00, or Unix seconds
    #[arg(long, value_name = "TIME", value_parser = units::instant, conflicts_with = "after")]
    at: Option<SystemTime>,
    /// The key of the schedule, escaped as OBJECT; a schedule of this object with the same key is
    /// replaced [default: a new key]
    #[arg(long, value_name = "KEY", value_parser = named::text)]
    key: Option<String>,
    /// If there is a schedule with this key, replace its event and keep its time
    #[arg(long, requires = "key", conflicts_with = "keep_first")]
    keep_time: bool,
    /// If there is a schedule with this key, change nothing
    #[arg(long, requires = "key")]
    keep_first: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replicas: Replicas,
}

/// Print the schedules in the order of their due times; with --object they have no order
#[derive(Debug, clap::Args)]
struct List {
    /// Only schedules of this object, including those whose event is already queued. The name is as
    /// the commands print it
    #[arg(long, value_name = "OBJECT", conflicts_with_all = ["from", "to"])]
    object: Option<String>,
    /// Only schedules that are due at this time or later
    #[arg(long, value_name = "TIME", value_parser = units::instant)]
    from: Option<SystemTime>,
    /// Only schedules that are due at this time or before
    #[arg(long, value_name = "TIME", value_parser = units::instant)]
    to: Option<SystemTime>,
    /// Print at most N [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Cancel a schedule, or its event while the event waits in the queue or for a retry
///
/// The exit code is 2 if nothing was cancelled: there is no such schedule, or a worker has the
/// event. In the second case the event goes on.
#[derive(Debug, clap::Args)]
struct Cancel {
    /// The object, as the list shows it
    #[arg(value_parser = named::text)]
    object: String,
    /// The key of the schedule, as the list shows it
    #[arg(allow_hyphen_values = true, value_parser = named::text)]
    key: String,
    #[command(flatten)]
    replicas: Replicas,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    match args.command {
        Command::Add(add) => add.run(global).await,
        Command::List(list) => list.run(global).await,
        Command::Cancel(cancel) => cancel.run(global).await,
    }
}

impl Add {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let emitter = connect(global, global.keys()?, &self.replicas).await?;
        let mut schedule = emitter.schedule(&self.object, Json::new(self.event));
        schedule = match (self.after, self.at) {
            (Some(after), _) => schedule.after(after),
            (None, at) => schedule.at(at.unwrap_or(UNIX_EPOCH)),
        };
        if let Some(key) = self.key {
            schedule = schedule.key(key);
        }
        if self.keep_time {
            schedule = schedule.keep_time();
        } else if self.keep_first {
            schedule = schedule.keep_first();
        }
        let scheduled = schedule.send().await.map_err(failures::emit)?;
        let change = match scheduled.change {
            Change::New => "new",
            Change::Replaced => "replaced",
            Change::Kept => "kept",
            _ => "running",
        };
        let line = if self.json {
            let mut line = serde_json::json!({
                "object": self.object, "key": scheduled.key.as_str(), "due_ms": scheduled.due_ms, "change": change
            });
            for (member, name) in [
                ("object_escaped", self.object.as_str()),
                ("key_escaped", scheduled.key.as_str()),
            ] {
                if let Some(escaped) = escape::differing(name.as_bytes()) {
                    line[member] = escaped.into();
                }
            }
            line.to_string()
        } else {
            let (object, key) = (
                escape::name(&self.object),
                escape::name(scheduled.key.as_str()),
            );
            format!(
                "{}  {object}  {key}  ({change})",
                shown::time(scheduled.due_ms)
            )
        };
        shown::print(&(line + "\n"))?;
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        let object = self
            .object
            .as_deref()
            .map(|object| named::object(control.keys(), object))
            .transpose()?;
        let ms = |time: SystemTime| {
            u64::try_from(
                time.duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_millis(),
            )
            .ok()
        };
        let (from, to) = (self.from.and_then(ms), self.to.and_then(ms));
        let mut list = Listing::new(self.json, self.limit);
        let read = async |after: Option<&Cursor>, count| {
            let page = match &object {
                Some(object) => control.schedules_of(object, after, count).await,
                None => control.schedules(from, to, after, count).await,
            };
            page.map(|page| (page.schedules, page.now_ms, page.next))
        };
        list.print_pages(None, PER_CALL_MAX, read, write).await?;
        list.end("there are no such schedules")
    }
}

impl Cancel {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let emitter = connect(global, global.keys()?, &self.replicas).await?;
        let cancelled = emitter
            .cancel(&self.object, &self.key)
            .await
            .map_err(failures::emit)?;
        let (object, key) = (escape::name(&self.object), escape::name(&self.key));
        let why = match cancelled {
            Cancelled::Cancelled => return Ok(Exit::Done),
            Cancelled::Running => format!(
                "{object}: the event \"{key}\" is running: a worker has it, and it goes on; a later schedule of it is cancelled"
            ),
            _ => format!(
                "{object} has no schedule \"{key}\": it was never there, or its event is over"
            ),
        };
        shown::tell(Level::Error, &why);
        Ok(Exit::Input)
    }
}

fn write(out: &mut String, schedule: &ScheduledEvent, now_ms: u64) -> anyhow::Result<()> {
    let object = named::shown(&schedule.object, schedule.object_escaped.as_deref());
    let due = match schedule.due_ms {
        None if schedule.at_once => "at once".to_owned(),
        None => "no due time; `seriatim check` shows more".to_owned(),
        Some(due) if schedule.queued => format!("queued at {}", shown::time(due)),
        Some(due) if due <= now_ms => format!(
            "{}, due for {}",
            shown::time(due),
            shown::duration(now_ms - due)
        ),
        Some(due) => format!("{}, in {}", shown::time(due), shown::duration(due - now_ms)),
    };
    writeln!(
        out,
        "{object}  {}",
        named::shown(&schedule.key, schedule.key_escaped.as_deref())
    )?;
    writeln!(out, "  due    {due}")?;
    writeln!(out, "  event  {}", listing::beginning(&schedule.event))?;
    Ok(())
}
