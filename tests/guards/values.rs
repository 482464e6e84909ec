//! Values that Redis stores as one text: Rust and Lua parse and format them alike.

use std::path::Path;

use seriatim::wire::Tag;
use seriatim::wire::values::{
    CronLast, CronValue, Due, EmitEntry, Emits, HeldId, Holder, Later, LaterMode, Lease, Priority,
    Registration, RuleValue, ShareUsed, ShareValue,
};

use crate::scene::{LEASE, Scene};
use crate::support::{Redis, jobs};

/// Returns the text of a module. As for the scripts themselves, `SERIATIM_LUA_DIR` may name a
/// directory with another text.
fn module(name: &str, compiled: &str) -> String {
    let other = std::env::var_os("SERIATIM_LUA_DIR")
        .map(|dir| Path::new(&dir).join(format!("values/{name}.lua")));
    let text = other.and_then(|file| std::fs::read_to_string(file).ok());
    let name = match name {
        "ids" => "local ids".to_owned(),
        name => format!("rare.{name}"),
    };
    format!(
        "{name} = (function()\n{}end)()\n",
        text.as_deref().unwrap_or(compiled)
    )
}

/// Runs Lua with the modules of these names.
macro_rules! lua {
    ($redis:expr, [$($module:literal)*], $body:literal, $($arg:expr),*) => {{
        let modules: Vec<String> = vec![$(module($module, include_str!(concat!("../../lua/values/", $module, ".lua")))),*];
        let head = "local P, redis_call, rare = '', redis.call, {}\nlocal K = setmetatable({}, { __index = function(_, name) return name end })\n";
        let script = redis::Script::new(&[head, &modules.concat(), $body].concat());
        let mut call = script.prepare_invoke();
        $(call.arg($arg);)*
        call.invoke_async(&mut $redis.connect().await).await.expect("the Lua runs")
    }};
}

#[tokio::test]
async fn a_tag() {
    let redis = Redis::start();
    for text in [
        "7",
        "7 1",
        "7 0 1",
        "7 0 2",
        "7 0 0 1",
        "7 1 0 3",
        "9007199254740991 1 2 3",
    ] {
        let (first, handouts, attempts, crashes, again): (u64, u32, u32, u32, String) = lua!(
            redis,
            ["tag"],
            "local a, b, c, d = rare.tag.numbers(ARGV[1])\nreturn { a, b, c, d, rare.tag.text(a, b, c, d) }",
            text
        );
        let tag = Tag {
            first,
            handouts,
            attempts,
            crashes,
            is_keyed: false,
        };
        assert_eq!(text.parse(), Ok(tag), "{text}");
        assert_eq!((again, tag.to_string()), (text.to_owned(), text.to_owned()));
    }
    let (keyed, first, is_odd): (String, u64, bool) = lua!(redis, ["ids" "tag"], "local tag = rare.tag.keyed(ARGV[1])\nreturn { tag, rare.tag.first_of(tag), rare.tag.is_odd(tag) and 1 or 0 }", "7");
    let tag = Tag {
        first,
        is_keyed: true,
        ..Tag::default()
    };
    assert_eq!(
        (keyed.parse(), tag.to_string(), is_odd),
        (Ok(tag), keyed, true)
    );
    for text in [
        "",
        "0",
        "x",
        "7 x",
        "7 1 x",
        "7 1 2 3 4",
        "-7",
        " 7",
        "7  1",
        "7 ",
        "7 4294967296",
    ] {
        assert!(text.parse::<Tag>().is_err(), "{text}");
        let first: Option<u64> =
            lua!(redis, ["ids" "tag"], "return rare.tag.first_of(ARGV[1]) or false", text);
        assert_eq!(first, None, "{text}");
    }
}

