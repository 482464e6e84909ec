//! The events of a measurement. Each event has an object, a payload, and a preceding event of the
//! same object.
//!
//! An event is a number, counted from 0. Its object and its payload follow from this number. So
//! payloads are made on demand. The memory is about 13 bytes per event and 30 bytes per object.

use std::fmt;
use std::str::FromStr;

/// The predecessor of the first event of an object.
pub(super) const NONE: u32 = u32::MAX;
/// Maximum number of events. Every event number must fit into 32 bits and into the smallest
/// payload.
pub(super) const EVENTS_MAX: u64 = 100_000_000;
/// Minimum size of a payload in bytes. It has room for the frame of the JSON object and the longest
/// event number.
pub(super) const PAYLOAD_MIN: usize = 32;

const HEAD: &[u8] = b"{\"seq\":";
const MIDDLE: &[u8] = b",\"text\":\"";
const TAIL: &[u8] = b"\"}";

/// The distribution of events over objects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Skew {
    /// The n-th most frequent object has 1/n^exponent of the events of the most frequent object.
    Zipf(f64),
    /// All objects have about the same number of events.
    Uniform,
    /// Every event has its own object.
    Distinct,
    /// All events are of one object.
    Single,
}

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is none of zipf:EXPONENT (0 to 10, such as zipf:1.0), uniform, distinct, single"
            )
        };
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            None if text == "distinct" => Ok(Self::Distinct),
            None if text == "single" => Ok(Self::Single),
            Some(("zipf", exponent)) => match exponent.parse::<f64>() {
                Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf(exponent)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zipf(exponent) => write!(f, "zipf:{exponent:?}"),
            Self::Uniform => f.write_str("uniform"),
            Self::Distinct => f.write_str("distinct"),
            Self::Single => f.write_str("single"),
        }
    }
}

/// All events of a run.
pub(super) struct Workload {
    object_of: Vec<u32>,
    names: Vec<Box<str>>,
    payload_bytes: usize,
    objects_used: u64,
}

/// The order to keep: for each event, the preceding event of the same object and the same producer.
pub(super) struct Chain(Vec<u32>);

impl Workload {
    /// `groups`: the number of groups over which the objects are spread; 0: no groups.
    pub(super) fn new(
        events: u32,
        objects: u32,
        groups: u32,
        payload_bytes: usize,
        skew: Skew,
        seed: u64,
    ) -> Self {
        let objects = match skew {
            Skew::Distinct => events,
            Skew::Single => 1,
            Skew::Zipf(_) | Skew::Uniform => objects,
        };
        let object_of = draw(events, objects, skew, &mut fastrand::Rng::with_seed(seed));
        let mut used = vec![false; objects as usize];
        for object in &object_of {
            used[*object as usize] = true;
        }
        let objects_used = used.iter().filter(|used| **used).count() as u64;
        let name_of = |object: u32| match groups {
            0 | 1 => format!("work:{object}"),
            _ => format!("work{}:{object}", object % groups),
        };
        let names = (0..objects).map(|object| name_of(object).into()).collect();
        Self {
            object_of,
            names,
            payload_bytes,
            objects_used,
        }
    }

    pub(super) fn events(&self) -> usize {
        self.object_of.len()
    }

    /// Returns the number of objects that have at least one event.
    pub(super) fn objects_used(&self) -> u64 {
        self.objects_used
    }

    /// Returns the name of an event's object.
    pub(super) fn object(&self, event: usize) -> &str {
        self.object_of
            .get(event)
            .and_then(|object| self.names.get(*object as usize))
            .map_or("", |name| name)
    }

    /// Writes an event's payload: a JSON object of exactly the requested size that contains the
    /// event's number.
    pub(super) fn write_payload(&self, event: usize, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let end = out.len() + self.payload_bytes;
        out.extend_from_slice(HEAD);
        // Writing to a Vec never fails.
        let _ = write!(out, "{event}");
        out.extend_from_slice(MIDDLE);
        out.resize(end - TAIL.len(), b'x');
        out.extend_from_slice(TAIL);
    }

    /// Returns the payload of an event.
    pub(super) fn payload(&self, event: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload_bytes);
        self.write_payload(event, &mut out);
        out
    }

    /// Returns the number of the event with this payload; `None` if the payload is not from this
    /// bench.
    pub(super) fn number(&self, payload: &[u8]) -> Option<usize> {
        let digits = payload.strip_prefix(HEAD)?;
        let end = digits.iter().position(|byte| *byte == b',')?;
        let digits = digits
            .get(..end)
            .filter(|digits| (1..=9).contains(&digits.len()))?;
        let mut event = 0;
        for digit in digits {
            event = event * 10 + usize::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        }
        (payload.len() == self.payload_bytes && event < self.events()).then_some(event)
    }

    /// Returns the order to keep if `producers` producers emit the events in turn: the first
    /// producer emits event 0, the second one emits event 1, and so on.
    pub(super) fn chain(&self, producers: usize) -> Chain {
        let producers = producers.max(1);
        // For each object: the last producer seen, and its last event of this object. The loop
        // handles one producer after another, so one entry per object is enough.
        let mut last = vec![(usize::MAX, NONE); self.names.len()];
        let mut before = vec![NONE; self.events()];
        for producer in 0..producers.min(self.events()) {
            for event in (producer..self.events()).step_by(producers) {
                let last = &mut last[self.object_of[event] as usize];
                if last.0 == producer {
                    before[event] = last.1;
                }
                *last = (producer, event as u32);
            }
        }
        Chain(before)
    }
}

