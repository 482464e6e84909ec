//! `seriatim repair`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use seriatim::control::check::VIOLATIONS_MAX;
use seriatim::control::{Repair, RepairReport, RepairStep};
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shown;

/// Put keys right that belong together, after one of them was deleted by hand or evicted
///
/// Without --yes the command only describes its steps. It walks over all keys as `check` does, and
/// rebuilds what can be rebuilt from the keys that are left: the places of held objects, markers,
/// owners, lists of slots, next ticks of cron jobs, groups, and shared keys. Each step is atomic and
/// looks at the present state again, so workers and producers may run.
/// Run the command again if it was stopped: it does what is left.
///
/// Events keep their object, their order, and their ids. If the ids of a batch are lost, its events
/// get new ids and come before all queued events of the object; a receiver may have seen them under
/// their old ids. If later events of the object were delivered meanwhile, the events become dead
/// letters.
///
/// The exit code is 0 if nothing is left to do, and 1 if something needs a decision, or if a run
/// without --yes has found steps. docs/operations.md, "Lost keys", says what each loss means.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do the steps
    #[arg(long)]
    yes: bool,
    /// Queue schedules that have lost their due time at TIME, e.g. 2026-12-24T18:00:00Z. Without this
    /// option they are left as they are
    #[arg(long, value_name = "TIME", value_parser = seriatim_console::units::instant)]
    schedules_due: Option<SystemTime>,
    /// The worker ID, escaped as the commands print it, is dead, although no worker process of
    /// seriatim had it, e.g. a worker of the plain algorithm: free its object. `*` stands for all such
    /// workers. If the worker still runs, its event is delivered twice
    #[arg(long, value_name = "ID", value_parser = owner)]
    dead_owner: Vec<String>,
    /// Without a namespace: also queue lists X:events of which no other key shows that seriatim made
    /// them
    #[arg(long)]
    all_lists: bool,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// Print at most N steps; the printed count includes all steps
    #[arg(long, default_value_t = VIOLATIONS_MAX, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Parses the ID of an owner.
fn owner(escaped: &str) -> Result<String, String> {
    match seriatim_console::named::text(escaped)? {
        id if id.is_empty() => Err("an ID is not empty; write * for all".to_owned()),
        id => Ok(id),
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let due = args
        .schedules_due
        .map(|at| at.duration_since(UNIX_EPOCH))
        .transpose()
        .context("--schedules-due is before 1970")?;
    let repair = Repair {
        dry_run: !args.yes,
        schedules_due_ms: due.map(|due| u64::try_from(due.as_millis()).unwrap_or(u64::MAX)),
        dead_owners: args.dead_owner,
        all_lists: args.all_lists,
        steps_max: args.limit,
        ..Repair::default()
    };
    let control = global.control().await?;
    let who = args.actor.who();
    let report = control
        .repair(args.actor.by(&who), &repair)
        .await
        .map_err(shown::action_failure)?;
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        lines(&report)?
    };
    shown::print(&text)?;
    let is_over = report.left_total == 0 && (report.steps_total == 0 || args.yes);
    Ok(if is_over { Exit::Done } else { Exit::Broken })
}

fn lines(report: &RepairReport) -> anyhow::Result<String> {
    let mut out = String::new();
    let list = |out: &mut String, steps: &[RepairStep], total: u64| -> anyhow::Result<()> {
        for step in steps {
            let subject = shown::shortened(&step.subject.to_string(), 600);
            writeln!(
                out,
                "{:<8} {subject}: {}",
                step.kind,
                shown::shortened(&step.what.replace('\n', " "), 2000)
            )?;
        }
        match total - steps.len() as u64 {
            0 => {}
            more => writeln!(out, "         and {more} more (--limit)")?,
        }
        Ok(())
    };
    list(&mut out, &report.steps, report.steps_total)?;
    list(&mut out, &report.left, report.left_total)?;
    let kinds: Vec<_> = report
        .kinds
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    let kinds = if kinds.is_empty() {
        String::new()
    } else {
        format!(" ({})", kinds.join(", "))
    };
    match (report.steps_total, report.dry_run) {
        (0, _) => writeln!(out, "nothing to repair")?,
        (steps, true) => writeln!(
            out,
            "{steps} steps{kinds}; nothing was done: --yes does them"
        )?,
        (steps, false) => writeln!(
            out,
            "repaired: {steps} steps{kinds}; seriatim check shows the state now"
        )?,
    }
    if report.left_total > 0 {
        writeln!(out, "left: {} need a decision", report.left_total)?;
    }
    Ok(out)
}
