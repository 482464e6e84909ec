//! Faults of Redis, of its clock and memory, of the link to it, of the process and of the sink,
//! with their effect on the events.

#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod clock;
mod emptied;
mod glitch;
mod lost_keys;
mod lost_writes;
mod memory;
mod outage;
mod probe;
mod recover_process;
mod redis_restart;
mod rights;
mod rollback;
mod signals;
mod slow_link;
mod stall;
mod storm;
mod traps;
mod two_slots;
mod types;
mod unavailable;
mod ways;
