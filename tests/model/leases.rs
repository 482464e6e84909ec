//! The scripts about leases as atomic steps, named after the Lua files: attach, adopt, detach,
//! renew.
use crate::protocol::Protocol;
use crate::state::*;
use crate::steps::Refused;

impl Protocol {
    /// Calls `owned` for every object that a slot of a name owns. Moves all other names in the
    /// slots' lists back to the markers.
    fn each_slot(
        &self,
        s: &mut State,
        name: usize,
        slots: u8,
        mut owned: impl FnMut(&mut State, usize, usize),
    ) {
        for w in name * SLOTS_EACH..name * SLOTS_EACH + slots as usize {
            let mut seen = Short::default();
            for taken in s.redis.slots[w].objects.iter() {
                if s.redis.objects[taken as usize - 1].owner == w as u8 + 1 {
                    // A list may contain the name of an owned object twice, after a late pop of its
                    // second marker.
                    if !self.guards.owned_once || !seen.contains(taken) {
                        owned(s, w, taken as usize - 1);
                    }
                    seen.push(taken);
                } else if self.guards.strays {
                    self.stray(s, w, taken);
                }
            }
        }
    }

    /// Holds a slot's object, due now. Counts one more crash if `died` and a batch is in flight.
    fn hold_owned(&self, s: &mut State, w: usize, at: usize, died: bool) {
        let mut due = Due::Now;
        let slot = &mut s.redis.slots[w];
        if died && !slot.batch.is_empty() {
            slot.tag.crashes += 1;
            if slot.tag.crashes >= self.bounds.crashes_max {
                due = Due::Never;
            }
        }
        self.hold(s, w, at, due);
    }

    /// Gives the name a lease with the caller's token. Returns false if the name is in use.
    /// `displace`: the lease that the call may replace; its process is dead, or is to be taken
    /// over.
    pub fn attach(
        &self,
        s: &mut State,
        name: usize,
        slots: u8,
        token: u8,
        before: u8,
        displace: u8,
    ) -> bool {
        let found = s.redis.names[name];
        let repeated = found.lease == token;
        if found.lease != 0 && !repeated && found.lease != displace {
            return false;
        }
        let died = !repeated && found.last_token != before;
        let slots_all = slots.max(found.slots);
        s.redis.names[name] = Name {
            lease: token,
            last_token: token,
            slots: slots_all,
            swept: false,
        };
        s.ghost.newest[name] = token;
        self.each_slot(s, name, slots_all, |s, w, at| {
            let Slot { batch, tag, .. } = &mut s.redis.slots[w];
            let has_batch = !batch.is_empty();
            if w % SLOTS_EACH >= slots as usize
                || (has_batch && died && tag.crashes + 1 >= self.bounds.crashes_max)
            {
                self.hold_owned(s, w, at, died);
            } else if has_batch && died {
                tag.crashes += 1;
            }
        });
        true
    }

    /// Takes over the objects of a name without a lease.
    pub fn adopt(&self, s: &mut State, own: usize, name: usize) {
        let found = s.redis.names[name];
        if name == own
            || found.lease != 0
            || found.last_token == 0
            || (found.swept && !self.guards.resweep)
        {
            return;
        }
        self.each_slot(s, name, found.slots, |s, w, at| {
            self.hold_owned(s, w, at, true)
        });
        s.redis.names[name].swept = !self.guards.resweep;
    }

    pub fn detach(&self, s: &mut State, name: usize, token: u8) -> Result<(), Refused> {
        if let Some(refused) = self.fence(s, name, token) {
            return Err(refused);
        }
        let slots = s.redis.names[name].slots;
        self.each_slot(s, name, slots, |s, w, at| self.hold_owned(s, w, at, false));
        s.redis.names[name].lease = 0;
        Ok(())
    }

    /// Renews the lease of a name. `slots`: the number of slots that the process runs.
    pub fn renew(&self, s: &mut State, name: usize, token: u8, slots: u8) -> Result<(), Refused> {
        if !self.guards.renew_never_creates && s.redis.names[name].lease == 0 {
            s.redis.names[name].lease = token;
        }
        if let Some(refused) = self.fence(s, name, token) {
            return Err(refused);
        }
        let slots_all = s.redis.names[name].slots;
        self.each_slot(
            s,
            name,
            if self.guards.renew_every_slot {
                slots_all
            } else {
                slots
            },
            |_, _, _| {},
        );
        Ok(())
    }
}
