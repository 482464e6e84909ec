//! Tests that each link of the pages in Markdown leads to a file, and to a heading if it names one.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

/// Tests the links of all pages to files of the repository and to headings of pages.
#[test]
fn each_link_leads_somewhere() {
    let mut pages = Vec::new();
    find_pages(root(), &mut pages);
    let headings: HashMap<&Path, HashSet<String>> = pages
        .iter()
        .map(|page| (page.as_path(), headings_of(&text_of(page))))
        .collect();
    let mut links = 0;
    let mut dead = Vec::new();
    for page in &pages {
        for link in links_of(&text_of(page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                _ => normal(&page.parent().expect("a folder").join(path)),
            };
            let leads = match headings.get(target.as_path()) {
                Some(headings) => heading.is_empty() || headings.contains(heading),
                None => target.exists(),
            };
            if !leads {
                let page = page.strip_prefix(root()).expect("a page of this project");
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(links > 300 && pages.len() > 25, "{links} {}", pages.len());
    assert!(dead.is_empty(), "dead links: {dead:#?}");
}

#[test]
fn links_and_headings_are_found() {
    let text = "# A `b`, c\n\n[x](y.md#z) `[no](link)` [two\nlines](#here)\n\n```\n# no heading\n\
                [no](link)\n```\n## A b c\n\n[`code`](other)\n";
    assert_eq!(links_of(text), ["y.md#z", "#here", "other"]);
    let headings = headings_of(text);
    assert_eq!(
        headings,
        HashSet::from(["a-b-c", "a-b-c-1"].map(str::to_owned))
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(page: &Path) -> String {
    std::fs::read_to_string(page).expect("a page")
}

/// Adds the pages of a folder and its subfolders, except those that were built or downloaded.
fn find_pages(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let skipped = name.starts_with('.') || name == "target" || name == "node_modules";
        if skipped {
            continue;
        } else if entry.file_type().expect("a type").is_dir() {
            find_pages(&entry.path(), pages);
        } else if name.ends_with(".md") {
            pages.push(entry.path());
        }
    }
}

/// Returns the text without blocks of code.
fn without_code(text: &str) -> String {
    let parts = text.split("```").step_by(2);
    parts.collect::<Vec<_>>().join("\n\n")
}

/// Returns the targets of the links in a page. Code has no links.
fn links_of(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for paragraph in without_code(text).split("\n\n") {
        let text: String = paragraph.split('`').step_by(2).collect();
        for rest in text.split("](").skip(1) {
            let (link, _) = rest.split_once(')').expect("the end of a link");
            links.push(link.to_owned());
        }
    }
    links
}

/// Returns the names under which the headings of a page are linked.
fn headings_of(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    for line in without_code(text)
        .lines()
        .filter(|line| line.starts_with('#'))
    {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let name: String = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut names = std::iter::once(name.clone()).chain((1..).map(|n| format!("{name}-{n}")));
        let free = names.find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}
