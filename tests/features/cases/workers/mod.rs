//! The cases that the handlers of all languages pass: clients/cases/workers.json. The handlers run in
//! Rust, in the process of the test. The format is described in clients/cases/README.md.

mod script;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::Emitter;
use seriatim::control::log::PER_CALL_MAX;
use seriatim::control::{Control, LogEntry};
use seriatim::keys::Keys;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{EventLog, RetryPolicy, Shutdown, StopReason, Worker};

use self::script::{Script, handlers};
use super::json::Json;
use super::operations::{Skipped, command, run};
use super::{Found, dump, is_key, redis_ms};
use crate::support::console::{Console, PATIENCE};
use crate::support::{Server, control, patient, until};

/// The handler's id. The texts of its errors begin with it.
const HANDLER: &str = "answer";

/// A handler outside of the worker has a list of cancels and a list of schedules. A handler in Rust
/// calls its context, and the effects come in the order of the calls.
const ORDERED: &str = "cancels come before the schedules of the same handler";

/// `log` of a handler in Rust has no error.
const LATE: &str = "a handler that has ended logs nothing";

/// Cases with a value that Rust does not have: a text with a lone surrogate, or a number that JSON does
/// not have.
const SPECIAL: [&str; 3] = [
    "an emit that is refused leaves the handler as it was",
    "a result has at most 64 KiB",
    "a progress that is no JSON is refused, and a line of the log may have any text",
];

#[tokio::test]
async fn the_handlers_pass_every_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/cases/workers.json");
    let cases: Vec<Json> =
        serde_json::from_slice(&std::fs::read(path).expect("the cases")).expect("JSON");
    let server = Server::start(&[]);
    let (mut passed, mut skipped) = (0, Vec::new());
    for case in &cases {
        let name = case.get("name").expect("a name").text();
        if name == ORDERED || name == LATE {
            continue;
        }
        match pass(&server, case, name).await {
            Ok(()) => passed += 1,
            Err(Skipped) => skipped.push(name),
        }
    }
    assert_eq!(skipped, SPECIAL, "{passed} passed");
    assert!(passed >= 95, "{passed} passed");
}

/// What the handlers of a case have noted.
#[derive(Debug, Default)]
struct Notes {
    /// The lines of the calls, by object.
    calls: BTreeMap<String, Vec<String>>,
    /// The objects whose handlers run now.
    running: Vec<String>,
    /// What was not as the case expects.
    wrong: Vec<String>,
    /// The stop that an object's handler asks for, if it is none that handlers in Rust have.
    stops: HashMap<String, seriatim::sink::Stop>,
    /// The number of runs that have failed, by event and action.
    failures: HashMap<(u64, usize), i64>,
    /// The context of the handler that has ended last, by object.
    ended: HashMap<String, seriatim::handlers::HandlerContext>,
}

type Shared = Arc<Mutex<Notes>>;

fn notes(shared: &Shared) -> std::sync::MutexGuard<'_, Notes> {
    shared.lock().expect("no panic")
}

/// Handlers in Rust that can also stop in the ways of a sink.
#[derive(Clone)]
struct Stops {
    handlers: seriatim::handlers::Handlers,
    shared: Shared,
}

#[async_trait::async_trait]
impl Sink for Stops {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let delivered = self.handlers.deliver(batch, cx).await;
        match notes(&self.shared).stops.remove(batch.object().as_str()) {
            Some(stop) => Delivered::stopped(delivered.count(batch.len()), stop),
            None => delivered,
        }
    }
}

