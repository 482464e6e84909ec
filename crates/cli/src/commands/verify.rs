//! `seriatim verify`: reads files for [`seriatim::verify`] and prints its verdict.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use comfy_table::{Cell, CellAlignment, Table, presets};
use seriatim::verify::{History, HistoryKind, HistoryReport, Judge, Kind, Report};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::lines::{Fields, Lines};
use seriatim_console::shown;
use seriatim_console::verify::{examples, input, output};

/// Check the outputs of workers: was any event lost, reordered or forked?
///
/// Reads the output files of any number of workers. A file has one envelope per line, as `worker
/// --sink file:PATH` writes it, and is plain or gzip. Within each file, the ids of an object must
/// grow, or repeat earlier ids. Over all files together, the events of an object must form one
/// chain: each event's prev is the id of the event before it, and the first prev is 0. Give all
/// outputs of a run together, because events of a missing output count as lost.
///
/// Exit code 0: no fault. 1: a fault. 2: a file cannot be read, or the files have no event.
/// Duplicates are not faults, because receivers can drop them by their ids.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The outputs of workers; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The emitted events, as `emit --from` reads them: every event must be in the outputs, in this
    /// order per object. May be given several times, in the order of the emits
    #[arg(long, value_name = "INPUT")]
    against: Vec<PathBuf>,
    /// Dead letters, as `seriatim dead list --json` prints them: they need not be in the outputs
    #[arg(long, value_name = "FILE")]
    dead: Vec<PathBuf>,
    #[command(flatten)]
    fields: Fields,
    /// The files are a history instead, as docs/proof.md describes it: emits of producers with
    /// their replies, and events that a receiver got. Each acknowledged event must be applied once,
    /// in order; a failed one never
    #[arg(long, conflicts_with_all = ["against", "dead"])]
    history: bool,
    /// Do not count two kinds of events as faults, but count them separately: events that Redis
    /// lost in a window that the history declares, and events that came again because of such a
    /// loss
    #[arg(long, requires = "history")]
    lossy: bool,
    /// State that no object was ever forgotten (`seriatim forget`, `worker --forget-after`). Then a
    /// second chain of an object, which begins with prev 0, is a fault. Without this option a
    /// second chain is counted, but is not a fault
    #[arg(long)]
    never_forgotten: bool,
    /// Print the verdict as one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let files = [&args.files, &args.against, &args.dead]
        .into_iter()
        .flatten();
    if files
        .filter(|path| path.as_path() == Path::new("-"))
        .count()
        > 1
    {
        return Err(Failure::with(
            Exit::Input,
            "standard input (-) can be read only once; name files for the others",
        ));
    }
    if args.history {
        return run_history(args).await;
    }
    let (json, alone) = (args.json, args.against.is_empty() && args.dead.is_empty());
    let report = tokio::task::spawn_blocking(move || judge(&args)).await??;
    if report.events == 0 && report.is_clean() && alone {
        let what = "there is no event in these files, so there is nothing to check; --against INPUT checks which events are missing";
        return Err(Failure::with(Exit::Input, what));
    }
    let text = if json {
        serde_json::to_string(&report)? + "\n"
    } else {
        verdict(&report)?
    };
    shown::print(&text)?;
    Ok(if report.is_clean() {
        Exit::Done
    } else {
        Exit::Broken
    })
}

fn judge(args: &Args) -> anyhow::Result<Report> {
    let mut judge = Judge::new();
    if args.never_forgotten {
        judge.never_forgotten();
    }
    for path in &args.files {
        output(&mut judge, Lines::open(path)?)?;
    }
    for path in &args.dead {
        dead(&mut judge, Lines::open(path)?)?;
    }
    for path in &args.against {
        input(&mut judge, Lines::open(path)?, &args.fields)?;
    }
    Ok(judge.finish())
}

