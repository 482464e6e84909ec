//! Fires cron jobs: computes the ticks of the jobs that are due, and queues their events.
//!
//! Every process may fire cron jobs at any time. A call of the script names the time up to which
//! the job's ticks were handled when the process read the job. The script fires only if this time
//! has not changed since. So only one of all processes fires a tick. If the process dies before the
//! call, another process computes the same ticks.

use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::cron::{CronError, CronSchedule, Missed};
use crate::escape;
use crate::failpoints::around;
use crate::keys::Keys;
use crate::wire::values::CronValue;
use crate::wire::{self, DueJob, Fired, ScriptError, Ticks};
use crate::worker::times::growing_wait::jitter;
use crate::worker::watch::logged;

/// The most ticks of a job that fire after an outage.
const MISSED_MAX: usize = 1000;
/// The lateness above which a tick counts as missed, in ms. A tick that is less late always fires.
const LATE_MS: u64 = 60_000;
/// The most bytes of events that one call queues, if it queues more than one event.
const BYTES: usize = 1024 * 1024;
/// The most rounds of calls in a row. After them, the promotion of schedules has its turn.
const ROUNDS_MAX: usize = 4;
/// The longest time for which this process leaves cron jobs to other processes, after these were
/// faster.
const LEAVE: Duration = Duration::from_secs(1);

/// Fires ticks that are due, in a few calls. Returns the number of events queued, and the time at
/// which the next job is due or this process should look again. If more ticks are due, this time is
/// now.
///
/// Jobs are fired right after they were read. If other processes were faster, this process leaves
/// the remaining jobs to them for a while. So with many processes few calls find nothing to fire.
///
/// Cancellation: a call that was sent may still run. No tick fires twice.
pub(in crate::worker) async fn fire(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
) -> Result<(u64, Option<Instant>), ScriptError> {
    let mut events = 0;
    for _ in 0..ROUNDS_MAX {
        let due = around!("cron", wire::cron(conn, keys, &[])).await?;
        tell(&due);
        let ticks = to_fire(&due);
        if ticks.is_empty() {
            return Ok((events, due.next_due.map(|due| Instant::now() + due)));
        }
        let fired = around!("cron", wire::cron(conn, keys, &ticks)).await?;
        events += fired.events;
        tell(&fired);
        let others = fired.jobs == 0
            && ticks
                .iter()
                .any(|ticks| ticks.events.is_some_and(|events| events > 0));
        if others {
            return Ok((events, Some(Instant::now() + jitter(LEAVE))));
        }
    }
    Ok((events, Some(Instant::now())))
}

/// Returns the ticks that the next call fires, for the jobs that are due.
fn to_fire(fired: &Fired) -> Vec<Ticks> {
    let (mut all, mut bytes_left) = (Vec::new(), BYTES);
    for job in &fired.due {
        let ticks = ticks_of(job, fired.now_ms);
        let bytes = ticks.events.unwrap_or(0).saturating_mul(job.event_bytes);
        if bytes > bytes_left && !all.is_empty() {
            break;
        }
        bytes_left = bytes_left.saturating_sub(bytes);
        all.push(ticks);
    }
    all
}

fn ticks_of(job: &DueJob, now_ms: u64) -> Ticks {
    let read = CronValue::of_json(&job.json).map_err(|error| error.to_string());
    let ticks = read.and_then(|value| {
        value
            .schedule()
            .and_then(|schedule| due_ticks(job, now_ms, value.since_ms, &schedule, value.missed))
            .map_err(|error| error.to_string())
    });
    match ticks {
        Ok(ticks) => ticks,
        Err(why) => {
            let escaped = escape::name(&job.name);
            let name = logged::cut(&escaped);
            warn!(%name, why, "cron: this process cannot compute the ticks of the job; it is tried again in a minute");
            Ticks {
                job: job.clone(),
                handled_ms: job.handled_ms,
                next_ms: None,
                events: None,
            }
        }
    }
}

fn due_ticks(
    job: &DueJob,
    now_ms: u64,
    since: u64,
    schedule: &CronSchedule,
    missed: Missed,
) -> Result<Ticks, CronError> {
    // If Redis has lost the time of the last run, ticks count from the time at which the schedule
    // was set.
    let handled = job.handled_ms.max(since);
    let ticks = |handled_ms: u64, events: usize| {
        let next_ms = schedule.next_after(handled_ms, since)?;
        Ok(Ticks {
            job: job.clone(),
            handled_ms,
            next_ms,
            events: Some(events),
        })
    };
    // If the clock has stepped back, `handled` is ahead of the clock. The ticks up to `handled` are
    // handled already, so they must not fire again.
    let now_ms = now_ms.max(handled);
    let first = schedule.next_after(handled, since)?;
    let Some(first) = first.filter(|first| *first <= now_ms) else {
        return ticks(now_ms, 0);
    };
    let is_outage = now_ms - first > LATE_MS;
    match missed {
        Missed::Once if is_outage => ticks(now_ms, 1),
        Missed::Skip if is_outage => {
            let from = handled.max(now_ms - LATE_MS - 1);
            ticks(now_ms, schedule.between(from, now_ms, since, 1)?.len())
        }
        Missed::Once | Missed::Skip | Missed::All => {
            let due = schedule.between(handled, now_ms, since, MISSED_MAX)?;
            let events = (BYTES / job.event_bytes.max(1)).clamp(1, MISSED_MAX);
            match due.get(events) {
                // The remaining ticks fire with the next call.
                Some(_) => ticks(due[events - 1], events),
                None => ticks(now_ms, due.len()),
            }
        }
    }
}

