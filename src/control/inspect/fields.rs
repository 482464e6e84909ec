//! The reply of `lua/inspect.lua`, and the values in it.

use std::collections::HashMap;

use redis::Value;
use redis::aio::ConnectionLike;

use super::super::rules::{self, Rule};
use super::super::shares::{Matching, ShareWait, stopping};
use super::super::{ControlError, reply};
use super::inspection::{
    FailedAttempt, KeptResults, Location, NextEvent, NextSchedule, TEXT_BYTES_MAX, Tries,
};
use super::search::{Search, Searched};
use crate::keys::Keys;
use crate::sink::Report;
use crate::wire;
use crate::wire::values::{DueTime, HeldId, Tag};

/// Reads all keys of the object in one atomic step.
pub(super) async fn look<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    object: &[u8],
) -> Result<Fields, ControlError> {
    const WHAT: &str = "lua/inspect.lua";
    let mut call = wire::INSPECT.invoke();
    call.key(keys.event_workers());
    call.arg(keys.prefix()).arg(object).arg(TEXT_BYTES_MAX);
    let reply = reply::ask(conn, WHAT, &call, "inspected").await?;
    Ok(Fields::read(&reply.rest()))
}

/// The fields of the reply; see `lua/inspect.lua`.
#[derive(Default)]
pub(super) struct Fields {
    once: HashMap<String, String>,
    /// Workers that have the object in their lists.
    pub(super) taken: Vec<String>,
    /// The lists that were read; none if no list was read.
    pub(super) searched: Option<Searched>,
    pub(super) names_alive: u64,
    /// The error of a sink, if the sinks of all processes are unavailable.
    pub(super) sinks_down: Option<String>,
    pub(super) wrong: Vec<String>,
    pub(super) rules: Vec<Rule>,
    /// The shares that match the object, that with the longest prefix last.
    pub(super) shares: Vec<Matching>,
    pub(super) errors: Vec<FailedAttempt>,
    pub(super) results: Vec<String>,
    pub(super) schedules: Vec<NextSchedule>,
    /// The report on the event in flight.
    pub(super) report: Option<Report>,
}

impl Fields {
    fn read(flat: &[Value]) -> Self {
        let mut fields = Self::default();
        for pair in flat.chunks_exact(2) {
            let (Some(field), Some(value)) = (reply::text(&pair[0]), reply::text(&pair[1])) else {
                continue;
            };
            match field.as_str() {
                "wrong" => fields.wrong.push(value),
                "result" => fields.results.push(value),
                "schedule" => fields.schedules.extend(schedule(&value, false)),
                "schedule_queued" => fields.schedules.extend(schedule(&value, true)),
                "share" => fields.shares.extend(Matching::parse(&pair[1])),
                "error" => fields.errors.extend(failed_attempt(&value)),
                "rule" => fields
                    .rules
                    .extend(rules::parse(&pair[1], fields.number("now_ms").unwrap_or(0))),
                _ => drop(fields.once.insert(field, value)),
            }
        }
        fields
            .schedules
            .sort_by(|a, b| (a.due_ms, &a.key).cmp(&(b.due_ms, &b.key)));
        fields
    }

    /// Adds the result of a search.
    pub(super) fn add<F>(&mut self, search: &Search<'_, F>) {
        self.taken = search
            .found
            .objects
            .iter()
            .map(|(worker, _)| worker.clone())
            .collect();
        self.taken.sort();
        self.taken.dedup();
        // Without an index of the names, the number of watched names is not known.
        self.names_alive = self.names_alive.max(search.found.alive);
        self.searched = Some(search.searched);
    }

    /// Returns whether a worker may have taken the object's marker: the object has queued events,
    /// but no owner, no hold, and no marker among the first ones.
    pub(super) fn may_be_taken(&self) -> bool {
        let has = |field: &&str| self.text(field).is_some();
        self.number("queued").is_some_and(|events| events > 0)
            && !["owner", "due_ms", "paused", "markers_before", "group"]
                .iter()
                .any(has)
    }

