//! The operations of the cases, with the emitter.

use std::time::{Duration, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use seriatim::emit::{
    Cancelled, Change, Emit, EmitError, EmitManyError, Emitted, Full, Schedule, Scheduled,
    WaitError,
};
use seriatim::event::{self, EventError, IntoEvent};
use seriatim::{Emitter, emit};

use super::json::Json;
use super::{Found, local_ms};

/// The case has a value that Rust does not have.
#[derive(Debug)]
pub(super) struct Skipped;

/// An event of a case.
pub(super) enum Event {
    Value(Json),
    Text(Vec<u8>),
}

impl IntoEvent for Event {
    fn into_event(self, bytes_max: usize) -> Result<bytes::Bytes, EventError> {
        match self {
            Self::Value(value) => (&value).into_event(bytes_max),
            Self::Text(text) => event::Json::new(text).into_event(bytes_max),
        }
    }
}

pub(super) fn event_of(event: &Json) -> Result<Event, Skipped> {
    let (word, value) = event.only();
    Ok(match word {
        "value" => Event::Value(value.clone()),
        "text" => Event::Text(value.text().as_bytes().to_vec()),
        "hex" => {
            let digits = value.text().as_bytes().chunks(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
            Event::Text(
                digits
                    .map(|pair| byte(pair).expect("hexadecimal"))
                    .collect(),
            )
        }
        "long" => {
            let chars = usize::try_from(value.number()).expect("a length") - 2;
            Event::Value(Json::Text("x".repeat(chars)))
        }
        "special" => return Err(Skipped),
        _ => panic!("this runner does not know {word}"),
    })
}

fn events_of(list: &Json) -> Result<Vec<Event>, Skipped> {
    match list {
        Json::List(list) => list.iter().map(event_of).collect(),
        _ => {
            let (word, times) = list.only();
            assert_eq!(word, "times");
            let [times, event] = times.list() else {
                panic!("no times: {times:?}")
            };
            (0..times.number()).map(|_| event_of(event)).collect()
        }
    }
}

fn text_of(text: &Json, found: &Found) -> Result<String, Skipped> {
    match text {
        Json::Text(text) => Ok(found.named(text)),
        _ => match text.only() {
            ("repeat", of) => {
                let [part, times] = of.list() else {
                    panic!("no part: {of:?}")
                };
                Ok(part
                    .text()
                    .repeat(usize::try_from(times.number()).expect("a number")))
            }
            ("special", _) => Err(Skipped),
            (word, _) => panic!("this runner does not know {word}"),
        },
    }
}

/// Returns a text of a handler's action. Such a text names no made key.
pub(super) fn text_of_handler(text: &Json) -> Result<String, Skipped> {
    text_of(text, &Found::default())
}

/// Returns a Redis command of a case.
pub(super) fn command(words: &Json) -> Cmd {
    let mut cmd = Cmd::new();
    for word in words.list() {
        match word {
            Json::Text(text) => cmd.arg(text),
            Json::Number(number) => cmd.arg(number.to_string()),
            _ => {
                let (word, value) = word.only();
                assert_eq!(word, "limits");
                cmd.arg(serde_json::to_string(value).expect("JSON"))
            }
        };
    }
    cmd
}

fn object(members: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    let members = members.into_iter();
    Json::Object(
        members
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

fn text(text: impl Into<String>) -> Json {
    Json::Text(text.into())
}

fn number(number: u64) -> Json {
    Json::Number(number.into())
}

/// Runs an operation. Returns its result, with the members of the error if it failed.
pub(super) async fn run(
    emitter: &Emitter,
    conn: &mut MultiplexedConnection,
    operation: &Json,
    found: &Found,
) -> Result<Json, Skipped> {
    let (word, of) = operation.only();
    Ok(match word {
        "emit" if of.get("awaited").is_some() => await_emit(emitter, of, found).await?,
        "emit" => emitted(send(emitter, of, found).await?),
        "end_of" => end_of(emitter, of, found).await?,
        "emit_many" => {
            of.has_only(&["events"]);
            let mut events = Vec::new();
            for pair in of.get("events").expect("events").list() {
                let [name, event] = pair.list() else {
                    panic!("no pair: {pair:?}")
                };
                events.push((text_of(name, found)?, event_of(event)?));
            }
            match emitter.emit_many(events).await {
                Ok(many) => object([
                    ("events", number(many.events)),
                    ("chunks", number(many.chunks)),
                ]),
                Err(error) => failed_many(&error),
            }
        }
        "schedule" => match schedule_of(emitter, of, found)?.send().await {
            Ok(done) => scheduled(&done),
            Err(error) => failed(&error),
        },
        "schedule_many" => {
            of.has_only(&["schedules"]);
            let mut schedules = Vec::new();
            for of in of.get("schedules").expect("schedules").list() {
                schedules.push(schedule_of(emitter, of, found)?);
            }
            match emitter.schedule_many(schedules).await {
                Ok(done) => object([("scheduled", list_of(&done))]),
                Err(error) => object([
                    ("error", text("schedule_many")),
                    ("message", text(error.to_string())),
                    ("scheduled", list_of(&error.scheduled)),
                    ("next", text(kind(&error.error))),
                ]),
            }
        }
        "cancel" => {
            of.has_only(&["object", "key"]);
            let name = text_of(of.get("object").expect("an object"), found)?;
            let key = text_of(of.get("key").expect("a key"), found)?;
            match emitter.cancel(&name, key).await {
                Ok(cancelled) => object([(
                    "cancelled",
                    text(match cancelled {
                        Cancelled::Cancelled => "cancelled",
                        Cancelled::Running => "running",
                        _ => "not_found",
                    }),
                )]),
                Err(error) => failed(&error),
            }
        }
        "transaction" => transaction(emitter, conn, of, found).await?,
        "redis" => {
            of.has_only(&["command"]);
            let command = command(of.get("command").expect("a command"));
            let _: Value = command.query_async(conn).await.expect("a reply");
            object([])
        }
        _ => panic!("this runner does not know {word}"),
    })
}

/// Returns the emit without its key.
fn emit_of<'a>(emitter: &'a Emitter, of: &Json, found: &Found) -> Result<Emit<'a>, Skipped> {
    of.has_only(&[
        "object",
        "event",
        "subevents",
        "data",
        "key",
        "window_ms",
        "awaited",
        "keep_ms",
    ]);
    let name = text_of(of.get("object").expect("an object"), found)?;
    let mut emit = emitter.event(name, event_of(of.get("event").expect("an event"))?);
    for event in of.get("subevents").map_or(Ok(Vec::new()), events_of)? {
        emit = emit.sub(event);
    }
    if let Some(data) = of.get("data") {
        emit = emit.data(event_of(data)?);
    }
    Ok(emit)
}

async fn send(
    emitter: &Emitter,
    of: &Json,
    found: &Found,
) -> Result<Result<Emitted, EmitError>, Skipped> {
    let emit = emit_of(emitter, of, found)?;
    let Some(key) = of.get("key") else {
        return Ok(emit.send().await);
    };
    let mut emit = emit.idempotency_key(text_of(key, found)?);
    if let Some(window) = of.get("window_ms") {
        let ms = u64::try_from(window.number()).expect("a time");
        emit = emit.window(Duration::from_millis(ms));
    }
    Ok(emit.send().await)
}

async fn await_emit(emitter: &Emitter, of: &Json, found: &Found) -> Result<Json, Skipped> {
    let emit = emit_of(emitter, of, found)?;
    let mut emit = match of.get("key") {
        Some(key) => emit.idempotency_key(text_of(key, found)?).awaited(),
        None => emit.awaited(),
    };
    if let Some(keep) = of.get("keep_ms") {
        let ms = u64::try_from(keep.number()).expect("a time");
        emit = emit.keep(Duration::from_millis(ms));
    }
    Ok(match emit.send().await {
        Ok(awaited) => {
            let Json::Object(mut members) = emitted(Ok(awaited.emitted())) else {
                unreachable!("it is an object")
            };
            members.push(("key".to_owned(), text(awaited.name())));
            Json::Object(members)
        }
        Err(error) => failed(&error),
    })
}

async fn end_of(emitter: &Emitter, of: &Json, found: &Found) -> Result<Json, Skipped> {
    of.has_only(&["object", "name", "within_ms"]);
    let object_name = text_of(of.get("object").expect("an object"), found)?;
    let name = text_of(of.get("name").expect("a name"), found)?;
    let ms = of.get("within_ms").map_or(0, Json::number);
    let within = Duration::from_millis(u64::try_from(ms).expect("a time"));
    Ok(match emitter.end_of(object_name, name, within).await {
        Ok(end) => {
            let results = end.results.as_deref();
            let members = [
                ("status", text(end.status.as_str())),
                ("id", end.id.map_or(Json::Null, number)),
                ("error", end.error.clone().map_or(Json::Null, text)),
                ("attempts", number(end.attempts)),
                (
                    "results",
                    results.map_or(Json::Null, |json| serde_json::from_str(json).expect("JSON")),
                ),
                ("result", end.result().expect("a result")),
            ];
            object([("end", object(members))])
        }
        Err(error) => {
            let kind = match &error {
                WaitError::Name(_) => "name",
                WaitError::Key(_) => "key",
                WaitError::TimedOut { .. } => "timed_out",
                _ => "end_refused",
            };
            object([("error", text(kind)), ("message", text(error.to_string()))])
        }
    })
}

fn emitted(result: Result<Emitted, EmitError>) -> Json {
    match result {
        Ok(emitted) => object([
            ("events", number(emitted.events as u64)),
            ("queued", number(emitted.queued)),
            ("repeated", Json::Bool(emitted.repeated)),
        ]),
        Err(error) => failed(&error),
    }
}

fn schedule_of<'a>(
    emitter: &'a Emitter,
    of: &Json,
    found: &Found,
) -> Result<Schedule<'a>, Skipped> {
    of.has_only(&["object", "event", "after_ms", "at_ms", "key", "mode"]);
    let name = text_of(of.get("object").expect("an object"), found)?;
    let mut schedule = emitter.schedule(name, event_of(of.get("event").expect("an event"))?);
    if let Some(ms) = of.get("after_ms") {
        let ms = u64::try_from(ms.number()).expect("a time");
        schedule = schedule.after(Duration::from_millis(ms));
    }
    if let Some(ms) = of.get("at_ms") {
        let ms = match ms {
            Json::Object(_) => local_ms() + ms.only().1.number(),
            _ => ms.number(),
        };
        let ms = u64::try_from(ms).expect("after 1970");
        schedule = schedule.at(UNIX_EPOCH + Duration::from_millis(ms));
    }
    if let Some(key) = of.get("key") {
        schedule = schedule.key(text_of(key, found)?);
    }
    Ok(match of.get("mode").map_or("replace", Json::text) {
        "replace" => schedule,
        "keep_time" => schedule.keep_time(),
        "keep_first" => schedule.keep_first(),
        mode => panic!("this runner does not know {mode}"),
    })
}

