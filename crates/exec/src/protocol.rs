//! The lines of the handler protocol, version 1 (docs/handlers-protocol.md).

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use seriatim::sink::{Batch, Stop};

/// The version of the protocol.
const VERSION: u64 = 1;
/// The longest line of a program, in bytes without its end.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;
/// The most batches that a program has at a time.
const CONCURRENCY_MAX: usize = 1024;
/// The longest text of a program that is kept, in bytes: of an error, and of its name. Longer texts are
/// cut.
const ERROR_BYTES_MAX: usize = 1000;
const CLIENT_BYTES_MAX: usize = 200;
/// The longest wait that a program asks for: 366 days.
const WAIT_MAX_MS: u64 = 366 * 24 * 3600 * 1000;

/// A line of a program. Unknown members are ignored.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Hello {
        protocol: u64,
        #[serde(default = "one")]
        concurrency: usize,
        client: Option<String>,
    },
    Ok {
        batch: u64,
        id: u64,
    },
    Transient {
        batch: u64,
        id: u64,
        error: Option<String>,
        retry_after_ms: Option<u64>,
    },
    Rejected {
        batch: u64,
        id: u64,
        error: Option<String>,
    },
    Unknown {
        batch: u64,
        id: u64,
        error: Option<String>,
    },
    Postponed {
        batch: u64,
        id: u64,
        error: Option<String>,
        after_ms: u64,
    },
    Unavailable {
        batch: u64,
        id: u64,
        error: Option<String>,
    },
    Cancelled {
        batch: u64,
        id: u64,
    },
    Bye,
}

fn one() -> usize {
    1
}

/// A message of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Hello),
    Answer(Answer),
    /// The program takes no more batches, and will end when those that it has are over.
    Bye,
}

/// The first line of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The most batches that the program wants at a time.
    pub(crate) concurrency: usize,
    /// The name and version of the client, for the log.
    pub(crate) client: String,
}

/// The result of an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The number of the batch.
    pub(crate) batch: u64,
    pub(crate) id: u64,
    pub(crate) result: Answered,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// This event and all events before it in the batch are delivered.
    Ok,
    /// The event is not delivered, for this reason.
    Stop(Stop),
    /// The program has given up the event, because the worker has asked for it.
    Cancelled,
}

/// Parses a line.
///
/// # Errors
/// The text describes the mistake. It repeats at most the first characters of the line.
pub(crate) fn parse(line: &[u8]) -> Result<Message, String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        let line = String::from_utf8_lossy(&line[..line.len().min(60)]);
        let mut text = format!("the line {line:?} is not of the protocol: {error}");
        cut(&mut text, ERROR_BYTES_MAX);
        text
    })?;
    let answer = |batch, id, result| Ok(Message::Answer(Answer { batch, id, result }));
    let stopped = |batch, id, stop| answer(batch, id, Answered::Stop(stop));
    match line {
        Line::Hello { protocol, .. } if protocol != VERSION => Err(format!(
            "it speaks version {protocol} of the protocol, and this worker speaks version {VERSION}; update the older one"
        )),
        Line::Hello { concurrency, .. } if !(1..=CONCURRENCY_MAX).contains(&concurrency) => Err(
            format!("its concurrency is {concurrency}; it is 1 to {CONCURRENCY_MAX}"),
        ),
        Line::Hello {
            concurrency,
            client,
            ..
        } => {
            let client = kept(client, CLIENT_BYTES_MAX);
            Ok(Message::Hello(Hello {
                concurrency,
                client,
            }))
        }
        Line::Ok { batch, id } => answer(batch, id, Answered::Ok),
        Line::Transient {
            batch,
            id,
            error,
            retry_after_ms,
        } => {
            let error = kept(error, ERROR_BYTES_MAX);
            let retry_after = retry_after_ms
                .map(|ms| wait("retry_after_ms", ms))
                .transpose()?;
            stopped(batch, id, Stop::Transient { error, retry_after })
        }
        Line::Rejected { batch, id, error } => {
            let error = kept(error, ERROR_BYTES_MAX);
            stopped(batch, id, Stop::Rejected { error })
        }

        Line::Unknown { batch, id, error } => {
            let error = kept(error, ERROR_BYTES_MAX);
            stopped(batch, id, Stop::Unknown { error })
        }

        Line::Postponed {
            batch,
            id,
            error,
            after_ms,
        } => {
            let (reason, after) = (kept(error, ERROR_BYTES_MAX), wait("after_ms", after_ms)?);
            stopped(batch, id, Stop::Postponed { reason, after })
        }
        Line::Unavailable { batch, id, error } => {
            let error = kept(error, ERROR_BYTES_MAX);
            stopped(batch, id, Stop::Unavailable { error })
        }

        Line::Cancelled { batch, id } => answer(batch, id, Answered::Cancelled),
        Line::Bye => Ok(Message::Bye),
    }
}

