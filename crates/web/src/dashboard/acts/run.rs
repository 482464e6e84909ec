//! The steps of each action.

use std::time::Duration;

use seriatim::connection::errors::describe;
use seriatim::control::held::{ReleaseFilter, Released, Skipped};
use seriatim::control::rules::Ruled;
use seriatim::control::{
    By, CancelledSchedule, Control, ControlError, CronDone, Cursor, Forgot, RowId, Settle, Settled,
};
use tokio::time::sleep;

use super::jobs::Job;
use super::wanted::{CronAct, Name, Wanted};
use crate::dashboard::Dashboard;
use crate::operator::Looks;

/// The number of rows that are done without a pause, and the pause after them.
const ROWS_AT_ONCE: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// The result of one row: its text, or the reason why it was not done.
type Done = Result<String, String>;

/// Runs an action to its end. If the future is dropped, the steps so far stay done.
pub(super) async fn run(app: &Dashboard, wanted: Wanted, who: &str, why: &str, job: &Job) {
    let (control, looks) = (&app.control, &app.looks);
    let by = By { who, why };
    match wanted {
        Wanted::Release(names) => {
            for (at, name) in names.iter().enumerate() {
                pace(at).await;
                job.add(&name.shown, release(control, looks, by, name).await);
            }
        }
        Wanted::Skip(rows) => {
            for (at, (name, id)) in rows.iter().enumerate() {
                pace(at).await;
                job.add(&name.shown, skip(control, looks, by, name, *id).await);
            }
        }
        Wanted::ReleaseAll {
            prefix,
            until_released,
        } => {
            let which = ReleaseFilter {
                prefix: &prefix,
                why: "",
                until_released,
                over: None,
            };
            let released = control
                .release_all(by, &which, |all| {
                    job.count(all.released, all.due, "they were due already")
                })
                .await;
            if let Err(error) = released {
                job.fail(failed(&error));
            }
        }
        Wanted::Settle(step, ids) => {
            for (at, id) in ids.iter().enumerate() {
                pace(at).await;
                let done = settle(control, by, step, id).await;
                job.add(id.as_str(), done);
            }
        }
        Wanted::SettleAll(step, object) => {
            settle_all(control, by, step, object.as_ref(), job).await
        }
        Wanted::Set(kind, selector, after) => {
            let done = control
                .set_rule(by, kind, &selector, after)
                .await
                .map_err(|error| failed(&error));
            let done = done.map(|ruled| match ruled {
                Ruled::Again => "its end, actor and reason are replaced".to_owned(),
                _ => "set; workers obey within a second".to_owned(),
            });
            job.add(selector.as_str(), done);
        }
        Wanted::Lift(kind, selector) => {
            let done = control
                .lift_rule(by, kind, &selector)
                .await
                .map_err(|error| failed(&error));
            job.add(
                selector.as_str(),
                done.and_then(|ruled| match ruled {
                    Ruled::NotSet => Err("there is no such rule".to_owned()),
                    _ => Ok("lifted; workers wake its objects".to_owned()),
                }),
            );
        }
        Wanted::Forget(name) => job.add(&name.shown, forget(control, by, &name).await),
        Wanted::Cancel(name, key) => job.add(&name.shown, cancel(control, by, &name, &key).await),
        Wanted::Cron(act, name) => job.add(&name, cron(control, by, act, &name).await),
    }
}

/// Pauses after each ten rows, so that an action on many rows does not take Redis' time all at
/// once.
async fn pace(at: usize) {
    if at > 0 && at.is_multiple_of(ROWS_AT_ONCE) {
        sleep(PAUSE).await;
    }
}

/// Returns the text for an error. If the reply was lost, the outcome is unknown.
pub(super) fn failed(error: &ControlError) -> String {
    match error {
        ControlError::Redis { source, .. }
            if source.is_io_error() || source.is_timeout() || source.is_connection_dropped() =>
        {
            format!(
                "the outcome is unknown: {}; the page Actions shows the steps done",
                describe(source)
            )
        }
        ControlError::Redis { source, .. } => format!("Redis refused: {}", describe(source)),
        other => other.to_string(),
    }
}

fn not_held(owner: &str) -> String {
    match owner {
        "" => "the object is not held, and has no owner".to_owned(),
        owner => format!("the object is not held; worker {owner} has it"),
    }
}

fn without_ids(looks: &Looks, why: &str) -> String {
    format!(
        "the batch of the object has lost its ids ({}); `seriatim repair` gives its events new ids",
        looks.reason(why)
    )
}

async fn release(control: &Control, looks: &Looks, by: By<'_>, name: &Name) -> Done {
    match control
        .release(by, &name.bytes)
        .await
        .map_err(|error| failed(&error))?
    {
        Released::Released(why) if why.is_empty() => Ok("released".to_owned()),
        Released::Released(why) => Ok(format!("released; it was held: {}", looks.reason(&why))),
        Released::NotHeld(owner) => Err(not_held(&owner)),
        Released::Paused => Err("a rule holds the object; lift the rule".to_owned()),
        Released::NoIds(why) => Err(without_ids(looks, &why)),
    }
}

