//! Compares one object's events in the outputs with the input's lines of that object. Finds
//! missing, unexpected and moved events.
//!
//! Events in the longest common subsequence are in order. An event outside of it on both sides was
//! moved. An event outside of it only in the input is lost. An event outside of it only in the
//! outputs is unexpected.

use std::collections::{HashMap, VecDeque};

use super::report::{Findings, Kind};
use super::seen::{Dead, Expected, LineAt, Print, Sent};

/// Maximum number of differences per object for which the alignment has the fewest differences
/// possible. With more differences, it is a good approximation.
const EDITS_MAX: usize = 1000;

/// An event in the outputs or in the dead letters.
struct Out {
    print: Print,
    place: LineAt,
    id: u64,
    dead: bool,
}

/// Judges the events of one object. Returns the number of its lost events.
pub(super) fn judge(
    name: &str,
    sent: &[Sent],
    dead: &[Dead],
    expected: &[Expected],
    files: &[String],
    findings: &mut Findings,
) -> usize {
    let out = came_out(sent, dead);
    let same = out.len() == expected.len()
        && out
            .iter()
            .zip(expected)
            .all(|(out, expected)| out.print == expected.print);
    if same {
        return 0;
    }
    let expected_prints: Vec<Print> = expected.iter().map(|expected| expected.print).collect();
    let out_prints: Vec<Print> = out.iter().map(|out| out.print).collect();
    let (expected_left, out_left) = unmatched(&expected_prints, &out_prints);
    let mut absent: HashMap<Print, VecDeque<usize>> = HashMap::new();
    for at in expected_left {
        absent.entry(expected_prints[at]).or_default().push_back(at);
    }
    for Out {
        print,
        place,
        id,
        dead,
    } in out_left.into_iter().map(|at| &out[at])
    {
        match absent.get_mut(print).and_then(VecDeque::pop_front) {
            // A dead letter has no fixed position in the order, and may come from another producer.
            // So it is not judged.
            _ if *dead => {}
            Some(at) => findings.add(Kind::Reordered, *place, || {
                let LineAt { file, line } = expected[at].place;
                format!(
                    "{name}: id {id} is out of the input's order, where it is {}:{line}",
                    files[file.0 as usize]
                )
            }),
            None => findings.add(Kind::Unexpected, *place, || {
                format!("{name}: id {id} bears an event that the input does not have")
            }),
        }
    }
    let mut lost: Vec<usize> = absent.into_values().flatten().collect();
    lost.sort_unstable();
    for &at in &lost {
        findings.add(Kind::Lost, expected[at].place, || {
            format!("{name}: this event is in no output")
        });
    }
    lost.len()
}

/// Returns the distinct events of an object, sorted by id. A dead letter stands at the position of
/// its id, unless its event was also delivered.
fn came_out(sent: &[Sent], dead: &[Dead]) -> Vec<Out> {
    let mut out: Vec<Out> = Vec::with_capacity(sent.len());
    for Sent {
        id, print, place, ..
    } in sent.iter().copied()
    {
        let known = out
            .iter()
            .rev()
            .take_while(|out| out.id == id)
            .any(|out| out.print == print);
        if !known {
            out.push(Out {
                print,
                place,
                id,
                dead: false,
            });
        }
    }
    let given_up = dead
        .iter()
        .filter(|dead| sent.binary_search_by_key(&dead.id, |sent| sent.id).is_err());
    out.extend(given_up.map(|dead| Out {
        print: dead.print,
        place: dead.place,
        id: dead.id,
        dead: true,
    }));
    out.sort_by_key(|out| out.id);
    out
}

/// Returns the positions in `a` and in `b` that are outside of a common subsequence, in ascending
/// order.
fn unmatched(a: &[Print], b: &[Print]) -> (Vec<usize>, Vec<usize>) {
    shortest(a, b, EDITS_MAX).unwrap_or_else(|| by_occurrence(a, b))
}

/// Finds the fewest unmatched positions, with Myers' greedy algorithm. Returns `None` if there
/// would be more than `edits_max`.
fn shortest(a: &[Print], b: &[Print], edits_max: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    let edits_max = edits_max.min(a.len() + b.len());
    let zero = edits_max + 1;
    // `reach[zero + k]` is the position in `a` of the best path on diagonal k. The number of a
    // diagonal is the position in `a` minus the position in `b`.
    let mut reach = vec![0usize; 2 * edits_max + 3];
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for edits in 0..=edits_max {
        rounds.push(reach[zero - edits..=zero + edits].to_vec());
        for k in (zero - edits..=zero + edits).step_by(2) {
            let from_b = k == zero - edits || (k != zero + edits && reach[k - 1] < reach[k + 1]);
            let mut x = if from_b {
                reach[k + 1]
            } else {
                reach[k - 1] + 1
            };
            let mut y = x + zero - k;
            while x < a.len() && y < b.len() && a[x] == b[y] {
                (x, y) = (x + 1, y + 1);
            }
            reach[k] = x;
            if x >= a.len() && y >= b.len() {
                return Some(walk_back(a.len(), b.len(), &rounds));
            }
        }
    }
    None
}

