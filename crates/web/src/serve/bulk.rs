//! Routes for actions on many dead letters or held objects. A request makes steps only for a
//! bounded time. Its answer says whether there is more to do.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use seriatim::control::dead::SettledAll;
use seriatim::control::held::{ReleaseFilter, ReleasedAll};
use seriatim::control::{By, Cursor, RowId, Settle, Settled};
use seriatim_console::named;
use tokio::time::{Instant, timeout};

use super::App;
use super::operate::by;
use super::request::{parse, read_act};
use super::view::json;
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;
use crate::operator::{View, action_problem, control_problem, part_problem, shows};

/// The most dead letters that a request may name by their ids.
const IDS_MAX: usize = 100;
/// The time after which a request makes no further step.
const STEPS_TIME_MAX: Duration = Duration::from_secs(10);

/// The body of a retry or a drop: selects dead letters by ids, by object, or all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Letters {
    ids: Option<Vec<String>>,
    object: Option<String>,
    #[serde(default)]
    all: bool,
    /// To continue: the member `next` of the previous answer.
    after: Option<String>,
    #[serde(default)]
    reason: String,
}

/// The body of a release: selects held objects.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Objects {
    #[serde(default)]
    all: bool,
    prefix: Option<String>,
    why: Option<String>,
    #[serde(default)]
    until_released: bool,
    #[serde(default)]
    reason: String,
}

/// `POST /v1/dead/retry`.
pub(super) async fn retry(
    state: State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    settle(state, asked, body, Settle::Retry).await
}

/// `POST /v1/dead/drop`.
pub(super) async fn drop_letters(
    state: State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    settle(state, asked, body, Settle::Drop).await
}

async fn settle(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
    step: Settle,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Operate)?;
    let letters: Letters = parse(&read_act(&app, &asked, body).await?)?;
    let (object, who) = (letters.object.as_deref(), by(&asked.user, &letters.reason));
    match (&letters.ids, object, letters.all) {
        (Some(ids), None, false) if (1..=IDS_MAX).contains(&ids.len()) => {
            return settle_ids(&app, &asked, who, step, ids).await;
        }
        (Some(_), None, false) => {
            return Err(Problem::bad_request(format!(
                "ids must have 1 to {IDS_MAX} ids"
            )));
        }
        (None, Some(object), false) => asked.user.may(Right::Operate, object.as_bytes())?,
        (None, None, true) => asked.user.may_all(Right::Operate)?,
        _ => return Err(Problem::bad_request("name one of ids, object and all")),
    }
    // The position of a walk may have the name of an object.
    let word = if step == Settle::Drop {
        "drop"
    } else {
        "retry"
    };
    let (cursors, view) = (
        app.looks.cursors(),
        View::new(&asked.user, word, &[object.unwrap_or_default().as_bytes()]),
    );
    let (mut all, began) = (SettledAll::default(), Instant::now());
    let mut after = cursors
        .open(&view, letters.after.map(Cursor::from).as_ref())
        .await?;
    loop {
        let made = app
            .control
            .settle_step(who, step, object.map(str::as_bytes), after.as_ref())
            .await;
        let made = match made {
            Ok(made) => made,
            Err(error) if all.done + all.left == 0 => return Err(action_problem(error)),
            Err(error) => {
                let next = cursors.seal(&view, after).await?;
                let counts = serde_json::json!({
                    "done": all.done, "left": all.left, "newer_delivered": all.newer_delivered, "next": next
                });
                return Err(part_problem(error, counts));
            }
        };
        (all.done, all.left, all.next) = (all.done + made.done, all.left + made.left, made.next);
        all.newer_delivered += made.newer_delivered;
        if all.next.is_none() || began.elapsed() >= STEPS_TIME_MAX {
            all.next = cursors.seal(&view, all.next.take()).await?;
            return json(&all);
        }
        after.clone_from(&all.next);
    }
}

/// Retries or drops those of these dead letters whose object the user may see. Reads all dead
/// letters before the first step, so that nothing is done if an id is invalid.
async fn settle_ids(
    app: &App,
    asked: &Asked,
    who: By<'_>,
    step: Settle,
    ids: &[String],
) -> Result<Response, Problem> {
    let mut mine = Vec::new();
    for id in ids {
        let letter = app
            .control
            .dead_letter(&RowId::from(id.clone()))
            .await
            .map_err(control_problem)?;
        mine.extend(letter.filter(|letter| {
            shows(
                &asked.user,
                &letter.object,
                letter.object_escaped.as_deref(),
            )
        }));
    }
    let (mut done, mut newer) = (0, 0);
    let counts = |done: u64, newer: u64| serde_json::json!({ "done": done, "left": ids.len() as u64 - done, "newer_delivered": newer });
    for letter in mine {
        let settled = app
            .control
            .settle(who, step, &[letter.dead_id])
            .await
            .map_err(|error| match done {
                0 => action_problem(error),
                _ => part_problem(error, counts(done, newer)),
            })?;
        done += u64::from(settled.first().is_some_and(|settled| settled.is_done()));
        newer += u64::from(settled.first() == Some(&Settled::RetriedLate));
    }
    json(&counts(done, newer))
}

/// `POST /v1/held/release`.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Operate)?;
    let objects: Objects = parse(&read_act(&app, &asked, body).await?)?;
    let (prefix, why) = (objects.prefix.as_deref(), objects.why.as_deref());
    if objects.all == (prefix.is_some() || why.is_some()) || prefix == Some("") || why == Some("") {
        return Err(Problem::bad_request(
            "name all, or prefix and why, which must not be empty",
        ));
    }
    prefix
        .map_or(Ok(()), |prefix| named::check_prefix(prefix.as_bytes()))
        .map_err(Problem::bad_request)?;
    match prefix {
        Some(prefix) => asked.user.may(Right::Operate, prefix.as_bytes())?,
        None => asked.user.may_all(Right::Operate)?,
    }
    let which = ReleaseFilter {
        prefix: prefix.unwrap_or_default(),
        why: why.unwrap_or_default(),
        until_released: objects.until_released,
        over: None,
    };
    let mut so_far = ReleasedAll::default();
    let who = by(&asked.user, &objects.reason);
    let all = timeout(
        STEPS_TIME_MAX,
        app.control.release_all(who, &which, |all| so_far = *all),
    )
    .await;
    let counts = |all: ReleasedAll, more: bool| serde_json::json!({ "released": all.released, "due": all.due, "more": more });
    match all {
        Ok(Ok(all)) => json(&counts(all, false)),
        Ok(Err(error)) if so_far.released + so_far.due > 0 => {
            Err(part_problem(error, counts(so_far, true)))
        }
        Ok(Err(error)) => Err(action_problem(error)),
        Err(_) => json(&counts(so_far, true)),
    }
}
