//! The test's own records, kept outside Redis: the pushed events, the id of each event, and the
//! events that the receiver applied.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;

use super::state::{Name, State, text};

/// The number of an event. The payload is the number, padded with spaces.
pub type Number = u32;

pub fn payload(number: Number, len: usize) -> String {
    format!("{number:<len$}")
}

pub fn number(event: &[u8]) -> Number {
    String::from_utf8_lossy(event)
        .trim_end()
        .parse()
        .expect("the number of an event")
}

/// A batch as it was handed out.
#[derive(Debug, Clone)]
pub struct Hand {
    pub object: Name,
    pub tag: seriatim::wire::Tag,
    pub prev: u64,
    pub events: Vec<Bytes>,
}

#[derive(Default)]
pub struct World {
    pub pushed: BTreeMap<Name, Vec<Number>>,
    pub pushed_count: Number,
    /// Position of an event among the events of its object.
    pub place: HashMap<Number, usize>,
    pub id_of: HashMap<Number, u64>,
    event_of: HashMap<u64, Number>,
    last: HashMap<Name, u64>,
    last_place: HashMap<Name, usize>,
    pub applied: HashSet<Number>,
    pub dead: HashSet<Number>,
    pub counter: u64,
    /// Last ids that were forgotten.
    pub forgotten: HashSet<u64>,
    /// Failed attempts of each event, as the tag of its batch stated at the last look.
    pub attempts: HashMap<Number, u32>,
    /// Whether all processes have the event log on. The two fields below are the ids of the rows so
    /// far, and the events of these rows.
    pub logs: bool,
    pub log: Vec<u64>,
    pub logged: HashSet<Number>,
    /// Kind and selector of each rule without an end that was set before the last look.
    pub rules: BTreeSet<(&'static str, &'static str)>,
    /// Batch of each worker at the last look.
    pub in_hand: BTreeMap<String, Vec<Number>>,
}

impl World {
    /// Returns empty records, for processes with the event log on or off.
    pub fn of_processes(logs: bool) -> Self {
        Self {
            logs,
            ..Self::default()
        }
    }

    /// Records `count` new events of an object. Returns their numbers.
    pub fn push(&mut self, object: &Name, count: usize) -> Vec<Number> {
        let pushed = self.pushed.entry(object.clone()).or_default();
        let new: Vec<Number> = (self.pushed_count..).take(count).collect();
        for &number in &new {
            self.place.insert(number, pushed.len());
            pushed.push(number);
        }
        self.pushed_count += count as Number;
        new
    }

    /// Records the id with which an event was seen. An event must always have the same id, and no
    /// two events may have the same id.
    pub fn saw(&mut self, number: Number, id: u64) -> Result<(), String> {
        let before = *self.id_of.entry(number).or_insert(id);
        let other = *self.event_of.entry(id).or_insert(number);
        match (before == id, other == number) {
            (true, true) => Ok(()),
            (false, _) => Err(format!(
                "ids: event {number} had id {before} and now has {id}"
            )),
            (_, false) => Err(format!(
                "ids: {id} was given to event {other} and to event {number}"
            )),
        }
    }

    /// Returns the id of the object's last delivered event before this position.
    pub fn prev_of(&self, object: &Name, place: usize) -> u64 {
        let delivered = self.pushed[object][..place]
            .iter()
            .rev()
            .find(|number| !self.dead.contains(number));
        delivered.map_or(0, |number| self.id_of[number])
    }

    /// Delivers the first `count` events of a batch to the receiver. Returns an error if I5 does
    /// not hold.
    pub fn receive(&mut self, hand: &Hand, count: usize) -> Result<(), String> {
        let mut prev = hand.prev;
        for (at, event) in hand.events.iter().take(count).enumerate() {
            let id = hand.tag.first + at as u64;
            self.receive_one(&hand.object, id, prev, number(event))?;
            prev = id;
        }
        Ok(())
    }

    fn receive_one(
        &mut self,
        object: &Name,
        id: u64,
        prev: u64,
        number: Number,
    ) -> Result<(), String> {
        self.saw(number, id)?;
        let last = self.last.entry(object.clone()).or_default();
        let about = format!(
            "{} event {number} id {id} prev {prev} after {last}",
            text(object)
        );
        if id <= *last {
            return Ok(());
        } else if prev > *last {
            return Err(format!("I5: early: {about}"));
        }
        let Some(&place) = self.place.get(&number) else {
            return Err(format!("I5: never pushed: {about}"));
        };
        let next = self.last_place.get(object).map_or(0, |place| place + 1);
        let pushed = &self.pushed[object];
        if place < next || pushed.get(place) != Some(&number) {
            return Err(format!("I5: out of order: {about}"));
        }
        if let Some(skipped) = pushed[next..place]
            .iter()
            .find(|number| !self.dead.contains(number))
        {
            return Err(format!("I5: event {skipped} was skipped: {about}"));
        }
        *last = id;
        self.last_place.insert(object.clone(), place);
        self.applied.insert(number);
        Ok(())
    }

    /// Returns the pushed events that are neither applied nor dead letters.
    pub fn undone(&self) -> Vec<Number> {
        (0..self.pushed_count)
            .filter(|number| !self.applied.contains(number) && !self.dead.contains(number))
            .collect()
    }

    /// Records the dead letters.
    pub fn bury(&mut self, state: &State) -> Result<(), String> {
        for dead in &state.dead {
            let number = number(&dead.event);
            self.saw(number, dead.id)?;
            self.dead.insert(number);
        }
        if self.dead.len() != state.dead.len() {
            return Err(format!(
                "I4: {} dead letters of {} events",
                state.dead.len(),
                self.dead.len()
            ));
        }
        Ok(())
    }
}
