//! An operator repairs after a key disappeared (`vanish`): first a dry run, which changes nothing,
//! then the repair itself, until nothing is left to do. From then on every event that Redis has is
//! delivered, or is a dead letter, and `check` finds nothing.

use std::num::NonZeroU64;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use seriatim::control::cron::CronDraft;
use seriatim::control::{Repair, RepairReport, RepairStep};
use seriatim::cron::CronSchedule;
use seriatim::event::Json;
use seriatim::keys::Keys;

use super::reference::Reference;
use super::server::Server;
use super::vanish::{BY, ROUNDS, Run, events_in, shown};
use crate::support::control;

/// The most repairs that one loss needs. Processes go on between two of them.
const REPAIRS_MAX: u32 = 4;
const ROUNDS_AFTER: u32 = 10;

/// Writes the keys that no step of a schedule writes: a cron job, a limit and an idempotency key.
pub async fn settings(conn: &mut MultiplexedConnection, keys: &Keys) {
    let control = control(conn, keys);
    let yearly = CronSchedule::new("@yearly", None).expect("a schedule");
    control
        .set_cron(BY, CronDraft::new("yearly", yearly, "a", Json::new("1")))
        .await
        .expect("a cron job");
    control
        .set_limit(
            BY,
            &"*".parse().expect("a selector"),
            NonZeroU64::new(1000),
            None,
        )
        .await
        .expect("a limit");
    let mut pipe = redis::pipe();
    pipe.cmd("HSET")
        .arg(keys.events_emitted())
        .arg("a\nk")
        .arg("1");
    pipe.cmd("ZADD")
        .arg(keys.events_emitted_ends())
        .arg(9_999_999_999_999_u64)
        .arg("a\nk");
    pipe.query_async::<()>(conn)
        .await
        .expect("an idempotency key");
}

fn lines(steps: &[RepairStep]) -> Vec<String> {
    steps
        .iter()
        .map(|step| format!("{} {}: {}", step.kind, step.subject, step.what))
        .collect()
}

/// Makes a dry run and the repair. The dry run changes nothing, and tells of a step if there is one.
pub async fn repair(run: &mut Run<'_>, server: &mut Server) -> Result<RepairReport, String> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_millis();
    let with = Repair {
        share: 1.0,
        all_lists: true,
        schedules_due_ms: Some(u64::try_from(now).expect("a time")),
        ..Repair::default()
    };
    let control = control(&run.conn, run.keys);
    let (before, _) = server.look().await;
    let planned = control
        .repair(BY, &with)
        .await
        .map_err(|error| error.to_string())?;
    let (after, _) = server.look().await;
    if before != after {
        return Err(format!(
            "a dry run has changed\n{}to\n{}",
            shown(&before),
            shown(&after)
        ));
    }
    let done = control
        .repair(
            BY,
            &Repair {
                dry_run: false,
                ..with
            },
        )
        .await
        .map_err(|error| error.to_string())?;
    run.texts.extend(
        lines(&done.steps)
            .into_iter()
            .chain(lines(&done.left))
            .map(|line| ("repair".to_owned(), line)),
    );
    if (planned.steps_total == 0) != (done.steps_total == 0) {
        return Err(format!(
            "the dry run has told {:?}, the repair {:?}",
            lines(&planned.steps),
            lines(&done.steps)
        ));
    }
    // Events whose ids are lost may come a second time, under other ids.
    run.has_new_ids |= done
        .steps
        .iter()
        .any(|step| step.what.contains("new ids") || step.what.contains("new ones"));
    Ok(done)
}

/// Repairs until nothing is left to do, while processes go on. Then nothing is left in Redis.
pub async fn until_done(
    run: &mut Run<'_>,
    server: &mut Server,
    state: &Reference,
) -> Result<(), String> {
    let mut repairs = 0;
    loop {
        let done = repair(run, server).await?;
        for round in ROUNDS..ROUNDS + ROUNDS_AFTER {
            run.round(round, state).await?;
        }
        repairs += 1;
        if done.steps_total + done.left_total == 0 {
            break;
        } else if repairs == REPAIRS_MAX {
            let (after, _) = server.look().await;
            return Err(format!(
                "{repairs} repairs leave {:?} {:?}\nleft\n{}",
                lines(&done.steps),
                lines(&done.left),
                shown(&after)
            ));
        }
    }
    let report = control(&run.conn, run.keys)
        .check()
        .await
        .map_err(|error| error.to_string())?;
    let (after, _) = server.look().await;
    let left = events_in(&after, &run.objects);
    if !left.is_empty() || !report.is_clean() {
        return Err(format!(
            "after the repair {left:?} are left, and check finds {:?}\nleft\n{}",
            report.violations,
            shown(&after)
        ));
    }
    Ok(())
}
