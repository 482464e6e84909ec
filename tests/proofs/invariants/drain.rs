//! The end of a random schedule: no more faults happen, and every event must be delivered or dead.

use seriatim::wire::{self, Detached};

use super::puppet::{CRASHES_MAX, LEASE, Puppet, Slot, WIDE};
use super::run::{DAY, Run, holds_lease};
use super::state::{Object, State};
use crate::support::sweep::sweep;

impl Run {
    /// Runs without faults. Either the processes with leases continue, or all are gone and a fresh
    /// process takes over. Every pushed event is delivered or dead, and no unexpected key is left.
    pub async fn drain(&mut self) -> Result<(), String> {
        let fresh = self.kind.fresh;
        self.say(format!(
            "drain {}",
            if fresh {
                "by a fresh process"
            } else {
                "by those that live"
            }
        ));
        let state = State::read(&mut self.conn, self.keys.prefix()).await;
        self.puppets
            .retain(|puppet| !fresh && puppet.attached && holds_lease(puppet, &state));
        for name in state.leases.keys() {
            if !self.puppets.iter().any(|puppet| puppet.name == *name) {
                self.delete_lease(name).await;
            }
        }
        if self.puppets.is_empty() {
            self.puppets
                .push(Puppet::start(&mut self.conn, &self.keys, "fresh", "token-fresh", 2).await);
        }
        self.puppets
            .iter_mut()
            .for_each(|puppet| puppet.logs = self.world.logs);
        self.lift_all().await;
        for _ in 0..100 {
            self.look().await?;
            if self.is_drained() {
                return self.leave().await;
            }
            self.round().await?;
        }
        Err(format!(
            "liveness: not drained after 100 rounds, undone {:?}: {:?}",
            self.world.undone(),
            self.state
        ))
    }

    fn is_drained(&self) -> bool {
        let is_idle = |puppet: &Puppet| puppet.slots.iter().all(|slot| matches!(slot, Slot::Free));
        self.puppets.iter().all(is_idle)
            && self.state.markers.is_empty()
            && self.state.grouped.is_empty()
            && self.state.due.is_empty()
            && self.state.paused.is_empty()
            && self.state.rules.is_empty()
            && self
                .state
                .objects
                .values()
                .all(|object| object.queue.is_empty() && object.owner.is_none())
    }

    async fn round(&mut self) -> Result<(), String> {
        for object in self.state.due.keys().cloned().collect::<Vec<_>>() {
            self.release_one(&object).await;
        }
        for p in 0..self.puppets.len() {
            let own = self.puppets[p].name.clone();
            sweep(&mut self.conn, &self.keys, &own, CRASHES_MAX, DAY)
                .await
                .map_err(|error| error.to_string())?;
            let puppet = &mut self.puppets[p];
            for slot in 0..puppet.slots.len() {
                if let Slot::Has(hand) = &puppet.slots[slot] {
                    self.world.receive(hand, hand.events.len())?;
                }
            }
            puppet.tell_done();
            let (token, slots) = (puppet.token.clone(), puppet.slots.len());
            wire::renew(&mut self.conn, &self.keys, &own, &token, LEASE, slots)
                .await
                .map_err(|error| error.to_string())?;
            let given = puppet.advance(&mut self.conn, &self.keys, WIDE).await;
            if !given.slots.is_empty() {
                self.trace.push(format!("{own} {token}: {given:?}"));
            }
            self.look().await?;
        }
        Ok(())
    }

    /// Detaches the last processes. Then late calls arrive and change nothing. Only the lasting
    /// keys are left.
    async fn leave(&mut self) -> Result<(), String> {
        for puppet in std::mem::take(&mut self.puppets) {
            let detached =
                wire::detach(&mut self.conn, &self.keys, &puppet.name, &puppet.token).await;
            match detached {
                Ok(Detached::Detached { held: 0, .. }) => {}
                other => {
                    return Err(format!(
                        "{} {} had nothing, and detached with {other:?}",
                        puppet.name, puppet.token
                    ));
                }
            }
        }
        for call in std::mem::take(&mut self.late) {
            wire::advance(&mut self.conn, &call)
                .await
                .map_err(|error| error.to_string())?;
        }
        self.look().await?;
        let undone = self.world.undone();
        if !undone.is_empty() {
            return Err(format!("I7: neither delivered nor dead: {undone:?}"));
        }
        let state = &self.state;
        let only_last = |object: &Object| {
            object.owner.is_none() && object.held_id.is_none() && object.queue.is_empty()
        };
        let clean = state.workers.is_empty()
            && state.leases.is_empty()
            && state.markers.is_empty()
            && state.due.is_empty();
        let clean = clean
            && state.grouped.is_empty()
            && state.groups.is_empty()
            && state.paused.is_empty()
            && state.rules.is_empty();
        if !clean || !state.objects.values().all(only_last) {
            return Err(format!("something is left behind: {state:?}"));
        }
        Ok(())
    }
}
