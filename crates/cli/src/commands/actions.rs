//! `seriatim actions`.

use std::fmt::Write as _;

use seriatim::control::Cursor;
use seriatim::control::actions::{Action, Many, PER_CALL_MAX};
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::{named, shown};

use super::listing::{self, Listing};

/// Show the actions of operators, newest first
///
/// Redis keeps about the last 1,000 actions. An action on all held objects, or on all dead letters, is
/// one of them, with the number of its subjects, the first and the last. There are these actions: a dead letter is retried or
/// dropped; a held object is released, or its event is skipped; a pause or a block is set or lifted
/// (`pause`, `resume`, `block`, `unblock`); a limit or a cron job is changed; a schedule is
/// cancelled; an object is forgotten.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per line; a drop has its event as it was emitted (`event`;
    /// `event_text` or `event_hex` if the event is not JSON)
    #[arg(long)]
    json: bool,
    /// Print at most N [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    let now_ms = control.now_ms().await.map_err(shown::failure)?;
    let mut list = Listing::new(args.json, args.limit);
    let read = async |after: Option<&Cursor>, count| {
        let page = control.actions(after, count).await;
        page.map(|page| (page.actions, now_ms, page.next))
    };
    list.print_pages(None, PER_CALL_MAX, read, write).await?;
    list.end("there are no actions of operators yet")
}

/// Returns the conditions of an action on many objects.
fn conditions(many: &Many) -> String {
    let operator = if many.until_released {
        "; only those that waited for an operator"
    } else {
        ""
    };
    let why = many.held_why.as_ref().map(|why| {
        format!(
            "; only those held because of {:?}",
            shown::shortened(why, 200)
        )
    });
    format!("{operator}{}", why.unwrap_or_default())
}

fn write(out: &mut String, action: &Action, now_ms: u64) -> anyhow::Result<()> {
    let ago = shown::duration(now_ms.saturating_sub(action.at_ms));
    let object = named::shown(&action.object, action.object_escaped.as_deref());
    let id = action
        .id
        .map_or_else(String::new, |id| format!("  id {id}"));
    let dead_id = action
        .dead_id
        .as_ref()
        .map_or_else(String::new, |dead_id| format!("  dead letter {dead_id}"));
    let cron = action.cron.as_ref().map_or_else(String::new, |name| {
        format!(
            "  cron job {}",
            named::shown(name, action.cron_escaped.as_deref())
        )
    });
    let key = action.key.as_ref().map_or_else(String::new, |key| {
        format!("  key {}", named::shown(key, action.key_escaped.as_deref()))
    });
    writeln!(
        out,
        "{}  {object}{id}{dead_id}{cron}{key}",
        shown::shortened(&action.action, 20)
    )?;
    if let Some(many) = &action.many {
        let first = shown::shortened(
            named::shown(&many.first, many.first_escaped.as_deref()),
            520,
        );
        let last = shown::shortened(named::shown(&many.last, many.last_escaped.as_deref()), 520);
        writeln!(
            out,
            "  did    {}: {first} to {last}{}",
            many.count,
            conditions(many)
        )?;
    }
    writeln!(
        out,
        "  by     {}, {ago} ago",
        shown::shortened(&action.who, 200)
    )?;
    for (name, text) in [
        ("why    ", Some(&action.why)),
        ("error  ", action.error.as_ref()),
    ] {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            writeln!(out, "  {name}{}", shown::shortened(text, 2000))?;
        }
    }
    if let Some(event) = &action.event {
        writeln!(out, "  event  {}", listing::beginning(event))?;
    }
    Ok(())
}
