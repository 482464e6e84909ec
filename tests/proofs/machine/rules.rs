//! Pauses and blocks: an operator sets and lifts them, and they may end by time. The next call
//! wakes their objects.

use bytes::Bytes;

use super::operator::Action;
use super::reference::{Broken, FAR, Key, Name, Reference, Reply, remove};

/// The kinds of rules. The field of a rule is its kind, a blank, and its selector.
pub const KINDS: [&str; 2] = ["pause", "block"];
pub const SELECTORS: [&[u8]; 7] = [
    b"*",
    b"a:*",
    b"event.worker:*",
    b"a",
    b"b",
    b"event.worker:p.0",
    b"\xff{}\0",
];

#[derive(Debug, Clone)]
pub struct Rule {
    /// Step in which it was set.
    pub set: u64,
    /// Step at which the rule ends; none if it has no end.
    pub end: Option<u64>,
    pub lifted: bool,
}

impl Reference {
    fn is_in_force(&self, rule: &Rule) -> bool {
        !rule.lifted && rule.end.is_none_or(|end| end > self.now)
    }

    /// Returns whether a rule in force matches the object.
    pub fn is_ruled(&self, name: &Name) -> bool {
        self.rules
            .iter()
            .any(|(field, rule)| self.is_in_force(rule) && means(field, name))
    }

    /// Returns the time of the next waking: 0 if a rule is lifted, or else the first end of a rule.
    /// Returns none if no rule is lifted or has an end.
    pub fn next_rule(&self) -> Option<u64> {
        self.rules
            .values()
            .filter_map(|rule| if rule.lifted { Some(0) } else { rule.end })
            .min()
    }

    /// Sets or lifts a rule.
    pub fn rule(&mut self, kind: &'static str, selector: &Name, set: Option<bool>) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Actions, Broken::Rules]) {
            return Reply::WrongType;
        }
        let field: Name = [kind.as_bytes(), b" ", selector].concat().into();
        let old = self.rules.get(&field).cloned();
        let action = match (set, &old) {
            (Some(ends), _) => {
                let end = ends.then_some(FAR + self.now);
                self.rules.insert(
                    field,
                    Rule {
                        set: self.now,
                        end,
                        lifted: false,
                    },
                );
                kind
            }
            (None, None) => return Reply::Ruled("not set"),
            (None, Some(rule)) if rule.lifted => return Reply::Ruled("lifting"),
            (None, Some(rule)) => {
                self.rules.insert(
                    field,
                    Rule {
                        lifted: true,
                        ..rule.clone()
                    },
                );
                self.markers.push(Name::new());
                if kind == "pause" { "resume" } else { "unblock" }
            }
        };
        let object = selector.clone();
        self.actions.push(Action {
            action,
            object,
            id: String::new(),
            dead: None,
            error: None,
            event: None,
            key: None,
        });
        Reply::Ruled(match (set, old) {
            (None, _) => "lifted",
            (Some(_), None) => "new",
            (Some(_), Some(rule)) if self.is_in_force(&rule) => "again",
            (Some(_), Some(_)) => "revived",
        })
    }

    /// WAKE: makes objects due that only expired or lifted rules were holding, and deletes these
    /// rules. Returns whether there was such a rule.
    pub fn wake(&mut self) -> bool {
        let over: Vec<Name> = self
            .rules
            .iter()
            .filter(|(_, rule)| !self.is_in_force(rule))
            .map(|(field, _)| field.clone())
            .collect();
        for field in &over {
            for name in self.paused.clone() {
                if means(field, &name) && !self.is_ruled(&name) {
                    self.paused.remove(&name);
                    self.due.insert(name, self.now as i64);
                }
            }
            self.rules.remove(field);
        }
        !over.is_empty()
    }

    /// PAUSE: pauses an object under a rule that has events and has no owner, or the owner `w`.
    /// Returns whether the object is paused.
    pub fn pause(&mut self, w: &str, name: &Name, named: bool) -> bool {
        let has_events = self
            .object(name)
            .queue
            .right()
            .is_none_or(|queue| !queue.is_empty());
        if !self.is_ruled(name) || !has_events || self.due.contains_key(name) {
            return false;
        }
        self.leave_hand(name);
        self.paused.insert(name.clone());
        self.object(name).owner = Key::Right(Some("held".to_owned()));
        if named {
            remove(&mut self.worker(w).objects, name);
        }
        true
    }

    /// Returns whether the object is in `objects.held` or `objects.paused`. Also returns true if
    /// `objects.paused` is broken, because the object may be there.
    pub fn is_held(&self, name: &Name) -> bool {
        self.due.contains_key(name)
            || self.paused.contains(name)
            || self.is_broken(&[Broken::Paused])
    }

    pub fn unpause(&mut self, name: &Name) {
        if !self.is_broken(&[Broken::Paused]) {
            self.paused.remove(name);
        }
    }
}

fn means(field: &[u8], name: &[u8]) -> bool {
    let selector = &field["pause ".len()..];
    match selector {
        b"*" => true,
        [prefix @ .., b'*'] if prefix.ends_with(b":") => name.starts_with(prefix),
        selector => selector == name,
    }
}

/// Returns the value of the rule's field in `event.rules`.
pub fn value(rule: &Rule) -> Bytes {
    let (who, why) = (super::operator::WHO, super::operator::WHY);
    format!(
        "{} {} {} {} 0 {who}{why}",
        rule.set,
        rule.end.unwrap_or(0),
        u8::from(rule.lifted),
        who.len()
    )
    .into()
}