async fn skip(control: &Control, looks: &Looks, by: By<'_>, name: &Name, id: u64) -> Done {
    match control
        .skip(by, &name.bytes, Some(id))
        .await
        .map_err(|error| failed(&error))?
    {
        Skipped::Skipped { id, dead_id, .. } => {
            Ok(format!("event {id} is now the dead letter {dead_id}"))
        }
        Skipped::NotHeld(owner) => Err(not_held(&owner)),
        Skipped::Paused => Err("a rule holds the object; lift the rule".to_owned()),
        Skipped::NoIds(why) => Err(without_ids(looks, &why)),
        Skipped::NoBatch(why) => Err(format!(
            "the object has no event in hand ({}); release it",
            looks.reason(&why)
        )),
        Skipped::Other(first) => Err(format!("its first event is now {first}, not {id}")),
    }
}

async fn settle(control: &Control, by: By<'_>, step: Settle, id: &RowId) -> Done {
    let settled = control
        .settle(by, step, std::slice::from_ref(id))
        .await
        .map_err(|error| failed(&error))?;
    match settled.first() {
        Some(Settled::Retried) => Ok("queued again, as a new event".to_owned()),
        Some(Settled::RetriedLate) => Ok(
            "queued again, as a new event; newer events of its object were delivered since"
                .to_owned(),
        ),
        Some(Settled::Dropped) => Ok("dropped".to_owned()),
        Some(Settled::Unreadable) => Err("it has no object or no event; drop it".to_owned()),
        Some(Settled::WrongType) => Err("the queue of its object is not a list".to_owned()),
        Some(_) | None => Err("it is gone".to_owned()),
    }
}

async fn settle_all(control: &Control, by: By<'_>, step: Settle, object: Option<&Name>, job: &Job) {
    let (mut done, mut left, mut newer): (u64, u64, u64) = (0, 0, 0);
    let mut after: Option<Cursor> = None;
    loop {
        match control
            .settle_step(
                by,
                step,
                object.map(|name| name.bytes.as_slice()),
                after.as_ref(),
            )
            .await
        {
            Ok(made) => {
                (done, left, newer) = (
                    done + made.done,
                    left + made.left,
                    newer + made.newer_delivered,
                );
                job.count(
                    done,
                    left,
                    "they have no object or no event, or a queue of a wrong type",
                );
                match made.next {
                    Some(next) => after = Some(next),
                    None if newer > 0 => {
                        let what = format!("{newer} of {done} dead letters");
                        return job.note(
                            &what,
                            "newer events of their objects were delivered since".to_owned(),
                        );
                    }
                    None => return,
                }
            }
            Err(error) => return job.fail(failed(&error)),
        }
    }
}

async fn cron(control: &Control, by: By<'_>, act: CronAct, name: &str) -> Done {
    let done = match act {
        CronAct::Run => control.run_cron(by, name).await,
        CronAct::Pause => control.pause_cron(by, name).await,
        CronAct::Resume => control.resume_cron(by, name).await,
    };
    match done.map_err(|error| failed(&error))? {
        CronDone::NotSet => Err("there is no such cron job".to_owned()),
        _ => Ok(match act {
            CronAct::Run => "its event is queued".to_owned(),
            CronAct::Pause => "paused".to_owned(),
            CronAct::Resume => "resumed".to_owned(),
        }),
    }
}

async fn forget(control: &Control, by: By<'_>, name: &Name) -> Done {
    match control
        .forget_as(by, &name.bytes)
        .await
        .map_err(|error| failed(&error))?
    {
        Forgot::Forgotten { last_event_id } => {
            Ok(format!("forgotten; its last event was {last_event_id}"))
        }
        Forgot::Unknown => Err("it has no last event".to_owned()),
        Forgot::Queued { events } => Err(format!("it has {events} queued events")),
        Forgot::Owned { owner } => Err(format!("worker {owner} has it")),
        Forgot::Held => Err("it is held".to_owned()),
        Forgot::Scheduled { events } => Err(format!("it has {events} schedules")),
        Forgot::Reserved { key } | Forgot::Wrong { key } => Err(format!(
            "{key} is not as it must be; the page Check shows more"
        )),
        _ => Err("nothing was done".to_owned()),
    }
}

async fn cancel(control: &Control, by: By<'_>, name: &Name, key: &str) -> Done {
    match control
        .cancel_schedule(by, &name.bytes, key)
        .await
        .map_err(|error| failed(&error))?
    {
        CancelledSchedule::Cancelled { id: None } => Ok("cancelled".to_owned()),
        CancelledSchedule::Cancelled { id: Some(id) } => Ok(format!(
            "cancelled; event {id} has ended without another delivery"
        )),
        CancelledSchedule::Running {
            id,
            rescheduled: true,
        } => Ok(format!(
            "the schedule is cancelled; an earlier event with this key, {id}, is in delivery"
        )),
        CancelledSchedule::Running {
            id,
            rescheduled: false,
        } => Err(format!("event {id} is in delivery")),
        _ => Err("there is no such schedule any more".to_owned()),
    }
}
