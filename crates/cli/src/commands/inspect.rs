//! `seriatim inspect`.

use std::fmt::Write as _;

use serde::Serialize;
use seriatim::control::inspect::{EventState, Location, Standing};
use seriatim::control::{Ended, EventStatus, Inspection};
use seriatim::escape;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shares;
use seriatim_console::watch::Watch;
use seriatim_console::{named, shown};

use crate::commands::rules::described;

/// Show the events of one object: where they are, why they wait, and what became of the last
/// finalized events
///
/// For the object's first event, the command shows the state, the errors of the last attempts, and
/// the time of the next try. All this is read at one moment. The last finalized events are searched
/// in the newest 1,000 rows of the event log and in the newest 1,000 dead letters. An unknown
/// object is not an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The object, e.g. work:1, as the commands print it: \\ is a backslash, \n a line end, \xff
    /// any byte
    object: String,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    inspection: &'a Inspection,
    ended: &'a Ended,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let keys = global.keys()?;
    // An invalid name is reported before anything is sent to Redis.
    let object = named::object(&keys, &args.object)?;
    let control = args.watch.control(global).await?;
    let look = async || {
        let inspection = control.inspect(&object).await.map_err(shown::failure)?;
        let ended = control.ended(&object).await.map_err(shown::failure)?;
        match args.json {
            true => Ok(serde_json::to_string(&Json {
                inspection: &inspection,
                ended: &ended,
            })? + "\n"),
            false => Ok(lines(&inspection)? + &ended_lines(&ended, inspection.now_ms)?),
        }
    };
    args.watch.print(look).await
}

fn lines(seen: &Inspection) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "object     {}",
        named::shown(&seen.object, seen.object_escaped.as_deref())
    )?;
    writeln!(
        out,
        "stands     {}",
        shown::wrapped(&shown::shortened(&seen.why, 4000), 69, 11)
    )?;
    if seen.standing == Standing::Unknown {
        return Ok(out);
    }
    writeln!(out, "state      {}", state(seen))?;
    let last = seen.last_event_id.map_or_else(
        || "none: no event was delivered yet".to_owned(),
        |id| id.to_string(),
    );
    writeln!(out, "last id    {last}")?;
    writeln!(
        out,
        "owner      {}",
        shown::shortened(&escape::name(seen.owner.as_deref().unwrap_or("none")), 100)
    )?;
    for rule in &seen.rules {
        writeln!(
            out,
            "rule       {}",
            shown::shortened(&rule.to_string(), 520)
        )?;
        writeln!(out, "           {}", described(rule, seen.now_ms))?;
        if !rule.reason.is_empty() {
            writeln!(
                out,
                "           why    {}",
                shown::shortened(&rule.reason, 2000)
            )?;
        }
    }
    for share in &seen.shares {
        writeln!(
            out,
            "share      {}: {}",
            shown::shortened(&seriatim::escape::name(&share.selector), 520),
            shares::parts(share)
        )?;
    }
    writeln!(
        out,
        "events     {} queued, {} in flight, {} held",
        seen.events_queued, seen.events_in_flight, seen.events_held
    )?;
    if let Some(tries) = seen.tries {
        writeln!(
            out,
            "tries      {} hand-outs before, {} failed attempts, {} crashes",
            tries.handouts, tries.attempts, tries.crashes
        )?;
    }
    for (at, failed) in seen.errors.iter().enumerate() {
        let label = if at == 0 { "errors" } else { "" };
        let ago = shown::duration(seen.now_ms.saturating_sub(failed.at_ms));
        let line = format!("attempt {}, {ago} ago: {}", failed.attempt, failed.error);
        writeln!(out, "{label:<11}{}", shown::shortened(&line, 69))?;
    }
    if let Some(kept) = &seen.kept_results {
        let id = kept.id.map_or_else(|| "?".to_owned(), |id| id.to_string());
        for (at, (handler, result)) in kept.results().iter().enumerate() {
            let label = if at == 0 { "results" } else { "" };
            writeln!(
                out,
                "{label:<11}{}",
                shown::shortened(&format!("id {id}: {handler} {result}"), 69)
            )?;
        }
    }
    if let Some(report) = &seen.report {
        let ago = |at_ms: u64| shown::duration(seen.now_ms.saturating_sub(at_ms));
        if let Some(progress) = &report.progress {
            let line = format!("id {}, {} ago: {progress}", report.id, ago(report.at_ms));
            writeln!(out, "progress   {}", shown::shortened(&line, 69))?;
        }
        for (at, line) in report.log.iter().enumerate() {
            let label = if at == 0 { "log" } else { "" };
            let line = format!("{} ago: {}", ago(line.at_ms), line.text);
            writeln!(out, "{label:<11}{}", shown::shortened(&line, 69))?;
        }
    }
    if let Some(next) = &seen.next_event {
        let place = match next.place {
            Location::Batch => "in the batch",
            Location::HeldBatch => "in the held batch",
            _ => "in the queue",
        };
        let id = next
            .id
            .map_or_else(|| "no id yet".to_owned(), |id| format!("id {id}"));
        writeln!(out, "next       {place}, {id}, {} bytes", next.bytes)?;
        writeln!(out, "           {}", shown::shortened(&next.text, 68))?;
    }
    if seen.schedules > 0 {
        let events = if seen.schedules == 1 {
            "event"
        } else {
            "events"
        };
        writeln!(out, "scheduled  {} {events}", seen.schedules)?;
        for schedule in seen.next_schedules.iter().take(5) {
            let due = schedule.due_ms.map_or_else(
                || {
                    if schedule.at_once {
                        "now"
                    } else {
                        "no due time"
                    }
                    .to_owned()
                },
                |due| match due.checked_sub(seen.now_ms) {
                    _ if schedule.queued => "queued".to_owned(),
                    Some(left) if left > 0 => format!("in {}", shown::duration(left)),
                    _ => "now".to_owned(),
                },
            );
            writeln!(
                out,
                "           {}",
                shown::shortened(
                    &format!(
                        "{due}: {}",
                        named::shown(&schedule.key, schedule.key_escaped.as_deref())
                    ),
                    340
                )
            )?;
        }
        if seen.schedules > 5 {
            writeln!(
                out,
                "           `seriatim schedule list --object` shows all"
            )?;
        }
    }
    match seen.markers_before {
        Some(before) => writeln!(out, "marker     yes, after {before} others")?,
        None if seen.markers_beyond => writeln!(
            out,
            "marker     none among the first 10000; more than 10000 are before it"
        )?,
        None => writeln!(out, "marker     none")?,
    }
    if let (Some(group), Some(before)) = (&seen.group, seen.group_before) {
        let group = shown::shortened(&seriatim::escape::name(group), 60);
        writeln!(
            out,
            "group      {group}, after {before} names; {} groups wait",
            seen.groups_waiting
        )?;
    }
    if !seen.taken_by.is_empty() {
        writeln!(out, "taken by   {}", seen.taken_by.join(", "))?;
    }
    for wrong in &seen.wrong_types {
        writeln!(out, "wrong      {}", shown::shortened(wrong, 1000))?;
    }
    Ok(out)
}

