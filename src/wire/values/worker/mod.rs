//! The values that workers and operators read and write.

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

pub use cron::{CronLast, CronPlan, CronValue};
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
