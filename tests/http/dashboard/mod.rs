//! `seriatim dashboard`: who may look and act, hostile clients, hidden parts of events, and a Redis
//! that refuses or is away. The tests of pages in a browser are in `tests/browser`.

mod follow;
mod forms;
mod hidden;
mod killed;
mod limits;
mod logins;
mod names;
mod origin;
mod public;
mod redis;
pub(crate) mod rig;
mod routes;
mod trust;
