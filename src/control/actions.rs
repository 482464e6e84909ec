//! The recorded actions of operators, e.g. on dead letters, held objects, rules and cron jobs.
//! Redis keeps about the last thousand.

use redis::{RedisResult, Value};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::of_object::Search;
use super::{Control, ControlError, Cursor, RowId, reply};
use crate::escape;

/// Maximum number of actions that one call reads. The number is small because the record of a drop
/// contains the dropped event.
pub const PER_CALL_MAX: usize = 32;

/// Maximum number of actions at which one call of [`Control::actions_of`] looks. The number is small,
/// because a record of 8 KiB takes Redis about 10 µs. Redis keeps about 1,000 actions.
pub const LOOKED_MAX: u64 = 32;

/// One action.
///
/// An action serializes as
/// `{"action_id":"1700-0","at_ms":1700,"action":"drop","who":"ada@host","why":"…","object":"work:1","id":12,"dead_id":"1690-0","error":"…",
/// "event":{…}}`.
/// The event of a `drop` has the same form as the event of a [dead letter](super::DeadLetter). If
/// an action has no event, `"event"` is `null`. `event_bytes` is present only if the event is cut,
/// and `many`, an object with the fields of [`Many`], only for an action on many objects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Action {
    /// Id of the action.
    pub action_id: RowId,
    /// Time of the action, ms since the epoch.
    pub at_ms: u64,
    /// `retry`, `drop`, `release`, `skip`, `pause`, `resume`, `block`, `unblock`, `limit-set`,
    /// `limit-remove`, `share-set`, `share-remove`, `cron-set`, `cron-remove`, `cron-pause`,
    /// `cron-resume`, `cron-run`, `forget`, `cancel` or `repair`.
    pub action: String,
    /// Operator who performed the action.
    pub who: String,
    /// Reason given by the operator.
    pub why: String,
    /// The object, or the selector of the rule, limit or share. For an action on many objects, the selected
    /// ones: a prefix with `*`, or `*` for all.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    pub object_escaped: Option<String>,
    /// Id of the event; none if the action concerns no event, or one without an id. For a `forget`:
    /// id of the object's last delivered event.
    pub id: Option<u64>,
    /// Id of the dead letter that was retried or dropped, or that a skip created.
    pub dead_id: Option<RowId>,
    /// Name of the cron job that was changed or run.
    pub cron: Option<String>,
    /// [Escaped](crate::escape::name) form of `cron`, if it differs.
    pub cron_escaped: Option<String>,
    /// Key of the schedule that was cancelled.
    pub key: Option<String>,
    /// [Escaped](crate::escape::name) form of `key`, if it differs.
    pub key_escaped: Option<String>,
    /// For a drop: the error of the dead letter. For a release or skip: the recorded reason of the
    /// hold.
    pub error: Option<String>,
    /// The dropped event, byte for byte. If it is longer than 8 KiB, only its first 8 KiB.
    pub event: Option<Vec<u8>>,
    /// Length of the whole event in bytes, if only its beginning is kept.
    pub event_bytes: Option<u64>,
    /// For an action on many objects, which has only one record: its subjects.
    pub many: Option<Many>,
}

/// The subjects of an action on all objects, or on all dead letters, that were selected. The steps of
/// such an action share one record, which each step replaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Many {
    /// Number of released objects, of dead letters that were retried or dropped, or of steps of a
    /// repair, so far.
    pub count: u64,
    /// The first of them: name of an object or another subject, or id of a dead letter.
    pub first: String,
    /// [Escaped](crate::escape::name) form of `first`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_escaped: Option<String>,
    /// The last of them.
    pub last: String,
    /// [Escaped](crate::escape::name) form of `last`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_escaped: Option<String>,
    /// Time of the first step, ms since the epoch. [`Action::at_ms`] is the time of the last step.
    pub began_ms: u64,
    /// Whether only objects that waited for an operator were released.
    pub until_released: bool,
    /// Text that the reasons for the holds of the released objects contained, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_why: Option<String>,
}

