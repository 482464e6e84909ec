//! The state of an object and of its first event, and an explanation in one sentence.

use super::super::rules::{Kind, Rule};
use super::fields::Fields;
use super::inspection::{EventState, Standing};
use super::search::Searched;
use crate::escape;
use crate::keys::Keys;
use crate::wire::values::{DueTime, Holder};

/// The group whose list has the names of all groups without a list.
const REST: &str = "\0rest";

impl Fields {
    pub(super) fn standing(&self) -> Standing {
        let events = ["queued", "batch", "held"]
            .iter()
            .any(|place| self.number(place).is_some_and(|n| n > 0));
        let held = self.text("due_ms").is_some() || self.text("paused").is_some();
        match self.text("owner") {
            Some("held") if self.text("paused").is_some() && self.text("due_ms").is_none() => {
                match self.rule() {
                    Some(Rule {
                        kind: Kind::Block, ..
                    }) => Standing::Blocked,
                    _ => Standing::Paused,
                }
            }
            Some("held") => Standing::Held,
            None if held => Standing::Held,
            Some(_) if self.text("lease").is_some() => Standing::Owned,
            Some(_) => Standing::OwnerGone,
            None if !self.taken.is_empty() => Standing::Taken,
            None if ["markers_before", "group"]
                .iter()
                .any(|place| self.text(place).is_some()) =>
            {
                Standing::Marked
            }
            None if events
                && ["markers_beyond", "group_beyond"]
                    .iter()
                    .any(|place| self.text(place).is_some()) =>
            {
                Standing::Marked
            }
            None if events && self.searched.is_some_and(|searched| !searched.all) => {
                Standing::Unclear
            }
            None if events => Standing::Uncovered,
            None if self.text("last").is_some()
                || self.text("schedules").is_some()
                || !self.wrong.is_empty() =>
            {
                Standing::Idle
            }
            None => Standing::Unknown,
        }
    }

    pub(super) fn state(&self, standing: Standing) -> Option<EventState> {
        let has = |place: &str| self.number(place).is_some_and(|n| n > 0);
        let ruled = || {
            self.rule().map(|rule| {
                if rule.kind == Kind::Block {
                    EventState::Blocked
                } else {
                    EventState::Paused
                }
            })
        };
        let queued = || has("queued").then(|| ruled().unwrap_or(EventState::Queued));
        let now = self.number("now_ms").unwrap_or(0);
        match standing {
            Standing::Paused => Some(EventState::Paused),
            Standing::Blocked => Some(EventState::Blocked),
            Standing::Owned | Standing::OwnerGone if has("batch") => Some(EventState::InFlight),
            Standing::Held if has("held") && self.due().is_some_and(|due| due.is_due(now)) => {
                Some(ruled().unwrap_or(EventState::Waiting))
            }
            Standing::Held if has("held") || self.due() == Some(DueTime::Never) => {
                Some(EventState::Waiting)
            }
            _ => queued(),
        }
    }

    /// Returns the minimum time for which the object's first marker has waited, in ms.
    pub(super) fn waits_ms(&self) -> Option<u64> {
        Some(
            self.number("now_ms")?
                .saturating_sub(self.number("marked_before_ms")?),
        )
    }

