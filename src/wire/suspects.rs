//! How many batches that may kill its worker a process takes.

use std::fmt;

/// The room that a process has for suspects: batches whose first event has crashes, and may be what
/// kills its worker. Few are in hand at a time, so that a death counts against few others.
///
/// On the wire it is `MS[ CRASHES ROOM]…`, as `lua/lib/suspects.lua` reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspects {
    /// Crashes at which an event is put aside; 0: there are no suspects.
    crashes_max: u32,
    /// What is at `crashes_max` is settled without a delivery, and no suspect any more.
    settles: bool,
    in_hand: u32,
    /// The smallest limit of those in hand.
    limit: u32,
    put_off_ms: u64,
}

/// What may not be taken waits for so long at least.
const PUT_OFF_MS: u64 = 100;
/// In hand at most, by how many crashes are left before the event is put aside: one, two, more.
const LIMITS: [u32; 3] = [1, 4, 8];
/// With more than two crashes left, an event is a suspect from so many on.
const SUSPECT_FROM: u32 = 2;

impl Default for Suspects {
    fn default() -> Self {
        Self::NONE
    }
}

impl Suspects {
    /// No batch is a suspect.
    pub const NONE: Self = Self { crashes_max: 0, settles: false, in_hand: 0, limit: u32::MAX, put_off_ms: PUT_OFF_MS };

    /// Room for all that a process with nothing in hand may take. `settles`: the process settles
    /// what is at `crashes_max` without delivering it.
    pub fn of(crashes_max: u32, settles: bool) -> Self {
        Self { crashes_max, settles, ..Self::NONE }
    }

    /// A batch with so many crashes is in hand.
    pub fn has(&mut self, crashes: u32) {
        if let Some(limit) = self.limit_of(crashes) {
            self.in_hand += 1;
            self.limit = self.limit.min(limit);
        }
    }

    /// There is no room: another call under way has it.
    pub fn full(self) -> Self {
        Self { limit: 0, ..self }
    }

    /// What may not be taken waits for so long at least. Default: 100 ms.
    pub fn put_off(self, ms: u64) -> Self {
        Self { put_off_ms: ms, ..self }
    }

    /// How many there may be in hand together with one that has so many crashes; nothing where that
    /// is no suspect.
    fn limit_of(&self, crashes: u32) -> Option<u32> {
        let left = self.crashes_max.saturating_sub(crashes);
        match crashes {
            0 => None,
            _ if self.crashes_max == 0 || left == 0 && self.settles => None,
            _ if left <= 1 => Some(LIMITS[0]),
            _ if left == 2 => Some(LIMITS[1]),
            _ => (crashes >= SUSPECT_FROM).then_some(LIMITS[2]),
        }
    }
}

impl fmt::Display for Suspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.put_off_ms)?;
        let max = self.crashes_max;
        // With `crashes_max` 1, an event is put aside with its first crash.
        let mut from = [SUSPECT_FROM.min(max), max.saturating_sub(2), max.saturating_sub(1), max];
        from.sort_unstable();
        let mut before = 0;
        for crashes in from.into_iter().filter(|crashes| *crashes > 0) {
            if crashes == before {
                continue;
            }
            before = crashes;
            match self.limit_of(crashes) {
                Some(limit) => write!(f, " {crashes} {}", self.limit.min(limit).saturating_sub(self.in_hand))?,
                None if crashes == max && self.settles => write!(f, " {crashes} -")?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(crashes_max: u32, settles: bool, in_hand: &[u32]) -> String {
        let mut suspects = Suspects::of(crashes_max, settles);
        in_hand.iter().for_each(|crashes| suspects.has(*crashes));
        suspects.to_string()
    }

    /// At two crashes a process has at most 8 in hand, at three 4, at four 1; with other limits it
    /// is counted from the end.
    #[test]
    fn the_fewer_crashes_are_left_the_fewer_are_in_hand() {
        assert_eq!(text(5, false, &[]), "100 2 8 3 4 4 1 5 1");
        assert_eq!(text(5, true, &[]), "100 2 8 3 4 4 1 5 -");
        assert_eq!(text(4, true, &[]), "100 2 4 3 1 4 -");
        assert_eq!(text(3, false, &[]), "100 1 4 2 1 3 1");
        assert_eq!(text(2, true, &[]), "100 1 1 2 -");
        assert_eq!(text(1, false, &[]), "100 1 1");
        assert_eq!(text(1, true, &[]), "100 1 -");
        assert_eq!(text(1000, true, &[]), "100 2 8 998 4 999 1 1000 -");
        assert_eq!(Suspects::NONE.to_string(), "100");
    }

    #[test]
    fn those_in_hand_count() {
        assert_eq!(text(5, true, &[0, 1, 1]), "100 2 8 3 4 4 1 5 -");
        assert_eq!(text(5, true, &[2]), "100 2 7 3 3 4 0 5 -");
        assert_eq!(text(5, true, &[2, 3]), "100 2 2 3 2 4 0 5 -");
        assert_eq!(text(5, true, &[4]), "100 2 0 3 0 4 0 5 -");
        assert_eq!(Suspects::of(5, true).full().put_off(7).to_string(), "7 2 0 3 0 4 0 5 -");
    }
}
