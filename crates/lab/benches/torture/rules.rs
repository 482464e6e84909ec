//! Sets pauses and blocks, and lifts each after a while. They overlap each other and all other
//! faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::rules::{Kind, Selector};
use seriatim::control::{By, Control};

use crate::producers::{object, prefix};
use crate::random::{Draw as _, Random};
use crate::server::Server;

const BY: By<'_> = By {
    who: "torture",
    why: "",
};
/// Bound of the object numbers in rules: rules are for objects that have many events, which are
/// those with low numbers.
const OBJECTS: u64 = 20;

#[derive(Debug, Clone, Copy)]
enum Over {
    All,
    Prefix(u64),
    Object(u64),
}

/// The kind and selector of a rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleSet {
    kind: Kind,
    over: Over,
}

impl RuleSet {
    pub(crate) fn of(random: &mut Random) -> Self {
        let kind = if random.chance(50) {
            Kind::Pause
        } else {
            Kind::Block
        };
        let over = match random.below(10) {
            0..2 => Over::All,
            2..6 => Over::Prefix(random.below(OBJECTS)),
            _ => Over::Object(random.below(OBJECTS)),
        };
        Self { kind, over }
    }

    pub(crate) fn is_for_all(self) -> bool {
        matches!(self.over, Over::All)
    }

    fn selector(self) -> anyhow::Result<Selector> {
        let text = match self.over {
            Over::All => "*".to_owned(),
            Over::Prefix(number) => format!("{}*", prefix(number)),
            Over::Object(number) => object(number),
        };
        Ok(text.parse()?)
    }
}

/// The rules that some fault wants in force now. A rule that several faults want is in the list
/// several times.
#[derive(Default)]
pub(crate) struct Rules {
    wanted: Mutex<Vec<(Kind, Selector)>>,
    pub(crate) lifted_again: AtomicU64,
}

impl Rules {
    /// Sets the rule, and waits for `time`. If `ends`, the rule then ends by itself. Otherwise this
    /// lifts the rule, unless another fault wants it. Returns whether the rule could be set: Redis
    /// may be down.
    pub(crate) async fn hold(
        &self,
        server: &Server,
        rule: RuleSet,
        time: Duration,
        ends: bool,
    ) -> bool {
        let Ok(selector) = rule.selector() else {
            return false;
        };
        let wanted = (rule.kind, selector);
        self.wanted().push(wanted.clone());
        let set = match server.connect(Duration::from_secs(6)).await {
            Ok(conn) => Control::new(conn)
                .set_rule(BY, wanted.0, &wanted.1, ends.then_some(time))
                .await
                .is_ok(),
            Err(_) => false,
        };
        tokio::time::sleep(time).await;
        let is_wanted = self.no_longer(&wanted);
        if !ends && !is_wanted {
            // If this call fails, or Redis loses its write, `lift_forgotten` lifts the rule later.
            if let Ok(conn) = server.connect(Duration::from_secs(6)).await {
                let _ = Control::new(conn).lift_rule(BY, wanted.0, &wanted.1).await;
            }
        }
        set
    }

    /// Records that one fault no longer wants the rule. Returns whether another fault wants it.
    fn no_longer(&self, wanted: &(Kind, Selector)) -> bool {
        let mut all = self.wanted();
        let at = all.iter().position(|other| other == wanted);
        at.map(|at| all.swap_remove(at));
        all.contains(wanted)
    }

    /// Lifts the rules that are in force without an end, and that no fault wants any more.
    pub(crate) async fn lift_forgotten(&self, conn: &MultiplexedConnection) -> anyhow::Result<()> {
        let control = Control::new(conn.clone());
        for rule in control.rules().await?.rules {
            let is_wanted = self.wanted().contains(&(rule.kind, rule.selector.clone()));
            if rule.in_force && rule.end_ms.is_none() && !is_wanted {
                control.lift_rule(BY, rule.kind, &rule.selector).await?;
                self.lifted_again.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Lifts all rules in force. Returns the number of all rules that Redis had before this call.
    pub(crate) async fn lift_all(&self, conn: &MultiplexedConnection) -> anyhow::Result<u64> {
        let control = Control::new(conn.clone());
        let rules = control.rules().await?.rules;
        for rule in rules.iter().filter(|rule| rule.in_force) {
            control.lift_rule(BY, rule.kind, &rule.selector).await?;
        }
        Ok(rules.len() as u64)
    }

    fn wanted(&self) -> std::sync::MutexGuard<'_, Vec<(Kind, Selector)>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
