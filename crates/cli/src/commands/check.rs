//! `seriatim check`.

use std::fmt::Write as _;

use seriatim::control::CheckReport;
use seriatim::control::check::VIOLATIONS_MAX;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shown;

/// Check the invariants of a live system
///
/// Walks over all keys while the system runs. Before it reports a violation, it checks the
/// violation a second time, in one atomic step. The command only reads. It also works when Redis is
/// out of memory. "Invariants" in docs/design.md explains the numbers of violations; the violation
/// `layout` is a key of a wrong type or form. The command also warns of settings of Redis that
/// break the guarantees. The exit code is 0 if every invariant holds, and 1 if one is broken.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// Print at most N violations; the printed count includes all violations
    #[arg(long, default_value_t = VIOLATIONS_MAX, value_name = "N")]
    limit: usize,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    let report = control
        .check_up_to(args.limit)
        .await
        .map_err(shown::failure)?;
    let warnings = control.known_warnings().await;
    let text = if args.json {
        let mut report = serde_json::to_value(&report)?;
        report["warnings"] = serde_json::to_value(&warnings)?;
        serde_json::to_string(&report)? + "\n"
    } else {
        lines(&report, &warnings)?
    };
    shown::print(&text)?;
    Ok(if report.is_clean() {
        Exit::Done
    } else {
        Exit::Broken
    })
}

fn lines(report: &CheckReport, warnings: &[String]) -> anyhow::Result<String> {
    let mut out = String::new();
    for violation in &report.violations {
        let subject = shown::shortened(&violation.subject.to_string(), 600);
        writeln!(
            out,
            "{:<6} {subject}: {}",
            violation.invariant,
            shown::shortened(&violation.what, 2000)
        )?;
    }
    let seen = &report.looked_at;
    let not_shown = report.violations_total - report.violations.len() as u64;
    if not_shown > 0 {
        writeln!(out, "       and {not_shown} more (--limit)")?;
    }
    writeln!(
        out,
        "looked at {} workers of {} names, {} markers,",
        seen.workers, seen.names, seen.markers
    )?;
    writeln!(
        out,
        "          {} objects with events, {} owned, {} held, {} delivered before",
        seen.objects_with_events, seen.objects_owned, seen.objects_held, seen.objects_delivered
    )?;
    if seen.grouped > 0 {
        writeln!(
            out,
            "          {} names in {} groups",
            seen.grouped, seen.groups
        )?;
    }
    if seen.schedules > 0 {
        writeln!(out, "          {} schedules", seen.schedules)?;
    }
    if seen.cron_jobs > 0 {
        writeln!(out, "          {} cron jobs", seen.cron_jobs)?;
    }
    if seen.foreign > 0 {
        writeln!(
            out,
            "          {} keys of other programs, left alone; a --namespace keeps apart",
            seen.foreign
        )?;
    }
    writeln!(
        out,
        "Redis alone shows I4, I5 and I6 only in part, and I7 not at all (--json says why)"
    )?;
    for warning in warnings {
        writeln!(out, "warning: {warning}")?;
    }
    match report.violations_total {
        0 => writeln!(
            out,
            "clean: every invariant holds, as far as Redis can show it"
        )?,
        1 => writeln!(out, "broken: 1 violation")?,
        many => writeln!(out, "broken: {many} violations")?,
    }
    Ok(out)
}
