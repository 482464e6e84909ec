//! The behaviour of a worker process: its possible calls, and its reaction to their replies.
use crate::protocol::{Action, Fate, Fault, Protocol, Report, Special};
use crate::state::*;
use crate::steps::Refused;

impl Protocol {
    /// Returns the worker of a process's slot.
    pub fn worker(&self, process: usize, slot: usize) -> usize {
        self.bounds.processes[process].0 * SLOTS_EACH + slot
    }

    pub fn object_actions(&self, s: &State, object: usize, actions: &mut Vec<Action>) {
        let found = s.redis.objects[object];
        match found.due {
            Due::Later => actions.push(Action::Due { object }),
            Due::Never => actions.push(Action::Operator { object }),
            Due::Absent | Due::Now => {}
        }
        let can_skip = found.due != Due::Absent && !found.held.is_empty();
        if can_skip && self.may_also(s, Special::Skip) {
            actions.push(Action::Skip { object });
        }
        if found.dead != 0 && s.pushed[object] < EVENTS_MAX && self.may_also(s, Special::Again) {
            actions.push(Action::Again { object });
        }
        if found.dead != 0 && self.may_also(s, Special::Drop) {
            actions.push(Action::Drop { object });
        }
        match found.rule {
            Rule::Absent if self.may_also(s, Special::Rule) => {
                actions.push(Action::Pause { object })
            }
            Rule::Paused => actions.push(Action::Lift { object }),
            Rule::Lifted => actions.push(Action::Wake { object }),
            Rule::Absent => {}
        }
        let is_idle =
            found.owner == 0 && found.queue.is_empty() && found.due == Due::Absent && !found.paused;
        if is_idle && found.last != 0 && self.may_also(s, Special::Forget) {
            actions.push(Action::Forget { object });
        }
    }

    pub fn rule_actions(&self, s: &State, actions: &mut Vec<Action>) {
        match s.redis.all {
            Rule::Paused => actions.push(Action::LiftAll),
            Rule::Lifted => actions.push(Action::WakeNext),
            Rule::Absent => {}
        }
        if s.redis.all != Rule::Paused && self.may_also(s, Special::RuleOfAll) {
            actions.push(Action::PauseAll);
        }
    }

    pub fn process_actions(&self, s: &State, process: usize, actions: &mut Vec<Action>) {
        let (name, slots) = self.bounds.processes[process];
        let found = &s.processes[process];
        for slot in 0..slots as usize {
            if found.hand[slot].sent < found.hand[slot].batch.len() {
                actions.push(Action::Send { process, slot });
            }
        }
        if s.is_live(process) && !s.is_connected(process) {
            actions.push(Action::Connect { process });
            return;
        }
        if self.may_attach(s, process) {
            let takes_over = found.mode == Mode::Off && self.is_kept(s, name);
            self.fates(s, false, |fate| {
                if fate == Fate::Answered || !takes_over || s.faults > 1 {
                    actions.push(Action::Attach { process, fate });
                }
            });
        }
        if found.mode != Mode::Running {
            return;
        }
        self.advance_actions(s, process, actions);
        for slot in 0..slots as usize {
            let hand = found.hand[slot];
            self.finish_actions(s, process, slot, actions);
            if hand.object == 0
                && !s.redis.markers.is_empty()
                && s.redis.slots[self.worker(process, slot)].objects.is_empty()
            {
                actions.push(Action::Pop { process, slot });
            }
            if hand.object != 0 && hand.batch.is_empty() {
                actions.push(Action::Release { process, slot });
            }
        }
        actions.push(Action::Renew { process });
        for other in (0..NAMES).filter(|_| self.guards.takeover) {
            if other != name
                && s.redis.names[other].lease == 0
                && s.redis.names[other].last_token != 0
            {
                actions.push(Action::Adopt {
                    process,
                    name: other,
                });
            }
        }
        if self.may_also(s, Special::Detach) {
            self.fates(s, false, |fate| {
                actions.push(Action::Detach { process, fate })
            });
        }
        if !self.guards.rules_in_script {
            actions.push(Action::ReadRules { process });
        }
    }

    /// Adds the possible calls of advance. A call names one slot with any possible report, or all
    /// slots with their plain reports.
    fn advance_actions(&self, s: &State, process: usize, actions: &mut Vec<Action>) {
        let slots = self.bounds.processes[process].1 as usize;
        let mut call = |reports: [Option<Report>; SLOTS_EACH]| {
            let has_result = reports
                .iter()
                .any(|report| matches!(report, Some(Report::Is(_))));
            let in_turn = s.redis.objects.iter().any(|object| object.due == Due::Now)
                && !s.redis.markers.is_empty();
            for markers_first in [false, true].into_iter().take(1 + usize::from(in_turn)) {
                self.fates(s, has_result, |fate| {
                    actions.push(Action::Advance {
                        process,
                        reports,
                        fate,
                        markers_first,
                    })
                });
            }
        };
        let plain: Vec<_> = (0..slots)
            .map(|slot| self.plain_report(s, process, slot))
            .collect();
        for slot in 0..slots {
            let mut reports = [None; SLOTS_EACH];
            if let Some(report) = plain[slot] {
                reports[slot] = Some(report);
                call(reports);
            }
            self.special_reports(s, process, slot, |outcome| {
                reports[slot] = Some(Report::Is(outcome));
                call(reports);
            });
        }
        if slots > 1 && plain.iter().all(Option::is_some) {
            call([plain[0], plain[1]]);
        }
    }

