//! Looks again, alone, at each suspicion of the walk. Also searches markers and workers' lists for
//! objects that seem uncovered.

use std::collections::{HashMap, HashSet};

use redis::aio::ConnectionLike;

use super::super::ControlError;
use super::super::names::{self, NameSet, Walk as Names};
use super::super::scan::Dedup;
use super::script::{self, Finding, Kind, uncovered};
use super::state::{GROUPS_MAX, MARKERS_PER_CALL, SEEN_MAX, Walk};

/// Maximum number of possibly uncovered objects for which one search looks.
const UNCOVERED_MAX: usize = 4096;

/// Maximum number of searches for one object. A search is repeated if the object's events changed
/// during the search.
const SEARCHES_MAX: usize = 3;

/// Number of pages by which a search may exceed the number of pages at its start. A search that
/// exceeds it gives up, because new markers come faster than the search reads them.
const PAGES_MORE_MAX: usize = 1000;

impl<C: ConnectionLike> Walk<'_, C> {
    /// Looks at the pending subjects together, then at each suspicious one alone.
    pub(super) async fn flush(&mut self) -> Result<(), ControlError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let findings = self.look(&pending, None).await?;
        if self.mender.is_some() {
            return self.mend_found(&pending, findings).await;
        }
        let mut before = None;
        for position in findings.into_iter().map(|finding| finding.position) {
            if before.replace(position) == Some(position) {
                continue;
            }
            let Some(suspect) = pending.get(position.wrapping_sub(1)) else {
                return Err(ControlError::reply(
                    "lua/check.lua",
                    format!("it names subject {position} of {}", pending.len()),
                ));
            };
            if !self.broken.contains(suspect) {
                self.confirm(suspect).await?;
            }
        }
        Ok(())
    }

    /// Keeps an object that seems uncovered until the next search.
    pub(super) async fn keep_uncovered(
        &mut self,
        object: Vec<u8>,
        text: String,
    ) -> Result<(), ControlError> {
        self.uncovered.insert(object, text);
        if self.uncovered.len() >= UNCOVERED_MAX {
            self.settle().await
        } else {
            Ok(())
        }
    }

    /// Calls the script once. Afterwards, objects that the script saw in the lists of registered
    /// workers count as covered.
    pub(super) async fn look(
        &mut self,
        subjects: &[(Kind, Vec<u8>)],
        hint: Option<&str>,
    ) -> Result<Vec<Finding>, ControlError> {
        let covered = &self.covered;
        let hinted = subjects.iter().map(|(kind, name)| {
            let known = if *kind == Kind::Object && covered.contains(name) {
                "covered"
            } else {
                "unknown"
            };
            (*kind, name.as_slice(), hint.unwrap_or(known))
        });
        let reply = script::look(self.conn, self.keys, hinted).await?;
        let all_registered = subjects
            .iter()
            .all(|(kind, name)| *kind != Kind::Worker || self.is_registered(name));
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
        let findings = self
            .look(std::slice::from_ref(suspect), Some("unknown"))
            .await?;
        let Some(text) = uncovered(&findings) else {
            return self.report(suspect, findings);
        };
        self.keep_uncovered(suspect.1.clone(), text).await
    }

    /// Searches all markers and all lists of workers for the possibly uncovered objects. Then looks
    /// at each of these objects again.
    pub(super) async fn settle(&mut self) -> Result<(), ControlError> {
        let mut texts = std::mem::take(&mut self.uncovered);
        let mut searches_left = SEARCHES_MAX;
        while !texts.is_empty() {
            searches_left -= 1;
            let found = self.search(&texts).await?;
            if self.mender.is_some() {
                let lost = texts.into_keys().filter(|object| !found.contains(object));
                let lost: Vec<_> = lost.map(|object| (Kind::Object, object)).collect();
                return self.mend(lost, "searched").await;
            }
            let mut changed = HashMap::new();
            for (object, text) in texts {
                let suspect = (Kind::Object, object);
                let hint = if found.contains(&suspect.1) {
                    "covered"
                } else {
                    "searched"
                };
                let findings = self
                    .look(std::slice::from_ref(&suspect), Some(hint))
                    .await?;
                match uncovered(&findings) {
                    // The object's events changed during the search, and a marker may have come
                    // with them. So the object is searched for again. The last search decides even
                    // if the events changed. Otherwise an object whose events always change would
                    // never be reported.
                    Some(now) if now != text && searches_left > 0 => {
                        drop(changed.insert(suspect.1, now))
                    }
                    _ => self.report(&suspect, findings)?,
                }
            }
            texts = changed;
        }
        Ok(())
    }

    fn report(
        &mut self,
        suspect: &(Kind, Vec<u8>),
        findings: Vec<Finding>,
    ) -> Result<(), ControlError> {
        for finding in findings {
            if finding.word == "foreign" {
                self.report.looked_at.foreign += 1;
                continue;
            }
            let invariant = finding.invariant()?;
            self.broken.insert(suspect);
            self.violation(invariant, suspect.0.subject(&suspect.1), finding.what);
        }
        Ok(())
    }

    /// Returns the objects among `objects` that have a marker, or are in the list of a group or of a
    /// registered worker. Markers are read first, then the lists of groups, because objects move in
    /// this order. If new markers come faster than they can be read, the search proves nothing, and all objects are returned.
    pub(super) async fn search(
        &mut self,
        objects: &HashMap<Vec<u8>, String>,
    ) -> Result<HashSet<Vec<u8>>, ControlError> {
        let mut found = HashSet::new();
        let grouped =
            usize::try_from(self.report.looked_at.grouped).unwrap_or(usize::MAX) / MARKERS_PER_CALL;
        let pages_max =
            self.count_markers().await? / MARKERS_PER_CALL + grouped + GROUPS_MAX + PAGES_MORE_MAX;
        let (mut from, mut pages) = (0, 0);
        while let Some(page) = self.page_of_markers(from).await? {
            from += page.len();
            pages += 1;
            if pages > pages_max {
                return Ok(objects.keys().cloned().collect());
            }
            found.extend(
                page.into_iter()
                    .filter(|object| objects.contains_key(object)),
            );
        }
        let mut groups = self.groups().await?;
        // A dry run leaves groups as they are whose names a repair would let workers take.
        let planned = self.mender.as_ref().map(|mender| &mender.groups);
        groups.extend(planned.into_iter().flatten().cloned());
        for group in groups {
            let mut from = 0;
            while let Some(page) = self.page_of_group(&group, from).await? {
                from += page.len();
                pages += 1;
                if pages > pages_max {
                    return Ok(objects.keys().cloned().collect());
                }
                found.extend(
                    page.into_iter()
                        .filter(|object| objects.contains_key(object)),
                );
            }
        }
        let departed = match self.taken.take() {
            Some(seen) => seen,
            None => {
                let mut seen = Dedup::new(SEEN_MAX);
                let mut walk = Names::all();
                while let Some(page) = walk.next(self.conn, self.keys).await? {
                    let taken = names::taken(self.conn, self.keys, b"", &page).await?;
                    for (_, object) in &taken.objects {
                        seen.insert(object);
                    }
                }
                seen
            }
        };
        found.extend(
            objects
                .keys()
                .filter(|object| departed.contains(object))
                .cloned(),
        );
        self.taken = Some(departed);
        let mut walk = Names::of(self.conn, self.keys, NameSet::Watched).await?;
        while let Some(page) = walk.next(self.conn, self.keys).await? {
            let taken = names::taken(self.conn, self.keys, b"", &page).await?;
            found.extend(
                taken
                    .objects
                    .into_iter()
                    .map(|(_, object)| object)
                    .filter(|object| objects.contains_key(object)),
            );
        }
        Ok(found)
    }
}
