//! The model as the checker sees it: bounds, guards, actions.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::check::Properties;
use crate::state::*;

/// How far the exploration goes.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub objects: usize,
    /// Events per object.
    pub events: u8,
    pub batch_max: u8,
    /// Name and slots of every process that may be started.
    pub processes: Vec<(usize, u8)>,
    /// The first so many processes are attached from the start.
    pub attached: usize,
    /// All faults together, and the kinds there are.
    pub faults: u8,
    pub fault_kinds: &'static [Fault],
    /// All special outcomes together, and the kinds there are.
    pub outcomes: u8,
    pub outcome_kinds: &'static [Special],
    /// Processes whose sink is handlers; the others have another sink.
    pub handlers: &'static [usize],
    /// Crashes before an event is held for an operator.
    pub crashes_max: u8,
    /// Also check that an object whose deliveries never end holds up only itself.
    pub stall: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Crash,
    /// The lease ends while its process lives: a pause of the process, or of Redis.
    Pause,
    /// A process starts under a name whose process lives.
    Takeover,
    /// A call takes effect, and its reply is lost.
    LostReply,
    /// A call arrives a second time, later.
    RepeatedCall,
    /// A pop moves a marker although nobody waits for it any more, or its reply is lost.
    GhostPop,
    /// An envelope arrives after its sender has given it up.
    LateSend,
    /// A failover: Redis forgets its last writes.
    Rollback,
    /// Redis without persistence is restarted: it comes back empty.
    Emptied,
    /// Only the counter of ids is lost: it is evicted …
    Evicted,
    /// … or set back. For one object only: of others the ids above it are known to nobody.
    SetBack,
}

/// What Redis may lose.
pub const LOSSES: &[Fault] = &[Fault::Rollback, Fault::Emptied, Fault::Evicted, Fault::SetBack];

/// What is neither a fault nor a plain delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Yield,
    Retry,
    Reject,
    Hold,
    Rule,
    /// A rule is over all objects: set, also anew while it is being lifted.
    RuleOfAll,
    Detach,
    /// An idle object is forgotten: by an operator, or because its time is over.
    Forget,
    /// Attempts are used up, and an operator is waited for.
    Wait,
    /// An operator sends the head event of a held object to the dead letters.
    Skip,
    /// An operator makes a new event of a dead letter.
    Again,
    /// An operator drops a dead letter.
    Drop,
    /// One of the two handlers of an event has finished, which is written down.
    Finish,
    /// So has the one that emits, and has emitted an event.
    Emit,
}

pub const FAULTS: &[Fault] =
    &[Fault::Crash, Fault::Pause, Fault::Takeover, Fault::LostReply, Fault::RepeatedCall, Fault::GhostPop, Fault::LateSend];
pub const SPECIALS: &[Special] =
    &[Special::Yield, Special::Retry, Special::Reject, Special::Hold, Special::Rule, Special::Detach, Special::Forget];

/// Rules of one object and of all.
pub const RULES: &[Special] = &[Special::Rule, Special::RuleOfAll, Special::Retry];

/// What leads to an operator, and what he does.
pub const OPERATOR: &[Special] = &[Special::Retry, Special::Reject, Special::Wait, Special::Skip, Special::Again, Special::Drop];

/// What handlers do, and what may become of their event then.
pub const HANDLERS: &[Special] =
    &[Special::Finish, Special::Emit, Special::Retry, Special::Reject, Special::Hold, Special::Wait, Special::Skip];

impl Default for Bounds {
    /// Two names with a slot each, one object of two events, and nothing that goes wrong.
    fn default() -> Self {
        Self {
            objects: 1,
            events: 2,
            batch_max: 2,
            processes: vec![(0, 1), (1, 1)],
            attached: 2,
            faults: 0,
            fault_kinds: FAULTS,
            outcomes: 0,
            outcome_kinds: SPECIALS,
            handlers: &[],
            crashes_max: 2,
            stall: false,
        }
    }
}

/// Where the counter jumps to after a failover, from what Redis and the process know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jump {
    Nowhere,
    /// Always equally far.
    AsFar,
    /// By a distance that differs from all others: the second one may be the shorter one.
    AtRandom,
    /// Beyond every id ever given: time has passed since, and ids are given more slowly than it does.
    ToTheTime,
}

