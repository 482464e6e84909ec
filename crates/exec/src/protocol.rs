//! The lines of the handler protocol, version 1 (docs/handlers-protocol.md).

use std::time::Duration;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;
use seriatim::event::Event;
use seriatim::handlers::Effects;
use seriatim::sink::{Context, PROGRESS_BYTES_MAX, REPORT_LINE_BYTES_MAX, Stop};

/// The version of the protocol.
const VERSION: u64 = 1;
/// The lines that this worker takes beyond those that each worker of the version takes: `reports` are the lines
/// `progress` and `log`. A program must not write such a line to a worker that does not name it.
const CAPABILITIES: [&str; 1] = ["reports"];
/// The longest line of a program, in bytes without its end.
pub(crate) const LINE_BYTES_MAX: usize = 4 << 20;
/// The most batches that a program has at a time.
const CONCURRENCY_MAX: usize = 1024;
/// The longest text of a program that is kept, in bytes: of an error, and of its name. Longer texts are
/// cut.
const ERROR_BYTES_MAX: usize = 1000;
const CLIENT_BYTES_MAX: usize = 200;
/// The longest wait that a program asks for: 366 days.
const WAIT_MAX_MS: u64 = 366 * 24 * 3600 * 1000;

/// A line of a program. Unknown members are ignored, but those of an `ok`.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    word: Word,
    protocol: Option<u64>,
    concurrency: Option<usize>,
    client: Option<String>,
    batch: Option<u64>,
    id: Option<u64>,
    error: Option<String>,
    retry_after_ms: Option<u64>,
    after_ms: Option<u64>,
    name: Option<String>,
    text: Option<String>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    /// The effects of an event. A member that is null is there.
    #[serde(borrow, default, deserialize_with = "given")]
    emit: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    schedule: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    cancel: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    result: Option<&'a RawValue>,
}

/// The members of an `ok`. Another one may be an effect with a wrong name, which nobody would miss at once.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OkMembers {
    #[serde(rename = "type")]
    _type: IgnoredAny,
    #[serde(rename = "batch")]
    _batch: IgnoredAny,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "emit")]
    _emit: Option<IgnoredAny>,
    #[serde(rename = "schedule")]
    _schedule: Option<IgnoredAny>,
    #[serde(rename = "cancel")]
    _cancel: Option<IgnoredAny>,
    #[serde(rename = "result")]
    _result: Option<IgnoredAny>,
}

/// Reads a member that is there, also if it is null.
fn given<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Hello,
    Ok,
    Transient,
    Rejected,
    Unknown,
    Postponed,
    Unavailable,
    Cancelled,
    Once,
    Progress,
    Log,
    Bye,
}

/// A message of a program.
#[derive(Debug)]
pub(crate) enum Message {
    Hello(Hello),
    Answer(Answer),
    Once(Once),
    Report(Report),
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

/// A subtask of an event that is done.
#[derive(Debug)]
pub(crate) struct Once {
    pub(crate) batch: u64,
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) value: Box<RawValue>,
}

/// A report on an event under way, for people.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) batch: u64,
    pub(crate) id: u64,
    pub(crate) what: Reported,
}

#[derive(Debug)]
pub(crate) enum Reported {
    Progress(Box<RawValue>),
    Line(String),
}

/// The result of an event.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The number of the batch.
    pub(crate) batch: u64,
    pub(crate) id: u64,
    pub(crate) result: Answered,
}

