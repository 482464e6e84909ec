//! `seriatim stats`.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use seriatim::control::stats::{CronStats, NameStats, ScheduleStats};
use seriatim::control::{Control, Depth, Stats};
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shares;
use seriatim_console::watch::Watch;
use seriatim_console::{named, shown};

/// Maximum number of characters of a name in a table row. `--json` prints the whole name.
const NAME_CHARS: usize = 22;
const LEASE_CHARS: usize = 28;
const SINK_CHARS: usize = 24;
/// The duration from which a delivery counts as long and is shown, in ms.
const LONG_MS: u64 = 1000;

/// Show workers, markers, held objects, rules and dead letters
///
/// The command is cheap at any size: it sends a bounded number of commands to Redis. With --scan it
/// walks over all keys and also counts the queued events.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Count all queued events by prefix (the object's name up to its first colon), and find the
    /// longest queues
    #[arg(long)]
    scan: bool,
    /// The number of objects and prefixes that --scan shows
    #[arg(long, default_value_t = 10, value_name = "N", requires = "scan")]
    top: u16,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    stats: &'a Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<&'a Depth>,
    /// Warnings about settings of Redis that break the promise of seriatim.
    warnings: &'a [String],
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let control = args.watch.control(global).await?;
    args.watch.print(async || look(&args, &control).await).await
}

/// Reads the figures from Redis once. Returns the text to print.
async fn look(args: &Args, control: &Control) -> anyhow::Result<String> {
    let stats = control.stats().await.map_err(shown::failure)?;
    let warnings = control.known_warnings().await;
    let mut queues = None;
    if args.scan {
        queues = Some(
            control
                .depth(usize::from(args.top))
                .await
                .map_err(shown::failure)?,
        );
    }
    if args.json {
        return Ok(serde_json::to_string(&Json {
            stats: &stats,
            depth: queues.as_ref(),
            warnings: &warnings,
        })? + "\n");
    }
    let mut out = tables(&stats, queues.as_ref(), usize::from(args.top))?;
    for warning in &warnings {
        writeln!(
            out,
            "{}",
            shown::wrapped(
                &format!("warning       {warning}"),
                usize::from(shown::COLUMNS) - 14,
                14
            )
        )?;
    }
    Ok(out)
}

fn tables(stats: &Stats, queues: Option<&Depth>, top: usize) -> anyhow::Result<String> {
    let mut out = String::new();
    if stats.workers.is_empty() {
        writeln!(out, "no worker process has run here\n")?;
    } else {
        let mut names = table(&["worker", "slots", "busy", "in flight", "lease"], 1..4);
        for name in &stats.workers {
            let numbers = [
                u64::from(name.slots),
                name.slots_busy,
                name.events_in_flight,
            ]
            .map(|n| n.to_string());
            let [slots, busy, in_flight] = numbers;
            names.add_row([
                shown::middle_cut(&name.name, NAME_CHARS),
                slots,
                busy,
                in_flight,
                lease(name, stats.now_ms),
            ]);
        }
        writeln!(out, "{}\n", trimmed(&names))?;
    }
    describe(&mut out, stats)?;
    if stats.workers_not_shown > 0 {
        writeln!(out, "and {} more names\n", stats.workers_not_shown)?;
    }
    let held = &stats.held;
    let oldest = match stats.oldest_waiting_ms {
        Some(0) => String::new(),
        Some(ms) => format!(", the oldest for {}", shown::duration(ms)),
        None => ", for an unknown time".to_owned(),
    };
    let limited = match stats.oldest_limited_ms {
        Some(0) => String::new(),
        Some(ms) => format!(", the oldest for a limit for {}", shown::duration(ms)),
        None => ", some for a limit for an unknown time".to_owned(),
    };
    writeln!(out, "markers       {}{oldest}{limited}", stats.markers)?;
    if stats.groups.waiting > 0 {
        writeln!(
            out,
            "groups        {} wait, {} names that are grouped",
            stats.groups.waiting, stats.groups.names
        )?;
    }
    writeln!(out, "in flight     {} events", stats.events_in_flight)?;
    writeln!(
        out,
        "held          {} objects: {} due, {} waiting, {} until released",
        held.total, held.due, held.waiting, held.until_released
    )?;
    if held.overdue_ms > 0 {
        writeln!(
            out,
            "overdue       {} since the first due object became due",
            shown::duration(held.overdue_ms)
        )?;
    }
    writeln!(out, "paused        {} objects", stats.paused)?;
    writeln!(
        out,
        "rules         {} set, {} being lifted",
        stats.rules.in_force, stats.rules.lifting
    )?;
    shares(&mut out, stats)?;
    schedules(&mut out, &stats.schedules, stats.now_ms)?;
    cron(&mut out, &stats.cron, stats.now_ms)?;
    let emitted = &stats.idempotency_keys;
    if emitted.keys > 0 {
        let bytes = emitted
            .bytes
            .map_or_else(String::new, |bytes| format!(", {bytes} bytes"));
        writeln!(out, "emit keys     {}{bytes}", emitted.keys)?;
    }
    writeln!(out, "dead letters  {}", stats.dead_letters)?;
    writeln!(out, "last id       {}", stats.last_id)?;
    for projection in &stats.projections {
        let missed = match projection.missed {
            0 => String::new(),
            missed => format!(", {missed} missed"),
        };
        let nobody = if projection.running {
            ""
        } else {
            ", not running"
        };
        let name = shown::shortened(&projection.name, 64);
        writeln!(
            out,
            "projection    {name}: {} rows behind{missed}{nobody}",
            projection.lag
        )?;
    }
    for key in &stats.unreadable {
        writeln!(
            out,
            "unreadable    {} has a wrong type; `seriatim check` shows more",
            shown::shortened(key, 80)
        )?;
    }
    if let Some(queues) = queues {
        writeln!(
            out,
            "queued        {} events of {} objects",
            queues.events_queued, queues.objects_with_events
        )?;
        depths(&mut out, queues, top)?;
    }
    Ok(out)
}

