//! The values that Redis stores as one text. Each kind of value has one file and one type, which
//! reads and prints the value. `tests/guards/values.rs` compares the types with the Lua modules
//! that read the same values.
//!
//! | value | type | Lua |
//! |---|---|---|
//! | tag of a batch in flight, `event.worker:W:event.id` | [`Tag`] | `values/tag.lua` |
//! | tag of a held batch, `OBJ:events.held.id` | [`HeldId`], with a [`Reason`] | `values/tag.lua` |
//! | lease, `event.worker:NAME:lease` | [`Lease`], with a [`Holder`] | `values/lease.lua` |
//! | registration, a value of `event.workers` | [`Registration`] | `values/registry.lua` |
//! | pause or block, a value of `event.rules` | [`RuleValue`] | `values/rules.lua` |
//! | cron job, a value of `events.cron` | [`CronValue`] | `values/cron.lua` |
//! | last run of a cron job, a value of `events.cron.last` | [`CronLast`] | `values/cron.lua` |
//! | due time, a score of `objects.held`, `events.scheduled` or `events.cron.next` | [`DueTime`] | none |
//! | share of groups, a value of `event.shares` | [`ShareValue`] | `values/shares.lua` |
//! | events that a share has taken, a value of `event.shares.used` | [`ShareUsed`] | `values/shares.lua` |
//! | emits of a handler, a field of `OBJ:event.handled` | [`Emits`] | `values/emits.lua` |
//! | mark, a name among the markers, and a member of `event.marks` | [`Mark`] | `values/marks.lua` |
//! | position of a projection, a value of `event.projections` | [`Position`] | none |

mod cron;
mod due;
mod emits;
mod held_id;
mod lease;
mod mark;
mod position;
mod reason;
mod registration;
mod rule;
mod share;
mod tag;

pub use cron::{CronLast, CronValue};
pub use due::DueTime;
pub use emits::{Due, EmitEntry, Emits, Later, LaterMode, SCHEDULE_EVENTS};
pub use held_id::{HeldId, HeldIdError};
pub(crate) use lease::host_name;
pub use lease::{Holder, Lease, LeaseError};
pub use mark::{MET, Mark};
pub use position::Position;
pub use reason::{Reason, ReasonCode};
pub use registration::{Registration, RegistrationError};
pub use rule::RuleValue;
pub use share::{Priority, ShareUsed, ShareValue};
pub use tag::{Tag, TagError};