async fn pass(server: &Server, case: &Json, name: &str) -> Result<(), Skipped> {
    case.has_only(&[
        "name",
        "namespace",
        "worker",
        "given",
        "emit",
        "handlers",
        "then",
    ]);
    let client = redis::Client::open(server.url()).expect("a URL");
    let config = patient();
    let conn = client.get_multiplexed_async_connection_with_config(&config);
    let conn = conn.await;
    let mut conn = conn.expect("connected");
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut conn)
        .await
        .expect("an empty database");
    let keys = case
        .get("namespace")
        .map_or_else(Keys::default, |namespace| {
            Keys::with_namespace(namespace.text()).expect("a namespace")
        });
    for words in case.get("given").map_or(&[][..], Json::list) {
        let _: redis::Value = command(words).query_async(&mut conn).await.expect("given");
    }
    let mut found = Found {
        begin_ms: redis_ms(&mut conn).await,
        end_ms: 0,
        made: BTreeMap::new(),
    };
    let builder = Emitter::builder(server.url()).keys(keys.clone());
    let emitter = builder.connect().await.expect("connected");
    for of in case.get("emit").expect("events").list() {
        let is_later = of.get("after_ms").or(of.get("at_ms")).is_some();
        let word = if is_later { "schedule" } else { "emit" };
        let operation = Json::Object(vec![(word.to_owned(), of.clone())]);
        run(&emitter, &mut conn, &operation, &found).await?;
    }
    let script = Script::of(case.get("handlers").expect("handlers"))?;
    let shared = Shared::default();
    let sink = Stops {
        handlers: handlers(script, &shared),
        shared: Arc::clone(&shared),
    };
    let worker = worker(server, &keys, case, sink);
    let shutdown = Shutdown::new();
    let working = tokio::spawn(worker.run(shutdown.clone()));

    let then = case.get("then").expect("then");
    then.has_only(&["calls", "log", "held", "keys", "ends"]);
    let (control, console) = (
        control(&conn, &keys),
        Console::new(conn.clone(), keys.clone()),
    );
    let rows: usize = then.get("log").map_or(0, |log| {
        log.members()
            .iter()
            .map(|(_, rows)| times(rows).len())
            .sum()
    });
    let held = then.get("held").map_or(&[][..], Json::members);
    until(name, PATIENCE, async || {
        let there: (usize, usize) = redis::pipe()
            .cmd("XLEN")
            .arg(keys.event_log())
            .cmd("ZCARD")
            .arg(keys.objects_held())
            .query_async(&mut conn.clone())
            .await
            .expect("numbers");
        (there.0 >= rows && there.1 >= held.len()).then_some(())
    })
    .await;
    shutdown.stop();
    let stopped = working.await.expect("no panic").expect("it stops");
    assert!(
        matches!(stopped.reason, StopReason::Graceful { .. }),
        "{name}"
    );
    found.end_ms = redis_ms(&mut conn).await;
    check_calls(&shared, then, name);
    check_log(&control, then, &found, name).await;
    for (object, why) in held {
        let held_id = console.held_id(object).await.unwrap_or_default();
        assert!(held_id.contains(why.text()), "{name}: {held_id}");
    }
    for expected in then.get("ends").map_or(&[][..], Json::list) {
        check_end(&emitter, &mut conn, expected, &found, name).await?;
    }
    let there: BTreeMap<_, _> = match then.get("keys") {
        Some(_) => dump_some(&mut conn, then).await,
        None => BTreeMap::new(),
    };
    for (key, expected) in then.get("keys").map_or(&[][..], Json::members) {
        let fits = match (there.get(key), expected) {
            (None, Json::Null) => true,
            (Some(value), expected) => is_key(&found, value, expected),
            (None, _) => false,
        };
        assert!(fits, "{name}: {key} is {:?}", there.get(key));
    }
    Ok(())
}

/// Waits for the end of an awaited event, and compares it.
async fn check_end(
    emitter: &Emitter,
    conn: &mut MultiplexedConnection,
    expected: &Json,
    found: &Found,
    name: &str,
) -> Result<(), Skipped> {
    expected.has_only(&["object", "name", "within_ms", "end", "error"]);
    let wait = Json::Number(10_000.into());
    let of = ["object", "name", "within_ms"].map(|member| {
        let value = expected.get(member).unwrap_or(&wait).clone();
        (member.to_owned(), value)
    });
    let operation = Json::Object(vec![("end_of".to_owned(), Json::Object(of.into()))]);
    let result = run(emitter, conn, &operation, found).await?;
    if let Some(kind) = expected.get("error") {
        assert_eq!(result.get("error"), Some(kind), "{name}: {result:?}");
        return Ok(());
    }
    let there = result.get("end").expect("an end");
    let error = match there.get("error") {
        Some(Json::Text(error)) => error.strip_prefix("answer: ").unwrap_or(error),
        _ => "",
    };
    for (member, expected) in expected.get("end").expect("an end").members() {
        let fits = match (member.as_str(), expected) {
            ("error_has", expected) => error.contains(expected.text()),
            ("error", Json::Text(expected)) => error == expected,
            ("result_bytes", expected) => {
                let result = serde_json::to_vec(there.get("result").expect("a result"));
                result.expect("JSON").len() as i64 == expected.number()
            }
            _ => found.fits(there.get(member).expect("a member"), expected),
        };
        assert!(fits, "{name}: {member} of {there:?} is not {expected:?}");
    }
    Ok(())
}

/// Returns the keys that the case names, with their values.
async fn dump_some(conn: &mut MultiplexedConnection, then: &Json) -> BTreeMap<String, Json> {
    let named = then.get("keys").map_or(&[][..], Json::members);
    let names = named.iter().map(|(name, _)| name.clone()).collect();
    dump(conn, names).await.into_iter().collect()
}