/// Cuts a text between characters. The capacity shrinks, too: many texts may be kept at a time.
fn cut(text: &mut String, bytes_max: usize) {
    let end = (0..=bytes_max.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.shrink_to_fit();
}

/// Returns a text of a program, cut; empty if there is none.
fn kept(text: Option<String>, bytes_max: usize) -> String {
    let mut text = text.unwrap_or_default();
    cut(&mut text, bytes_max);
    text
}

/// Returns a wait that a program asks for.
fn wait(member: &str, ms: u64) -> Result<Duration, String> {
    match ms <= WAIT_MAX_MS {
        true => Ok(Duration::from_millis(ms)),
        false => Err(format!("{member} is {ms}; it is at most {WAIT_MAX_MS}")),
    }
}

/// Returns the first line of the worker. `child` is the number of the program among its like.
pub(crate) fn hello(child: usize, timeout: Duration, cancel: Duration) -> Bytes {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    line(&json!({
        "type": "hello", "protocol": VERSION, "child": child, "line_bytes_max": LINE_BYTES_MAX,
        "timeout_ms": ms(timeout), "cancel_ms": ms(cancel),
    }))
}

/// Returns the line with a batch. `number` is the number of the batch.
pub(crate) fn batch(number: u64, batch: &Batch, attempts: u32, crashes: u32) -> Bytes {
    let begin = json!({
        "type": "batch", "batch": number, "object": batch.object().as_str(), "attempts": attempts, "crashes": crashes,
    });
    let mut text = begin.to_string().into_bytes();
    text.pop();
    text.extend_from_slice(b",\"events\":[");
    for (at, event) in batch.events().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        event.write_envelope(&mut text);
    }
    text.extend_from_slice(b"]}\n");
    text.into()
}

/// Returns the line that asks the program to give up this event of a batch.
pub(crate) fn cancel(number: u64, id: u64) -> Bytes {
    line(&json!({"type": "cancel", "batch": number, "id": id}))
}

/// Returns the line that asks the program to end. After `grace` it is killed.
pub(crate) fn stop(grace: Duration) -> Bytes {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    line(&json!({"type": "stop", "grace_ms": grace_ms}))
}

