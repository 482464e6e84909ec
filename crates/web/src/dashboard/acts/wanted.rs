//! Reads the form of an action, and checks the rights of the user.

use std::time::Duration;

use seriatim::control::rules::{Kind, Selector, SelectorError, check_for};
use seriatim::control::{RowId, Settle};
use seriatim::escape;
use seriatim_console::{named, units};

use super::ROWS_MAX;
use crate::dashboard::Dashboard;
use crate::dashboard::form::Form;
use crate::dashboard::html::acts::ONCE;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::acts;

/// The name of an object: its bytes, and its escaped form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) bytes: Vec<u8>,
    pub(super) shown: String,
}

impl Name {
    pub(super) fn read(escaped: &str) -> Result<Self, Problem> {
        let bytes = escape::unescaped(escaped)
            .map_err(|error| Problem::bad_request(format!("the object's name: {error}")))?;
        Ok(Self {
            shown: escape::name(&bytes).into_owned(),
            bytes,
        })
    }
}

/// An action with its subjects. The user has the rights for it.
#[derive(Debug)]
pub(super) enum Wanted {
    Release(Vec<Name>),
    /// Each object with the id of the event that the user has seen as its first.
    Skip(Vec<(Name, u64)>),
    ReleaseAll {
        prefix: String,
        until_released: bool,
    },
    Settle(Settle, Vec<RowId>),
    /// All dead letters, or those of one object.
    SettleAll(Settle, Option<Name>),
    Set(Kind, Selector, Option<Duration>),
    Lift(Kind, Selector),
    Forget(Name),
    Cancel(Name, String),
    Cron(CronAct, String),
}

/// The fields of every form of an action.
const COMMON: [&str; 4] = ["act", "reason", "back", ONCE];

/// Returns the further fields of the form of an action.
fn fields_of(act: &str) -> &'static [&'static str] {
    match act {
        "release" | "skip" | "retry" | "drop" => &["row"],
        "release-all" => &["prefix", "until_released"],
        "retry-all" | "drop-all" | "forget" => &["object"],
        "pause" | "block" => &["selector", "exact", "for"],
        "resume" | "unblock" => &["selector"],
        "cancel" => &["object", "key"],
        _ => &["name"],
    }
}

/// An action on a cron job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CronAct {
    Run,
    Pause,
    Resume,
}

impl Wanted {
    pub(super) async fn read(app: &Dashboard, user: &User, form: &Form) -> Result<Self, Problem> {
        let object = || Name::read(&form.needed("object")?);
        let operated = |name: Name| user.may(Right::Operate, &name.bytes).map(|()| name);
        let known: Vec<&str> = COMMON
            .into_iter()
            .chain(fields_of(&form.needed("act")?).iter().copied())
            .collect();
        form.only(&known)?;
        match form.needed("act")?.as_str() {
            "release" => {
                let rows = rows(form)?
                    .into_iter()
                    .map(|row| operated(Name::read(row.name)?));
                Ok(Self::Release(rows.collect::<Result<_, _>>()?))
            }
            "skip" => {
                let skipped = rows(form)?.into_iter().map(|row| {
                    let id = row.id.parse::<u64>();
                    let id = id.map_err(|_| {
                        Problem::bad_request(format!(
                            "{} has no event to skip: nothing was done",
                            row.name
                        ))
                    });
                    Ok((operated(Name::read(row.name)?)?, id?))
                });
                Ok(Self::Skip(skipped.collect::<Result<_, _>>()?))
            }
            "release-all" => {
                // The prefix is escaped, as in the filter of the list.
                let prefix = unescaped("prefix", &form.one("prefix")?.unwrap_or_default())?;
                named::check_prefix(prefix.as_bytes()).map_err(Problem::bad_request)?;
                match prefix.as_str() {
                    "" => user.may_all(Right::Operate)?,
                    prefix => user.may(Right::Operate, prefix.as_bytes())?,
                }
                Ok(Self::ReleaseAll {
                    prefix,
                    until_released: form.one("until_released")?.is_some(),
                })
            }
            "retry" => Ok(Self::Settle(Settle::Retry, letters(app, user, form).await?)),
            "drop" => Ok(Self::Settle(Settle::Drop, letters(app, user, form).await?)),
            "retry-all" => Ok(Self::SettleAll(Settle::Retry, letters_of(user, form)?)),
            "drop-all" => Ok(Self::SettleAll(Settle::Drop, letters_of(user, form)?)),
            "pause" => Self::rule(user, form, Kind::Pause, true),
            "block" => Self::rule(user, form, Kind::Block, true),
            "resume" => Self::rule(user, form, Kind::Pause, false),
            "unblock" => Self::rule(user, form, Kind::Block, false),
            "forget" => Ok(Self::Forget(operated(object()?)?)),
            "cancel" => Ok(Self::Cancel(
                operated(object()?)?,
                unescaped("key", &form.needed("key")?)?,
            )),
            word @ ("run-cron" | "pause-cron" | "resume-cron") => {
                // A cron job can queue events of any object.
                user.may_all(Right::Operate)?;
                let act = match word {
                    "run-cron" => CronAct::Run,
                    "pause-cron" => CronAct::Pause,
                    _ => CronAct::Resume,
                };
                Ok(Self::Cron(act, unescaped("name", &form.needed("name")?)?))
            }
            other => Err(Problem::bad_request(format!(
                "{other:?} is not an action: nothing was done"
            ))),
        }
    }

