//! `seriatim inspect`.

use std::fmt::Write as _;

use seriatim::control::inspect::{Place, Standing};
use seriatim::control::{Inspection, inspect};

use crate::exit::Exit;
use crate::global::Global;
use crate::rules::described;
use crate::shown;

/// Show where the events of one object are, and why they wait
///
/// Everything is read at one moment. An object that nobody ever emitted an event for is no error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The object, e.g. work:1
    object: String,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let keys = global.keys()?;
    // A bad name is told before anything is asked of Redis.
    keys.object(&args.object).map_err(|error| shown::failure(error.into()))?;
    let mut conn = global.connect().await?;
    let inspection = inspect(&mut conn, &keys, &args.object).await.map_err(shown::failure)?;
    let text = if args.json { serde_json::to_string(&inspection)? + "\n" } else { lines(&inspection)? };
    shown::print(&text)?;
    Ok(Exit::Done)
}

fn lines(seen: &Inspection) -> anyhow::Result<String> {
    let mut out = String::new();
    writeln!(out, "object     {}", shown::shortened(&seen.object, 512))?;
    writeln!(out, "stands     {}", shown::shortened(&seen.why, 4000))?;
    if seen.standing == Standing::Unknown {
        return Ok(out);
    }
    let last = seen.last_event_id.map_or_else(|| "none: no event was delivered yet".to_owned(), |id| id.to_string());
    writeln!(out, "last id    {last}")?;
    writeln!(out, "owner      {}", shown::shortened(seen.owner.as_deref().unwrap_or("nobody"), 100))?;
    for rule in &seen.rules {
        writeln!(out, "rule       {}", shown::shortened(&rule.to_string(), 520))?;
        writeln!(out, "           {}", described(rule, seen.now_ms))?;
        if !rule.reason.is_empty() {
            writeln!(out, "           why    {}", shown::shortened(&rule.reason, 2000))?;
        }
    }
    writeln!(out, "events     {} queued, {} in flight, {} held", seen.events_queued, seen.events_in_flight, seen.events_held)?;
    if let Some(tries) = seen.tries {
        writeln!(
            out,
            "tries      handed out {} times before, {} failed, {} died with it",
            tries.handouts, tries.attempts, tries.crashes
        )?;
    }
    if let Some(next) = &seen.next_event {
        let place = match next.place {
            Place::Batch => "in the batch",
            Place::HeldBatch => "in the held batch",
            _ => "in the queue",
        };
        let id = next.id.map_or_else(|| "no id yet".to_owned(), |id| format!("id {id}"));
        writeln!(out, "next       {place}, {id}, {} bytes", next.bytes)?;
        writeln!(out, "           {}", shown::shortened(&next.text, 68))?;
    }
    match seen.markers_before {
        Some(before) => writeln!(out, "marker     yes, after {before} others")?,
        None => writeln!(out, "marker     none")?,
    }
    if !seen.taken_by.is_empty() {
        writeln!(out, "taken by   {}", seen.taken_by.join(", "))?;
    }
    for wrong in &seen.wrong_types {
        writeln!(out, "wrong      {}", shown::shortened(wrong, 1000))?;
    }
    Ok(out)
}
