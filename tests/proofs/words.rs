//! Tests that the pages in docs have few words.

use std::path::{Path, PathBuf};

/// Words of all pages in docs, without those in docs/lab. The aim is `WORDS_AIM`: a change may only
/// lower this number.
const WORDS_MAX: usize = 35_000;
const WORDS_AIM: usize = 35_000;

/// Words that `WORDS_MAX` may be above the number of words.
const WORDS_SLACK: usize = 200;

#[test]
fn the_pages_become_shorter() {
    let pages = pages_in(&root().join("docs"));
    let words: usize = pages.iter().map(|page| words_of(page)).sum();
    assert!(
        words <= WORDS_MAX,
        "docs/*.md has {words} words: at most {WORDS_MAX}; shorten a page, or move what only \
         developers need to docs/lab"
    );
    assert!(
        words.max(WORDS_AIM) + WORDS_SLACK >= WORDS_MAX,
        "docs/*.md has {words} words: lower WORDS_MAX from {WORDS_MAX}"
    );
}

#[test]
fn results_have_one_page_each() {
    for page in ["performance", "proof", "model"] {
        let words = words_of(&root().join(format!("docs/{page}.md")));
        assert!(words <= 1_500, "docs/{page}.md has {words} words");
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(page: &Path) -> String {
    std::fs::read_to_string(page).expect("a page")
}

fn words_of(page: &Path) -> usize {
    text_of(page).split_whitespace().count()
}

/// Returns the pages of a folder, without those in its subfolders.
fn pages_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}