fn worker(server: &Server, keys: &Keys, case: &Json, sink: Stops) -> Worker {
    let mut builder = Worker::builder(server.url())
        .keys(keys.clone())
        .name("cases")
        .concurrency(4)
        .batch(16)
        .event_log(EventLog::default());
    let flags = case.get("worker").map_or(&[][..], Json::list);
    for pair in flags.chunks(2) {
        let [flag, value] = pair else {
            panic!("no value: {pair:?}")
        };
        let policy = |text: &str| text.parse::<RetryPolicy>().expect("a policy");
        builder = match (flag.text(), value.text()) {
            ("--retry", text) => builder.retry(policy(text)),
            ("--retry-type", text) => {
                let (of, text) = text.split_once('=').expect("a type");
                builder.retry_type(of, policy(text))
            }
            (flag, _) => panic!("this runner does not know {flag}"),
        };
    }
    builder.sink(sink).build().expect("a worker")
}

/// Returns the elements of a list, each as often as `times` says.
fn times(list: &Json) -> Vec<&Json> {
    let mut all = Vec::new();
    for element in list.list() {
        match element
            .get("times")
            .filter(|_| element.members().len() == 1)
        {
            Some(repeated) => {
                let [times, element] = repeated.list() else {
                    panic!("no times: {element:?}")
                };
                let times = usize::try_from(times.number()).expect("a number");
                all.extend(std::iter::repeat_n(element, times));
            }
            None => all.push(element),
        }
    }
    all
}

fn check_calls(shared: &Shared, then: &Json, name: &str) {
    let notes = notes(shared);
    assert!(notes.wrong.is_empty(), "{name}: {:#?}", notes.wrong);
    let expected = then.get("calls").map_or(&[][..], Json::members);
    let expected: BTreeMap<String, Vec<String>> = expected
        .iter()
        .map(|(object, lines)| {
            let lines = times(lines).into_iter().map(|line| line.text().to_owned());
            (object.clone(), lines.collect())
        })
        .collect();
    assert_eq!(notes.calls, expected, "{name}");
}

/// Compares the rows of the event log, and the `prev` of each row.
async fn check_log(control: &Control, then: &Json, found: &Found, name: &str) {
    let mut rows: BTreeMap<String, Vec<LogEntry>> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = control.log(after.as_ref(), PER_CALL_MAX).await;
        let page = page.expect("a page");
        for row in page.entries {
            rows.entry(row.object.clone()).or_default().push(row);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let expected = then.get("log").map_or(&[][..], Json::members);
    let mut objects: Vec<_> = expected.iter().map(|(object, _)| object.clone()).collect();
    objects.sort();
    assert_eq!(rows.keys().cloned().collect::<Vec<_>>(), objects, "{name}");
    for (object, expected) in expected {
        let (rows, expected) = (&rows[object], times(expected));
        assert_eq!(rows.len(), expected.len(), "{name}: {rows:#?}");
        let mut last = 0;
        for (row, expected) in rows.iter().zip(expected) {
            assert_eq!(row.prev, Some(last), "{name}: {row:#?}");
            if row.status.as_str() == "completed" {
                last = row.id.expect("an id");
            }
            check_row(row, expected, found, name);
        }
    }
}

/// Reads a JSON value. Of a member that comes twice, the last one counts.
fn last_members(json: &[u8]) -> Option<Json> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    serde_json::from_value(value).ok()
}

fn check_row(row: &LogEntry, expected: &Json, found: &Found, name: &str) {
    let error = row.error.as_deref().unwrap_or_default();
    let error = error.strip_prefix("answer: ").unwrap_or(error);
    let result = row.result(HANDLER);
    let members = expected.members().iter().map(|(member, expected)| {
        let value = match member.as_str() {
            "status" => Some(Json::Text(row.status.to_string())),
            "event" => last_members(row.event.bytes()),
            "attempts" => row.attempts.map(|attempts| Json::Number(attempts.into())),
            "error" => Some(Json::Text(error.to_owned())),
            "error_has" => return error.contains(expected.text()),
            "result" => result
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok()),
            "result_bytes" => result.as_ref().map(|text| Json::Number(text.len().into())),
            "no_result" => return row.results.is_none(),
            member => panic!("this runner does not know {member}"),
        };
        value.is_some_and(|value| found.fits(&value, expected))
    });
    assert!(
        members.into_iter().all(|fits| fits),
        "{name}: {row:#?} is not {expected:?}"
    );
}

/// The longest time of a handler. No case needs so long.
const TIMEOUT: Duration = PATIENCE;
