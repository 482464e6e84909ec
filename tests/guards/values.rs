//! Values that Redis stores as one text: Rust and Lua parse and format them alike.

use std::num::NonZeroU64;
use std::path::Path;

use redis::{FromRedisValue, ToRedisArgs};
use seriatim::control::{By, Share};
use seriatim::wire::Tag;
use seriatim::wire::values::{
    CronLast, CronValue, Due, EmitEntry, Emits, HeldId, Holder, Later, LaterMode, Lease, Priority,
    Registration, RuleValue, ShareUsed, ShareValue,
};

use crate::scene::{LEASE, Scene};
use crate::support::{Redis, jobs};

/// The Lua code that the modules need before them.
const HEAD: &str = "
    local P, redis_call, rare = '', redis.call, {}
    local K = setmetatable({}, { __index = function(_, name) return name end })
";

/// A Redis that runs Lua with the modules of `lua/values`.
struct Lua(Redis);

impl Lua {
    /// Starts the Redis. It is shared with no other test, because the keys have no prefix.
    fn new() -> Self {
        Self(Redis::own(&[]))
    }

    /// Runs Lua with the modules of these names.
    async fn run<T: FromRedisValue>(&self, modules: &str, body: &str, args: impl ToRedisArgs) -> T {
        let modules = modules.split(' ').map(module).collect::<String>();
        let script = redis::Script::new(&[HEAD, &modules, body].concat());
        let mut conn = self.0.connect().await;
        let found = script.arg(args).invoke_async(&mut conn).await;
        found.expect("the Lua runs")
    }

    /// Returns whether Lua has a value for this text.
    async fn has(&self, modules: &str, expression: &str, text: &[u8]) -> bool {
        let body = format!("return {expression} and 1 or 0");
        self.run(modules, &body, text).await
    }
}

/// Returns the text of a module. As for the scripts themselves, `SERIATIM_LUA_DIR` may name a
/// directory with another text.
fn module(name: &str) -> String {
    let path = format!("values/{name}.lua");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
    let dir = std::env::var_os("SERIATIM_LUA_DIR").unwrap_or_else(|| own.into());
    let text =
        [Path::new(&dir), Path::new(own)].map(|dir| std::fs::read_to_string(dir.join(&path)));
    let text = text.into_iter().find_map(Result::ok).expect("a module");
    let name = match name {
        "ids" => "local ids".to_owned(),
        name => format!("rare.{name}"),
    };
    format!("{name} = (function()\n{text}end)()\n")
}

fn tag([first, handouts, attempts, crashes]: [u64; 4]) -> Tag {
    let count = |count: u64| u32::try_from(count).expect("a count");
    Tag {
        first,
        handouts: count(handouts),
        attempts: count(attempts),
        crashes: count(crashes),
        is_keyed: false,
    }
}

#[tokio::test]
async fn a_tag() {
    let lua = Lua::new();
    for text in [
        "7",
        "7 1",
        "7 0 1",
        "7 0 2",
        "7 0 0 1",
        "7 1 0 3",
        "9007199254740991 1 2 3",
        "7 4294967295 4294967295 4294967295",
    ] {
        let read = lua.has("ids tag", "rare.tag.first_of(ARGV[1])", text.as_bytes());
        assert!(read.await, "{text}");
        let body = "local a, b, c, d = rare.tag.numbers(ARGV[1])\nreturn { { a, b, c, d }, rare.tag.text(a, b, c, d) }";
        let (numbers, again): ([u64; 4], String) = lua.run("tag", body, text).await;
        let tag = tag(numbers);
        assert_eq!(text.parse(), Ok(tag), "{text}");
        assert_eq!((again.as_str(), &*tag.to_string()), (text, text));
    }
    let body = "local tag = rare.tag.keyed(ARGV[1])\nreturn { tag, rare.tag.first_of(tag), rare.tag.is_odd(tag) and 1 or 0 }";
    let (keyed, first, is_odd): (String, u64, bool) = lua.run("ids tag", body, "7").await;
    let tag = Tag {
        first,
        is_keyed: true,
        ..Tag::default()
    };
    assert_eq!((keyed.parse(), is_odd), (Ok(tag), true));
    assert_eq!(tag.to_string(), keyed);
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
        let read = lua.has("ids tag", "rare.tag.first_of(ARGV[1])", text.as_bytes());
        assert!(!read.await, "{text}");
    }
}

