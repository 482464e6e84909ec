//! Reads the marks to find the age of the oldest marker.

use std::collections::HashSet;

use redis::aio::ConnectionLike;

use super::stats::ask;
use super::{Control, ControlError, reply};
use crate::keys::Keys;
use crate::wire;
use crate::wire::values::{MET, Mark};

/// If no mark waits, markers count as new for this time after the last mark was met, in ms. As long
/// as few markers wait, processes push a mark at least once in this time.
const NEW_MS: u64 = 2000;
/// If no mark waits, the age of the oldest marker is unknown from this time on after the last mark
/// was met, in ms.
const UNKNOWN_MS: u64 = 4000;

/// Maximum number of lists whose next names one step reads.
const LISTS_PER_CALL: usize = 128;

/// Members with their scores.
type Members = Vec<(Vec<u8>, f64)>;

/// The contents of `event.marks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Number of marks that wait.
    pub(super) waiting: u64,
    /// Time of the oldest mark that waits.
    oldest_ms: Option<u64>,
    /// Time of the mark that *advance* met last.
    met_ms: Option<u64>,
}

impl Marks {
    /// Reads the marks. Adds the key to `unreadable` if it has a wrong type.
    pub(super) async fn read<C: ConnectionLike>(
        conn: &mut C,
        keys: &Keys,
        unreadable: &mut Vec<String>,
    ) -> Result<Self, ControlError> {
        const WHAT: &str = "the marks";
        let key = keys.event_marks();
        let mut pipe = redis::pipe();
        pipe.cmd("ZCARD").arg(&key);
        pipe.cmd("ZRANGE").arg(&key).arg(0).arg(1).arg("WITHSCORES");
        let mut answers = ask(conn, WHAT, &mut pipe).await?.into_iter();
        let (Some(members), Some(first)) = (answers.next(), answers.next()) else {
            return Err(ControlError::reply(WHAT, "no reply"));
        };
        let read = members.and_then(|members| {
            Ok((
                redis::from_redis_value(members)?,
                redis::from_redis_value::<Members>(first?)?,
            ))
        });
        match read {
            Ok((members, first)) => Ok(Self::of(members, &first)),
            Err(error) if error.code() == Some("WRONGTYPE") => {
                unreadable.push(key);
                Ok(Self::default())
            }
            Err(error) => Err(ControlError::redis(WHAT)(error)),
        }
    }

    /// Makes the value from the number of members, and the first two members with their scores. If
    /// the member `met` exists, it is the first one.
    fn of(members: u64, first: &[(Vec<u8>, f64)]) -> Self {
        let ms = |at: usize| first.get(at).map(|(_, score)| score.max(0.0) as u64);
        match first.first() {
            Some((member, _)) if member == MET.as_bytes() => Self {
                waiting: members.saturating_sub(1),
                oldest_ms: ms(1),
                met_ms: ms(0),
            },
            _ => Self {
                waiting: members,
                oldest_ms: ms(0),
                met_ms: None,
            },
        }
    }

    /// Returns the age of the oldest marker, in ms; `None` if it is unknown. `markers` is the
    /// number of markers, not counting marks.
    pub(super) fn age_ms(&self, markers: u64, now_ms: u64) -> Option<u64> {
        if markers == 0 {
            return Some(0);
        }
        if let Some(oldest_ms) = self.oldest_ms {
            return Some(now_ms.saturating_sub(oldest_ms));
        }
        // No mark waits, so all markers are younger than the mark that was met last.
        let most_ms = now_ms.saturating_sub(self.met_ms?);
        (most_ms <= UNKNOWN_MS).then(|| most_ms.saturating_sub(NEW_MS))
    }
}

/// The lowest score in `event.groups` of a group that waits for a limit. Its score is higher by
/// 2^42, and other scores lie from -2^40 to 2^41.
const PARKED: u64 = 3 << 40;

/// The ages of the oldest names that are grouped, in ms. An age is `None` if it is
/// unknown, or if no such name is grouped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GroupedAges {
    /// Names of groups that may have their turn.
    pub(super) free: Option<u64>,
    /// Names of groups that wait for the limit or the rate of a share.
    pub(super) limited: Option<u64>,
    /// Whether a group waits for a limit or a rate.
    pub(super) is_any_limited: bool,
}

impl GroupedAges {
    /// Returns the age of the oldest name.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.free.max(self.limited)
    }
}