#[tokio::test]
async fn a_held_id() {
    let redis = Redis::start();
    for text in ["7 0 0 0 stop", "7 1 2 3 retry: down at 5", "7 0 0 0 "] {
        let (first, handouts, attempts, crashes, reason, again): (
            u64,
            u32,
            u32,
            u32,
            String,
            String,
        ) = lua!(
            redis,
            ["tag"],
            "local a, b, c, d, at = rare.tag.held_numbers(ARGV[1])\nlocal why = string.sub(ARGV[1], at)\n\
             return { a, b, c, d, why, rare.tag.held_text(a, b, c, d, why) }",
            text
        );
        let held_id = HeldId {
            tag: Some(Tag {
                first,
                handouts,
                attempts,
                crashes,
                is_keyed: false,
            }),
            reason: reason.into(),
        };
        assert_eq!(
            (text.parse(), held_id.to_string()),
            (Ok(held_id), again),
            "{text}"
        );
    }
    for (reason, error) in [
        ("retry: down: x", "down: x"),
        ("attempts: failed 3 times, at last: down: x", "down: x"),
        ("takeover", "takeover"),
        ("crashes: died 5 times", "crashes: died 5 times"),
        ("my retry: x", "my retry: x"),
        ("", ""),
    ] {
        let text = format!("7 1 2 3 {reason}");
        let found: String = lua!(redis, ["tag"], "return rare.tag.held_error(ARGV[1])", text);
        assert_eq!(found, error, "{reason}");
    }
    // An object that is held without a batch.
    let text: String = lua!(
        redis,
        ["tag"],
        "return rare.tag.held_text('0', 0, 0, 0, ARGV[1])",
        "quarantine: x"
    );
    assert_eq!(text.parse::<HeldId>().map(|held_id| held_id.tag), Ok(None));
}

#[tokio::test]
async fn a_lease() {
    let scene = Scene::new().await;
    let text = scene
        .text(&scene.keys.worker_lease("w"))
        .await
        .expect("a lease");
    let lease: Lease = text.parse().expect("a lease");
    assert_eq!((lease.token.as_str(), lease.to_string()), ("token-1", text));
    let redis = Redis::start();
    let lease = Lease {
        token: "t".to_owned(),
        holder: Holder::current(),
        length: Some(LEASE),
    }
    .to_string();
    let length_ms: u64 = lua!(
        redis,
        ["lease"],
        "return rare.lease.length_ms(ARGV[1])",
        lease
    );
    assert_eq!(u128::from(length_ms), LEASE.as_millis());
}

#[tokio::test]
async fn a_registration() {
    let redis = Redis::own(&[]);
    let registration = Registration {
        slots: 4,
        token: "token-1".to_owned(),
        last_seen_ms: 1_767_225_600_000,
    };
    let (slots, token, last_seen_ms, text): (u32, String, u64, String) = lua!(
        redis,
        ["registry"],
        "redis_call('HSET', 'event_workers', 'w', ARGV[1])\nlocal slots, token, at_ms = rare.registry.find('w')\n\
         rare.registry.register('w', slots, token, at_ms)\nreturn { slots, token, at_ms, redis_call('HGET', 'event_workers', 'w') }",
        registration.to_string()
    );
    assert_eq!(
        Registration {
            slots,
            token,
            last_seen_ms
        },
        registration
    );
    assert_eq!(text.parse(), Ok(registration));
}

#[tokio::test]
async fn a_rule() {
    let redis = Redis::start();
    let rule = |end_ms, lifted, cursor: &[u8]| RuleValue {
        set_ms: 1_767_225_600_000,
        end_ms,
        lifted,
        who: b"ada".to_vec(),
        cursor: cursor.to_vec(),
        why: b"a reason: it".to_vec(),
    };
    for rule in [
        rule(None, false, b""),
        rule(Some(1_767_225_600_001), true, b"a\0 b"),
    ] {
        let (set_ms, end_ms, lifted, texts): (u64, u64, bool, [Vec<u8>; 4]) = lua!(
            redis,
            ["rules"],
            "local r = rare.rules.parse(ARGV[1])\n\
             return { r.set, r.ends, r.lifted and 1 or 0, { r.who, r.cursor, r.why, rare.rules.text(r) } }",
            rule.text()
        );
        let (end_ms, [who, cursor, why, text]) = ((end_ms > 0).then_some(end_ms), texts);
        assert_eq!(
            RuleValue {
                set_ms,
                end_ms,
                lifted,
                who,
                cursor,
                why
            },
            rule
        );
        assert_eq!(RuleValue::read(&text), Some(rule));
    }
}

