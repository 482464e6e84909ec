//! How much work one call of `advance` may bring to Redis, which does nothing else meanwhile.

/// The largest weight of all results of one call together, in bytes.
const CALL_BYTES: usize = 2 << 20;
/// A batch, however small, takes about six commands.
const BATCH_BYTES: usize = 4096;
/// A command that takes or deletes an event costs about as much as so many bytes.
const EVENT_BYTES: usize = 512;
/// A row of the event log costs about two such commands.
const ROW_BYTES: usize = 1024;
/// A result that does not end a batch takes about ten commands more: the rest is held or kept, an
/// error noted, a dead letter written.
const REST_BYTES: usize = 8192;
/// An event that a handler has emitted takes up to three commands: its queue's type, the push and a
/// marker.
const EMIT_BYTES: usize = 2048;
/// A field that says what is finished of an event: it is read with its name, which may be long, and
/// deleted.
const FINISHED_BYTES: usize = 512;

/// The work of one result, in bytes: each command counts as a number of bytes that takes as long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(usize);

impl Load {
    /// A batch that leaves a slot. The next batch of the object, which may follow in the same call,
    /// is bounded by the script.
    pub fn of_batch(events: usize, bytes: usize) -> Self {
        Self(BATCH_BYTES.saturating_add(bytes).saturating_add(events.saturating_mul(EVENT_BYTES)))
    }

    /// Adds what becomes of the rest of the batch.
    #[must_use]
    pub fn with_rest(self) -> Self {
        Self(self.0.saturating_add(REST_BYTES))
    }

    /// Adds the rows of the event log.
    #[must_use]
    pub fn with_rows(self, rows: usize, bytes: usize) -> Self {
        Self(self.0.saturating_add(bytes).saturating_add(rows.saturating_mul(ROW_BYTES)))
    }

    /// Adds the events that handlers have emitted.
    #[must_use]
    pub fn with_emits(self, events: usize, bytes: usize) -> Self {
        Self(self.0.saturating_add(bytes).saturating_add(events.saturating_mul(EMIT_BYTES)))
    }

    /// Adds the subtasks and handlers that are finished of the event that the result ends.
    #[must_use]
    pub fn with_finished(self, fields: usize) -> Self {
        Self(self.0.saturating_add(fields.saturating_mul(FINISHED_BYTES)))
    }
}

/// The room for results that one call has left.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    left: usize,
    is_empty: bool,
}

impl Room {
    /// The room of one call, the same with all settings: what a reply may have depends on the link,
    /// what a call may do depends on Redis.
    pub fn of_call() -> Self {
        Self { left: CALL_BYTES, is_empty: true }
    }

    /// Takes the result in if there is room. The first one always fits: a result that is larger
    /// than the room goes alone.
    pub fn admits(&mut self, load: Load) -> bool {
        let fits = self.is_empty || load.0 <= self.left;
        if fits {
            self.left = self.left.saturating_sub(load.0);
            self.is_empty = false;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_the_room_goes_alone() {
        let mut room = Room { left: 20_000, is_empty: true };
        assert!(room.admits(Load::of_batch(1, 1 << 20)));
        assert!(!room.admits(Load::of_batch(1, 0)));
        let mut room = Room { left: 20_000, is_empty: true };
        assert!(room.admits(Load::of_batch(1, 100)));
        assert!(!room.admits(Load::of_batch(1, 1 << 20)));
        assert!(room.admits(Load::of_batch(1, 100)));
    }

    /// Finished subtasks weighed nothing: one call read those of all slots, 128,000 with default
    /// settings, in 97 ms.
    #[test]
    fn a_call_takes_in_few_results_with_many_subtasks() {
        let mut room = Room::of_call();
        let taken = (0..128).filter(|_| room.admits(Load::of_batch(1, 100).with_finished(1000))).count();
        assert_eq!(taken, 4);
        let mut room = Room::of_call();
        let taken = (0..128).filter(|_| room.admits(Load::of_batch(1, 100).with_finished(5))).count();
        assert_eq!(taken, 128);
        assert!(Load::default().with_finished(usize::MAX) > Load::default().with_finished(1000));
    }

    #[test]
    fn rows_and_emits_weigh_more_than_events() {
        let batch = Load::of_batch(10, 1000);
        assert!(batch.with_rows(10, 1000) > batch && batch.with_emits(10, 1000) > batch.with_rows(10, 1000));
        assert!(Load::of_batch(usize::MAX, 1).with_rows(1, 1) >= Load::of_batch(usize::MAX, 1));
    }
}