fn list_of(done: &[Scheduled]) -> Json {
    Json::List(done.iter().map(scheduled).collect())
}

fn scheduled(done: &Scheduled) -> Json {
    let change = match done.change {
        Change::New => "new",
        Change::Replaced => "replaced",
        Change::Kept => "kept",
        _ => "running",
    };
    object([
        ("key", text(done.key.as_str())),
        ("due_ms", number(done.due_ms)),
        ("change", text(change)),
    ])
}

async fn transaction(
    emitter: &Emitter,
    conn: &mut MultiplexedConnection,
    of: &Json,
    found: &Found,
) -> Result<Json, Skipped> {
    of.has_only(&["steps"]);
    let (mut pipe, mut appended) = (redis::pipe(), Vec::new());
    pipe.atomic();
    for step in of.get("steps").expect("steps").list() {
        match step.only() {
            ("command", words) => drop(pipe.add_command(command(words))),
            ("emit", of) => appended.push(emit_of(emitter, of, found)?.append_to(&mut pipe)),
            (word, _) => panic!("this runner does not know {word}"),
        }
    }
    let reply: RedisResult<Vec<Value>> = pipe.query_async(conn).await;
    let outcomes = appended.into_iter().map(|appended| {
        match appended.and_then(|appended| appended.outcome(&reply)) {
            Ok(()) => text("ok"),
            Err(error) => failed(&error),
        }
    });
    Ok(object([("outcomes", Json::List(outcomes.collect()))]))
}

