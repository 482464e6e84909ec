//! The guards of the protocol. A test can turn each of them off.

/// The value to which the counter of ids jumps after a failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Jump {
    Nowhere,
    /// Always the same distance beyond the known ids.
    AsFar,
    /// A distance that is different each time: the second jump may be shorter than the first one.
    AtRandom,
    /// The time, which is beyond every id ever given, because ids are given more slowly than time
    /// passes.
    ToTheTime,
}

/// The time at which an event's emits are pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmitsAre {
    PushedWithTheCommit,
    PushedAtOnce,
    NotPushed,
}

/// The guards of the protocol. All are on, unless a test turns one off.
#[derive(Clone, Debug)]
pub struct Guards {
    /// A script changes nothing unless the lease has the caller's token.
    pub fence: bool,
    /// A result counts only if it names the first id of the batch in flight.
    pub batch_first: bool,
    /// A result counts only if it names all other numbers of the batch in flight.
    pub batch_handouts: bool,
    /// A held batch counts one more hand-out when it is claimed.
    pub handouts: bool,
    /// A name is removed from `event.worker:W:object` by its value.
    pub remove_by_value: bool,
    /// A name in a worker's list that the worker does not own goes back to the markers.
    pub strays: bool,
    /// A name without a lease is swept repeatedly.
    pub resweep: bool,
    /// A name without a lease is taken over.
    pub takeover: bool,
    /// The step that finds the queue empty also releases the object.
    pub atomic_release: bool,
    /// The script reads the rules. Processes have no copy of them.
    pub rules_in_script: bool,
    /// A rule that is set again while it is being lifted is later woken from the beginning.
    pub waking_anew: bool,
    /// A rule is deleted only when nothing is left to wake.
    pub waking_to_the_end: bool,
    /// Target of the counter's jump after a failover.
    pub jump: Jump,
    /// The counter of a namespace without `seriatim.meta` begins at the time.
    pub emptied_begins_at_the_time: bool,
    /// If the counter is absent, or below an id that the process has seen, it jumps before anything
    /// is claimed.
    pub lost_counter_jumps: bool,
    /// If the counter is below an id of the object that is claimed, it jumps before the claim.
    pub last_id_lifts_the_counter: bool,
    /// A dead letter leaves `last.event.id` unchanged.
    pub dead_letter_leaves_last: bool,
    /// A retried dead letter gets a marker.
    pub again_with_marker: bool,
    /// A retried dead letter is behind all other events of its object.
    pub again_at_the_end: bool,
    /// An owned or held object is not claimed.
    pub owner_check: bool,
    /// Renewal never creates a lease.
    pub renew_never_creates: bool,
    /// Renewal looks at every slot registered for the name, not only at the slots of this process.
    pub renew_every_slot: bool,
    /// An owned object whose name is twice in `event.worker:W:object` is handled once.
    pub owned_once: bool,
    /// A second name of an object that the same call has just claimed is dropped.
    pub claimed_once: bool,
    /// Only results that count have rows in the event log.
    pub rows_of_results_that_count: bool,
    /// A skip has a row in the event log.
    pub skip_has_a_row: bool,
    /// Successes of handlers are recorded only under the lease.
    pub handled_is_fenced: bool,
    /// Successes of handlers are recorded only under the tag of the batch.
    pub handled_looks_at_the_tag: bool,
    /// The record of an earlier event of the batch does not overwrite the record of a later event.
    pub later_stays: bool,
    /// A record is not overwritten as long as some of its emits are not pushed.
    pub unpushed_stays: bool,
    /// An event's emits are pushed in the step that ends the event.
    pub emits_are: EmitsAre,
    /// The commit that ends an event deletes its record.
    pub handled_goes_with_the_commit: bool,
    /// A skip deletes the record of handlers of its event.
    pub skip_ends_handled: bool,
    /// The step that ends an event does not delete the record of a later event.
    pub only_what_ends: bool,
    /// If a batch comes again, a process with another sink also states that there may be a record
    /// to delete.
    pub word_of_what_comes_again: bool,
    /// If a batch was delivered again after a crash, the rest behind a dead letter still counts as
    /// delivered again.
    pub rejection_keeps_crashes: bool,
    /// Handlers get the record of their event if it comes again.
    pub handled_is_read: bool,
    /// Handlers get the record of their event even if their process has lapsed.
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
