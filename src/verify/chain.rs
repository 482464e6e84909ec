//! Checks one object's events across all files, by id. Finds duplicates, late events, reused ids,
//! forks, and gaps in the chain.

use std::sync::Arc;

use super::report::{Findings, Kind, Totals};
use super::seen::{Dead, LineAt, Sent};

/// An event whose `prev` is in no output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) id: u64,
    pub(super) prev: u64,
    pub(super) place: LineAt,
}

/// Finds ids that are used for events of two different objects.
pub(super) fn ids_of_two_objects(
    sent: &[Sent],
    dead: &[Dead],
    names: &[Arc<str>],
    findings: &mut Findings,
) {
    let sent = sent.iter().map(|sent| (sent.id, sent.object, sent.place));
    let mut ids: Vec<_> = sent
        .chain(dead.iter().map(|dead| (dead.id, dead.object, dead.place)))
        .collect();
    ids.sort_unstable();
    ids.dedup_by_key(|(id, object, _)| (*id, *object));
    for same in ids
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|same| same.len() > 1)
    {
        let (id, object, place) = same[1];
        let [one, other] = [same[0].1, object].map(|object| &names[object as usize]);
        findings.add(Kind::IdReused, place, || {
            format!("id {id} belongs to an event of {one} and to one of {other}")
        });
    }
}

/// Judges the sends of one object, which are sorted by id. Returns the gaps, one for each missing
/// id.
pub(super) fn judge(
    name: &str,
    sent: &[Sent],
    dead: &[Dead],
    never_forgotten: bool,
    totals: &mut Totals,
    findings: &mut Findings,
) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    if sent.is_empty() {
        return gaps;
    }
    totals.objects += 1;
    let is_dead = |id: u64| dead.binary_search_by_key(&id, |dead| dead.id).is_ok();
    // Delivered ids below the id under judgement, ascending.
    let mut delivered: Vec<u64> = Vec::new();
    for sends in sent.chunk_by(|a, b| a.id == b.id) {
        one_id(name, sends, dead, totals, findings);
        let mut prevs: Vec<(u64, LineAt)> =
            sends.iter().map(|sent| (sent.prev, sent.place)).collect();
        prevs.sort_unstable();
        prevs.dedup_by_key(|(prev, _)| *prev);
        let (id, has_one_prev) = (sends[0].id, prevs.len() == 1);
        for (prev, place) in prevs {
            if prev != 0 && delivered.binary_search(&prev).is_err() && !is_dead(prev) {
                gaps.push(Gap { id, prev, place });
            }
            // If an event was delivered between `prev` and `id`, the chain has two branches. An
            // event that became a dead letter is an exception.
            let beside = &delivered[delivered.partition_point(|earlier| *earlier <= prev)..];
            let Some(other) = beside.iter().find(|other| !is_dead(**other)) else {
                continue;
            };
            // A forgotten object begins a new chain. But an event that came with two different
            // `prev` is always a fork.
            if prev == 0 && has_one_prev && !never_forgotten {
                totals.anew += 1;
            } else {
                findings.add(Kind::Forked, place, || {
                    format!(
                        "{name}: id {id} follows id {prev}, and so does id {other} or one before it"
                    )
                });
            }
        }
        delivered.push(id);
    }
    // Several events may name the same missing event. It counts once.
    gaps.sort_unstable_by_key(|gap| (gap.prev, gap.id));
    gaps.dedup_by_key(|gap| gap.prev);
    gaps
}

/// Checks that all sends of one id have the same event. Also checks that at least one of these
/// sends came in time.
fn one_id(name: &str, sends: &[Sent], dead: &[Dead], totals: &mut Totals, findings: &mut Findings) {
    let id = sends[0].id;
    let mut prints: Vec<_> = sends.iter().map(|sent| (sent.print, sent.place)).collect();
    prints.sort_unstable();
    prints.dedup_by_key(|(print, _)| *print);
    totals.events += prints.len() as u64;
    totals.duplicates += (sends.len() - prints.len()) as u64;
    let first = sends[0];
    if let Some(other) = sends.iter().find(|sent| sent.print != first.print) {
        findings.add(Kind::IdReused, other.place, || {
            format!("{name}: id {id} bears another event here than in another line")
        });
    } else if !sends.iter().any(|sent| sent.in_time) {
        findings.add(Kind::Reordered, first.place, || {
            format!("{name}: id {id} comes after a higher id of its object")
        });
    }
    if let Ok(at) = dead.binary_search_by_key(&id, |dead| dead.id)
        && dead[at].print != first.print
    {
        findings.add(Kind::IdReused, dead[at].place, || {
            format!("{name}: id {id} is a dead letter and another event that was delivered")
        });
    }
}
