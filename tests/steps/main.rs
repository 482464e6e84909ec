//! The steps of the protocol, each in its own module: emit, claim, deliver, commit, recover, and
//! the lease that all of them need.

#[path = "../support/scene.rs"]
mod scene;
#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod claim;
mod commit;
mod deliver;
mod deliver_alone;
mod deliver_closures;
mod emit;
mod emit_appended;
mod emit_grouped;
mod emit_once;
mod emit_refused;
mod errors;
mod handled;
mod handled_emits;
mod handled_results;
mod in_hand;
mod lease;
mod promote;
mod recover;
mod redis_cli;
mod sent;
mod worker;