/// Returns the ages of the oldest names that are grouped. The last name of a group may
/// be taken, although its time is still there. So the time counts only if the list has names.
///
/// Cost: one command for the times of all groups, one for the groups that wait for a limit, and one
/// for each group until both ages are known. There are at most 1,024 groups and those with a share.
pub(super) async fn age_grouped<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    now_ms: u64,
    unreadable: &mut Vec<String>,
) -> Result<GroupedAges, ControlError> {
    const WHAT: &str = "the times of the groups";
    let key = keys.event_groups_times();
    let times = match redis::cmd("HGETALL")
        .arg(&key)
        .query_async::<Vec<(Vec<u8>, String)>>(conn)
        .await
    {
        Ok(times) => times,
        Err(error) if error.code() == Some("WRONGTYPE") => {
            unreadable.push(key);
            return Ok(GroupedAges::default());
        }
        Err(error) => return Err(ControlError::redis(WHAT)(error)),
    };
    let mut parked = redis::cmd("ZRANGE");
    parked
        .arg(keys.event_groups())
        .arg(PARKED)
        .arg("+inf")
        .arg("BYSCORE");
    let parked: HashSet<Vec<u8>> = match parked.query_async(conn).await {
        Ok(parked) => parked,
        // The wrong type of this key is reported with the counts.
        Err(error) if error.code() == Some("WRONGTYPE") => HashSet::new(),
        Err(error) => return Err(ControlError::redis(WHAT)(error)),
    };
    let has_times: HashSet<&[u8]> = times.iter().map(|(group, _)| &group[..]).collect();
    let all_known = parked.iter().all(|group| has_times.contains(&group[..]));
    let oldest = |(group, times): (Vec<u8>, String)| {
        Some((times.split(' ').nth(1)?.parse::<u64>().ok()?, group))
    };
    let mut groups: Vec<(u64, Vec<u8>)> = times.into_iter().filter_map(oldest).collect();
    groups.sort();
    let mut ages = GroupedAges {
        is_any_limited: !parked.is_empty(),
        ..GroupedAges::default()
    };
    for is_parked in [false, true] {
        let some: Vec<_> = groups
            .iter()
            .filter(|(_, group)| parked.contains(group) == is_parked)
            .collect();
        let first_ms = first_of(conn, keys, &some).await?;
        let age_ms = first_ms
            .map(|first_ms| now_ms.saturating_sub(first_ms))
            .or((is_parked && all_known).then_some(0));
        *(if is_parked {
            &mut ages.limited
        } else {
            &mut ages.free
        }) = age_ms;
    }
    Ok(ages)
}

/// Returns a time before the oldest name of these groups was pushed. The groups are sorted by the
/// times of their oldest names.
async fn first_of<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    groups: &[&(u64, Vec<u8>)],
) -> Result<Option<u64>, ControlError> {
    const WHAT: &str = "the lists of the groups";
    let mut first_ms: Option<u64> = None;
    for some in groups.chunks(LISTS_PER_CALL) {
        if first_ms.is_some_and(|first_ms| {
            some.first()
                .is_some_and(|(oldest_ms, _)| *oldest_ms >= first_ms)
        }) {
            break;
        }
        let mut pipe = redis::pipe();
        for (_, group) in some {
            pipe.cmd("LINDEX").arg(keys.waiting_of(group)).arg(-1);
        }
        let next = ask(conn, WHAT, &mut pipe).await?;
        for ((oldest_ms, _), next) in some.iter().zip(next) {
            let Some(next) = next.as_ref().ok().and_then(reply::bytes) else {
                continue;
            };
            // The names behind this mark are younger than it.
            let oldest_ms = Mark::read(&next).map_or(*oldest_ms, |mark| mark.ms.max(*oldest_ms));
            first_ms = Some(first_ms.map_or(oldest_ms, |first_ms| first_ms.min(oldest_ms)));
        }
    }
    Ok(first_ms)
}

impl Control {
    /// Pushes a mark if a mark is due, so that [`stats`](Self::stats) knows the age of the oldest
    /// marker. Worker processes do this once per second. So a program needs this call only if it
    /// watches a namespace whose workers may all be gone. It should then call once per second.
    ///
    /// Cost: one script of about five commands. The call may be repeated, and its future may be
    /// dropped at any time.
    ///
    /// # Errors
    /// [`ControlError::Denied`] or [`ControlError::Redis`] if the user may not push marks. Then the
    /// age is unknown as long as no worker runs. Other errors if Redis cannot be asked, or is a
    /// replica.
    pub async fn mark(&self) -> Result<(), ControlError> {
        wire::mark(&mut self.connection(), &self.keys).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(members: &[(&str, f64)], count: u64) -> Marks {
        let first: Vec<_> = members
            .iter()
            .map(|(member, score)| (member.as_bytes().to_vec(), *score))
            .collect();
        Marks::of(count, &first)
    }

    #[test]
    fn the_age_is_that_of_the_oldest_mark_that_waits() {
        let waiting = marks(&[("met", 1000.0), ("5000", 5000.0)], 3);
        assert_eq!((waiting.waiting, waiting.age_ms(7, 9000)), (2, Some(4000)));
        let never_met = marks(&[("5000", 5000.0), ("6000", 6000.0)], 2);
        assert_eq!(
            (never_met.waiting, never_met.age_ms(7, 9000)),
            (2, Some(4000))
        );
        assert_eq!(never_met.age_ms(0, 9000), Some(0), "nothing waits");
        assert_eq!(
            never_met.age_ms(7, 4000),
            Some(0),
            "the clock has stepped back"
        );
    }

    #[test]
    fn without_a_mark_the_age_is_small_or_unknown() {
        let met = marks(&[("met", 10_000.0)], 1);
        assert_eq!(met.waiting, 0);
        for (now_ms, age) in [
            (10_500, Some(0)),
            (12_000, Some(0)),
            (13_000, Some(1000)),
            (14_000, Some(2000)),
            (14_001, None),
        ] {
            assert_eq!(met.age_ms(1, now_ms), age, "at {now_ms}");
        }
        assert_eq!(marks(&[], 0).age_ms(1, 9000), None);
        assert_eq!(marks(&[], 0).age_ms(0, 9000), Some(0));
    }
}