impl Many {
    /// Reads the fields of a record; none if it is the record of one subject.
    fn of(fields: &[(String, Value)], at_ms: u64) -> Option<Self> {
        let field = |name: &str| {
            fields
                .iter()
                .rev()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value)
        };
        let name = |name: &str| field(name).and_then(reply::text).unwrap_or_default();
        let escaped = |name: &str| {
            field(name)
                .and_then(reply::bytes)
                .and_then(|bytes| escape::differing(&bytes))
        };
        Some(Self {
            count: field("count").and_then(reply::number)?,
            first: name("first"),
            first_escaped: escaped("first"),
            last: name("last"),
            last_escaped: escaped("last"),
            began_ms: field("began_ms").and_then(reply::number).unwrap_or(at_ms),
            until_released: field("until_released")
                .is_some_and(|value| reply::bytes(value).is_some()),
            held_why: field("held_why").and_then(reply::text),
        })
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("action_id", &self.action_id)?;
        line.serialize_entry("at_ms", &self.at_ms)?;
        line.serialize_entry("action", &self.action)?;
        line.serialize_entry("who", &self.who)?;
        line.serialize_entry("why", &self.why)?;
        line.serialize_entry("object", &self.object)?;
        if let Some(escaped) = &self.object_escaped {
            line.serialize_entry("object_escaped", escaped)?;
        }
        line.serialize_entry("id", &self.id)?;
        line.serialize_entry("dead_id", &self.dead_id)?;
        if let Some(cron) = &self.cron {
            line.serialize_entry("cron", cron)?;
        }
        if let Some(escaped) = &self.cron_escaped {
            line.serialize_entry("cron_escaped", escaped)?;
        }
        if let Some(key) = &self.key {
            line.serialize_entry("key", key)?;
        }
        if let Some(escaped) = &self.key_escaped {
            line.serialize_entry("key_escaped", escaped)?;
        }
        line.serialize_entry("error", &self.error)?;
        match &self.event {
            Some(event) => reply::serialize_event(&mut line, event, self.event_bytes)?,
            None => line.serialize_entry("event", &None::<()>)?,
        }
        if let Some(many) = &self.many {
            line.serialize_entry("many", many)?;
        }
        line.end()
    }
}

/// One page of actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ActionPage {
    /// The actions, newest first.
    pub actions: Vec<Action>,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

