//! Awaited events: what the step that ends one writes, and for how long; and when an emit under the
//! same key is another event.

use seriatim::wire::{Advance, BatchResult, EmitReply, EmitWith, ScriptedEmit};

use crate::scene::{ATTACH, Scene, bounds, reject, result};
use crate::stopped::{NOW, NOW_US};
use crate::support::Redis;

/// The keys of the end of the event `k` of `work:1`, and of the inbox `box`, without prefix.
const END: &str = "work:1\nk:event.end";
const INBOX: &str = "\nbox:event.ends";
/// The end of an event that is delivered, as a scene shows it.
const DELIVERED: &str = r#"{\"status\":\"completed\",\"id\":5,\"attempts\":0} expires"#;

/// Returns the commands for a slot that has the event 5 of `work:1` in hand. It came under this key.
fn in_hand(key: &str) -> String {
    let tag = "SET event.worker:w.0:event.id '5 0\nwork:1'";
    format!("own w.0 work:1 5 1; {tag}; SET work:1:event.key '5 {key}'; ")
}

/// Returns the command for the note that the event `k` is awaited.
fn noted(note: &str) -> String {
    format!("SET '{END}' '{note}'; ")
}

/// Ends the event in hand. `with`: `None` if it is delivered, else its result.
async fn end(scene: &Scene, with: Option<BatchResult>) {
    let count = usize::from(with.is_none());
    let report = result("work:1", "5 0", count, with.unwrap_or(BatchResult::Done));
    let fill = |call: &mut Advance| {
        call.handled(0);
        call.report(0, &report);
    };
    scene.advance(bounds(|b| b.claims = 0), fill).await;
}

/// Returns the changes of a call that delivers the event, except those of its end.
fn delivered() -> String {
    let slot = "event.worker:w.0: event = nil; event.id = nil; object = nil";
    let object = "event.key = nil; event.worker = nil; last.event.id = 5";
    format!("{slot}\nwork:1: {object}\n")
}

/// Returns the changes of the end and of the inbox.
fn told(scene: &Scene, text: &str) -> String {
    let key = format!("{}work:1\\nk:event.end", scene.keys.prefix());
    format!("work:1\\nk: event.end = {text}\n\\nbox: event.ends = [{key}] expires\n")
}

/// The end is kept for the time that the key names, at most a week. The inbox is kept for a minute.
#[tokio::test]
async fn an_end_and_its_inbox_live_for_their_times() {
    let scene = Scene::stopped_at(NOW_US).await;
    for (seconds, kept_ms) in [
        (1, 1000),
        (90, 90_000),
        (604_800, 604_800_000),
        (604_801, 604_800_000),
    ] {
        scene.again("").await;
        scene.attach(&ATTACH).await;
        let key = format!("?{seconds} k");
        scene.add(&(in_hand(&key) + &noted("?1 box 0af"))).await;
        end(&scene, None).await;
        let changes = delivered() + &told(&scene, DELIVERED);
        scene.changed(&changes).await;
        for (key, left_ms) in [(END, kept_ms), (INBOX, 60_000)] {
            let key = format!("{}{key}", scene.keys.prefix());
            let ends: u64 = scene.run(&["PEXPIRETIME", &key]).await;
            assert_eq!(ends, NOW + left_ms, "{key:?} after {seconds} s");
        }
    }
}

