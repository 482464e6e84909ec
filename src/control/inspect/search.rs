//! Searches the lists of the workers for an object whose marker a pop has moved there.

use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use serde::Serialize;
use tokio::time::sleep;

use super::super::ControlError;
use super::super::names::{self, NameSet, Taken, Walk, slots_in};
use crate::keys::Keys;

/// Cost of a name, in slots: its value in `event.workers` and its lease are read.
const NAME_COST: u32 = 8;
/// Maximum cost of a bounded search, in slots. This takes Redis about 0.5 ms.
const COST_MAX: u32 = 400;
/// Longest time that Redis itself is assumed to need for a step. Over a slow link, most of the time
/// of a step is not time of Redis.
const STEP_MOST: Duration = Duration::from_millis(2);

/// The lists of workers that a search has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Searched {
    /// Number of slots that were read. A slot may count twice.
    pub slots: u64,
    /// Number of worker names whose slots were read, in whole or in part.
    pub names: u64,
    /// Whether the slots of all names that can have the object were read.
    pub all: bool,
}

/// The slots that a search reads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// All slots. The search takes at most this part of Redis' time.
    All { share: f64 },
    /// The first slots, at once.
    Bounded,
}

/// A search over the names, first the watched ones.
pub(super) struct Search<'a, F> {
    keys: &'a Keys,
    object: &'a [u8],
    extent: Extent,
    /// The cost that a bounded search has left.
    left: u32,
    /// The time of the last step.
    took: Option<Duration>,
    progress: F,
    pub(super) searched: Searched,
    pub(super) found: Taken,
}

impl<'a, F: FnMut(&Searched)> Search<'a, F> {
    pub(super) fn new(keys: &'a Keys, object: &'a [u8], extent: Extent, progress: F) -> Self {
        let searched = Searched {
            slots: 0,
            names: 0,
            all: true,
        };
        Self {
            keys,
            object,
            extent,
            left: COST_MAX,
            took: None,
            progress,
            searched,
            found: Taken::default(),
        }
    }

    /// Begins a new pass over the names.
    pub(super) fn again(&mut self) {
        (self.found, self.left) = (Taken::default(), COST_MAX);
        self.searched = Searched {
            slots: 0,
            names: 0,
            all: true,
        };
    }

    /// Reads the lists of these names. A bounded search ends when its cost is used up.
    pub(super) async fn read<C: ConnectionLike>(
        &mut self,
        conn: &mut C,
        which: NameSet,
    ) -> Result<(), ControlError> {
        let mut walk = Walk::of(conn, self.keys, which).await?;
        loop {
            self.pause().await;
            let began = Instant::now();
            let page = walk.next(conn, self.keys).await?;
            self.took = Some(began.elapsed());
            let Some(page) = page else { return Ok(()) };
            let names = page
                .iter()
                .map(|(name, value)| (name.as_str(), slots_in(value).unwrap_or(0)));
            let names: Vec<_> = names
                .map_while(|(name, slots)| Some((name, self.share(slots)?)))
                .collect();
            for step in names::steps(names.into_iter()) {
                self.pause().await;
                let began = Instant::now();
                names::taken_by(conn, self.keys, self.object, &step, &mut self.found).await?;
                self.took = Some(began.elapsed());
                self.searched.names += step.len() as u64;
                self.searched.slots += step.iter().map(|(_, slots)| u64::from(*slots)).sum::<u64>();
                (self.progress)(&self.searched);
            }
            if !self.searched.all {
                return Ok(());
            }
        }
    }

    /// Returns the number of slots to read of a name with this number of slots; `None` after the end
    /// of a bounded search.
    fn share(&mut self, slots: u32) -> Option<u32> {
        if let Extent::All { .. } = self.extent {
            return Some(slots);
        }
        let share = slots.min(self.left.saturating_sub(NAME_COST));
        self.left = self.left.saturating_sub(NAME_COST + share);
        self.searched.all &= share == slots;
        (share > 0 || slots == 0).then_some(share)
    }

    /// Pauses before the next step, so that the steps take no more than their share of time.
    async fn pause(&mut self) {
        if let (Extent::All { share }, Some(took)) = (self.extent, self.took.take()) {
            sleep(took.min(STEP_MOST).mul_f64((1.0 - share) / share)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the shares that a search reads of 100 names with this number of slots, and whether it
    /// reads all.
    fn shares(extent: Extent, slots: u32) -> (Vec<u32>, bool) {
        let keys = Keys::with_namespace("n").expect("a namespace");
        let mut search = Search::new(&keys, b"work:1", extent, |_: &Searched| {});
        let shares = |search: &mut Search<'_, _>| -> Vec<u32> {
            (0..100).map_while(|_| search.share(slots)).collect()
        };
        let first = (shares(&mut search), search.searched.all);
        // Another pass has the same cost.
        search.again();
        assert_eq!((shares(&mut search), search.searched.all), first);
        first
    }

    #[test]
    fn a_bounded_search_has_a_limited_cost() {
        assert_eq!(
            shares(Extent::Bounded, 256),
            (vec![256, 400 - 2 * 8 - 256], false)
        );
        assert_eq!(shares(Extent::Bounded, 4), (vec![4; 33], false));
        assert_eq!(
            shares(Extent::All { share: 0.1 }, 1000),
            (vec![1000; 100], true)
        );
    }
}
