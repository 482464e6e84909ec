//! The scripts of the handlers: lists of actions, one list for each attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::value::RawValue;
use seriatim::handlers::{
    Failure, HandlerContext, HandlerEmitError, HandlerProgressError, HandlerResultError, Handlers,
};
use seriatim::sink::Stop;

use super::super::json::Json;
use super::super::local_ms;
use super::super::operations::{Event, Skipped, event_of, text_of_handler};
use super::{HANDLER, Shared, TIMEOUT, notes, times};

/// The scripts of each type, one for each attempt.
pub(super) struct Script(BTreeMap<String, Vec<Vec<Json>>>);

impl Script {
    pub(super) fn of(handlers: &Json) -> Result<Self, Skipped> {
        let scripts = handlers.members().iter().map(|(of, attempts)| {
            let attempts = attempts.list().iter().map(|actions| {
                let actions = times(actions).into_iter().cloned();
                actions.collect::<Vec<_>>()
            });
            (of.clone(), attempts.collect::<Vec<_>>())
        });
        let scripts: BTreeMap<_, Vec<Vec<Json>>> = scripts.collect();
        // A case with a value that Rust does not have is skipped as a whole.
        for action in scripts.values().flatten().flatten() {
            is_known(action)?;
        }
        Ok(Self(scripts))
    }

    /// Returns the script of an attempt, and the name by which the calls have its handler.
    fn find(&self, event_type: Option<&str>, attempt: u32) -> Option<(&str, &[Json])> {
        let of = event_type.filter(|of| self.0.contains_key(*of));
        let (name, attempts) = self.0.get_key_value(of.unwrap_or("*"))?;
        let at = (attempt as usize - 1).min(attempts.len() - 1);
        Some((name, &attempts[at]))
    }
}

/// Returns an error if an event or a text of the action is none that Rust has.
fn is_known(action: &Json) -> Result<(), Skipped> {
    let (word, of) = action.only();
    let of = if matches!(word, "refused" | "late") {
        &of.members()[0].1
    } else {
        of
    };
    if word == "log" && matches!(of, Json::Text(_)) {
        return Ok(());
    }
    if matches!(word, "result" | "progress")
        || of.members().iter().any(|(name, _)| name == "special")
    {
        return event_of(of).map(drop);
    }
    of.get("event").map_or(Ok(()), |event| {
        if matches!(event, Json::Object(members) if members.len() == 1 && word != "expect") {
            event_of(event).map(drop)
        } else {
            Ok(())
        }
    })?;
    for text in [of.get("object"), of.get("key")].into_iter().flatten() {
        text_of_handler(text)?;
    }
    Ok(())
}

/// Returns the handlers that follow the scripts.
pub(super) fn handlers(script: Script, shared: &Shared) -> Handlers {
    let (script, shared) = (Arc::new(script), Arc::clone(shared));
    let handler = move |_: Box<RawValue>, cx: HandlerContext| {
        let (script, shared) = (Arc::clone(&script), Arc::clone(&shared));
        async move { handle(&script, &shared, &cx).await }
    };
    let handlers = Handlers::builder().timeout(TIMEOUT);
    let handlers = handlers.register_all(HANDLER, handler);
    handlers.build().expect("a set")
}

async fn handle(script: &Script, shared: &Shared, cx: &HandlerContext) -> Result<(), Failure> {
    let object = cx.object().as_str().to_owned();
    let Some((of, actions)) = script.find(cx.event_type(), cx.attempt()) else {
        let error = match cx.event_type() {
            Some(of) => format!("no handler is registered for events of type {of:?}"),
            None => "no handler is registered for events without a type".to_owned(),
        };
        return Err(stop(shared, cx, Stop::unknown(error)));
    };
    let line = format!("{of} {}", cx.attempt());
    {
        let mut notes = notes(shared);
        notes
            .calls
            .entry(object.clone())
            .or_default()
            .push(line.clone());
        if notes.running.contains(&object) {
            notes.wrong.push(format!("two handlers of {object} run"));
        }
        notes.running.push(object.clone());
    }
    let mut done = Ok(());
    for (at, action) in actions.iter().enumerate() {
        done = act(shared, cx, &line, at, action).await;
        if done.is_err() {
            break;
        }
    }
    let mut notes = notes(shared);
    notes.running.retain(|running| *running != object);
    notes.ended.insert(object, cx.clone());
    done
}

