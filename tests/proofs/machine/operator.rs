//! The actions of an operator: dead letters are retried or dropped, held objects released, their
//! first events skipped, idle objects forgotten, schedules cancelled. All actions are recorded.

use bytes::Bytes;
use seriatim::wire::Forgot;

use super::reference::{Broken, Dead, End, Key, Name, Numbers, Reference, Reply, Row};

/// The operator of all actions. Their reason is `WHY`.
pub const WHO: &str = "ada@host";
pub const WHY: &str = "because";

/// A recorded action.
#[derive(Debug, Clone)]
pub struct Action {
    pub action: &'static str,
    pub object: Name,
    /// Id of the event; empty for an action without an event.
    pub id: String,
    pub dead: Option<u64>,
    pub error: Option<Bytes>,
    pub event: Option<Bytes>,
    /// Key of a cancelled schedule.
    pub key: Option<&'static str>,
}

impl Reference {
    /// Returns whether an action must be refused, because a shared key that it needs is broken.
    /// Every action needs the markers and the actions. `keys` are the other keys that it needs.
    fn refuses(&self, keys: &[Broken]) -> bool {
        self.is_broken(&[Broken::Markers, Broken::Actions]) || self.is_broken(keys)
    }

    /// RETRY and DROP: retries or drops dead letters. Returns the result of each dead letter.
    pub fn settle(&mut self, retry: bool, serials: &[u64]) -> Reply {
        if self.refuses(&[Broken::Dead]) {
            return Reply::WrongType;
        }
        Reply::Settled(
            serials
                .iter()
                .map(|serial| self.settle_one(retry, *serial))
                .collect(),
        )
    }

