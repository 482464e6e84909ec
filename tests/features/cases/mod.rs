//! The cases that the emitters of all languages pass: clients/cases/producers.json. The format is
//! described in clients/cases/README.md.

mod json;
mod operations;
mod workers;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use seriatim::Emitter;
use seriatim::keys::Keys;

use self::json::Json;
use self::operations::{Skipped, run};
use crate::support::{Server, patient};

/// The score of a schedule whose event is queued is this number minus the time of queueing, in µs.
const QUEUED: f64 = -1e15;

fn cases() -> Vec<Json> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/cases/producers.json");
    let text = std::fs::read(path).expect("the cases");
    serde_json::from_slice(&text).expect("JSON")
}

#[tokio::test]
async fn the_emitter_passes_every_case() {
    let server = Server::start(&[]);
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut conn = client
        .get_multiplexed_async_connection_with_config(&patient())
        .await
        .expect("connected");
    let (mut passed, mut skipped) = (0, Vec::new());
    for case in cases() {
        let name = case.get("name").expect("a name").text().to_owned();
        case.has_only(&[
            "name",
            "namespace",
            "emitter",
            "given",
            "do",
            "then",
            "keys",
        ]);
        match pass(&server, &mut conn, &case, &name).await {
            Ok(()) => passed += 1,
            Err(Skipped) => skipped.push(name),
        }
    }
    // Rust has no text with a lone surrogate, and serde_json writes a number that JSON does not have as null.
    let all_are_special = skipped.iter().all(|name| {
        ["surrogate", "UTF-8", "nan", "infinity"]
            .iter()
            .any(|word| name.contains(word))
    });
    assert!(
        all_are_special && passed >= 165,
        "{passed} passed, skipped: {skipped:#?}"
    );
}

/// The times of a case, and the keys that its schedules have got.
#[derive(Default)]
pub(super) struct Found {
    begin_ms: i64,
    end_ms: i64,
    /// The keys that the operations have returned, by the number of the operation. A key of
    /// `schedule_many` also has the place of the schedule, e.g. `0.1`.
    made: BTreeMap<String, String>,
}

impl Found {
    /// Returns a text with the made keys in place of their names.
    pub(super) fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (at, key) in &self.made {
            text = text.replace(&format!("<key of {at}>"), key);
        }
        text
    }

    fn is_now_us(&self, us: i64) -> bool {
        ((self.begin_ms - 2) * 1000..=(self.end_ms + 3) * 1000).contains(&us)
    }

    /// Compares a text with the expected one, in which `<us>` is a time of Redis in µs, and `<inbox>`
    /// the name of an inbox and the digest of an event.
    fn is_text(&self, found: &str, expected: &str) -> bool {
        for (marker, fits) in [
            (
                "<us>",
                &(|part: &str| part.len() == 16 && part.parse().is_ok_and(|us| self.is_now_us(us)))
                    as &dyn Fn(&str) -> bool,
            ),
            ("<inbox>", &|part| {
                let Some((inbox, digest)) = part.split_once(' ') else {
                    return false;
                };
                let is_name = inbox.bytes().all(|byte| byte.is_ascii_alphanumeric());
                let is_digest = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                (1..=32).contains(&inbox.len()) && is_name && digest.len() == 40 && is_digest
            }),
        ] {
            if let Some((before, after)) = expected.split_once(marker) {
                let part = found.strip_prefix(before);
                return part
                    .and_then(|part| part.strip_suffix(after))
                    .is_some_and(fits);
            }
        }
        found == expected
    }

    /// Compares a value with the expected one. Members that are not expected are not compared.
    fn fits(&self, found: &Json, expected: &Json) -> bool {
        match (found, expected) {
            (Json::Number(number), Json::Object(_)) => {
                let (word, offset) = expected.only();
                assert_eq!(word, "now_plus_ms");
                let at = number.as_f64().expect("a number") as i64 - offset.number();
                (self.begin_ms - 2..=self.end_ms + 2).contains(&at)
            }
            (Json::Object(_), Json::Object(members)) => members.iter().all(|(name, expected)| {
                found
                    .get(&self.named(name))
                    .is_some_and(|found| self.fits(found, expected))
            }),
            (Json::List(found), Json::List(expected)) => {
                found.len() == expected.len()
                    && found
                        .iter()
                        .zip(expected)
                        .all(|(found, expected)| self.fits(found, expected))
            }
            (Json::Number(score), Json::Text(expected)) if expected == "<queued>" => {
                let us = QUEUED - score.as_f64().expect("a number");
                self.is_now_us(us as i64)
            }
            (Json::Text(found), Json::Text(expected)) => self.is_text(found, &self.named(expected)),
            (Json::Number(found), Json::Number(expected)) => found.as_f64() == expected.as_f64(),
            _ => found == expected,
        }
    }
}