/// An end has the status of the event, its failed attempts, its error, and the results of its handlers.
#[tokio::test]
async fn an_end_tells_how_the_event_ended() {
    let scene = Scene::new().await;
    let complete = BatchResult::Complete {
        next: None,
        id: 5,
        error: "no".to_owned(),
        attempts: 3,
    };
    for (with, handled, text) in [
        (None, "", r#"{"status":"completed","id":5,"attempts":0}"#),
        (
            None,
            r#"id 5 result:b '"b":2' result:a '"a":1'"#,
            r#"{"status":"completed","id":5,"attempts":0,"results":{"a":1,"b":2}}"#,
        ),
        (
            None,
            r#"id 4 result:a '"a":1'"#,
            r#"{"status":"completed","id":5,"attempts":0}"#,
        ),
        (
            Some(reject(None, 5, 2)),
            r#"id 5 result:a '"a":1'"#,
            r#"{"status":"dead","id":5,"attempts":2,"error":"no","results":{"a":1}}"#,
        ),
        (
            Some(complete),
            "",
            r#"{"status":"completed_with_errors","id":5,"attempts":3,"error":"no"}"#,
        ),
    ] {
        let given = in_hand("?60 k") + &noted("?60 box 0af");
        scene.again(&given).await;
        if !handled.is_empty() {
            scene
                .add(&format!("HSET work:1:event.handled {handled}"))
                .await;
        }
        end(&scene, with).await;
        let key = format!("{}{END}", scene.keys.prefix());
        assert_eq!(scene.text(&key).await.as_deref(), Some(text));
        let inbox = format!("{}{INBOX}", scene.keys.prefix());
        assert_eq!(scene.list(&inbox).await, [key]);
    }
}

/// The batch of the event has another one behind it, which stays or becomes a dead letter. The first one
/// is delivered, and its end says so.
#[tokio::test]
async fn the_end_of_a_first_event_is_its_own() {
    let scene = Scene::new().await;
    let next = "6".parse().expect("a tag");
    for then in [BatchResult::Part { next }, reject(None, 6, 2)] {
        let given = in_hand("?60 k") + &noted("?60  0af");
        scene.again(&given.replace("5 1; ", "5 1 2; ")).await;
        let report = result("work:1", "5 0", 1, then);
        let no_claim = bounds(|b| b.claims = 0);
        scene
            .advance(no_claim, |call| call.report(0, &report))
            .await;
        assert_eq!(scene.at(END).await, DELIVERED);
        assert_eq!(scene.at("work:1:event.key").await, "nil");
    }
}

/// The producer has named no inbox, or the note is lost or is no note. The end is only written.
#[tokio::test]
async fn an_end_without_an_inbox_is_only_written() {
    let scene = Scene::new().await;
    for given in [
        noted("?60  0af"),
        String::new(),
        noted("odd"),
        noted("60 box 0af"),
        format!("LPUSH '{END}' x; "),
    ] {
        scene.again(&(in_hand("?60 k") + &given)).await;
        end(&scene, None).await;
        let written = format!("work:1\\nk: event.end = {DELIVERED}\n");
        scene.changed(&(delivered() + &written)).await;
    }
}

/// An inbox has room for 1,024 keys. The oldest one goes.
#[tokio::test]
async fn an_inbox_has_the_newest_keys() {
    let scene = Scene::given(&(in_hand("?60 k") + &noted("?60 box 0af"))).await;
    scene.add(&format!("LPUSH '{INBOX}' x:1..1024")).await;
    end(&scene, None).await;
    let (key, inbox) = [END, INBOX]
        .map(|key| format!("{}{key}", scene.keys.prefix()))
        .into();
    let found: Vec<String> = scene.run(&["LRANGE", &inbox, "0", "-1"]).await;
    let older = (2..=1024).rev().map(|n| format!("x:{n}"));
    let expected: Vec<_> = [key].into_iter().chain(older).collect();
    assert_eq!(found, expected);
}

/// The Redis user may not keep an inbox short, or may not give it a time to live. Nothing is pushed,
/// because the inbox could grow for ever. A user who may not read or write the end ends the event, too.
#[tokio::test]
async fn an_end_that_may_not_be_told_stops_no_event() {
    for (missing, end_text) in [
        ("ltrim", DELIVERED),
        ("pexpire", DELIVERED),
        ("lpush", DELIVERED),
        ("get", "?60 box 0af"),
        ("set", "?60 box 0af"),
    ] {
        let scene = Scene::on(Redis::own(&[])).await;
        scene.add(&(in_hand("?60 k") + &noted("?60 box 0af"))).await;
        scene.login(&format!("~* +@all -{missing}")).await;
        end(&scene, None).await;
        scene.login("+@all").await;
        assert_eq!(scene.at(END).await, end_text, "{missing}");
        assert_eq!(scene.at("work:1:last.event.id").await, "5", "{missing}");
        if missing != "set" {
            assert_eq!(scene.at(INBOX).await, "nil", "{missing}");
        }
    }
}

/// The key of the event in hand is not that of an awaited one, or is left from another event. No end is
/// written.
#[tokio::test]
async fn an_event_that_is_not_awaited_has_no_end() {
    let scene = Scene::new().await;
    for given in [
        "SET work:1:event.key '5 k'",
        "SET work:1:event.key '5 60 k'",
        "SET work:1:event.key '5 ?60'",
        "SET work:1:event.key '5 ?60 '",
        "SET work:1:event.key '5 ?x k'",
        "SET work:1:event.key '5 x?60 k'",
        "SET work:1:event.key '4 ?60 k'",
        "SET work:1:event.key '55 ?60 k'",
        "SET work:1:event.key odd",
        "DEL work:1:event.key; LPUSH work:1:event.key '5 ?60 k'",
    ] {
        let keys = in_hand("?60 k") + &noted("?60 box 0af");
        scene.again(&(keys + given)).await;
        end(&scene, None).await;
        scene.changed(&delivered()).await;
    }
}

/// Emits an event to `work:1`, and awaits it.
async fn emit_as(
    scene: &Scene,
    key: &str,
    seconds: u64,
    inbox: &str,
    event: &str,
) -> Result<EmitReply, redis::RedisError> {
    let emit = ScriptedEmit {
        object: "work:1",
        key: Some((key, 60_000)),
        queued_max: None,
        markers_max: None,
        with: EmitWith::Await { seconds, inbox },
    };
    let mut cmd = emit.begin(&scene.keys, true);
    let value = cmd.arg(event).query_async(&mut scene.conn().await).await?;
    EmitReply::read(&value)
}

/// Emits this event under the key `k`.
async fn emit(scene: &Scene, seconds: u64, event: &str) -> Result<EmitReply, redis::RedisError> {
    emit_as(scene, "k", seconds, "box", event).await
}

/// An end is kept for a second to a week. An inbox has up to 32 letters and digits. A key has no line feed.
#[tokio::test]
async fn the_arguments_of_an_awaited_emit_have_bounds() {
    let scene = Scene::new().await;
    let (longest, longer) = ("aB3".repeat(11)[..32].to_owned(), "a".repeat(33));
    for (key, seconds, inbox, is_valid) in [
        ("k", 1, "", true),
        ("k", 604_800, longest.as_str(), true),
        ("k", 0, "", false),
        ("k", 604_801, "", false),
        ("k", 1, &longer, false),
        ("k", 1, "a-b", false),
        ("\nk", 1, "", false),
        ("k\n", 1, "", false),
        ("", 1, "", false),
    ] {
        scene.again("").await;
        let reply = emit_as(&scene, key, seconds, inbox, "1").await;
        if is_valid {
            assert_eq!(reply.expect("a reply"), EmitReply::Emitted(1));
        } else {
            let refused = reply.expect_err("not valid").to_string();
            assert!(refused.contains("an awaited emit has a key"), "{refused}");
            scene.changed("").await;
        }
    }
}

/// The window of the key is over, but a slot has the event. The same emit is repeated, and another
/// event is refused, even if it is not known any more which event that is. If nobody has the event,
/// the emit is a new one.
#[tokio::test]
async fn an_event_in_hand_keeps_its_key() {
    const OVER: &str = "DEL events.emitted events.emitted.ends work:1:events.scheduled";
    let scene = Scene::new().await;
    let (repeated, emitted) = (EmitReply::Repeated(1), EmitReply::Emitted(2));
    let of_key = |key: &str| format!("; SET work:1:event.key '{key}'");
    let lost = format!("; DEL '{END}'");
    for (given, seconds, event, reply) in [
        (of_key("5 ?60 k"), 60, "1", repeated.clone()),
        (of_key("5 ?60 k"), 90, "1", repeated),
        (of_key("5 ?60 k"), 60, "2", EmitReply::Differs),
        (of_key("5 ?60 k") + &lost, 60, "1", EmitReply::Differs),
        (of_key("5 ?60 k") + &lost, 90, "1", emitted.clone()),
        (of_key("5 ?60 l"), 60, "1", emitted.clone()),
        (of_key("5 k"), 60, "1", emitted.clone()),
        (of_key("?60 k"), 60, "1", emitted.clone()),
        (String::new(), 60, "1", emitted),
    ] {
        scene.again("").await;
        let first = emit(&scene, 60, "1").await;
        assert_eq!(first.expect("a reply"), EmitReply::Emitted(1));
        scene.add(&format!("{OVER}{given}")).await;
        let found = emit(&scene, seconds, event).await.expect("a reply");
        assert_eq!(found, reply, "{given} {seconds} {event}");
        if !matches!(reply, EmitReply::Emitted(_)) {
            scene.changed("").await;
        }
    }
}

/// The note of an awaited event lives for a week.
#[tokio::test]
async fn the_note_of_an_awaited_event_lives_for_a_week() {
    let scene = Scene::stopped_at(NOW_US).await;
    let reply = emit(&scene, 60, "1").await;
    assert_eq!(reply.expect("a reply"), EmitReply::Emitted(1));
    // The text `none` stands for no data. The digests are those of the text and of the event.
    let digest = "sha1hex('none' .. redis.sha1hex('1'))";
    let digest: String = scene
        .run(&["EVAL", &format!("return redis.{digest}"), "0"])
        .await;
    assert_eq!(scene.at(END).await, format!("?60 box {digest} expires"));
    let key = format!("{}{END}", scene.keys.prefix());
    let ends: u64 = scene.run(&["PEXPIRETIME", &key]).await;
    assert_eq!(ends, NOW + 604_800_000);
}

/// A key of the event has a wrong type, or the user may not write one. The emit is refused, and changes
/// nothing.
#[tokio::test]
async fn an_emit_that_cannot_be_awaited_changes_nothing() {
    let scene = Scene::bare(Redis::own(&[])).await;
    for key in [
        "work:1:events",
        "objects.with.events",
        "events.emitted",
        "events.emitted.ends",
        "work:1:events.scheduled",
        "events.scheduled",
        END,
        "work:1:event.key",
    ] {
        let push = ["SET", "LPUSH"][usize::from(key == END || key.ends_with("event.key"))];
        scene.again(&format!("{push} '{key}' x")).await;
        let refused = emit(&scene, 60, "1").await.expect_err("a wrong type");
        assert_eq!(refused.code(), Some("WRONGTYPE"), "{key:?}: {refused}");
        let named = format!("{}{} is a", scene.keys.prefix(), key.replace('\n', " "));
        assert!(
            refused.detail().is_some_and(|it| it.starts_with(&named)),
            "{refused}"
        );
        scene.changed("").await;
    }
    let written = [
        ("work:1:events", "LPUSH"),
        ("objects.with.events", "LPUSH"),
        ("events.emitted", "HSET"),
        ("events.emitted.ends", "ZADD"),
        ("work:1:events.scheduled", "HSET"),
        ("events.scheduled", "ZADD"),
        (END, "SET"),
    ];
    // Redis itself refuses a call of a user who may not write the key of the markers.
    for (key, command) in written {
        if key == "objects.with.events" {
            continue;
        }
        scene.again("").await;
        let others = written.iter().filter(|(other, _)| *other != key);
        // A pattern of keys has no line feed.
        let others = others.map(|(key, _)| key.replace('\n', "?"));
        let others = others.map(|key| format!(" ~{}{key}", scene.keys.prefix()));
        scene
            .login(&format!(
                "reset on >weak +@all %R~*{}",
                others.collect::<String>()
            ))
            .await;
        let refused = emit(&scene, 60, "1").await.expect_err("no right");
        scene.login("reset on >weak ~* +@all").await;
        assert_eq!(refused.code(), Some("NOPERM"), "{key:?}: {refused}");
        let why = format!("the user may not use {command}");
        assert_eq!(refused.detail(), Some(&*why), "{key:?}");
        scene.changed("").await;
    }
}