/// Writes the figures that the worker processes report: rates, times, unavailable sinks, and the
/// longest delivery.
fn describe(out: &mut String, stats: &Stats) -> anyhow::Result<()> {
    let known: Vec<_> = stats
        .workers
        .iter()
        .filter_map(|name| Some((&name.name, name.status.as_ref()?)))
        .collect();
    if known.is_empty() {
        return Ok(());
    }
    let mut table = table(
        &[
            "last minute",
            "events/s",
            "delivery p50",
            "p99",
            "Redis p99",
            "sink",
        ],
        1..5,
    );
    for (name, status) in &known {
        let minute = &status.minute;
        let times = [
            minute.delivery.p50_us,
            minute.delivery.p99_us,
            minute.redis.p99_us,
        ]
        .map(quantile);
        let [p50, p99, redis] = times;
        let rate = minute
            .delivered
            .saturating_mul(1000)
            .checked_div(minute.ms)
            .map_or_else(String::new, |rate| rate.to_string());
        let sink = shown::middle_cut(&escape(&status.sink), SINK_CHARS);
        table.add_row([
            shown::middle_cut(name, NAME_CHARS),
            rate,
            p50,
            p99,
            redis,
            sink,
        ]);
    }
    writeln!(out, "{}\n", trimmed(&table))?;
    for (name, status) in &known {
        if let Some(down_ms) = status.sink_down_ms {
            let (name, down) = (
                shown::middle_cut(name, NAME_CHARS),
                shown::duration(down_ms),
            );
            let line = format!(
                "sink down     {name}, for {down}: {}",
                escape(&status.sink_error)
            );
            writeln!(
                out,
                "{}",
                shown::wrapped(&line, usize::from(shown::COLUMNS) - 14, 14)
            )?;
        }
    }
    for (name, status) in known.iter().filter(|(_, status)| status.minute.unknown > 0) {
        let (name, count) = (shown::middle_cut(name, NAME_CHARS), status.minute.unknown);
        let line = format!(
            "unknown       {name}, {count} times in the last minute, the objects wait for another worker: {}",
            escape(&status.unknown_error)
        );
        writeln!(
            out,
            "{}",
            shown::wrapped(&line, usize::from(shown::COLUMNS) - 14, 14)
        )?;
    }
    let longest = known
        .iter()
        .filter_map(|(name, status)| Some((name, status.longest.as_ref()?)));
    if let Some((name, longest)) = longest.max_by_key(|(_, longest)| longest.since_ms)
        && longest.since_ms >= LONG_MS
    {
        let (name, since) = (
            shown::middle_cut(name, NAME_CHARS),
            shown::duration(longest.since_ms),
        );
        let object = shown::shortened(&escape(&longest.object), 40);
        writeln!(
            out,
            "longest       {object}, event {}, in delivery for {since} by {name}",
            longest.id
        )?;
    }
    Ok(())
}