    /// Returns the first rule that is in force. Blocks come before pauses.
    fn rule(&self) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.in_force)
    }

    pub(super) fn why(&self, standing: Standing, keys: &Keys, object: &str) -> String {
        let owner = &*escape::name(self.text("owner").unwrap_or("nobody"));
        let is_known = self.searched.is_none_or(|searched| searched.all);
        let nobody = match &self.sinks_down {
            _ if self.names_alive == 0 && is_known => {
                ", but no worker process is running".to_owned()
            }
            Some(error) => format!(", but the sinks of all worker processes are down: {error}"),
            None => String::new(),
        };
        let nobody = nobody.as_str();
        match standing {
            Standing::Unknown => {
                "nothing is known of it: no event of it waits, and none was delivered, under this name and namespace".to_owned()
            }
            Standing::Idle if self.text("schedules").is_some() => {
                "no event of it waits; its scheduled events are queued when they are due".to_owned()
            }
            Standing::Idle if self.text("last").is_none() => "it has no events".to_owned(),
            Standing::Idle => "all its events are delivered or dead letters".to_owned(),
            Standing::Owned => {
                let holder = self.text("lease").and_then(Holder::of_lease);
                let (host, pid) = holder.as_ref().map_or(("?", 0), |holder| (holder.host_name(), holder.pid()));
                // A lease without an end has a negative time to live, which is no number here.
                let lasts = self.number("lease_ttl_ms").map_or_else(
                    || "has no end until a worker process looks at it".to_owned(),
                    |ms| format!("lasts {} more unless renewed", seconds(ms as f64)),
                );
                format!("worker {owner} has it: process {pid} on {host}, whose lease {lasts}")
            }
            Standing::OwnerGone if self.text("owner_unknown").is_some() => format!(
                "its owner {owner} is no slot of a worker process of seriatim, so no process takes the object over: if that \
                 worker is dead, `seriatim repair --dead-owner {}` frees the object",
                quoted(owner)
            ),
            Standing::OwnerGone => {
                format!(
                    "its owner {owner} has no lease, so its process is gone: any worker process takes the object over{nobody}"
                )
            }
            Standing::Held => self.why_held(object, nobody),
            Standing::Paused | Standing::Blocked => self.why_ruled(nobody),
            Standing::Taken => format!("worker {} has taken its marker and is about to claim it{nobody}", self.taken.join(", ")),
            Standing::Marked if self.text("group").is_some() => {
                format!("it waits for {} {}{nobody}", self.awaited(), self.in_group())
            }
            Standing::Marked => {
                if let Some(wait) = self.share_wait() {
                    return format!("it waits for {wait}, behind more than 10000 names of its group{nobody}");
                }
                let before = self.number("markers_before");
                let before = before.map_or_else(|| "more than 10000".to_owned(), |before| before.to_string());
                let time = self.waits_ms().map_or_else(String::new, |ms| format!(" for {}", seconds(ms as f64)));
                // A marker that was not found may also have been moved into a list that was not read.
                let part = self.searched.filter(|searched| self.text("markers_before").is_none() && !searched.all);
                let or_taken = part.map_or_else(String::new, |part| format!(", or one has just taken it{}", not_found(&part)));
                format!("it waits for a free worker{time}, after {before} other markers{or_taken}{nobody}")
            }
            Standing::Unclear => format!(
                "it has events, but no marker, no owner and no hold: a worker has just taken its marker, or I1 is broken{}; \
                 `seriatim inspect {}` reads all slots{nobody}",
                self.searched.as_ref().map(not_found).unwrap_or_default(),
                quoted(object)
            ),
            Standing::Uncovered => format!(
                "I1 is broken: it has events, but no marker, no owner, and is not held; LPUSH {} {} lets a worker find it",
                keys.objects_with_events(),
                quoted(object)
            ),
        }
    }

    fn why_held(&self, object: &str, nobody: &str) -> String {
        let why = self.held_why().unwrap_or_else(|| "yield".to_owned());
        if self.text("owner") != Some("held") {
            return "I2 is broken: it waits among the held objects, but its owner is not `held`"
                .to_owned();
        }
        let now = self.number("now_ms").unwrap_or(0);
        match self.due() {
            None => format!(
                "I2 is broken: held ({why}), but in neither set of held objects; `seriatim repair` puts it back"
            ),
            Some(_) if self.has_lost_ids() => format!(
                "held ({why}), and the ids of its batch are lost: `seriatim repair` gives its events new ids"
            ),
            Some(DueTime::Never) => {
                format!(
                    "held until an operator releases it ({why}); `seriatim held release {}` does",
                    quoted(object)
                )
            }
            Some(due) if due.is_due(now) && self.text("group").is_some() => {
                format!(
                    "held ({why}), and due now: it waits for {} {}{nobody}",
                    self.awaited(),
                    self.in_group()
                )
            }
            Some(due) if due.is_due(now) => match self.share_wait() {
                Some(wait) => format!("held ({why}), and due now: it waits for {wait}{nobody}"),
                None => format!("held ({why}), and due now: a free worker takes it{nobody}"),
            },
            Some(due) => format!(
                "held ({why}), due in {}{nobody}",
                seconds(due.ms().unwrap_or(0).saturating_sub(now) as f64)
            ),
        }
    }

    /// Names what the object waits for in the list of its group.
    fn awaited(&self) -> String {
        self.share_wait()
            .map_or_else(|| "a free worker".to_owned(), |wait| format!("{wait},"))
    }

    /// Describes the place of the object in the list of its group.
    fn in_group(&self) -> String {
        let (before, groups) = (
            self.number("group_before").unwrap_or(0),
            self.number("groups").unwrap_or(0),
        );
        let names = if before == 1 { "name" } else { "names" };
        let group = match self.text("group").unwrap_or_default() {
            REST => "the list of the groups beyond the first 1024".to_owned(),
            group => format!("its group {}", quoted(&escape::name(group))),
        };
        let wait = if groups == 1 {
            "group waits"
        } else {
            "groups wait"
        };
        format!("in {group}: {before} {names} before it, {groups} {wait}")
    }

    fn why_ruled(&self, nobody: &str) -> String {
        let Some(rule) = self.rule() else {
            return match self.rules.first() {
                Some(rule) => format!("the {rule} that held it is lifted, and worker processes are waking its objects{nobody}"),
                None => "I2 is broken: it waits for a rule to be lifted, but no rule is over it, so that nothing will wake it"
                    .to_owned(),
            };
        };
        let (done, lift) = match rule.kind {
            Kind::Block => ("blocked", "unblock"),
            Kind::Pause => ("paused", "resume"),
        };
        let reason = if rule.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", rule.reason)
        };
        let (shown, selector) = (rule.selector.escaped(), quoted(&rule.selector.escaped()));
        format!(
            "{done} by the rule for {shown} (set by {}{reason}); `seriatim {lift} {selector}` lifts it",
            rule.actor
        )
    }
}

/// Tells which lists a search has read without finding the object.
fn not_found(searched: &Searched) -> String {
    format!(
        " (not found in {} slots of {} worker names; there are more)",
        searched.slots, searched.names
    )
}

fn seconds(ms: f64) -> String {
    format!("{:.1} s", ms / 1000.0)
}

/// Returns an object's name in the quotes that a shell needs.
fn quoted(object: &str) -> String {
    format!("'{}'", object.replace('\'', r"'\''"))
}