impl Chain {
    pub(super) fn before(&self, event: usize) -> Option<usize> {
        self.0
            .get(event)
            .filter(|before| **before != NONE)
            .map(|before| *before as usize)
    }
}

/// Draws the object of each event.
fn draw(events: u32, objects: u32, skew: Skew, random: &mut fastrand::Rng) -> Vec<u32> {
    let last = objects.saturating_sub(1);
    match skew {
        Skew::Distinct => (0..events).collect(),
        Skew::Single => vec![0; events as usize],
        Skew::Uniform => (0..events)
            .map(|_| ((random.f64() * f64::from(objects)) as u32).min(last))
            .collect(),
        Skew::Zipf(exponent) => {
            let mut sum = 0.0;
            let mut shares: Vec<f64> = Vec::with_capacity(objects as usize);
            for rank in 1..=objects {
                sum += f64::from(rank).powf(-exponent);
                shares.push(sum);
            }
            let mut rank = || {
                let drawn = random.f64() * sum;
                shares.partition_point(|share| *share <= drawn) as u32
            };
            (0..events).map(|_| rank().min(last)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skew: Skew, events: u32, objects: u32) -> Vec<u32> {
        let mut counts = vec![0; objects.max(events) as usize];
        for object in draw(events, objects, skew, &mut fastrand::Rng::with_seed(7)) {
            counts[object as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_first_object_of_zipf_has_n_times_the_events_of_the_nth() {
        let counts = counts(Skew::Zipf(1.0), 1_000_000, 1000);
        let first = f64::from(counts[0]);
        // With exponent 1 the first of 1,000 objects has 1/7.485 of all events, because the 1,000th
        // harmonic number is 7.485.
        assert!((first / 1_000_000.0 - 1.0 / 7.485).abs() < 0.002, "{first}");
        for rank in [2_u32, 5, 10, 100] {
            let share = f64::from(counts[rank as usize - 1]) * f64::from(rank) / first;
            assert!((share - 1.0).abs() < 0.1, "rank {rank}: {share}");
        }
        assert_eq!(counts[1000..].iter().sum::<u32>(), 0);
    }

    #[test]
    fn the_other_skews_are_what_their_names_say() {
        let uniform = counts(Skew::Uniform, 100_000, 10);
        assert!(
            uniform[..10]
                .iter()
                .all(|count| (9_500..10_500).contains(count)),
            "{:?}",
            &uniform[..10]
        );
        let flat = counts(Skew::Zipf(0.0), 100_000, 10);
        assert!(
            flat[..10]
                .iter()
                .all(|count| (9_500..10_500).contains(count)),
            "{:?}",
            &flat[..10]
        );
        assert!(
            counts(Skew::Distinct, 100, 100)
                .iter()
                .all(|count| *count == 1)
        );
        assert_eq!(counts(Skew::Single, 100, 1)[0], 100);
    }

    #[test]
    fn a_skew_is_read_as_it_is_shown() {
        for text in ["zipf:1.0", "zipf:0.5", "uniform", "distinct", "single"] {
            assert_eq!(text.parse::<Skew>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "zipf",
            "zipf:",
            "zipf:x",
            "zipf:-1",
            "zipf:NaN",
            "zipf:11",
            "uniform:1",
            "Single",
        ] {
            assert!(text.parse::<Skew>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_payload_has_its_size_and_tells_its_number() {
        let load = Workload::new(2_000, 10, 0, PAYLOAD_MIN, Skew::Uniform, 1);
        for event in [0, 7, 1_999] {
            let payload = load.payload(event);
            assert_eq!(
                (payload.len(), load.number(&payload)),
                (PAYLOAD_MIN, Some(event))
            );
            assert!(serde_json::from_slice::<serde_json::Value>(&payload).is_ok());
        }
        assert_eq!(
            load.number(b"{\"seq\":2000,\"text\":\"xxxxxxxxxxx\"}"),
            None
        );
        assert_eq!(load.number(b"{}"), None);
    }

    #[test]
    fn a_chain_leads_to_the_event_of_the_same_object_and_producer() {
        let load = Workload::new(6, 1, 0, 64, Skew::Single, 1);
        let befores = |chain: Chain| (0..6).map(|event| chain.before(event)).collect::<Vec<_>>();
        assert_eq!(
            befores(load.chain(1)),
            [None, Some(0), Some(1), Some(2), Some(3), Some(4)]
        );
        assert_eq!(
            befores(load.chain(2)),
            [None, None, Some(0), Some(1), Some(2), Some(3)]
        );
    }
}
