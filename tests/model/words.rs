//! Descriptions of steps, for traces.
use crate::protocol::{Action, Fate, Protocol, Report};
use crate::state::{Outcome, SENDS, SLOTS_EACH};

impl Protocol {
    pub fn in_words(&self, action: Action) -> String {
        let who = |process: usize| {
            format!(
                "process {process} of name {}",
                self.bounds.processes[process].0
            )
        };
        let worker = |w: usize| format!("{}.{}", w / SLOTS_EACH, w % SLOTS_EACH);
        match action {
            Action::Push { object } => format!("a producer pushes an event of object {object}"),
            Action::Pop { process, slot } => {
                format!(
                    "{}: the pop of worker {} moves a marker",
                    who(process),
                    worker(self.worker(process, slot))
                )
            }
            Action::Advance {
                process,
                reports,
                fate,
                markers_first,
            } => {
                let slots = reports
                    .iter()
                    .enumerate()
                    .filter_map(|(slot, report)| report.map(|report| (slot, report)));
                let said: Vec<_> = slots
                    .map(|(slot, report)| format!("slot {slot} {}", report_words(report)))
                    .collect();
                let turn = if markers_first { ", markers first" } else { "" };
                format!(
                    "{}: advance ({}{turn}){}",
                    who(process),
                    said.join(", "),
                    fate_words(fate)
                )
            }
            Action::Send { process, slot } => format!(
                "{}: the receiver gets the next event of slot {slot}",
                who(process)
            ),
            Action::Finish {
                process,
                slot,
                handler,
                emitted,
                fate,
            } => {
                let which = if handler == SENDS { "first" } else { "second" };
                let emits = if emitted > 0 {
                    format!(" and emits an event of object {}", emitted - 1)
                } else {
                    String::new()
                };
                let fate = fate_words(fate);
                format!(
                    "{}: the {which} handler of the next event of slot {slot} finishes{emits}: handled{fate}",
                    who(process)
                )
            }
            Action::Attach { process, fate } => {
                format!("{}: attach{}", who(process), fate_words(fate))
            }
            Action::Adopt { process, name } => format!("{}: adopt of name {name}", who(process)),
            Action::Detach { process, fate } => {
                format!("{}: detach{}", who(process), fate_words(fate))
            }
            Action::Renew { process } => format!("{}: renew", who(process)),
            Action::Due { object } => format!("held object {object} becomes due"),
            Action::Operator { object } => format!("an operator releases object {object}"),
            Action::Forget { object } => format!("idle object {object} is forgotten"),
            Action::Skip { object } => {
                format!("an operator skips the head event of object {object}")
            }
            Action::Again { object } => {
                format!("an operator retries a dead letter of object {object}")
            }
            Action::Drop { object } => {
                format!("an operator drops a dead letter of object {object}")
            }
            Action::Pause { object } => format!("a rule pauses object {object}"),
            Action::Lift { object } => format!("the rule of object {object} is marked lifted"),
            Action::Wake { object } => {
                format!("what the rule of object {object} held is woken, and the rule deleted")
            }
            Action::PauseAll => "a rule pauses all objects".into(),
            Action::LiftAll => "the rule of all objects is marked lifted".into(),
            Action::WakeNext => {
                "the next object that the rule of all has held is woken, or the rule is deleted"
                    .into()
            }
            Action::Crash { process } => format!("{} crashes", who(process)),
            Action::Expire { name } => format!("the lease of name {name} ends"),
            Action::GhostPop { w } => {
                format!("a forgotten pop of worker {} moves a marker", worker(w))
            }
            Action::Late { markers_first } => {
                format!(
                    "the second copy of the call arrives{}",
                    if markers_first {
                        " (markers first)"
                    } else {
                        ""
                    }
                )
            }
            Action::GiveUp { process, slot } => {
                format!(
                    "{} gives up on an event of slot {slot} that is on its way",
                    who(process)
                )
            }
            Action::Arrive => "the event on its way arrives".into(),
            Action::Snapshot => "Redis: from here on, writes will be lost".into(),
            Action::Rollback => "failover: Redis is rolled back".into(),
            Action::Empty => "Redis is restarted, and empty".into(),
            Action::Evict => "the counter is evicted".into(),
            Action::SetBack => "the counter is set back".into(),
            Action::Connect { process } => format!("{} connects anew", who(process)),
            Action::ReadRules { process } => format!("{} reads the rules", who(process)),
            Action::Release { process, slot } => {
                format!("{}: release of the object of slot {slot}", who(process))
            }
        }
    }
}

fn fate_words(fate: Fate) -> &'static str {
    match fate {
        Fate::Answered => "",
        Fate::ReplyLost => ", its reply is lost",
        Fate::Repeated => ", a second copy of it is on its way",
    }
}

fn report_words(report: Report) -> String {
    match report {
        Report::Free => "free".into(),
        Report::Is(Outcome::Done(k)) => format!("done {k}"),
        Report::Is(Outcome::Yield(k)) => format!("yield {k}"),
        Report::Is(Outcome::Retry(k)) => format!("retry {k}"),
        Report::Is(Outcome::Reject(k)) => format!("reject {k}"),
        Report::Is(Outcome::Part(k)) => format!("part {k}"),
        Report::Is(Outcome::Hold(k)) => format!("hold {k}"),
        Report::Is(Outcome::Crash(k)) => format!("program died {k}"),
        Report::Is(Outcome::Wait(k)) => format!("wait for an operator {k}"),
    }
}
