//! Counts the queued events of all objects. Walks over all queues.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use serde::Serialize;
use tokio::time::sleep;

use super::scan::{Dedup, Scan};
use super::stats::{COMMANDS_PER_CALL, ask};
use super::{Control, ControlError, Cursor, reply};
use crate::escape;
use crate::event::NAME_BYTES_MAX;
use crate::keys::Keys;

/// Maximum number of prefixes that [`Control::depth`] lists. The objects of all further prefixes
/// are counted together, under an empty prefix.
pub const PREFIXES_MAX: usize = 10_000;

/// Maximum number of objects that [`Control::depth`] remembers. It remembers them so that no object
/// counts twice while Redis resizes its tables.
const SEEN_MAX: usize = 4 << 20;

/// Longest times that Redis itself is assumed to need: for a step without its queues, and for each
/// queue.
const STEP_MOST: Duration = Duration::from_millis(2);
const QUEUE_MOST: Duration = Duration::from_micros(5);

/// Counts of all objects whose names have the same prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PrefixDepth {
    /// The name up to its first colon, or the whole name if it has none.
    pub prefix: String,
    /// Objects with events.
    pub objects: u64,
    /// Queued events of these objects.
    pub events: u64,
}

/// One object's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObjectDepth {
    /// The object.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Number of queued events.
    pub events: u64,
}

/// The result of [`Control::depth`]. Counts queued events, not events in flight or held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Depth {
    /// Queued events of all objects.
    pub events_queued: u64,
    /// Objects with queued events.
    pub objects_with_events: u64,
    /// Objects and queued events of each prefix; the prefix with most events first.
    pub by_prefix: Vec<PrefixDepth>,
    /// The objects with the most queued events.
    pub top: Vec<ObjectDepth>,
}

/// Longest prefix that [`Control::depth_step`] returns, in bytes. A valid name of an object is not
/// longer.
const PREFIX_BYTES_MAX: usize = NAME_BYTES_MAX;

/// The result of [`Control::depth_step`]. Counts queued events, not events in flight or held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DepthStep {
    /// The counts of this step.
    #[serde(flatten)]
    pub depth: Depth,
    /// Cursor of the next step; none after the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Cursor>,
}

impl Control {
    /// Counts the queued events of every object, by prefix, and finds the `top` longest queues.
    ///
    /// Cost: SCAN over all keys, and one LLEN for each object with events, in bounded steps.
    /// Memory: the prefixes (at most [`PREFIXES_MAX`]), `top` names, and 8 bytes for each object
    /// with events, up to 32 MiB. In a system at rest the result is exact. In a live system each
    /// queue is counted at some moment of the walk. The call only reads. It may be repeated, and
    /// its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn depth(&self, top: usize) -> Result<Depth, ControlError> {
        self.walk_queues(Counted::new(top, usize::MAX), None).await
    }

    /// Like [`depth`](Self::depth), but in the background: takes at most the part `share` of Redis'
    /// time (0.01 means 1 %; at least 0.0001). With a share of 0.01 the count of 1,000,000 keys
    /// takes about 3 min.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn paced_depth(&self, top: usize, share: f64) -> Result<Depth, ControlError> {
        self.walk_queues(
            Counted::new(top, usize::MAX),
            Some(share.clamp(0.0001, 1.0)),
        )
        .await
    }

    /// Like [`paced_depth`](Self::paced_depth) without the longest queues, but counts by these prefixes.
    /// A prefix has one or more parts of a name, without a colon at its end: `acme:batch` is for the
    /// object of this name and for all objects whose names begin with `acme:batch:`. An object counts
    /// for the longest prefix that it has, and otherwise for the prefix ``.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn paced_depth_of(
        &self,
        prefixes: &[String],
        share: f64,
    ) -> Result<Depth, ControlError> {
        let counted = Counted {
            named: Some(prefixes.to_vec()),
            ..Counted::new(0, usize::MAX)
        };
        self.walk_queues(counted, Some(share.clamp(0.0001, 1.0)))
            .await
    }

    /// Counts the queued events of some objects: one step of a walk over all queues. The caller adds
    /// the counts of all steps, and decides how fast they follow each other. `top`: number of the
    /// longest queues that are returned. A step may find no queue.
    ///
    /// Objects of prefixes with more than 512 bytes are counted under an empty prefix. Each object
    /// whose queue exists during the whole walk counts. If Redis resizes its tables meanwhile, an
    /// object may count twice.
    ///
    /// Cost: one SCAN of about 1,000 keys, and one LLEN for each queue among them: 1 to 2 ms of
    /// Redis' time, in commands of less than 1 ms. The call only reads.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis cannot
    /// be asked.
    pub async fn depth_step(
        &self,
        after: Option<&Cursor>,
        top: usize,
    ) -> Result<DepthStep, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let suffix = suffix(keys);
        let mut scan = Scan::new(keys, &suffix);
        if let Some(after) = after {
            let position = after
                .as_str()
                .parse()
                .ok()
                .filter(|position| *position != 0);
            scan =
                scan.from(position.ok_or_else(|| ControlError::Cursor(after.as_str().to_owned()))?);
        }
        let mut page = scan.next(&mut conn).await?.unwrap_or_default();
        let mut seen = Dedup::new(page.len());
        page.retain(|key| key.ends_with(suffix.as_bytes()) && seen.insert(key));
        let mut counted = Counted::new(top, PREFIX_BYTES_MAX);
        counted.add(&mut conn, keys, &suffix, &page).await?;
        let next = scan
            .position()
            .map(|position| Cursor::from(position.to_string()));
        Ok(DepthStep {
            depth: counted.depth(),
            next,
        })
    }

    async fn walk_queues(
        &self,
        mut counted: Counted,
        share: Option<f64>,
    ) -> Result<Depth, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let suffix = suffix(keys);
        let mut scan = Scan::new(keys, &suffix);
        let mut seen = Dedup::new(SEEN_MAX);
        loop {
            let began = Instant::now();
            let Some(mut page) = scan.next(&mut conn).await? else {
                break;
            };
            page.retain(|key| key.ends_with(suffix.as_bytes()) && seen.insert(key));
            counted.add(&mut conn, keys, &suffix, &page).await?;
            if let Some(share) = share {
                sleep(pause(began.elapsed(), page.len(), share)).await;
            }
        }
        Ok(counted.depth())
    }
}

