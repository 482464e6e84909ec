//! Walks over the key space in bounded steps, with SCAN. A set remembers the keys seen.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

use redis::aio::ConnectionLike;

use super::ControlError;
use crate::keys::Keys;

/// Number of keys that Redis reads in one step, which takes some 100 microseconds.
const KEYS_PER_STEP: usize = 1000;

/// A walk over all keys of one namespace. Each key that exists during the whole walk is returned,
/// and some keys are returned twice.
pub(super) struct Scan {
    pattern: String,
    prefix: Vec<u8>,
    cursor: u64,
    done: bool,
}

impl Scan {
    /// Selects keys that end in `suffix`; all keys if `suffix` is empty. The pattern needs no
    /// escapes, because prefixes and suffixes have no character that is special in a pattern.
    pub(super) fn new(keys: &Keys, suffix: &str) -> Self {
        let pattern = format!("{}*{suffix}", keys.prefix());
        Self {
            pattern,
            prefix: keys.prefix().as_bytes().to_vec(),
            cursor: 0,
            done: false,
        }
    }

    /// Continues a walk at the position that [`position`](Self::position) has returned.
    pub(super) fn from(mut self, position: u64) -> Self {
        self.cursor = position;
        self
    }

    /// Returns the position of the next page; `None` after the last page.
    pub(super) fn position(&self) -> Option<u64> {
        (!self.done).then_some(self.cursor)
    }

    /// Returns the next keys without their prefix; `None` after the last page. A page may be empty.
    pub(super) async fn next<C: ConnectionLike>(
        &mut self,
        conn: &mut C,
    ) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        if self.done {
            return Ok(None);
        }
        let mut ask = redis::cmd("SCAN");
        ask.arg(self.cursor)
            .arg("MATCH")
            .arg(&self.pattern)
            .arg("COUNT")
            .arg(KEYS_PER_STEP);
        let (cursor, found): (u64, Vec<Vec<u8>>) = ask
            .query_async(conn)
            .await
            .map_err(ControlError::redis("SCAN"))?;
        self.cursor = cursor;
        self.done = cursor == 0;
        let ours = |key: &Vec<u8>| {
            key.starts_with(&self.prefix) && !(self.prefix.is_empty() && key.starts_with(b"{"))
        };
        Ok(Some(
            found
                .into_iter()
                .filter(ours)
                .map(|key| key[self.prefix.len()..].to_vec())
                .collect(),
        ))
    }
}

/// A set of the items seen, 8 bytes for each item, up to a limit. When the set is full, it no
/// longer remembers new items, and reports them as new each time. So callers must be correct
/// without the set.
pub(super) struct Dedup {
    hashes: HashSet<u64>,
    hasher: RandomState,
    entries_max: usize,
}

impl Dedup {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            hashes: HashSet::new(),
            hasher: RandomState::new(),
            entries_max,
        }
    }

    /// Adds the item. Returns whether it is new.
    pub(super) fn insert(&mut self, item: impl Hash) -> bool {
        let hash = self.hasher.hash_one(item);
        if self.hashes.len() < self.entries_max {
            self.hashes.insert(hash)
        } else {
            !self.hashes.contains(&hash)
        }
    }

    pub(super) fn contains(&self, item: impl Hash) -> bool {
        self.hashes.contains(&self.hasher.hash_one(item))
    }
}
