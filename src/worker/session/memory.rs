//! The knowledge of a process about its Redis, which all its connections share: the highest id
//! seen, and the servers met.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::RedisError;
use tokio::time::Instant;

/// The knowledge that all connections of the process share.
#[derive(Debug, Default)]
pub(crate) struct RedisMemory {
    /// The highest id seen.
    highest: AtomicU64,
    /// The number of times that a new connection found a changed history of Redis (a failover, a
    /// restart).
    changes: AtomicU64,
    /// The replication ids of the servers met.
    history: Mutex<History>,
    /// The start of the last sweep of the process, in any of its sessions.
    swept_at: Mutex<Option<Instant>>,
    /// The warnings that are logged already. Every connection finds the same cause again.
    warned: Mutex<HashSet<Warning>>,
}

/// A warning about Redis that a process logs once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::worker) enum Warning {
    /// The replication id of the server is unknown.
    Replication,
    /// The database may have keys of other programs.
    ForeignKeys,
}

/// The replication ids of the servers met. A server gets a new id at each restart and each
/// failover.
#[derive(Debug, Default)]
struct History {
    /// The replication id of the server that was met last; empty if unknown.
    last: String,
    /// The ids of masters that were replaced: ids that a later master has named as its own former
    /// ids, and ids of servers that the process has met before the last one. At most
    /// [`REPLACED_MAX`].
    replaced: VecDeque<String>,
}

/// The number of replaced masters that a process remembers.
const REPLACED_MAX: usize = 64;

impl History {
    fn replace(&mut self, id: String) {
        if !self.replaced.contains(&id) {
            self.replaced.push_back(id);
            if self.replaced.len() > REPLACED_MAX {
                self.replaced.pop_front();
            }
        }
    }
}

impl RedisMemory {
    /// Raises the highest id seen to this id, if this id is higher.
    pub(in crate::worker) fn saw(&self, id: u64) {
        self.highest.fetch_max(id, Ordering::Relaxed);
    }

    /// Returns the highest id seen.
    pub(in crate::worker) fn highest(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }

    /// Returns the number of times that the process found a changed history of Redis (a failover, a
    /// restart).
    pub(in crate::worker) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Records that a changed history of Redis was found.
    pub(in crate::worker) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether this warning comes for the first time in this process.
    pub(in crate::worker) fn is_new(&self, warning: Warning) -> bool {
        self.warned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(warning)
    }

    /// Records that a sweep begins now. Returns the time since the previous sweep; `None` for the
    /// first sweep.
    pub(in crate::worker) fn sweeps(&self) -> Option<Duration> {
        let mut swept_at = self.swept_at.lock().unwrap_or_else(PoisonError::into_inner);
        swept_at
            .replace(Instant::now())
            .map(|before| before.elapsed())
    }

    /// Records the server of a new connection. Returns whether its history differs from the history
    /// of the last server. The script `connect` reports a change only to the first process that
    /// connects. So each process compares replication ids for itself, too.
    ///
    /// # Errors
    /// The server was replaced: this process has met another master that continues the server's
    /// history. Writes that the replaced server still accepts will be lost. Nor may the counter of
    /// the replaced server jump: two counters that both jumped to the time could give the same ids.
    pub(in crate::worker) fn met(
        &self,
        Replication { id, before }: &Replication,
    ) -> Result<bool, RedisError> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.replaced.contains(id) {
            let text = "another master has replaced this server, and writes to it will be lost; if you went back to it on purpose, \
                        restart this process";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text).into());
        }
        if id.is_empty() {
            return Ok(false);
        }
        if !before.is_empty() {
            history.replace(before.clone());
        }
        let differs = !history.last.is_empty() && history.last != *id;
        if differs {
            // The last server is replaced, too. `before` may name another server, because there may
            // have been more than one failover since.
            let last = std::mem::take(&mut history.last);
            history.replace(last);
            // Counts the change at once. A call on another connection may get the reply `fenced`
            // just now, and the process must not take this for a takeover of its name.
            self.changed();
        }
        history.last.clone_from(id);
        Ok(differs)
    }
}

/// The replication ids that a server reports.
#[derive(Debug, Default)]
pub(in crate::worker) struct Replication {
    /// The server's replication id; empty if unknown.
    pub(in crate::worker) id: String,
    /// The id of the master whose history the server continues; empty if there is none.
    pub(in crate::worker) before: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(memory: &RedisMemory, id: &str, before: &str) -> Option<bool> {
        memory
            .met(&Replication {
                id: id.to_owned(),
                before: before.to_owned(),
            })
            .ok()
    }

    #[test]
    fn a_server_that_was_replaced_is_refused() {
        let memory = RedisMemory::default();
        assert_eq!(met(&memory, "a", ""), Some(false));
        assert_eq!(met(&memory, "a", ""), Some(false));
        assert_eq!(met(&memory, "b", "a"), Some(true), "a failover");
        assert_eq!(met(&memory, "a", ""), None, "the master before");
        // Two failovers: the process has not met the master between them.
        assert_eq!(met(&memory, "d", "c"), Some(true));
        assert_eq!(
            [met(&memory, "b", "a"), met(&memory, "c", "b")],
            [None, None]
        );
        assert_eq!(met(&memory, "", ""), Some(false), "a user without INFO");
        assert_eq!(met(&memory, "d", "c"), Some(false));
    }
}
