//! Reads from git the changed lines of scripts, and the commit of the tree.

use std::collections::HashSet;
use std::process::Command;

use anyhow::{Context as _, ensure};

fn git(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(args).output().context("git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "git {}: {}",
        args.join(" "),
        said.lines().next().unwrap_or_default()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the commit of the tree.
pub(crate) fn commit() -> anyhow::Result<String> {
    Ok(git(&["rev-parse", "HEAD"])?.trim().to_owned())
}

/// Returns all files of the project.
pub(crate) fn files() -> anyhow::Result<Vec<String>> {
    Ok(git(&[
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ])?
    .split_terminator('\0')
    .map(str::to_owned)
    .collect())
}

/// Returns the lines of scripts that differ from `since`.
pub(crate) fn lines(since: &str) -> anyhow::Result<HashSet<(String, usize)>> {
    // Git would read a leading `-` as an option.
    ensure!(
        !since.starts_with('-'),
        "--changed needs a commit, not {since}"
    );
    Ok(lines_of(&git(&[
        "diff",
        "-U0",
        "--no-color",
        "--no-ext-diff",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        since,
        "--",
        "lua",
    ])?))
}

fn lines_of(diff: &str) -> HashSet<(String, usize)> {
    let mut file = "";
    let mut lines = HashSet::new();
    for line in diff.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            file = path;
        } else if let Some(hunk) = line.strip_prefix("@@ ")
            && let Some(after) = hunk.split(' ').find_map(|word| word.strip_prefix('+'))
        {
            let (first, count) = after.split_once(',').unwrap_or((after, "1"));
            let (Ok(first), Ok(count)) = (first.parse::<usize>(), count.parse::<usize>()) else {
                continue;
            };
            // If lines were only removed, the lines before and behind them count as changed.
            let end = if count == 0 { first + 2 } else { first + count };
            lines.extend((first..end).map(|line| (file.to_owned(), line)));
        }
    }
    lines
}
