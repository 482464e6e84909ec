//! Figures of shares: the names that wait, the objects in hand, and the events that were taken.

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};
use serde::Serialize;

use super::super::marks::age_grouped;
use super::super::stats::ask;
use super::super::{Control, ControlError, reply};
use super::SelectorShare;
use crate::keys::Keys;
use crate::wire::values::{Mark, ShareUsed};

/// Maximum number of shares that one step reads.
const PER_CALL_MAX: usize = 100;

/// A share, and how far it is used. A figure is none if its key has a wrong type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ShareFigures {
    /// The share.
    #[serde(flatten)]
    pub share: SelectorShare,
    /// Number of names of objects that are grouped, not counting marks. An object whose name
    /// begins with several prefixes with a share counts only for the longest one. For the share of
    /// all objects: the number of all names that are grouped.
    pub waiting: Option<u64>,
    /// Time for which the oldest of these names has waited, ms, exact to 2 s or 5 %. Also none if
    /// no name waits, or if the time is unknown.
    pub oldest_ms: Option<u64>,
    /// Number of objects in hand, over all processes. An object counts for each share that matches
    /// it.
    pub in_hand: Option<u64>,
    /// Number of events that were taken since the first share was set.
    pub taken: Option<u64>,
    /// Number of events per second that were taken in the last 10 s.
    pub taken_per_second: Option<f64>,
}

/// The names that wait for a share.
#[derive(Clone, Copy)]
struct Waiting {
    names: Option<u64>,
    oldest_ms: Option<u64>,
}

/// The objects and the events that count for a share.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::control) struct Counters {
    pub(in crate::control) in_hand: Option<u64>,
    pub(in crate::control) used: Option<ShareUsed>,
}

impl Control {
    /// Reads all shares with their figures, sorted by selector. There are at most
    /// [`SHARES_MAX`](super::SHARES_MAX). The figures are read in steps of 100 shares, so they do
    /// not belong to exactly the same moment.
    ///
    /// Cost: about four commands for each share. The call only reads, and may be repeated. Its
    /// future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `event.shares` is not a hash.
    pub async fn share_figures(&self) -> Result<Vec<ShareFigures>, ControlError> {
        let shares = self.shares().await?;
        self.figures_of(shares).await
    }

    /// Reads the figures of these shares.
    pub(crate) async fn figures_of(
        &self,
        shares: Vec<SelectorShare>,
    ) -> Result<Vec<ShareFigures>, ControlError> {
        if shares.is_empty() {
            return Ok(Vec::new());
        }
        let (mut conn, keys) = (self.connection(), &self.keys);
        let now_ms = reply::now_ms(&mut conn).await?;
        let waiting = waiting(&mut conn, keys, &shares, now_ms).await?;
        let with_waiting: Vec<_> = shares.into_iter().zip(waiting).collect();
        figures(&mut conn, keys, with_waiting, now_ms).await
    }

    /// Reads the figures of the `count` shares for which most names wait. Among shares with the
    /// same number of names, those that come first by selector count. Returns also the number of
    /// all shares.
    pub(in crate::control) async fn most_waiting(
        &self,
        count: usize,
    ) -> Result<(u64, Vec<ShareFigures>), ControlError> {
        let shares = self.shares().await?;
        let total = shares.len() as u64;
        if total == 0 {
            return Ok((0, Vec::new()));
        }
        let (mut conn, keys) = (self.connection(), &self.keys);
        let now_ms = reply::now_ms(&mut conn).await?;
        let waiting = waiting(&mut conn, keys, &shares, now_ms).await?;
        let mut most: Vec<_> = shares.into_iter().zip(waiting).collect();
        most.sort_by_key(|(_, waiting)| std::cmp::Reverse(waiting.names));
        most.truncate(count);
        Ok((total, figures(&mut conn, keys, most, now_ms).await?))
    }
}

async fn figures<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    shares: Vec<(SelectorShare, Waiting)>,
    now_ms: u64,
) -> Result<Vec<ShareFigures>, ControlError> {
    let selectors: Vec<&str> = shares
        .iter()
        .map(|(share, _)| share.selector.as_str())
        .collect();
    let counters = counters(conn, keys, &selectors).await?;
    let figures =
        |((share, waiting), counters): ((SelectorShare, Waiting), Counters)| ShareFigures {
            share,
            waiting: waiting.names,
            oldest_ms: waiting.oldest_ms,
            in_hand: counters.in_hand,
            taken: counters.used.map(|used| used.taken),
            taken_per_second: counters.used.map(|used| used.per_second(now_ms)),
        };
    Ok(shares.into_iter().zip(counters).map(figures).collect())
}

/// Returns the prefix of a selector; `None` for the selector of all objects.
pub(super) fn prefix_of(selector: &str) -> Option<&str> {
    selector.strip_suffix(":*")
}

/// Returns the reply to a command; `None` if the key has a wrong type.
fn figure(
    what: &'static str,
    answer: Option<RedisResult<Value>>,
) -> Result<Option<Value>, ControlError> {
    match answer {
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(error)) if error.code() == Some("WRONGTYPE") => Ok(None),
        Some(Err(error)) => Err(ControlError::redis(what)(error)),
        None => Err(ControlError::reply(what, "a reply is missing")),
    }
}