/// Runs a case, and fails if a result or a key is not as expected.
async fn pass(
    server: &Server,
    conn: &mut MultiplexedConnection,
    case: &Json,
    name: &str,
) -> Result<(), Skipped> {
    let _: () = redis::pipe()
        .cmd("FLUSHALL")
        .cmd("SCRIPT")
        .arg("FLUSH")
        .query_async(conn)
        .await
        .expect("an empty database");
    for command in case.get("given").map_or(&[][..], Json::list) {
        let _: redis::Value = operations::command(command)
            .query_async(conn)
            .await
            .expect("given");
    }
    let mut found = Found {
        begin_ms: redis_ms(conn).await,
        end_ms: 0,
        made: BTreeMap::new(),
    };
    let emitter = emitter(server, case).await;
    let mut results = Vec::new();
    for (at, operation) in case
        .get("do")
        .expect("operations")
        .list()
        .iter()
        .enumerate()
    {
        let result = run(&emitter, conn, operation, &found).await?;
        if let Some(Json::Text(key)) = result.get("key") {
            found.made.insert(at.to_string(), key.clone());
        }
        let scheduled = result.get("scheduled").map_or(&[][..], Json::list);
        for (place, one) in scheduled.iter().enumerate() {
            let key = one.get("key").expect("a key").text().to_owned();
            found.made.insert(format!("{at}.{place}"), key);
        }
        results.push(result);
    }
    found.end_ms = redis_ms(conn).await;
    let expected = case.get("then").expect("results").list();
    assert_eq!(results.len(), expected.len(), "{name}");
    for (result, expected) in results.iter().zip(expected) {
        check(&found, result, expected, name);
    }
    let all: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(conn)
        .await
        .expect("keys");
    let (keys, expected) = (dump(conn, all).await, case.get("keys").expect("keys"));
    let names: Vec<_> = keys.iter().map(|(name, _)| name.clone()).collect();
    let mut wanted: Vec<_> = expected
        .members()
        .iter()
        .map(|(name, _)| found.named(name))
        .collect();
    wanted.sort();
    assert_eq!(names, wanted, "{name}");
    for (key, expected) in expected.members() {
        let key = found.named(key);
        let (_, value) = keys
            .iter()
            .find(|(name, _)| *name == key)
            .expect("compared above");
        assert!(
            is_key(&found, value, expected),
            "{name}: {key} is {value:?}, not {expected:?}"
        );
    }
    Ok(())
}

fn check(found: &Found, result: &Json, expected: &Json, name: &str) {
    for (member, expected) in expected.members() {
        let text = result.get("message").map_or("", Json::text);
        let fits = match member.as_str() {
            "message_has" => text.contains(expected.text()),
            // The texts of a list of failures are compared by their kinds.
            _ => result
                .get(member)
                .is_some_and(|result| found.fits(result, expected)),
        };
        assert!(fits, "{name}: {member} of {result:?} is not {expected:?}");
    }
}

