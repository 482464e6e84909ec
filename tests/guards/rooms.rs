//! The folders of `src`, called rooms. No room imports from a higher room, so imports form no
//! circle.

use std::path::{Path, PathBuf};

/// The rooms, the lowest first. A room imports only from rooms before it.
const ROOMS: [&str; 19] = [
    "escape",
    "event",
    "trace",
    "keys",
    "cron",
    "consume",
    "connection",
    "no_failpoints",
    "failpoints",
    "wire",
    "emit",
    "sink",
    "handlers",
    "worker",
    "control",
    "metrics",
    "projection",
    "testing",
    "verify",
];

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_in(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn place_of(room: &str) -> usize {
    ROOMS
        .iter()
        .position(|known| *known == room)
        .unwrap_or_else(|| panic!("the list has no room {room}"))
}

/// Returns the rooms that a text names with `crate::`, outside of comments.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            let end = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            &rest[..end]
        })
}

#[test]
fn no_room_imports_from_a_higher_one() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut imports, mut upward) = (0, Vec::new());
    for path in files_in(&src) {
        let file = path.strip_prefix(&src).expect("a file of src");
        let room = file
            .components()
            .next()
            .expect("a room")
            .as_os_str()
            .to_string_lossy()
            .replace(".rs", "");
        if room == "lib" {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for other in named(&text) {
            imports += 1;
            if place_of(other) > place_of(&room) {
                upward.push(format!("{} imports from {other}", file.display()));
            }
        }
    }
    assert!(imports > 150, "{imports} imports were found");
    assert!(
        upward.is_empty(),
        "imports from a higher room:\n{}",
        upward.join("\n")
    );
}