/// When what an event has emitted is pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmitsAre {
    PushedWithTheCommit,
    PushedAtOnce,
    NotPushed,
}

/// What holds the protocol together. All on, unless a test asks what happens without one.
#[derive(Clone, Debug)]
pub struct Guards {
    /// A script touches nothing unless the lease holds the caller's token.
    pub fence: bool,
    /// A result counts only if it names the first id of the batch in flight …
    pub batch_first: bool,
    /// … and all its other numbers.
    pub batch_handouts: bool,
    /// A held batch counts one hand-out more when it is claimed.
    pub handouts: bool,
    /// A name is removed from `event.worker:W:object` by its value.
    pub remove_by_value: bool,
    /// A name that a worker has taken but does not own goes back to the markers.
    pub strays: bool,
    /// A name without a lease is swept again and again.
    pub resweep: bool,
    /// A name without a lease is taken over at all.
    pub takeover: bool,
    /// An empty queue releases the object in the same step.
    pub atomic_release: bool,
    /// Rules are read by the script.
    pub rules_in_script: bool,
    /// A rule that is set again while it is being lifted is woken from the beginning.
    pub waking_anew: bool,
    /// A rule goes only when nothing is left to wake.
    pub waking_to_the_end: bool,
    /// Where the counter jumps to after a failover.
    pub jump: Jump,
    /// The counter of a namespace without `seriatim.meta` begins at the time.
    pub emptied_begins_at_the_time: bool,
    /// A counter that is absent, or below what the process has seen, jumps before anything is claimed.
    pub lost_counter_jumps: bool,
    /// So does one below an id of the object that is claimed.
    pub last_id_lifts_the_counter: bool,
    /// A dead letter leaves `last.event.id` alone.
    pub dead_letter_leaves_last: bool,
    /// A dead letter that is made a new event gets a marker …
    pub again_with_marker: bool,
    /// … and comes behind all others of its object.
    pub again_at_the_end: bool,
    /// An object that is owned or held is not claimed.
    pub owner_check: bool,
    /// Renewal never creates a lease.
    pub renew_never_creates: bool,
    /// Renewal looks at every slot registered for the name, not only at those this process runs.
    pub renew_every_slot: bool,
    /// An owned object whose name is twice in `event.worker:W:object` is dealt with once.
    pub owned_once: bool,
    /// A second name of an object that the same call has just claimed is dropped.
    pub claimed_once: bool,
    /// Only results that count have rows in the event log …
    pub rows_of_results_that_count: bool,
    /// … and a skip has one.
    pub skip_has_a_row: bool,
    /// What handlers have finished is written down only under the lease …
    pub handled_is_fenced: bool,
    /// … and the tag of the batch.
    pub handled_looks_at_the_tag: bool,
    /// What is kept is not written over by an event that comes before it in the batch …
    pub later_stays: bool,
    /// … nor while something of it is to be pushed.
    pub unpushed_stays: bool,
    /// What an event has emitted is pushed in the step that ends it …
    pub emits_are: EmitsAre,
    /// … and what is kept of it goes …
    pub handled_goes_with_the_commit: bool,
    /// … also where an operator skips it …
    pub skip_ends_handled: bool,
    /// … but not what is kept of an event that is still to come.
    pub only_what_ends: bool,
    /// Of a batch that comes again, a process with another sink says that there may be something to end, too.
    pub word_of_what_comes_again: bool,
    /// What is left of a batch behind a dead letter still says that it comes again after a crash.
    pub rejection_keeps_crashes: bool,
    /// Handlers are told what is kept …
    pub handled_is_read: bool,
    /// … also where their process has lapsed.
    pub handled_read_after_a_lapse: bool,
    /// A part of a batch is committed only between two events.
    pub part_between_events: bool,
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            fence: true,
            batch_first: true,
            batch_handouts: true,
            handouts: true,
            remove_by_value: true,
            strays: true,
            resweep: true,
            takeover: true,
            atomic_release: true,
            rules_in_script: true,
            waking_anew: true,
            waking_to_the_end: true,
            jump: Jump::ToTheTime,
            emptied_begins_at_the_time: true,
            lost_counter_jumps: true,
            last_id_lifts_the_counter: true,
            dead_letter_leaves_last: true,
            again_with_marker: true,
            again_at_the_end: true,
            owner_check: true,
            renew_never_creates: true,
            renew_every_slot: true,
            owned_once: true,
            claimed_once: true,
            rows_of_results_that_count: true,
            skip_has_a_row: true,
            handled_is_fenced: true,
            handled_looks_at_the_tag: true,
            later_stays: true,
            unpushed_stays: true,
            emits_are: EmitsAre::PushedWithTheCommit,
            handled_goes_with_the_commit: true,
            skip_ends_handled: true,
            only_what_ends: true,
            word_of_what_comes_again: true,
            rejection_keeps_crashes: true,
            handled_is_read: true,
            handled_read_after_a_lapse: true,
            part_between_events: true,
        }
    }
}

