//! A running `seriatim dashboard`, and the ways to log in.

use std::fs::File;
use std::future::ready;
use std::process::{Child, Command, Stdio};

use crate::driver::Driver;
use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// A dashboard process; killed when it is dropped.
pub(crate) struct Dashboard {
    child: Child,
    dir: tempfile::TempDir,
    /// `http://127.0.0.1:PORT`
    pub(crate) origin: String,
    /// The link with a one-time token, if the dashboard printed one.
    pub(crate) link: Option<String>,
}

impl Dashboard {
    /// Starts a dashboard on a free port, and waits until it says where it listens.
    pub(crate) async fn start(redis: &Redis, arguments: &[&str]) -> Self {
        Self::start_at(redis.url(), Some(redis.namespace()), arguments).await
    }

    /// Starts a dashboard that reaches Redis at `server`, for example through a proxy.
    pub(crate) async fn start_at(
        server: &str,
        namespace: Option<&str>,
        arguments: &[&str],
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let child = Command::new(crate::support::program())
            .args(["--redis", server])
            .args(
                namespace
                    .iter()
                    .flat_map(|namespace| ["--namespace", namespace]),
            )
            .args(["dashboard", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_remove("SERIATIM_REDIS")
            .env_remove("SERIATIM_NAMESPACE")
            .stdin(Stdio::null())
            .stdout(file("output"))
            .stderr(file("log"))
            .spawn()
            .expect("the program starts");
        let mut this = Self {
            child,
            dir,
            origin: String::new(),
            link: None,
        };
        let url = until("the dashboard listens", PATIENCE, || {
            let ended = this.child.try_wait().expect("it can be asked");
            assert!(
                ended.is_none(),
                "the dashboard ended: {ended:?}\n{}{}",
                this.output(),
                this.log()
            );
            ready(first_url(&this.output()))
        })
        .await;
        let port = url
            .parse::<reqwest::Url>()
            .expect("a URL")
            .port()
            .expect("a port");
        this.origin = format!("http://127.0.0.1:{port}");
        this.link = url.contains("/link?").then_some(url);
        this
    }

    /// Returns the URL of a page.
    pub(crate) fn url(&self, target: &str) -> String {
        format!("{}{target}", self.origin)
    }

    /// Returns the standard output so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output")).expect("the output")
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }

    /// Logs in by the printed link: opens it, and presses the button of its form.
    pub(crate) async fn log_in(&self, driver: &Driver) {
        driver
            .open(self.link.as_ref().expect("a link was printed"))
            .await;
        let button = driver
            .find("form[method=post] [type=submit], form[method=post] button")
            .await;
        driver.click(&button).await;
        driver
            .wait_for("the login is done", async || {
                (driver.path().await != "/link").then_some(())
            })
            .await;
    }

    /// Logs in by the form, with the token of a user.
    pub(crate) async fn log_in_with(&self, driver: &Driver, token: &str) {
        driver.open(&self.url("/login")).await;
        driver.fill(&driver.find_label("Token").await, token).await;
        driver.click(&driver.find_button("Log in").await).await;
        driver
            .wait_for("the login is done", async || {
                (driver.path().await != "/login").then_some(())
            })
            .await;
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the first URL of a complete line.
pub(crate) fn first_url(text: &str) -> Option<String> {
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let mut words = lines.flat_map(str::split_whitespace);
    words.find_map(|word| {
        word.find("http://127.0.0.1:")
            .map(|at| word[at..].trim_end_matches('"').to_owned())
    })
}

/// A users file, and the tokens of its users.
pub(crate) struct Users {
    file: tempfile::NamedTempFile,
    tokens: Vec<(String, String)>,
}

impl Users {
    /// Makes a user for each name and its rights, e.g. `view,pause`.
    pub(crate) fn new(users: &[(&str, &str)]) -> Self {
        let (mut lines, mut tokens) = (String::new(), Vec::new());
        for (name, rights) in users {
            let mut program = Command::new(crate::support::program());
            let made = program
                .args(["token", "new", name, "--rights", rights])
                .output()
                .expect("the program runs");
            let output = String::from_utf8(made.stdout).expect("UTF-8");
            let part = |label: &str| {
                let line = output.lines().find_map(|line| line.strip_prefix(label));
                line.unwrap_or_else(|| panic!("no {label} in {output:?}"))
                    .trim()
                    .to_owned()
            };
            lines = format!("{lines}{}\n", part("line "));
            tokens.push(((*name).to_owned(), part("token ")));
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), lines).expect("written");
        Self { file, tokens }
    }

    /// Returns the arguments that give the file to the dashboard.
    pub(crate) fn arguments(&self) -> [&str; 2] {
        [
            "--users",
            self.file.path().to_str().expect("a path in UTF-8"),
        ]
    }

    /// Returns the token of a user.
    pub(crate) fn token(&self, name: &str) -> &str {
        let token = self.tokens.iter().find(|(user, _)| user == name);
        &token.unwrap_or_else(|| panic!("no user {name}")).1
    }
}
