//! Tries mutants. For each mutant, the tests that are likely to catch it run first.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::generate::{Mutant, Sources};
use super::proofs::{Place, Proof, Verdict};

/// Maximum number of tests with the most earlier catches. These tests run before whole programs.
const CATCHERS: usize = 8;

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) jobs: usize,
    /// Minimum time limit of a proof. A slow proof gets more.
    pub(crate) patience: Duration,
    /// Time after which no further mutant is begun.
    pub(crate) until: Option<Instant>,
}

impl Limits {
    pub(crate) fn has_time(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    fn patience_for(&self, proof: &Proof) -> Duration {
        self.patience.max(proof.takes * 4)
    }
}

/// The results of the mutants.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) caught: usize,
    pub(crate) survived: Vec<String>,
    pub(crate) no_scripts: usize,
}

impl Outcome {
    /// Prints and counts the result of one mutant.
    pub(crate) fn note(&mut self, mutant: String, by: Option<String>) {
        match by {
            Some(by) => {
                println!("{mutant} -> caught by {by}");
                self.caught += 1;
            }
            None => {
                println!("{mutant} -> SURVIVED");
                self.survived.push(mutant);
            }
        }
    }
}

/// A test that caught a mutant: the index of its program, and its name. The name is `None` if the
/// mutant was caught because the program did not end.
type Catcher = (usize, Option<String>);

/// For each script file: the tests that caught mutants of this file, each with the number of
/// catches.
#[derive(Default)]
struct Catches(HashMap<String, HashMap<Catcher, usize>>);

impl Catches {
    fn add(&mut self, file: &str, by: Catcher) {
        *self.0.entry(file.to_owned()).or_default().entry(by).or_default() += 1;
    }

    /// Returns the tests that caught the most mutants of this script file, then the tests that
    /// caught the most mutants of all files.
    fn best(&self, file: &str) -> Vec<Catcher> {
        let mut elsewhere: HashMap<Catcher, usize> = HashMap::new();
        for (by, count) in self.0.values().flatten() {
            *elsewhere.entry(by.clone()).or_default() += count;
        }
        let here = self.0.get(file).map(sorted).unwrap_or_default();
        let mut best: Vec<Catcher> = here.into_iter().take(CATCHERS).collect();
        let others: Vec<_> = sorted(&elsewhere).into_iter().filter(|by| !best.contains(by)).take(CATCHERS).collect();
        best.extend(others);
        best
    }
}

fn sorted(catchers: &HashMap<Catcher, usize>) -> Vec<Catcher> {
    let mut sorted: Vec<_> = catchers.iter().collect();
    sorted.sort_by_key(|(by, count)| (std::cmp::Reverse(**count), (*by).clone()));
    sorted.into_iter().map(|(by, _)| by.clone()).collect()
}

/// Returns the runs for a mutant, in their order. A run is the index of a program and the tests to
/// run. An empty list means all tests of the program.
fn plan(mutant: &Mutant, proofs: &[Proof], best: &[Catcher]) -> Vec<(usize, Vec<String>)> {
    let mut plan: Vec<(usize, Vec<String>)> = Vec::new();
    for (proof, test) in best {
        let Some(test) = test else { continue };
        match plan.iter_mut().find(|(asked, _)| asked == proof) {
            Some((_, tests)) => tests.push(test.clone()),
            None => plan.push((*proof, vec![test.clone()])),
        }
    }
    let stem = Path::new(&mutant.file).file_stem().unwrap_or_default().to_string_lossy();
    let mut all: Vec<usize> = (0..proofs.len()).collect();
    all.sort_by_key(|at| {
        let place = best.iter().position(|(proof, _)| proof == at).unwrap_or(usize::MAX);
        let has_name = proofs[*at].name.trim_end_matches('s') == stem.trim_end_matches('s');
        (place, !has_name, proofs[*at].takes)
    });
    plan.extend(all.into_iter().map(|at| (at, Vec::new())));
    plan
}

/// The result of one mutant.
enum Fate {
    Caught(String),
    Survived,
    NoScript,
}

/// The state shared by all trials.
struct Trials<'a> {
    sources: &'a Sources,
    proofs: &'a [Proof],
    work: &'a Path,
    limits: Limits,
    catches: Mutex<Catches>,
    outcome: Mutex<Outcome>,
}

impl Trials<'_> {
    /// Runs the proofs on a mutant, one after the other, until one fails.
    fn fate_of(&self, mutant: &Mutant, place: &Place) -> anyhow::Result<Fate> {
        place.write(&mutant.file, &mutant.applied(&self.sources[&mutant.file]))?;
        let best = lock(&self.catches).best(&mutant.file);
        for (at, tests) in plan(mutant, self.proofs, &best) {
            let proof = &self.proofs[at];
            let (test, said) = match proof.ask(place, &tests, self.limits.patience_for(proof))? {
                Verdict::Content => continue,
                Verdict::NoScript => return Ok(Fate::NoScript),
                Verdict::Failed(test) => (Some(test.clone()), test),
                Verdict::NoEnd(patience) => (None, format!("it did not end in {} s", patience.as_secs())),
            };
            lock(&self.catches).add(&mutant.file, (at, test));
            return Ok(Fate::Caught(format!("{}: {said}", proof.name)));
        }
        Ok(Fate::Survived)
    }

    fn try_one(&self, at: usize, mutant: &Mutant) -> anyhow::Result<()> {
        let place = Place::new(self.work.join(at.to_string()))?;
        let fate = self.fate_of(mutant, &place)?;
        place.remove();
        let mut outcome = lock(&self.outcome);
        match fate {
            Fate::Caught(by) => outcome.note(mutant.to_string(), Some(by)),
            Fate::Survived => outcome.note(mutant.to_string(), None),
            Fate::NoScript => {
                println!("{mutant} -> Redis does not compile it, so it does not count");
                outcome.no_scripts += 1;
            }
        }
        Ok(())
    }
}

/// Runs `work` in several threads, and waits for all of them.
fn in_threads(jobs: usize, work: impl Fn(usize) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..jobs.max(1)).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
    })
}

/// Runs all proofs on unchanged scripts.
pub(crate) fn measure_all(proofs: &mut [Proof], work: &Path, limits: Limits) -> anyhow::Result<()> {
    let queue = Mutex::new(proofs.iter_mut());
    in_threads(limits.jobs, |thread| {
        let place = Place::new(work.join(format!("unchanged.{thread}")))?;
        while let Some(proof) = next(&queue) {
            proof.measure(&place, limits.patience * 4)?;
        }
        Ok(())
    })
}

/// Takes the next item. This function releases the lock before the caller works on the item.
fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    lock(queue).next()
}

/// Tries the mutants in this order, several at the same time.
pub(crate) fn try_all(
    mutants: &[&Mutant],
    sources: &Sources,
    proofs: &[Proof],
    work: &Path,
    limits: Limits,
) -> anyhow::Result<Outcome> {
    let trials = Trials { sources, proofs, work, limits, catches: Mutex::default(), outcome: Mutex::default() };
    let queue = Mutex::new(mutants.iter().enumerate());
    in_threads(limits.jobs, |_| {
        while limits.has_time()
            && let Some((at, mutant)) = next(&queue)
        {
            trials.try_one(at, mutant)?;
        }
        Ok(())
    })?;
    Ok(trials.outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
