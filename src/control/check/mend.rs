//! A repair: the walk of the check, which puts right each suspicion instead of reporting it. The
//! script `lua/operator/repair.lua` looks at the present state again before each step, so a repair
//! needs no second look.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;

use super::super::repair::{Repair, RepairReport, RepairStep};
use super::super::scan::Dedup;
use super::super::{By, ControlError};
use super::paced::Paced;
use super::report::Subject;
use super::script::{Finding, Kind, uncovered};
use super::state::{GROUPS_MAX, SEEN_MAX, Walk};
use crate::keys::Keys;
use crate::wire::operator::{self, REPAIR_PER_CALL_MAX, RepairCall};

/// The most subjects that are looked at again at the end, because they could not be repaired at
/// first. The repair of another subject may have made it possible.
const LEFT_MAX: usize = 10_000;
/// The most calls for the subjects of one call. A call moves up to 1,000 events.
const CALLS_MAX: usize = 1000 * REPAIR_PER_CALL_MAX;

/// The kind of the step that raises the counter of ids.
const IDS: &str = "ids";

/// The kind of the step that lets workers take the names of a group again.
const GROUP: &str = "group";

/// The state of a repair.
pub(super) struct Mender<'a> {
    by: By<'a>,
    call: RepairCall,
    steps_max: usize,
    /// Steps that were described already. A dry run may meet a subject twice.
    seen: Dedup,
    /// Workers that the steps of objects put right. In a dry run they still look broken.
    solved: Dedup,
    /// Groups that a dry run would let workers take names from. Their names cover objects.
    pub(super) groups: Vec<Vec<u8>>,
    /// Workers that are no slot of a registered name. They are looked at when their objects are freed.
    strangers: Vec<(Kind, Vec<u8>)>,
    /// Subjects that could not be repaired yet; `None` at the last look.
    left: Option<Vec<(Kind, Vec<u8>)>>,
    report: RepairReport,
}

impl Mender<'_> {
    /// Adds a subject that the repair leaves as it is.
    pub(super) fn leave(&mut self, subject: Subject, what: String) {
        if self.seen.insert((&subject, &what)) {
            self.report.left_total += 1;
            if self.report.left.len() < self.steps_max {
                self.report.left.push(RepairStep {
                    subject,
                    kind: "left".to_owned(),
                    what,
                });
            }
        }
    }

    /// Keeps a worker that is no slot of a registered name, if dead workers are to be freed.
    pub(super) fn keep_stranger(&mut self, worker: &[u8]) {
        if !self.call.dead_owners.is_empty() && self.strangers.len() < LEFT_MAX {
            self.strangers.push((Kind::Worker, worker.to_vec()));
        }
    }

    /// Returns the subjects for the last look. What that look leaves is reported.
    fn take_left(&mut self) -> Vec<(Kind, Vec<u8>)> {
        let mut left = self.left.take().unwrap_or_default();
        left.retain(|(kind, name)| {
            self.call.doing || *kind != Kind::Worker || !self.solved.contains(name.as_slice())
        });
        left
    }

    fn add(&mut self, subject: Subject, kind: String, what: String) {
        if !self.call.doing && kind == IDS && self.report.kinds.contains_key(IDS) {
            // In a dry run the counter stays as it is, so the script tells this step again and again.
            return;
        }
        if self.call.doing || self.seen.insert((&subject, &what)) {
            self.report.steps_total += 1;
            *self.report.kinds.entry(kind.clone()).or_default() += 1;
            if self.report.steps.len() < self.steps_max {
                self.report.steps.push(RepairStep {
                    subject,
                    kind,
                    what,
                });
            }
        }
    }
}

/// Runs a repair.
pub(in crate::control) async fn run(
    conn: impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    repair: &Repair,
) -> Result<RepairReport, ControlError> {
    let mut conn = Paced::new(conn, repair.share.clamp(0.001, 1.0));
    let mut walk = Walk::new(&mut conn, keys, 0);
    walk.mender = Some(Mender {
        by,
        call: RepairCall {
            doing: !repair.dry_run,
            row: String::new(),
            due_ms: repair.schedules_due_ms,
            all_lists: repair.all_lists,
            dead_owners: repair.dead_owners.clone(),
        },
        steps_max: repair.steps_max,
        seen: Dedup::new(SEEN_MAX),
        solved: Dedup::new(SEEN_MAX),
        groups: Vec::new(),
        strangers: Vec::new(),
        left: Some(Vec::new()),
        report: RepairReport {
            dry_run: repair.dry_run,
            steps_total: 0,
            kinds: BTreeMap::new(),
            steps: Vec::new(),
            left_total: 0,
            left: Vec::new(),
            slowest_call: Duration::ZERO,
        },
    });
    walk.walk().await?;
    walk.idempotency_keys().await?;
    // The repair of a group or an owner may have changed what is to be counted.
    walk.mend(vec![(Kind::Shared, Vec::new())], "unknown")
        .await?;
    let strangers = walk
        .mender
        .as_mut()
        .map_or_else(Vec::new, |mender| std::mem::take(&mut mender.strangers));
    walk.mend(strangers, "unknown").await?;
    // The objects of freed owners may still count as in hand.
    walk.in_hand().await?;
    let left = walk
        .mender
        .as_mut()
        .map_or_else(Vec::new, Mender::take_left);
    walk.mend_left(left).await?;
    walk.mender
        .map(|mender| mender.report)
        .ok_or_else(|| ControlError::reply("lua/operator/repair.lua", "no repair"))
}

