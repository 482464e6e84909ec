//! Forgetting: deletes the id of the last delivered event of an idle object.
//!
//! An object whose events are all delivered leaves one key. The key has the id of the last event,
//! which becomes the `prev` of the next event. If objects come and go for good, such keys pile up.
//! [`Control::forget`] deletes the keys of named objects. [`Control::forget_as`] does so for one
//! object, and records the operator and the reason. The worker option `forget_after` deletes the
//! keys after a time.
//!
//! The next event of a forgotten object has `prev` 0, like a first event. Its id is above all
//! earlier ids. So a receiver that remembers the object applies the event by [the usual
//! rule](crate::consume::judge). But the receiver cannot see from `prev` whether it has missed an
//! earlier event. A receiver that has also forgotten the object treats the event as the first one.

use super::{By, Control, ControlError};
pub use crate::wire::Forgot;
use crate::wire::{self, OBJECTS_MAX, ScriptError, operator};

impl Control {
    /// Forgets each of these objects that is idle: it has no events and no owner, and is not held.
    /// All other objects stay unchanged. Returns one result for each object, in the order of the
    /// names.
    ///
    /// Each object is checked and forgotten in one atomic step. One call of Redis has up to 250
    /// objects. If the future is dropped or fails, some of the calls may be done already. Calling
    /// again is safe.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name, before anything is forgotten. Other
    /// errors if Redis cannot be asked.
    pub async fn forget(&self, objects: &[impl AsRef<[u8]>]) -> Result<Vec<Forgot>, ControlError> {
        const WHAT: &str = "lua/forget.lua";
        let (mut conn, keys) = (self.connection(), &self.keys);
        let names = objects
            .iter()
            .map(|object| keys.found(object))
            .collect::<Result<Vec<_>, _>>()?;
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(OBJECTS_MAX) {
            all.extend(
                wire::forget(&mut conn, keys, some)
                    .await
                    .map_err(|error| match error {
                        ScriptError::Redis(source) => ControlError::redis(WHAT)(source),
                        other => ControlError::reply(WHAT, other.to_string()),
                    })?,
            );
        }
        Ok(all)
    }

    /// Forgets one object as [`Control::forget`], and records the operator and the reason in the
    /// [actions](Control::actions), as `forget`. An object that was kept, or that had no last id,
    /// is not recorded.
    ///
    /// The call is one atomic step. Calling again is safe.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name. Other errors if Redis cannot be asked or
    /// forbids it.
    pub async fn forget_as(
        &self,
        by: By<'_>,
        object: impl AsRef<[u8]>,
    ) -> Result<Forgot, ControlError> {
        let object = self.keys.found(&object)?;
        Ok(operator::forget(&mut self.connection(), &self.keys, by, object).await?)
    }
}
