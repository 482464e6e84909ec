//! `seriatim forget`.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use seriatim::control::{Control, Forgot};
use seriatim::escape;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::lines::Lines;
use seriatim_console::shown::Level;
use seriatim_console::{named, shown};

/// Number of objects forgotten in one call.
const PER_CALL: usize = 1000;

/// Forget idle objects: delete the id of the last event, which is the only key of an idle object
///
/// If an object has events or an owner, or is held, it is not forgotten, and the reason is printed.
/// The next event of a forgotten object has "prev" 0 and an id above all earlier ids. A receiver
/// that still knows the object applies this event, but cannot see whether an earlier event is
/// missing. For a receiver that has forgotten the object, the event is the first one. `seriatim
/// worker --forget-after` forgets objects automatically.
///
/// The exit code is 1 if an object was not forgotten because it is not idle. Otherwise it is 2 if
/// an object is unknown, e.g. because its name is misspelt. It is 0 if all objects are forgotten.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The objects, e.g. work:1, as the commands print them; - reads names from standard input, one
    /// per line
    #[arg(required = true, value_name = "OBJECT")]
    objects: Vec<String>,
    /// Print one JSON object per line instead of text
    #[arg(long)]
    json: bool,
    /// Treat an unknown object as forgotten, so that it does not change the exit code
    #[arg(long)]
    ignore_unknown: bool,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let keys = global.keys()?;
    // An invalid name is reported before anything is sent to Redis.
    for object in args.objects.iter().filter(|object| *object != "-") {
        named::object(&keys, object)?;
    }
    let mut calls = Calls {
        control: global.control().await?,
        json: args.json,
        names: Vec::new(),
        all_gone: true,
        unknown: None,
    };
    for object in args.objects {
        if object != "-" {
            let name = named::object(calls.control.keys(), &object)?;
            calls.take(name).await?;
            continue;
        }
        let mut lines = Lines::open(Path::new("-"))?;
        while let Some(line) = lines.next_line()? {
            if line.text.is_empty() {
                continue;
            }
            let name = std::str::from_utf8(line.text)
                .map_err(|error| anyhow::anyhow!("{error}; write the name escaped"));
            match name.and_then(|name| named::object(calls.control.keys(), name)) {
                Ok(name) => calls.take(name).await?,
                Err(error) => {
                    // The valid lines before the invalid line are still processed.
                    let number = line.number;
                    calls.make().await?;
                    return Err(Failure::with(
                        Exit::Input,
                        format!("line {number} of standard input: {error}"),
                    ));
                }
            }
        }
    }
    calls.make().await?;
    let exit = if calls.all_gone {
        Exit::Done
    } else {
        Exit::Broken
    };
    let Some((first, unknown)) = calls.unknown.filter(|_| !args.ignore_unknown) else {
        return Ok(exit);
    };
    let first = shown::shortened(&first, 512);
    let what = match unknown {
        1 => format!("{first} is unknown, so nothing was forgotten"),
        unknown => {
            format!(
                "{unknown} of the objects are unknown, so nothing was forgotten for them; the first is {first}"
            )
        }
    };
    shown::tell(
        Level::Error,
        &format!("{what}: is the name right, and the namespace? --ignore-unknown accepts it"),
    );
    Ok(if exit == Exit::Done {
        Exit::Input
    } else {
        exit
    })
}

struct Calls {
    control: Control,
    json: bool,
    names: Vec<Vec<u8>>,
    all_gone: bool,
    /// The first unknown object, and the number of unknown objects.
    unknown: Option<(String, u64)>,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    object: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_escaped: Option<&'a str>,
    #[serde(flatten)]
    forgot: &'a Forgot,
}

impl Calls {
    async fn take(&mut self, name: Vec<u8>) -> anyhow::Result<()> {
        self.names.push(name);
        if self.names.len() < PER_CALL {
            Ok(())
        } else {
            self.make().await
        }
    }

    /// Forgets the collected objects.
    async fn make(&mut self) -> anyhow::Result<()> {
        let names = std::mem::take(&mut self.names);
        if names.is_empty() {
            return Ok(());
        }
        let all = self.control.forget(&names).await.map_err(shown::failure)?;
        let mut out = String::new();
        for (object, forgot) in names.iter().zip(&all) {
            self.all_gone &= forgot.is_gone();
            let (object, escaped) = (String::from_utf8_lossy(object), escape::differing(object));
            let (object, object_escaped) = (&*object, escaped.as_deref());
            if *forgot == Forgot::Unknown {
                let name = || (named::shown(object, object_escaped).to_owned(), 0);
                self.unknown.get_or_insert_with(name).1 += 1;
            }
            match self.json {
                true => writeln!(
                    out,
                    "{}",
                    serde_json::to_string(&Line {
                        object,
                        object_escaped,
                        forgot
                    })?
                )?,
                false => writeln!(
                    out,
                    "{}  {}",
                    named::shown(object, object_escaped),
                    said(forgot)
                )?,
            }
        }
        // The result of the print is ignored: all objects are forgotten even if nobody reads the
        // output.
        shown::print(&out)?;
        Ok(())
    }
}

fn said(forgot: &Forgot) -> String {
    let key = |key: &str| shown::shortened(key, 600);
    match forgot {
        Forgot::Forgotten { last_event_id } => format!(
            "forgotten, its last id was {}",
            shown::shortened(last_event_id, 40)
        ),
        Forgot::Unknown => "unknown".to_owned(),
        Forgot::Queued { events } => format!("kept: {events} of its events are queued"),
        Forgot::Scheduled { events } => format!("kept: {events} of its events are scheduled"),
        Forgot::Owned { owner } => format!("kept: worker {} has it", shown::shortened(owner, 100)),
        Forgot::Held => "kept: it is held; seriatim inspect shows the reason".to_owned(),
        Forgot::Reserved { key: name } => format!("kept: {} exists", key(name)),
        Forgot::Wrong { key: name } => format!("kept: {} has a wrong type", key(name)),
        _ => "kept".to_owned(),
    }
}