fn failed_many(error: &EmitManyError) -> Json {
    let one = |failed: &emit::ObjectFailed| {
        object([
            ("object", text(&failed.object)),
            ("first", number(failed.first)),
            ("error", text(kind(&failed.error))),
        ])
    };
    let mut members = vec![
        ("error", text("many")),
        ("message", text(error.to_string())),
        ("acknowledged", number(error.acknowledged)),
        ("failed", Json::List(error.failed.iter().map(one).collect())),
    ];
    members.extend(error.stopped.map(|at| ("stopped", number(at))));
    object(members)
}

fn failed(error: &EmitError) -> Json {
    let mut members = vec![
        ("error", text(kind(error))),
        ("message", text(error.to_string())),
    ];
    match error {
        EmitError::TooLarge { events, bytes, .. } => {
            members.extend([
                ("events", number(*events as u64)),
                ("bytes", number(*bytes as u64)),
            ]);
        }
        EmitError::KeyReused { key, .. } | EmitError::WrongType { key, .. } => {
            members.push(("key", text(key)));
        }
        EmitError::Unreplicated {
            reached, wanted, ..
        } => members.extend([
            ("reached", number(*reached)),
            ("wanted", number(u64::from(*wanted))),
        ]),
        EmitError::Full {
            full:
                Full::Queue {
                    queued,
                    events,
                    limit,
                },
            ..
        } => members.extend([
            ("what", text("queue")),
            ("queued", number(*queued)),
            ("events", number(*events)),
            ("limit", number(*limit)),
        ]),
        EmitError::Full {
            full: Full::Markers { markers, limit },
            ..
        } => members.extend([
            ("what", text("markers")),
            ("markers", number(*markers)),
            ("limit", number(*limit)),
        ]),
        _ => {}
    }
    object(members)
}

/// Returns the word of the cases for an error.
fn kind(error: &EmitError) -> &'static str {
    match error {
        EmitError::Name(_) => "name",
        EmitError::Event(_) => "event",
        EmitError::Key(_) => "key",
        EmitError::Due(_) => "due",
        EmitError::TooLarge { .. } => "too_large",
        EmitError::Full { .. } => "full",
        EmitError::KeyReused { .. } => "key_reused",
        EmitError::OutOfMemory { .. } => "out_of_memory",
        EmitError::WrongType { .. } => "wrong_type",
        EmitError::NotAwaitable { .. } => "not_awaitable",
        EmitError::Unreplicated { .. } => "unreplicated",
        EmitError::Refused { .. } => "refused",
        EmitError::Connect { .. } => "connect",
        _ => "unknown",
    }
}
