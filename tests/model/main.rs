//! The protocol as a model, checked exhaustively. `docs/model.md` says what is modelled, what is
//! not, and within which bounds.
// These modules are a program of their own: what they share is public among them only.
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
mod plain;
mod scenarios;
mod walk;
