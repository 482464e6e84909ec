//! Forgetting: what Redis keeps of an idle object, the id of its last event delivered, goes.
//!
//! An object whose events are all delivered leaves one key, so that its next event can say which
//! one it follows on. If objects come and go for good, these keys pile up. [`Control::forget`]
//! deletes them by name; the option `forget_after` of workers deletes them after a while.
//!
//! The next event of a forgotten object has `prev` 0, as if it were the first one. Its id is above
//! all ids before, so that a receiver which remembers the object applies it, by [the
//! rule](crate::consume::judge) as it is; but it can no longer tell from `prev` whether it has
//! missed an event before this one. A receiver that has forgotten the object, too, starts anew.

use super::{Control, ControlError};
pub use crate::wire::Forgot;
use crate::wire::{self, OBJECTS_MAX, ScriptError};

impl Control {
    /// Forgets those of these objects that are idle: without events, without an owner, not held.
    /// All others stay as they are. Returns the result of each, in the order of the names.
    ///
    /// Each object is looked at and forgotten in one atomic step; there is a step for every 250 of
    /// them. If the future is dropped, or fails, any number of steps have been made. Calling again
    /// is safe.
    ///
    /// # Errors
    /// [`ControlError::Name`] for a name that no object can have, before anything is forgotten;
    /// others if Redis cannot be asked.
    pub async fn forget(&self, objects: &[impl AsRef<[u8]>]) -> Result<Vec<Forgot>, ControlError> {
        const WHAT: &str = "lua/forget.lua";
        let (mut conn, keys) = (self.connection(), &self.keys);
        let names = objects.iter().map(|object| keys.found(object)).collect::<Result<Vec<_>, _>>()?;
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(OBJECTS_MAX) {
            all.extend(wire::forget(&mut conn, keys, some).await.map_err(|error| match error {
                ScriptError::Redis(source) => ControlError::redis(WHAT)(source),
                other => ControlError::reply(WHAT, other.to_string()),
            })?);
        }
        Ok(all)
    }
}