    /// Returns the share that stops the object; none if the name of the object is not grouped, or if
    /// no share stops it. In a long list, the name may be behind the names that were searched.
    pub(super) fn share_wait(&self) -> Option<ShareWait> {
        let beyond = self
            .text("group_beyond")
            .filter(|_| self.text("markers_before").is_none());
        let group = self.text("group").or(beyond)?;
        let now_us = self.number("now_ms")?.saturating_mul(1000);
        stopping(
            &self.shares,
            self.number("held").unwrap_or(1),
            self.text("group_parked").is_some(),
            group,
            now_us,
        )
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.once.get(field).map(String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    /// Returns the due time of a held object; none if the object is not held, or is paused.
    pub(super) fn due(&self) -> Option<DueTime> {
        Some(DueTime::of_held(
            self.text("due_ms")?.parse().ok()?,
            self.number("now_ms").unwrap_or(0),
        ))
    }

    pub(super) fn next_event(&self) -> Option<NextEvent> {
        let places = [
            (
                Location::Batch,
                "batch_text",
                "batch_bytes",
                self.batch_tag().map(|tag| tag.first),
            ),
            (
                Location::HeldBatch,
                "held_text",
                "held_bytes",
                self.held_id()
                    .and_then(|held| held.tag)
                    .map(|tag| tag.first),
            ),
            (Location::Queue, "queued_text", "queued_bytes", None),
        ];
        places.into_iter().find_map(|(place, text, bytes, id)| {
            Some(NextEvent {
                place,
                id,
                bytes: self.number(bytes)?,
                text: self.text(text)?.to_owned(),
            })
        })
    }

    pub(super) fn batch_tag(&self) -> Option<Tag> {
        self.text("batch_id")?.parse().ok()
    }

    fn held_id(&self) -> Option<HeldId> {
        self.text("held_id")?.parse().ok()
    }

    pub(super) fn kept_results(&self) -> Option<KeptResults> {
        let results =
            (!self.results.is_empty()).then(|| format!("{{{}}}", self.results.join(",")))?;
        Some(KeptResults {
            id: self.number("handled_id"),
            results: Some(results),
        })
    }

    pub(super) fn tries(&self) -> Option<Tries> {
        let tag = self
            .batch_tag()
            .or_else(|| Some(self.held_id()?.tag.unwrap_or_default()))?;
        Some(Tries {
            handouts: tag.handouts.into(),
            attempts: tag.attempts.into(),
            crashes: tag.crashes.into(),
        })
    }

    /// Returns whether the object has a held batch whose ids are lost.
    pub(super) fn has_lost_ids(&self) -> bool {
        self.number("held").is_some_and(|events| events > 0)
            && self.held_id().and_then(|held| held.tag).is_none()
    }

    /// Returns the reason of the hold.
    pub(super) fn held_why(&self) -> Option<String> {
        let why = self.held_id()?.reason.to_string();
        (!why.is_empty()).then_some(why)
    }
}

/// Parses an entry of `OBJ:event.errors`: `MS ATTEMPT ERROR`.
fn failed_attempt(kept: &str) -> Option<FailedAttempt> {
    let mut parts = kept.splitn(3, ' ');
    let (at_ms, attempt) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(FailedAttempt {
        attempt,
        at_ms,
        error: parts.next()?.to_owned(),
    })
}

/// Reads a schedule, `DUE KEY`.
fn schedule(value: &str, queued: bool) -> Option<NextSchedule> {
    let (due, key) = value.split_once(' ')?;
    let due = due.parse().ok().map(DueTime::read);
    let (due_ms, at_once) = (due.and_then(DueTime::ms), due == Some(DueTime::AtOnce));
    let key_escaped = crate::escape::differing(key.as_bytes());
    Some(NextSchedule {
        key: key.to_owned(),
        key_escaped,
        due_ms,
        at_once,
        queued,
    })
}