#[derive(Debug)]
pub(crate) enum Answered {
    /// This event and all events before it in the batch are delivered.
    Ok,
    /// The same, and the event may have effects, so the batch is over.
    Effects(Effects),
    /// The events before this one are delivered, but its effects are not valid, for this reason.
    Wrong(String),
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
    let wrong = |error: &dyn std::fmt::Display| {
        let line = String::from_utf8_lossy(&line[..line.len().min(60)]);
        let mut text = format!("the line {line:?} is not of the protocol: {error}");
        cut(&mut text, ERROR_BYTES_MAX);
        text
    };
    // A list would be read as the members of a line in the order of their declaration.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err(wrong(&"it is no JSON object"));
    }
    let bytes = line;
    let line: Line<'_> = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    let missing = |member: &str| wrong(&format_args!("missing field `{member}`"));
    match line.word {
        Word::Hello => {
            return hello_of(
                line.protocol.ok_or_else(|| missing("protocol"))?,
                line.concurrency,
                line.client,
            );
        }
        Word::Bye => return Ok(Message::Bye),
        _ => {}
    }
    let batch = line.batch.ok_or_else(|| missing("batch"))?;
    let id = line.id.ok_or_else(|| missing("id"))?;
    let error = || kept(line.error.clone(), ERROR_BYTES_MAX);
    let result = match line.word {
        Word::Hello | Word::Bye | Word::Cancelled => Answered::Cancelled,
        Word::Once => {
            let name = line.name.ok_or_else(|| missing("name"))?;
            let value = line.value.map_or_else(null, ToOwned::to_owned);
            return Ok(Message::Once(Once {
                batch,
                id,
                name,
                value,
            }));
        }
        Word::Progress => {
            let value = line.value.map_or_else(null, ToOwned::to_owned);
            let bytes = value.get().len();
            if bytes > PROGRESS_BYTES_MAX {
                return Err(wrong(&format_args!(
                    "the progress has {bytes} bytes of JSON, the limit is {PROGRESS_BYTES_MAX}"
                )));
            }
            let what = Reported::Progress(value);
            return Ok(Message::Report(Report { batch, id, what }));
        }
        Word::Log => {
            let text = line.text.ok_or_else(|| missing("text"))?;
            let what = Reported::Line(kept(Some(text), REPORT_LINE_BYTES_MAX));
            return Ok(Message::Report(Report { batch, id, what }));
        }
        Word::Ok => {
            let members = [
                ("emit", line.emit),
                ("schedule", line.schedule),
                ("cancel", line.cancel),
                ("result", line.result),
            ];
            let effects = serde_json::from_slice::<OkMembers>(bytes)
                .and_then(|_| effects(members).transpose());
            match effects {
                Ok(None) => Answered::Ok,
                Ok(Some(effects)) => Answered::Effects(effects),
                Err(error) => {
                    let mut text = format!("the answer is not valid: {error}");
                    cut(&mut text, ERROR_BYTES_MAX);
                    Answered::Wrong(text)
                }
            }
        }
        Word::Transient => {
            let ms = line.retry_after_ms;
            let retry_after = ms.map(|ms| wait("retry_after_ms", ms)).transpose()?;
            Answered::Stop(Stop::Transient {
                error: error(),
                retry_after,
            })
        }
        Word::Rejected => Answered::Stop(Stop::Rejected { error: error() }),
        Word::Unknown => Answered::Stop(Stop::Unknown { error: error() }),
        Word::Unavailable => Answered::Stop(Stop::Unavailable { error: error() }),
        Word::Postponed => {
            let after = wait(
                "after_ms",
                line.after_ms.ok_or_else(|| missing("after_ms"))?,
            )?;
            Answered::Stop(Stop::Postponed {
                reason: error(),
                after,
            })
        }
    };
    Ok(Message::Answer(Answer { batch, id, result }))
}

/// Reads the rest of a program's hello.
fn hello_of(
    protocol: u64,
    concurrency: Option<usize>,
    client: Option<String>,
) -> Result<Message, String> {
    let concurrency = concurrency.unwrap_or(1);
    if protocol != VERSION {
        return Err(format!(
            "it speaks version {protocol} of the protocol, and this worker speaks version {VERSION}; update the older one"
        ));
    } else if !(1..=CONCURRENCY_MAX).contains(&concurrency) {
        return Err(format!(
            "its concurrency is {concurrency}; it is 1 to {CONCURRENCY_MAX}"
        ));
    }
    let client = kept(client, CLIENT_BYTES_MAX);
    Ok(Message::Hello(Hello {
        concurrency,
        client,
    }))
}

/// Reads the effects of an event; `None` if the line has none of these members.
fn effects(members: [(&str, Option<&RawValue>); 4]) -> Option<serde_json::Result<Effects>> {
    let given = members
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let members: Vec<_> = given
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    let text = format!("{{{}}}", members.join(","));
    (!members.is_empty()).then(|| Effects::parse(text.as_bytes()))
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
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
        "timeout_ms": ms(timeout), "cancel_ms": ms(cancel), "capabilities": CAPABILITIES,
    }))
}