#[tokio::test]
async fn emits() {
    let redis = Redis::start();
    let mut emits = Emits::default();
    emits.push(b"a 1", b"{} ");
    let later = |key, mode, due| Later { key, mode, due };
    emits.push_later(
        b"b",
        b"[1]",
        later(b"k 1", LaterMode::KeepTime, Due::After(5)),
    );
    emits.push("\u{e9}".as_bytes(), b"7");
    emits.push_later(b"c 2", b"", later(b"", LaterMode::KeepFirst, Due::At(17)));
    emits.push_later(b"d", b"1", later(b"x", LaterMode::Replace, Due::At(0)));
    let value = emits.value(3);
    let (list, scheduled): (Vec<Vec<u8>>, Vec<Vec<Vec<u8>>>) = lua!(
        redis,
        ["ids" "emits"],
        "local _, list = rare.emits.parse({ 'id', '7', 'emit:h', ARGV[1] })\nlocal later = {}\n\
         for i, s in ipairs(list.later) do later[i] = { s.object, s.event, s.key, s.mode, s.sign .. s.ms } end\nreturn { list, later }",
        &value
    );
    let expected = Emits::read(&value).expect("emits").1;
    let now = expected.iter().filter(|entry| entry.later.is_none());
    assert_eq!(
        list,
        now.flat_map(|entry| [entry.object.to_vec(), entry.event.to_vec()])
            .collect::<Vec<_>>()
    );
    let text = |entry: &EmitEntry<'_>| {
        let later = entry.later?;
        let mode = match later.mode {
            LaterMode::Replace => "r",
            LaterMode::KeepTime => "t",
            LaterMode::KeepFirst => "f",
        };
        let due = match later.due {
            Due::At(ms) => format!("@{ms}"),
            Due::After(ms) => format!("+{ms}"),
        };
        Some(
            [
                entry.object,
                entry.event,
                later.key,
                mode.as_bytes(),
                due.as_bytes(),
            ]
            .map(<[u8]>::to_vec)
            .to_vec(),
        )
    };
    assert_eq!(
        scheduled,
        expected.iter().filter_map(text).collect::<Vec<_>>()
    );
    let cut = &value[..value.len() - 1];
    for invalid in [
        cut,
        b"3 1 5 s1 1 1 x@1 abc",
        b"3 1 5 s1 1 1 r1 abc",
        b"3 1 5 s1 1 9 r@1 abc",
        b"3 1 5 s1 1 r@1 ab",
    ] {
        let is_invalid: bool = lua!(
            redis,
            ["ids" "emits"],
            "local _, list = rare.emits.parse({ 'id', '7', 'emit:h', ARGV[1] })\nreturn list == nil and 1 or 0",
            invalid
        );
        assert!(
            is_invalid && Emits::read(invalid).is_none(),
            "{}",
            String::from_utf8_lossy(invalid)
        );
    }
}

/// Emits belong to the event with the stored id. Without a valid id they cannot be read. The
/// handlers come in the order of their places.
#[tokio::test]
async fn emits_of_an_event() {
    let redis = Redis::start();
    for (hash, expected) in [
        (
            &[
                "id",
                "1",
                "emit:a",
                "2 1 2 1 1 ax",
                "emit:b",
                "1 2 4 1 1 by1 1 cz",
            ][..],
            "1: b y c z a x",
        ),
        (
            &[
                "emit:b",
                "1 1 2 1 1 ax",
                "id",
                "7",
                "emit:a",
                "1 1 2 1 1 by",
            ],
            "7: b y a x",
        ),
        (&["result:a", "\"a\":1", "id", "7"], "7: "),
        (&["id", "0", "emit:a", "1 1 2 1 1 ax"], "0"),
        (&["id", "x", "emit:a", "1 1 2 1 1 ax"], "0"),
        (&["emit:a", "1 1 2 1 1 ax"], "0"),
        (&["id", "7", "emit:a", "1 1 2 1 1 axx"], "7"),
        (&["id", "7", "emit:a", "wrong"], "7"),
        (&["id", "7", "emit:a", "1 1 x"], "7"),
    ] {
        let found: String = lua!(
            redis,
            ["ids" "emits"],
            "local id, list = rare.emits.parse(ARGV)\nreturn id .. (list and ': ' .. table.concat(list, ' ') or '')",
            hash
        );
        assert_eq!(found, expected, "{hash:?}");
    }
    for (hash, expected) in [
        (&["result:a", "\"a\":1"][..], Some("{\"a\":1}")),
        (&["id", "7"], None),
    ] {
        let found: Option<String> =
            lua!(redis, ["ids" "emits"], "return rare.emits.results_of(ARGV)", hash);
        assert_eq!(found.as_deref(), expected);
    }
}

