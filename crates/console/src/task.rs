//! A task: a JSON object with a key, a due time and a URL, which is an event at the same time.
//!
//! The lines of `emit --tasks` and the bodies of the route for tasks are parsed here, so that both
//! have the same checks.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::value::RawValue;
use seriatim::event::ScheduleKey;
use seriatim_http::check_url;

use super::units;

/// The members of a task that set its schedule. A task may have further members.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
}

/// The key and the due time of a task.
pub struct Task {
    pub id: String,
    pub at: SystemTime,
}

/// Parses a task. Without a URL, a worker could only make it a dead letter when it is due.
pub fn parse(text: &[u8]) -> Result<Task, String> {
    let members: Members<'_> = serde_json::from_slice(text)
        .map_err(|error| format!("the task is not a JSON object with members: {error}"))?;
    let id = members.id.ok_or("the task has no id")?;
    let id = text_or_digits(id).ok_or_else(|| {
        format!(
            "the id is no string and no whole number: {}",
            shortened(id.get())
        )
    })?;
    ScheduleKey::new(id.as_str()).map_err(|error| format!("the id: {error}"))?;
    let at = time(members.time.ok_or("the task has no time")?)?;
    let url = members.url.ok_or("the task has no url")?;
    let url: String = serde_json::from_str(url.get())
        .map_err(|_| format!("the url is no string: {}", shortened(url.get())))?;
    check_url(&url).map_err(|error| format!("the url: {error}"))?;
    Ok(Task { id, at })
}

/// Parses the member `time` of a task or of a schedule: Unix seconds, as a number or as a text, or RFC
/// 3339.
pub fn time(value: &RawValue) -> Result<SystemTime, String> {
    let text =
        serde_json::from_str::<String>(value.get()).unwrap_or_else(|_| value.get().to_owned());
    units::instant(&text).map_err(|why| format!("the time is {}: {why}", shortened(value.get())))
}

/// Returns a text, or the digits of a whole number.
fn text_or_digits(value: &RawValue) -> Option<String> {
    let is_digits = value.get().bytes().all(|byte| byte.is_ascii_digit());
    if is_digits {
        Some(value.get().to_owned())
    } else {
        serde_json::from_str(value.get()).ok()
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_task_has_an_id_a_time_and_a_url() {
        for (text, ms) in [
            (
                r#"{"id":"x","time":1798131600,"url":"https://x/"}"#,
                1_798_131_600_000,
            ),
            (
                r#"{"id":7,"time":1798131600.25,"url":"http://x","more":[1]}"#,
                1_798_131_600_250,
            ),
            (
                r#"{"id":"x","time":"2026-12-24T17:00:00Z","url":"https://x/"}"#,
                1_798_131_600_000,
            ),
        ] {
            assert_eq!(
                parse(text.as_bytes()).expect("a task").at,
                UNIX_EPOCH + Duration::from_millis(ms),
                "{text}"
            );
        }
        for (text, why) in [
            ("[]", "the task is not"),
            (r#"{"time":1,"url":"https://x/"}"#, "no id"),
            (
                r#"{"id":"","time":1,"url":"https://x/"}"#,
                "must not be empty",
            ),
            (
                r#"{"id":1.5,"time":1,"url":"https://x/"}"#,
                "no string and no whole number",
            ),
            (r#"{"id":"x","url":"https://x/"}"#, "no time"),
            (
                r#"{"id":"x","time":{},"url":"https://x/"}"#,
                "the time is {}",
            ),
            (r#"{"id":"x","time":1}"#, "no url"),
            (r#"{"id":"x","time":1,"url":7}"#, "the url is no string"),
            (
                r#"{"id":"x","time":1,"url":"ftp://x/"}"#,
                "must begin with http:// or https://",
            ),
        ] {
            assert!(
                parse(text.as_bytes()).err().expect("no task").contains(why),
                "{text}"
            );
        }
    }
}
