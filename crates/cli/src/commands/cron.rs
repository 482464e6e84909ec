//! `seriatim cron`: cron jobs, which queue an event again and again at the ticks of a cron
//! schedule.

use std::fmt::Write as _;

use seriatim::control::Cursor;
use seriatim::control::cron::{CronDone, CronDraft, CronJob, PER_CALL_MAX};
use seriatim::cron::{CronSchedule, Missed};
use seriatim::escape;
use seriatim::event::Json;
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::named;
use seriatim_console::shown::{self, Level};

use super::listing::{self, Listing};

/// Queue an event again and again, by a cron schedule
///
/// Worker processes queue the event of a job at each tick of the job's schedule, by Redis' clock.
/// Each tick queues the event once, however many worker processes run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Add(Add),
    List(List),
    /// Remove a job; the exit code is 2 if there is no such job
    Remove(One),
    /// Pause a job: its ticks do not queue the event until `cron resume`
    Pause(One),
    /// Resume a paused job; the event is not queued for ticks during the pause
    Resume(One),
    /// Queue the event of a job now, even if the job is paused
    RunNow(One),
}

/// Add a job, or replace the job with the same name
///
/// If the same command is run again, it changes nothing. So a program may run it at each start. A
/// paused job stays paused.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seriatim cron add report \"30 9 * * MON-FRI\" reports '{\"type\":\"daily\"}' --tz Europe/Berlin\n  \
                        seriatim cron add sync \"@every 90s\" sync:1 '{}' --now --missed skip"
)]
struct Add {
    /// The name of the job, as the list shows it: \\ is a backslash
    #[arg(value_parser = named::text)]
    name: String,
    /// The cron schedule: five fields, six fields (the first field is then the second), @every 90s,
    /// or @daily, @hourly, @weekly, @monthly, @yearly
    schedule: String,
    /// The object of the event, escaped as the name
    #[arg(value_parser = named::text)]
    object: String,
    /// The event as JSON
    #[arg(allow_negative_numbers = true)]
    event: String,
    /// The time zone of the fields, e.g. Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// Also queue the event now, if the job is new or changed
    #[arg(long)]
    now: bool,
    /// The missed ticks that still queue the event after an outage, if the first of them is more
    /// than 60 s late
    #[arg(long, value_name = "WHAT", default_value = "once")]
    missed: MissedArg,
    #[command(flatten)]
    actor: ActorWithReason,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum MissedArg {
    /// The missed ticks that are at most 60 s late queue the event once together; older ticks do
    /// nothing
    Skip,
    /// All missed ticks together queue the event once
    Once,
    /// Each missed tick queues the event; if more than 1,000 ticks were missed, only the latest
    /// 1,000 do
    All,
}

/// Print the jobs in the order of their names, each with its last and next run
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The name of the job, as the list shows it
    #[arg(allow_hyphen_values = true, value_parser = named::text)]
    name: String,
    #[command(flatten)]
    actor: ActorWithReason,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let one = match args.command {
        Command::Add(add) => return add.run(global).await,
        Command::List(list) => return list.run(global).await,
        Command::Remove(ref one)
        | Command::Pause(ref one)
        | Command::Resume(ref one)
        | Command::RunNow(ref one) => one,
    };
    let control = global.control().await?;
    let who = one.actor.who();
    let (by, name) = (one.actor.by(&who), &one.name);
    let shown_name = escape::name(name);
    let done = match args.command {
        Command::Remove(_) => control.remove_cron(by, name).await,
        Command::Pause(_) => control.pause_cron(by, name).await,
        Command::Resume(_) => control.resume_cron(by, name).await,
        _ => control.run_cron(by, name).await,
    };
    match done.map_err(shown::action_failure)? {
        CronDone::NotSet => {
            shown::tell(
                Level::Error,
                &format!(
                    "there is no cron job \"{shown_name}\"; `seriatim cron list` shows the jobs"
                ),
            );
            Ok(Exit::Input)
        }
        CronDone::Changed => {
            shown::tell(
                Level::Info,
                &format!("the cron job \"{shown_name}\" is not paused"),
            );
            Ok(Exit::Done)
        }
        done => {
            let what = match done {
                CronDone::Removed => "removed",
                CronDone::Paused => "paused",
                CronDone::Resumed => "resumed",
                _ => "queued its event",
            };
            shown::print(&format!("{shown_name}: {what}\n"))?;
            Ok(Exit::Done)
        }
    }
}

impl Add {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let schedule = CronSchedule::new(&self.schedule, Some(&self.tz));
        let schedule = schedule.map_err(|error| Failure::with(Exit::Input, error.to_string()))?;
        let missed = match self.missed {
            MissedArg::Skip => Missed::Skip,
            MissedArg::Once => Missed::Once,
            MissedArg::All => Missed::All,
        };
        let mut draft = CronDraft::new(&self.name, schedule, &self.object, Json::new(self.event))
            .missed(missed);
        if self.now {
            draft = draft.now();
        }
        let who = self.actor.who();
        let done = global
            .control()
            .await?
            .set_cron(self.actor.by(&who), draft)
            .await
            .map_err(shown::action_failure)?;
        let what = match done {
            CronDone::New => "added",
            CronDone::Replaced => "replaced",
            _ => "unchanged",
        };
        shown::print(&format!("{}: {what}\n", escape::name(&self.name)))?;
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        let (mut jobs, mut now_ms, mut after): (Vec<CronJob>, u64, Option<Cursor>) =
            (Vec::new(), 0, None);
        loop {
            let page = control
                .crons(after.as_ref(), PER_CALL_MAX)
                .await
                .map_err(shown::failure)?;
            now_ms = now_ms.max(page.now_ms);
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        jobs.dedup_by(|a, b| a.name == b.name);
        let mut list = Listing::new(self.json, None);
        list.print(&jobs, |out, job| write(out, job, now_ms))?;
        list.end("there are no cron jobs")
    }
}

fn write(out: &mut String, job: &CronJob, now_ms: u64) -> anyhow::Result<()> {
    let name = named::shown(&job.name, job.name_escaped.as_deref());
    let Some(detail) = &job.detail else {
        writeln!(
            out,
            "{name}  of a form that this version does not know; set or remove it"
        )?;
        return Ok(());
    };
    let object = named::shown(&detail.object, detail.object_escaped.as_deref());
    writeln!(out, "{name}  {}  {}", detail.schedule, detail.zone)?;
    let missed = match detail.missed {
        Missed::Skip => "skip",
        Missed::Once => "once",
        Missed::All => "all",
    };
    writeln!(out, "  object  {object}, missed ticks: {missed}")?;
    writeln!(out, "  event   {}", listing::beginning(&detail.event))?;
    let next = match detail.next_ms {
        _ if detail.paused => "paused".to_owned(),
        None => "never".to_owned(),
        Some(next) if next <= now_ms => format!(
            "{}, due for {}",
            shown::time(next),
            shown::duration(now_ms - next)
        ),
        Some(next) => format!(
            "{}, in {}",
            shown::time(next),
            shown::duration(next - now_ms)
        ),
    };
    let last = detail.last_ms.map_or_else(
        || "never".to_owned(),
        |last| {
            format!(
                "{}, {} ago",
                shown::time(last),
                shown::duration(now_ms.saturating_sub(last))
            )
        },
    );
    writeln!(out, "  last    {last}\n  next    {next}")?;
    if let Some(problem) = &detail.problem {
        writeln!(out, "  problem {}", shown::shortened(problem, 500))?;
    }
    Ok(())
}