async fn run_history(args: Args) -> anyhow::Result<Exit> {
    let json = args.json;
    let report = tokio::task::spawn_blocking(move || history(&args)).await??;
    let text = if json {
        serde_json::to_string(&report)? + "\n"
    } else {
        history_verdict(&report)?
    };
    shown::print(&text)?;
    Ok(if report.is_clean() {
        Exit::Done
    } else {
        Exit::Broken
    })
}

/// Judges a history. An invalid last line without a line break is ignored: the program that wrote
/// it died before the line was complete.
fn history(args: &Args) -> anyhow::Result<HistoryReport> {
    let mut history = History::new(args.lossy);
    if args.never_forgotten {
        history.never_forgotten();
    }
    for path in &args.files {
        let mut lines = Lines::open(path)?;
        let name = lines.name().to_owned();
        let file = history.file(&name);
        while let Some(line) = lines.next_line()? {
            match history.line(file, line.number, line.text) {
                Err(error) if line.ended => {
                    return Err(Failure::with(
                        Exit::Input,
                        format!("{name}:{}: {error}", line.number),
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(history.finish())
}

fn dead(judge: &mut Judge, mut lines: Lines) -> anyhow::Result<()> {
    let name = lines.name().to_owned();
    let file = judge.file(&name);
    while let Some(line) = lines.next_line()? {
        if !line.text.trim_ascii().is_empty() {
            let taken = judge.dead(file, line.number, line.text);
            taken.map_err(|error| {
                Failure::with(Exit::Input, format!("{name}:{}: {error}", line.number))
            })?;
        }
    }
    Ok(())
}

/// Formats the verdict for a person.
fn verdict(report: &Report) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut row = |name: &str, count: u64| {
        table.add_row([
            Cell::new(name),
            Cell::new(count).set_alignment(CellAlignment::Right),
        ]);
    };
    row("events", report.events);
    row("objects", report.objects);
    row("duplicates", report.duplicates);
    if report.anew > 0 {
        row("begun anew", report.anew);
    }
    if report.dead > 0 {
        row("dead letters", report.dead);
    }
    for kind in Kind::ALL {
        // The counts of these four kinds are shown even if they are 0.
        let always = matches!(
            kind,
            Kind::Lost | Kind::Reordered | Kind::Forked | Kind::IdReused
        );
        if always || report.count(kind) > 0 {
            row(&kind.to_string(), report.count(kind));
        }
    }
    let mut out = table.trim_fmt() + "\n";
    examples(report, &mut out)?;
    out.push_str(match (report.is_clean(), report.events) {
        (true, 0) => "clean: no events\n",
        (true, _) => "clean\n",
        (false, _) => "BROKEN\n",
    });
    Ok(out)
}

fn history_verdict(report: &HistoryReport) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut row = |name: &str, count: u64| {
        table.add_row([
            Cell::new(name),
            Cell::new(count).set_alignment(CellAlignment::Right),
        ]);
    };
    row("events emitted", report.events);
    row("  acknowledged", report.ok);
    row("  failed", report.failed);
    row("  unknown", report.unknown);
    row("    of which came", report.unknown_came);
    row("applied", report.applied);
    row("objects", report.objects);
    row("duplicates", report.duplicates);
    if report.anew > 0 {
        row("begun anew", report.anew);
    }
    row("dead letters", report.dead);
    if report.lost_by_redis + report.redelivered > 0 {
        row("lost by Redis", report.lost_by_redis);
        row("redelivered after that", report.redelivered);
        row("behind lost events", report.behind_lost);
    }
    for kind in HistoryKind::ALL {
        row(&kind.to_string(), report.count(kind));
    }
    let mut out = table.trim_fmt() + "\n";
    for example in &report.examples {
        writeln!(
            out,
            "  {}: {}:{}: {}",
            example.kind, example.file, example.line, example.what
        )?;
    }
    out.push_str(if report.is_clean() {
        "clean\n"
    } else {
        "BROKEN\n"
    });
    Ok(out)
}