fn long_text(text: &Json) -> String {
    text_of_handler(text).expect("a text that Rust has")
}

fn member(of: &Json, name: &str) -> String {
    of.get(name).map_or_else(String::new, long_text)
}

/// Notes a stop that handlers in Rust do not have. The sink takes it in place of the failure.
fn stop(shared: &Shared, cx: &HandlerContext, stop: Stop) -> Failure {
    let object = cx.object().as_str().to_owned();
    notes(shared).stops.insert(object, stop);
    Failure::transient("another stop takes the place of this failure")
}

/// Does one action of a script.
async fn act(
    shared: &Shared,
    cx: &HandlerContext,
    line: &str,
    at: usize,
    action: &Json,
) -> Result<(), Failure> {
    let (word, of) = action.only();
    let note = |text: String| {
        let object = cx.object().as_str().to_owned();
        notes(shared).calls.entry(object).or_default().push(text);
    };
    let wrong = |text: String| notes(shared).wrong.push(text);
    let fails_still = || {
        let Some(most) = of.get("times") else {
            return true;
        };
        let mut notes = notes(shared);
        let failures = notes.failures.entry((cx.id(), at)).or_default();
        *failures += 1;
        *failures <= most.number()
    };
    let error = || member(of, "error");
    let ms = |name: &str| {
        of.get(name)
            .map(|ms| Duration::from_millis(u64::try_from(ms.number()).expect("a time")))
    };
    match word {
        "emit" | "schedule" | "cancel" | "result" => {
            if let Err(kind) = effect(cx, word, of) {
                wrong(format!("{word} is refused: {kind}"));
            }
        }
        "refused" | "late" => {
            let late = notes(shared).ended.get(cx.object().as_str()).cloned();
            let cx = match word {
                "late" => &late.expect("a handler before this one"),
                _ => cx,
            };
            let (word, of_effect) = {
                let (name, value) = &of.members()[0];
                (name.as_str(), value)
            };
            let expected = of.get("error").expect("a kind").text();
            let kind = effect(cx, word, of_effect);
            if kind != Err(expected) {
                wrong(format!("{word}: {kind:?}, not {expected}"));
            }
        }
        "once" => {
            let name = &member(of, "name");
            let value = of.get("value").cloned().unwrap_or_else(|| {
                let chars = of.get("long").expect("a value").number() - 2;
                Json::Text("x".repeat(usize::try_from(chars).expect("a length")))
            });
            let returns = of.get("returns").unwrap_or(&value).clone();
            let run = || async {
                note(format!("{line} once {name}"));
                Ok::<_, Failure>(value.clone())
            };
            let found = cx.once(name, run).await?;
            if found != returns {
                wrong(format!("{name} has returned {found:?}"));
            }
        }
        "progress" => {
            let value = event_of(of).expect("looked at before");
            if let Err(error) = cx.progress(value) {
                wrong(format!("the progress is refused: {error}"));
            }
        }
        "log" => cx.log(long_text(of)),
        "fails_once" => {
            let name = &member(of, "name");
            let run = || async {
                note(format!("{line} once {name}"));
                Err::<(), _>(Failure::transient(error()))
            };
            cx.once(name, run).await?;
        }
        "expect" => {
            for (member, expected) in of.members() {
                if !is_as_expected(cx, member, expected) {
                    wrong(format!("{member} is not {expected:?}"));
                }
            }
        }
        "throw" => return Err(Failure::transient(long_text(of))),
        _ if !fails_still() => {}
        "transient" => {
            return Err(Failure::Transient {
                error: error(),
                retry_after: ms("retry_after_ms"),
            });
        }
        "rejected" => return Err(Failure::unrecoverable(error())),
        "unknown" => return Err(stop(shared, cx, Stop::unknown(error()))),
        "unavailable" => return Err(stop(shared, cx, Stop::unavailable(error()))),
        "postponed" => {
            let (reason, after) = (error(), ms("after_ms").expect("a time"));
            return Err(stop(shared, cx, Stop::Postponed { reason, after }));
        }
        _ => panic!("this runner does not know {word}"),
    }
    Ok(())
}