#[tokio::test]
async fn a_held_id() {
    let lua = Lua::new();
    for text in ["7 0 0 0 stop", "7 1 2 3 retry: down at 5", "7 0 0 0 "] {
        let body = "
            local a, b, c, d, at = rare.tag.held_numbers(ARGV[1])
            local why = string.sub(ARGV[1], at)
            return { { a, b, c, d }, why, rare.tag.held_text(a, b, c, d, why) }
        ";
        let found: ([u64; 4], String, String) = lua.run("tag", body, text).await;
        let (numbers, reason, again) = found;
        let held_id = HeldId {
            tag: Some(tag(numbers)),
            reason: reason.into(),
        };
        assert_eq!(
            (held_id.to_string(), text.parse()),
            (again, Ok(held_id)),
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
        let (body, text) = (
            "return rare.tag.held_error(ARGV[1])",
            format!("7 1 2 3 {reason}"),
        );
        let found: String = lua.run("tag", body, text).await;
        assert_eq!(found, error, "{reason}");
    }
    // An object that is held without a batch.
    let body = "return rare.tag.held_text('0', 0, 0, 0, ARGV[1])";
    let text: String = lua.run("tag", body, "quarantine: x").await;
    assert_eq!(text.parse::<HeldId>().map(|held_id| held_id.tag), Ok(None));
}

#[tokio::test]
async fn a_lease() {
    let scene = Scene::new().await;
    let text = scene.text(&scene.keys.worker_lease("w")).await;
    let text = text.expect("a lease");
    let lease: Lease = text.parse().expect("a lease");
    assert_eq!((lease.token.as_str(), lease.to_string()), ("token-1", text));
    let lease = Lease {
        token: "t".to_owned(),
        holder: Holder::current(),
        length: Some(LEASE),
    };
    let (body, lease) = ("return rare.lease.length_ms(ARGV[1])", lease.to_string());
    let length_ms: u64 = Lua::new().run("ids lease", body, lease).await;
    assert_eq!(u128::from(length_ms), LEASE.as_millis());
}

#[tokio::test]
async fn a_registration() {
    let registration = Registration {
        slots: 4,
        token: "token-1".to_owned(),
        last_seen_ms: 1_767_225_600_000,
    };
    let body = "
        redis_call('HSET', 'event_workers', 'w', ARGV[1])
        local slots, token, at_ms = rare.registry.find('w')
        rare.registry.register('w', slots, token, at_ms)
        return { slots, token, at_ms, redis_call('HGET', 'event_workers', 'w') }
    ";
    let lua = Lua::new();
    let found = lua.run("registry", body, registration.to_string());
    let (slots, token, last_seen_ms, text): (u32, String, u64, String) = found.await;
    let found = Registration {
        slots,
        token,
        last_seen_ms,
    };
    assert_eq!(found, registration);
    assert_eq!(text.parse(), Ok(registration));
}

#[tokio::test]
async fn a_rule() {
    let lua = Lua::new();
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
        let body = "
            local r = rare.rules.parse(ARGV[1])
            return { r.set, r.ends, r.lifted and 1 or 0, { r.who, r.cursor, r.why, rare.rules.text(r) } }
        ";
        let found: (u64, u64, bool, [Vec<u8>; 4]) = lua.run("rules", body, rule.text()).await;
        let (set_ms, end_ms, lifted, [who, cursor, why, text]) = found;
        let found = RuleValue {
            set_ms,
            end_ms: (end_ms > 0).then_some(end_ms),
            lifted,
            who,
            cursor,
            why,
        };
        assert_eq!(found, rule);
        assert_eq!(RuleValue::read(&text), Some(rule));
    }
}