/// Returns the items of the reply to `HMGET` or `ZMSCORE`; `None` if the key has a wrong type.
pub(super) fn items(
    what: &'static str,
    answer: Option<RedisResult<Value>>,
) -> Result<Option<std::vec::IntoIter<Value>>, ControlError> {
    let items =
        figure(what, answer)?.map(|value| reply::array(value).unwrap_or_default().into_iter());
    Ok(items)
}

/// Reads the names that wait for each of these shares.
async fn waiting<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    shares: &[SelectorShare],
    now_ms: u64,
) -> Result<Vec<Waiting>, ControlError> {
    const WHAT: &str = "the names that wait for shares";
    let mut all = Vec::with_capacity(shares.len());
    for some in shares.chunks(PER_CALL_MAX) {
        let mut pipe = redis::pipe();
        let mut times = redis::cmd("HMGET");
        times.arg(keys.event_groups_times());
        for share in some {
            // The times have no field for the share of all objects, and need none.
            let prefix = prefix_of(&share.selector);
            times.arg(prefix.unwrap_or_default());
            match prefix {
                Some(prefix) => {
                    let list = keys.group_waiting(prefix);
                    pipe.cmd("LLEN").arg(&list);
                    pipe.cmd("LINDEX").arg(&list).arg(-1);
                }
                None => drop(pipe.cmd("GET").arg(keys.event_groups_waiting())),
            }
        }
        pipe.add_command(times);
        let mut answers = ask(conn, WHAT, &mut pipe).await?;
        let mut times = items(WHAT, answers.pop())?;
        let mut answers = answers.into_iter();
        for share in some {
            let count = figure(WHAT, answers.next())?;
            let time = times.as_mut().map(|times| {
                times
                    .next()
                    .as_ref()
                    .and_then(Times::read)
                    .unwrap_or_default()
            });
            if prefix_of(&share.selector).is_none() {
                let names = count.map(|count| reply::number(&count).unwrap_or(0));
                let is_any = names.is_some_and(|names| names > 0);
                let oldest_ms = if is_any {
                    age_grouped(conn, keys, now_ms, &mut Vec::new())
                        .await?
                        .oldest()
                } else {
                    None
                };
                all.push(Waiting { names, oldest_ms });
                continue;
            }
            let next = figure(WHAT, answers.next())?
                .as_ref()
                .and_then(reply::bytes);
            let count = count.as_ref().and_then(reply::number);
            let names = count
                .zip(time)
                .map(|(count, time)| count.saturating_sub(time.marks));
            let oldest = || {
                // The names behind a mark are younger than it.
                let (next, Times { oldest_ms, .. }) = (next?, time?);
                Mark::read(&next).map_or(oldest_ms, |mark| oldest_ms.max(Some(mark.ms)))
            };
            let oldest_ms = names
                .filter(|names| *names > 0)
                .and_then(|_| oldest())
                .map(|ms| now_ms.saturating_sub(ms));
            all.push(Waiting { names, oldest_ms });
        }
    }
    Ok(all)
}

/// A field of `event.groups.times`, `LAST OLDEST MARKS`. Without a field, the list has no marks.
#[derive(Clone, Copy, Default)]
struct Times {
    oldest_ms: Option<u64>,
    marks: u64,
}

impl Times {
    fn read(value: &Value) -> Option<Self> {
        let text = reply::text(value)?;
        let mut parts = text.split(' ').skip(1).map(str::parse);
        Some(Self {
            oldest_ms: Some(parts.next()?.ok()?),
            marks: parts.next()?.ok()?,
        })
    }
}

/// Reads the objects and the events that count for the share of each of these selectors.
pub(super) async fn counters<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    selectors: &[&str],
) -> Result<Vec<Counters>, ControlError> {
    const WHAT: &str = "the objects in hand and the events taken";
    let mut all = Vec::with_capacity(selectors.len());
    for some in selectors.chunks(PER_CALL_MAX) {
        let (mut pipe, in_hand) = (redis::pipe(), keys.objects_in_hand());
        for selector in some {
            match prefix_of(selector) {
                Some(prefix) => {
                    let (first, end) = (["[", prefix, ":"].concat(), ["(", prefix, ";"].concat());
                    pipe.cmd("ZLEXCOUNT").arg(&in_hand).arg(first).arg(end)
                }
                None => pipe.cmd("ZCARD").arg(&in_hand),
            };
        }
        pipe.cmd("HMGET").arg(keys.event_shares_used()).arg(some);
        let mut answers = ask(conn, WHAT, &mut pipe).await?;
        let mut used = items(WHAT, answers.pop())?;
        let mut answers = answers.into_iter();
        for _ in some {
            let in_hand = figure(WHAT, answers.next())?
                .as_ref()
                .and_then(reply::number);
            let of = |value: Option<Value>| {
                ShareUsed::read(&value.as_ref().and_then(reply::bytes).unwrap_or_default())
            };
            all.push(Counters {
                in_hand,
                used: used.as_mut().map(|used| of(used.next())),
            });
        }
    }
    Ok(all)
}
