//! The calls of operators. They retry or drop dead letters, list and release held objects, skip
//! first events, set or lift rules, list or cancel schedules, set limits and shares, change cron jobs,
//! forget objects, and repair keys. The comment of each function that changes data says whether it is
//! safe to repeat the call.

mod action;
mod cancel;
mod cron;
mod dead;
mod forget;
mod held;
mod limit;
mod paused;
mod release;
mod release_many;
mod repair;
mod rule;
mod scheduled;
mod share;
mod skip;

pub use action::By;
pub use cancel::{CancelledSchedule, cancel};
pub use cron::{CronDone, CronQuery, CronReply, CronStep, cron, crons};
pub use dead::{DEAD_PER_CALL_MAX, Record, Settle, Settled, dead, dead_in};
pub use forget::forget;
pub use held::{HELD_LOOKED_MAX, HeldPart, HeldQuery, HeldReply, HeldReplyPage, held};
pub use limit::{LimitDone, LimitStep, limit};
pub use paused::{PausedReply, paused};
pub use release::{Released, release};
pub use release_many::{RELEASE_PER_CALL_MAX, ReleaseMany, ReleasedOne, release_many};
pub use repair::{REPAIR_PER_CALL_MAX, RepairCall, RepairLine, repair};
pub use rule::{RuleStep, Ruled, rule};
pub use scheduled::{Range, ScheduledPage, ScheduledReply, scheduled};
pub use share::{InHand, ShareDone, ShareParts, ShareStep, count_in_hand, in_hand, share};
pub use skip::{Skipped, skip};
