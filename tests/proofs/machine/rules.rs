//! Pauses and blocks: set and lifted by an operator, over by time, woken by whichever call comes
//! next.

use bytes::Bytes;

use super::operator::Action;
use super::reference::{Broken, FAR, Key, Name, Reference, Reply, remove};

/// What a rule is for: a kind and a blank, then the selector.
pub const KINDS: [&str; 2] = ["pause", "block"];
pub const SELECTORS: [&[u8]; 7] = [b"*", b"a:*", b"event.worker:*", b"a", b"b", b"event.worker:p.0", b"\xff{}\0"];

#[derive(Debug, Clone)]
pub struct Rule {
    /// The step in which it was set.
    pub set: u64,
    /// The step at which it ends; nothing: never.
    pub end: Option<u64>,
    pub lifted: bool,
}

impl Reference {
    fn is_in_force(&self, rule: &Rule) -> bool {
        !rule.lifted && rule.end.is_none_or(|end| end > self.now)
    }

    /// Whether nothing more of the object may be claimed.
    pub fn is_ruled(&self, name: &Name) -> bool {
        self.rules.iter().any(|(field, rule)| self.is_in_force(rule) && means(field, name))
    }

    /// When a rule is to be woken next: 0 where one is lifted; the first of their ends; nothing
    /// where none has one.
    pub fn next_rule(&self) -> Option<u64> {
        self.rules.values().filter_map(|rule| if rule.lifted { Some(0) } else { rule.end }).min()
    }

    /// SET and LIFT.
    pub fn rule(&mut self, kind: &'static str, selector: &Name, set: Option<bool>) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Actions, Broken::Rules]) {
            return Reply::WrongType;
        }
        let field: Name = [kind.as_bytes(), b" ", selector].concat().into();
        let old = self.rules.get(&field).cloned();
        let action = match (set, &old) {
            (Some(ends), _) => {
                let end = ends.then_some(FAR + self.now);
                self.rules.insert(field, Rule { set: self.now, end, lifted: false });
                kind
            }
            (None, None) => return Reply::Ruled("not set"),
            (None, Some(rule)) if rule.lifted => return Reply::Ruled("lifting"),
            (None, Some(rule)) => {
                self.rules.insert(field, Rule { lifted: true, ..rule.clone() });
                self.markers.push(Name::new());
                if kind == "pause" { "resume" } else { "unblock" }
            }
        };
        let object = selector.clone();
        self.actions.push(Action { action, object, id: String::new(), dead: None, error: None, event: None });
        Reply::Ruled(match (set, old) {
            (None, _) => "lifted",
            (Some(_), None) => "new",
            (Some(_), Some(rule)) if self.is_in_force(&rule) => "again",
            (Some(_), Some(_)) => "revived",
        })
    }

    /// WAKE: what only rules that are over have held is due, and these rules go. Answers whether
    /// there was one.
    pub fn wake(&mut self) -> bool {
        let over: Vec<Name> =
            self.rules.iter().filter(|(_, rule)| !self.is_in_force(rule)).map(|(field, _)| field.clone()).collect();
        for field in &over {
            for name in self.paused.clone() {
                if means(field, &name) && !self.is_ruled(&name) {
                    self.paused.remove(&name);
                    self.due.insert(name, self.now);
                }
            }
            self.rules.remove(field);
        }
        !over.is_empty()
    }

    /// PAUSE, of an object that nobody runs, or this worker, and that has events. Answers whether
    /// it is.
    pub fn pause(&mut self, w: &str, name: &Name, named: bool) -> bool {
        let has_events = self.object(name).queue.right().is_none_or(|queue| !queue.is_empty());
        if !self.is_ruled(name) || !has_events || self.due.contains_key(name) {
            return false;
        }
        self.paused.insert(name.clone());
        self.object(name).owner = Key::Right(Some("held".to_owned()));
        if named {
            remove(&mut self.worker(w).objects, name);
        }
        true
    }

    /// Whether it is in one of the sets, or may be: where that cannot be told, it is.
    pub fn is_held(&self, name: &Name) -> bool {
        self.due.contains_key(name) || self.paused.contains(name) || self.is_broken(&[Broken::Paused])
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

/// The value of a rule's field.
pub fn value(rule: &Rule) -> Bytes {
    let (who, why) = (super::operator::WHO, super::operator::WHY);
    format!("{} {} {} {} 0 {who}{why}", rule.set, rule.end.unwrap_or(0), u8::from(rule.lifted), who.len()).into()
}
