//! `seriatim pause`, `resume`, `block`, `unblock` and `rules`.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use seriatim::control::rules::{Kind, Rule, Ruled, Selector, SelectorError, check_for};
use seriatim_console::actor::ActorWithReason;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::{named, shown, units};

/// Arguments of `pause` and `block`.
#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// `*` for all objects, a prefix that ends at a colon (work:*), or one object (work:1), as the
    /// commands print it: \\ is a backslash
    #[arg(value_parser = named::text)]
    selector: String,
    /// Take SELECTOR as the exact name of one object, even if it has stars or blanks
    #[arg(long)]
    exact: bool,
    /// Lift the rule after this time, e.g. 30m [default: never]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    after: Option<Duration>,
    #[command(flatten)]
    actor: ActorWithReason,
}

fn duration(text: &str) -> Result<Duration, String> {
    let after = units::time(text)?;
    check_for(after)
        .map_err(|error| error.to_string())
        .map(|()| after)
}

/// Arguments of `resume` and `unblock`.
#[derive(Debug, clap::Args)]
pub(crate) struct Lift {
    /// The selector as it was set, e.g. work:*; `seriatim rules` shows it
    #[arg(value_parser = named::existing_selector)]
    selector: Selector,
    #[command(flatten)]
    actor: ActorWithReason,
}

/// Print pauses and blocks, each with actor, reason, start and end
///
/// Blocks come first. A lifted rule is shown until all objects that it was holding are due again.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn set(args: Set, kind: Kind, global: &Global) -> anyhow::Result<Exit> {
    let selector = if args.exact {
        Selector::exact(&args.selector)
    } else {
        args.selector.parse()
    };
    let selector = selector.map_err(|error| {
        let advice = match &error {
            SelectorError::Star(_) | SelectorError::Blank(_) => {
                "; --exact takes it as the name of one object"
            }
            SelectorError::Many(_) => "; leave --exact out",
            _ => "",
        };
        Failure::with(Exit::Input, format!("{error}{advice}"))
    })?;
    let control = global.control().await?;
    let who = args.actor.who();
    let by = args.actor.by(&who);
    let ruled = control
        .set_rule(by, kind, &selector, args.after)
        .await
        .map_err(shown::action_failure)?;
    let what = match kind {
        Kind::Pause => "paused",
        Kind::Block => "blocked",
    };
    let selector = shown::shortened(&selector.escaped(), 512);
    let before = match ruled {
        Ruled::Again => "; it already was, and now has this end, actor and reason",
        Ruled::Revived => "; it was being lifted",
        _ => "",
    };
    shown::print(&format!("{selector} is {what}{before}\n"))?;
    Ok(Exit::Done)
}

pub(crate) async fn lift(args: Lift, kind: Kind, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    let who = args.actor.who();
    let by = args.actor.by(&who);
    let ruled = control
        .lift_rule(by, kind, &args.selector)
        .await
        .map_err(shown::action_failure)?;
    let selector = shown::shortened(&args.selector.escaped(), 512);
    let (noun, done) = match kind {
        Kind::Pause => ("pause", "resumed"),
        Kind::Block => ("block", "unblocked"),
    };
    match ruled {
        Ruled::NotSet => Err(Failure::with(
            Exit::Input,
            format!(
                "there is no {noun} for {selector}: nothing was done; `seriatim rules` shows the existing rules"
            ),
        )),
        Ruled::Lifting => {
            shown::print(&format!(
                "{selector} is {done} already: workers are waking its objects\n"
            ))?;
            Ok(Exit::Done)
        }
        _ => {
            shown::print(&format!("{selector} is {done}: workers wake its objects\n"))?;
            Ok(Exit::Done)
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    now_ms: u64,
    #[serde(flatten)]
    rule: &'a Rule,
}

pub(crate) async fn list(args: List, global: &Global) -> anyhow::Result<Exit> {
    let control = global.control().await?;
    let all = control.rules().await.map_err(shown::failure)?;
    let mut out = String::new();
    for rule in &all.rules {
        if args.json {
            writeln!(
                out,
                "{}",
                serde_json::to_string(&Json {
                    now_ms: all.now_ms,
                    rule
                })?
            )?;
            continue;
        }
        writeln!(out, "{}", shown::shortened(&rule.to_string(), 520))?;
        writeln!(out, "  {}", described(rule, all.now_ms))?;
        if !rule.reason.is_empty() {
            writeln!(out, "  why    {}", shown::shortened(&rule.reason, 2000))?;
        }
    }
    if out.is_empty() && !args.json {
        out = "nothing is paused or blocked\n".to_owned();
    }
    shown::print(&out)?;
    Ok(Exit::Done)
}

/// Describes the actor, the start and the end of a rule.
pub(crate) fn described(rule: &Rule, now_ms: u64) -> String {
    let since = shown::duration(now_ms.saturating_sub(rule.set_ms));
    let until = match rule.end_ms {
        _ if !rule.in_force => "lifted, its objects are being woken".to_owned(),
        None => "until it is lifted".to_owned(),
        Some(end) => format!("for {} more", shown::duration(end.saturating_sub(now_ms))),
    };
    format!(
        "by     {}, {since} ago, {until}",
        shown::shortened(&rule.actor, 200)
    )
}