/// Compares the value of a key, as `dump` returns it.
fn is_key(found: &Found, value: &Json, expected: &Json) -> bool {
    let ((kind, value), (word, expected)) = (value.only(), expected.only());
    match word {
        "list_length" => kind == "list" && value.list().len() as i64 == expected.number(),
        "zset_of" => {
            let members = expected
                .list()
                .iter()
                .map(|member| found.named(member.text()));
            let mut wanted: Vec<_> = members.collect();
            wanted.sort();
            let mut there: Vec<_> = value
                .members()
                .iter()
                .map(|(name, _)| name.clone())
                .collect();
            there.sort();
            kind == "zset" && there == wanted
        }
        "string" | "list" => kind == word && found.fits(value, expected),
        "hash" | "zset" => {
            let same = value.members().len() == expected.members().len();
            kind == word && same && found.fits(value, expected)
        }
        _ => panic!("this runner does not know {word}"),
    }
}

async fn emitter(server: &Server, case: &Json) -> Emitter {
    let keys = case
        .get("namespace")
        .map_or_else(Keys::default, |namespace| {
            Keys::with_namespace(namespace.text()).expect("a namespace")
        });
    let (mut event_bytes, mut events, mut bytes) = (
        seriatim::event::EVENT_BYTES_MAX,
        seriatim::emit::CHUNK_EVENTS_MAX,
        seriatim::emit::CHUNK_BYTES_MAX,
    );
    let (mut replicas, mut timeout_ms) = (0, 1000);
    for (setting, value) in case.get("emitter").map_or(&[][..], Json::members) {
        let value = usize::try_from(value.number()).expect("a number");
        match setting.as_str() {
            "event_bytes_max" => event_bytes = value,
            "chunk_events_max" => events = value,
            "chunk_bytes_max" => bytes = value,
            "wait" => replicas = u32::try_from(value).expect("a number of replicas"),
            "wait_timeout_ms" => timeout_ms = value as u64,
            _ => panic!("this runner does not know {setting}"),
        }
    }
    let builder = Emitter::builder(server.url()).keys(keys);
    let builder = builder.wait(replicas, Duration::from_millis(timeout_ms));
    let emitter = builder.connect().await.expect("connected");
    emitter
        .with_event_bytes_max(event_bytes)
        .with_chunk(events, bytes)
}

async fn redis_ms(conn: &mut MultiplexedConnection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(conn).await.expect("a time");
    seconds * 1000 + micros / 1000
}

/// Returns the time of this machine in ms.
pub(super) fn local_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    since.as_millis() as i64
}

/// Returns the keys of these names that exist, with their values, sorted.
async fn dump(conn: &mut MultiplexedConnection, mut names: Vec<String>) -> Vec<(String, Json)> {
    names.sort();
    let mut keys = Vec::new();
    for name in names {
        let kind: String = redis::cmd("TYPE")
            .arg(&name)
            .query_async(conn)
            .await
            .expect("a type");
        let text = |text: String| Json::Text(text);
        let mut read = redis::Cmd::new();
        let value = match kind.as_str() {
            "string" => text(
                read.arg("GET")
                    .arg(&name)
                    .query_async(conn)
                    .await
                    .expect("a string"),
            ),
            "list" => {
                read.arg("LRANGE").arg(&name).arg(0).arg(-1);
                let list: Vec<String> = read.query_async(conn).await.expect("a list");
                Json::List(list.into_iter().map(text).collect())
            }
            "hash" => {
                let fields: BTreeMap<String, String> = read
                    .arg("HGETALL")
                    .arg(&name)
                    .query_async(conn)
                    .await
                    .expect("a hash");
                Json::Object(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name, text(value)))
                        .collect(),
                )
            }
            "zset" => {
                read.arg("ZRANGE")
                    .arg(&name)
                    .arg(0)
                    .arg(-1)
                    .arg("WITHSCORES");
                let members: Vec<(String, f64)> = read.query_async(conn).await.expect("a zset");
                let score =
                    |score| Json::Number(serde_json::Number::from_f64(score).expect("a score"));
                Json::Object(
                    members
                        .into_iter()
                        .map(|(name, at)| (name, score(at)))
                        .collect(),
                )
            }
            "none" => continue,
            _ => panic!("{name} is a {kind}"),
        };
        keys.push((name, Json::Object(vec![(kind, value)])));
    }
    keys
}