    fn rule(user: &User, form: &Form, kind: Kind, is_set: bool) -> Result<Self, Problem> {
        user.may_some(Right::Pause)?;
        // The selector is escaped, as all names in forms.
        let text = unescaped("selector", &form.needed("selector")?)?;
        // A rule that exists may have any selector. A new one must look as it was meant.
        let selector = match (is_set, form.one("exact")?) {
            (true, None) => text.parse(),
            (true, Some(_)) => Selector::exact(&text),
            (false, _) => Selector::existing(&text),
        };
        let selector = selector.map_err(|error| selector_problem(&error))?;
        acts::may_rule(user, kind, &selector)?;
        if !is_set {
            return Ok(Self::Lift(kind, selector));
        }
        let after = form
            .one("for")?
            .filter(|text| !text.trim().is_empty())
            .map(|text| units::time(text.trim()));
        let after = after
            .transpose()
            .map_err(|why| Problem::bad_request(format!("the time: {why}: nothing was done")))?;
        after
            .map_or(Ok(()), check_for)
            .map_err(Problem::bad_request)?;
        Ok(Self::Set(kind, selector, after))
    }

    /// Returns the heading of the page with the result.
    pub(super) fn title(&self) -> String {
        let settle = |settle: &Settle| {
            if *settle == Settle::Retry {
                "Retry"
            } else {
                "Drop"
            }
        };
        match self {
            Self::Release(rows) => format!("Release {}", objects(rows.iter())),
            Self::Skip(rows) => format!(
                "Skip the first event of {}",
                objects(rows.iter().map(|(name, _)| name))
            ),
            Self::ReleaseAll { prefix, .. } if prefix.is_empty() => {
                "Release all held objects".to_owned()
            }
            Self::ReleaseAll { prefix, .. } => {
                format!("Release all held objects {}*", escape::name(prefix))
            }
            Self::Settle(step, ids) if ids.len() == 1 => {
                format!("{} the dead letter {}", settle(step), ids[0])
            }
            Self::Settle(step, ids) => format!("{} {} dead letters", settle(step), ids.len()),
            Self::SettleAll(step, None) => format!("{} all dead letters", settle(step)),
            Self::SettleAll(step, Some(name)) => {
                format!("{} all dead letters of {}", settle(step), short(name))
            }
            Self::Set(Kind::Pause, selector, _) => format!("Pause {}", selector.escaped()),
            Self::Set(Kind::Block, selector, _) => format!("Block {}", selector.escaped()),
            Self::Lift(Kind::Pause, selector) => format!("Resume {}", selector.escaped()),
            Self::Lift(Kind::Block, selector) => format!("Unblock {}", selector.escaped()),
            Self::Forget(name) => format!("Forget {}", short(name)),
            Self::Cancel(name, key) => format!(
                "Cancel the schedule {} of {}",
                escape::name(key),
                short(name)
            ),
            Self::Cron(CronAct::Run, name) => format!("Run the cron job {}", escape::name(name)),
            Self::Cron(CronAct::Pause, name) => {
                format!("Pause the cron job {}", escape::name(name))
            }
            Self::Cron(CronAct::Resume, name) => {
                format!("Resume the cron job {}", escape::name(name))
            }
        }
    }
}

