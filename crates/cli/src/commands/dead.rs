//! `seriatim dead`.

use std::fmt::Write as _;

use seriatim::control::dead::{LOOKED_MAX, PER_CALL_MAX};
use seriatim::control::{By, Control, Cursor, DeadLetter, RowId, Settle, Settled};
use seriatim::escape;
use seriatim_console::actor::{Actor, ActorWithReason};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::{named, shown};

use super::listing::{self, Listing};

/// Show, retry or drop dead letters
///
/// A dead letter is an event that ended without success: a sink rejected it, its attempts were used
/// up, it is not JSON, or an operator skipped it. Dead letters stay until they are retried or
/// dropped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Retry(Retry),
    Drop(Drop),
}

/// Print dead letters, oldest first
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object per line, with the event as it was emitted (`event`; `event_text` or
    /// `event_hex` if the event is not JSON)
    #[arg(long)]
    json: bool,
    /// Only dead letters of this object. Searches 1,000 dead letters of all objects. If there are
    /// more to search, a last line (with --json `{"after":…}`) says how to continue
    #[arg(long, value_name = "OBJECT")]
    object: Option<String>,
    /// Print at most N [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print the newest first
    #[arg(long)]
    newest: bool,
    /// Only dead letters that come after this one in the list
    #[arg(long, value_name = "DEAD_ID")]
    after: Option<Cursor>,
}

/// Print one dead letter in full
#[derive(Debug, clap::Args)]
struct Show {
    /// The id of the dead letter as the list shows it, e.g. 1767225600000-0
    #[arg(value_name = "DEAD_ID")]
    dead_id: RowId,
    /// Print one JSON object, as `dead list --json` does
    #[arg(long)]
    json: bool,
}

/// Selects the dead letters of an action.
#[derive(Debug, clap::Args)]
struct Selection {
    /// The ids of dead letters as the list shows them
    #[arg(
        value_name = "DEAD_ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    dead_ids: Vec<RowId>,
    /// All dead letters that exist now
    #[arg(long)]
    all: bool,
    /// With --all: only dead letters of this object
    #[arg(
        long,
        value_name = "OBJECT",
        requires = "all",
        conflicts_with = "dead_ids"
    )]
    object: Option<String>,
    /// Print one JSON object per dead letter, or with --all one with the numbers. `newer_delivered` says
    /// whether newer events of the object were delivered since
    #[arg(long)]
    json: bool,
}

/// Emit the events of dead letters again, as new events at the end of the queues of their objects
///
/// The step that emits an event also deletes its dead letter. If the event fails again, it becomes
/// a new dead letter. If newer events of the object were delivered since, the command says so: the
/// receiver gets the event out of order.
#[derive(Debug, clap::Args)]
struct Retry {
    #[command(flatten)]
    which: Selection,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Delete dead letters; the actor, the reason and the first 8 KiB of each event are recorded with
/// the action. With --all one record has the number of the dead letters, and no events
#[derive(Debug, clap::Args)]
struct Drop {
    #[command(flatten)]
    which: Selection,
    #[command(flatten)]
    actor: Actor,
    /// The reason, recorded with the action; `seriatim actions` shows it
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    match args.command {
        Command::List(list) => list.run(global).await,
        Command::Show(show) => show.run(global).await,
        Command::Retry(Retry { which, actor }) => {
            which
                .settle(Settle::Retry, actor.by(&actor.who()), global)
                .await
        }
        Command::Drop(Drop {
            which,
            actor,
            reason,
        }) => {
            which
                .settle(
                    Settle::Drop,
                    By {
                        who: &actor.who(),
                        why: &reason,
                    },
                    global,
                )
                .await
        }
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let wanted = self.object.as_deref().map(named::bytes).transpose()?;
        let control = global.control().await?;
        if let Some(object) = &wanted {
            return self.run_of(&control, object).await;
        }
        let mut list = Listing::new(self.json, self.limit);
        let read = async |after: Option<&Cursor>, _| {
            let page = match self.newest {
                true => control.newest_dead_letters(after, PER_CALL_MAX).await,
                false => control.dead_letters(after, PER_CALL_MAX).await,
            };
            page.map(|page| (page.letters, 0, page.next))
        };
        let after = self.after.clone();
        list.print_pages(after, PER_CALL_MAX, read, |out, letter, _| {
            write(out, letter)
        })
        .await?;
        list.end(&self.none(""))
    }