/// What a call of advance says of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    Free,
    Is(Outcome),
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Answered,
    ReplyLost,
    /// Answered; a second copy arrives later.
    Repeated,
}

/// One step. Processes, slots (within their process), workers (`w`), names and objects are indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Push {
        object: usize,
    },
    Pop {
        process: usize,
        slot: usize,
    },
    Advance {
        process: usize,
        reports: [Option<Report>; SLOTS_EACH],
        fate: Fate,
        markers_first: bool,
    },
    Send {
        process: usize,
        slot: usize,
    },
    /// One handler of the next event in hand has finished, which is written down. `emitted` = the object (index + 1) for which it has emitted an event.
    Finish {
        process: usize,
        slot: usize,
        handler: u8,
        emitted: u8,
        fate: Fate,
    },
    Attach {
        process: usize,
        fate: Fate,
    },
    Adopt {
        process: usize,
        name: usize,
    },
    Detach {
        process: usize,
        fate: Fate,
    },
    Renew {
        process: usize,
    },
    /// Time passes until a held object is due.
    Due {
        object: usize,
    },
    /// An operator releases a held object.
    Operator {
        object: usize,
    },
    /// Its last id goes.
    Forget {
        object: usize,
    },
    /// An operator sends the head event of a held object to the dead letters.
    Skip {
        object: usize,
    },
    /// An operator makes a new event of the first dead letter of an object.
    Again {
        object: usize,
    },
    /// An operator drops it.
    Drop {
        object: usize,
    },
    Pause {
        object: usize,
    },
    Lift {
        object: usize,
    },
    /// Wakes what the lifted rule holds and no other is over, and deletes the rule.
    Wake {
        object: usize,
    },
    PauseAll,
    LiftAll,
    /// One step of the waking of the rule over all: of the next paused object, if no other rule is over it. Where there is none, the rule goes.
    WakeNext,
    Crash {
        process: usize,
    },
    /// A lease ends.
    Expire {
        name: usize,
    },
    GhostPop {
        w: usize,
    },
    /// The second copy of a call arrives.
    Late {
        markers_first: bool,
    },
    /// The sender gives up on an envelope that is under way.
    GiveUp {
        process: usize,
        slot: usize,
    },
    /// The envelope arrives after all.
    Arrive,
    /// From here on, a failover loses what Redis writes.
    Snapshot,
    Rollback,
    Empty,
    Evict,
    SetBack,
    /// A process finds Redis again after a failover.
    Connect {
        process: usize,
    },
    /// Only with the guard `rules_in_script` off.
    ReadRules {
        process: usize,
    },
    /// Only with the guard `atomic_release` off.
    Release {
        process: usize,
        slot: usize,
    },
}

/// The protocol within bounds.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    pub bounds: Bounds,
    pub guards: Guards,
    /// Look at this property only.
    pub only: Option<&'static str>,
    pub allowed: Arc<Allowed>,
}

/// What a failover may do to events, counted over all steps that were explored.
#[derive(Debug, Default)]
pub struct Allowed {
    /// Events lost because Redis lost them.
    pub lost: AtomicU64,
    /// Events applied again under a new id because Redis forgot their delivery.
    pub redelivered: AtomicU64,
}

impl Allowed {
    fn count(&self, before: &State, after: &State) {
        let lost = after.ghost.excused & !before.ghost.excused;
        self.lost.fetch_add(lost.count_ones().into(), Ordering::Relaxed);
        for (before, after) in before.received.iter().zip(&after.received) {
            let again = after.last != before.last && after.applied == before.applied;
            self.redelivered.fetch_add(again.into(), Ordering::Relaxed);
        }
    }
}