impl Control {
    /// Reads up to `count` actions (1 to [`PER_CALL_MAX`]), newest first. Begins after the position
    /// `after`; without `after`, at the newest action. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `operator.actions` is not a stream.
    pub async fn actions(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<ActionPage, ControlError> {
        const WHAT: &str = "operator.actions";
        let count = count.clamp(1, PER_CALL_MAX);
        let from = after
            .map(checked)
            .transpose()?
            .map_or_else(|| "+".to_owned(), reply::behind);
        let mut ask = redis::cmd("XREVRANGE");
        ask.arg(self.keys.operator_actions())
            .arg(from)
            .arg("-")
            .arg("COUNT")
            .arg(count);
        let answer: RedisResult<Value> = ask.query_async(&mut self.connection()).await;
        let entries = reply::entries(answer.map_err(ControlError::redis(WHAT))?);
        let entries = entries
            .ok_or_else(|| ControlError::reply(WHAT, "an entry is not an id and its fields"))?;
        let actions: Vec<Action> = entries
            .into_iter()
            .map(|(action_id, fields)| action(action_id, &fields))
            .collect();
        let last = actions.last().filter(|_| actions.len() == count);
        Ok(ActionPage {
            next: last.map(|last| Cursor::from(&last.action_id)),
            actions,
        })
    }
}

/// The fields of an action, without the object. All are whole: the record of an action is short,
/// except the event of a drop, which has at most 8 KiB.
const FIELDS: [(&str, usize); 16] = [
    ("action", 0),
    ("who", 0),
    ("why", 0),
    ("id", 0),
    ("dead_id", 0),
    ("cron", 0),
    ("key", 0),
    ("error", 0),
    ("event", 0),
    ("event_bytes", 0),
    ("count", 0),
    ("first", 0),
    ("last", 0),
    ("began_ms", 0),
    ("until_released", 0),
    ("held_why", 0),
];

impl Control {
    /// Reads up to `count` actions whose [`Action::object`] is this object (1 to [`PER_CALL_MAX`]),
    /// newest first. Begins after the position `after`; without `after`, at the newest action. Each
    /// call looks at no more than [`LOOKED_MAX`] actions, of all objects, or at 1 MiB. So a page may
    /// have fewer than `count` actions, or none, although a next page exists.
    ///
    /// The call only reads, and may be repeated.
    ///
    /// # Errors
    /// As [`Control::actions`].
    pub async fn actions_of(
        &self,
        object: impl AsRef<[u8]>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<ActionPage, ControlError> {
        let after = after.map(checked).transpose()?;
        let object = object.as_ref();
        let search = Search {
            stream: &self.keys.operator_actions(),
            object,
            newest: true,
            looked_max: LOOKED_MAX,
            found_max: count.clamp(1, PER_CALL_MAX),
            ends_by_bytes: true,
            fields: &FIELDS,
        };
        let found = search
            .run(&mut self.connection(), &self.keys, after)
            .await?;
        let next = found.next();
        if let Some(error) = found.wrong_type {
            return Err(error);
        }
        let actions = found.rows.into_iter().map(|row| {
            let (action_id, fields) = row.named(object, &FIELDS);
            action(action_id, &fields)
        });
        Ok(ActionPage {
            actions: actions.collect(),
            next,
        })
    }
}

/// Returns the id in a cursor of the actions.
fn checked(cursor: &Cursor) -> Result<&str, ControlError> {
    if reply::is_entry_id(cursor.as_str()) {
        Ok(cursor.as_str())
    } else {
        Err(ControlError::Cursor(cursor.to_string()))
    }
}

fn action(action_id: String, fields: &[(String, Value)]) -> Action {
    let at_ms = action_id
        .split('-')
        .next()
        .and_then(|ms| ms.parse().ok())
        .unwrap_or(0);
    let mut action = Action {
        action_id: action_id.into(),
        at_ms,
        action: String::new(),
        who: String::new(),
        why: String::new(),
        object: String::new(),
        object_escaped: None,
        id: None,
        dead_id: None,
        cron: None,
        cron_escaped: None,
        key: None,
        key_escaped: None,
        error: None,
        event: None,
        event_bytes: None,
        many: Many::of(fields, at_ms),
    };
    for (field, value) in fields {
        let text = reply::text(value);
        match field.as_str() {
            "action" => action.action = text.unwrap_or_default(),
            "who" => action.who = text.unwrap_or_default(),
            "why" => action.why = text.unwrap_or_default(),
            "object" => {
                action.object_escaped =
                    reply::bytes(value).and_then(|name| escape::differing(&name));
                action.object = text.unwrap_or_default();
            }
            "id" => action.id = reply::number(value).filter(|id| *id > 0),
            "cron" => {
                action.cron_escaped = reply::bytes(value).and_then(|name| escape::differing(&name));
                action.cron = text;
            }
            "key" => {
                action.key_escaped = reply::bytes(value).and_then(|key| escape::differing(&key));
                action.key = text;
            }
            "dead_id" => action.dead_id = text.map(RowId::from),
            "error" => action.error = text.filter(|error| !error.is_empty()),
            "event" => action.event = reply::bytes(value),
            "event_bytes" => action.event_bytes = reply::number(value),
            _ => {}
        }
    }
    action
}
