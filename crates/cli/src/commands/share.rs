//! `seriatim share`: the weights, priorities and limits of groups of objects.

use std::fmt::Write as _;

use seriatim::control::rules::Selector;
use seriatim::control::shares::{Priority, Share, ShareDone, ShareFigures};
use seriatim::escape;
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::named;
use seriatim_console::shares;
use seriatim_console::shown::{self, Level};

use super::listing::Listing;

/// Give groups of objects a weight, a priority, or limits
///
/// The objects of a prefix with a share are a group. Weights and priorities count while more objects
/// wait than the workers can claim. Limits count at all times. Update all workers to this version
/// before the first share is set: older workers keep no limit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Set(Set),
    List(List),
    Remove(Remove),
}

/// Set the share of a prefix, or limits of all objects; it replaces the whole share that was set
/// before
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seriatim share set 'acme:*' --weight 5\n  seriatim share set 'acme:batch:*' --weight 2 --priority low\n  seriatim share set 'acme:*' --in-flight 50\n  seriatim share set 'mail:*' --rate 20/s,burst=5"
)]
struct Set {
    /// A prefix of 1 to 8 parts, such as acme:*, which also covers the object acme; or `*` for limits
    /// of all objects. Weight and priority come from the longest prefix that sets them; all limits
    /// count
    #[arg(value_parser = named::selector)]
    selector: Selector,
    /// The number of claims per turn, compared with other groups, 1 to 100 [default: that of a
    /// shorter prefix, or 1]
    #[arg(long, value_name = "W", required_unless_present_any = ["priority", "in_flight", "rate"])]
    weight: Option<u64>,
    /// The priority: high, normal or low [default: that of a shorter prefix, or normal]
    #[arg(long, value_name = "PRIORITY", hide_possible_values = true)]
    priority: Option<PriorityArg>,
    /// The most objects in hand at the same time, over all processes, from 1
    #[arg(long, value_name = "N")]
    in_flight: Option<u64>,
    /// The most events per second, over all processes, as in 50/s or 0.5/s,burst=5; the burst is the
    /// most events above the rate, at least the events of 100 ms, and 2 above 2/s [default burst:
    /// about the events of 250 ms, at least 1]
    #[arg(long, value_name = "N/s[,burst=B]", value_parser = rate)]
    rate: Option<Rate>,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// A rate in events per second, with its burst in events.
#[derive(Debug, Clone, Copy)]
struct Rate(f64, Option<u64>);

fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || {
        "write the events per second, as in 50/s, or with a burst in whole events, as in 50/s,burst=10".to_owned()
    };
    let (rate, burst) = match text.split_once(",burst=") {
        Some((rate, burst)) => (rate, Some(burst.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let rate = rate
        .strip_suffix("/s")
        .and_then(|rate| rate.parse().ok())
        .ok_or_else(wrong)?;
    Ok(Rate(rate, burst))
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PriorityArg {
    High,
    Normal,
    Low,
}

impl From<PriorityArg> for Priority {
    fn from(priority: PriorityArg) -> Self {
        match priority {
            PriorityArg::High => Self::High,
            PriorityArg::Normal => Self::Normal,
            PriorityArg::Low => Self::Low,
        }
    }
}

/// Print the shares, and how far each is used: the names of objects that wait, the objects in hand, and
/// the events taken
///
/// An object whose name begins with several prefixes with a share waits for the longest one. In hand,
/// it counts for all of them.
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Remove a share; the exit code is 2 if there is no such share
#[derive(Debug, clap::Args)]
struct Remove {
    /// The selector, as the list shows it
    #[arg(value_parser = named::existing_selector)]
    selector: Selector,
    #[command(flatten)]
    actor: ActorWithReason,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    match args.command {
        Command::Set(set) => {
            let who = set.actor.who();
            let mut share = Share::new();
            if let Some(weight) = set.weight {
                share = share.weight(weight);
            }
            if let Some(priority) = set.priority {
                share = share.priority(priority.into());
            }
            if let Some(objects) = set.in_flight {
                share = share.in_flight(objects);
            }
            if let Some(Rate(rate, burst)) = set.rate {
                share = share.rate(rate);
                share = burst.map_or(share, |events| share.burst(events));
            }
            let done = control
                .set_share(set.actor.by(&who), &set.selector, share)
                .await;
            let what = match done.map_err(shown::action_failure)? {
                ShareDone::New => "set",
                _ => "replaced",
            };
            shown::print(&format!("{}: {what}\n", set.selector.escaped()))?;
        }
        Command::List(list) => {
            let shares = control.share_figures().await.map_err(shown::failure)?;
            let mut listing = Listing::new(list.json, None);
            listing.print(&shares, write)?;
            return listing.end("there are no shares");
        }
        Command::Remove(remove) => {
            let who = remove.actor.who();
            let done = control
                .remove_share(remove.actor.by(&who), &remove.selector)
                .await
                .map_err(shown::action_failure)?;
            if done == ShareDone::NotSet {
                shown::tell(
                    Level::Error,
                    &format!(
                        "there is no share for {}; `seriatim share list` shows them",
                        remove.selector.escaped()
                    ),
                );
                return Ok(Exit::Input);
            }
            shown::print(&format!("{}: removed\n", remove.selector.escaped()))?;
        }
    }
    Ok(Exit::Done)
}

fn write(out: &mut String, figures: &ShareFigures) -> anyhow::Result<()> {
    let share = &figures.share;
    writeln!(
        out,
        "{}",
        shown::shortened(&escape::name(&share.selector), 520)
    )?;
    if let Some(weight) = share.weight {
        writeln!(out, "  weight    {weight}")?;
    }
    if let Some(priority) = share.priority {
        writeln!(out, "  priority  {}", priority.word())?;
    }
    if let Some(objects) = share.in_flight {
        writeln!(out, "  in hand   at most {objects}")?;
    }
    if let Some(rate) = share.rate {
        let burst = share
            .burst
            .map_or_else(String::new, |burst| format!(", burst {burst}"));
        writeln!(out, "  rate      at most {rate}/s{burst}")?;
    }
    writeln!(out, "  waits     {}", shares::waiting(figures))?;
    writeln!(out, "  used      {}", shares::usage(figures))?;
    writeln!(
        out,
        "  by        {}, {}",
        shown::shortened(&share.actor, 200),
        shown::time(share.set_ms)
    )?;
    if !share.reason.is_empty() {
        writeln!(out, "  why       {}", shown::shortened(&share.reason, 2000))?;
    }
    Ok(())
}
