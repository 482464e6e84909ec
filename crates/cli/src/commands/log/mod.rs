//! `seriatim log`.

mod follow;

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use seriatim::control::log::PER_CALL_MAX;
use seriatim::control::{Cursor, LogEntry};
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shown::Level;
use seriatim_console::{named, shown, units};

use self::follow::Follower;
use super::listing;

/// With --follow: the wait before the next read if there was no new row.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Number of rows that `--object` searches in one run of the command.
const LOOKED_MAX: usize = 1000;

/// Explanation that is printed if the log may lack rows because it is off.
const IS_OFF: &str = "the event log is off, and has only events completed with errors; workers write all events with --event-log";

/// Show the event log: what became of each event, in the order in which the events were finalized
///
/// A worker with --event-log writes a row for each finalized event. Its status is `completed`,
/// `completed_with_errors` or `dead`. If workers run without --event-log, the log has only events
/// completed with errors, about the last 1,000.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per line, with the event as it was emitted (`event`; `event_text` or
    /// `event_hex` if the event is not JSON)
    #[arg(long)]
    json: bool,
    /// Only rows of this object. Without --follow, searches 1,000 rows of all objects. If there are
    /// more to search, a last line (with --json `{"after":…}`) says how to continue
    #[arg(long, value_name = "OBJECT")]
    object: Option<String>,
    /// Only rows since TIME: an age such as 15m or 2h, or 2026-01-01T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = begin)]
    since: Option<Begin>,
    /// Only rows that come after this one in the list
    #[arg(long, value_name = "LOG_ID", conflicts_with_all = ["since", "follow"])]
    after: Option<Cursor>,
    /// Print at most N [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print the newest first
    #[arg(long, conflicts_with_all = ["since", "follow"])]
    newest: bool,
    /// Do not end, but print each event when it is finalized. Without --since, print only events
    /// that are finalized from now on. If Redis cannot be reached, or refuses, wait for it
    #[arg(long)]
    follow: bool,
    /// Also show this top-level member of each event as the event's own time ("time" with --json)
    #[arg(long, value_name = "NAME")]
    time_field: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum Begin {
    Ago(Duration),
    At(SystemTime),
}

fn begin(text: &str) -> Result<Begin, String> {
    if let Ok(ago) = units::time(text) {
        return Ok(Begin::Ago(ago));
    }
    units::instant(text)
        .map(Begin::At)
        .map_err(|why| format!("{why}, or an age such as 15m or 2h (M is no unit of time)"))
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let wanted = named::canonical(args.object.as_deref())?;
    let mut control = global.control().await?;
    let now_ms = control.now_ms().await.map_err(shown::failure)?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let since = match args.since {
        Some(Begin::Ago(ago)) => Cursor::since(now_ms.saturating_sub(ms(ago))),
        Some(Begin::At(at)) => Cursor::since(at.duration_since(UNIX_EPOCH).map_or(0, ms)),
        None => None,
    };
    // The answer is needed only for a message, so an error is ignored.
    let is_on = control.is_log_on().await.unwrap_or(true);
    let mut follower = Follower::new(global, since.clone());
    let mut after = since.or_else(|| args.after.clone());
    if args.follow {
        let newest = control.newest_log(None, 1).await.map_err(shown::failure)?;
        after = after.or_else(|| args.since.is_none().then(|| newest.end.clone()));
        follower.has_seen(&newest);
        if !is_on {
            shown::tell(Level::Warn, IS_OFF);
        }
    }
    let limit = args.limit.unwrap_or(u64::MAX);
    let (mut left, mut looked) = (limit, 0);
    while left > 0 {
        let read = match args.newest {
            true => control.newest_log(after.as_ref(), PER_CALL_MAX).await,
            false => control.log(after.as_ref(), PER_CALL_MAX).await,
        };
        let page = match read {
            Ok(page) => page,
            Err(error) if args.follow => {
                control = follower.wait(error).await?;
                continue;
            }
            Err(error) => return Err(shown::failure(error)),
        };
        if args.follow && follower.went_back(&page, &mut after) {
            continue;
        }
        let (page, ends) = (page.entries, page.next.is_none());
        let mut out = String::new();
        for entry in &page {
            if left > 0
                && named::is_wanted(
                    wanted.as_deref(),
                    &entry.object,
                    entry.object_escaped.as_deref(),
                )
            {
                left -= 1;
                args.write(&mut out, entry)?;
            }
        }
        if !shown::print(&out)? || ends && !args.follow {
            break;
        }
        looked += page.len();
        after = page
            .last()
            .map(|entry| Cursor::from(&entry.log_id))
            .or(after);
        if looked >= LOOKED_MAX && left > 0 && args.object.is_some() && !args.follow {
            let after = after.as_ref().map_or("", Cursor::as_str);
            listing::tell_more(args.json, &format!("{LOOKED_MAX} rows"), after)?;
            return Ok(Exit::Done);
        }
        if ends {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    if left == limit && limit > 0 && !args.follow {
        args.tell_nothing(is_on);
    }
    Ok(Exit::Done)
}

impl Args {
    /// Prints a message if no row was shown.
    fn tell_nothing(&self, is_on: bool) {
        let of = self.object.as_ref().map_or_else(String::new, |object| {
            format!(" of {}", shown::shortened(object, 512))
        });
        let since = if self.since.is_some() {
            " since then"
        } else {
            ""
        };
        let why = if is_on {
            String::new()
        } else {
            format!(": {IS_OFF}")
        };
        shown::tell(
            Level::Info,
            &format!("the event log has no row{of}{since}{why}"),
        );
    }

    fn write(&self, out: &mut String, entry: &LogEntry) -> anyhow::Result<()> {
        let time = self.time_field.as_ref().and_then(|name| entry.member(name));
        if self.json {
            #[derive(serde::Serialize)]
            struct Line<'a> {
                #[serde(flatten)]
                entry: &'a LogEntry,
                time: Option<Box<RawValue>>,
            }
            let line = match self.time_field {
                Some(_) => serde_json::to_string(&Line {
                    entry,
                    time: time.map(RawValue::from_string).transpose()?,
                })?,
                None => serde_json::to_string(entry)?,
            };
            writeln!(out, "{line}")?;
            return Ok(());
        }
        let number = |number: Option<u64>| {
            number.map_or_else(|| "?".to_owned(), |number| number.to_string())
        };
        let (id, prev, attempts) = (number(entry.id), number(entry.prev), number(entry.attempts));
        let object = named::shown(&entry.object, entry.object_escaped.as_deref());
        let status = shown::shortened(entry.status.as_str(), 30);
        writeln!(
            out,
            "{}  {status}  {object}",
            shown::time(entry.finalized_ms)
        )?;
        let took = entry.taken_ms.map_or_else(String::new, |taken_ms| {
            format!(
                ", taken {} before",
                shown::duration(entry.finalized_ms.saturating_sub(taken_ms))
            )
        });
        writeln!(
            out,
            "  id     {id}, prev {prev}, {attempts} failed attempts{took}"
        )?;
        if let Some(time) = time {
            writeln!(out, "  time   {}", shown::shortened(&time, 70))?;
        }
        if let Some(error) = &entry.error {
            writeln!(out, "  error  {}", shown::shortened(error, 2000))?;
        }
        for (handler, result) in entry.results() {
            writeln!(
                out,
                "  result {}",
                shown::shortened(&format!("{handler} {result}"), 70)
            )?;
        }
        writeln!(out, "  event  {}", listing::beginning(&entry.event))?;
        Ok(())
    }
}