/// Describes the state of the first event in a few words.
fn state(seen: &Inspection) -> String {
    let Some(state) = seen.state else {
        return "no event waits".to_owned();
    };
    let word = match state {
        EventState::Queued => "queued",
        EventState::InFlight => "in flight",
        EventState::Waiting => "waiting",
        EventState::Paused => "paused",
        EventState::Blocked => "blocked",
        _ => "?",
    };
    let has_failed = seen.tries.is_some_and(|tries| tries.attempts > 0);
    let what = if has_failed { "retry" } else { "due" };
    match seen.due_ms {
        _ if state != EventState::Waiting => word.to_owned(),
        None if seen.at_once => format!("{word}, {what} now"),
        None if seen.until_released => format!("{word} for an operator"),
        // Its place among the held objects is lost.
        None => word.to_owned(),
        Some(due) if due <= seen.now_ms => format!("{word}, {what} now"),
        Some(due) => format!(
            "{word}, {what} at {} (in {})",
            shown::time(due),
            shown::duration(due - seen.now_ms)
        ),
    }
}

fn ended_lines(ended: &Ended, now_ms: u64) -> anyhow::Result<String> {
    let mut out = String::new();
    for (at, event) in ended.events.iter().enumerate() {
        let label = if at == 0 { "ended" } else { "" };
        let id = event.id.map_or_else(|| "?".to_owned(), |id| id.to_string());
        let status = match &event.status {
            EventStatus::Completed => "completed".to_owned(),
            EventStatus::CompletedWithErrors => "completed with errors".to_owned(),
            EventStatus::Dead => "dead".to_owned(),
            other => shown::shortened(other.as_str(), 30),
        };
        let ago = shown::duration(now_ms.saturating_sub(event.at_ms));
        let failed = match event.attempts {
            None | Some(0) => String::new(),
            Some(attempts) => format!(", {attempts} failed attempts"),
        };
        writeln!(out, "{label:<11}id {id}, {status}, {ago} ago{failed}")?;
        if let Some(dead_id) = &event.dead_id {
            writeln!(
                out,
                "           dead letter {}",
                shown::shortened(dead_id.as_str(), 50)
            )?;
        }
        for (handler, result) in event.results() {
            writeln!(
                out,
                "           result {}",
                shown::shortened(&format!("{handler} {result}"), 62)
            )?;
        }
        if let Some(error) = &event.error {
            writeln!(out, "           error  {}", shown::shortened(error, 62))?;
        }
    }
    if ended.events.is_empty() {
        let Ended {
            log_rows,
            dead_letters,
            ..
        } = ended;
        let newest = if ended.complete { "" } else { "the newest " };
        writeln!(
            out,
            "ended      none found in {newest}{log_rows} rows of the log, {dead_letters} dead letters"
        )?;
    }
    for key in &ended.unreadable {
        writeln!(
            out,
            "wrong      {} is not a stream",
            shown::shortened(key, 200)
        )?;
    }
    Ok(out)
}
