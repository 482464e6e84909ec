//! `seriatim dead`.

use std::fmt::Write as _;

use seriatim::control::dead::PER_CALL_MAX;
use seriatim::control::{DeadLetter, dead_letters};

use crate::exit::Exit;
use crate::global::Global;
use crate::shown;

/// Look at dead letters: events that a sink rejected, or that are not JSON
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
}

/// Print dead letters, oldest first
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object a line, with the event as it was emitted (`event`; `event_text` or `event_hex` if it is not JSON)
    #[arg(long)]
    json: bool,
    /// Only those of this object
    #[arg(long, value_name = "OBJECT")]
    object: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    match args.command {
        Command::List(list) => list.run(global).await,
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let keys = global.keys()?;
        let mut conn = global.connect().await?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut after: Option<String> = None;
        while left > 0 {
            let page = dead_letters(&mut conn, &keys, after.as_deref(), PER_CALL_MAX).await.map_err(shown::failure)?;
            let mut out = String::new();
            for letter in &page {
                if left > 0 && self.object.as_ref().is_none_or(|object| *object == letter.object) {
                    left -= 1;
                    self.write(&mut out, letter)?;
                }
            }
            if !shown::print(&out)? || page.len() < PER_CALL_MAX {
                break;
            }
            after = page.into_iter().next_back().map(|letter| letter.dead_id);
        }
        Ok(Exit::Done)
    }

    fn write(&self, out: &mut String, letter: &DeadLetter) -> anyhow::Result<()> {
        if self.json {
            writeln!(out, "{}", serde_json::to_string(letter)?)?;
            return Ok(());
        }
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        let object = shown::shortened(&letter.object, 512);
        let (id, prev, attempts) = (number(letter.id), number(letter.prev), number(letter.attempts));
        writeln!(out, "{}  {object}  id {id}, prev {prev}, {attempts} failed attempts", letter.dead_id)?;
        writeln!(out, "  error  {}", shown::shortened(&letter.error, 2000))?;
        // Only as much as is shown is turned into text.
        let head = &letter.event[..letter.event.len().min(400)];
        writeln!(out, "  event  {}", shown::shortened(&String::from_utf8_lossy(head), 70))?;
        Ok(())
    }
}
