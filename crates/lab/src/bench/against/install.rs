//! Writes the programs into a folder, and installs the tools there, with npm and pip. What is installed
//! stays, so only the first run needs the network.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use seriatim_console::exit::{Exit, Failure};
use seriatim_console::shown;
use tokio::process::Command;

use super::rows::{FILES, LOCK, Language, PACKAGE, REQUIREMENTS, Row};

/// The folder in the folder of the tools that has the packages of seriatim, if somebody has built them.
const PACKAGES: &str = "packages";
/// The folder of the environment of Python.
const ENVIRONMENT: &str = "python";

/// The installed tools.
pub(super) struct Installed {
    dir: PathBuf,
    node_package: Option<PathBuf>,
    python_package: Option<PathBuf>,
    /// The version of each program, language and tool.
    pub(super) versions: BTreeMap<&'static str, String>,
}

impl Installed {
    /// Installs the tools of these rows. `dir`: the folder; by default one in the user's cache.
    pub(super) async fn new(rows: &[&Row], dir: Option<PathBuf>) -> anyhow::Result<Self> {
        let dir = dir.map_or_else(default_dir, Ok)?;
        let cannot = |error| failed(format!("cannot write to {}: {error}", dir.display()));
        fs::create_dir_all(&dir).map_err(cannot)?;
        let dir = dir.canonicalize().map_err(cannot)?;
        for (name, text) in FILES {
            fs::write(dir.join(name), text).map_err(cannot)?;
        }
        let mut installed = Self {
            node_package: package(&dir, ".tgz"),
            python_package: package(&dir, ".whl"),
            dir,
            versions: BTreeMap::from([("seriatim", env!("CARGO_PKG_VERSION").to_owned())]),
        };
        let has = |language| rows.iter().any(|row| row.language == language);
        if has(Language::Node) {
            installed.node().await?;
        }
        if has(Language::Python) {
            installed.python().await?;
        }
        for row in rows.iter().filter(|row| !installed.has(row)) {
            shown::say(&format!(
                "{} is left out: its package is not in {}; scripts/bench-against builds it",
                row.name,
                installed.dir.join(PACKAGES).display()
            ));
        }
        Ok(installed)
    }

    /// Returns whether the row can be measured: the packages of seriatim may be absent.
    pub(super) fn has(&self, row: &Row) -> bool {
        row.tool.is_some()
            || match row.language {
                Language::Node => self.node_package.is_some(),
                Language::Python => self.python_package.is_some(),
            }
    }