fn is_as_expected(cx: &HandlerContext, member: &str, expected: &Json) -> bool {
    let text = String::from_utf8_lossy(cx.payload());
    let event = || serde_json::from_str::<Json>(&text).expect("JSON");
    let text_is = |found: Option<&str>| match (found, expected) {
        (Some(found), Json::Text(expected)) => found == expected,
        (None, Json::Null) => true,
        _ => false,
    };
    match member {
        "object" => text_is(Some(cx.object().as_str())),
        "type" => text_is(cx.event_type()),
        "attempt" => expected.number() == i64::from(cx.attempt()),
        // A handler in Rust does not see the crashes. No case has any.
        "crashes" => expected.number() == 0,
        "traceparent" => match event().get("traceparent") {
            Some(Json::Text(found)) => text_is(Some(found)),
            _ => text_is(None),
        },
        // A handler in Rust gets the event as it was pushed, not as a line.
        "payload" => text_is(Some(text.trim().replace(['\r', '\n'], " ").as_str())),
        "event" => event() == *expected,
        "has_prev" => *expected == Json::Bool(cx.prev() > 0),
        "has_token" => *expected == Json::Bool(!cx.fence().token.is_empty()),
        _ => panic!("this runner does not know {member}"),
    }
}

/// Does an effect by the context. Returns the kind of the error if the context refuses it.
fn effect(cx: &HandlerContext, word: &str, of: &Json) -> Result<(), &'static str> {
    let text = |name: &str| {
        let text = of.get(name).map(text_of_handler);
        text.map(|text| text.expect("looked at before"))
    };
    let object = || text("object").expect("an object");
    let event = || event_of(of.get("event").expect("an event")).expect("looked at before");
    match word {
        "emit" => cx.emit(object(), event()).map_err(kind),
        "cancel" => cx
            .cancel_schedule(object(), text("key").expect("a key"))
            .map_err(kind),
        "schedule" => schedule(cx, of, object(), event(), text("key")),
        "result" => {
            let event = event_of(of).expect("looked at before");
            cx.result(event).map_err(|error| match error {
                HandlerResultError::Full => "full",
                _ => "result",
            })
        }
        "progress" => {
            let event = event_of(of).expect("looked at before");
            cx.progress(event).map_err(|error| match error {
                HandlerProgressError::Ended => "ended",
                _ => "progress",
            })
        }
        _ => panic!("this runner does not know {word}"),
    }
}

fn schedule(
    cx: &HandlerContext,
    of: &Json,
    object: String,
    event: Event,
    key: Option<String>,
) -> Result<(), &'static str> {
    let ms = |ms: &Json| u64::try_from(ms.number()).expect("a time");
    let mut schedule = cx.schedule(object, event);
    if let Some(after) = of.get("after_ms") {
        schedule = schedule.after(Duration::from_millis(ms(after)));
    }
    if let Some(at) = of.get("at_ms") {
        let at = match at {
            Json::Object(_) => u64::try_from(local_ms() + at.only().1.number()).expect("a time"),
            _ => ms(at),
        };
        schedule = schedule.at(UNIX_EPOCH + Duration::from_millis(at));
    }
    if let Some(key) = key {
        schedule = schedule.key(key);
    }
    schedule = match of.get("mode").map_or("replace", Json::text) {
        "replace" => schedule,
        "keep_time" => schedule.keep_time(),
        "keep_first" => schedule.keep_first(),
        mode => panic!("this runner does not know {mode}"),
    };
    schedule.add().map(drop).map_err(kind)
}

fn kind(error: HandlerEmitError) -> &'static str {
    match error {
        HandlerEmitError::Name(_) => "name",
        HandlerEmitError::Event(_) => "event",
        HandlerEmitError::Key(_) => "key",
        HandlerEmitError::Due(_) => "due",
        HandlerEmitError::Full => "full",
        _ => "ended",
    }
}
