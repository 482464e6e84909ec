//! `seriatim stats`.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use seriatim::control::stats::{CronStats, NameStats, ScheduleStats};
use seriatim::control::{Depth, Stats};

use crate::console::exit::Exit;
use crate::console::global::Global;
use crate::console::{named, shown};

/// Maximum length of a name in a table row; `--json` has the whole name.
const NAME_CHARS: usize = 22;
const LEASE_CHARS: usize = 28;

/// Show workers, markers, held objects, rules and dead letters
///
/// The command is cheap at any size: it sends a bounded number of commands to Redis. With --scan it
/// walks over all keys and also counts the queued events.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Count all queued events, by prefix (the name up to its first colon), and find the longest
    /// queues
    #[arg(long)]
    scan: bool,
    /// The number of objects and prefixes that --scan shows
    #[arg(long, default_value_t = 10, value_name = "N", requires = "scan")]
    top: u16,
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    stats: &'a Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<&'a Depth>,
    /// Settings of Redis that break the promise.
    warnings: &'a [String],
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    let stats = control.stats().await.map_err(shown::failure)?;
    let warnings = control.warnings().await.unwrap_or_default();
    let mut queues = None;
    if args.scan {
        queues = Some(control.depth(usize::from(args.top)).await.map_err(shown::failure)?);
    }
    let text = if args.json {
        serde_json::to_string(&Json { stats: &stats, depth: queues.as_ref(), warnings: &warnings })? + "\n"
    } else {
        let mut out = tables(&stats, queues.as_ref(), usize::from(args.top))?;
        for warning in &warnings {
            writeln!(out, "{}", shown::wrapped(&format!("warning       {warning}"), usize::from(shown::COLUMNS) - 14, 14))?;
        }
        out
    };
    shown::print(&text)?;
    Ok(Exit::Done)
}

fn tables(stats: &Stats, queues: Option<&Depth>, top: usize) -> anyhow::Result<String> {
    let mut out = String::new();
    if stats.workers.is_empty() {
        writeln!(out, "no worker process has run here\n")?;
    } else {
        let mut names = table(&["worker", "slots", "busy", "in flight", "lease"], 1..4);
        for name in &stats.workers {
            let numbers = [u64::from(name.slots), name.slots_busy, name.events_in_flight].map(|n| n.to_string());
            let [slots, busy, in_flight] = numbers;
            names.add_row([shown::middle_cut(&name.name, NAME_CHARS), slots, busy, in_flight, lease(name, stats.now_ms)]);
        }
        writeln!(out, "{}\n", trimmed(&names))?;
    }
    if stats.workers_not_shown > 0 {
        writeln!(out, "and {} more names\n", stats.workers_not_shown)?;
    }
    let held = &stats.held;
    writeln!(out, "markers       {}", stats.markers)?;
    writeln!(out, "in flight     {} events", stats.events_in_flight)?;
    writeln!(
        out,
        "held          {} objects: {} due, {} waiting, {} until released",
        held.total, held.due, held.waiting, held.until_released
    )?;
    writeln!(out, "paused        {} objects", stats.paused)?;
    writeln!(out, "rules         {} set, {} being lifted", stats.rules.in_force, stats.rules.lifting)?;
    schedules(&mut out, &stats.schedules, stats.now_ms)?;
    cron(&mut out, &stats.cron, stats.now_ms)?;
    let emitted = &stats.idempotency_keys;
    if emitted.keys > 0 {
        let bytes = emitted.bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes"));
        writeln!(out, "emit keys     {}{bytes}", emitted.keys)?;
    }
    writeln!(out, "dead letters  {}", stats.dead_letters)?;
    writeln!(out, "last id       {}", stats.last_id)?;
    for projection in &stats.projections {
        let missed = match projection.missed {
            0 => String::new(),
            missed => format!(", {missed} missed"),
        };
        let nobody = if projection.running { "" } else { ", not running" };
        let name = shown::shortened(&projection.name, 64);
        writeln!(out, "projection    {name}: {} rows behind{missed}{nobody}", projection.lag)?;
    }
    for key in &stats.unreadable {
        writeln!(out, "unreadable    {} has a wrong type; `seriatim check` shows more", shown::shortened(key, 80))?;
    }
    if let Some(queues) = queues {
        writeln!(out, "queued        {} events of {} objects", queues.events_queued, queues.objects_with_events)?;
        depths(&mut out, queues, top)?;
    }
    Ok(out)
}