#[tokio::test]
async fn emits() {
    let lua = Lua::new();
    let mut emits = Emits::default();
    emits.push(b"a 1", b"{} ");
    let later = |key, mode, due| Later { key, mode, due };
    let [keep_time, keep_first] = [LaterMode::KeepTime, LaterMode::KeepFirst];
    emits.push_later(b"b", b"[1]", later(b"k 1", keep_time, Due::After(5)));
    emits.push("\u{e9}".as_bytes(), b"7");
    emits.push_later(b"c 2", b"", later(b"", keep_first, Due::At(17)));
    emits.push_later(b"d", b"1", later(b"x", LaterMode::Replace, Due::At(0)));
    emits.push_cancel(b"e 1", b"k 2");
    let value = emits.value(3);
    let body = "
        local _, list = rare.emits.parse({ 'id', '7', 'emit:h', ARGV[1] })
        local later = {}
        for i, s in ipairs(list.later) do
            later[i] = { s.object, s.event, s.key, s.mode, s.sign .. s.ms }
        end
        return { list, later }
    ";
    type Parsed = (Vec<Vec<u8>>, Vec<Vec<Vec<u8>>>);
    let (list, scheduled): Parsed = lua.run("ids emits", body, &value).await;
    let expected = Emits::read(&value).expect("emits").1;
    let now = expected.iter().filter(|entry| entry.later.is_none());
    let now = now.flat_map(|entry| [entry.object.to_vec(), entry.event.to_vec()]);
    assert_eq!(list, now.collect::<Vec<_>>());
    let parts = |entry: &EmitEntry<'_>| {
        let later = entry.later?;
        let mode = match later.mode {
            LaterMode::Replace => "r",
            LaterMode::KeepTime => "t",
            LaterMode::KeepFirst => "f",
            LaterMode::Cancel => "c",
        };
        let due = match later.due {
            Due::At(ms) => format!("@{ms}"),
            Due::After(ms) => format!("+{ms}"),
        };
        let (mode, due) = (mode.as_bytes(), due.as_bytes());
        let parts = [entry.object, entry.event, later.key, mode, due];
        Some(parts.map(<[u8]>::to_vec).to_vec())
    };
    let later: Vec<_> = expected.iter().filter_map(parts).collect();
    assert_eq!(scheduled, later);
    let cut = &value[..value.len() - 1];
    for invalid in [
        cut,
        b"3 1 5 s1 1 1 x@1 abc",
        b"3 1 5 s1 1 1 r1 abc",
        b"3 1 5 s1 1 9 r@1 abc",
        b"3 1 5 s1 1 r@1 ab",
    ] {
        let parse = "select(2, rare.emits.parse({ 'id', '7', 'emit:h', ARGV[1] }))";
        let is_valid = lua.has("ids emits", parse, invalid).await;
        let text = String::from_utf8_lossy(invalid);
        assert!(!is_valid && Emits::read(invalid).is_none(), "{text}");
    }
}

/// Emits belong to the event with the stored id. Without a valid id they cannot be read. The
/// handlers come in the order of their places.
#[tokio::test]
async fn emits_of_an_event() {
    let lua = Lua::new();
    for (hash, expected) in [
        (
            "id|1|emit:a|2 1 2 1 1 ax|emit:b|1 2 4 1 1 by1 1 cz",
            "1: b y c z a x",
        ),
        ("emit:b|1 1 2 1 1 ax|id|7|emit:a|1 1 2 1 1 by", "7: b y a x"),
        ("result:a|\"a\":1|id|7", "7: "),
        ("id|0|emit:a|1 1 2 1 1 ax", "0"),
        ("id|x|emit:a|1 1 2 1 1 ax", "0"),
        ("emit:a|1 1 2 1 1 ax", "0"),
        ("id|7|emit:a|1 1 2 1 1 axx", "7"),
        ("id|7|emit:a|wrong", "7"),
        ("id|7|emit:a|1 1 x", "7"),
    ] {
        let body = "
            local id, list = rare.emits.parse(ARGV)
            return id .. (list and ': ' .. table.concat(list, ' ') or '')
        ";
        let fields: Vec<&str> = hash.split('|').collect();
        let found: String = lua.run("ids emits", body, fields).await;
        assert_eq!(found, expected, "{hash}");
    }
    for (hash, expected) in [
        (["result:a", "\"a\":1"], Some("{\"a\":1}")),
        (["id", "7"], None),
    ] {
        let body = "return rare.emits.results_of(ARGV)";
        let found: Option<String> = lua.run("ids emits", body, &hash).await;
        assert_eq!(found.as_deref(), expected);
    }
}

