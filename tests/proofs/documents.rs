//! Tests that each test named in a table of the documents exists in the named file, that
//! docs/protocol.md and docs/lab/protocol.md describe every key, and that some words are used
//! nowhere.

use std::path::PathBuf;

use seriatim::keys::{OBJECT_KINDS, SHARED_KINDS, WORKER_KINDS};

/// Numbers of tests that docs/lab/proofs.md names at least, by page.
const PROOFS_MIN: [(&str, usize); 12] = [
    ("outcomes", 120),
    ("handlers", 95),
    ("http", 125),
    ("dashboard", 80),
    ("time", 65),
    ("emit", 30),
    ("log", 38),
    ("shares", 60),
    ("failover", 25),
    ("deploys", 4),
    ("operations", 75),
    ("plain", 2),
];

/// The tables of docs/lab/proofs.md name the tests that prove the sentences of the pages.
#[test]
fn every_test_that_the_documents_name_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a page");
    let proofs = read("docs/lab/proofs.md");
    let tables = proofs.split("\n## ").skip(1);
    let named: Vec<(&str, usize)> = tables
        .map(|of_page| {
            let (page, table) = of_page.split_once('\n').expect("a table");
            (page, tests_named_in(table))
        })
        .collect();
    let pages: Vec<&str> = named.iter().map(|(page, _)| *page).collect();
    assert_eq!(pages, PROOFS_MIN.map(|(page, _)| page));
    for ((page, named), (_, at_least)) in named.iter().zip(PROOFS_MIN) {
        assert!(*named >= at_least, "{page}: {named} tests");
        let link = format!("](lab/proofs.md#{page})");
        assert!(read(&format!("docs/{page}.md")).contains(&link), "{page}");
    }
}

#[test]
fn the_protocol_describes_every_key() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a page");
    // The page for users has the keys of producers, and the lab those of workers.
    let protocol = read("docs/protocol.md") + &read("docs/lab/protocol.md");
    let of_objects = OBJECT_KINDS.iter().map(|(kind, suffix)| match *kind {
        "event_end" => format!("`POBJ LF NAME{suffix}`"),
        "event_ends" => format!("`P LF INBOX{suffix}`"),
        _ => format!("`POBJ{suffix}`"),
    });
    for key in of_objects.chain(SHARED_KINDS.iter().map(|(_, key)| format!("`P{key}`"))) {
        assert!(
            protocol.contains(&key),
            "docs/protocol.md and docs/lab/protocol.md do not describe {key}"
        );
    }
}

/// Story: an operator who had lost `seriatim.meta` found no advice, because the table did not have it.
#[test]
fn the_table_of_lost_keys_has_every_key() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    // The page for operators has the losses with effects, and the lab all others.
    let pages = ["docs/operations.md", "docs/lab/operations.md"];
    let tables = pages.map(|page| {
        let text = std::fs::read_to_string(root.join(page)).expect("the page");
        let (_, table) = text
            .split_once("\n| lost key | `repair` |\n")
            .expect("the table");
        table.split_once("\n\n").expect("its end").0.to_owned()
    });
    let of_objects = OBJECT_KINDS
        .iter()
        .map(|(kind, suffix)| match *kind {
            "event_end" => format!("`OBJ LF NAME{suffix}`"),
            "event_ends" => format!("`LF INBOX{suffix}`"),
            _ => format!("`OBJ{suffix}`"),
        })
        // The data is the producer's.
        .filter(|key| key != "`OBJ:data`");
    let of_workers = WORKER_KINDS.iter().map(|(name, suffix)| {
        let of_slot = !["worker_lease", "worker_status", "worker_reports"].contains(name);
        let worker = if of_slot { "W" } else { "NAME" };
        format!("`event.worker:{worker}{suffix}`")
    });
    let shared = SHARED_KINDS.iter().map(|(_, key)| format!("`{key}`"));
    let keys = of_objects.chain(of_workers).chain(shared);
    let is_missing = |key: &String| !tables.iter().any(|table| table.contains(key.as_str()));
    let missing: Vec<_> = keys.filter(is_missing).collect();
    assert!(missing.is_empty(), "{pages:?}: {missing:?}");
}

/// CONTRIBUTING.md lists words that the project does not use.
#[test]
fn nothing_is_set_aside() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = ["crates", "docs", "lua", "src", "README.md", "CHANGELOG.md"]
        .iter()
        .flat_map(|path| files_of(root.join(path)))
        .filter_map(|file| Some((std::fs::read_to_string(&file).ok()?, file)))
        .collect();
    assert!(files.len() > 300, "{}", files.len());
    for (text, file) in files {
        let words: Vec<_> = text.split_whitespace().collect();
        let found = words.iter().position(|word| word.starts_with("aside"));
        let place = found.map(|at| words[at.saturating_sub(5)..=at].join(" "));
        assert_eq!(place, None, "{}", file.display());
        assert!(!text.contains("_aside"), "{}", file.display());
    }
}

fn tests_named_in(table: &str) -> usize {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for row in table
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?
                .strip_suffix(" |")?
                .split_once(" | ")
        })
        .skip(1)
    {
        // The form of a cell: `FILE`: `test`, `test`; `FILE`: …; [a chapter](…)
        for of_file in row
            .1
            .split("; ")
            .filter(|of_file| !of_file.starts_with('['))
        {
            let mut names = of_file.split('`').skip(1).step_by(2);
            let path = root.join(names.next().expect("a file"));
            let files = files_of(path);
            let text: String = files
                .iter()
                .map(|file| std::fs::read_to_string(file).expect("a test"))
                .collect();
            for name in names {
                assert!(
                    text.contains(&format!("fn {name}(")),
                    "{name} is not in {files:?}"
                );
                named += 1;
            }
        }
    }
    named
}

/// Returns the path itself if it is a file, or else all files of the folder and its subfolders.
fn files_of(path: PathBuf) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path];
    }
    let entries = std::fs::read_dir(&path).expect("a folder");
    entries
        .flat_map(|entry| files_of(entry.expect("a file").path()))
        .collect()
}
