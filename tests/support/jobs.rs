//! Values of cron jobs, as Redis stores them.

use seriatim::cron::Missed;
use seriatim::wire::values::CronValue;

/// Returns a job whose schedule was set at 5. `head`: its id, and 1 if it is paused, else 0.
pub fn job(head: &str, object: &str, event: &str) -> CronValue {
    let (id, paused) = head.split_once(' ').expect("an id and 0 or 1");
    CronValue {
        id: id.to_owned(),
        is_paused: paused == "1",
        since_ms: 5,
        object: object.to_owned(),
        schedule: "@every 1h".to_owned(),
        zone: "UTC".to_owned(),
        missed: Missed::All,
        event: event.into(),
    }
}

/// Returns the text that Redis stores.
pub fn text(job: &CronValue) -> String {
    format!("{}\n{}", job.json(), String::from_utf8_lossy(&job.event))
}

/// Returns the text of [`job`].
pub fn value(head: &str, object: &str, event: &str) -> String {
    text(&job(head, object, event))
}
