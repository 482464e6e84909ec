//! `equivalent.txt`: the mutants that no test can catch, each with the reason.
//!
//!     lua/values/page.lua: if size > limit then
//!         > to >=
//!         A page of exactly the limit is whole either way.
//!
//! An entry has the file and the text of the line, then the change, then the reason. A blank line
//! ends an entry; `#` begins a comment.

use std::collections::HashSet;

use anyhow::{Context as _, ensure};

use super::generate::Mutant;

/// The file of the list.
pub(crate) const FILE: &str = "crates/lab/benches/mutants/equivalent.txt";

/// Returns the mutants of the list. An entry that matches no mutant is an error: the line has
/// changed, so the reason must be checked again.
pub(crate) fn equivalents(
    list: &str,
    mutants: &[Mutant],
) -> anyhow::Result<HashSet<(String, String, String)>> {
    let mut known = HashSet::new();
    let all: HashSet<_> = mutants.iter().map(Mutant::key).collect();
    let mut lines = list
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.starts_with('#'))
        .peekable();
    while let Some((at, head)) = lines.next() {
        if head.trim().is_empty() {
            continue;
        }
        let place = format!("{FILE}:{}", at + 1);
        let (file, text) = head
            .split_once(": ")
            .with_context(|| format!("{place}: it should be FILE: TEXT OF THE LINE"))?;
        let mut body = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.trim().is_empty()) {
            body.push(line.trim());
        }
        let what = *body
            .first()
            .with_context(|| format!("{place}: what is done to the line is missing"))?;
        ensure!(body.len() > 1, "{place}: the reason is missing");
        ensure!(
            all.contains(&(file, text, what)),
            "{place}: there is no such mutant: {what} in `{text}`"
        );
        ensure!(
            known.insert((file.to_owned(), text.to_owned(), what.to_owned())),
            "{place}: it is listed twice"
        );
    }
    Ok(known)
}
