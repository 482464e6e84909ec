//! How far the exploration goes: the bounds, and the faults and special outcomes there are.

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
