//! Tries mutants: runs the tests that run the changed line, and first those likely to fail.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::coverage::Test;
use super::generate::{Mutant, Sources};
use super::proofs::{Proof, Verdict, Workdir};
use super::spots::Spots;

/// Number of tests in the first group. Each further group has twice as many tests.
const FIRST: usize = 8;
/// Time limit of a run, besides the time that its tests take one after the other, four times. A
/// mutant without end costs two such runs.
const PATIENCE: Duration = Duration::from_secs(15);

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) jobs: usize,
    /// Most tests to run for a mutant.
    pub(crate) tests: usize,
    /// Time after which no further mutant is begun.
    pub(crate) until: Option<Instant>,
}

impl Limits {
    pub(crate) fn has_time(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// The results of the mutants.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) caught: usize,
    pub(crate) survived: Vec<String>,
    pub(crate) no_scripts: usize,
    /// The number of tests that fail with the scripts as they are.
    pub(crate) left_out: usize,
}

impl Outcome {
    /// Prints and counts the result of one mutant.
    pub(crate) fn note(&mut self, mutant: String, by: Option<String>) {
        match by {
            Some(by) => {
                println!("{mutant} -> caught by {by}");
                self.caught += 1;
            }
            None => self.survive(mutant, ""),
        }
    }

    fn survive(&mut self, mutant: String, why: &str) {
        println!("{mutant} -> SURVIVED{why}");
        self.survived.push(mutant);
    }
}

/// All that the trials need to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis<'a> {
    pub(crate) sources: &'a Sources,
    pub(crate) proofs: &'a [Proof],
    pub(crate) spots: &'a Spots,
    pub(crate) tests: &'a [Test],
    /// The directory for all files.
    pub(crate) work: &'a Path,
}

/// Number of catches of each test, by file. A test is an index into [`Basis::tests`].
type Catches = HashMap<String, HashMap<usize, usize>>;

/// The result of one mutant.
enum Fate {
    Caught(String),
    Survived,
    /// No test runs the changed line.
    NotRun,
    NoScript,
}

/// The state shared by all trials.
struct Trials<'a> {
    basis: Basis<'a>,
    /// Most tests to run for a mutant.
    tests: usize,
    catches: Mutex<Catches>,
    outcome: Mutex<Outcome>,
}

impl Trials<'_> {
    /// Returns the tests that run the changed line: those with the most catches in the file first,
    /// then the shortest ones. No more than the limit.
    fn candidates(&self, mutant: &Mutant) -> Vec<usize> {
        let tests = self.basis.tests;
        let Some(spot) = self.basis.spots.around(mutant) else {
            return Vec::new();
        };
        let catches = lock(&self.catches)
            .get(&mutant.file)
            .cloned()
            .unwrap_or_default();
        let mut candidates: Vec<_> = (0..tests.len())
            .filter(|at| tests[*at].spots.contains(&spot))
            .collect();
        candidates.sort_by_key(|at| {
            (
                Reverse(catches.get(at).copied().unwrap_or_default()),
                tests[*at].takes,
            )
        });
        candidates.truncate(self.tests);
        candidates
    }

    /// Divides the candidates into runs, in order: each of one program. The first runs have few
    /// tests, so that a mutant that many tests notice is caught soon.
    fn runs(&self, candidates: &[usize]) -> Vec<Vec<usize>> {
        let (mut rest, mut size) = (candidates, FIRST);
        let mut runs = Vec::new();
        while !rest.is_empty() {
            let (group, others) = rest.split_at(size.min(rest.len()));
            let mut of_group: Vec<Vec<usize>> = Vec::new();
            for test in group {
                let proof = self.basis.tests[*test].proof;
                match of_group
                    .iter_mut()
                    .find(|run| self.basis.tests[run[0]].proof == proof)
                {
                    Some(run) => run.push(*test),
                    None => of_group.push(vec![*test]),
                }
            }
            runs.extend(of_group);
            (rest, size) = (others, size * 2);
        }
        runs
    }

    /// Runs the candidates until one fails.
    fn fate_of(&self, mutant: &Mutant, place: &Workdir) -> anyhow::Result<Fate> {
        let Basis {
            sources,
            proofs,
            tests,
            ..
        } = self.basis;
        place.write(&mutant.file, &mutant.applied(&sources[&mutant.file]))?;
        let candidates = self.candidates(mutant);
        if candidates.is_empty() {
            return Ok(Fate::NotRun);
        }
        for run in self.runs(&candidates) {
            let proof = &proofs[tests[run[0]].proof];
            let names: Vec<_> = run.iter().map(|at| tests[*at].name.clone()).collect();
            let takes: Duration = run.iter().map(|at| tests[*at].takes).sum();
            let said = match proof.ask(place, &names, PATIENCE + takes * 4)? {
                Verdict::Content => continue,
                Verdict::NoScript => return Ok(Fate::NoScript),
                Verdict::Failed(test) => test,
                Verdict::NoEnd(patience) => format!("it did not end in {} s", patience.as_secs()),
            };
            if let Some(by) = run.iter().find(|at| tests[**at].name == said) {
                *lock(&self.catches)
                    .entry(mutant.file.clone())
                    .or_default()
                    .entry(*by)
                    .or_default() += 1;
            }
            return Ok(Fate::Caught(format!("{}: {said}", proof.name)));
        }
        Ok(Fate::Survived)
    }

    fn try_one(&self, at: usize, mutant: &Mutant) -> anyhow::Result<()> {
        let place = Workdir::new(self.basis.work.join(at.to_string()))?;
        let fate = self.fate_of(mutant, &place)?;
        place.remove();
        let mut outcome = lock(&self.outcome);
        match fate {
            Fate::Caught(by) => outcome.note(mutant.to_string(), Some(by)),
            Fate::Survived => outcome.note(mutant.to_string(), None),
            Fate::NotRun => outcome.survive(mutant.to_string(), " (no test runs this line)"),
            Fate::NoScript => {
                println!("{mutant} -> Redis does not compile it, so it does not count");
                outcome.no_scripts += 1;
            }
        }
        Ok(())
    }
}

/// Runs `work` in several threads, and waits for all of them.
pub(crate) fn in_threads(
    jobs: usize,
    work: impl Fn(usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..jobs.max(1))
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
        })
    })
}

/// Takes the next item. The lock is released at once.
pub(crate) fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    lock(queue).next()
}

/// Tries the mutants in this order, several at the same time.
pub(crate) fn try_all(
    mutants: &[&Mutant],
    basis: Basis<'_>,
    limits: Limits,
) -> anyhow::Result<Outcome> {
    let trials = Trials {
        basis,
        tests: limits.tests,
        catches: Mutex::default(),
        outcome: Mutex::default(),
    };
    let queue = Mutex::new(mutants.iter().enumerate());
    in_threads(limits.jobs, |_| {
        while limits.has_time()
            && let Some((at, mutant)) = next(&queue)
        {
            trials.try_one(at, mutant)?;
        }
        Ok(())
    })?;
    Ok(trials
        .outcome
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
