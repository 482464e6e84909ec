//! Mutants: changes the scripts in every small way that `generate` knows, one change at a time, and
//! runs the tests to see which of them fails.
//!
//!     scripts/mutants [FILTER…] [--changed SINCE] [--draw N] [--seed N] [--minutes N] [--jobs N]
//!     [--tests N] [--list]
//!
//! A mutant that no test catches is printed as SURVIVED, and the exit code is 1. Then a test is
//! missing, or the mutant is equivalent and belongs into `equivalent.txt`, with the
//! reason. Listed mutants are not tried. With `--changed`, only survivors in changed lines give the
//! exit code 1. A changed script needs no build: the feature `failpoints` lets the tests read it
//! from `SERIATIM_LUA_DIR`. Only the tests that run the changed line are run (`coverage`). The
//! guards of the slots' state machine are Rust and are listed by hand (`slots`).

mod changed;
mod coverage;
mod equivalent;
mod generate;
mod proofs;
mod slots;
mod spots;
mod trials;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use self::generate::Mutant;
use self::spots::Spots;
use self::trials::{Basis, Limits, Outcome};

/// The folder of the whole workspace. All paths begin here.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const USAGE: &str = "scripts/mutants [FILTER…] [--changed SINCE] [--draw N] [--seed N] [--minutes N] [--jobs N] [--tests N] [--list]";

/// Percentage of a limited time that is for scripts. The slots need a build for each guard.
const FOR_SCRIPTS: u32 = 67;

/// The arguments of the command line.
#[derive(Debug)]
struct Args {
    /// A script, a folder of scripts, a script with a line (`hold.lua:12`), or a part of the name
    /// of a guard of the slots.
    filters: Vec<String>,
    /// Commit to compare with. Mutants of lines changed since then come first.
    changed: Option<String>,
    /// Number of script mutants to draw at random.
    draw: Option<usize>,
    /// Seed of the draw; by default the commit.
    seed: Option<String>,
    minutes: Option<u32>,
    jobs: usize,
    /// Most tests to run for a mutant of a script.
    tests: usize,
    list: bool,
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> anyhow::Result<T> {
    value
        .parse()
        .ok()
        .with_context(|| format!("{option} needs a number, not {value}"))
}

/// Reads a setting from the environment, for scripts that call a script that calls this program.
fn setting<T: std::str::FromStr>(name: &str) -> anyhow::Result<Option<T>> {
    std::env::var(name)
        .ok()
        .filter(|value| !value.is_empty())
        .map(|value| number(name, &value))
        .transpose()
}

impl Args {
    /// Returns the arguments; none without any, as in a plain `cargo bench`.
    fn read() -> anyhow::Result<Option<Self>> {
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        match words.next() {
            None => return Ok(None),
            Some(word) => ensure!(word == "run", "usage: {USAGE}"),
        }
        // Tests mostly wait, so that a core has time for two mutants.
        let jobs = std::thread::available_parallelism().map_or(1, usize::from) * 2;
        let mut args = Self {
            filters: Vec::new(),
            changed: None,
            draw: None,
            seed: None,
            minutes: setting("MUTANTS_MINUTES")?,
            jobs: setting("MUTANTS_JOBS")?.unwrap_or(jobs),
            tests: usize::MAX,
            list: false,
        };
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--changed" => args.changed = Some(value()?),
                "--draw" => args.draw = Some(number(&word, &value()?)?),
                "--seed" => args.seed = Some(value()?),
                "--minutes" => args.minutes = Some(number(&word, &value()?)?),
                "--jobs" => args.jobs = number(&word, &value()?)?,
                "--tests" => args.tests = number(&word, &value()?)?,
                "--list" => args.list = true,
                _ if word.starts_with('-') => bail!("{word} is no option; usage: {USAGE}"),
                _ => args.filters.push(word),
            }
        }
        Ok(Some(args))
    }
}

