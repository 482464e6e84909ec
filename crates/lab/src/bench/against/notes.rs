//! The notes of handlers, and the check of the order.
//!
//! `=MS`: the worker is ready. `+NUMBER KEY MS`: the handler of an event begins. `-NUMBER`: the handler
//! ends; without any such note, each handler ends when it begins.

use crate::bench::workload::{Chain, Workload};

/// The notes of one drain.
#[derive(Debug)]
pub(super) struct Notes {
    ready_ms: f64,
    /// For each event, the time at which its handler began.
    begun_ms: Vec<f64>,
    /// Number of events whose handlers began before the handler of the preceding event of the same key
    /// had ended.
    pub(super) out_of_order: u64,
}

impl Notes {
    /// Reads the notes on the first `wanted` events. It is an error if an event is absent, came twice, or
    /// has the wrong key.
    pub(super) fn read(
        text: &str,
        load: &Workload,
        chain: &Chain,
        wanted: usize,
    ) -> Result<Self, String> {
        let takes_time = text.lines().any(|line| line.starts_with('-'));
        let mut begun_ms: Vec<Option<f64>> = vec![None; wanted];
        let mut ended = vec![false; wanted];
        let (mut ready_ms, mut out_of_order) = (f64::NAN, 0);
        for line in text.lines() {
            let unreadable = || format!("a note cannot be read: {line:?}");
            let (sign, rest) = line.split_at_checked(1).ok_or_else(unreadable)?;
            let mut words = rest.split(' ');
            if sign == "=" {
                ready_ms = words.next().and_then(ms).ok_or_else(unreadable)?;
                continue;
            }
            let event = words
                .next()
                .and_then(|word| word.parse::<usize>().ok())
                .filter(|event| *event < wanted)
                .ok_or_else(unreadable)?;
            if sign == "+" {
                let key = words.next().ok_or_else(unreadable)?;
                let began = words.next().and_then(ms).ok_or_else(unreadable)?;
                if key != load.object(event) {
                    return Err(format!(
                        "event {event} came with the key {key:?}, not {:?}",
                        load.object(event)
                    ));
                }
                if begun_ms[event].replace(began).is_some() {
                    return Err(format!("event {event} of {key} came twice"));
                }
                out_of_order += u64::from(chain.before(event).is_some_and(|before| !ended[before]));
                ended[event] = !takes_time;
            } else if sign == "-" && begun_ms[event].is_some() {
                ended[event] = true;
            } else {
                return Err(unreadable());
            }
        }
        let handled = ended.iter().filter(|ended| **ended).count();
        let begun_ms: Vec<f64> = begun_ms.into_iter().flatten().collect();
        if handled < wanted || begun_ms.len() < wanted {
            return Err(format!("only {handled} of {wanted} events were handled"));
        }
        Ok(Self {
            ready_ms,
            begun_ms,
            out_of_order,
        })
    }

    /// Returns the time from the ready worker to the last handler. A program may notice late that its
    /// worker is ready: then the time counts from the first handler.
    pub(super) fn took_ms(&self) -> f64 {
        let first = self.begun_ms.iter().copied().fold(self.ready_ms, f64::min);
        self.begun_ms.iter().copied().fold(f64::NAN, f64::max) - first
    }

    /// Returns for each event the time from its emit to its handler.
    pub(super) fn since(&self, emitted_ms: &[f64]) -> Vec<f64> {
        let pairs = self.begun_ms.iter().zip(emitted_ms);
        pairs.map(|(begun, emitted)| begun - emitted).collect()
    }
}

fn ms(word: &str) -> Option<f64> {
    word.parse().ok().filter(|ms: &f64| ms.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload::Skew;

    fn read(text: &str) -> Result<Notes, String> {
        let load = Workload::new(3, 1, 0, 64, Skew::Single, 1);
        Notes::read(text, &load, &load.chain(1), 3)
    }

    #[test]
    fn an_event_before_its_predecessor_is_out_of_order() {
        let of = |text: &str| read(text).map(|notes| notes.out_of_order);
        let [a, b, c] = ["+0 work:0 1\n", "+1 work:0 2\n", "+2 work:0 3\n"];
        assert_eq!(of(&[a, b, c].concat()), Ok(0));
        assert_eq!(of(&[b, a, c].concat()), Ok(1));
        assert_eq!(of(&[c, b, a].concat()), Ok(2));
        // Handlers that take time: the second begins before the end of the first.
        assert_eq!(of(&[a, "-0\n", b, "-1\n", c, "-2\n"].concat()), Ok(0));
        assert_eq!(of(&[a, b, "-0\n", "-1\n", c, "-2\n"].concat()), Ok(1));
    }

    #[test]
    fn absent_repeated_and_foreign_events_are_errors() {
        for (text, why) in [
            ("+0 work:0 1\n+1 work:0 2\n", "only 2 of 3 events"),
            ("+0 work:0 1\n+0 work:0 2\n", "event 0 of work:0 came twice"),
            ("+0 work:1 1\n", "came with the key \"work:1\""),
            ("+3 work:0 1\n", "cannot be read"),
            ("-0\n", "cannot be read"),
            ("+0 work:0 x\n", "cannot be read"),
            ("\n", "cannot be read"),
            ("+0 work:0 1\n+1 work:0 2\n+2 work:0 3\n-0\n", "only 1 of 3"),
        ] {
            let error = read(text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn times_count_from_the_ready_worker_and_from_the_emits() {
        let notes = read("=10\n+1 work:0 13\n+0 work:0 15\n+2 work:0 14\n").expect("notes");
        assert_eq!(notes.took_ms(), 5.0);
        let notes_late = read("=14\n+1 work:0 13\n+0 work:0 15\n+2 work:0 14\n").expect("notes");
        assert_eq!(notes_late.took_ms(), 2.0);
        assert_eq!(notes.since(&[11.0, 11.0, 11.0]), [4.0, 2.0, 3.0]);
    }
}
