//! The values that Redis stores as one text. Each has one file, with one type that reads and prints
//! the value. `tests/guards/values.rs` compares the types with the Lua modules that read the same
//! values.
//!
//! | value | type | Lua |
//! |---|---|---|
//! | tag of a batch in flight, `event.worker:W:event.id` | [`Tag`] | `lib/tag.lua` |
//! | tag of a held batch, `OBJ:events.held.id` | [`HeldId`], with a [`Reason`] | `lib/tag.lua` |
//! | lease, `event.worker:NAME:lease` | [`Lease`], with a [`Holder`] | `lib/lease.lua` |
//! | registration, a value of `event.workers` | [`Registration`] | `lib/registry.lua` |
//! | pause or block, a value of `event.rules` | [`RuleValue`] | `lib/rules.lua` |
//! | cron job, a value of `events.cron` | [`CronValue`] | `lib/cron.lua` |
//! | last run of a cron job, a value of `events.cron.last` | [`CronLast`] | `lib/cron.lua` |
//! | emits of a handler, a field of `OBJ:event.handled` | [`Emits`] | `lib/emits.lua` |
//! | position of a projection, a value of `event.projections` | [`Position`] | none |

mod cron;
mod emits;
mod held_id;
mod lease;
mod position;
mod reason;
mod registration;
mod rule;
mod tag;

pub use cron::{CronLast, CronPlan, CronValue};
pub use emits::Emits;
pub use held_id::{HeldId, HeldIdError};
pub(crate) use lease::host_name;
pub use lease::{Holder, Lease, LeaseError};
pub use position::Position;
pub use reason::{Reason, ReasonCode};
pub use registration::{Registration, RegistrationError};
pub use rule::RuleValue;
pub use tag::{Tag, TagError};