fn main() -> ExitCode {
    // Cargo starts a bench in the folder of its package.
    if let Err(error) = std::env::set_current_dir(ROOT) {
        eprintln!("mutants: {ROOT}: {error}");
        return ExitCode::FAILURE;
    }
    match Args::read().and_then(|args| args.map_or_else(usage, |args| run(&args))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> anyhow::Result<bool> {
    println!("usage: {USAGE}");
    Ok(true)
}

fn say(what: &str) {
    eprintln!("seriatim: {what}");
}

/// Returns whether every mutant that should be caught was caught.
fn run(args: &Args) -> anyhow::Result<bool> {
    let begin = Instant::now();
    let sources = generate::sources(Path::new("."))?;
    let mutants = generate::all(&sources)?;
    let list = std::fs::read_to_string(equivalent::FILE).context(equivalent::FILE)?;
    let equivalents = equivalent::equivalents(&list, &mutants)?;
    let guards = slots::guards()?;
    for filter in &args.filters {
        let matches = mutants.iter().any(|mutant| is_of(mutant, filter))
            || guards.iter().any(|guard| guard.name.contains(filter));
        ensure!(
            matches,
            "{filter} is no script, no line of one that has mutants, and in the name of no guard"
        );
    }
    let wanted = |name: &str| {
        args.filters.is_empty() || args.filters.iter().any(|filter| name.contains(filter))
    };
    let mut tried: Vec<&Mutant> = mutants
        .iter()
        .filter(|mutant| {
            args.filters.is_empty() || args.filters.iter().any(|filter| is_of(mutant, filter))
        })
        .filter(|mutant| !equivalents.contains(&mutant.owned_key()))
        .collect();
    let mut guards: Vec<_> = guards
        .iter()
        .filter(|guard| args.draw.is_none() && wanted(&guard.name))
        .collect();

    if args.draw.is_some() || args.minutes.is_some() || args.changed.is_some() {
        let seed = args.seed.clone().map_or_else(changed::commit, Ok)?;
        tried.sort_by_cached_key(|mutant| drawn(&seed, &mutant.key()));
        guards.sort_by_cached_key(|guard| drawn(&seed, &guard.name));
    }
    // Survivors in unchanged lines are reported but do not fail the run.
    let mut elsewhere = HashSet::new();
    if let Some(since) = &args.changed {
        let lines = changed::lines(since)?;
        let is_changed = |mutant: &&Mutant| lines.contains(&(mutant.file.clone(), mutant.line));
        tried.sort_by_key(|mutant| !is_changed(mutant));
        elsewhere.extend(
            tried
                .iter()
                .filter(|mutant| !is_changed(mutant))
                .map(ToString::to_string),
        );
        say(&format!(
            "{} mutants are in lines that changed since {since}",
            tried.len() - elsewhere.len()
        ));
    }
    tried.truncate(args.draw.unwrap_or(usize::MAX));
    if args.list {
        tried.iter().for_each(|mutant| println!("{mutant}"));
        guards.iter().for_each(|guard| println!("{}", guard.name));
        return Ok(true);
    }

    let limit = args.minutes.map_or_else(String::new, |minutes| {
        format!(", as far as {minutes} minutes allow")
    });
    say(&format!(
        "{} of {} mutants of scripts and {} guards of slots{limit}",
        tried.len(),
        mutants.len(),
        guards.len()
    ));
    let until = |percent: u32| {
        args.minutes
            .map(|minutes| begin + Duration::from_secs(u64::from(minutes) * 60) * percent / 100)
    };
    let limits = |percent| Limits {
        jobs: args.jobs,
        tests: args.tests,
        until: until(percent),
    };
    let work = tempfile::Builder::new().prefix("mutants.").tempdir()?;
    let share = if guards.is_empty() { 100 } else { FOR_SCRIPTS };
    let of_scripts = if tried.is_empty() {
        Outcome::default()
    } else {
        try_scripts(&tried, &sources, work.path(), limits(share))?
    };
    let of_slots = slots::try_all(&guards, work.path(), limits(100))?;

    let asked = tried.len() + guards.len();
    let caught = of_scripts.caught + of_slots.caught;
    let survived: Vec<&String> = of_scripts
        .survived
        .iter()
        .chain(&of_slots.survived)
        .collect();
    let done = caught + survived.len();
    for mutant in &survived {
        println!("SURVIVED: {mutant}");
    }
    let share = if done == 0 {
        0.0
    } else {
        100.0 * caught as f64 / done as f64
    };
    say(&format!(
        "{caught} of {done} mutants are caught ({share:.1} %), {} survived, {} were not tried, {} do not compile, {} are equivalent, in {} s",
        survived.len(),
        asked - done - of_scripts.no_scripts,
        of_scripts.no_scripts,
        equivalents.len(),
        begin.elapsed().as_secs(),
    ));
    // A test that always fails may be the one that catches a survivor.
    Ok(done > 0
        && of_scripts.left_out == 0
        && survived.iter().all(|mutant| elsewhere.contains(*mutant)))
}

fn try_scripts(
    tried: &[&Mutant],
    sources: &generate::Sources,
    work: &Path,
    limits: Limits,
) -> anyhow::Result<Outcome> {
    let proofs = proofs::build(Path::new("."), None, work, &[])?;
    let begin = Instant::now();
    let spots = Spots::of(sources)?;
    let (tests, left_out) = coverage::measure(&proofs, sources, &spots, work, limits.jobs)?;
    say(&format!(
        "{} tests pass with the scripts as they are, {left_out} fail and are left out, in {} s",
        tests.len(),
        begin.elapsed().as_secs()
    ));
    let outcome = trials::try_all(
        tried,
        Basis {
            sources,
            proofs: &proofs,
            spots: &spots,
            tests: &tests,
            work,
        },
        limits,
    )?;
    Ok(Outcome {
        left_out,
        ..outcome
    })
}

/// Returns whether the filter names the mutant's script, its folder, or its line.
fn is_of(mutant: &Mutant, filter: &str) -> bool {
    let with_line = filter
        .rsplit_once(':')
        .and_then(|(path, line)| Some((path, line.parse::<usize>().ok()?)));
    let (path, line) = with_line.map_or((filter, None), |(path, line)| (path, Some(line)));
    let path = path.trim_end_matches('/');
    let file = mutant.file.as_str();
    let has_path = file
        .strip_suffix(path)
        .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        || file
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('/'));
    has_path && line.is_none_or(|line| line == mutant.line)
}

/// Returns a sort key that gives a random order for the seed.
fn drawn(seed: &str, what: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, what).hash(&mut hasher);
    hasher.finish()
}
