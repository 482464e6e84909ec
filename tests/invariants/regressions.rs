//! Bugs that once were, each with its story.

use std::time::Duration;

use seriatim::scripts::{self, Attached, Renewed, Results};

use super::check::held_tag;
use super::puppet::{CRASHES_MAX, LEASE, Puppet, WIDE, rest};
use super::rig::Rig;
use super::state::Name;

const DAY: Duration = Duration::from_secs(24 * 3600);
