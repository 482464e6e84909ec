//! Runs the checker, and reports its findings.
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// The findings of an exploration.
#[derive(Debug)]
pub struct Verdict {
    pub generated: usize,
    pub unique: usize,
    pub depth: usize,
    /// Broken properties, each with its shortest trace, one step per line.
    pub broken: Vec<(&'static str, Vec<String>)>,
}

impl Verdict {
    pub fn breaks(&self, property: &str) -> bool {
        self.broken.iter().any(|(name, _)| *name == property)
    }

    /// Prints everything with one write, because tests run in parallel.
    fn print(&self, title: &str, begin: Instant) {
        let Self {
            generated,
            unique,
            depth,
            broken,
        } = self;
        let seconds = begin.elapsed().as_secs_f64();
        let mut text = format!(
            "{title}: {generated} states generated, {unique} unique, depth {depth}, {seconds:.1} s\n"
        );
        for (property, trace) in broken {
            text += &format!("  broken: {property}\n");
            for (at, step) in trace.iter().enumerate() {
                text += &format!("  {:>3}. {step}\n", at + 1);
            }
        }
        println!("{text}");
    }
}

/// A model whose properties can be checked one at a time, and whose steps have descriptions.
pub trait Properties: Model + Clone + Send + Sync + 'static {
    fn only(self, property: &'static str) -> Self;

    /// Returns a description of a step, for traces.
    fn words(&self, before: &Self::State, action: &Self::Action) -> String;
}

/// Explores breadth first, until a property breaks or no state is left.
pub fn explore<M>(title: &str, model: M, threads: usize) -> Verdict
where
    M: Properties,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync,
    M::Action: Clone + PartialEq + Debug,
{
    let begin = Instant::now();
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(threads)
        .spawn_bfs()
        .join();
    let (generated, unique, depth) = (
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
    );
    let mut broken: Vec<_> = checker
        .discoveries()
        .into_keys()
        .map(|name| (name, shortest(model.clone(), name)))
        .collect();
    broken.sort_by_key(|(property, trace)| (trace.len(), *property));
    let verdict = Verdict {
        generated,
        unique,
        depth,
        broken,
    };
    verdict.print(title, begin);
    verdict
}

/// Returns the shortest trace that breaks a property; empty if there is none. The checker keeps the
/// latest trace that it finds. It stops at the first trace only if it checks one property with one
/// thread.
pub fn shortest<M>(model: M, property: &'static str) -> Vec<String>
where
    M: Properties,
    M::State: Hash + Debug + Clone + PartialEq + Send + Sync,
    M::Action: Clone + PartialEq + Debug,
{
    let checker = model.only(property).checker().spawn_bfs().join();
    let path = checker.discovery(property);
    let steps = path.map(|path| path.into_vec()).unwrap_or_default();
    steps
        .iter()
        .filter_map(|(state, action)| {
            action
                .as_ref()
                .map(|action| checker.model().words(state, action))
        })
        .collect()
}
