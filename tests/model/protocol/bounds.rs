//! The bounds of an exploration, and the kinds of faults and special outcomes.

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub objects: usize,
    /// Number of events per object.
    pub events: u8,
    pub batch_max: u8,
    /// Name and number of slots of each process that may be started.
    pub processes: Vec<(usize, u8)>,
    /// Number of processes that are attached from the start: the first ones.
    pub attached: usize,
    /// Number of faults that may happen, of all kinds together; then these kinds.
    pub faults: u8,
    pub fault_kinds: &'static [Fault],
    /// Number of special outcomes that may happen, of all kinds together; then these kinds.
    pub outcomes: u8,
    pub outcome_kinds: &'static [Special],
    /// Processes whose sink is handlers. All other processes have another sink.
    pub handlers: &'static [usize],
    /// Number of crashes before an event is held for an operator.
    pub crashes_max: u8,
    /// Whether to check also that an object with endless deliveries delays only itself.
    pub stall: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Crash,
    /// The lease ends while its process lives: the process, or Redis, was paused.
    Pause,
    /// A process starts under the name of a living process.
    Takeover,
    /// A call takes effect, but its reply is lost.
    LostReply,
    /// A call arrives a second time, later.
    RepeatedCall,
    /// A pop moves a marker although no process waits for it any more, or its reply is lost.
    GhostPop,
    /// An envelope arrives after its sender has given it up.
    LateSend,
    /// A failover: Redis forgets its last writes.
    Rollback,
    /// Redis without persistence is restarted: it comes back empty.
    Emptied,
    /// Only the counter of ids is lost: it is evicted.
    Evicted,
    /// The counter of ids is set back. Used only with one object. With more objects, a process may
    /// claim an object without knowing the higher ids of the others, and such a loss is not
    /// noticed.
    SetBack,
}

/// The faults with which Redis loses writes.
pub const LOSSES: &[Fault] = &[
    Fault::Rollback,
    Fault::Emptied,
    Fault::Evicted,
    Fault::SetBack,
];

/// Outcomes that are neither a fault nor a plain delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Yield,
    Retry,
    Reject,
    Hold,
    Rule,
    /// A rule over all objects is set, and is set again while it is being lifted.
    RuleOfAll,
    Detach,
    /// An idle object is forgotten, by an operator or by time.
    Forget,
    /// Attempts are used up, and the object waits for an operator.
    Wait,
    /// The program that handles the event for the process dies, perhaps after its work.
    ProgramDies,
    /// An operator sends the first event of a held object to the dead letters.
    Skip,
    /// An operator retries a dead letter as a new event.
    Again,
    /// An operator drops a dead letter.
    Drop,
    /// One of the two handlers of an event has finished, and its success is recorded.
    Finish,
    /// The handler that emits has finished: its success is recorded together with its emitted
    /// event.
    Emit,
}

pub const FAULTS: &[Fault] = &[
    Fault::Crash,
    Fault::Pause,
    Fault::Takeover,
    Fault::LostReply,
    Fault::RepeatedCall,
    Fault::GhostPop,
    Fault::LateSend,
];
pub const SPECIALS: &[Special] = &[
    Special::Yield,
    Special::Retry,
    Special::Reject,
    Special::Hold,
    Special::Rule,
    Special::Detach,
    Special::Forget,
];

/// Outcomes with rules, over one object and over all objects.
pub const RULES: &[Special] = &[Special::Rule, Special::RuleOfAll, Special::Retry];

/// The outcomes of deliveries (`Retry`, `Reject`, `Wait`) and the actions of an operator (`Skip`,
/// `Again`, `Drop`).
pub const OPERATOR: &[Special] = &[
    Special::Retry,
    Special::Reject,
    Special::Wait,
    Special::Skip,
    Special::Again,
    Special::Drop,
];

/// The outcomes of events that a program handles for the process.
pub const PROGRAM: &[Special] = &[Special::ProgramDies, Special::Retry, Special::Skip];

/// Outcomes of handlers, and of their events.
pub const HANDLERS: &[Special] = &[
    Special::Finish,
    Special::Emit,
    Special::Retry,
    Special::Reject,
    Special::Hold,
    Special::Wait,
    Special::Skip,
];

impl Default for Bounds {
    /// Two names with one slot each, one object of two events, and no faults.
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
