//! The protocol as a model, checked exhaustively. `docs/lab/model.md` describes its scope and its
//! bounds.
// These modules are one program: their public items are shared only among them.
#![allow(unreachable_pub)]

mod faults;
mod handlers;
mod leases;
mod process;
mod properties;
mod protocol;
mod state;
mod steps;
mod words;

mod check;
mod explore;
mod guards;
mod masters;
mod plain;
mod scenarios;
mod schedules;
mod shares;
mod walk;