impl<C: ConnectionLike> Walk<'_, C> {
    /// Puts right the subjects with findings. Objects that seem uncovered are searched for first.
    pub(super) async fn mend_found(
        &mut self,
        subjects: &[(Kind, Vec<u8>)],
        findings: Vec<Finding>,
    ) -> Result<(), ControlError> {
        let mut by_position: BTreeMap<usize, Vec<Finding>> = BTreeMap::new();
        for finding in findings {
            by_position
                .entry(finding.position)
                .or_default()
                .push(finding);
        }
        let mut broken = Vec::new();
        for (position, findings) in by_position {
            let Some((kind, name)) = subjects.get(position.wrapping_sub(1)) else {
                continue;
            };
            if let Some(text) = uncovered(&findings) {
                self.keep_uncovered(name.clone(), text).await?;
            }
            if findings.iter().any(|finding| !finding.is_of_cover()) {
                broken.push((*kind, name.clone()));
            }
        }
        self.mend(broken, "unknown").await
    }

    /// Looks at subjects again that were left. An object that seemed uncovered may be in the list of a
    /// group that was repaired later.
    async fn mend_left(&mut self, left: Vec<(Kind, Vec<u8>)>) -> Result<(), ControlError> {
        let of_objects = left.iter().filter(|(kind, _)| *kind == Kind::Object);
        let objects: HashMap<_, _> = of_objects
            .map(|(_, name)| (name.clone(), String::new()))
            .collect();
        let found = match objects.is_empty() {
            true => HashSet::new(),
            false => self.search(&objects).await?,
        };
        let is_found =
            |(kind, name): &(Kind, Vec<u8>)| *kind == Kind::Object && found.contains(name);
        let (covered, rest) = left.into_iter().partition(is_found);
        self.mend(covered, "unknown").await?;
        self.mend(rest, "searched").await
    }

    /// Puts these subjects right, in calls of bounded size.
    pub(super) async fn mend(
        &mut self,
        subjects: Vec<(Kind, Vec<u8>)>,
        hint: &'static str,
    ) -> Result<(), ControlError> {
        for some in subjects.chunks(REPAIR_PER_CALL_MAX) {
            let mut next: Vec<_> = some.to_vec();
            for _ in 0..CALLS_MAX {
                if next.is_empty() {
                    break;
                }
                next = self.mend_some(&next, hint).await?;
            }
        }
        Ok(())
    }

    /// Makes one call. Returns the subjects that need a further call.
    async fn mend_some(
        &mut self,
        subjects: &[(Kind, Vec<u8>)],
        hint: &'static str,
    ) -> Result<Vec<(Kind, Vec<u8>)>, ControlError> {
        let Some(mender) = &mut self.mender else {
            return Ok(Vec::new());
        };
        let names = subjects
            .iter()
            .map(|(kind, name)| (kind.word(), name.as_slice(), hint));
        let began = Instant::now();
        let (lines, row) =
            operator::repair(self.conn, self.keys, mender.by, &mender.call, names).await?;
        mender.report.slowest_call = mender.report.slowest_call.max(began.elapsed());
        if mender.call.doing {
            mender.call.row = row;
        }
        let mut again = Vec::new();
        for line in lines {
            let Some((kind, name)) = subjects.get(line.position) else {
                return Err(ControlError::reply(
                    "lua/operator/repair.lua",
                    format!("it names subject {}", line.position),
                ));
            };
            match (line.word.as_str(), &mut mender.left) {
                ("solves", _) => drop(mender.solved.insert(line.what.as_bytes())),
                ("again", _) => again.push((*kind, name.clone())),
                ("left", Some(left)) if left.len() < LEFT_MAX => left.push((*kind, name.clone())),
                ("left", _) => mender.leave(kind.subject(name), line.what),
                (word, _) => {
                    if *kind == Kind::Group && word == GROUP && mender.groups.len() < GROUPS_MAX {
                        mender.groups.push(name.clone());
                    }
                    mender.add(kind.subject(name), line.word, line.what);
                }
            }
        }
        Ok(again)
    }

    /// Looks at the idempotency keys and their ends, if their numbers differ.
    async fn idempotency_keys(&mut self) -> Result<(), ControlError> {
        let (hash, ends) = (self.keys.events_emitted(), self.keys.events_emitted_ends());
        let mut pipe = redis::pipe();
        pipe.cmd("HLEN").arg(&hash).cmd("ZCARD").arg(&ends);
        let (keys, with_end): (u64, u64) = pipe
            .query_async(self.conn)
            .await
            .map_err(ControlError::redis("the idempotency keys"))?;
        if keys == with_end {
            return Ok(());
        }
        for (command, key) in [("HSCAN", hash), ("ZSCAN", ends)] {
            let mut cursor = 0_u64;
            loop {
                let mut ask = redis::cmd(command);
                ask.arg(&key)
                    .arg(cursor)
                    .arg("COUNT")
                    .arg(REPAIR_PER_CALL_MAX);
                let (next, page): (u64, Vec<Vec<u8>>) = ask
                    .query_async(self.conn)
                    .await
                    .map_err(ControlError::redis("the idempotency keys"))?;
                let fields = page
                    .into_iter()
                    .step_by(2)
                    .map(|field| (Kind::Emitted, field))
                    .collect();
                self.mend(fields, "unknown").await?;
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}
