//! A fault: a fail point, an action, and the number of hits of the point before the action.

use std::fmt;
use std::str::FromStr;

/// The calls of a worker. Each call has a fail point before it and one after it.
const CALLS: [&str; 14] = [
    "open", "info", "connect", "load", "attach", "renew", "adopt", "mark", "promote", "cron",
    "advance", "detach", "pop", "deliver",
];
const ACTIONS: [&str; 4] = ["error", "lost", "delay", "abort"];
/// Calls that a run makes several times, with the number of later hits to test. At a later hit the
/// state is another one.
const REPEATED: [(&str, u32); 2] = [("advance", 3), ("deliver", 3)];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub point: String,
    pub action: String,
    pub passed: u32,
}

impl Fault {
    /// Returns, for each fail point, each action at the first hit.
    pub fn firsts() -> Vec<Self> {
        let mut all = Vec::new();
        for call in CALLS {
            let more: &[&str] = if call == "deliver" {
                &["unavailable", "panic"]
            } else {
                &[]
            };
            for side in ["before", "after"] {
                for action in ACTIONS.iter().chain(more) {
                    all.push(Self {
                        point: format!("{call}.{side}"),
                        action: (*action).to_owned(),
                        passed: 0,
                    });
                }
            }
        }
        all
    }

    /// Returns the faults of `firsts`, and for repeated calls also the faults at later hits.
    pub fn all() -> Vec<Self> {
        let mut all = Self::firsts();
        for (call, last) in REPEATED {
            let later: Vec<_> = all
                .iter()
                .filter(|fault| fault.point.starts_with(call) && fault.passed == 0)
                .cloned()
                .collect();
            for passed in 1..=last {
                all.extend(later.iter().map(|fault| Self {
                    passed,
                    ..fault.clone()
                }));
            }
        }
        all
    }

    /// Returns whether a log shows that the fault happened.
    pub fn is_in(&self, log: &str) -> bool {
        log.contains(&format!("fail point point=\"{}\" ", self.point))
    }
}

/// Writes the fault in the form of the environment variable `FAILPOINTS`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.point, self.action)?;
        if self.passed > 0 {
            write!(f, "@{}", self.passed)
        } else {
            Ok(())
        }
    }
}

impl FromStr for Fault {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (point, action) = text.split_once('=').ok_or(())?;
        let (action, passed) = action.split_once('@').unwrap_or((action, "0"));
        Ok(Self {
            point: point.to_owned(),
            action: action.to_owned(),
            passed: passed.parse().map_err(|_| ())?,
        })
    }
}
