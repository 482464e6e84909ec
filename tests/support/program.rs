//! The program `seriatim`. The package `seriatim-cli` builds it, and tests and benches of the library
//! start it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Returns the path of the program: that in `SERIATIM_PROGRAM`, or else the one that cargo has built
/// beside this test program.
///
/// Cargo builds the program for all tests, and for `--test program` (`crates/cli/tests/program.rs`). It
/// does not build it for another single test program. An old program would prove nothing, so this
/// function panics if the program is older than a file of its source.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("SERIATIM_PROGRAM").filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => built().unwrap_or_else(|why| {
            panic!("{why}; run first: cargo test --all-features --test program; for a bench: cargo build --release")
        }),
    })
}

/// Returns the program that cargo has built. The error says why it cannot be used.
fn built() -> Result<PathBuf, String> {
    let tests = std::env::current_exe()
        .map_err(|error| format!("this test program has no path: {error}"))?;
    // Test programs are in the folder `deps`.
    let program = tests
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new(""))
        .join("seriatim");
    let built =
        changed(&program).ok_or_else(|| format!("there is no program {}", program.display()))?;
    // The package may be one in the folder `crates`.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|dir| dir.join("lua").is_dir())
        .unwrap_or(Path::new(""));
    let crates = entries(&root.join("crates"))
        .into_iter()
        .map(|dir| dir.join("src"));
    let newer = [root.join("src"), root.join("lua")]
        .into_iter()
        .chain(crates)
        .find_map(|dir| newer_in(&dir, built));
    newer.map_or(Ok(program), |file| {
        Err(format!("the program is older than {}", file.display()))
    })
}

/// Returns a file of the folder and its subfolders that is newer than the program. Cargo builds the
/// program anew after each change of such a file.
fn newer_in(dir: &Path, built: SystemTime) -> Option<PathBuf> {
    entries(dir)
        .into_iter()
        .find_map(|path| match path.is_dir() {
            true => newer_in(&path, built),
            false if is_left_out(&path) => None,
            false => changed(&path).is_some_and(|at| at > built).then_some(path),
        })
}

/// Returns whether cargo may build nothing after a change of this file: a text, unit tests, or code of
/// which a build has one of two versions.
fn is_left_out(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".md")
        || name.starts_with("no_")
        || ["tests.rs", "failpoints.rs", "trace.rs", "traces.rs"].contains(&&*name)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}