/// Each emitted event is pushed to the queue of its object, and each object has one marker, in the
/// order of the emits.
#[tokio::test]
async fn emits_that_are_pushed() {
    for objects in [1, 999, 1000, 1001, 2001] {
        let lua = Lua::new();
        let body = "
            local list = {}
            for n = 1, ARGV[1] do
                for _, event in ipairs({ 'x', 'y' }) do
                    list[#list + 1], list[#list + 2] = 'o' .. n, event
                end
            end
            return rare.emits.push(list)
        ";
        let markers: usize = lua.run("ids emits", body, objects).await;
        assert_eq!(markers, objects);
        let console = lua.0.console().await;
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
    const LATE: u64 = 99_999_999_999_999;
    for (mode, is_there, sign, ms, event, due, wakes) in [
        ("r", false, "@", LATE, "new", Some(LATE), false),
        ("r", true, "@", LATE, "new", Some(LATE), false),
        ("r", true, "@", 7, "new", Some(7), true),
        ("t", false, "@", 7, "new", Some(7), true),
        ("t", true, "@", 7, "new", Some(5), false),
        ("f", false, "@", 7, "new", Some(7), true),
        ("f", true, "@", 7, "old", Some(5), false),
        ("r", false, "+", 30_000, "new", None, true),
        ("r", false, "+", 90_000, "new", None, false),
    ] {
        let (lua, case) = (Lua::new(), format!("{mode} {is_there} {sign}{ms}"));
        let body = "
            if ARGV[4] == '1' then
                redis_call('ZADD', 'events_scheduled', '5', 'a\\nk')
                redis_call('HSET', 'aevents_scheduled_of', 'k', 'old')
            end
            local later = { { object = 'a', key = 'k', event = 'new', mode = ARGV[1], sign = ARGV[2], ms = ARGV[3] + 0 } }
            local wrong = rare.emits.wrong_key({ later = later })
            rare.emits.push({ later = later })
            return { wrong or rare.time.now_ms(), redis_call('HGET', 'aevents_scheduled_of', 'k'),
                redis_call('ZSCORE', 'events_scheduled', 'a\\nk'), redis_call('EXISTS', 'events_scheduled_wake') }
        ";
        let args = (mode, sign, ms, u8::from(is_there));
        let found = lua.run("ids time schedules emits", body, args).await;
        let (now_ms, found, score, is_woken): (u64, String, f64, bool) = found;
        assert_eq!((found.as_str(), is_woken), (event, wakes), "{case}");
        assert_eq!(score as u64, due.unwrap_or(now_ms + ms), "{case}");
    }
}

#[tokio::test]
async fn a_limit() {
    let scene = Scene::bare(Redis::start()).await;
    let control = crate::support::control(&scene.conn().await, &scene.keys);
    let selector = "work:*".parse().expect("a selector");
    // Emitters read all limits. So a limit has only the first 200 bytes of each text.
    for (who, why, kept, most) in [
        ("ada \"b\"", "why\n\u{1}/\u{e9}".to_owned(), 12, 7),
        ("ada", "b".repeat(200), 200, 1_000_000_000_000_001),
        ("ada", "b".repeat(201), 200, u64::MAX),
    ] {
        let (by, queued_max) = (By { who, why: &why }, NonZeroU64::new(most));
        let set = control.set_limit(by, &selector, queued_max, None).await;
        set.expect("set");
        let limits = control.limits().await.expect("read");
        let [limit] = &limits[..] else {
            panic!("{limits:?}")
        };
        assert_eq!((limit.queued_max, limit.markers_max), (Some(most), None));
        assert!(scene.is_now(limit.set_ms), "{limit:?}");
        assert_eq!(
            (limit.selector.as_str(), limit.actor.as_str()),
            ("work:*", who)
        );
        assert_eq!(limit.reason, why.get(..kept).unwrap_or(&why));
    }
}

#[tokio::test]
async fn a_share() {
    let scene = Scene::bare(Redis::start()).await;
    let control = crate::support::control(&scene.conn().await, &scene.keys);
    let selector = "work:*".parse().expect("a selector");
    // A call reads all shares. So a share has only the first 200 bytes of each text.
    for (bytes, kept) in [(7, 7), (200, 200), (201, 200)] {
        let text = |begin: &str| format!("{begin} {}", begin.repeat(bytes - 2));
        let (who, why) = (text("a"), text("b"));
        let by = By {
            who: &who,
            why: &why,
        };
        let share = Share::new().weight(7).priority(Priority::Low);
        control.set_share(by, &selector, share).await.expect("set");
        let words = ["HGET", &scene.keys.event_shares(), "work:*"];
        let value: Vec<u8> = scene.run(&words).await;
        let share = ShareValue::read(&value).expect("a share");
        let parts = (share.weight, share.priority);
        assert_eq!(parts, (Some(7), Some(Priority::Low)));
        assert!(scene.is_now(share.set_ms), "{share:?}");
        let (who, why) = (&who.as_bytes()[..kept], &why.as_bytes()[..kept]);
        assert_eq!((&share.who[..], &share.why[..]), (who, why));
    }
    let lua = Lua::new();
    for text in [
        "5 high - - - 1700 0 ",
        "- - 10 2.5 4 1 3 adawhy",
        "100 normal - - - 7 1 a\nb",
        "1 low 3 0.125 1 7 0 ",
        "1 low 9007199254740991 9007199254740991 9007199254740991 7 0 ",
        "x urgent - y z 7 0 ",
    ] {
        // A part that is not set is -1, and a priority that is not set is 9.
        let body = "
            local s = rare.shares.parse(ARGV[1])
            local text = function(part) return string.format('%.17g', part or -1) end
            return { text(s.weight), text(s.class or 9), text(s.in_flight), text(s.rate), text(s.burst), text(s.set_ms) }
        ";
        let parts: Vec<String> = lua.run("ids shares", body, text).await;
        let share = ShareValue::read(text.as_bytes()).expect("a share");
        let number = |part: Option<u64>| part.map_or("-1".to_owned(), |part| part.to_string());
        let class = share.priority.map_or("9", |priority| match priority {
            Priority::High => "-1",
            Priority::Normal => "0",
            Priority::Low => "1",
        });
        let expected = [
            number(share.weight),
            class.to_owned(),
            number(share.in_flight),
            share.rate.map_or("-1".to_owned(), |rate| rate.to_string()),
            number(share.burst),
            share.set_ms.to_string(),
        ];
        assert_eq!(parts, expected, "{text}");
    }
    for text in [
        "",
        "5 high - - - 1700 3",
        "5 high - - - x 0 ",
        "5  - - - - 1700 0 ",
        "5 high - - 1700 0 ",
        " 5 high - - - 1700 0 ",
    ] {
        let text = text.as_bytes();
        let read = lua
            .has("ids shares", "rare.shares.parse(ARGV[1])", text)
            .await;
        assert!(!read && ShareValue::read(text).is_none(), "{text:?}");
    }
}

/// Each colon ends a part, also at the beginning of a name, and after another colon.
#[tokio::test]
async fn the_prefixes_of_a_name() {
    let lua = Lua::new();
    for (name, most, expected) in [
        ("a", 8, &["a"][..]),
        ("a:b:c", 2, &["a", "a:b"]),
        ("a:b:c", 3, &["a", "a:b", "a:b:c"]),
        (":a::b:", 8, &["", ":a", ":a:", ":a::b", ":a::b:"]),
    ] {
        let body = "return rare.shares.prefixes_of(ARGV[1], tonumber(ARGV[2]))";
        let prefixes: Vec<String> = lua.run("ids shares", body, (name, most)).await;
        assert_eq!(prefixes, expected, "{name} {most}");
    }
    for (selector, prefix, parts) in [
        ("a:*", "a", 1),
        (":a:*", ":a", 2),
        ("a::*", "a:", 2),
        ("a:b:c:d:e:f:g:h:*", "a:b:c:d:e:f:g:h", 8),
    ] {
        let body = "return { rare.shares.prefix_of(ARGV[1]) }";
        let found: (String, u64) = lua.run("ids shares", body, selector).await;
        assert_eq!(found, (prefix.to_owned(), parts), "{selector}");
    }
    for selector in ["*", ":*", "a", "a:", "a*", "a:b:c:d:e:f:g:h:i:*"] {
        let text = selector.as_bytes();
        let has = lua.has("ids shares", "rare.shares.prefix_of(ARGV[1])", text);
        assert!(!has.await, "{selector}");
    }
}

/// A new group begins one claim behind the first group of its priority. If all groups there wait
/// for a limit, the first of these counts. Groups of other priorities never count.
#[tokio::test]
async fn the_pass_of_a_new_group() {
    let lua = Lua::new();
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
        let body = "
            redis_call('DEL', 'event_groups')
            for _, score in ipairs(ARGV) do redis_call('ZADD', 'event_groups', score, score) end
            return { rare.shares.first_pass(-1), rare.shares.first_pass(0), rare.shares.first_pass(1) }
        ";
        let passes: Vec<String> = lua.run("ids shares", body, scores).await;
        let expected = [high, normal, low].map(|pass: f64| pass.to_string());
        assert_eq!(passes, expected, "{groups:?}");
    }
}

/// The events of a share are counted for the period of 10 s in which they are taken. The count of a
/// period stays in the next one, and ends after that.
#[tokio::test]
async fn the_events_that_a_share_has_taken() {
    let lua = Lua::new();
    let text_after = async |text: &str, now_ms: u64| -> String {
        let body =
            "return rare.shares.used_text(rare.shares.used_of(ARGV[1]), 2, nil, tonumber(ARGV[2]))";
        lua.run("ids shares", body, (text, now_ms)).await
    };
    for (now_ms, expected) in [
        (79_999, "11 8 7 8 5"),
        (80_000, "11 8 8 2 6"),
        (89_999, "11 8 8 2 6"),
        (90_000, "11 8 9 2 0"),
        (69_999, "11 8 6 2 0"),
    ] {
        let text = text_after("9 8 7 6 5", now_ms).await;
        assert_eq!(text, expected, "at {now_ms}");
        let used = ShareUsed::read(expected.as_bytes());
        assert_eq!(used.period, now_ms / 10_000, "at {now_ms}");
        assert!(used.this >= 2, "at {now_ms}");
    }
    // Without a valid value, all numbers are 0. Period 0 shows the number for the period before.
    for text in ["", "9 8 7 6", "9 8 7 6 5 4", "9 8 7 6 x"] {
        assert_eq!(text_after(text, 5).await, "2 0 0 2 0", "{text:?}");
        let used = ShareUsed::read(text.as_bytes());
        assert_eq!(used, ShareUsed::default(), "{text:?}");
    }
}

#[tokio::test]
async fn a_cron_job_and_its_last_run() {
    let lua = Lua::new();
    let read = async |value: &str| -> Option<String> {
        let body = "local job = rare.cron.parse(ARGV[1])\nreturn job and rare.cron.text(job)";
        lua.run("ids cron", body, value).await
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
        let found = (read(text).await, CronValue::read(text.as_bytes()));
        assert_eq!(found, (None, None), "{text:?}");
    }
    for (text, handled_ms, fired_ms) in [("7 5", 7, 5), ("7", 0, 0), ("", 0, 0)] {
        let body = "return { rare.cron.last_of(ARGV[1]) }";
        let read: (u64, u64) = lua.run("cron", body, text).await;
        let last = CronLast::read(text);
        assert_eq!(read, (handled_ms, fired_ms));
        assert_eq!((last.handled_ms, last.fired_ms), read);
    }
}

/// A cut text ends before a letter of UTF-8 that would be split. If it is not UTF-8, it ends at
/// most 4 bytes earlier than asked.
#[tokio::test]
async fn the_beginning_of_a_text() {
    let lua = Lua::new();
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
        let body = "return rare.text.beginning(ARGV[1], tonumber(ARGV[2]))";
        let found: Vec<u8> = lua.run("text", body, (text, bytes_max)).await;
        assert_eq!(found, &text[..length], "{bytes_max}");
    }
}
