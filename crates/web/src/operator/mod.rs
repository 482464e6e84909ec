//! The reads and the rights of users over HTTP. The routes of `serve` and the pages of the dashboard
//! share them, so that both show the same rows to the same user.
//!
//! - `looks`: objects, lists and figures, with the rights of the user
//! - `pages`: the results of looks
//! - `cursors`: cursors that clients cannot read
//! - `hide`: replaces hidden parts of events
//! - `acts`: the rights that actions need
//! - `errors`: errors of the library as problem documents

pub(crate) mod acts;
mod cursors;
mod errors;
mod hide;
mod looks;
mod pages;

pub(crate) use self::cursors::{Cursors, View};
pub(crate) use self::errors::{action_problem, control_problem, part_problem};
pub(crate) use self::hide::Hidden;
pub(crate) use self::looks::{Looks, shows};
pub(crate) use self::pages::Page;
