//! Calls of an operator: dead letters are retried or dropped, held objects listed and released,
//! their head events skipped, rules set and lifted. Each may be made again.

mod action;
mod dead;
mod held;
mod paused;
mod release;
mod release_many;
mod rule;
mod skip;

pub use action::By;
pub use dead::{DEAD_PER_CALL_MAX, Settle, Settled, dead};
pub use held::{HeldReply, held};
pub use paused::{PausedReply, paused};
pub use release::{Released, release};
pub use release_many::{RELEASE_PER_CALL_MAX, ReleasedOne, release_many};
pub use rule::{RuleStep, Ruled, rule};
pub use skip::{Skipped, skip};
