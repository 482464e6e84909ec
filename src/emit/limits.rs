//! The limits of the queues, as far as this emitter knows them.
//!
//! An emitter reads all limits when it connects. While the emitter is used, it reads them again
//! together with an emit: once a second if there are limits, otherwise rarely. It sends that emit
//! first, and the emit returns only when both replies are there. Over a connection that the caller
//! provides, emits wait until the limits are read for the first time. An emit of an object with a
//! limit is a script. All other emits stay plain transactions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};
use serde_json::Value as Json;
use tokio::sync::OnceCell;

use super::Emitter;

/// Three times after which an emitter reads the limits again: if there are no limits; if there are
/// limits; if Redis has refused to return them.
const LOOK_WITHOUT: Duration = Duration::from_secs(5);
const LOOK_WITH: Duration = Duration::from_secs(1);
const LOOK_REFUSED: Duration = Duration::from_secs(60);

/// The limits of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limit {
    pub(super) queued_max: Option<u64>,
    pub(super) markers_max: Option<u64>,
}

impl Limit {
    /// Reads a value of `event.limits`, a JSON object. Returns `None` if the value is invalid.
    fn read(value: &[u8]) -> Option<Self> {
        let value: serde_json::Map<String, Json> = serde_json::from_slice(value).ok()?;
        let most = |name: &str| match value.get(name) {
            None | Some(Json::Null) => Some(None),
            Some(most) => most.as_u64().map(Some),
        };
        Some(Self {
            queued_max: most("queued_max")?,
            markers_max: most("markers_max")?,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    state: Mutex<State>,
    /// Whether the limits were read at least once. All emits wait for the first read.
    looked: OnceCell<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The limits, by their selectors.
    table: Arc<Table>,
    /// The time of the next read; `None` before the first read.
    look_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Table(HashMap<String, Limit>);

impl Table {
    /// Returns the limits of an object. The limit of queued events is the one with the longest
    /// matching selector. The limit of markers is the same for all objects.
    fn of(&self, object: &str) -> Option<Limit> {
        if self.0.is_empty() {
            return None;
        }
        let all = self.0.get("*").copied().unwrap_or_default();
        let colons = object.match_indices(':').map(|(at, _)| &object[..=at]);
        let longest = colons
            .rev()
            .find_map(|prefix| self.0.get(&format!("{prefix}*")));
        let queued_max = longest.map_or(all.queued_max, |limit| limit.queued_max);
        let limit = Limit {
            queued_max,
            markers_max: all.markers_max,
        };
        (limit != Limit::default()).then_some(limit)
    }
}

/// The limits, as they were known at one moment.
#[derive(Debug, Clone)]
pub(super) struct Known(Arc<Table>);

impl Known {
    pub(super) fn of(&self, object: &str) -> Option<Limit> {
        self.0.of(object)
    }
}

impl Limits {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Known {
        Known(Arc::clone(&self.state().table))
    }

    /// Returns whether the caller is to read the limits now.
    fn is_due(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let is_due = state.look_at.is_none_or(|at| at <= now);
        if is_due {
            // Other emits do not read the limits at the same time.
            state.look_at = Some(now + LOOK_WITH);
        }
        is_due
    }

    fn learn(&self, answer: RedisResult<Value>) {
        let fields = answer.and_then(|value| {
            let value = value.extract_error()?;
            redis::from_redis_value::<HashMap<Vec<u8>, Vec<u8>>>(value).map_err(Into::into)
        });
        let mut state = self.state();
        let wait = match fields {
            Ok(fields) => {
                let read = |(selector, value): (Vec<u8>, Vec<u8>)| {
                    Some((String::from_utf8(selector).ok()?, Limit::read(&value)?))
                };
                let table: HashMap<_, _> = fields.into_iter().filter_map(read).collect();
                let wait = if table.is_empty() {
                    LOOK_WITHOUT
                } else {
                    LOOK_WITH
                };
                state.table = Arc::new(Table(table));
                wait
            }
            // The user may not read the limits, or their key has a wrong type.
            Err(error) if matches!(error.code(), Some("NOPERM" | "WRONGTYPE")) => LOOK_REFUSED,
            Err(_) => LOOK_WITH,
        };
        state.look_at = Some(Instant::now() + wait);
    }
}

impl Emitter {
    /// Reads the limits.
    pub(super) async fn look_at_limits(&self) {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.event_limits());
        self.limits.learn(self.link.ask(&ask).await);
    }

    /// Reads the limits, also if they were read before. Emits do not wait for another first read.
    pub(super) async fn look_now(&self) {
        if self.limits.looked.initialized() {
            self.look_at_limits().await;
        } else {
            self.limits
                .looked
                .get_or_init(|| self.look_at_limits())
                .await;
        }
    }

    /// Returns the limits, and whether the caller must read the limits again while it emits.
    pub(super) async fn limits(&self) -> (Known, bool) {
        if !self.limits.looked.initialized() {
            self.limits
                .looked
                .get_or_init(|| self.look_at_limits())
                .await;
        }
        (self.limits.known(), self.limits.is_due())
    }

    /// Awaits `sending`. If `looks`, reads the limits at the same time.
    pub(super) async fn looking<T>(&self, looks: bool, sending: impl Future<Output = T>) -> T {
        if !looks {
            return sending.await;
        }
        futures_util::future::join(sending, self.look_at_limits())
            .await
            .0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read() {
        for (value, queued_max, markers_max) in [
            (
                r#"{"queued_max":5,"markers_max":null,"reason":"x"}"#,
                Some(5),
                None,
            ),
            (
                r#"{"markers_max":18446744073709551615}"#,
                None,
                Some(u64::MAX),
            ),
        ] {
            let limit = Limit {
                queued_max,
                markers_max,
            };
            assert_eq!(Limit::read(value.as_bytes()), Some(limit));
        }
        for value in [
            "",
            "5",
            "[]",
            r#"{"queued_max":-1}"#,
            r#"{"queued_max":"5"}"#,
        ] {
            assert_eq!(Limit::read(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn the_longest_selector_counts() {
        let limit = |queued: u64, markers: u64| Limit {
            queued_max: (queued > 0).then_some(queued),
            markers_max: (markers > 0).then_some(markers),
        };
        let rows = [
            ("*", limit(10, 99)),
            ("a:*", limit(5, 7)),
            ("a:b:*", limit(0, 0)),
        ];
        let table = Table(
            rows.map(|(selector, limit)| (selector.to_owned(), limit))
                .into(),
        );
        assert_eq!(table.of("x"), Some(limit(10, 99)));
        assert_eq!(table.of("a:1"), Some(limit(5, 99)));
        assert_eq!(
            table.of("a:b:1"),
            Some(limit(0, 99)),
            "no limit for this prefix"
        );
        assert_eq!(Table::default().of("a"), None);
        let table = Table([("a:*".to_owned(), limit(5, 0))].into());
        assert_eq!(
            (table.of("a"), table.of("b:a:"), table.of("a:")),
            (None, None, Some(limit(5, 0)))
        );
    }
}
