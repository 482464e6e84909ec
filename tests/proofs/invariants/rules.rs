//! Pauses and blocks in random schedules. Objects under a rule are not claimed, and all objects
//! continue when the rules are lifted.

use std::collections::BTreeMap;
use std::time::Duration;

use seriatim::wire::operator::{self, By, RuleStep, Ruled};

use super::run::Run;
use super::state::{Name, State, text};
use super::world::{Number, World, number};

const KINDS: [&str; 2] = ["pause", "block"];
const SELECTORS: [&str; 5] = ["*", "work:*", "a", "{x}:*", "event.worker:*"];
const RULES_MAX: u64 = 1000;

fn means(selector: &str, object: &Name) -> bool {
    match selector.strip_suffix('*') {
        Some(prefix) => object.starts_with(prefix.as_bytes()),
        None => object == selector,
    }
}

/// Checks the workers whose objects are under a rule: such a worker got its batch before the rule
/// was set.
pub fn check(
    state: &State,
    world: &mut World,
    owned: &BTreeMap<&str, &Name>,
) -> Result<(), String> {
    let in_hand: BTreeMap<String, Vec<Number>> = owned
        .keys()
        .map(|w| {
            (
                (*w).to_owned(),
                state
                    .worker(w)
                    .batch
                    .iter()
                    .map(|event| number(event))
                    .collect(),
            )
        })
        .collect();
    for (w, object) in owned {
        let Some((kind, selector)) = world
            .rules
            .iter()
            .find(|(_, selector)| means(selector, object))
        else {
            continue;
        };
        let before = world.in_hand.get(*w).map_or(&[][..], Vec::as_slice);
        if let Some(new) = in_hand[*w].iter().find(|number| !before.contains(number)) {
            return Err(format!(
                "{w} was given event {new} of {} under the {kind} for {selector}",
                text(object)
            ));
        }
    }
    world.in_hand = in_hand;
    Ok(())
}

impl Run {
    /// Sets a rule without an end or for 1 ms, or lifts a rule. Often makes the call twice.
    pub(super) async fn rule(&mut self) {
        let (kind, selector) = (
            KINDS[self.rng.at(KINDS.len())],
            SELECTORS[self.rng.at(SELECTORS.len())],
        );
        let step = match self.rng.below(10) {
            0..4 => RuleStep::Set(None),
            4 => RuleStep::Set(Some(Duration::from_millis(1))),
            _ => RuleStep::Lift,
        };
        for _ in 0..1 + self.rng.at(2) {
            self.rule_one(step, kind, selector).await;
        }
    }

    async fn rule_one(
        &mut self,
        step: RuleStep,
        kind: &'static str,
        selector: &'static str,
    ) -> Ruled {
        let by = By {
            who: "ada",
            why: "",
        };
        let ruled = operator::rule(
            &mut self.conn,
            &self.keys,
            by,
            step,
            kind,
            selector.as_bytes(),
            RULES_MAX,
        )
        .await;
        let ruled = ruled.expect("a rule");
        match step {
            RuleStep::Set(None) => drop(self.world.rules.insert((kind, selector))),
            // A rule with an end may end at any time, so the test does not rely on it.
            RuleStep::Set(Some(_)) | RuleStep::Lift => {
                _ = self.world.rules.remove(&(kind, selector))
            }
        }
        self.say(format!("{step:?} {kind} {selector}: {ruled:?}"));
        ruled
    }

    pub(super) async fn lift_all(&mut self) {
        for (kind, selector) in KINDS
            .into_iter()
            .flat_map(|kind| SELECTORS.map(|selector| (kind, selector)))
        {
            self.rule_one(RuleStep::Lift, kind, selector).await;
        }
    }
}
