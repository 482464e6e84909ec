//! What holds the protocol together, each of which a test can turn off.

/// Where the counter jumps to after a failover, from what Redis and the process know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jump {
    Nowhere,
    /// Always equally far.
    AsFar,
    /// By a distance that differs from all others: the second one may be the shorter one.
    AtRandom,
    /// Beyond every id ever given: time has passed since, and ids are given more slowly than it
    /// does.
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
    /// A counter that is absent, or below what the process has seen, jumps before anything is
    /// claimed.
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
    /// Of a batch that comes again, a process with another sink says that there may be something to
    /// end, too.
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