/// Escapes a text that a worker process has reported, so that it is safe on a terminal: any program
/// may have written it.
fn escape(text: &str) -> String {
    seriatim::escape::name(text).into_owned()
}

/// Formats the upper bound of a quantile, given in µs.
fn quantile(us: Option<u64>) -> String {
    match us {
        None => String::new(),
        Some(us @ ..10_000) => format!("{} ms", us.div_ceil(10) as f64 / 100.0),
        Some(us @ ..1_000_000) => format!("{} ms", us / 1000),
        Some(us) => format!("{} s", us / 100_000 / 10),
    }
}

/// Writes the number of shares, and those for which most names wait.
fn shares(out: &mut String, stats: &Stats) -> anyhow::Result<()> {
    let shares = &stats.shares;
    if shares.total == 0 {
        return Ok(());
    }
    writeln!(out, "shares        {} set", shares.total)?;
    for figures in &shares.listed {
        let selector = shown::middle_cut(&escape(&figures.share.selector), NAME_CHARS);
        let line = format!(
            "share         {selector}: {}, {}",
            shares::waiting(figures),
            shares::usage(figures)
        );
        writeln!(
            out,
            "{}",
            shown::wrapped(&line, usize::from(shown::COLUMNS) - 14, 14)
        )?;
    }
    let more = shares.total.saturating_sub(shares.listed.len() as u64);
    if more > 0 {
        writeln!(out, "and {more} more shares")?;
    }
    Ok(())
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
    writeln!(
        out,
        "cron jobs     {}: {} due, {paused} paused{next}",
        cron.total, cron.due
    )?;
    if cron.ahead > 0 {
        let line = format!(
            "cron ahead    {} jobs do not fire, because Redis' clock was ahead; `seriatim cron list` shows the remedy",
            cron.ahead
        );
        writeln!(
            out,
            "{}",
            shown::wrapped(&line, usize::from(shown::COLUMNS) - 14, 14)
        )?;
    }
    Ok(())
}

fn schedules(out: &mut String, schedules: &ScheduleStats, now_ms: u64) -> anyhow::Result<()> {
    let next = match schedules.next_ms.map(|due| due.saturating_sub(now_ms)) {
        Some(left) if schedules.due == 0 => format!(", the first in {}", shown::duration(left)),
        _ => String::new(),
    };
    writeln!(
        out,
        "schedules     {}: {} due{next}",
        schedules.total, schedules.due
    )?;
    let promoted: u64 = schedules.lateness.iter().map(|(_, events)| events).sum();
    // Returns the upper bound of the lateness for this percentage of the promoted events.
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
        writeln!(
            out,
            "lateness      {}, {}, of {promoted} promoted",
            within(50),
            within(99)
        )?;
    }
    Ok(())
}

fn depths(out: &mut String, queues: &Depth, top: usize) -> anyhow::Result<()> {
    if queues.objects_with_events == 0 {
        return Ok(());
    }
    let mut prefixes = table(&["prefix", "objects", "events"], 1..3);
    for prefix in queues.by_prefix.iter().take(top) {
        let name = if prefix.prefix.is_empty() {
            "(others)"
        } else {
            &prefix.prefix
        };
        prefixes.add_row([
            shown::shortened(name, 50),
            prefix.objects.to_string(),
            prefix.events.to_string(),
        ]);
    }
    let mut objects = table(&["object", "events"], 1..2);
    for object in &queues.top {
        objects.add_row([
            shown::shortened(
                named::shown(&object.object, object.object_escaped.as_deref()),
                60,
            ),
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

/// Returns a text with the rest of the lease and its process. Without a lease, it has the time
/// since the name was last seen.
fn lease(name: &NameStats, now_ms: u64) -> String {
    let left = match (name.lease_ttl_ms, name.last_seen_ms) {
        (Some(ttl), _) => format!("{} left", shown::duration(ttl)),
        (None, _) if name.alive => "never ends".to_owned(),
        (None, 0) => return "none".to_owned(),
        (None, at) => {
            return format!(
                "none, last seen {} ago",
                shown::duration(now_ms.saturating_sub(at))
            );
        }
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
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(shown::COLUMNS);
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
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}
