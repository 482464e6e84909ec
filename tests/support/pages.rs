//! The pages of the documents: their blocks of code, their headings, and their links.

use std::path::{Path, PathBuf};

/// The pages for users and operators: all of their blocks are run, compiled, or say why not.
pub const PAGES: [&str; 21] = [
    "README.md",
    "docs/coming-from.md",
    "docs/dashboard.md",
    "docs/deploys.md",
    "docs/design.md",
    "docs/emit.md",
    "docs/failover.md",
    "docs/glossary.md",
    "docs/guide.md",
    "docs/handlers-protocol.md",
    "docs/handlers.md",
    "docs/http.md",
    "docs/install.md",
    "docs/log.md",
    "docs/operations.md",
    "docs/outcomes.md",
    "docs/plain.md",
    "docs/protocol.md",
    "docs/shares.md",
    "docs/time.md",
    "docs/unordered.md",
];

/// A fenced block of code.
pub struct Block {
    /// The first word behind the fence.
    pub language: String,
    /// The rest behind the fence, e.g. `not run: needs a receiver`.
    pub note: String,
    /// The lines, without the indentation of the fence.
    pub text: String,
    /// The number of the line of the fence, from 1.
    pub line: usize,
}

/// Returns the root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a file, named from the root.
pub fn text_of(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Returns the fenced blocks of a page, and its other lines, each with its number.
pub fn parts_of(page: &str) -> (Vec<Block>, Vec<(usize, String)>) {
    let text = text_of(page);
    let (mut blocks, mut prose) = (Vec::new(), Vec::new());
    let mut lines = text.lines().zip(1..);
    while let Some((first, line)) = lines.next() {
        let Some(info) = first.trim_start().strip_prefix("```") else {
            prose.push((line, first.to_owned()));
            continue;
        };
        let indent = first.len() - first.trim_start().len();
        let inside = lines
            .by_ref()
            .take_while(|(line, _)| line.trim() != "```")
            .map(|(line, _)| format!("{}\n", line.get(indent..).unwrap_or_default()));
        let text = inside.collect();
        let (language, note) = info.split_once(' ').unwrap_or((info, ""));
        blocks.push(Block {
            language: language.to_owned(),
            note: note.to_owned(),
            text,
            line,
        });
    }
    (blocks, prose)
}

/// Returns the names by which links reach the headings of a page, as GitHub makes them.
pub fn anchors_of(page: &str) -> Vec<String> {
    let (_, prose) = parts_of(page);
    let headings = prose
        .iter()
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_start_matches('#').trim());
    let is_kept = |letter: &char| letter.is_alphanumeric() || ['-', '_', ' '].contains(letter);
    headings
        .map(|text| text.to_lowercase().chars().filter(is_kept).collect())
        .map(|text: String| text.replace(' ', "-"))
        .collect()
}

/// Returns the targets of the links in these lines. A link may go on in the next line.
pub fn links_in(prose: &[(usize, String)]) -> Vec<String> {
    let lines: Vec<&str> = prose.iter().map(|(_, line)| line.trim()).collect();
    let text = lines.join("\n");
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// Returns all Markdown files below a folder, named from the root.
pub fn pages_below(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root().join(&folder)).expect("a folder");
        for entry in entries {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if ["node_modules", "target", "build", "dist"].contains(&&*name) {
                continue;
            } else if entry.path().is_dir() {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}