/// Each emitted event is pushed to the queue of its object, and each object has one marker, in the
/// order of the emits.
#[tokio::test]
async fn emits_that_are_pushed() {
    for objects in [1, 999, 1000, 1001, 2001] {
        let redis = Redis::start();
        let console = redis.console().await;
        let markers: usize = lua!(
            redis,
            ["ids" "emits"],
            "local list = {}\nfor n = 1, ARGV[1] do\n\
             list[4 * n - 3], list[4 * n - 2], list[4 * n - 1], list[4 * n] = 'o' .. n, 'x', 'o' .. n, 'y'\nend\n\
             return rare.emits.push(list)",
            objects
        );
        assert_eq!(markers, objects);
        let names: Vec<_> = (1..=objects).map(|n| format!("o{n}")).collect();
        assert_eq!(console.list("objects_with_events").await, names);
        for name in [&names[0], &names[objects - 1]] {
            assert_eq!(console.list(&format!("{name}events")).await, ["x", "y"]);
        }
    }
}

/// Scheduled events have the given time, or one after now. A schedule that is there keeps its time,
/// or its event too, according to the mode. A schedule for soon wakes a worker.
#[tokio::test]
async fn emits_that_are_scheduled() {
    for (mode, is_there, sign, ms, event, due, wakes) in [
        (
            "r",
            false,
            "@",
            99_999_999_999_999_u64,
            "new",
            Some(99_999_999_999_999_u64),
            false,
        ),
        (
            "r",
            true,
            "@",
            99_999_999_999_999,
            "new",
            Some(99_999_999_999_999),
            false,
        ),
        ("r", true, "@", 7, "new", Some(7), true),
        ("t", false, "@", 7, "new", Some(7), true),
        ("t", true, "@", 7, "new", Some(5), false),
        ("f", false, "@", 7, "new", Some(7), true),
        ("f", true, "@", 7, "old", Some(5), false),
        ("r", false, "+", 30_000, "new", None, true),
        ("r", false, "+", 90_000, "new", None, false),
    ] {
        let redis = Redis::start();
        let console = redis.console().await;
        let member = "a\nk";
        if is_there {
            console
                .run::<()>(&["ZADD", "events_scheduled", "5", member])
                .await;
            console
                .run::<()>(&["HSET", "aevents_scheduled_of", "k", "old"])
                .await;
        }
        let now_ms: u64 = lua!(
            redis,
            ["ids" "time" "schedules" "emits"],
            "local later = { { object = 'a', key = 'k', event = 'new', mode = ARGV[1], sign = ARGV[2], ms = ARGV[3] + 0 } }\n\
             local wrong = rare.emits.wrong_key({ later = later })\nrare.emits.push({ later = later })\n\
             return wrong or rare.time.now_ms()",
            mode,
            sign,
            ms
        );
        let case = format!("{mode} {is_there} {sign}{ms}");
        assert_eq!(
            console
                .run::<String>(&["HGET", "aevents_scheduled_of", "k"])
                .await,
            event,
            "{case}"
        );
        let score: u64 = console
            .run::<f64>(&["ZSCORE", "events_scheduled", member])
            .await as u64;
        assert_eq!(score, due.unwrap_or(now_ms + ms), "{case}");
        assert_eq!(
            console
                .run::<bool>(&["EXISTS", "events_scheduled_wake"])
                .await,
            wakes,
            "{case}"
        );
    }
}

