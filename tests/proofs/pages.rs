//! The pages for users: their length, their first paragraph, their blocks, and their links.

use std::path::{Component, Path};

use crate::support::pages::{PAGES, anchors_of, links_in, pages_below, parts_of, root, text_of};

/// The languages of blocks. Tests run or compile the first ones.
const LANGUAGES: [&str; 14] = [
    "sh",
    "python",
    "ts",
    "rust",
    "rust,no_run",
    "text",
    "json",
    "toml",
    "http",
    "sql",
    "nginx",
    "ruby",
    "mermaid",
    "rust,ignore",
];

/// A reader has ten minutes: the README must not grow again.
#[test]
fn the_readme_has_at_most_150_lines() {
    let lines = text_of("README.md").lines().count();
    assert!(
        lines <= 150,
        "{lines} lines: move something to docs/guide.md"
    );
}

#[test]
fn each_page_begins_with_the_use_for_its_reader() {
    for page in PAGES {
        let text = text_of(page);
        let first = text.split("\n\n").nth(1).unwrap_or_default();
        let words: Vec<_> = first.split_whitespace().collect();
        let use_of = words.join(" ");
        assert!(use_of.contains("After this page you "), "{page}: {first}");
    }
}

/// Tests that each block names its language, and that a block which no test runs says why.
#[test]
fn each_block_has_a_language_and_a_reason_if_it_does_not_run() {
    let mut count = 0;
    for page in PAGES {
        let (blocks, prose) = parts_of(page);
        for block in &blocks {
            let place = format!("{page}:{}", block.line);
            assert!(
                LANGUAGES.contains(&&*block.language),
                "{place}: {}",
                block.language
            );
            assert_ne!(
                block.language, "rust,ignore",
                "{place}: the block compiles nowhere"
            );
            let why = block.note.strip_prefix("not run: ");
            assert!(
                block.note.is_empty() || why.is_some_and(|why| why.len() > 8),
                "{place}: {}",
                block.note
            );
            // Some reasons name the script that tries the lines.
            for word in block.note.split_whitespace() {
                assert!(
                    !word.starts_with("scripts/") || root().join(word).is_file(),
                    "{place}: there is no {word}"
                );
            }
            count += 1;
        }
        // An indented block has no language. In a list, a line may be indented.
        let commands = ["seriatim ", "scripts/", "cargo ", "curl ", "$ "];
        for (line, text) in prose {
            let inner = text.strip_prefix("    ").unwrap_or_default().trim_start();
            let is_command = commands.iter().any(|command| inner.starts_with(command));
            assert!(!is_command, "{page}:{line}: use a fence with a language");
        }
    }
    assert!(count > 80, "{count} blocks");
}

/// A block is one document, or one in each line.
#[test]
fn each_block_of_json_is_valid() {
    let is_valid = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
    for page in PAGES {
        let (blocks, _) = parts_of(page);
        for block in blocks.iter().filter(|block| block.language == "json") {
            assert!(
                is_valid(&block.text) || block.text.lines().all(is_valid),
                "{page}:{}",
                block.line
            );
        }
    }
}

/// Blocks in Rust are compiled by the doctests of the pages in src/lib.rs.
#[test]
fn each_page_with_rust_is_compiled() {
    let library = text_of("src/lib.rs");
    for page in PAGES {
        let has_rust = parts_of(page)
            .0
            .iter()
            .any(|block| block.language.starts_with("rust"));
        let is_included = library.contains(&format!("include_str!(\"../{page}\")"));
        assert_eq!(has_rust, is_included, "{page} in src/lib.rs");
    }
}

/// The example is run by `tests/cli/examples.rs`, with another address of Redis.
#[test]
fn the_example_start_is_the_block_of_the_readme() {
    let (blocks, _) = parts_of("README.md");
    let mut of_readme = blocks
        .iter()
        .filter(|block| block.language.starts_with("rust"));
    let block = of_readme.next().expect("a block in Rust");
    assert!(
        of_readme.next().is_none(),
        "the README has one block in Rust"
    );
    let example = text_of("examples/start.rs");
    // The example is formatted, the block is not.
    let without_address = |text: &str| -> String {
        let lines = text.lines().map(str::trim_start);
        let same =
            lines.filter(|line| !line.starts_with("//") && !line.starts_with("let redis = "));
        same.flat_map(str::split_whitespace).collect()
    };
    assert_eq!(without_address(&block.text), without_address(&example));
}

#[test]
fn each_page_is_in_the_list_of_the_guide() {
    let guide = text_of("docs/guide.md");
    let (_, list) = guide.split_once("\n## All pages\n").expect("the list");
    for page in pages_below("docs") {
        let name = page.strip_prefix("docs/").expect("a page of docs");
        // Nobody needs to read the pages of the laboratory.
        assert!(
            name == "guide.md" || name.starts_with("lab/") || list.contains(&format!("]({name})")),
            "docs/guide.md does not list {page}"
        );
    }
}

/// Tests the links of all documents to files of this repository, and to their headings.
#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let of_root = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
    let folders = ["docs", "clients", "crates", "examples", "lua", "tests"];
    let pages = folders
        .iter()
        .flat_map(|folder| pages_below(folder))
        .chain(of_root);
    let mut count = 0;
    for page in pages {
        let (_, prose) = parts_of(&page);
        for link in links_in(&prose) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                _ => plain(&Path::new(&page).parent().expect("a folder").join(path)),
            };
            assert!(
                root().join(&target).exists(),
                "{page}: {link} leads to no file"
            );
            if !anchor.is_empty() && target.ends_with(".md") {
                let anchors = anchors_of(&target);
                assert!(
                    anchors.iter().any(|one| one == anchor),
                    "{page}: {link} leads to no heading"
                );
            }
            count += 1;
        }
    }
    assert!(count > 300, "{count} links");
}

/// Returns the path without `..`.
fn plain(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Story: the README told to install packages that are not published.
#[test]
fn the_lines_that_install_name_folders_of_the_checkout() {
    for page in ["README.md", "docs/guide.md"] {
        let (blocks, _) = parts_of(page);
        let shell: String = blocks
            .iter()
            .filter(|block| block.language == "sh")
            .map(|block| block.text.as_str())
            .collect();
        for (line, manifest) in [
            (
                "cargo install --locked --path crates/cli ",
                "crates/cli/Cargo.toml",
            ),
            (
                "pip install ./clients/python ",
                "clients/python/pyproject.toml",
            ),
            (
                "cd clients/node && npm ci && npm run build",
                "clients/node/package-lock.json",
            ),
            (
                "npm install ../seriatim/clients/node ioredis",
                "clients/node/package.json",
            ),
        ] {
            assert!(shell.contains(line), "{page}: {line}");
            assert!(root().join(manifest).is_file(), "{manifest}");
        }
        for published in [
            "pip install seriatim",
            "npm install seriatim",
            "cargo install seriatim",
        ] {
            assert!(
                !shell.contains(published),
                "{page}: {published}: nothing is published yet"
            );
        }
    }
}
