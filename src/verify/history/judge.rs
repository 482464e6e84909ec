//! Compares the events that the receiver applied with the events that producers emitted.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::receiver::Receiver;
use super::report::{Findings, HistoryKind, HistoryReport};
use super::{Emit, History, KnownEvent, LineAt, Outcome, Received, Window};

/// When Redis goes back to an older state, the id counter jumps to the time in microseconds. A
/// Redis needs more than 10 ms for a restart. So two ids that differ by less than this number have
/// no jump between them.
const JUMP_MIN: u64 = 10_000;

/// The arrivals of one event.
#[derive(Debug, Clone, Default)]
struct Came {
    /// Ids under which the event came, each with its time. Includes the ids of dead letters.
    ids: Vec<(u64, u64)>,
    /// First id under which the event was applied; 0 if it was never applied.
    applied: u64,
    dead: bool,
}

/// The data of the first arrival with an id.
struct Known {
    event: super::Print,
    object: u32,
    prev: u64,
}

/// The time of an emit and the time of its reply.
#[derive(Debug, Clone, Copy)]
struct Span {
    invoked: u64,
    done: u64,
}

/// The event that was emitted last, among some events of an object.
#[derive(Debug, Clone, Copy)]
struct Latest {
    invoked: u64,
    id: u64,
}

struct Judge<'a> {
    history: &'a History,
    findings: Findings,
    totals: HistoryReport,
    came: Vec<Came>,
    /// Ids of all dead letters.
    dead: HashSet<u64>,
}

pub(super) fn judge(mut history: History) -> HistoryReport {
    let findings = std::mem::take(&mut history.findings);
    let mut received = std::mem::take(&mut history.received);
    received.sort_unstable_by_key(|received| (received.t, received.place));
    let came = vec![Came::default(); history.emitted.len()];
    let dead = received
        .iter()
        .filter(|received| received.dead)
        .map(|received| received.id)
        .collect();
    let mut judge = Judge {
        history: &history,
        findings,
        totals: HistoryReport::default(),
        came,
        dead,
    };
    judge.ids(&received);
    let receivers = judge.play(&received);
    for (object, receiver) in receivers.into_iter().enumerate() {
        judge.chain(object, &receiver.applied);
        judge.order(object, &receiver.applied);
    }
    judge.events();
    judge.findings.into_report(&history.files, judge.totals)
}

