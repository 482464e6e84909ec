//! `seriatim share`: the weights and priorities with which groups of objects take turns.

use std::fmt::Write as _;

use seriatim::control::rules::Selector;
use seriatim::control::shares::{Priority, SelectorShare, Share, ShareDone, WEIGHT_MAX};

use crate::console::actor::ActorWithReason;
use crate::console::exit::Exit;
use crate::console::global::Global;
use crate::console::shown::{self, Level};

/// Set the weight and the priority with which groups of objects take turns
///
/// Shares have an effect on workers with --group-depth 1 or more, while more objects wait than
/// these workers can claim.
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

/// Set the share of a prefix; it replaces the whole share that was set before
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seriatim share set 'acme:*' --weight 5\n  seriatim share set 'acme:batch:*' --weight 2 --priority low"
)]
struct Set {
    /// A prefix of 1 to 8 parts, such as acme:*, which also covers the object acme; each part of a
    /// group's share comes from the longest prefix that sets it
    selector: Selector,
    /// The number of claims per turn, compared with other groups, 1 to 100 [default: that of a
    /// shorter prefix, or 1]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u64).range(1..=WEIGHT_MAX), required_unless_present = "priority")]
    weight: Option<u64>,
    /// The priority: high, normal or low [default: that of a shorter prefix, or normal]
    #[arg(long, value_name = "PRIORITY", hide_possible_values = true)]
    priority: Option<PriorityArg>,
    #[command(flatten)]
    actor: ActorWithReason,
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

/// Print the shares
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
            let done = control.set_share(set.actor.by(&who), &set.selector, share).await;
            let what = match done.map_err(shown::action_failure)? {
                ShareDone::New => "set",
                _ => "replaced",
            };
            shown::print(&format!("{}: {what}\n", set.selector))?;
        }
        Command::List(list) => {
            let shares = control.shares().await.map_err(shown::failure)?;
            if shares.is_empty() {
                shown::tell(Level::Info, "there are no shares");
            }
            let mut out = String::new();
            for share in &shares {
                match list.json {
                    true => writeln!(out, "{}", serde_json::to_string(share)?)?,
                    false => write(&mut out, share)?,
                }
            }
            shown::print(&out)?;
        }
        Command::Remove(remove) => {
            let who = remove.actor.who();
            let done = control.remove_share(remove.actor.by(&who), &remove.selector).await.map_err(shown::action_failure)?;
            if done == ShareDone::NotSet {
                shown::tell(
                    Level::Error,
                    &format!("there is no share for {}; `seriatim share list` shows them", remove.selector),
                );
                return Ok(Exit::Input);
            }
            shown::print(&format!("{}: removed\n", remove.selector))?;
        }
    }
    Ok(Exit::Done)
}

fn write(out: &mut String, share: &SelectorShare) -> anyhow::Result<()> {
    writeln!(out, "{}", shown::shortened(&share.selector, 200))?;
    if let Some(weight) = share.weight {
        writeln!(out, "  weight    {weight}")?;
    }
    if let Some(priority) = share.priority {
        writeln!(out, "  priority  {}", priority.word())?;
    }
    writeln!(out, "  by        {}, {}", shown::shortened(&share.actor, 200), shown::time(share.set_ms))?;
    if !share.reason.is_empty() {
        writeln!(out, "  why       {}", shown::shortened(&share.reason, 2000))?;
    }
    Ok(())
}
