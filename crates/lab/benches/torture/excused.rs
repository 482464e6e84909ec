//! The events that a lost key has changed, and the history without demands on them.
//!
//! The checker knows no lost keys. So the harness gives it a copy of the history, in which these
//! events are free:
//!
//! - The event need not come.
//! - Each id under which the event came counts as an event of its own, `EVENT@ID`, with an unknown
//!   outcome. It also counts as ended without delivery, so another event may follow the same `prev`.
//! - The other events of the emit become emits of their own, with the same outcome.
//!
//! Such an event still needs the name of its object, and an id that no other event has. It need not
//! wait for its due time, because a repair may have given it another one.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

/// The names of the events that a lost key has changed.
#[derive(Debug, Default, Clone)]
pub(crate) struct Excused {
    /// Events that stood in a deleted key. They may be lost.
    pub(crate) gone: HashSet<String>,
    /// Events whose ids or due times stood in a deleted key. They may come under a second id or
    /// later, but must come.
    pub(crate) anew: HashSet<String>,
}

impl Excused {
    fn has(&self, event: &str) -> bool {
        self.gone.contains(event) || self.anew.contains(event)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.anew.is_empty()
    }

    /// Copies the history, with these events free of demands.
    pub(crate) fn free(&self, history: &Path, copy: &Path) -> anyhow::Result<()> {
        let mut out = BufWriter::new(File::create(copy)?);
        let mut freed = Freed::default();
        for line in BufReader::new(File::open(history)?).lines() {
            let line = line?;
            let step: Value = serde_json::from_str(&line).context("a line of the history")?;
            match freed.lines(self, &step) {
                Some(lines) => lines.iter().try_for_each(|line| writeln!(out, "{line}"))?,
                None => writeln!(out, "{line}")?,
            }
        }
        Ok(out.flush()?)
    }
}

/// The state of a copy.
#[derive(Default)]
struct Freed {
    /// By emit: the other events of an emit with an excused event.
    split: HashMap<String, Vec<String>>,
    /// By excused event: the line of its emit.
    invoked: HashMap<String, Value>,
    /// Arrivals of excused events: the new name, and `prev`.
    came: HashSet<(String, u64)>,
    /// New names that have an emit.
    emitted: HashSet<String>,
}

impl Freed {
    /// Returns the lines that replace this line; `None` if it stays.
    fn lines(&mut self, excused: &Excused, step: &Value) -> Option<Vec<Value>> {
        match step["op"].as_str()? {
            "invoke" => self.invoke(excused, step),
            "ok" | "failed" | "unknown" => {
                let emit = step["emit"].as_str()?;
                let events = self.split.get(emit)?;
                Some(
                    events
                        .iter()
                        .map(|event| with(step, "emit", json!(own(emit, event))))
                        .collect(),
                )
            }
            "receive" | "dead" => self.arrival(step),
            _ => None,
        }
    }

    fn invoke(&mut self, excused: &Excused, step: &Value) -> Option<Vec<Value>> {
        let emit = step["emit"].as_str()?;
        let events: Vec<String> = serde_json::from_value(step["events"].clone()).ok()?;
        let (free, others): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| excused.has(event));
        if free.is_empty() {
            return None;
        }
        self.invoked
            .extend(free.into_iter().map(|event| (event, step.clone())));
        let lines = others.iter().map(|event| {
            with(
                &with(step, "emit", json!(own(emit, event))),
                "events",
                json!([event]),
            )
        });
        let lines = lines.collect();
        self.split.insert(emit.to_owned(), others);
        Some(lines)
    }

    fn arrival(&mut self, step: &Value) -> Option<Vec<Value>> {
        let event = step["event"].as_str()?;
        let invoked = self.invoked.get(event)?;
        let name = format!("{event}@{}", step["id"]);
        let mut arrival = with(step, "event", json!(name));
        if arrival["object"] == "" {
            // A dead letter without an object: the loss of the key left no sign of the object.
            arrival["object"] = invoked["object"].clone();
        }
        let mut lines = Vec::new();
        if self.emitted.insert(name.clone()) {
            let mut emit = with(&with(invoked, "emit", json!(name)), "events", json!([name]));
            emit["due"] = Value::Null;
            lines.push(emit);
        }
        if step["op"] == "receive" && self.came.insert((name, step["prev"].as_u64()?)) {
            lines.push(with(&arrival, "op", json!("dead")));
        }
        lines.push(arrival);
        Some(lines)
    }
}

/// Returns the name of the emit that has only this event of the emit.
fn own(emit: &str, event: &str) -> String {
    format!("{emit}/{event}")
}

fn with(step: &Value, member: &str, value: Value) -> Value {
    let mut step = step.clone();
    step[member] = value;
    step
}
