//! The limit on suspects. A suspect is a batch that may kill its worker.

use std::fmt;

/// The number of suspects that a process may still take. A suspect is a batch whose first event has
/// crashes, so this event may be the one that kills workers. If a process dies, each batch that it
/// had in flight counts a crash. So a process has few suspects in hand at a time: then few healthy
/// events collect crashes together with the event that kills.
///
/// On the wire this is `MS[ CRASHES ROOM]…`, which `lua/values/suspects.lua` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspects {
    /// The number of crashes at which an event is no longer delivered, but held for an operator or
    /// ended (`settles`). 0: there are no suspects.
    crashes_max: u32,
    /// Whether the process itself ends events with `crashes_max` crashes, without delivering them.
    /// Such events are not suspects.
    settles: bool,
    in_hand: u32,
    /// The smallest limit among the suspects in hand.
    limit: u32,
    put_off_ms: u64,
}

/// The shortest wait of a suspect for which there is no room, in ms.
const PUT_OFF_MS: u64 = 100;
/// The most suspects in hand at a time, unless one of them must be alone.
const FEW: u32 = 4;
/// A suspect with at most this number of crashes left is the only one in hand. With two left, a healthy
/// event that has crashed together with the one that kills still survives a kill from outside.
const ALONE: u32 = 2;
/// An event with this number of crashes is a suspect, even if it is more than two crashes away from
/// `crashes_max`.
const SUSPECT_FROM: u32 = 2;

impl Default for Suspects {
    fn default() -> Self {
        Self::NONE
    }
}

impl Suspects {
    /// No limit: no batch is a suspect.
    pub const NONE: Self = Self {
        crashes_max: 0,
        settles: false,
        in_hand: 0,
        limit: u32::MAX,
        put_off_ms: PUT_OFF_MS,
    };

    /// Returns the room of a process with nothing in hand. `settles`: whether the process itself
    /// ends events with `crashes_max` crashes, without delivering them.
    pub fn of(crashes_max: u32, settles: bool) -> Self {
        Self {
            crashes_max,
            settles,
            ..Self::NONE
        }
    }

    /// Counts a batch in hand with this number of crashes. This leaves less room for suspects.
    pub fn has(&mut self, crashes: u32) {
        if let Some(limit) = self.limit_of(crashes) {
            self.in_hand += 1;
            self.limit = self.limit.min(limit);
        }
    }

    /// Returns the same limits, but no room. Used if another call under way may take suspects.
    pub fn full(self) -> Self {
        Self { limit: 0, ..self }
    }

    /// Sets the shortest wait of a suspect for which there is no room, in ms. Default: 100 ms.
    pub fn put_off(self, ms: u64) -> Self {
        Self {
            put_off_ms: ms,
            ..self
        }
    }

    /// Returns the most suspects that may be in hand as long as one of them has this number of
    /// crashes; `None` if a batch with this number of crashes is not a suspect.
    fn limit_of(&self, crashes: u32) -> Option<u32> {
        let left = self.crashes_max.saturating_sub(crashes);
        match crashes {
            0 => None,
            _ if self.crashes_max == 0 || left == 0 && self.settles => None,
            _ if left <= 1 || left <= ALONE && crashes >= SUSPECT_FROM => Some(1),
            _ => (left <= ALONE || crashes >= SUSPECT_FROM).then_some(FEW),
        }
    }
}

impl fmt::Display for Suspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.put_off_ms)?;
        let max = self.crashes_max;
        // The minimum is for a `crashes_max` of 1, at which the first crash already holds the
        // event.
        let mut from = [
            SUSPECT_FROM.min(max),
            max.saturating_sub(ALONE),
            max.saturating_sub(1),
            max,
        ];
        from.sort_unstable();
        let mut before = None;
        for crashes in from.into_iter().filter(|crashes| *crashes > 0) {
            let limit = self.limit_of(crashes);
            if before == Some(limit) {
                continue;
            }
            before = Some(limit);
            match limit {
                Some(limit) => write!(
                    f,
                    " {crashes} {}",
                    self.limit.min(limit).saturating_sub(self.in_hand)
                )?,
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

    /// Tests the limits for `crashes_max` 5: at most 4 in hand with two crashes, 1 with three or more.
    /// For other values of `crashes_max`, a limit depends on the number of crashes that are left.
    #[test]
    fn the_fewer_crashes_are_left_the_fewer_are_in_hand() {
        assert_eq!(text(5, false, &[]), "100 2 4 3 1");
        assert_eq!(text(5, true, &[]), "100 2 4 3 1 5 -");
        assert_eq!(text(4, true, &[]), "100 2 1 4 -");
        assert_eq!(text(3, false, &[]), "100 1 4 2 1");
        assert_eq!(text(2, true, &[]), "100 1 1 2 -");
        assert_eq!(text(1, false, &[]), "100 1 1");
        assert_eq!(text(1, true, &[]), "100 1 -");
        assert_eq!(text(1000, true, &[]), "100 2 4 998 1 1000 -");
        assert_eq!(Suspects::NONE.to_string(), "100");
    }

    #[test]
    fn those_in_hand_count() {
        assert_eq!(text(5, true, &[0, 1, 1]), "100 2 4 3 1 5 -");
        assert_eq!(text(5, true, &[2]), "100 2 3 3 0 5 -");
        assert_eq!(text(5, true, &[2, 3]), "100 2 0 3 0 5 -");
        assert_eq!(text(5, true, &[4]), "100 2 0 3 0 5 -");
        assert_eq!(
            Suspects::of(5, true).full().put_off(7).to_string(),
            "7 2 0 3 0 5 -"
        );
    }
}