    fn settle_one(&mut self, retry: bool, serial: u64) -> &'static str {
        let Some(at) = self.dead.iter().position(|dead| dead.serial == serial) else {
            return "gone";
        };
        let Dead {
            object,
            id: own,
            event,
            error,
            ..
        } = self.dead[at].clone();
        let id = own.to_string();
        if !retry {
            self.dead.remove(at);
            let (error, event) = (Some(error), Some(event));
            self.actions.push(Action {
                action: "drop",
                object,
                id,
                dead: Some(serial),
                error,
                event,
                key: None,
            });
            return "dropped";
        }
        let is_late = self
            .object(&object)
            .last_id()
            .is_some_and(|last| last > own);
        let Key::Right(queue) = &mut self.object(&object).queue else {
            return "wrong_type";
        };
        queue.push(event);
        self.dead.remove(at);
        self.markers.insert(0, object.clone());
        self.actions.push(Action {
            action: "retry",
            object,
            id,
            dead: Some(serial),
            error: None,
            event: None,
            key: None,
        });
        if is_late { "retried_late" } else { "retried" }
    }

    /// Makes the object due at once, and pushes an empty marker that wakes a worker.
    fn make_due(&mut self, object: &Name) {
        self.due.insert(object.clone(), 0);
        self.markers.push(Name::new());
    }

    /// Returns the numbers of the held batch and the reason of the hold. Without a held batch the
    /// id is 0.
    pub fn held_for(&mut self, object: &Name) -> Option<(Numbers, Bytes)> {
        let held_id = self.object(object).held_id.right()?.clone()?;
        let why = held_id.splitn(5, |byte| *byte == b' ').nth(4)?;
        let numbers =
            Numbers::of_held(&Key::Right(Some(held_id.clone()))).unwrap_or(Numbers::of(0));
        Some((numbers, Bytes::copy_from_slice(why)))
    }

    /// RELEASE.
    pub fn set_free(&mut self, object: &Name) -> Reply {
        if self.refuses(&[Broken::Held, Broken::Paused]) {
            return Reply::WrongType;
        } else if self.paused.contains(object) {
            return Reply::Paused;
        } else if !self.due.contains_key(object) {
            return Reply::NotHeld(self.owner(object).unwrap_or_default());
        }
        let held_for = self.held_for(object);
        let why = held_for
            .as_ref()
            .map(|(_, why)| why.clone())
            .unwrap_or_default();
        let has_ids = held_for
            .as_ref()
            .is_some_and(|(numbers, _)| numbers.first > 0);
        let has_batch = self
            .object(object)
            .held
            .right()
            .is_some_and(|batch| !batch.is_empty());
        if has_batch && !has_ids {
            return Reply::NoIds(String::from_utf8_lossy(&why).into_owned());
        }
        let id = held_for.map_or(String::new(), |(numbers, _)| numbers.first.to_string());
        self.make_due(object);
        let error = Some(why.clone());
        self.actions.push(Action {
            action: "release",
            object: object.clone(),
            id,
            dead: None,
            error,
            event: None,
            key: None,
        });
        Reply::Released(String::from_utf8_lossy(&why).into_owned())
    }

    /// FORGET of one object, with a record if its last id is deleted.
    pub fn forget_as(&mut self, object: &Name) -> Reply {
        if self.refuses(&[Broken::Held, Broken::Paused]) {
            return Reply::WrongType;
        }
        let Some(forgot) = self.forget_one(object) else {
            unreachable!("no shared key is broken")
        };
        if let Forgot::Forgotten { last_event_id } = &forgot {
            // A last id that is no number is left out.
            let id = last_event_id
                .parse::<u64>()
                .map_or(String::new(), |id| id.to_string());
            let object = object.clone();
            self.actions.push(Action {
                action: "forget",
                object,
                id,
                dead: None,
                error: None,
                event: None,
                key: None,
            });
        }
        Reply::Forgot(vec![forgot])
    }

    /// CANCEL of an operator: deletes a schedule, and ends its event if the event is held.
    pub fn cancel_as(&mut self, object: &Name, key: &'static str) -> Reply {
        if self.refuses(&[Broken::Scheduled]) {
            return Reply::WrongType;
        }
        let id = self.object(object).key.map_or(0, |(id, _)| id);
        let taken = self.cancel_taken(object, key);
        if taken == Reply::WrongType {
            return taken;
        }
        let was_scheduled = self.schedules.contains_key(&(object.clone(), key));
        self.cancel(object, key);
        let has_ended = taken == Reply::Cancelled("cancelled");
        if was_scheduled && !has_ended {
            let end = End {
                status: "cancelled",
                id: 0,
                error: Bytes::from_static(b"cancelled: an operator has cancelled it"),
                attempts: 0,
                results: None,
            };
            self.end(object, key, end);
        }
        if has_ended || was_scheduled {
            let (id, object) = (
                if has_ended {
                    id.to_string()
                } else {
                    String::new()
                },
                object.clone(),
            );
            self.actions.push(Action {
                action: "cancel",
                object,
                id,
                dead: None,
                error: None,
                event: None,
                key: Some(key),
            });
        }
        match taken {
            Reply::Cancelled("running") => Reply::CancelledAs("running", id, was_scheduled),
            _ if has_ended => Reply::CancelledAs("cancelled", id, false),
            _ if was_scheduled => Reply::CancelledAs("cancelled", 0, false),
            _ => Reply::CancelledAs("absent", 0, false),
        }
    }

    /// SKIP.
    pub fn skip(&mut self, object: &Name, expected: Option<u64>) -> Reply {
        let found = self.object(object).clone();
        let wrong =
            found.held == Key::Wrong || found.held_id == Key::Wrong || found.last == Key::Wrong;
        if self.refuses(&[
            Broken::Held,
            Broken::Paused,
            Broken::Dead,
            Broken::Log,
            Broken::Meta,
        ]) || wrong
        {
            return Reply::WrongType;
        } else if self.paused.contains(object) {
            return Reply::Paused;
        } else if found.owner != Key::Right(Some("held".to_owned()))
            || !self.due.contains_key(object)
        {
            return Reply::NotHeld(self.owner(object).unwrap_or_default());
        }
        let (numbers, why) = self
            .held_for(object)
            .unwrap_or((Numbers::of(0), Bytes::new()));
        let mut batch = found.held.right().cloned().unwrap_or_default();
        if batch.is_empty() {
            return Reply::NoBatch(String::from_utf8_lossy(&why).into_owned());
        } else if numbers.first == 0 {
            return Reply::NoIds(String::from_utf8_lossy(&why).into_owned());
        } else if expected.is_some_and(|id| id != numbers.first) {
            return Reply::OtherHead(numbers.first);
        }
        let is_over = found
            .handled
            .as_ref()
            .is_some_and(|kept| kept.id <= numbers.first);
        if is_over
            && found
                .handled
                .as_ref()
                .and_then(|kept| self.cannot_push(kept))
                .is_some()
        {
            return Reply::WrongType;
        }
        let event = batch.remove(0);
        let left = batch.len() as u64;
        let error: Bytes = [b"skipped: ", &why[..]].concat().into();
        let prev = found.last_id().unwrap_or(0).to_string();
        let results = found
            .handled
            .as_ref()
            .and_then(|kept| kept.results_of(numbers.first));
        if let Some((_, key)) = found.key.filter(|(id, _)| *id == numbers.first) {
            let end = End {
                status: "dead",
                id: numbers.first,
                error: error.clone(),
                attempts: numbers.attempts,
                results: results.clone(),
            };
            self.end(object, key, end);
        }
        let serial = self.bury(numbers.first, prev, object, event, error, numbers.attempts);
        if let (true, Some(dead)) = (self.log_on, self.dead.last()) {
            self.log.push(Row {
                status: "dead",
                event: dead.clone(),
                taken: false,
                results,
            });
        }
        let rest = numbers.after(1).held_id(b"skip");
        let held = self.object(object);
        held.held = Key::Right(batch);
        held.errors = Key::default();
        held.key = None;
        held.held_id = Key::Right((left > 0).then_some(rest));
        if is_over {
            self.end_handled(object);
        }
        self.make_due(object);
        let id = numbers.first.to_string();
        self.actions.push(Action {
            action: "skip",
            object: object.clone(),
            id,
            dead: Some(serial),
            error: Some(why),
            event: None,
            key: None,
        });
        Reply::Skipped {
            id: numbers.first,
            left,
        }
    }
}