fn tell(fired: &Fired) {
    if fired.events > 0 {
        debug!(jobs = fired.jobs, events = fired.events, "cron");
    }
    for (name, why) in &fired.wrong {
        let escaped = escape::name(name);
        let name = logged::cut(&escaped);
        match why.as_str() {
            "absent" => warn!(%name, "cron: the job is gone; its next tick is removed"),
            why => warn!(%name, why, "cron: the job cannot fire; it is tried again in a minute"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn job(handled_ms: u64, event_bytes: usize) -> DueJob {
        DueJob {
            name: b"n".to_vec(),
            id: b"1".to_vec(),
            json: Vec::new(),
            event_bytes,
            handled_ms,
        }
    }

    fn fired(schedule: &str, missed: Missed, handled_ms: u64, event_bytes: usize) -> (usize, u64) {
        let schedule = CronSchedule::new(schedule, None).expect("a schedule");
        let ticks = due_ticks(&job(handled_ms, event_bytes), NOW, 0, &schedule, missed);
        let ticks = ticks.expect("ticks");
        assert_eq!(Ok(ticks.next_ms), schedule.next_after(ticks.handled_ms, 0));
        (ticks.events.expect("a schedule"), ticks.handled_ms)
    }

    /// `NOW` is 22:13:20. The ticks up to 20:00 are handled, so two hourly ticks were missed.
    #[test]
    fn missed_ticks_are_skipped_or_fire_once_or_all() {
        let before = NOW - 8_000_000;
        assert_eq!(fired("@hourly", Missed::Skip, before, 10), (0, NOW));
        assert_eq!(fired("@hourly", Missed::Once, before, 10), (1, NOW));
        assert_eq!(fired("@hourly", Missed::All, before, 10), (2, NOW));
        // A tick at 22:13:00 is 20 s late, one at 22:12:20 exactly 60 s.
        assert_eq!(fired("13 22 * * *", Missed::Skip, before, 10), (1, NOW));
        assert_eq!(fired("20 12 22 * * *", Missed::Skip, before, 10), (1, NOW));
        assert_eq!(fired("19 12 22 * * *", Missed::Skip, before, 10), (0, NOW));
    }

    /// Tests that a short delay does not count as an outage: all late ticks fire.
    #[test]
    fn ticks_of_the_last_minute_all_fire() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            assert_eq!(fired("* * * * * *", missed, NOW - 5_000, 10), (5, NOW));
            assert_eq!(fired("* * * * * *", missed, NOW - 61_000, 10), (61, NOW));
            assert_eq!(
                fired("* * * * * *", missed, NOW - 5_000, 600_000),
                (1, NOW - 4_000)
            );
            assert_eq!(fired("@hourly", missed, NOW, 10), (0, NOW));
        }
        assert_eq!(
            fired("* * * * * *", Missed::Once, NOW - 62_000, 10),
            (1, NOW)
        );
        assert_eq!(
            fired("* * * * * *", Missed::Skip, NOW - 62_000, 10),
            (1, NOW)
        );
        assert_eq!(
            fired("* * * * * *", Missed::All, NOW - 62_000, 10),
            (62, NOW)
        );
    }

    #[test]
    fn at_most_a_thousand_ticks_fire_in_calls_of_bounded_size() {
        assert_eq!(fired("* * * * * *", Missed::All, 0, 10), (1000, NOW));
        assert_eq!(
            fired("* * * * * *", Missed::All, 0, 300_000),
            (3, NOW - 997_000)
        );
        assert_eq!(
            fired("* * * * * *", Missed::All, 0, 2_000_000),
            (1, NOW - 999_000)
        );
        assert_eq!(
            fired("* * * * * *", Missed::All, NOW - 5_000, 400_000),
            (2, NOW - 3_000)
        );
    }

    #[test]
    fn a_clock_that_has_stepped_back_fires_nothing() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            assert_eq!(
                fired("* * * * * *", missed, NOW + 60_000, 10),
                (0, NOW + 60_000)
            );
        }
    }

    #[test]
    fn a_call_queues_few_large_events() {
        let json = r#"{"id":"1","paused":false,"since_ms":0,"object":"o","schedule":"@hourly","zone":"UTC","missed":"once"}"#;
        let due = [10, 600_000, 600_000].map(|event_bytes| DueJob {
            json: json.into(),
            ..job(0, event_bytes)
        });
        let fired = Fired {
            now_ms: NOW,
            next_due: None,
            jobs: 0,
            events: 0,
            wrong: Vec::new(),
            due: due.to_vec(),
        };
        assert_eq!(to_fire(&fired).len(), 2);
        let wrong = Fired {
            due: vec![DueJob {
                json: b"{}".to_vec(),
                ..job(0, 10)
            }],
            ..fired
        };
        assert_eq!(to_fire(&wrong)[0].events, None);
    }
}