/// Walks back from the end to the start, over the states that [`shortest`] saved before each of its
/// rounds.
fn walk_back(a_len: usize, b_len: usize, rounds: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let (mut x, mut y) = (a_len, b_len);
    let (mut a_left, mut b_left) = (Vec::new(), Vec::new());
    for (edits, reach) in rounds.iter().enumerate().skip(1).rev() {
        // In this table, diagonal k has the index `k + edits`.
        let k = x + edits - y;
        let from_b = k == 0 || (k != 2 * edits && reach[k - 1] < reach[k + 1]);
        if from_b {
            x = reach[k + 1];
            y = x + edits - (k + 1);
            b_left.push(y);
        } else {
            x = reach[k - 1];
            y = x + edits - (k - 1);
            a_left.push(x);
        }
    }
    a_left.reverse();
    b_left.reverse();
    (a_left, b_left)
}

/// Pairs the n-th occurrence of each print in `a` with its n-th occurrence in `b`. Keeps the
/// longest run of pairs whose positions ascend in both.
fn by_occurrence(a: &[Print], b: &[Print]) -> (Vec<usize>, Vec<usize>) {
    let mut positions: HashMap<Print, VecDeque<usize>> = HashMap::new();
    for (at, print) in a.iter().enumerate() {
        positions.entry(*print).or_default().push_back(at);
    }
    let mut pairs = Vec::new();
    let mut b_left = Vec::new();
    for (at, print) in b.iter().enumerate() {
        match positions.get_mut(print).and_then(VecDeque::pop_front) {
            Some(in_a) => pairs.push((in_a, at)),
            None => b_left.push(at),
        }
    }
    let mut a_left: Vec<usize> = positions.into_values().flatten().collect();
    let stays = longest_ascent(&pairs);
    for ((in_a, in_b), stays) in pairs.into_iter().zip(stays) {
        if !stays {
            a_left.push(in_a);
            b_left.push(in_b);
        }
    }
    a_left.sort_unstable();
    b_left.sort_unstable();
    (a_left, b_left)
}

/// Marks the pairs of a longest run in which the first numbers of the pairs ascend.
fn longest_ascent(pairs: &[(usize, usize)]) -> Vec<bool> {
    // `ends[n]` is the pair with the lowest first number among all pairs that end a run of n + 1
    // pairs.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, pair) in pairs.iter().enumerate() {
        let longer = ends.partition_point(|end| pairs[*end].0 < pair.0);
        before.push(longer.checked_sub(1).map(|shorter| ends[shorter]));
        if longer == ends.len() {
            ends.push(at);
        } else {
            ends[longer] = at;
        }
    }
    let mut stays = vec![false; pairs.len()];
    let mut next = ends.last().copied();
    while let Some(at) = next {
        stays[at] = true;
        next = before[at];
    }
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prints(letters: &str) -> Vec<Print> {
        letters.bytes().map(|letter| [letter.into(), 0]).collect()
    }

    #[test]
    fn a_lost_event_among_equal_ones_moves_nothing() {
        assert_eq!(unmatched(&prints("axa"), &prints("xa")), (vec![0], vec![]));
        assert_eq!(unmatched(&prints("axa"), &prints("ax")), (vec![2], vec![]));
        assert_eq!(unmatched(&prints(""), &prints("ab")), (vec![], vec![0, 1]));
        assert_eq!(
            unmatched(&prints("abcd"), &prints("abcd")),
            (vec![], vec![])
        );
    }

    #[test]
    fn a_swap_leaves_one_over_on_both_sides() {
        let (a, b) = unmatched(&prints("abcd"), &prints("acbd"));
        assert_eq!((a.len(), b.len()), (1, 1));
    }

    /// Returns the length of the longest common subsequence, computed by the textbook algorithm.
    fn common(a: &[Print], b: &[Print]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut corner = 0;
            for (at, y) in b.iter().enumerate() {
                let above = row[at + 1];
                row[at + 1] = if x == y {
                    corner + 1
                } else {
                    above.max(row[at])
                };
                corner = above;
            }
        }
        row[b.len()]
    }

    fn kept(all: &[Print], left: &[usize]) -> Vec<Print> {
        all.iter()
            .enumerate()
            .filter(|(at, _)| !left.contains(at))
            .map(|(_, print)| *print)
            .collect()
    }

    proptest! {
        #[test]
        fn what_stays_is_common_and_the_longest(a in "[a-d]{0,30}", b in "[a-d]{0,30}") {
            let (a, b) = (prints(&a), prints(&b));
            let (a_left, b_left) = shortest(&a, &b, usize::MAX).expect("within the bound");
            prop_assert_eq!(kept(&a, &a_left), kept(&b, &b_left));
            prop_assert_eq!(a.len() - a_left.len(), common(&a, &b));

            let (a_left, b_left) = by_occurrence(&a, &b);
            prop_assert_eq!(kept(&a, &a_left), kept(&b, &b_left));
        }
    }
}