fn line(value: &serde_json::Value) -> Bytes {
    format!("{value}\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim::event::ObjectName;

    fn answer(result: Answered) -> Result<Message, String> {
        let (batch, id) = (1, 2);
        Ok(Message::Answer(Answer { batch, id, result }))
    }

    #[test]
    fn every_word_is_read() {
        let said = |rest: &str| {
            parse(format!(r#"{{"batch":1,"id":2,"new":[],"type":{rest}}}"#).as_bytes())
        };
        let error = || "no".to_owned();
        assert_eq!(said(r#""ok""#), answer(Answered::Ok));
        assert_eq!(said(r#""cancelled""#), answer(Answered::Cancelled));
        for (rest, stop) in [
            (r#""transient""#, Stop::transient("")),
            (
                r#""transient","error":"no","retry_after_ms":5"#,
                Stop::Transient {
                    error: error(),
                    retry_after: Some(Duration::from_millis(5)),
                },
            ),
            (r#""rejected","error":null"#, Stop::rejected("")),
            (r#""rejected","error":"no""#, Stop::rejected("no")),
            (r#""unknown","error":"no""#, Stop::unknown("no")),
            (r#""unavailable","error":"no""#, Stop::unavailable("no")),
            (
                r#""postponed","error":"no","after_ms":7"#,
                Stop::Postponed {
                    reason: error(),
                    after: Duration::from_millis(7),
                },
            ),
        ] {
            assert_eq!(said(rest), answer(Answered::Stop(stop)));
        }
        let hello = Hello {
            concurrency: 1,
            client: String::new(),
        };
        assert_eq!(
            parse(br#"{"type":"hello","protocol":1}"#),
            Ok(Message::Hello(hello))
        );
        assert_eq!(parse(br#"{"type":"bye"}"#), Ok(Message::Bye));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, why) in [
            (
                r#"{"type":"hello","protocol":2}"#,
                "it speaks version 2 of the protocol",
            ),
            (
                r#"{"type":"hello","protocol":1,"concurrency":0}"#,
                "its concurrency is 0",
            ),
            (
                r#"{"type":"hello","protocol":1,"concurrency":1025}"#,
                "it is 1 to 1024",
            ),
            (
                r#"{"type":"maybe","batch":1,"id":1}"#,
                "unknown variant `maybe`",
            ),
            (r#"{"type":"ok","batch":1}"#, "missing field `id`"),
            (r#"{"type":"ok","batch":1,"id":-1}"#, "invalid value"),
            (
                r#"{"type":"postponed","batch":1,"id":1}"#,
                "missing field `after_ms`",
            ),
            (
                r#"{"type":"postponed","batch":1,"id":1,"after_ms":31622400001}"#,
                "after_ms is 31622400001",
            ),
            (
                "Traceback (most recent call last):",
                "is not of the protocol",
            ),
            (
                r#"{"type":"transient","batch":1,"id":1,"error":NaN}"#,
                "is not of the protocol",
            ),
        ] {
            let error = parse(line.as_bytes()).expect_err("wrong");
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "é".repeat(300_000);
        let line = format!(r#"{{"type":"rejected","batch":1,"id":2,"error":"{long}"}}"#);
        let stop = Stop::rejected("é".repeat(500));
        assert_eq!(parse(line.as_bytes()), answer(Answered::Stop(stop)));
        let line = format!(r#"{{"type":"{long}"}}"#);
        assert!(parse(line.as_bytes()).expect_err("unknown").len() <= ERROR_BYTES_MAX);
        let line = format!(r#"{{"type":"hello","protocol":1,"client":"a{long}"}}"#);
        let Ok(Message::Hello(hello)) = parse(line.as_bytes()) else {
            panic!("no hello");
        };
        assert_eq!(hello.client.len(), CLIENT_BYTES_MAX - 1);
    }

    #[test]
    fn a_batch_is_one_line_with_its_envelopes() {
        let object = ObjectName::new("a\"b").expect("a name");
        let events = vec![
            Bytes::from_static(b"{\"n\":\r\n1}"),
            Bytes::from_static(b"2"),
        ];
        let line = batch(7, &Batch::new(object, 11, 9, events), 1, 2);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        let events = json!([
            {"id": 11, "prev": 9, "object": "a\"b", "event": {"n": 1}},
            {"id": 12, "prev": 11, "object": "a\"b", "event": 2},
        ]);
        let all = json!({"type": "batch", "batch": 7, "object": "a\"b", "attempts": 1, "crashes": 2, "events": events});
        assert_eq!(read, all);
    }
}
