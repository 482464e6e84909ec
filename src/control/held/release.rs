//! Releases many held objects, with their due times spread over a time.

use std::time::Duration;

use super::super::{Control, ControlError};
use crate::wire::operator::{self, By, RELEASE_PER_CALL_MAX, Record, ReleasedOne};

/// The longest default of [`ReleaseFilter::over`].
pub const RELEASE_OVER_MAX: Duration = Duration::from_secs(60);

/// The time of [`ReleaseFilter::over`] for each held object, by default.
const OVER_PER_OBJECT: Duration = Duration::from_millis(10);

/// Selects the held objects for [`Control::release_all`]. The default selects all.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReleaseFilter<'a> {
    /// Only objects whose names begin with this text.
    pub prefix: &'a str,
    /// Only objects whose reason ([`HeldObject::why`](super::HeldObject::why)) contains this text.
    pub why: &'a str,
    /// Only objects that wait for an operator.
    pub until_released: bool,
    /// The time over which the due times of the released objects are spread. `None`: 10 ms for each
    /// held object, at most [`RELEASE_OVER_MAX`]. With 0 all objects are due at once, so that the
    /// receiver gets all their events at once.
    pub over: Option<Duration>,
}

/// The counts of [`Control::release_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedAll {
    /// Number of released objects.
    pub released: u64,
    /// Number of objects that were already due, or due within the time.
    pub due: u64,
    /// The time over which the due times are spread.
    pub over: Duration,
}

impl Control {
    /// Releases all objects that are held at the beginning, or the selected ones, in steps of 100.
    /// Each object is made due as by [`Control::release`], but the due times are spread over the
    /// time [`ReleaseFilter::over`], so that the events do not reach the receiver all at once. The steps
    /// share one row in the [actions](Control::actions), with the number of released objects.
    /// Objects that wait for a rule stay as they are. `progress` is called after each step.
    ///
    /// An object that becomes held during the call may be released or not. The same is true for an
    /// object that the call has released and that has failed again.
    ///
    /// Calling again is safe and continues with the objects that are not yet released. If the
    /// future is dropped, some of the steps may be done already.
    ///
    /// # Errors
    /// As [`Control::release`]. The steps before the error stay done, and `progress` has received
    /// the number of released objects.
    pub async fn release_all(
        &self,
        by: By<'_>,
        which: &ReleaseFilter<'_>,
        mut progress: impl FnMut(&ReleasedAll),
    ) -> Result<ReleasedAll, ControlError> {
        const WHAT: &str = "objects.held";
        let (mut conn, keys) = (self.connection(), &self.keys);
        let over = match which.over {
            Some(over) => over,
            None => {
                let held = redis::cmd("ZCARD")
                    .arg(keys.objects_held())
                    .query_async::<u32>(&mut conn)
                    .await;
                let held = held.map_err(ControlError::redis(WHAT))?;
                OVER_PER_OBJECT.saturating_mul(held).min(RELEASE_OVER_MAX)
            }
        };
        let mut all = ReleasedAll {
            over,
            ..ReleasedAll::default()
        };
        let (mut cursor, mut row) = (0_u64, String::new());
        let conditions = operator::ReleaseMany {
            until_released: which.until_released,
            text: which.why,
            over,
        };
        let selected = [which.prefix.as_bytes(), b"*"].concat();
        loop {
            // Reads with ZSCAN and not in the order of due times, because a release changes the due
            // time. In that order an object that keeps failing would appear again and again.
            let mut ask = redis::cmd("ZSCAN");
            ask.arg(keys.objects_held())
                .arg(cursor)
                .arg("COUNT")
                .arg(RELEASE_PER_CALL_MAX);
            let page = ask.query_async(&mut conn).await;
            let (next, page): (u64, Vec<(Vec<u8>, String)>) =
                page.map_err(ControlError::redis(WHAT))?;
            let meant = |(object, due): &(Vec<u8>, String)| {
                object.starts_with(which.prefix.as_bytes())
                    && (!which.until_released || due.as_str() == "inf")
            };
            let objects: Vec<Vec<u8>> = page
                .into_iter()
                .filter(meant)
                .map(|(object, _)| object)
                .collect();
            for some in objects.chunks(RELEASE_PER_CALL_MAX) {
                let record = Record {
                    selected: &selected,
                    row: &row,
                };
                let step =
                    operator::release_many(&mut conn, keys, by, conditions, record, some).await;
                let words;
                (words, row) = step?;
                for released in words {
                    all.released += u64::from(released == ReleasedOne::Released);
                    all.due += u64::from(released == ReleasedOne::Due);
                }
                progress(&all);
            }
            if next == 0 {
                return Ok(all);
            }
            cursor = next;
        }
    }
}
