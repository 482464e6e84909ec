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
mod scenarios;
mod walk;

#[test]
fn probe() {
    use protocol::*;
    let get = |name: &str, default: u8| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let procs = std::env::var("P").unwrap_or("01,11".into());
    let processes: Vec<_> = procs.split(',').map(|p| ((p.as_bytes()[0] - b'0') as usize, p.as_bytes()[1] - b'0')).collect();
    let kinds = std::env::var("K").unwrap_or_default();
    let fault_kinds: &'static [Fault] = match kinds.as_str() { "rollback" => &[Fault::Rollback], "all" => &[Fault::Crash, Fault::Pause, Fault::Takeover, Fault::LostReply, Fault::RepeatedCall, Fault::GhostPop, Fault::LateSend, Fault::Rollback], "crash" => &[Fault::Crash], "pause" => &[Fault::Pause], "takeover" => &[Fault::Takeover], "lost" => &[Fault::LostReply], "rep" => &[Fault::RepeatedCall], "ghost" => &[Fault::GhostPop], "latesend" => &[Fault::LateSend], "rb" => &[Fault::Crash, Fault::LateSend, Fault::LostReply, Fault::Rollback], _ => FAULTS };
    let bounds = Bounds { objects: get("O", 1) as usize, events: get("E", 2), faults: get("F", 1), outcomes: get("S", 0), batch_max: get("B", 2), stall: get("STALL",0)>0, attached: get("A", 2) as usize, processes, fault_kinds, ..Bounds::default() };
    check::explore("probe", Protocol { bounds, ..Protocol::default() }, get("T", 1) as usize);
}
