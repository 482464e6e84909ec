//! The protocol as a model, checked exhaustively. `docs/model.md` says what is modelled, what is not, and within which bounds.
// These modules are a program of their own: what they share is public among them only.
#![allow(unreachable_pub)]

mod faults;
mod process;
mod properties;
mod protocol;
mod state;
mod steps;
mod words;

mod check;
mod guards;
mod plain;

#[test]
fn probe() {
    use protocol::*;
    let get = |name: &str, default: u8| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let bounds = Bounds { objects: get("O", 1) as usize, events: get("E", 2), faults: get("F", 1), outcomes: get("S", 0), batch_max: get("B", 2), stall: get("STALL",0)>0, ..Bounds::default() };
    check::explore("probe", Protocol { bounds, ..Protocol::default() }, 1);
}
