//! `seriatim held`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use seriatim::control::held::{
    HeldObject, PER_CALL_MAX, ReleaseFilter, Released, Skipped, WaitsFor,
};
use seriatim::control::rules::Kind;
use seriatim::control::{By, Control, Cursor};
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::shown::Level;
use seriatim_console::units::time;
use seriatim_console::{named, shown};

use super::listing::Listing;
use super::rules::described;

/// Interval of progress messages while many objects are released.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Show held objects, release them, or skip the event they wait for
///
/// A held object waits, and no worker has it. It waits for the next try of its event, for an
/// operator, for the end of a pause or a block, or for its next worker. All other objects go on
/// during this time.
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

/// Print held objects: first those with a due time, in its order, then those that wait for an
/// operator, then paused or blocked objects by name
#[derive(Debug, clap::Args)]
struct List {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Only objects that wait for an operator
    #[arg(long)]
    until_released: bool,
    /// Only paused or blocked objects
    #[arg(long, conflicts_with = "until_released")]
    paused: bool,
    /// Print at most N [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Make held objects due, whatever they wait for, except objects under a pause or a block
///
/// One object is due now. The due times of many objects are spread over --over. The number of
/// attempts stays: an event whose attempts are used up gets one more attempt. Paused or blocked
/// objects stay held. Many objects are released in steps of 100. Ctrl-C ends the command between
/// two steps; the objects of the steps before are released.
#[derive(Debug, clap::Args)]
struct Release {
    /// The object, e.g. work:1, as the commands print it: \\ is a backslash, \n a line end, \xff
    /// any byte
    #[arg(required_unless_present_any = ["all", "prefix", "why"], conflicts_with_all = ["all", "prefix", "why", "until_released", "over"])]
    object: Option<String>,
    /// All held objects
    #[arg(long, conflicts_with_all = ["prefix", "why"])]
    all: bool,
    /// Only objects whose names begin with PREFIX, e.g. work:, escaped as OBJECT
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    prefix: Option<String>,
    /// Only objects whose `why`, as `held list` shows it, contains TEXT, e.g. 'connection refused'
    #[arg(long, value_name = "TEXT", value_parser = some_text)]
    why: Option<String>,
    /// With --all, --prefix or --why: spread the due times of the objects evenly over this time: up
    /// to 24h. 0s: all are due at once [default: 10ms for each held object, at most 1m]
    #[arg(long, value_name = "TIME", value_parser = over)]
    over: Option<Duration>,
    /// With --all, --prefix or --why: only objects that wait for an operator
    #[arg(long)]
    until_released: bool,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Make the first event of a held object a dead letter; the object goes on with its next event
#[derive(Debug, clap::Args)]
struct Skip {
    /// The object, e.g. work:1, as the commands print it: \\ is a backslash, \n a line end, \xff
    /// any byte
    object: String,
    /// Skip the event only if it has this id, as `held list` shows it; otherwise do nothing
    #[arg(long, value_name = "ID")]
    id: Option<u64>,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Refuses an empty text, which would select all objects. The text is empty e.g. if a shell
/// variable is unset.
fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("the text is empty; use --all for all held objects".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// Parses a prefix.
fn prefix(text: &str) -> Result<String, String> {
    let prefix = named::text(&some_text(text)?)?;
    named::check_prefix(prefix.as_bytes()).map(|()| prefix)
}

/// Parses the time over which released objects become due.
fn over(text: &str) -> Result<Duration, String> {
    let over = time(text)?;
    if over > Duration::from_secs(24 * 3600) {
        Err("it must be at most 24h".to_owned())
    } else {
        Ok(over)
    }
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
        let control = global.control().await?;
        let mut list = Listing::new(self.json, self.limit);
        let parts: &[bool] = match (self.paused, self.until_released) {
            (true, _) => &[true],
            (_, true) => &[false],
            _ => &[false, true],
        };
        for paused in parts {
            let read = async |after: Option<&Cursor>, count| {
                let page = match paused {
                    true => control.paused(after, count).await,
                    false => control.held(self.until_released, after, count).await,
                };
                page.map(|page| (page.objects, page.now_ms, page.next))
            };
            if !list.print_pages(None, PER_CALL_MAX, read, write).await? {
                return Ok(Exit::Done);
            }
        }
        list.end(self.nothing())
    }

    /// Returns the message that is printed if the list is empty.
    fn nothing(&self) -> &'static str {
        match (self.paused, self.until_released) {
            (true, _) => "no object is paused or blocked",
            (_, true) => "no object waits for an operator",
            _ => "no object is held, paused or blocked",
        }
    }
}

fn write(out: &mut String, object: &HeldObject, now_ms: u64) -> anyhow::Result<()> {
    let rule = object
        .rules
        .iter()
        .find(|rule| rule.in_force)
        .map(|rule| rule.kind);
    let what = match object.waits_for {
        WaitsFor::Retry => "retry",
        WaitsFor::Unknown => "unknown",
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
        None if object.at_once => "due now".to_owned(),
        None => "until released".to_owned(),
        Some(due) if due <= now_ms => "due now".to_owned(),
        Some(due) => format!("due in {}", shown::duration(due - now_ms)),
    };
    writeln!(
        out,
        "{}  {what}, {due}",
        named::shown(&object.object, object.object_escaped.as_deref())
    )?;
    if let Some(wait) = &object.waits_for_share {
        writeln!(
            out,
            "  waits  for {}",
            shown::shortened(&wait.to_string(), 600)
        )?;
    }
    for rule in &object.rules {
        writeln!(out, "  rule   {}", shown::shortened(&rule.to_string(), 520))?;
        writeln!(out, "         {}", described(rule, now_ms))?;
        if !rule.reason.is_empty() {
            writeln!(
                out,
                "         why    {}",
                shown::shortened(&rule.reason, 2000)
            )?;
        }
    }
    if let Some(id) = object.id {
        let HeldObject {
            attempts,
            crashes,
            events,
            ..
        } = object;
        writeln!(
            out,
            "  event  id {id}, {attempts} failed attempts, {crashes} crashes, {events} events in hand"
        )?;
    }
    if !object.why.is_empty() {
        writeln!(out, "  why    {}", shown::shortened(&object.why, 2000))?;
    }
    Ok(())
}

fn not_held(object: &str, owner: &str) -> anyhow::Error {
    let object = shown::shortened(object, usize::MAX);
    let why = match owner {
        "" => "it has no owner".to_owned(),
        owner => format!("worker {} has it", shown::shortened(owner, 100)),
    };
    Failure::with(
        Exit::Input,
        format!("{object} is not held, {why}: nothing was done; `seriatim inspect` shows more"),
    )
}

fn ruled(object: &str) -> anyhow::Error {
    let object = shown::shortened(object, usize::MAX);
    let message = format!(
        "a rule holds {object}: nothing was done; `seriatim inspect` shows the rule, `resume` or `unblock` lifts it"
    );
    Failure::with(Exit::Input, message)
}

fn without_ids(object: &str, why: &str) -> anyhow::Error {
    let object = shown::shortened(object, usize::MAX);
    let why = match why {
        "" => String::new(),
        why => format!(" ({})", shown::shortened(why, 2000)),
    };
    let message = format!(
        "the batch of {object} has lost its ids{why}: nothing was done; `seriatim repair` gives its events new ids"
    );
    Failure::with(Exit::Input, message)
}

impl Release {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        let who = self.actor.who();
        let by = self.actor.by(&who);
        let Some(object) = &self.object else {
            return self.many(&control, by).await;
        };
        match control
            .release(by, named::object(control.keys(), object)?)
            .await
            .map_err(shown::action_failure)?
        {
            Released::NotHeld(owner) => Err(not_held(object, &owner)),
            Released::Paused => Err(ruled(object)),
            Released::NoIds(why) => Err(without_ids(object, &why)),
            Released::Released(why) => {
                let why = if why.is_empty() { "yield" } else { &why };
                shown::print(&format!(
                    "released, it was held: {}\n",
                    shown::shortened(why, 2000)
                ))?;
                Ok(Exit::Done)
            }
        }
    }
}

impl Release {
    /// Releases all selected objects. Prints the progress every few seconds.
    async fn many(&self, control: &Control, by: By<'_>) -> anyhow::Result<Exit> {
        let which = ReleaseFilter {
            prefix: self.prefix.as_deref().unwrap_or_default(),
            why: self.why.as_deref().unwrap_or_default(),
            until_released: self.until_released,
            over: self.over,
        };
        let (mut shown_at, mut released) = (Instant::now(), 0);
        let all = control.release_all(by, &which, |all| {
            released = all.released;
            if shown_at.elapsed() >= TELL_EVERY {
                shown_at = Instant::now();
                shown::tell(Level::Info, &format!("{released} released so far"));
            }
        });
        let all = all.await.map_err(|error| {
            let exit = shown::action_failure(error);
            let message = format!("after {released} objects were released: {exit:#}");
            Failure::with(seriatim_console::exit::of(&exit), message)
        })?;
        let due = if all.due > 0 {
            format!(", {} were due already", all.due)
        } else {
            String::new()
        };
        let within = match u64::try_from(all.over.as_millis()).unwrap_or(u64::MAX) {
            ms @ 1000.. if all.released > 0 => format!(", due within {}", shown::duration(ms)),
            _ => String::new(),
        };
        shown::print(&format!("{} released{within}{due}\n", all.released))?;
        Ok(Exit::Done)
    }
}

impl Skip {
    async fn run(self, global: &Global) -> anyhow::Result<Exit> {
        let control = global.control().await?;
        let who = self.actor.who();
        let by = self.actor.by(&who);
        match control
            .skip(by, named::object(control.keys(), &self.object)?, self.id)
            .await
            .map_err(shown::action_failure)?
        {
            Skipped::Skipped { id, dead_id, left } => {
                shown::print(&format!(
                    "event {id} is dead letter {dead_id}; {left} events of its batch go on\n"
                ))?;
                Ok(Exit::Done)
            }
            Skipped::NotHeld(owner) => Err(not_held(&self.object, &owner)),
            Skipped::Paused => Err(ruled(&self.object)),
            Skipped::NoIds(why) => Err(without_ids(&self.object, &why)),
            Skipped::Other(id) => Err(Failure::with(
                Exit::Input,
                format!("the first event has the id {id}: nothing was done; inspect it first"),
            )),
            Skipped::NoBatch(why) => {
                let why = if why.is_empty() { "yield" } else { &why };
                let why = shown::shortened(why, 2000);
                let message = format!(
                    "the object has no event that was in hand; it is held for another reason ({why}): nothing was done; release it instead"
                );
                Err(Failure::with(Exit::Input, message))
            }
        }
    }
}