impl Properties for Protocol {
    fn only(self, property: &'static str) -> Self {
        Self { only: Some(property), ..self }
    }

    fn words(&self, _: &State, action: &Action) -> String {
        self.in_words(*action)
    }
}

impl Protocol {
    pub fn initial(&self) -> State {
        let mut s = State { faults: self.bounds.faults, outcomes: self.bounds.outcomes, ..State::default() };
        if self.may_lose() {
            s.ghost.given = Some(Box::new([0; IDS]));
        }
        for process in 0..self.bounds.attached {
            self.start(&mut s, process, Fate::Answered);
        }
        s
    }

    /// Whether Redis may lose something.
    pub fn may_lose(&self) -> bool {
        LOSSES.iter().any(|loss| self.allows(*loss))
    }

    pub fn allows(&self, fault: Fault) -> bool {
        self.bounds.fault_kinds.contains(&fault)
    }

    pub fn may(&self, s: &State, fault: Fault) -> bool {
        s.faults > 0 && self.allows(fault)
    }

    pub fn may_also(&self, s: &State, special: Special) -> bool {
        s.outcomes > 0 && self.bounds.outcome_kinds.contains(&special)
    }

    /// The next state, also where it is the same.
    pub fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Push { object } => {
                assert!(s.pushed[object] < EVENTS_MAX, "more events than there are numbers for");
                s.redis.objects[object].queue.push(event(object, s.pushed[object]));
                s.redis.markers.push(object as u8 + 1);
                s.pushed[object] += 1;
            }
            Action::Pop { process, slot } => self.pop(s, self.worker(process, slot)),
            Action::Advance { process, reports, fate, markers_first } => {
                self.call_advance(s, process, reports, fate, markers_first);
            }
            Action::Send { process, slot } => self.send(s, process, slot),
            Action::Finish { process, slot, handler, emitted, fate } => self.finish(s, process, slot, handler, emitted, fate),
            Action::Attach { process, fate } => self.start(s, process, fate),
            Action::Adopt { process, name } => self.adopt(s, self.bounds.processes[process].0, name),
            Action::Detach { process, fate } => self.stop(s, process, fate),
            Action::Renew { process } => self.keep(s, process),
            Action::Due { object } | Action::Operator { object } => s.redis.objects[object].due = Due::Now,
            Action::Forget { object } => {
                s.redis.objects[object].last = 0;
                s.spend_outcome(true);
            }
            Action::Skip { object } => self.skip(s, object),
            Action::Again { object } => self.again(s, object),
            Action::Drop { object } => self.drop_dead(s, object),
            Action::Pause { object } => {
                s.redis.objects[object].rule = Rule::Paused;
                s.spend_outcome(true);
            }
            Action::Lift { object } => s.redis.objects[object].rule = Rule::Lifted,
            Action::Wake { object } => {
                s.redis.objects[object].rule = Rule::Absent;
                self.wake(s, object);
            }
            Action::PauseAll => {
                s.redis.all = Rule::Paused;
                if self.guards.waking_anew {
                    s.redis.cursor = 0;
                }
                s.spend_outcome(true);
            }
            Action::LiftAll => s.redis.all = Rule::Lifted,
            Action::WakeNext => self.wake_next(s),
            Action::ReadRules { process } => {
                let paused = |&at: &usize| s.redis.is_ruled(at);
                s.processes[process].rules = (0..OBJECTS).filter(paused).map(|at| 1 << at).sum();
            }
            Action::Release { process, slot } => {
                let object = s.processes[process].hand[slot].object as usize - 1;
                self.release(s, self.worker(process, slot), object);
                s.processes[process].hand[slot] = Hand::default();
            }
            fault => self.fault(s, fault),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for object in 0..self.bounds.objects {
            if s.pushed[object] < self.bounds.events {
                actions.push(Action::Push { object });
            }
            self.object_actions(s, object, actions);
        }
        self.rule_actions(s, actions);
        for process in 0..self.bounds.processes.len() {
            self.process_actions(s, process, actions);
        }
        self.fault_actions(s, actions);
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut next = s.clone();
        self.apply(&mut next, action);
        self.allowed.count(s, &next);
        (next != *s).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = self.all_properties();
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}
