//! The limit on the work that one call of `advance` causes. The limit is needed because Redis runs
//! no other command during the call.

/// The most that the results of one call may weigh together, in bytes.
const CALL_BYTES: usize = 2 << 20;
/// The basic weight of every batch, which costs about six commands.
const BATCH_BYTES: usize = 4096;
/// The weight of one command that takes or deletes an event.
const EVENT_BYTES: usize = 512;
/// The weight of one row of the event log. A row costs about two commands like those of an event.
const ROW_BYTES: usize = 1024;
/// The additional weight of a result that leaves a rest of the batch. Such a result costs about ten
/// more commands, which hold or keep the rest, record an error, or write a dead letter.
const REST_BYTES: usize = 8192;
/// The weight of one emitted event. It costs up to three commands, which read the type of its
/// queue, push the event, and add a marker.
const EMIT_BYTES: usize = 2048;
/// The weight of one finished handler or subtask. The call reads and deletes its field, whose name
/// may be long.
const FINISHED_BYTES: usize = 512;

/// The weight of one result, in bytes. Each command counts as the number of bytes that would take
/// Redis the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(usize);

impl Load {
    /// Returns the weight of a batch that leaves its slot. The object's next batch, which the same
    /// call may return, is not part of this weight: the script itself bounds that batch.
    pub fn of_batch(events: usize, bytes: usize) -> Self {
        Self(
            BATCH_BYTES
                .saturating_add(bytes)
                .saturating_add(events.saturating_mul(EVENT_BYTES)),
        )
    }

    /// Adds the weight of a rest that is held, kept or rejected.
    #[must_use]
    pub fn with_rest(self) -> Self {
        Self(self.0.saturating_add(REST_BYTES))
    }

    /// Adds the weight of rows of the event log.
    #[must_use]
    pub fn with_rows(self, rows: usize, bytes: usize) -> Self {
        Self(
            self.0
                .saturating_add(bytes)
                .saturating_add(rows.saturating_mul(ROW_BYTES)),
        )
    }

    /// Adds the weight of events that handlers have emitted.
    #[must_use]
    pub fn with_emits(self, events: usize, bytes: usize) -> Self {
        Self(
            self.0
                .saturating_add(bytes)
                .saturating_add(events.saturating_mul(EMIT_BYTES)),
        )
    }

    /// Adds the weight of the finished handlers and subtasks of the event that the result ends.
    #[must_use]
    pub fn with_finished(self, fields: usize) -> Self {
        Self(self.0.saturating_add(fields.saturating_mul(FINISHED_BYTES)))
    }
}

/// The weight that one call can still take.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    left: usize,
    is_empty: bool,
}

impl Room {
    /// Returns the room of one call. This room has no setting, because it depends only on Redis.
    /// (The limit on the bytes of a reply has a setting, because it depends on the network link.)
    pub fn of_call() -> Self {
        Self {
            left: CALL_BYTES,
            is_empty: true,
        }
    }

    /// Adds a result to the call if there is room for it. Returns whether there was room. The first
    /// result always fits, so a result larger than the whole room is sent in a call alone.
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
        let mut room = Room {
            left: 20_000,
            is_empty: true,
        };
        assert!(room.admits(Load::of_batch(1, 1 << 20)));
        assert!(!room.admits(Load::of_batch(1, 0)));
        let mut room = Room {
            left: 20_000,
            is_empty: true,
        };
        assert!(room.admits(Load::of_batch(1, 100)));
        assert!(!room.admits(Load::of_batch(1, 1 << 20)));
        assert!(room.admits(Load::of_batch(1, 100)));
    }

    /// Regression: finished subtasks once had no weight. One call read the subtasks of all slots,
    /// 128,000 with default settings, in 97 ms.
    #[test]
    fn a_call_takes_in_few_results_with_many_subtasks() {
        let mut room = Room::of_call();
        let taken = (0..128)
            .filter(|_| room.admits(Load::of_batch(1, 100).with_finished(1000)))
            .count();
        assert_eq!(taken, 4);
        let mut room = Room::of_call();
        let taken = (0..128)
            .filter(|_| room.admits(Load::of_batch(1, 100).with_finished(5)))
            .count();
        assert_eq!(taken, 128);
        assert!(Load::default().with_finished(usize::MAX) > Load::default().with_finished(1000));
    }

    #[test]
    fn rows_and_emits_weigh_more_than_events() {
        let batch = Load::of_batch(10, 1000);
        assert!(
            batch.with_rows(10, 1000) > batch
                && batch.with_emits(10, 1000) > batch.with_rows(10, 1000)
        );
        assert!(Load::of_batch(usize::MAX, 1).with_rows(1, 1) >= Load::of_batch(usize::MAX, 1));
    }
}
