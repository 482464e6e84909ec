//! `seriatim limit`: limits on the number of queued events and markers.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use seriatim::control::limits::{LimitDone, QueueLimit};
use seriatim::control::rules::Selector;
use seriatim::escape;
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::named;
use seriatim_console::shown::{self, Level};

use super::listing::Listing;

/// Limit the number of queued events and markers: emits above a limit are refused
///
/// Emitters of this library and the commands obey a new limit within 5 s. Limits do not apply to
/// producers that send a plain MULTI, to emits of handlers, to schedules, to cron jobs and to
/// retried dead letters.
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

/// A limit; `None` for any number.
#[derive(Debug, Clone, Copy)]
struct Most(Option<NonZeroU64>);

fn number_or_any(text: &str) -> Result<Most, String> {
    match text {
        "any" => Ok(Most(None)),
        text => text
            .parse()
            .map(|number| Most(Some(number)))
            .map_err(|_| "write a number from 1 on, or any".to_owned()),
    }
}

/// Set the limit for all objects or for a prefix; --queued and --markers replace the numbers that
/// were set before
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seriatim limit set '*' --queued 10000 --markers 1000000\n  seriatim limit set 'vip:*' --queued 50000"
)]
struct Set {
    /// `*` for all objects, or a prefix such as work:*; the longest selector that matches an object
    /// counts for it
    #[arg(value_parser = named::selector)]
    selector: Selector,
    /// The most events queued for an object, or `any` [default: any]
    #[arg(long, value_name = "N", value_parser = number_or_any, required_unless_present = "markers")]
    queued: Option<Most>,
    /// The most markers of the namespace, only with `*` [default: any number]
    #[arg(long, value_name = "N")]
    markers: Option<NonZeroU64>,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Print the limits
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Remove a limit; the exit code is 2 if there is no such limit
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
            let done = control
                .set_limit(
                    set.actor.by(&who),
                    &set.selector,
                    set.queued.and_then(|most| most.0),
                    set.markers,
                )
                .await;
            let what = match done.map_err(shown::action_failure)? {
                LimitDone::New => "set",
                _ => "replaced",
            };
            shown::print(&format!("{}: {what}\n", set.selector.escaped()))?;
        }
        Command::List(list) => {
            let limits = control.limits().await.map_err(shown::failure)?;
            let mut listing = Listing::new(list.json, None);
            listing.print(&limits, write)?;
            return listing.end("there are no limits");
        }
        Command::Remove(remove) => {
            let who = remove.actor.who();
            let done = control
                .remove_limit(remove.actor.by(&who), &remove.selector)
                .await
                .map_err(shown::action_failure)?;
            if done == LimitDone::NotSet {
                shown::tell(
                    Level::Error,
                    &format!(
                        "there is no limit for {}; `seriatim limit list` shows them",
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

fn write(out: &mut String, limit: &QueueLimit) -> anyhow::Result<()> {
    let number = |number: Option<u64>| {
        number.map_or_else(|| "any number".to_owned(), |number| number.to_string())
    };
    writeln!(
        out,
        "{}",
        shown::shortened(&escape::name(&limit.selector), 520)
    )?;
    writeln!(out, "  queued   {}", number(limit.queued_max))?;
    if let Some(markers) = limit.markers_max {
        writeln!(out, "  markers  {markers}")?;
    }
    writeln!(
        out,
        "  by       {}, {}",
        shown::shortened(&limit.actor, 200),
        shown::time(limit.set_ms)
    )?;
    if !limit.reason.is_empty() {
        writeln!(out, "  why      {}", shown::shortened(&limit.reason, 2000))?;
    }
    Ok(())
}
