//! The shell blocks of the pages for users run against a Redis of their own, and each flag in them exists.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::console::PATIENCE;
use crate::support::pages::{Block, PAGES, parts_of, root};
use crate::support::{Redis, program};

/// The folder in which the blocks of a page run, with the program `seriatim` on the PATH.
struct Scene {
    redis: Redis,
    dir: tempfile::TempDir,
    /// The port in place of 8080, the default of `seriatim serve`.
    port: u16,
}

/// A block that runs. When this is dropped, all processes of its group are killed.
struct Shell {
    child: Child,
    out: PathBuf,
    errors: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let scene = Self {
            redis: Redis::own(&[]),
            dir,
            port: port.expect("a free port").port(),
        };
        std::fs::create_dir(scene.path("bin")).expect("a folder");
        std::os::unix::fs::symlink(program(), scene.path("bin/seriatim")).expect("a link");
        let config = format!(
            "[serve]\nlisten = [\"127.0.0.1:{}\"]\n[dashboard]\nlisten = [\"127.0.0.1:0\"]\n",
            scene.port
        );
        std::fs::write(scene.path("seriatim.toml"), config).expect("written");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a program in place of another one.
    fn replace(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        std::fs::write(&file, script).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
            .expect("executable");
    }

    /// Starts a block in this folder. The shell ends at the first command that fails.
    fn start(&self, block: &Block, folder: &Path) -> Shell {
        let text = block
            .text
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.port));
        let [out, errors] =
            ["out", "errors"].map(|name| self.path(&format!("{name}.{}", block.line)));
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("sh")
            .args(["-e", "-c", &text])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.dir.path())
            .env("SERIATIM_REDIS", self.redis.url())
            .env("SERIATIM_CONFIG", self.path("seriatim.toml"))
            .env_remove("SERIATIM_NAMESPACE")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&errors).expect("a file"))
            .spawn()
            .expect("sh runs");
        Shell { child, out, errors }
    }
}

impl Shell {
    /// Returns standard output, and the errors behind it.
    fn printed(&self) -> String {
        let texts =
            [&self.out, &self.errors].map(|file| std::fs::read_to_string(file).unwrap_or_default());
        texts.concat()
    }

    /// Waits until `look` returns a value.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what}: {}", self.printed());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Commands in the background are in the group of the shell.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns the shell blocks of a page, also those that do not run.
fn shell_blocks(page: &str) -> Vec<Block> {
    let (mut blocks, _) = parts_of(page);
    blocks.retain(|block| block.language == "sh");
    blocks
}

/// Runs the blocks of each page in their order, against one Redis. The block of the README has a test
/// of its own, and so have the requests of docs/http.md (`tests/http/documents.rs`).
#[test]
fn each_shell_block_of_the_pages_runs() {
    let mut count = 0;
    for page in PAGES.into_iter().filter(|page| *page != "README.md") {
        let mut blocks = shell_blocks(page);
        blocks.retain(|block| block.note.is_empty());
        blocks.retain(|block| page != "docs/http.md" || !block.text.starts_with("curl "));
        if blocks.is_empty() {
            continue;
        }
        let scene = Scene::new();
        for block in &blocks {
            let mut shell = scene.start(block, scene.dir.path());
            let place = format!("{page}:{}", block.line);
            let status = shell.until(&place, |shell| shell.child.try_wait().expect("a status"));
            assert!(status.success(), "{place}: {status}: {}", shell.printed());
            count += 1;
        }
    }
    assert!(count >= 15, "{count} blocks");
}

/// Runs the block "Start in a minute" as it is, but with a cargo and a redis-server that do nothing. It
/// ends with an event that the worker has printed, and a dashboard whose link opens.
#[test]
fn the_start_of_the_readme_ends_with_an_event_and_a_dashboard() {
    let mut blocks = shell_blocks("README.md");
    blocks.retain(|block| block.note.is_empty());
    let [block] = &blocks[..] else {
        panic!("the README has {} blocks that run", blocks.len())
    };
    let scene = Scene::new();
    scene.replace(
        "cargo",
        "#!/bin/sh\n[ \"$1 $2 $3\" = 'install --locked --path' ] && grep -q 'name = \"seriatim\"' \"$4/Cargo.toml\"\n",
    );
    scene.replace(
        "redis-server",
        "#!/bin/sh\n[ \"$*\" = '--daemonize yes' ]\n",
    );
    let mut shell = scene.start(block, root());
    shell.until("the worker prints the event", |shell| {
        let printed = shell.printed();
        let mut lines = printed.lines();
        lines
            .any(|line| line.starts_with("{\"id\":") && line.contains("\"object\":\"customer:1\""))
            .then_some(())
    });
    let link = shell.until("the dashboard prints its link", |shell| {
        let printed = shell.printed();
        let line = printed.lines().find(|line| line.contains("/link?token="))?;
        Some(line.split_once("http://")?.1.to_owned())
    });
    let (address, path) = link.split_once('/').expect("a path");
    let mut connection = TcpStream::connect(address).expect("a connection");
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).expect("sent");
    let mut page = String::new();
    connection.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
}