fn cron(out: &mut String, cron: &CronStats, now_ms: u64) -> anyhow::Result<()> {
    if cron.total == 0 {
        return Ok(());
    }
    let next = match cron.next_ms.map(|due| due.saturating_sub(now_ms)) {
        Some(left) if cron.due == 0 => format!(", the next in {}", shown::duration(left)),
        _ => String::new(),
    };
    let paused = cron.total.saturating_sub(cron.active);
    writeln!(out, "cron jobs     {}: {} due, {paused} paused{next}", cron.total, cron.due)?;
    Ok(())
}

fn schedules(out: &mut String, schedules: &ScheduleStats, now_ms: u64) -> anyhow::Result<()> {
    let next = match schedules.next_ms.map(|due| due.saturating_sub(now_ms)) {
        Some(left) if schedules.due == 0 => format!(", the first in {}", shown::duration(left)),
        _ => String::new(),
    };
    writeln!(out, "schedules     {}: {} due{next}", schedules.total, schedules.due)?;
    let promoted: u64 = schedules.lateness.iter().map(|(_, events)| events).sum();
    // The bound below which this share of the promoted events is.
    let within = |percent: u64| {
        let mut left = (promoted * percent).div_ceil(100);
        let found = schedules.lateness.iter().find(|(_, events)| {
            left = left.saturating_sub(*events);
            left == 0
        });
        match found {
            Some((Some(bound), _)) => format!("{percent} % within {}", shown::duration(*bound)),
            _ => format!("{percent} % later than an hour"),
        }
    };
    if promoted > 0 {
        writeln!(out, "lateness      {}, {}, of {promoted} promoted", within(50), within(99))?;
    }
    Ok(())
}

fn depths(out: &mut String, queues: &Depth, top: usize) -> anyhow::Result<()> {
    if queues.objects_with_events == 0 {
        return Ok(());
    }
    let mut prefixes = table(&["prefix", "objects", "events"], 1..3);
    for prefix in queues.by_prefix.iter().take(top) {
        let name = if prefix.prefix.is_empty() { "(others)" } else { &prefix.prefix };
        prefixes.add_row([shown::shortened(name, 50), prefix.objects.to_string(), prefix.events.to_string()]);
    }
    let mut objects = table(&["object", "events"], 1..2);
    for object in &queues.top {
        objects.add_row([
            shown::shortened(named::shown(&object.object, object.object_escaped.as_deref()), 60),
            object.events.to_string(),
        ]);
    }
    writeln!(out, "\n{}", trimmed(&prefixes))?;
    if queues.by_prefix.len() > top {
        writeln!(out, "and {} more prefixes", queues.by_prefix.len() - top)?;
    }
    writeln!(out, "\n{}", trimmed(&objects))?;
    Ok(())
}

/// Returns the lease and its process, or the time since the name was last seen.
fn lease(name: &NameStats, now_ms: u64) -> String {
    let left = match (name.lease_ttl_ms, name.last_seen_ms) {
        (Some(ttl), _) => format!("{} left", shown::duration(ttl)),
        (None, _) if name.alive => "never ends".to_owned(),
        (None, 0) => return "none".to_owned(),
        (None, at) => return format!("none, last seen {} ago", shown::duration(now_ms.saturating_sub(at))),
    };
    match (&name.pid, &name.host) {
        (Some(pid), Some(host)) => {
            let host = host.split('/').next().unwrap_or_default();
            shown::shortened(&format!("{left}: {pid} on {host}"), LEASE_CHARS)
        }
        _ => left,
    }
}

fn table(columns: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(shown::COLUMNS);
    table.set_header(columns);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns the table without trailing blanks.
fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