impl Judge<'_> {
    fn name(&self, object: u32) -> &str {
        &self.history.names[object as usize]
    }

    fn emit(&self, event: KnownEvent) -> &Emit {
        &self.history.emits[event.emit as usize]
    }

    /// Returns whether Redis may have lost a write between these two times. False if the history is
    /// not judged as lossy.
    fn may_be_lost(&self, from: u64, to: u64) -> bool {
        self.history.lossy
            && self
                .history
                .windows
                .iter()
                .any(|window| window.from <= to && from <= window.to)
    }

    /// Returns whether an event may have got the second id because Redis had lost its delivery
    /// under the first id.
    fn may_be_again(&self, first: u64, second: u64, second_t: u64) -> bool {
        let jumped = second - first >= JUMP_MIN;
        self.history.lossy
            && jumped
            && self
                .history
                .windows
                .iter()
                .any(|Window { to, .. }| *to <= second_t)
    }

    /// Returns by how much Redis' clock was set ahead in total between two times.
    fn steps_ahead(&self, from: u64, to: u64) -> u64 {
        self.history
            .steps
            .iter()
            .filter(|(at, _)| (from..=to).contains(at))
            .map(|(_, by)| by)
            .sum()
    }

    /// Returns a time before which the event of this emit was certainly not queued.
    fn not_queued_before(&self, emit: &Emit) -> u64 {
        let is_steady = self.history.steps.iter().all(|(at, _)| *at < emit.invoked);
        emit.due
            .filter(|_| is_steady)
            .map_or(emit.invoked, |due| due.max(emit.invoked))
    }

    /// Checks that each id belongs to one event, and that each event was emitted. Counts
    /// duplicates.
    fn ids(&mut self, received: &[Received]) {
        let mut known: HashMap<u64, Known> = HashMap::new();
        for Received {
            t,
            id,
            prev,
            event,
            object,
            place,
            dead,
        } in received.iter().copied()
        {
            let first = known.entry(id).or_insert(Known {
                event,
                object,
                prev,
            });
            if first.event != event || first.object != object {
                self.findings.add(HistoryKind::IdReused, place, || {
                    format!("id {id} belongs to another event, too")
                });
                // It is unknown which of the two events is the right one for this id. So both
                // events are judged further.
            } else if first.prev != prev && !self.dead.contains(&prev.max(first.prev)) {
                let other = first.prev;
                self.findings.add(HistoryKind::Forked, place, || {
                    format!("id {id} came with prev {prev}, and with prev {other}")
                });
            }
            let Some(&at) = self.history.events_by_name.get(&event) else {
                self.findings.add(HistoryKind::Unexpected, place, || {
                    format!("id {id} bears an event that nobody emitted")
                });
                continue;
            };
            let emitted = self.history.emitted[at as usize];
            let emit = &self.history.emits[emitted.emit as usize];
            if emit.object != object {
                let [is, was] = [object, emit.object].map(|object| self.name(object).to_owned());
                self.findings.add(HistoryKind::Unexpected, place, || {
                    format!("id {id} came as an event of {is} and was emitted for {was}")
                });
            } else if t < emit.invoked {
                self.findings.add(HistoryKind::Unexpected, place, || {
                    format!("id {id} came before it was emitted")
                });
            } else if let Some(due) = emit
                .due
                .filter(|due| t + self.steps_ahead(emit.invoked, t) < *due)
            {
                let early = Duration::from_nanos(due - t);
                self.findings.add(HistoryKind::Early, place, || {
                    format!("id {id} came {early:?} before it was due")
                });
            }
            let came = &mut self.came[at as usize];
            if came.ids.iter().all(|(other, _)| *other != id) {
                came.ids.push((id, t));
            } else if !dead {
                self.totals.duplicates += 1;
            }
            came.dead |= dead;
        }
        self.totals.dead = self.dead.len() as u64;
    }

    /// Applies the receiver's rule to all arrivals, in their order.
    fn play(&mut self, received: &[Received]) -> Vec<Receiver> {
        let mut receivers: Vec<Receiver> = Vec::new();
        receivers.resize_with(self.history.names.len(), Receiver::default);
        for received in received.iter().filter(|received| !received.dead) {
            receivers[received.object as usize].take(*received);
        }
        for receiver in &mut receivers {
            while let Some(Received {
                id,
                prev,
                object,
                place,
                ..
            }) = receiver.give_up()
            {
                let name = self.name(object).to_owned();
                self.findings.add(HistoryKind::Gap, place, || {
                    format!("{name}: id {id} follows id {prev}, which never came")
                });
            }
            self.totals.objects += u64::from(!receiver.applied.is_empty());
            for Received { event, id, .. } in &receiver.applied {
                if let Some(at) = self.history.events_by_name.get(event) {
                    let came = &mut self.came[*at as usize];
                    if came.applied == 0 {
                        came.applied = *id;
                        self.totals.applied += 1;
                    }
                }
            }
        }
        receivers
    }

    /// Checks that each `prev` has one successor. Dead letters do not count as successors. A `prev`
    /// of 0 has one successor for each time that the object was forgotten.
    fn chain(&mut self, object: usize, applied: &[Received]) {
        for (
            at,
            Received {
                t, id, prev, place, ..
            },
        ) in applied.iter().copied().enumerate()
        {
            let beside = applied[..at]
                .iter()
                .rev()
                .take_while(|earlier| earlier.id > prev);
            let Some(other) = beside
                .into_iter()
                .find(|earlier| !self.dead.contains(&earlier.id))
                .map(|earlier| earlier.id)
            else {
                continue;
            };
            if self.may_be_again(other, id, t) {
                continue;
            }
            if prev == 0 && !self.history.never_forgotten {
                self.totals.anew += 1;
            } else {
                let name = &self.history.names[object];
                self.findings.add(HistoryKind::Forked, place, || {
                    format!(
                        "{name}: id {id} follows id {prev}, and so does id {other} or one before it"
                    )
                });
            }
        }
    }

    /// Checks that the order of applied events agrees with the times of emits and replies, and with
    /// the order within each emit.
    fn order(&mut self, object: usize, applied: &[Received]) {
        let name = &self.history.names[object];
        // The applied events that Redis has not lost. Each entry has a `Latest`: among this event
        // and the entries before it, the event that was emitted last, with the time of its emit and
        // its id.
        let mut kept: Vec<(u64, Span, Latest)> = Vec::new();
        let mut before: Option<KnownEvent> = None;
        // Of the applied event with the latest due time: its due time, a time before which it was
        // not queued, and its id.
        let mut latest_due: Option<(u64, u64, u64)> = None;
        for Received {
            id,
            prev,
            event,
            place,
            ..
        } in applied.iter().copied()
        {
            let Some(&at) = self.history.events_by_name.get(&event) else {
                continue;
            };
            // Only the first id under which an event was applied counts. If an event comes again
            // under a new id, it comes after later events, and this is no fault.
            if self.came[at as usize].applied != id {
                continue;
            }
            let event = self.history.emitted[at as usize];
            let emit = self.emit(event);
            let stored = if emit.outcome == Outcome::Ok {
                emit.done
            } else {
                u64::MAX
            };
            // The event of a schedule is queued at an unknown time after it is due. So its emit has
            // no known end.
            let (invoked, done) = (
                self.not_queued_before(emit),
                if emit.due.is_some() { u64::MAX } else { stored },
            );
            let due_ms = emit.due_ms;
            // The events of one emit must follow each other. Another check reports missing events.
            let whole = self.came[at as usize - event.sub as usize..at as usize]
                .iter()
                .all(|came| came.applied > 0);
            let follows = before
                .is_some_and(|before| before.emit == event.emit && before.sub + 1 == event.sub);
            // The Redis that gave this id has no events with ids between `prev` and this id. Two
            // masters may have accepted events at the same time.
            let mut latest = kept.last().map(|(.., latest)| *latest);
            let with_lost = latest;
            while let Some((_, span, _)) = kept.last().filter(|(other, ..)| *other > prev)
                && self.may_be_lost(span.invoked, span.done)
            {
                kept.pop();
                latest_due = None;
                latest = kept.last().map(|(.., latest)| *latest);
            }
            let is_late =
                |latest: Option<Latest>| latest.is_some_and(|latest| done < latest.invoked);
            self.totals.behind_lost += u64::from(is_late(with_lost) && !is_late(latest));
            match latest {
                Some(Latest { invoked: latest_invoked, id: latest_id }) if done < latest_invoked => {
                    self.findings.add(HistoryKind::Reordered, place, || {
                        format!("{name}: id {id} was acknowledged before id {latest_id} was emitted")
                    });
                }
                _ if event.sub > 0 && whole && !follows => self.findings.add(HistoryKind::Reordered, place, || {
                    format!("{name}: id {id} is a subevent and does not follow the event before it in its emit")
                }),
                _ => {}
            }
            // If one schedule was stored before the event of another schedule was queued, and is
            // due earlier, its event must be queued first.
            if let (Some(due), Some((later, queued, other))) = (due_ms, latest_due)
                && due < later
                && stored < queued
            {
                self.findings.add(HistoryKind::Reordered, place, || {
                    format!(
                        "{name}: id {id} was due {} ms before id {other}",
                        later - due
                    )
                });
            }
            if let Some(due) =
                due_ms.filter(|due| latest_due.is_none_or(|(later, ..)| *due > later))
            {
                latest_due = Some((due, invoked, id));
            }
            let latest = latest
                .filter(|latest| latest.invoked >= invoked)
                .unwrap_or(Latest { invoked, id });
            kept.push((id, Span { invoked, done }, latest));
            before = Some(event);
        }
    }

    /// Compares the arrivals of each event with the reply that its producer got.
    fn events(&mut self) {
        for (at, mut came) in std::mem::take(&mut self.came).into_iter().enumerate() {
            let event = self.history.emitted[at];
            let Emit {
                invoked,
                done,
                outcome,
                object,
                ..
            } = *self.emit(event);
            self.totals.events += 1;
            self.again(&mut came, event.place, object);
            let came_at_all = !came.ids.is_empty();
            let settled = came.applied > 0 || came.dead;
            match outcome {
                Outcome::Ok => self.totals.ok += 1,
                Outcome::Failed => {
                    self.totals.failed += 1;
                    if came_at_all {
                        self.report(
                            HistoryKind::Undone,
                            event.place,
                            object,
                            &came,
                            "was refused, and came",
                        );
                    }
                    continue;
                }
                Outcome::Unknown | Outcome::Open => {
                    self.totals.unknown += 1;
                    self.totals.unknown_came += u64::from(settled);
                }
            }
            if settled || (outcome != Outcome::Ok && !came_at_all) {
                continue;
            }
            let until = if outcome == Outcome::Ok {
                done
            } else {
                u64::MAX
            };
            if self.may_be_lost(invoked, until) {
                self.totals.lost_by_redis += u64::from(outcome == Outcome::Ok);
            } else if came_at_all {
                self.report(
                    HistoryKind::Reordered,
                    event.place,
                    object,
                    &came,
                    "came only after a later event was applied",
                );
            } else {
                self.report(
                    HistoryKind::Lost,
                    event.place,
                    object,
                    &came,
                    "was acknowledged and never came",
                );
            }
        }
    }

    /// Checks that an event came under only one id.
    fn again(&mut self, came: &mut Came, place: LineAt, object: u32) {
        came.ids.sort_unstable();
        for pair in came.ids.windows(2) {
            let [(first, _), (second, t)] = [pair[0], pair[1]];
            if self.may_be_again(first, second, t) {
                self.totals.redelivered += 1;
            } else {
                let name = self.name(object).to_owned();
                self.findings.add(HistoryKind::Doubled, place, || {
                    format!("{name}: one event came under id {first} and id {second}")
                });
            }
        }
    }

    fn report(&mut self, kind: HistoryKind, place: LineAt, object: u32, came: &Came, what: &str) {
        let name = self.name(object).to_owned();
        let id = came
            .ids
            .first()
            .map(|(id, _)| format!(" (id {id})"))
            .unwrap_or_default();
        self.findings.add(kind, place, || {
            format!("{name}: an event of this emit{id} {what}")
        });
    }
}
