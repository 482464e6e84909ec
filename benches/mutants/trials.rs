//! Mutants are tried: each with the proofs that are likely to notice it first.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::generate::{Mutant, Sources};
use super::proofs::{Place, Proof, Verdict};

/// So many tests that have caught something are asked one by one, before whole programs are.
const CATCHERS: usize = 8;

/// How the mutants are tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) jobs: usize,
    /// How long a proof is waited for at least. One that takes long by itself is given longer.
    pub(crate) patience: Duration,
    /// No mutant is begun after it.
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

/// What became of the mutants.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) caught: usize,
    pub(crate) survived: Vec<String>,
    pub(crate) no_scripts: usize,
}

impl Outcome {
    pub(crate) fn tried(&self) -> usize {
        self.caught + self.survived.len()
    }

    /// Says and counts what became of one.
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

/// A test, by the place of its program and its name; none where the program did not end.
type Catcher = (usize, Option<String>);

/// Who caught how many, by file.
#[derive(Default)]
struct Catches(HashMap<String, HashMap<Catcher, usize>>);

impl Catches {
    fn add(&mut self, file: &str, by: Catcher) {
        *self.0.entry(file.to_owned()).or_default().entry(by).or_default() += 1;
    }

    /// Those that caught most in the file, then those that caught most elsewhere.
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

/// What is asked one after the other: a program, and tests of it; all of them where none is named.
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

/// Tries them in this order, several at the same time.
pub(crate) fn try_all(
    mutants: &[&Mutant],
    sources: &Sources,
    proofs: &[Proof],
    work: &Path,
    limits: Limits,
) -> anyhow::Result<Outcome> {
    let next = AtomicUsize::new(0);
    let catches = Mutex::new(Catches::default());
    let outcome = Mutex::new(Outcome::default());
    let try_next = || -> anyhow::Result<()> {
        while limits.has_time() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(at) else { break };
            let place = Place::new(work.join(at.to_string()))?;
            place.write(&mutant.file, &mutant.applied(&sources[&mutant.file]))?;
            let best = lock(&catches).best(&mutant.file);
            let mut by = None;
            for (proof, tests) in plan(mutant, proofs, &best) {
                let asked = &proofs[proof];
                let test = match asked.ask(&place, &tests, limits.patience_for(asked))? {
                    Verdict::Content => continue,
                    Verdict::NoScript => {
                        by = Some(None);
                        break;
                    }
                    Verdict::Failed(test) => Some(test),
                    Verdict::NoEnd(patience) => {
                        by = Some(Some(format!("{}: it did not end in {} s", asked.name, patience.as_secs())));
                        lock(&catches).add(&mutant.file, (proof, None));
                        break;
                    }
                };
                by = test.as_ref().map(|test| Some(format!("{}: {test}", asked.name)));
                lock(&catches).add(&mutant.file, (proof, test));
                break;
            }
            place.remove();
            let mut outcome = lock(&outcome);
            match by {
                Some(None) => {
                    println!("{mutant} -> Redis does not compile it, so it does not count");
                    outcome.no_scripts += 1;
                }
                Some(by) => outcome.note(mutant.to_string(), by),
                None => outcome.note(mutant.to_string(), None),
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..limits.jobs.max(1)).map(|_| scope.spawn(try_next)).collect();
        jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a trial panicked"))))
    })?;
    Ok(outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