#[tokio::test]
async fn a_limit() {
    let redis = Redis::start();
    let control = crate::support::control(&redis.connect().await, redis.keys());
    let selector = "work:*".parse().expect("a selector");
    // Emitters read all limits. So a limit has only the first 200 bytes of each text.
    for (who, why, kept, most) in [
        ("ada \"b\"", "why\n\u{1}/\u{e9}".to_owned(), 12, 7),
        ("ada", "b".repeat(200), 200, 1_000_000_000_000_001),
        ("ada", "b".repeat(201), 200, u64::MAX),
    ] {
        let (by, queued_max) = (
            seriatim::control::By { who, why: &why },
            std::num::NonZeroU64::new(most),
        );
        control
            .set_limit(by, &selector, queued_max, None)
            .await
            .expect("set");
        let limits = control.limits().await.expect("read");
        let [limit] = &limits[..] else {
            panic!("{limits:?}")
        };
        assert_eq!(
            (
                limit.queued_max,
                limit.markers_max,
                limit.set_ms > 1_700_000_000_000
            ),
            (Some(most), None, true)
        );
        assert_eq!(
            (
                limit.selector.as_str(),
                limit.actor.as_str(),
                limit.reason.as_str()
            ),
            ("work:*", who, why.get(..kept).unwrap_or(&why))
        );
    }
}

#[tokio::test]
async fn a_share() {
    let redis = Redis::start();
    let control = crate::support::control(&redis.connect().await, redis.keys());
    let selector = "work:*".parse().expect("a selector");
    let mut conn = redis.connect().await;
    let mut get = redis::cmd("HGET");
    get.arg(redis.keys().event_shares()).arg("work:*");
    // A call reads all shares. So a share has only the first 200 bytes of each text.
    for (bytes, kept) in [(7, 7), (200, 200), (201, 200)] {
        let (who, why) = (
            format!("a {}", "a".repeat(bytes - 2)),
            format!("b {}", "b".repeat(bytes - 2)),
        );
        let by = seriatim::control::By {
            who: &who,
            why: &why,
        };
        let share = seriatim::control::Share::new()
            .weight(7)
            .priority(Priority::Low);
        control.set_share(by, &selector, share).await.expect("set");
        let value: Vec<u8> = get.query_async(&mut conn).await.expect("a value");
        let share = ShareValue::read(&value).expect("a share");
        assert_eq!(
            (
                share.weight,
                share.priority,
                share.set_ms > 1_700_000_000_000
            ),
            (Some(7), Some(Priority::Low), true)
        );
        assert_eq!(
            (share.who, share.why),
            (
                who.as_bytes()[..kept].to_vec(),
                why.as_bytes()[..kept].to_vec()
            )
        );
    }
    for text in [
        "5 high - - - 1700 0 ",
        "- - 10 2.5 4 1 3 adawhy",
        "100 normal - - - 7 1 a\nb",
        "1 low 3 0.125 1 7 0 ",
        "x urgent - y z 7 0 ",
    ] {
        // A part that is not set is -1, and a priority that is not set is 9.
        let parts: Vec<String> = lua!(
            redis,
            ["shares"],
            "local s = rare.shares.parse(ARGV[1])\nlocal text = function(part) return string.format('%.17g', part or -1) end\n\
             return { text(s.weight), text(s.class or 9), text(s.in_flight), text(s.rate), text(s.burst), text(s.set_ms) }",
            text
        );
        let share = ShareValue::read(text.as_bytes()).expect("a share");
        let number = |number: Option<u64>| {
            number.map_or_else(|| "-1".to_owned(), |number| number.to_string())
        };
        let class = share.priority.map_or("9", |priority| match priority {
            Priority::High => "-1",
            Priority::Normal => "0",
            Priority::Low => "1",
        });
        let rate = share
            .rate
            .map_or_else(|| "-1".to_owned(), |rate| rate.to_string());
        let (weight, in_flight, burst) = (
            number(share.weight),
            number(share.in_flight),
            number(share.burst),
        );
        assert_eq!(
            parts,
            [
                weight,
                class.to_owned(),
                in_flight,
                rate,
                burst,
                share.set_ms.to_string()
            ],
            "{text}"
        );
    }
    for text in [
        "",
        "5 high - - - 1700 3",
        "5 high - - - x 0 ",
        "5  - - - - 1700 0 ",
        "5 high - - 1700 0 ",
        " 5 high - - - 1700 0 ",
    ] {
        let read: bool = lua!(
            redis,
            ["shares"],
            "return rare.shares.parse(ARGV[1]) and 1 or 0",
            text
        );
        assert!(
            !read && ShareValue::read(text.as_bytes()).is_none(),
            "{text:?}"
        );
    }
}

