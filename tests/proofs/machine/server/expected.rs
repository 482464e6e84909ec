//! The keys and values that Redis must have, made from the state of the reference.

use std::collections::BTreeMap;

use super::super::operator::{WHO, WHY};
use super::super::reference::{Dead, FAR, Name, OPERATOR, Reference, newest_first};
use super::super::rules;
use super::super::schedules::{INBOX, PENDING, member};
use super::super::shares;
use super::{Dump, LONG_AGO};

/// Returns the keys of Redis for this state of the reference, named as in `docs/protocol.md`.
pub(super) fn wanted(state: &Reference, prefix: &str) -> Dump {
    let mut dump = Dump::new();
    let text = |text: String| text.into_bytes();
    let mut put = |name: &[u8], suffix: &str, kind: &str, value: Vec<Vec<u8>>| {
        if !value.is_empty() {
            dump.insert(
                [prefix.as_bytes(), name, suffix.as_bytes()].concat(),
                (kind.to_owned(), value),
            );
        }
    };
    for (name, object) in &state.objects {
        for (suffix, kind, value) in object.keys() {
            put(name, suffix, kind, value);
        }
    }
    for (w, worker) in &state.workers {
        let name = [b"event.worker:", w.as_bytes()].concat();
        put(
            &name,
            ":object",
            "list",
            worker.objects.iter().map(|name| name.to_vec()).collect(),
        );
        put(&name, ":event", "list", newest_first(&worker.batch));
        let mut names = worker.objects.iter().rev();
        let owned = names.find(|name| state.owner(name).as_ref() == Some(w));
        let tag = worker.tag.iter().map(|tag| match owned {
            Some(object) => [tag.as_bytes(), b"\n", object].concat(),
            None => tag.clone().into_bytes(),
        });
        put(&name, ":event.id", "string", tag.collect());
    }
    for (name, lease) in &state.leases {
        put(
            format!("event.worker:{name}").as_bytes(),
            ":lease",
            "string",
            vec![text(lease.text())],
        );
    }
    let score = |due: i64| {
        if due == OPERATOR as i64 {
            "inf".to_owned()
        } else {
            due.to_string()
        }
    };
    let due = state
        .due
        .iter()
        .flat_map(|(name, due)| [name.to_vec(), text(score(*due))])
        .collect();
    let mut registry: Vec<_> = state.registry.iter().collect();
    registry.sort_by_key(|(name, _)| *name);
    let registry = registry.into_iter().flat_map(|(name, last)| {
        let at = last.at.map_or(LONG_AGO, |step| FAR + step);
        [
            text((*name).to_owned()),
            text(format!("{} {} {at}", last.slots, last.token)),
        ]
    });
    let letter = |dead: &Dead| {
        let fields: [(&str, Vec<u8>); 6] = [
            ("id", text(dead.id.to_string())),
            ("prev", text(dead.prev.clone())),
            ("object", dead.object.to_vec()),
            ("event", dead.event.to_vec()),
            ("error", dead.error.to_vec()),
            ("attempts", text(dead.attempts.to_string())),
        ];
        fields
            .into_iter()
            .flat_map(|(field, value)| [text(field.to_owned()), value])
            .collect::<Vec<_>>()
    };
    let dead = state.dead.iter().flat_map(letter);
    let log = state.log.iter().flat_map(|row| {
        let words = |words: [&str; 2]| words.map(|word| text(word.to_owned()));
        let taken = row
            .taken
            .then(|| words(["taken", "then"]))
            .into_iter()
            .flatten();
        let results = row
            .results
            .iter()
            .flat_map(move |results| words(["results", results]));
        words(["status", row.status])
            .into_iter()
            .chain(letter(&row.event))
            .chain(taken)
            .chain(results)
    });
    for (member, end) in &state.ends {
        let Some(end) = end else {
            put(
                member,
                ":event.end",
                "string",
                vec![text(PENDING.to_owned())],
            );
            continue;
        };
        let error = (!end.error.is_empty()).then(|| {
            // Lua's encoder also escapes slashes.
            let error = serde_json::to_string(&String::from_utf8_lossy(&end.error));
            let error = error.expect("a text").replace('/', "\\/");
            format!(",\"error\":{error}")
        });
        let results = end.results.as_ref();
        let results = results.map(|results| format!(",\"results\":{results}"));
        let value = format!(
            "{{\"status\":\"{}\",\"id\":{},\"attempts\":{}{}{}}}",
            end.status,
            end.id,
            end.attempts,
            error.unwrap_or_default(),
            results.unwrap_or_default()
        );
        put(member, ":event.end", "string", vec![text(value)]);
    }
    let inbox = state.inbox.iter().map(|member| {
        let parts = [prefix.as_bytes(), member, b":event.end"];
        parts.concat()
    });
    let name = format!("\n{INBOX}");
    put(name.as_bytes(), ":event.ends", "list", inbox.collect());
    let meta = state.meta.iter().flat_map(|id| {
        let mut fields = if state.log_on {
            vec!["event.log", "on"]
        } else {
            vec![]
        };
        fields.extend(
            state
                .log_was_on
                .then_some(["event.log.keep", "100000"])
                .into_iter()
                .flatten(),
        );
        fields.extend(["partitions", "1"]);
        fields.extend(id.iter().flat_map(|id| ["replication.id", id]));
        fields.extend(["schema", "1"]);
        fields
            .into_iter()
            .map(|field| text(field.to_owned()))
            .collect::<Vec<_>>()
    });
    let actions = state.actions.iter().flat_map(|done| {
        let mut fields: Vec<(&str, Vec<u8>)> = vec![
            ("action", text(done.action.to_owned())),
            ("who", text(WHO.to_owned())),
            ("why", text(WHY.to_owned())),
            ("object", done.object.to_vec()),
            ("id", text(done.id.clone())),
        ];
        fields.extend(
            done.dead
                .map(|serial| ("dead_id", text(serial.to_string()))),
        );
        fields.extend(done.error.as_ref().map(|error| ("error", error.to_vec())));
        fields.extend(done.event.as_ref().map(|event| ("event", event.to_vec())));
        fields.extend(done.key.map(|key| ("key", text(key.to_owned()))));
        fields
            .into_iter()
            .flat_map(|(field, value)| [text(field.to_owned()), value])
            .collect::<Vec<_>>()
    });
    put(b"operator.actions", "", "stream", actions.collect());
    put(
        b"objects.with.events",
        "",
        "list",
        state.markers.iter().map(|name| name.to_vec()).collect(),
    );
    let mut marks: Vec<[Vec<u8>; 2]> = state
        .marks
        .iter()
        .map(|ms| [text(ms.to_string()), text(ms.to_string())])
        .collect();
    marks.extend(
        state
            .met
            .map(|ms| [text("met".to_owned()), text(ms.to_string())]),
    );
    put(b"event.marks", "", "zset", marks.concat());
    put(b"objects.held", "", "zset", due);
    let passes = state
        .groups
        .iter()
        .flat_map(|(group, pass)| [group.to_vec(), text(pass.to_string())]);
    put(b"event.groups", "", "zset", passes.collect());
    for (group, names) in &state.grouped {
        put(
            &[b"event.group:", &group[..]].concat(),
            ":waiting",
            "list",
            names.iter().map(|name| name.to_vec()).collect(),
        );
    }
    let waiting: usize = state.grouped.values().map(Vec::len).sum();
    put(
        b"event.groups.waiting",
        "",
        "string",
        (waiting > 0)
            .then(|| text(waiting.to_string()))
            .into_iter()
            .collect(),
    );
    let round = state.round.map(|names| text(names.to_string()));
    put(
        b"event.groups.turns",
        "",
        "string",
        round.into_iter().collect(),
    );
    let selector = |prefix: &Name| shares::selector(prefix).into_bytes();
    let of_share =
        |(prefix, share): (&Name, &shares::Share)| [selector(prefix), text(shares::value(share))];
    let mut all_shares: Vec<_> = state.shares.iter().map(of_share).collect();
    all_shares.sort();
    put(b"event.shares", "", "hash", all_shares.concat());
    let mode = if state.is_limited() {
        2
    } else {
        u8::from(!state.shares.is_empty())
    };
    let summary = state
        .counting
        .then(|| text(format!("{mode} {} 0", state.parts())));
    put(
        b"event.shares.summary",
        "",
        "string",
        summary.into_iter().collect(),
    );
    let mut taken: Vec<_> = state
        .taken
        .iter()
        .map(|(prefix, events)| [selector(prefix), text(events.to_string())])
        .collect();
    taken.sort();
    put(b"event.shares.used", "", "hash", taken.concat());
    let score = |is_due: bool| text(if is_due { "0" } else { "later" }.to_owned());
    put(
        b"event.groups.blocked",
        "",
        "zset",
        state
            .blocked
            .iter()
            .flat_map(|(member, is_due)| [member.to_vec(), score(*is_due)])
            .collect(),
    );
    if state.counting {
        let mut in_hand: Vec<_> = state
            .objects
            .keys()
            .filter(|name| state.is_in_hand(name))
            .map(|name| [name, &b":"[..]].concat())
            .collect();
        in_hand.sort();
        put(
            b"objects.in.hand",
            "",
            "zset",
            in_hand
                .into_iter()
                .flat_map(|member| [member, text("0".to_owned())])
                .collect(),
        );
    }
    put(
        b"objects.paused",
        "",
        "zset",
        state
            .paused
            .iter()
            .flat_map(|name| [name.to_vec(), text("0".to_owned())])
            .collect(),
    );
    let mut rules: Vec<[Vec<u8>; 2]> = state
        .rules
        .iter()
        .map(|(field, rule)| [field.to_vec(), rules::value(rule).to_vec()])
        .collect();
    if !rules.is_empty() {
        rules.push([
            text("next".to_owned()),
            text(
                state
                    .next_rule()
                    .map_or("never".to_owned(), |at| at.to_string()),
            ),
        ]);
    }
    rules.sort();
    put(b"event.rules", "", "hash", rules.concat());
    let mut schedules: Vec<_> = state
        .schedules
        .iter()
        .map(|((object, key), schedule)| [member(object, key).to_vec(), text(schedule.score())])
        .collect();
    schedules.sort();
    put(b"events.scheduled", "", "zset", schedules.concat());
    let mut of_objects: BTreeMap<&Name, Vec<Vec<u8>>> = BTreeMap::new();
    for ((object, key), schedule) in &state.schedules {
        of_objects
            .entry(object)
            .or_default()
            .extend([text((*key).to_owned()), schedule.event.to_vec()]);
    }
    for (object, fields) in of_objects {
        let mut pairs: Vec<_> = fields.chunks(2).map(<[Vec<u8>]>::to_vec).collect();
        pairs.sort();
        put(object, ":events.scheduled", "hash", pairs.concat());
    }
    let promoted = (state.promoted > 0).then(|| text(state.promoted.to_string()));
    put(
        b"events.scheduled.lateness",
        "",
        "hash",
        promoted.into_iter().collect(),
    );
    put(
        b"next.event.id",
        "",
        "string",
        state
            .counter
            .iter()
            .map(|counter| text(counter.to_string()))
            .collect(),
    );
    put(b"event.workers", "", "hash", registry.collect());
    for (key, names) in [
        ("event.workers.watched", &state.watched),
        ("event.workers.departed", &state.departed),
    ] {
        put(
            key.as_bytes(),
            "",
            "zset",
            names.iter().map(|name| text((*name).to_owned())).collect(),
        );
    }
    put(b"events.dead", "", "stream", dead.collect());
    put(b"event.log", "", "stream", log.collect());
    put(b"seriatim.meta", "", "hash", meta.collect());
    dump
}

pub(super) fn differences(got: &Dump, wanted: &Dump) -> Result<(), String> {
    if got == wanted {
        return Ok(());
    }
    let shown = |dump: &Dump, key: &Vec<u8>| match dump.get(key) {
        Some((kind, value)) => format!(
            "{kind} {:?}",
            value
                .iter()
                .map(|v| v.escape_ascii().to_string())
                .collect::<Vec<_>>()
        ),
        None => "nothing".to_owned(),
    };
    let mut keys: Vec<_> = got
        .keys()
        .chain(wanted.keys())
        .filter(|key| got.get(*key) != wanted.get(*key))
        .collect();
    keys.sort();
    keys.dedup();
    let lines = keys.iter().map(|key| {
        format!(
            "{}: Redis has\n    {}\nexpected\n    {}",
            key.escape_ascii(),
            shown(got, key),
            shown(wanted, key)
        )
    });
    Err(lines.collect::<Vec<_>>().join("\n"))
}