/// The help of the commands, each printed once.
#[derive(Default)]
struct Help(BTreeMap<String, Option<String>>);

impl Help {
    /// Returns the help of a command; none if there is no such command.
    fn of(&mut self, command: &str) -> Option<&str> {
        let print = || {
            let mut run = Command::new(program());
            let output = run.args(command.split_whitespace()).arg("--help").output();
            let output = output.expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // For `help` behind an argument, the program prints the help of the command before it.
            let usage = format!("Usage: seriatim {command}");
            let is_its_own = text.lines().any(|line| line.starts_with(&usage));
            (output.status.success() && is_its_own).then_some(text)
        };
        self.0
            .entry(command.to_owned())
            .or_insert_with(print)
            .as_deref()
    }
}

/// Tests the commands and flags in all shell blocks, also in those that do not run, and in lists of
/// commands.
#[test]
fn each_flag_of_the_pages_exists() {
    let (mut help, mut calls, mut flags) = (Help::default(), 0, 0);
    for page in PAGES {
        let (blocks, _) = parts_of(page);
        for block in blocks
            .iter()
            .filter(|block| ["sh", "text"].contains(&&*block.language))
        {
            let text = block.text.replace("\\\n", " ");
            let lines = text
                .lines()
                .filter(|line| block.language == "sh" || line.starts_with("seriatim "));
            for line in lines {
                // A comment, or two blanks and a description, ends the command.
                let command = line.split(" #").next().unwrap_or_default();
                let command = command.split("  ").next().unwrap_or_default();
                let words: Vec<_> = command.split_whitespace().collect();
                let Some(at) = words.iter().position(|word| *word == "seriatim") else {
                    continue;
                };
                let place = format!("{page}:{}: {line}", block.line);
                flags += flags_exist(&mut help, &words[at + 1..], &place);
                calls += 1;
            }
        }
    }
    assert!(calls > 100 && flags > 90, "{calls} calls, {flags} flags");
}

/// Asserts that the command of a call exists, with its flags. Returns the number of flags.
fn flags_exist(help: &mut Help, call: &[&str], place: &str) -> usize {
    let words: Vec<&str> = call
        .iter()
        .map(|word| word.trim_matches(['[', ']', '\'', '"', ',']))
        .collect();
    // Flags of every command may stand before the command.
    let skipped = words
        .iter()
        .take_while(|word| word.starts_with("--"))
        .count()
        * 2;
    let mut command = words.get(skipped).copied().unwrap_or_default().to_owned();
    assert!(help.of(&command).is_some(), "{place}: no command {command}");
    if let Some(second) = words.get(skipped + 1) {
        let longer = format!("{command} {second}");
        if second
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter == '-')
            && help.of(&longer).is_some()
        {
            command = longer;
        }
    }
    let text = help.of(&command).unwrap_or_default();
    let flags = words
        .iter()
        .filter(|word| word.starts_with("--") && word.len() > 2);
    let mut count = 0;
    for flag in flags {
        let flag = flag.split('=').next().unwrap_or_default();
        let mut listed =
            text.split(|letter: char| letter.is_whitespace() || ['=', '[', ','].contains(&letter));
        assert!(
            listed.any(|word| word == flag),
            "{place}: {command} has no {flag}"
        );
        count += 1;
    }
    count
}