/// Returns the end of the keys of queues.
fn suffix(keys: &Keys) -> String {
    keys.events("").split_off(keys.prefix().len())
}

/// The counts of a walk so far.
struct Counted {
    top: usize,
    /// The prefixes that are counted; none: the first part of each name.
    named: Option<Vec<String>>,
    prefix_bytes_max: usize,
    prefixes: HashMap<String, PrefixDepth>,
    longest: BinaryHeap<(Reverse<u64>, String, Option<String>)>,
    depth: Depth,
}

impl Counted {
    fn new(top: usize, prefix_bytes_max: usize) -> Self {
        Self {
            top,
            named: None,
            prefix_bytes_max,
            prefixes: HashMap::new(),
            longest: BinaryHeap::new(),
            depth: Depth::default(),
        }
    }

    /// Counts the queues with these keys, which are without the prefix of the namespace.
    async fn add<C: ConnectionLike>(
        &mut self,
        conn: &mut C,
        keys: &Keys,
        suffix: &str,
        page: &[Vec<u8>],
    ) -> Result<(), ControlError> {
        for some in page.chunks(COMMANDS_PER_CALL) {
            let mut pipe = redis::pipe();
            for key in some {
                pipe.cmd("LLEN")
                    .arg([keys.prefix().as_bytes(), key].concat());
            }
            for (key, answer) in some.iter().zip(ask(conn, "the queues", &mut pipe).await?) {
                // The key is gone, or it belongs to another program and is no list.
                let Some(events) = answer
                    .as_ref()
                    .ok()
                    .and_then(reply::number)
                    .filter(|events| *events > 0)
                else {
                    continue;
                };
                self.add_queue(&key[..key.len() - suffix.len()], events);
            }
        }
        Ok(())
    }

    fn add_queue(&mut self, name: &[u8], events: u64) {
        let object = String::from_utf8_lossy(name).into_owned();
        self.depth.events_queued += events;
        self.depth.objects_with_events += 1;
        let prefix = match &self.named {
            Some(named) => longest(named, &object),
            None => object.split(':').next().unwrap_or(&object),
        };
        let known = self.prefixes.contains_key(prefix) || self.prefixes.len() < PREFIXES_MAX;
        let prefix = if known && prefix.len() <= self.prefix_bytes_max {
            prefix
        } else {
            ""
        };
        let sum = self.prefixes.entry(prefix.to_owned()).or_default();
        prefix.clone_into(&mut sum.prefix);
        sum.objects += 1;
        sum.events += events;
        self.longest
            .push((Reverse(events), object, escape::differing(name)));
        if self.longest.len() > self.top {
            self.longest.pop();
        }
    }

    fn depth(self) -> Depth {
        let mut depth = self.depth;
        depth.by_prefix = self.prefixes.into_values().collect();
        depth.by_prefix.sort_by(|a, b| {
            b.events
                .cmp(&a.events)
                .then_with(|| a.prefix.cmp(&b.prefix))
        });
        let top = self.longest.into_sorted_vec().into_iter();
        depth.top = top
            .map(|(events, object, object_escaped)| ObjectDepth {
                object,
                object_escaped,
                events: events.0,
            })
            .collect();
        depth
    }
}

/// Returns the longest of these prefixes that the object has; an empty text if it has none.
fn longest<'a>(named: &'a [String], object: &str) -> &'a str {
    let has = |prefix: &&String| {
        object
            .strip_prefix(prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    };
    named
        .iter()
        .filter(has)
        .max_by_key(|prefix| prefix.len())
        .map_or("", String::as_str)
}

/// Returns the pause after a step that took `took` and found `found` queues. Over a slow link, most
/// of `took` is not time of Redis. So only a limited part of it counts.
fn pause(took: Duration, found: usize, share: f64) -> Duration {
    let found = u32::try_from(found).unwrap_or(u32::MAX);
    let most = STEP_MOST.saturating_add(QUEUE_MOST.saturating_mul(found));
    took.min(most).mul_f64((1.0 - share) / share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_walk_leaves_redis_its_share() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1), 1000, 0.5), ms(1));
        assert_eq!(pause(ms(1), 1000, 0.01), ms(99));
        assert_eq!(pause(ms(1), 1000, 1.0), ms(0));
        // Over a slow link, a step counts for at most 2 ms, plus 5 µs per queue.
        assert_eq!(pause(ms(300), 1000, 0.5), ms(7));
        assert_eq!(pause(ms(300), 0, 0.5), ms(2));
    }
}
