//! The second look at each suspicion, and the search for objects without a marker or a worker that
//! covers them.

use std::collections::{HashMap, HashSet};

use redis::aio::ConnectionLike;

use super::super::ControlError;
use super::super::names::{self, Walk as Names, Which};
use super::super::scan::Seen;
use super::report::Invariant;
use super::script::{self, Finding, Kind, uncovered};
use super::state::{MARKERS_PER_CALL, SEEN_MAX, Walk};

/// Maximum number of possibly uncovered objects that are searched for at once.
const UNCOVERED_MAX: usize = 4096;

/// Maximum number of searches for an object whose events change during the search.
const SEARCHES_MAX: usize = 3;

/// Maximum number of extra pages that a search reads beyond the initial number of pages. After them
/// the search gives up, because markers grow faster than they can be read.
const PAGES_MORE_MAX: usize = 1000;

impl<C: ConnectionLike> Walk<'_, C> {
    /// Looks at the pending subjects, then looks again at each suspicion alone.
    pub(super) async fn flush(&mut self) -> Result<(), ControlError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let findings = self.look(&pending, None).await?;
        let mut before = None;
        for position in findings.into_iter().map(|finding| finding.position) {
            if before.replace(position) == Some(position) {
                continue;
            }
            let Some(suspect) = pending.get(position.wrapping_sub(1)) else {
                return Err(ControlError::reply("lua/check.lua", format!("it names subject {position} of {}", pending.len())));
            };
            if !self.broken.contains(suspect) {
                self.confirm(suspect).await?;
            }
        }
        Ok(())
    }

    /// Calls the script once. Objects in the lists of registered workers then count as covered.
    async fn look(&mut self, subjects: &[(Kind, Vec<u8>)], hint: Option<&str>) -> Result<Vec<Finding>, ControlError> {
        let covered = &self.covered;
        let hinted = subjects.iter().map(|(kind, name)| {
            let known = if *kind == Kind::Object && covered.contains(name) { "covered" } else { "unknown" };
            (*kind, name.as_slice(), hint.unwrap_or(known))
        });
        let reply = script::look(self.conn, self.keys, hinted).await?;
        let all_registered = subjects.iter().all(|(kind, name)| *kind != Kind::Worker || self.is_registered(name));
        for name in &reply.in_lists {
            self.look_at_name(name, false);
            if all_registered {
                self.covered.insert(name);
            }
        }
        Ok(reply.findings)
    }

    async fn confirm(&mut self, suspect: &(Kind, Vec<u8>)) -> Result<(), ControlError> {
        self.report.looked_at.suspicions += 1;
        let findings = self.look(std::slice::from_ref(suspect), Some("unknown")).await?;
        let Some(text) = uncovered(&findings) else { return self.report(suspect, findings) };
        self.uncovered.insert(suspect.1.clone(), text);
        if self.uncovered.len() >= UNCOVERED_MAX { self.settle().await } else { Ok(()) }
    }

    /// Searches all markers and lists for the possibly uncovered objects, then looks at each object
    /// again.
    pub(super) async fn settle(&mut self) -> Result<(), ControlError> {
        let mut texts = std::mem::take(&mut self.uncovered);
        let mut searches_left = SEARCHES_MAX;
        while !texts.is_empty() {
            searches_left -= 1;
            let found = self.search(&texts).await?;
            let mut changed = HashMap::new();
            for (object, text) in texts {
                let suspect = (Kind::Object, object);
                let hint = if found.contains(&suspect.1) { "covered" } else { "searched" };
                let findings = self.look(std::slice::from_ref(&suspect), Some(hint)).await?;
                match uncovered(&findings) {
                    // The events changed during the search, and a marker may have come with them.
                    // Search again. The last search counts in any case; otherwise an object whose
                    // events always change would never be reported.
                    Some(now) if now != text && searches_left > 0 => drop(changed.insert(suspect.1, now)),
                    _ => self.report(&suspect, findings)?,
                }
            }
            texts = changed;
        }
        Ok(())
    }

    fn report(&mut self, suspect: &(Kind, Vec<u8>), findings: Vec<Finding>) -> Result<(), ControlError> {
        for finding in findings {
            let invariant = match finding.word.as_str() {
                "I1" => Invariant::I1,
                "I2" => Invariant::I2,
                "I3" => Invariant::I3,
                "I4" => Invariant::I4,
                "I5" => Invariant::I5,
                "I6" => Invariant::I6,
                "I8" => Invariant::I8,
                "I9" => Invariant::I9,
                "layout" => Invariant::Layout,
                "foreign" => {
                    self.report.looked_at.foreign += 1;
                    continue;
                }
                other => return Err(ControlError::reply("lua/check.lua", format!("it finds {other:?}"))),
            };
            self.broken.insert(suspect);
            self.violation(invariant, suspect.0.subject(&suspect.1), finding.what);
        }
        Ok(())
    }

    /// Returns those of `objects` that have a marker or are in the list of a registered worker.
    /// Markers are read first, because objects move from markers to lists. If markers grow faster
    /// than they can be read, returns all objects: the search is then inconclusive.
    async fn search(&mut self, objects: &HashMap<Vec<u8>, String>) -> Result<HashSet<Vec<u8>>, ControlError> {
        let mut found = HashSet::new();
        let pages_max = self.count_markers().await? / MARKERS_PER_CALL + PAGES_MORE_MAX;
        let (mut from, mut pages) = (0, 0);
        while let Some(page) = self.page_of_markers(from).await? {
            from += page.len();
            pages += 1;
            if pages > pages_max {
                return Ok(objects.keys().cloned().collect());
            }
            found.extend(page.into_iter().filter(|object| objects.contains_key(object)));
        }
        let departed = match self.taken.take() {
            Some(seen) => seen,
            None => {
                let mut seen = Seen::new(SEEN_MAX);
                let mut walk = Names::all(self.keys);
                while let Some(page) = walk.next(self.conn, self.keys).await? {
                    let taken = names::taken(self.conn, self.keys, b"", &page).await?;
                    for (_, object) in &taken.objects {
                        seen.insert(object);
                    }
                }
                seen
            }
        };
        found.extend(objects.keys().filter(|object| departed.contains(object)).cloned());
        self.taken = Some(departed);
        let mut walk = Names::of(self.conn, self.keys, Which::Watched).await?;
        while let Some(page) = walk.next(self.conn, self.keys).await? {
            let taken = names::taken(self.conn, self.keys, b"", &page).await?;
            found.extend(taken.objects.into_iter().map(|(_, object)| object).filter(|object| objects.contains_key(object)));
        }
        Ok(found)
    }
}
