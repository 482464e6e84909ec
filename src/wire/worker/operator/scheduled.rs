//! The call of the script `scheduled`: it returns a page of schedules.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::SCHEDULED;
use crate::wire::reply::Reply;

/// The schedules to read.
#[derive(Debug, Clone, Copy)]
pub enum Range<'a> {
    /// The schedules of all objects, sorted by due time, if they are due between `from` and `to`
    /// (in ms since the epoch).
    All {
        /// The first due time; `None`: from the earliest.
        from: Option<u64>,
        /// The last due time; `None`: to the latest.
        to: Option<u64>,
        /// The due time and the member of the last schedule before the page.
        after: Option<(&'a str, &'a [u8])>,
    },
    /// The schedules of one object, in no particular order.
    Object {
        /// The object's name.
        object: &'a [u8],
        /// The cursor that came with the previous page; 0 for the first page.
        cursor: u64,
    },
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledReply {
    /// The schedule's member of `events.scheduled`.
    pub member: Vec<u8>,
    /// The due time, as stored in Redis; empty if there is none.
    pub due: String,
    /// The size of the event in bytes; `None` if the schedule has no event.
    pub event_bytes: Option<u64>,
    /// The event; empty if it is larger than 8 KiB.
    pub event: Vec<u8>,
    /// Whether the event is already queued.
    pub is_queued: bool,
}

/// A page of schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledPage {
    /// The time of Redis in ms since the epoch.
    pub now_ms: u64,
    /// For [`Range::Object`], the cursor of the next page; 0 after the last page.
    pub cursor: u64,
    /// The schedules.
    pub schedules: Vec<ScheduledReply>,
}

/// Returns a page of about `count` schedules (1 to 100).
pub async fn scheduled(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    range: Range<'_>,
    count: usize,
) -> Result<ScheduledPage, ScriptError> {
    let mut cmd = SCHEDULED.with_key(&keys.events_scheduled());
    cmd.arg(keys.prefix());
    match range {
        Range::All { from, to, after } => {
            let bound = |time: Option<u64>, none: &str| {
                time.map_or_else(|| none.to_owned(), |ms| ms.to_string())
            };
            let (due, member) = after.unwrap_or_default();
            cmd.arg("all")
                .arg(bound(from, "-inf"))
                .arg(bound(to, "+inf"))
                .arg(due)
                .arg(member);
        }
        Range::Object { object, cursor } => {
            cmd.arg("object").arg(object).arg(cursor);
        }
    }
    cmd.arg(count);
    let mut reply = Reply::of("scheduled", SCHEDULED.call(conn, &cmd).await?)?;
    let word = reply.text()?;
    if word != "scheduled" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let now_ms = reply.number()?;
    let cursor = reply.text()?.parse().unwrap_or(0);
    let mut schedules = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut one = reply.array()?;
        let (member, due) = (one.bytes()?, one.text()?);
        let (event_bytes, event, is_queued) = (
            u64::try_from(one.int()?).ok(),
            one.bytes()?,
            one.int()? == 1,
        );
        schedules.push(ScheduledReply {
            member,
            due,
            event_bytes,
            event,
            is_queued,
        });
    }
    Ok(ScheduledPage {
        now_ms,
        cursor,
        schedules,
    })
}