/// Each colon ends a part, also at the beginning of a name, and after another colon.
#[tokio::test]
async fn the_prefixes_of_a_name() {
    let redis = Redis::start();
    for (name, most, expected) in [
        ("a", 8, &["a"][..]),
        ("a:b:c", 2, &["a", "a:b"]),
        ("a:b:c", 3, &["a", "a:b", "a:b:c"]),
        (":a::b:", 8, &["", ":a", ":a:", ":a::b", ":a::b:"]),
    ] {
        let prefixes: Vec<String> = lua!(
            redis,
            ["shares"],
            "return rare.shares.prefixes_of(ARGV[1], tonumber(ARGV[2]))",
            name,
            most
        );
        assert_eq!(prefixes, expected, "{name} {most}");
    }
    for (selector, prefix, parts) in [
        ("a:*", "a", 1),
        (":a:*", ":a", 2),
        ("a::*", "a:", 2),
        ("a:b:c:d:e:f:g:h:*", "a:b:c:d:e:f:g:h", 8),
    ] {
        let found: (String, u64) = lua!(
            redis,
            ["shares"],
            "return { rare.shares.prefix_of(ARGV[1]) }",
            selector
        );
        assert_eq!(found, (prefix.to_owned(), parts), "{selector}");
    }
    for selector in ["*", ":*", "a", "a:", "a*", "a:b:c:d:e:f:g:h:i:*"] {
        let has: bool = lua!(
            redis,
            ["shares"],
            "return rare.shares.prefix_of(ARGV[1]) and 1 or 0",
            selector
        );
        assert!(!has, "{selector}");
    }
}

/// A new group begins one claim behind the first group of its priority. If all groups there wait
/// for a limit, the first of these counts. Groups of other priorities never count.
#[tokio::test]
async fn the_pass_of_a_new_group() {
    let redis = Redis::own(&[]);
    let (class, parked) = (1_099_511_627_776.0, 4_398_046_511_104.0);
    for (groups, high, normal, low) in [
        (&[][..], -class, 0.0, class),
        (&[5.5, 8.0], -class, 6.5, class),
        (
            &[-class + 7.5, parked + 5.0, parked + 9.0],
            -class + 8.5,
            6.0,
            class,
        ),
        (&[3.0, parked + 1.0], -class, 4.0, class),
        (&[parked - class + 2.0], -class + 3.0, 0.0, class),
        (&[-class, 0.0, class], -class + 1.0, 1.0, class + 1.0),
        (
            &[parked - class, parked, parked + class],
            -class + 1.0,
            1.0,
            class + 1.0,
        ),
        (&[class], -class, 0.0, class + 1.0),
        (&[parked + class], -class, 0.0, class + 1.0),
    ] {
        let scores: Vec<String> = groups.iter().map(|score: &f64| score.to_string()).collect();
        let passes: Vec<String> = lua!(
            redis,
            ["shares"],
            "redis_call('DEL', 'event_groups')\n\
             for score in string.gmatch(ARGV[1], '%S+') do redis_call('ZADD', 'event_groups', score, score) end\n\
             return { rare.shares.first_pass(-1), rare.shares.first_pass(0), rare.shares.first_pass(1) }",
            scores.join(" ")
        );
        assert_eq!(
            passes,
            [high, normal, low].map(|pass: f64| pass.to_string()),
            "{groups:?}"
        );
    }
}