/// Returns the problem of a wrong selector.
fn selector_problem(error: &SelectorError) -> Problem {
    let advice = match error {
        SelectorError::Star(_) | SelectorError::Blank(_) => {
            ". The page of an object has the buttons for an object of this very name"
        }
        _ => "",
    };
    Problem::bad_request(format!("the selector: {error}{advice}: nothing was done"))
}

/// Returns the text of a field that is escaped.
fn unescaped(field: &str, escaped: &str) -> Result<String, Problem> {
    let invalid =
        |why: String| Problem::bad_request(format!("the field {field}: {why}: nothing was done"));
    let bytes = escape::unescaped(escaped).map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| invalid("it must be UTF-8".to_owned()))
}

pub(super) fn short(name: &Name) -> String {
    seriatim_console::shown::middle_cut(&name.shown, 80)
}

fn objects<'a>(mut names: impl ExactSizeIterator<Item = &'a Name>) -> String {
    match names.len() {
        1 => names.next().map(short).unwrap_or_default(),
        many => format!("{many} objects"),
    }
}

/// A selected row: `ID NAME`. The id is `-` if the object has no event in hand.
struct Row<'a> {
    id: &'a str,
    name: &'a str,
}

fn rows(form: &Form) -> Result<Vec<Row<'_>>, Problem> {
    let rows = form.all("row").map(|row| {
        let pair = row.split_once(' ').map(|(id, name)| Row { id, name });
        pair.ok_or_else(|| Problem::bad_request("a row is not an id and a name: nothing was done"))
    });
    bounded(rows.collect::<Result<_, _>>()?)
}

fn bounded<T>(rows: Vec<T>) -> Result<Vec<T>, Problem> {
    match rows.len() {
        0 => Err(Problem::bad_request("no row is selected: nothing was done")),
        1..=ROWS_MAX => Ok(rows),
        many => Err(Problem::bad_request(format!(
            "{many} rows are selected, more than {ROWS_MAX}: nothing was done"
        ))),
    }
}

/// Returns the selected dead letters. The user must have the right for the object of each.
async fn letters(app: &Dashboard, user: &User, form: &Form) -> Result<Vec<RowId>, Problem> {
    user.may_some(Right::Operate)?;
    let ids: Vec<RowId> = bounded(
        form.all("row")
            .map(|row| RowId::from(row.to_owned()))
            .collect(),
    )?;
    if user.may_all(Right::Operate).is_ok() {
        // A letter that is gone is one of the results of the rows.
        return Ok(ids);
    }
    for id in &ids {
        app.looks.dead_letter(user, id).await?;
    }
    Ok(ids)
}

fn letters_of(user: &User, form: &Form) -> Result<Option<Name>, Problem> {
    match form.one("object")?.filter(|name| !name.is_empty()) {
        None => user.may_all(Right::Operate).map(|()| None),
        Some(name) => {
            let name = Name::read(&name)?;
            user.may(Right::Operate, &name.bytes).map(|()| Some(name))
        }
    }
}
