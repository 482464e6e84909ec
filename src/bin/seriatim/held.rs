//! `seriatim held`.

use std::fmt::Write as _;

use seriatim::control::held::{self, HeldObject, PER_CALL_MAX, Released, Skipped, WaitsFor};
use seriatim::control::rules::Kind;

use crate::actor::ActorWithReason;
use crate::exit::{Exit, Failure};
use crate::global::Global;
use crate::rules::described;
use crate::shown;

/// Look at held objects, release them, skip the event they wait for
///
/// An object is held while its event waits for its next try, for an operator, or for a pause or a block to be lifted, and between two workers. All
/// other objects go on meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Release(Release),
    Skip(Skip),
}

/// Print held objects: those due first come first, those that wait for an operator last; then those that are paused or blocked, by name
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Only those that wait for an operator
    #[arg(long)]
    until_released: bool,
    /// Only those that are paused or blocked
    #[arg(long, conflicts_with = "until_released")]
    paused: bool,
    /// At most this many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Make a held object due now, whatever it waits for
///
/// Its attempts stay counted: where they are used up, it has one more.
#[derive(Debug, clap::Args)]
struct Release {
    /// The object, e.g. work:1
    object: String,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Send the event at the head of a held object to the dead letters; the object goes on with the next one
#[derive(Debug, clap::Args)]
struct Skip {
    /// The object, e.g. work:1
    object: String,
    /// Only if the event has this id, as the list shows it: it may be over meanwhile
    #[arg(long, value_name = "ID")]
    id: Option<u64>,
    #[command(flatten)]
    actor: ActorWithReason,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    match args.command {
        Command::List(list) => list.run(global).await,
        Command::Release(release) => release.run(global).await,
        Command::Skip(skip) => skip.run(global).await,
    }
}

impl List {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let keys = global.keys()?;
        let mut conn = global.connect().await?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let parts: &[bool] = match (self.paused, self.until_released) {
            (true, _) => &[true],
            (_, true) => &[false],
            _ => &[false, true],
        };
        for paused in parts {
            let mut after: Option<HeldObject> = None;
            while left > 0 {
                let count = PER_CALL_MAX.min(usize::try_from(left).unwrap_or(usize::MAX));
                let page = match paused {
                    true => held::paused(&mut conn, &keys, after.as_ref(), count).await,
                    false => held::held(&mut conn, &keys, self.until_released, after.as_ref(), count).await,
                };
                let page = page.map_err(shown::failure)?;
                let mut out = String::new();
                for object in &page.objects {
                    self.write(&mut out, object, page.now_ms)?;
                }
                left -= page.objects.len() as u64;
                if !shown::print(&out)? {
                    return Ok(Exit::Done);
                } else if page.objects.len() < count {
                    break;
                }
                after = page.objects.into_iter().next_back();
            }
        }
        Ok(Exit::Done)
    }

    fn write(&self, out: &mut String, object: &HeldObject, now_ms: u64) -> anyhow::Result<()> {
        if self.json {
            writeln!(out, "{}", serde_json::to_string(object)?)?;
            return Ok(());
        }
        let rule = object.rules.iter().find(|rule| rule.in_force).map(|rule| rule.kind);
        let what = match object.waits_for {
            WaitsFor::Retry => "retry",
            WaitsFor::Takeover => "takeover",
            WaitsFor::Yield => "yield",
            WaitsFor::Stop => "stop",
            WaitsFor::Released => "released",
            WaitsFor::Operator => "operator",
            WaitsFor::Rule if rule == Some(Kind::Block) => "blocked",
            WaitsFor::Rule => "paused",
            _ => "?",
        };
        let due = match object.due_ms {
            None if object.waits_for == WaitsFor::Rule => match rule {
                Some(Kind::Block) => "until unblocked".to_owned(),
                Some(_) => "until resumed".to_owned(),
                None => "being woken".to_owned(),
            },
            None => "until released".to_owned(),
            Some(due) if due <= now_ms => "due now".to_owned(),
            Some(due) => format!("due in {}", shown::duration(due - now_ms)),
        };
        writeln!(out, "{}  {what}, {due}", shown::shortened(&object.object, 512))?;
        for rule in &object.rules {
            writeln!(out, "  rule   {}", shown::shortened(&rule.to_string(), 520))?;
            writeln!(out, "         {}", described(rule, now_ms))?;
            if !rule.reason.is_empty() {
                writeln!(out, "         why    {}", shown::shortened(&rule.reason, 2000))?;
            }
        }
        if let Some(id) = object.id {
            let HeldObject { attempts, crashes, events, .. } = object;
            writeln!(out, "  event  id {id}, {attempts} failed attempts, {crashes} crashes, {events} events in hand")?;
        }
        if !object.why.is_empty() {
            writeln!(out, "  why    {}", shown::shortened(&object.why, 2000))?;
        }
        Ok(())
    }
}

fn not_held(object: &str, owner: &str) -> anyhow::Error {
    let object = shown::shortened(object, 512);
    let why = match owner {
        "" => "nobody has it".to_owned(),
        owner => format!("worker {} has it", shown::shortened(owner, 100)),
    };
    Failure::with(Exit::Input, format!("{object} is not held, {why}: nothing was done; `seriatim inspect` tells more"))
}

fn ruled(object: &str) -> anyhow::Error {
    let object = shown::shortened(object, 512);
    let message =
        format!("a rule holds {object}: nothing was done; `seriatim inspect` names the rule, `resume` or `unblock` lifts it");
    Failure::with(Exit::Input, message)
}

impl Release {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let keys = global.keys()?;
        let mut conn = global.connect().await?;
        let who = self.actor.who();
        let by = self.actor.by(&who);
        match held::release(&mut conn, &keys, by, &self.object).await.map_err(shown::action_failure)? {
            Released::NotHeld(owner) => Err(not_held(&self.object, &owner)),
            Released::Paused => Err(ruled(&self.object)),
            Released::Released(why) => {
                let why = if why.is_empty() { "yield" } else { &why };
                shown::print(&format!("released, it was held: {}\n", shown::shortened(why, 2000)))?;
                Ok(Exit::Done)
            }
        }
    }
}

impl Skip {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let keys = global.keys()?;
        let mut conn = global.connect().await?;
        let who = self.actor.who();
        let by = self.actor.by(&who);
        match held::skip(&mut conn, &keys, by, &self.object, self.id).await.map_err(shown::action_failure)? {
            Skipped::Skipped { id, dead_id, left } => {
                shown::print(&format!("event {id} is dead letter {dead_id}; {left} events of its batch go on\n"))?;
                Ok(Exit::Done)
            }
            Skipped::NotHeld(owner) => Err(not_held(&self.object, &owner)),
            Skipped::Paused => Err(ruled(&self.object)),
            Skipped::Other(id) => Err(Failure::with(
                Exit::Input,
                format!("the event at the head has the id {id}: nothing was done; look at it first"),
            )),
            Skipped::NoBatch(why) => {
                let why = if why.is_empty() { "yield" } else { &why };
                let why = shown::shortened(why, 2000);
                let message = format!(
                    "no event of it is in hand, it is held for another reason ({why}): nothing was done; release it instead"
                );
                Err(Failure::with(Exit::Input, message))
            }
        }
    }
}