/// The events of a share are counted for the period of 10 s in which they are taken. The count of a
/// period stays in the next one, and ends after that.
#[tokio::test]
async fn the_events_that_a_share_has_taken() {
    let redis = Redis::start();
    let text_after = async |text: &str, now_ms: u64| -> String {
        lua!(
            redis,
            ["shares"],
            "return rare.shares.used_text(rare.shares.used_of(ARGV[1]), 2, nil, tonumber(ARGV[2]))",
            text,
            now_ms
        )
    };
    for (now_ms, expected) in [
        (79_999, "11 8 7 8 5"),
        (80_000, "11 8 8 2 6"),
        (89_999, "11 8 8 2 6"),
        (90_000, "11 8 9 2 0"),
        (69_999, "11 8 6 2 0"),
    ] {
        assert_eq!(
            text_after("9 8 7 6 5", now_ms).await,
            expected,
            "at {now_ms}"
        );
        let used = ShareUsed::read(expected.as_bytes());
        assert_eq!(
            (used.period, used.this >= 2),
            (now_ms / 10_000, true),
            "at {now_ms}"
        );
    }
    // Without a valid value, all numbers are 0. Period 0 shows the number for the period before.
    for text in ["", "9 8 7 6", "9 8 7 6 5 4", "9 8 7 6 x"] {
        assert_eq!(text_after(text, 5).await, "2 0 0 2 0", "{text:?}");
        assert_eq!(
            ShareUsed::read(text.as_bytes()),
            ShareUsed::default(),
            "{text:?}"
        );
    }
}

#[tokio::test]
async fn a_cron_job_and_its_last_run() {
    let redis = Redis::start();
    let read = async |value: &str| -> Option<String> {
        lua!(redis, ["ids" "cron"], "local job = rare.cron.parse(ARGV[1])\nreturn job and rare.cron.text(job)", value)
    };
    let mut job = jobs::job("a-1 1", "o \"1\"\u{e9}", "[1]\n\"\u{e9}\"");
    for since_ms in [0, 1_767_225_600_001, 9_007_199_254_740_991] {
        job.since_ms = since_ms;
        let text = jobs::text(&job);
        assert_eq!(read(&text).await.as_ref(), Some(&text));
        assert_eq!(CronValue::read(text.as_bytes()).as_ref(), Some(&job));
    }
    let text = jobs::value("a 0", "o:1", "1");
    let json = text.split('\n').next().expect("JSON");
    for text in [
        "",
        "odd",
        "{}\n1",
        "[]\n1",
        "5\n1",
        json,
        &json[1..],
        &text.replace(":false", ":null"),
        &text.replace(r#""a""#, "1"),
        &text.replace(r#""o:1""#, "null"),
        &text.replace(":5", ":-5"),
        &text.replace(":5", ":5.5"),
        &text.replace(":5", ":99999999999999999999"),
        &text.replace(":5", r#":"5""#),
    ] {
        assert_eq!(
            (read(text).await, CronValue::read(text.as_bytes())),
            (None, None),
            "{text:?}"
        );
    }
    for (text, handled_ms, fired_ms) in [("7 5", 7, 5), ("7", 0, 0), ("", 0, 0)] {
        let read: (u64, u64) = lua!(
            redis,
            ["cron"],
            "return { rare.cron.last_of(ARGV[1]) }",
            text
        );
        assert_eq!(
            (read, CronLast::read(text)),
            (
                (handled_ms, fired_ms),
                CronLast {
                    handled_ms,
                    fired_ms
                }
            )
        );
    }
}

/// A cut text ends before a letter of UTF-8 that would be split. If it is not UTF-8, it ends at
/// most 4 bytes earlier than asked.
#[tokio::test]
async fn the_beginning_of_a_text() {
    let redis = Redis::start();
    let (two, four, broken) = ("\u{e4}".repeat(10), "\u{1f600}".repeat(10), [0x80; 20]);
    for (text, bytes_max, length) in [
        (&b"0123456789"[..], 10, 10),
        (b"0123456789", 9, 9),
        (two.as_bytes(), 8, 8),
        (two.as_bytes(), 9, 8),
        (four.as_bytes(), 12, 12),
        (four.as_bytes(), 13, 12),
        (four.as_bytes(), 15, 12),
        (&broken, 19, 15),
        (&broken, 4, 0),
    ] {
        let found: Vec<u8> = lua!(
            redis,
            ["text"],
            "return rare.text.beginning(ARGV[1], tonumber(ARGV[2]))",
            text,
            bytes_max
        );
        assert_eq!(found, &text[..length], "{bytes_max}");
    }
}
