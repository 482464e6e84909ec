//! The recorded actions of operators, e.g. on dead letters, held objects, rules and cron jobs.
//! Redis keeps about the last thousand.

use redis::{RedisResult, Value};
use serde::Serialize;

use super::of_object::Search;
use super::rows::Fields;
use super::{Control, ControlError, Cursor, RowEvent, RowId, reply, rows};

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
/// "event":{…}}`. [`RowEvent`] describes the form of the event of a `drop`. If an action has no
/// event, `"event"` is `null`. `many`, an object with the fields of [`Many`], is present only for
/// an action on many objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Id of the event; none if the action concerns no event, or one without an id. For a `forget`:
    /// id of the object's last delivered event.
    pub id: Option<u64>,
    /// Id of the dead letter that was retried or dropped, or that a skip created.
    pub dead_id: Option<RowId>,
    /// Name of the cron job that was changed or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// [Escaped](crate::escape::name) form of `cron`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron_escaped: Option<String>,
    /// Key of the schedule that was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// [Escaped](crate::escape::name) form of `key`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_escaped: Option<String>,
    /// For a drop: the error of the dead letter. For a release or skip: the recorded reason of the
    /// hold.
    pub error: Option<String>,
    /// The dropped event. If it is longer than 8 KiB, only its first 8 KiB.
    #[serde(flatten, serialize_with = "rows::or_null")]
    pub event: Option<RowEvent>,
    /// For an action on many objects, which has only one record: its subjects.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    fn of(fields: &Fields, at_ms: u64) -> Option<Self> {
        Some(Self {
            count: fields.number("count")?,
            first: fields.text("first").unwrap_or_default(),
            first_escaped: fields.escaped("first"),
            last: fields.text("last").unwrap_or_default(),
            last_escaped: fields.escaped("last"),
            began_ms: fields.number("began_ms").unwrap_or(at_ms),
            until_released: fields.bytes("until_released").is_some(),
            held_why: fields.text("held_why"),
        })
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
        let actions: Vec<Action> = entries.into_iter().map(action).collect();
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
        Ok(ActionPage {
            actions: found.rows.into_iter().map(action).collect(),
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

fn action((action_id, fields): reply::Entry) -> Action {
    let at_ms = reply::ms_of(&action_id);
    let text = |name| fields.text(name).unwrap_or_default();
    Action {
        action_id: action_id.into(),
        at_ms,
        action: text("action"),
        who: text("who"),
        why: text("why"),
        object: text("object"),
        object_escaped: fields.escaped("object"),
        id: fields.number("id").filter(|id| *id > 0),
        dead_id: fields.text("dead_id").map(RowId::from),
        cron: fields.text("cron"),
        cron_escaped: fields.escaped("cron"),
        key: fields.text("key"),
        key_escaped: fields.escaped("key"),
        error: fields.filled("error"),
        event: fields.event(),
        many: Many::of(&fields, at_ms),
    }
}