    /// Returns the plain report of a slot: free, or a fully delivered batch.
    fn plain_report(&self, s: &State, process: usize, slot: usize) -> Option<Report> {
        let hand = s.processes[process].hand[slot];
        match hand.batch.len() {
            0 => (hand.object == 0).then_some(Report::Free),
            len => (hand.sent == len).then_some(Report::Is(Outcome::Done(len))),
        }
    }

    fn special_reports(
        &self,
        s: &State,
        process: usize,
        slot: usize,
        mut report: impl FnMut(Outcome),
    ) {
        let Hand {
            batch,
            tag,
            sent,
            finished,
            handled,
            ..
        } = s.processes[process].hand[slot];
        let len = batch.len();
        if len == 0 {
            return;
        }
        // The last sent event may have arrived although the worker sees a failure. So the worker
        // may report one event less than it has sent. But if a handler has finished the next event,
        // the worker knows that all events before that event are delivered.
        let least = if finished == 0 {
            sent.saturating_sub(1)
        } else {
            sent
        };
        // The worker reports a part only of a batch with crashes or attempts, or to push emits. It
        // does so only between two events.
        let wants_part = match finished {
            0 => tag.attempts + tag.crashes > 0 || (handled != 0 && handled < tag.first + sent),
            _ => !self.guards.part_between_events,
        };
        if sent == len && self.may_also(s, Special::Yield) {
            report(Outcome::Yield(len));
        }
        if sent > 0 && sent < len && wants_part {
            report(Outcome::Part(sent));
        }
        if sent < len && self.may_also(s, Special::Reject) {
            report(Outcome::Reject(sent));
        }
        if self.may_also(s, Special::Hold) {
            report(Outcome::Hold(sent));
        }
        if self.may_also(s, Special::Retry) {
            (least..=sent)
                .filter(|&k| k < len)
                .for_each(|k| report(Outcome::Retry(k)));
        }
        if self.may_also(s, Special::ProgramDies) {
            (least..=sent)
                .filter(|&k| k < len)
                .for_each(|k| report(Outcome::Crash(k)));
        }
        if self.may_also(s, Special::Wait) {
            (least..=sent)
                .filter(|&k| k < len)
                .for_each(|k| report(Outcome::Wait(k)));
        }
    }

    fn fates(&self, s: &State, repeatable: bool, mut each: impl FnMut(Fate)) {
        each(Fate::Answered);
        if self.may(s, Fault::LostReply) {
            each(Fate::ReplyLost);
        }
        if repeatable && s.late.is_none() && self.may(s, Fault::RepeatedCall) {
            each(Fate::Repeated);
        }
    }

    /// Returns the living process that holds the lease of a name and is connected.
    fn holder(&self, s: &State, name: usize) -> Option<usize> {
        let holds = |&process: &usize| {
            let found = &s.processes[process];
            self.bounds.processes[process].0 == name
                && found.token == s.redis.names[name].lease
                && matches!(found.mode, Mode::Running | Mode::Attaching)
                && s.is_connected(process)
        };
        (0..self.bounds.processes.len()).find(holds)
    }

    /// Returns whether the end of this lease would be a fault, because its holder lives.
    pub fn is_kept(&self, s: &State, name: usize) -> bool {
        s.redis.names[name].lease != 0 && self.holder(s, name).is_some()
    }

    pub fn may_attach(&self, s: &State, process: usize) -> bool {
        let name = self.bounds.processes[process].0;
        let found = &s.processes[process];
        match found.mode {
            Mode::Attaching => true,
            // A lapsed process waits until there is no lease. A process that starts also takes the
            // lease of a dead process.
            Mode::Lapsed => s.redis.names[name].lease == 0,
            Mode::Off => !self.is_kept(s, name) || self.may(s, Fault::Takeover),
            Mode::Running | Mode::Stopped => false,
        }
    }

    /// Calls attach for a process, and lets the process react to the reply.
    pub fn start(&self, s: &mut State, process: usize, fate: Fate) {
        let (name, slots) = self.bounds.processes[process];
        let mut found = s.processes[process];
        if found.mode == Mode::Off && self.is_kept(s, name) {
            s.spend_fault(true);
            s.ghost.deaths += 1;
        }
        if found.mode == Mode::Off {
            self.connect(s, 0);
        }
        if found.mode != Mode::Attaching {
            let before = if found.mode == Mode::Lapsed {
                found.token
            } else {
                0
            };
            let (token, displace) = (s.fresh_token(), s.redis.names[name].lease);
            let Process { highest, rules, .. } = found;
            found = Process {
                mode: Mode::Attaching,
                token,
                before,
                displace,
                highest,
                rules,
                ..Process::default()
            };
            found.replication = s.replication;
            found.again = before != 0 && self.has_handlers(process);
        }
        let attached = self.attach(s, name, slots, found.token, found.before, found.displace);
        if fate == Fate::ReplyLost {
            s.spend_fault(true);
        } else if attached {
            found = Process {
                mode: Mode::Running,
                before: 0,
                displace: 0,
                ..found
            };
        } else {
            // The name is in use: another process took the name over before the repeated call. This
            // process waits, and begins again.
            found = Process {
                mode: Mode::Off,
                token: 0,
                before: 0,
                displace: 0,
                ..found
            };
        }
        s.processes[process] = found;
    }