    /// Prints the dead letters of one object. One request searches a bounded number of dead letters
    /// of all objects. If there are more to search, prints how to continue.
    async fn run_of(&self, control: &Control, object: &[u8]) -> anyhow::Result<Exit> {
        let count = self.limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        let found = control
            .dead_letters_of(object, self.newest, self.after.as_ref(), count)
            .await;
        let found = found.map_err(shown::failure)?;
        let mut list = Listing::new(self.json, self.limit);
        list.print(&found.letters, write)?;
        match &found.next {
            _ if found.letters.len() >= count => {}
            Some(after) => {
                let searched = format!("{LOOKED_MAX} dead letters");
                listing::tell_more(self.json, &searched, after.as_str())?;
            }
            None => {
                let object = shown::shortened(&escape::name(object), 512);
                return list.end(&self.none(&format!(" of {object}")));
            }
        }
        Ok(Exit::Done)
    }

    /// Returns the message that there is no dead letter.
    fn none(&self, of: &str) -> String {
        let behind = self
            .after
            .as_ref()
            .map_or_else(String::new, |dead_id| format!(" behind {dead_id}"));
        format!("there is no dead letter{of}{behind}")
    }
}

impl Show {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        let found = control
            .dead_letter(&self.dead_id)
            .await
            .map_err(shown::failure)?;
        let Some(letter) = found else {
            let message = format!(
                "there is no dead letter {} (any more); `seriatim dead list` shows the existing ones",
                self.dead_id
            );
            return Err(Failure::with(Exit::Input, message));
        };
        let mut out = String::new();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&letter)?)?;
        } else {
            head(&mut out, &letter)?;
            writeln!(
                out,
                "  event  {}",
                shown::shortened(&String::from_utf8_lossy(letter.event.bytes()), usize::MAX)
            )?;
        }
        shown::print(&out)?;
        Ok(Exit::Done)
    }
}

fn write(out: &mut String, letter: &DeadLetter) -> anyhow::Result<()> {
    head(out, letter)?;
    writeln!(out, "  event  {}", listing::beginning(&letter.event))?;
    Ok(())
}

fn head(out: &mut String, letter: &DeadLetter) -> anyhow::Result<()> {
    let number =
        |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let object = named::shown(&letter.object, letter.object_escaped.as_deref());
    let (id, prev, attempts) = (
        number(letter.id),
        number(letter.prev),
        number(letter.attempts),
    );
    writeln!(
        out,
        "{}  {object}  id {id}, prev {prev}, {attempts} failed attempts",
        letter.dead_id
    )?;
    writeln!(out, "  error  {}", shown::shortened(&letter.error, 2000))?;
    Ok(())
}

impl Selection {
    async fn settle(self, step: Settle, by: By<'_>, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        if self.all {
            let object = self
                .object
                .as_deref()
                .map(|object| named::object(control.keys(), object))
                .transpose()?;
            let all = control
                .settle_all(by, step, object.as_deref())
                .await
                .map_err(shown::action_failure)?;
            let word = if step == Settle::Retry {
                "retried"
            } else {
                "dropped"
            };
            let newer = match all.newer_delivered {
                0 => String::new(),
                newer => format!(
                    "; for {newer} of them, newer events of the object were delivered since"
                ),
            };
            shown::print(&match self.json {
                true => serde_json::to_string(&all)? + "\n",
                false => format!("{} {word}{newer}\n", all.done),
            })?;
            return match all.left {
                0 => Ok(Exit::Done),
                left => {
                    let message = format!(
                        "{left} stay: they have no object or no event, or the queue of their object is not a list"
                    );
                    Err(Failure::with(Exit::Broken, message))
                }
            };
        }
        let settled = control
            .settle(by, step, &self.dead_ids)
            .await
            .map_err(shown::action_failure)?;
        let (mut out, mut undone) = (String::new(), 0);
        for (dead_id, settled) in self.dead_ids.iter().zip(&settled) {
            undone += usize::from(!settled.is_done());
            let words = match settled {
                Settled::Retried => "retried",
                Settled::RetriedLate => "retried; newer events of its object were delivered since",
                Settled::Dropped => "dropped",
                Settled::Gone => "absent",
                Settled::Unreadable => "stays: it has no object or no event",
                Settled::WrongType => "stays: the queue of its object is not a list",
                _ => "stays",
            };
            let newer = *settled == Settled::RetriedLate;
            match self.json {
                true => {
                    let line = serde_json::json!({ "dead_id": dead_id, "result": settled.word(), "newer_delivered": newer });
                    writeln!(out, "{line}")?;
                }
                false => writeln!(out, "{dead_id}  {words}")?,
            }
        }
        shown::print(&out)?;
        match undone {
            0 => Ok(Exit::Done),
            _ => Err(Failure::with(
                Exit::Input,
                format!("{undone} of {} dead letters stay unchanged", settled.len()),
            )),
        }
    }
}