    /// Returns the command that starts the program of a row.
    pub(super) fn command(&self, row: &Row, arguments: [String; 3]) -> anyhow::Result<Command> {
        let program = match row.language {
            Language::Node => PathBuf::from("node"),
            Language::Python => self.dir.join(ENVIRONMENT).join("bin/python"),
        };
        let mut command = Command::new(program);
        command
            .current_dir(&self.dir)
            .arg(row.script)
            .args(arguments)
            .args(row.arguments)
            .env("SERIATIM_BIN", std::env::current_exe()?);
        // These would change the workers of the packages.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SERIATIM_") && name != "SERIATIM_BIN" {
                command.env_remove(name);
            }
        }
        Ok(command)
    }

    async fn node(&mut self) -> anyhow::Result<()> {
        let node = version("node", "Node 20.9 or newer", "bullmq and groupmq").await?;
        version("npm", "npm", "bullmq and groupmq").await?;
        let state = state(&[&node, LOCK], self.node_package.as_deref());
        if !self.is_done("node_modules", &state) {
            self.say("bullmq and groupmq", "npm ci");
            let npm = |arguments: &[&str]| {
                let mut npm = Command::new("npm");
                npm.args(arguments)
                    .args(["--no-audit", "--no-fund", "--loglevel=error"]);
                npm
            };
            self.step("npm ci", npm(&["ci"])).await?;
            if let Some(package) = &self.node_package {
                let package = package.display().to_string();
                self.step(
                    "npm install",
                    npm(&["install", "--no-save", "--ignore-scripts", &package]),
                )
                .await?;
            }
            self.done("node_modules", &state)?;
        }
        self.versions
            .insert("node", node.trim_start_matches('v').to_owned());
        for name in ["bullmq", "groupmq", "ioredis"] {
            let versions: serde_json::Value = serde_json::from_str(PACKAGE)?;
            if let Some(version) = versions["dependencies"][name].as_str() {
                self.versions.insert(name, version.to_owned());
            }
        }
        Ok(())
    }

    async fn python(&mut self) -> anyhow::Result<()> {
        let named = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let python = version(&named, "Python 3.10 or newer", "celery").await?;
        let state = state(&[&python, REQUIREMENTS], self.python_package.as_deref());
        if !self.is_done(ENVIRONMENT, &state) {
            self.say("celery", "pip install");
            let mut venv = Command::new(&named);
            venv.args(["-m", "venv", "--clear", ENVIRONMENT]);
            self.step("python -m venv", venv).await?;
            let pip = |arguments: &[&str]| {
                let mut pip = Command::new(self.dir.join(ENVIRONMENT).join("bin/python"));
                pip.args(["-m", "pip", "install", "--quiet"])
                    .arg("--disable-pip-version-check")
                    .args(arguments);
                pip
            };
            self.step("pip install", pip(&["-r", "requirements.txt"]))
                .await?;
            if let Some(package) = &self.python_package {
                let package = package.display().to_string();
                self.step("pip install", pip(&["--no-deps", &package]))
                    .await?;
            }
            self.done(ENVIRONMENT, &state)?;
        }
        self.versions
            .insert("python", python.trim_start_matches("Python ").to_owned());
        for line in REQUIREMENTS.lines() {
            if let Some(version) = line.strip_prefix("celery==") {
                self.versions.insert("celery", version.to_owned());
            }
        }
        Ok(())
    }

    fn say(&self, tools: &str, how: &str) {
        let dir = self.dir.display();
        shown::say(&format!("installing {tools} into {dir} ({how})"));
    }

    /// Runs one command of an installation in the folder.
    async fn step(&self, what: &str, mut command: Command) -> anyhow::Result<()> {
        let output = command
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(format!("{what} does not start: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(format!(
            "{what} fails in {}: {}; check the network, then start again",
            self.dir.display(),
            reason(&output)
        )))
    }

    /// Whether the folder was installed in this state.
    fn is_done(&self, folder: &str, state: &str) -> bool {
        fs::read_to_string(self.dir.join(folder).join("seriatim-has"))
            .is_ok_and(|installed| installed == state)
    }

    fn done(&self, folder: &str, state: &str) -> anyhow::Result<()> {
        fs::write(self.dir.join(folder).join("seriatim-has"), state)
            .map_err(|error| failed(format!("cannot write to {folder}: {error}")))
    }
}

fn failed(why: String) -> anyhow::Error {
    Failure::with(Exit::Broken, why)
}

fn default_dir() -> anyhow::Result<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = named("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| named("HOME").map(|home| Path::new(&home).join(".cache")));
    let none = || {
        Failure::with(
            Exit::Input,
            "neither XDG_CACHE_HOME nor HOME is set; name a folder for the tools with --against-dir",
        )
    };
    Ok(cache.ok_or_else(none)?.join("seriatim/against"))
}

/// Returns the package of seriatim with this end, if there is one of this version.
fn package(dir: &Path, end: &str) -> Option<PathBuf> {
    let begin = concat!("seriatim-", env!("CARGO_PKG_VERSION"));
    let entries = fs::read_dir(dir.join(PACKAGES)).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    })
}

/// Returns the text that says what is installed: it changes with each version, and with the package.
fn state(versions: &[&str], package: Option<&Path>) -> String {
    let built = package.and_then(|path| fs::metadata(path).and_then(|it| it.modified()).ok());
    format!("{}\n{built:?}\n", versions.join("\n"))
}

/// Returns the version that a program prints. `what`: the program and its oldest version.
async fn version(program: &str, what: &str, tools: &str) -> anyhow::Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await;
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Err(failed(format!(
            "{program} is not on the PATH; install {what}, or leave {tools} out of --against"
        ))),
    }
}

/// Returns the lines that say why npm or pip has failed.
fn reason(output: &Output) -> String {
    let text = [&output.stderr[..], &output.stdout[..]].map(String::from_utf8_lossy);
    let lines = || text.iter().flat_map(|text| text.lines()).map(str::trim);
    let is_error = |line: &&str| line.to_ascii_lowercase().contains("err");
    let errors: Vec<&str> = lines().filter(is_error).take(2).collect();
    if errors.is_empty() {
        let last = lines().rfind(|line| !line.is_empty());
        return last.unwrap_or("(nothing)").to_owned();
    }
    errors.join("; ")
}