/// Returns the line with a batch. `number`: the number of the batch. `events`: its events, at least
/// one. `done`: the subtasks of the first event that are done, with their values as JSON text.
pub(crate) fn batch<'a>(
    number: u64,
    cx: &Context,
    events: &[Event],
    done: impl Iterator<Item = (&'a str, &'a str)>,
) -> Bytes {
    let object = events.first().map_or("", |event| event.object.as_str());
    let begin = json!({
        "type": "batch", "batch": number, "object": object, "attempts": cx.attempts, "crashes": cx.crashes, "token": &*cx.token,
    });
    let mut text = begin.to_string().into_bytes();
    text.pop();
    let mut separator = ",\"once\":{";
    for (name, value) in done {
        text.extend_from_slice(format!("{separator}{}:{value}", json!(name)).as_bytes());
        separator = ",";
    }
    if separator == "," {
        text.push(b'}');
    }
    text.extend_from_slice(b",\"events\":[");
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        event.write_envelope(&mut text);
    }
    text.extend_from_slice(b"]}\n");
    text.into()
}

/// Returns the reply to the report of a subtask. `error`: why it is not stored.
pub(crate) fn once(batch: u64, id: u64, name: &str, error: Option<&str>) -> Bytes {
    let mut reply = json!({"type": "once", "batch": batch, "id": id, "name": name});
    if let Some(error) = error {
        reply["error"] = json!(error);
    }
    line(&reply)
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
    use seriatim::sink::Batch;

    /// Returns the stop of an answer for event 2 of batch 1.
    fn stop_of(message: Result<Message, String>) -> Stop {
        match message {
            Ok(Message::Answer(Answer {
                batch: 1,
                id: 2,
                result: Answered::Stop(stop),
            })) => stop,
            other => panic!("no stop: {other:?}"),
        }
    }

    #[test]
    fn every_word_is_read() {
        let said = |rest: &str| {
            // A later version of a program may have further members in all lines but `ok`.
            let new = if rest.starts_with(r#""ok""#) {
                ""
            } else {
                r#""new":[],"#
            };
            parse(format!(r#"{{"batch":1,"id":2,{new}"type":{rest}}}"#).as_bytes())
        };
        let error = || "no".to_owned();
        let result = |rest: &str| match said(rest) {
            Ok(Message::Answer(Answer {
                batch: 1,
                id: 2,
                result,
            })) => result,
            other => panic!("no answer: {other:?}"),
        };
        assert!(matches!(result(r#""ok""#), Answered::Ok));
        assert!(matches!(result(r#""cancelled""#), Answered::Cancelled));
        for rest in [
            r#""emit":[{"object":"b","event":{}}]"#,
            r#""schedule":[{"object":"b","event":{},"after_ms":5}]"#,
            r#""cancel":[{"object":"b","key":"k"}]"#,
            r#""result":1"#,
            r#""result":null"#,
            r#""emit":[]"#,
        ] {
            let rest = format!(r#""ok",{rest}"#);
            assert!(matches!(result(&rest), Answered::Effects(_)), "{rest}");
        }
        let once = said(r#""once","name":"charge","value":{ "n": 12345678901234567890 }"#);
        assert!(
            matches!(once, Ok(Message::Once(Once { batch: 1, id: 2, name, value }))
                if name == "charge" && value.get() == r#"{ "n": 12345678901234567890 }"#)
        );
        let progress = said(r#""progress","value":{ "n": 1 }"#);
        assert!(
            matches!(progress, Ok(Message::Report(Report { batch: 1, id: 2, what: Reported::Progress(value) }))
                if value.get() == r#"{ "n": 1 }"#)
        );
        let line = said(r#""log","text":"a\nb""#);
        assert!(
            matches!(line, Ok(Message::Report(Report { batch: 1, id: 2, what: Reported::Line(text) })) if text == "a\nb")
        );
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
            assert_eq!(stop_of(said(rest)), stop);
        }
        let hello = parse(br#"{"type":"hello","protocol":1}"#);
        assert!(
            matches!(hello, Ok(Message::Hello(Hello { concurrency: 1, client })) if client.is_empty())
        );
        assert!(matches!(parse(br#"{"type":"bye"}"#), Ok(Message::Bye)));
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
            (r#"{"type":"hello"}"#, "missing field `protocol`"),
            (
                r#"{"type":"once","batch":1,"id":1}"#,
                "missing field `name`",
            ),
            (r#"{"type":"log","batch":1,"id":1}"#, "missing field `text`"),
            (
                &format!(
                    r#"{{"type":"progress","batch":1,"id":1,"value":"{}"}}"#,
                    "a".repeat(1023)
                ),
                "the progress has 1025 bytes of JSON, the limit is 1024",
            ),
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
    fn wrong_effects_fail_the_event() {
        for (effects, why) in [
            (r#""emit":[{"obj":"b","event":1}]"#, "unknown field `obj`"),
            (r#""emit":[{"object":"b"}]"#, "missing field `event`"),
            (r#""emit":7"#, "invalid type"),
            (r#""emit":null"#, "invalid type"),
            (
                r#""schedule":[{"object":"b","event":1,"mode":"x"}]"#,
                "unknown variant `x`",
            ),
            (r#""cancel":[{"object":"b"}]"#, "missing field `key`"),
            (
                r#""emits":[{"object":"b","event":1}]"#,
                "unknown field `emits`, expected one of `type`, `batch`, `id`, `emit`",
            ),
            (r#""emit":[],"error":"no""#, "unknown field `error`"),
        ] {
            let line = format!(r#"{{"type":"ok","batch":1,"id":2,{effects}}}"#);
            let answer = parse(line.as_bytes());
            let Ok(Message::Answer(Answer {
                result: Answered::Wrong(error),
                ..
            })) = &answer
            else {
                panic!("{answer:?}");
            };
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "é".repeat(300_000);
        let line = format!(r#"{{"type":"rejected","batch":1,"id":2,"error":"{long}"}}"#);
        let stop = Stop::rejected("é".repeat(500));
        assert_eq!(stop_of(parse(line.as_bytes())), stop);
        let line = format!(r#"{{"type":"{long}"}}"#);
        assert!(parse(line.as_bytes()).expect_err("unknown").len() <= ERROR_BYTES_MAX);
        let line = format!(r#"{{"type":"hello","protocol":1,"client":"a{long}"}}"#);
        let Ok(Message::Hello(hello)) = parse(line.as_bytes()) else {
            panic!("no hello");
        };
        assert_eq!(hello.client.len(), CLIENT_BYTES_MAX - 1);
    }

    /// Programs read the capabilities to know which of the newer lines they may write.
    #[test]
    fn the_hello_names_what_older_workers_do_not_take() {
        let line = hello(3, Duration::from_secs(300), Duration::from_secs(5));
        let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        let all = json!({
            "type": "hello", "protocol": 1, "child": 3, "line_bytes_max": 4 << 20, "timeout_ms": 300_000,
            "cancel_ms": 5000, "capabilities": ["reports"],
        });
        assert_eq!(read, all);
    }

    #[test]
    fn a_batch_is_one_line_with_its_envelopes() {
        let object = ObjectName::new("a\"b").expect("a name");
        let events = vec![
            Bytes::from_static(b"{\"n\":\r\n1}"),
            Bytes::from_static(b"2"),
        ];
        let events: Vec<_> = Batch::new(object, 11, 9, events).events().collect();
        let mut cx = Context::detached();
        (cx.attempts, cx.crashes) = (1, 2);
        let done = [("a\"", "[1]"), ("b", "null")];
        let line = batch(7, &cx, &events, done.into_iter());
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        let events = json!([
            {"id": 11, "prev": 9, "object": "a\"b", "event": {"n": 1}},
            {"id": 12, "prev": 11, "object": "a\"b", "event": 2},
        ]);
        let all = json!({
            "type": "batch", "batch": 7, "object": "a\"b", "attempts": 1, "crashes": 2, "token": "",
            "once": {"a\"": [1], "b": null}, "events": events,
        });
        assert_eq!(read, all);
    }
}
