//! The state of a walk over all keys: the subjects and names that it has seen so far, and its
//! report.

use std::collections::HashMap;

use redis::aio::ConnectionLike;

use super::super::ControlError;
use super::super::scan::Dedup;
use super::mend::Mender;
use super::report::{CheckReport, Invariant, LookedAt, NOT_READABLE, Subject, Violation};
use super::script::Kind;
use crate::event::{NameError, ObjectName};
use crate::keys::Keys;
use crate::wire::values::Mark;

/// Number of markers that one call reads.
pub(super) const MARKERS_PER_CALL: usize = 1000;

/// Maximum number of groups whose lists are read. Workers make at most this many groups.
pub(super) const GROUPS_MAX: usize = 2049;

/// Maximum number of entries in each set of things seen; an entry takes 8 bytes.
pub(super) const SEEN_MAX: usize = 4 << 20;

/// A registered name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) slots: u32,
    /// Whether the name has a lease. If so, the walk looks at each of its slots. Otherwise the walk
    /// looks only at those slots whose keys it meets.
    pub(super) is_alive: bool,
}

/// One walk over all keys.
pub(super) struct Walk<'a, C> {
    pub(super) keys: &'a Keys,
    pub(super) conn: &'a mut C,
    violations_max: usize,
    /// Objects for which the walk has seen a marker, or which it has seen in the list of a group or
    /// of a registered worker.
    pub(super) covered: Dedup,
    /// Subjects for which a violation was reported. Each is confirmed only once.
    pub(super) broken: Dedup,
    /// Objects for which an invalid name was reported.
    named: Dedup,
    /// Registered names.
    pub(super) names: HashMap<String, Name>,
    /// Objects in the lists of all registered workers. The lists are read when an object first
    /// seems uncovered.
    pub(super) taken: Option<Dedup>,
    /// Possibly uncovered objects, each with the text of the finding that calls it uncovered.
    pub(super) uncovered: HashMap<Vec<u8>, String>,
    /// Subjects at which the next call of the script looks.
    pub(super) pending: Vec<(Kind, Vec<u8>)>,
    /// Set for a repair: the walk then puts right each suspicion that it finds, and reports none.
    pub(super) mender: Option<Mender<'a>>,
    pub(super) report: CheckReport,
}

impl<'a, C: ConnectionLike> Walk<'a, C> {
    pub(super) fn new(conn: &'a mut C, keys: &'a Keys, violations_max: usize) -> Self {
        Self {
            keys,
            conn,
            violations_max,
            covered: Dedup::new(SEEN_MAX),
            broken: Dedup::new(SEEN_MAX),
            named: Dedup::new(SEEN_MAX),
            names: HashMap::new(),
            taken: None,
            uncovered: HashMap::new(),
            pending: Vec::new(),
            mender: None,
            report: CheckReport {
                looked_at: LookedAt::default(),
                violations_total: 0,
                violations: Vec::new(),
                not_readable: NOT_READABLE,
            },
        }
    }

    pub(super) async fn count_markers(&mut self) -> Result<usize, ControlError> {
        match redis::cmd("LLEN")
            .arg(self.keys.objects_with_events())
            .query_async(self.conn)
            .await
        {
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(0),
            total => total.map_err(ControlError::redis("the markers")),
        }
    }

    /// Returns one page of markers, from index `from` on; none if there are no more markers.
    /// Producers push at the front. So between two pages markers only move to higher indexes, and
    /// no marker is missed unless it is taken.
    pub(super) async fn page_of_markers(
        &mut self,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        self.page(self.keys.objects_with_events(), from).await
    }

    /// Returns the groups that have a list of names. Without groups, and for a key of a wrong type,
    /// returns none. Workers make about two thousand groups at most; further ones are left out.
    pub(super) async fn groups(&mut self) -> Result<Vec<Vec<u8>>, ControlError> {
        match redis::cmd("ZRANGE")
            .arg(self.keys.event_groups())
            .arg(0)
            .arg(GROUPS_MAX - 1)
            .query_async(self.conn)
            .await
        {
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(Vec::new()),
            groups => groups.map_err(ControlError::redis("the groups")),
        }
    }

    /// Returns one page of the names that are grouped, like
    /// [`page_of_markers`](Self::page_of_markers).
    pub(super) async fn page_of_group(
        &mut self,
        group: &[u8],
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        self.page(self.keys.waiting_of(group), from).await
    }

    async fn page<K: redis::ToRedisArgs>(
        &mut self,
        key: K,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        let mut ask = redis::cmd("LRANGE");
        ask.arg(key).arg(from).arg(from + MARKERS_PER_CALL - 1);
        match ask.query_async::<Vec<Vec<u8>>>(self.conn).await {
            Ok(page) => Ok(Some(page).filter(|page| !page.is_empty())),
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
            Err(error) => Err(ControlError::redis("the markers")(error)),
        }
    }

    /// Returns the registered name to which the worker belongs.
    fn name_of(&self, worker: &[u8]) -> Option<Name> {
        let (name, slot) = std::str::from_utf8(worker).ok()?.rsplit_once('.')?;
        let slot: u32 = slot.parse().ok()?;
        self.names
            .get(name)
            .copied()
            .filter(|name| slot < name.slots)
    }

    pub(super) fn is_registered(&self, worker: &[u8]) -> bool {
        self.name_of(worker).is_some()
    }

    pub(super) fn is_alive(&self, worker: &[u8]) -> bool {
        self.name_of(worker).is_some_and(|name| name.is_alive)
    }

    /// Reports an object name that no worker accepts. Each name is reported once. An empty marker
    /// is valid: it only wakes a worker.
    pub(super) fn look_at_name(&mut self, name: &[u8], has_keys: bool) {
        let what = match (self.keys.found(name), ObjectName::from_bytes(name)) {
            (Err(NameError::Brace(_)), _) => {
                "it may be an object of another namespace, for without one no name begins with a brace: workers drop its markers"
                    .to_owned()
            }
            (Ok(_), _) if has_keys && Mark::read(name).is_some() => {
                "it has the name of a mark: workers drop its markers; have its producer emit its events under another name"
                    .to_owned()
            }
            (Ok(_), Err(error)) if has_keys => {
                format!(
                    "{error}: workers hold such an object; skip its events, or have its producer emit them under another name"
                )
            }
            _ => return,
        };
        if self.named.insert(name) {
            self.violation(Invariant::Layout, Kind::Object.subject(name), what);
        }
    }

    pub(super) fn violation(&mut self, invariant: Invariant, subject: Subject, what: String) {
        if let Some(mender) = &mut self.mender {
            // A repair cannot mend the name of an object.
            return mender.leave(subject, what);
        }
        self.report.violations_total += 1;
        if self.report.violations.len() < self.violations_max {
            self.report.violations.push(Violation {
                invariant,
                subject,
                what,
            });
        }
    }
}