    pub fn call_advance(
        &self,
        s: &mut State,
        process: usize,
        reports: [Option<Report>; SLOTS_EACH],
        fate: Fate,
        markers_first: bool,
    ) {
        let Process {
            token,
            hand,
            rules,
            highest,
            ..
        } = s.processes[process];
        let name = self.bounds.processes[process].0 as u8;
        let mut call = Call {
            name,
            token,
            rules,
            highest,
            slots: Default::default(),
        };
        for (slot, report) in reports.into_iter().enumerate() {
            call.slots[slot] = match report {
                None => Named::Not,
                Some(Report::Free) => Named::Free,
                Some(Report::Is(outcome)) => Named::Result {
                    tag: hand[slot].tag,
                    outcome,
                    handled: self.ends_handled(&hand[slot], outcome),
                },
            };
            let special = matches!(report, Some(Report::Is(outcome)) if !matches!(outcome, Outcome::Done(_) | Outcome::Part(_)));
            s.spend_outcome(special);
        }
        s.spend_fault(fate != Fate::Answered);
        if fate == Fate::Repeated {
            s.late = Some(Late::Advance(call));
        }
        let reply = self.advance(s, &call, false, markers_first);
        if fate == Fate::ReplyLost {
            if reply.is_ok() {
                // The process has reported, and only repeats its report until it gets a reply. It
                // sends no further event of this batch.
                let named = (0..SLOTS_EACH).filter(|&slot| reports[slot].is_some());
                named.for_each(|slot| {
                    s.processes[process].hand[slot] = Hand {
                        sent: hand[slot].batch.len(),
                        finished: 0,
                        ..hand[slot]
                    };
                });
            }
            return;
        }
        match reply {
            Err(refused) => self.refused(s, process, refused),
            Ok(given) => {
                for (slot, hand) in given
                    .into_iter()
                    .enumerate()
                    .filter(|(slot, _)| reports[*slot].is_some())
                {
                    let hand = self.take_in(s, process, hand);
                    let found = &mut s.processes[process];
                    found.hand[slot] = hand;
                    if s.ghost.given.is_some() && hand.tag.first > 0 {
                        found.highest = found.highest.max(hand.tag.first + hand.batch.len() - 1);
                    }
                }
            }
        }
    }

    /// A process whose call is refused reacts: a lapsed process drops its batches and attaches
    /// again, a fenced process stops.
    pub fn refused(&self, s: &mut State, process: usize, refused: Refused) {
        let found = &mut s.processes[process];
        found.hand = Default::default();
        found.mode = match refused {
            Refused::Lapsed => Mode::Lapsed,
            Refused::Fenced => Mode::Stopped,
        };
    }

    /// Calls renew for a process, and lets the process react to the reply.
    pub fn keep(&self, s: &mut State, process: usize) {
        let (name, slots) = self.bounds.processes[process];
        if let Err(refused) = self.renew(s, name, s.processes[process].token, slots) {
            self.refused(s, process, refused);
        }
    }

    /// Calls detach for a process, which then stops. A repeated call that finds no lease counts as
    /// done.
    pub fn stop(&self, s: &mut State, process: usize, fate: Fate) {
        s.spend_outcome(true);
        let token = s.processes[process].token;
        let _ = self.detach(s, self.bounds.processes[process].0, token);
        if fate == Fate::ReplyLost {
            s.spend_fault(true);
        } else {
            s.processes[process] = Process {
                mode: Mode::Stopped,
                ..Process::default()
            };
        }
    }

    pub fn pop(&self, s: &mut State, w: usize) {
        if let Some(name) = s.redis.markers.pop() {
            s.redis.slots[w].objects.push(name);
        }
    }

    /// Sends the next event of the batch.
    pub fn send(&self, s: &mut State, process: usize, slot: usize) {
        if self.has_handlers(process) {
            return self.run_all(s, process, slot);
        }
        let hand = &mut s.processes[process].hand[slot];
        let envelope = next_envelope(hand);
        hand.sent += 1;
        self.receive(s, envelope);
    }
}

/// Returns the next event of the batch, as the receiver gets it.
pub fn next_envelope(hand: &Hand) -> Envelope {
    let id = hand.tag.first + hand.sent;
    let prev = if hand.sent == 0 { hand.prev } else { id - 1 };
    Envelope {
        id,
        prev,
        object: hand.object - 1,
        event: hand.batch.get(hand.sent),
    }
}
