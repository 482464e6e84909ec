//! A running `seriatim dashboard`, requests to it, and a Redis with something on every page.

use std::fs::File;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ::redis::{cmd, pipe};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use seriatim::control::cron::CronDraft;
use seriatim::control::rules::Kind;
use seriatim::control::{By, Control};
use seriatim::cron::CronSchedule;
use tempfile::{NamedTempFile, TempDir};
use url::form_urlencoded::Serializer;

use crate::serving::client_of;
use crate::support::console::PATIENCE;
use crate::support::{Redis, control, until};

/// A dashboard; killed when it is dropped.
pub(crate) struct Dash {
    child: Child,
    dir: TempDir,
    pub(crate) url: String,
    client: Client,
    /// The file of [`USERS`].
    _users: Option<NamedTempFile>,
}

/// An answer of the dashboard. The text of a stream is empty.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// Returns the name and the value of the cookie that the answer sets.
    pub(crate) fn cookie(&self) -> String {
        let set = self.header("set-cookie");
        set.split(';')
            .next()
            .filter(|pair| pair.contains('='))
            .unwrap_or_else(|| panic!("{self:?}"))
            .to_owned()
    }
}

impl Dash {
    /// Starts a dashboard on a free port, and waits until it listens.
    pub(crate) async fn start(redis: &Redis, options: &[&str]) -> Self {
        Self::start_to(redis.url(), redis, options).await
    }

    /// Starts a dashboard that reaches Redis by this URL.
    pub(crate) async fn start_to(url: &str, redis: &Redis, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let mut command = command(url, redis, options);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let child = command
            .stdout(file("out"))
            .stderr(file("log"))
            .spawn()
            .expect("the program starts");
        let mut this = Self {
            child,
            dir,
            url: String::new(),
            client: client(),
            _users: None,
        };
        this.url = until("it listens", PATIENCE, async || {
            let log = this.log();
            let (_, rest) = log.split_once("listening address=")?;
            Some(rest.split_whitespace().next()?.to_owned())
                .filter(|_| rest.contains('\n') && this.out().contains('\n'))
        })
        .await;
        this
    }

    /// Starts a dashboard with [`USERS`].
    pub(crate) async fn for_users(redis: &Redis) -> Self {
        let file = users(&USERS);
        let mut this = Self::start(redis, &["--users", path(&file)]).await;
        this._users = Some(file);
        this
    }

    /// Returns a page as this user gets it.
    pub(crate) fn page_as(&self, user: &str, target: &str) -> impl Future<Output = Reply> + use<> {
        reply(self.page(target).bearer_auth(token(user)))
    }

    /// Returns the answer to a form that this user posts.
    pub(crate) fn post_as(
        &self,
        user: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> impl Future<Output = Reply> + use<> {
        reply(self.form(target, fields).bearer_auth(token(user)))
    }

    pub(crate) fn request(&self, method: Method, target: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{target}", self.url))
    }

    pub(crate) fn page(&self, target: &str) -> RequestBuilder {
        self.request(Method::GET, target)
            .header("accept", "text/html")
    }

    /// Returns a form as a page of the dashboard posts it.
    pub(crate) fn form(&self, target: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        self.foreign_form(target, fields)
            .header("sec-fetch-site", "same-origin")
    }

    /// Returns a form without any header that tells its origin.
    pub(crate) fn foreign_form(&self, target: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        let body = Serializer::new(String::new()).extend_pairs(fields).finish();
        let kind = "application/x-www-form-urlencoded";
        self.request(Method::POST, target)
            .header("content-type", kind)
            .header("accept", "text/html")
            .body(body)
    }

    /// Logs in with a token. Returns the cookie.
    pub(crate) async fn log_in(&self, token: &str) -> String {
        let answer = reply(self.form("/login", &[("token", token)])).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.cookie()
    }

    /// Returns the token of the newest link that the dashboard has printed.
    pub(crate) fn link_token(&self) -> String {
        let out = self.out();
        let (_, token) = out
            .trim()
            .rsplit_once("/link?token=")
            .unwrap_or_else(|| panic!("{out}"));
        token.to_owned()
    }

    pub(crate) fn out(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("out")).expect("the output")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("a log")
    }

    /// Lets it read its files again, and waits until it has done so.
    pub(crate) async fn read_again(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).expect("the signal is sent");
        until("it has read the files again", PATIENCE, async || {
            self.log().contains("read again").then_some(())
        })
        .await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("it has ended");
    }

    /// Returns the host and the port on which it listens.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").expect("a URL")
    }
}

impl Drop for Dash {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client() -> Client {
    client_of(|client| {
        client
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(30))
    })
}

/// Returns the command of a dashboard. Its log has lines of the level `info`, unless an option says
/// otherwise.
pub(crate) fn command(url: &str, redis: &Redis, options: &[&str]) -> Command {
    let mut command = Command::new(crate::support::program());
    command
        .args([
            "--redis",
            url,
            "--namespace",
            redis.namespace(),
            "dashboard",
        ])
        .args(options);
    for name in [
        "SERIATIM_REDIS",
        "SERIATIM_NAMESPACE",
        "SERIATIM_USERS",
        "SERIATIM_PUBLIC_URL",
        "SERIATIM_LOG",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a dashboard that must not start. Returns its exit code and its messages.
pub(crate) fn refused(redis: &Redis, options: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(redis.url(), redis, options)
        .output()
        .expect("it runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

pub(crate) async fn reply(request: RequestBuilder) -> Reply {
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let is_stream = headers
        .get("content-type")
        .is_some_and(|kind| kind == "text/event-stream");
    let text = if is_stream {
        String::new()
    } else {
        response.text().await.expect("a body")
    };
    Reply {
        status,
        headers,
        text,
    }
}

/// The names of the users in [`users`]. The token of each is `token-of-NAME`.
pub(crate) const USERS: [(&str, &str); 5] = [
    ("emitter", "emit"),
    ("viewer", "view"),
    ("pauser", "view,pause"),
    ("operator", "view,pause,operate"),
    ("bound", "view,pause,operate work:"),
];

pub(crate) fn token(name: &str) -> String {
    format!("token-of-{name}")
}

/// Returns a users file with these names and rights.
pub(crate) fn users(users: &[(&str, &str)]) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a file");
    write_users(&file, users);
    file
}

pub(crate) fn write_users(file: &NamedTempFile, users: &[(&str, &str)]) {
    let line = |(name, rights): &(&str, &str)| {
        let digest = ring::digest::digest(&ring::digest::SHA256, token(name).as_bytes());
        let hash: String = digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{name} {hash} {rights}\n")
    };
    std::fs::write(file.path(), users.iter().map(line).collect::<String>()).expect("written");
}

pub(crate) fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("a path")
}

/// A Redis with something on every page. No worker runs, so nothing changes by itself.
pub(crate) struct Scene {
    pub(crate) redis: Redis,
    pub(crate) control: Control,
    /// The ids of the dead letters of `work:dead`, `user:dead` and `other:dead`.
    pub(crate) dead: Vec<String>,
}

impl Scene {
    pub(crate) async fn start() -> Self {
        Self::over(Redis::own(&[]), "payload").await
    }

    /// Returns a scene and a dashboard with [`USERS`].
    pub(crate) async fn with_dash() -> (Self, Dash) {
        let scene = Self::start().await;
        let dash = Dash::for_users(&scene.redis).await;
        (scene, dash)
    }

    /// Fills a Redis. All events, errors and results contain `text`.
    pub(crate) async fn over(redis: Redis, text: &str) -> Self {
        let console = redis.console().await;
        let control = control(&console.conn(), &console.keys);
        let emitter = redis.emitter().await;
        let json = json!({ "type": "moved", "card": { "number": text }, "other": 1 });
        let event = json.to_string();
        let error = format!("the card {text} is refused");
        let mut dead = Vec::new();
        for object in ["work:dead", "user:dead", "other:dead"] {
            let stream = console.keys.events_dead();
            let begin = ["XADD", &stream, "*", "id", "1", "prev", "0"];
            let letter = ["object", object, "event", &event, "error", &error];
            let words = [&begin[..], &letter, &["attempts", "1"]].concat();
            dead.push(console.run(&words).await);
        }
        for prefix in ["work", "user"] {
            let emitted = emitter.emit(format!("{prefix}:queued"), &json).await;
            emitted.expect("emitted");
            for (state, id, due) in [("held", 7, "inf"), ("retry", 9, "4102444800000")] {
                held(
                    &redis,
                    &format!("{prefix}:{state}"),
                    id,
                    due,
                    &event,
                    &error,
                )
                .await;
            }
            let results = format!(r#"{{"mail":{{"card":"{text}"}}}}"#);
            for (id, status) in [
                ("2", "completed"),
                ("3", "completed_with_errors"),
                ("4", "dead"),
            ] {
                let row = format!(
                    "id {id} prev 0 object {prefix}:done event '{event}' status {status} attempts 1"
                );
                let error = match status {
                    "completed" => String::new(),
                    _ => format!("error '{error}'"),
                };
                let more = format!("{error} results '{results}' taken 1767225600000");
                console.add(&format!("XADD event.log * {row} {more}")).await;
            }
            let schedule = emitter.schedule(format!("{prefix}:later"), &json);
            let schedule = schedule.after(Duration::from_secs(1_000_000));
            let scheduled = schedule.key("later").send().await;
            scheduled.expect("scheduled");
            let schedule = CronSchedule::new("0 3 * * *", Some("Europe/Berlin"));
            let schedule = schedule.expect("a schedule");
            let name = format!("{prefix}-nightly");
            let job = CronDraft::new(name, schedule, format!("{prefix}:cron"), &json);
            control.set_cron(by(), job).await.expect("set");
            let idle = format!("SET {prefix}:idle:last.event.id 3");
            console.add(&idle).await;
        }
        let paused = "paused:*".parse().expect("a selector");
        let set = control.set_rule(by(), Kind::Pause, &paused, None).await;
        set.expect("set");
        in_flight(&redis, &event, text).await;
        Self {
            redis,
            control,
            dead,
        }
    }

    /// Returns all keys with their values.
    pub(crate) async fn dump(&self) -> Vec<(String, Vec<u8>)> {
        let mut conn = self.redis.connect().await;
        let mut keys: Vec<String> = cmd("KEYS")
            .arg("*")
            .query_async(&mut conn)
            .await
            .expect("the keys");
        keys.sort();
        let mut all = pipe();
        for key in &keys {
            all.cmd("DUMP").arg(key);
        }
        let values: Vec<Vec<u8>> = all.query_async(&mut conn).await.expect("the values");
        keys.into_iter().zip(values).collect()
    }
}

fn by() -> By<'static> {
    By {
        who: "test",
        why: "a reason",
    }
}

/// Holds an object with one event.
pub(crate) async fn held(
    redis: &Redis,
    object: &str,
    id: u64,
    due: &str,
    event: &str,
    error: &str,
) {
    let given = format!(
        "LPUSH '{object}:events.held' '{event}'
         SET '{object}:events.held.id' '{id} 0 3 0 retry: {error}'
         SET '{object}:event.worker' held
         ZADD objects.held {due} '{object}'
         LPUSH '{object}:event.errors' '1767225600000 1 {error}'"
    );
    redis.console().await.add(&given).await;
}

/// Registers a worker with one batch in flight. Its process tells that its sink is down.
async fn in_flight(redis: &Redis, event: &str, text: &str) {
    let error = format!("the card {text} is refused");
    let status = json!({ "sink": "http", "sink_down_ms": 5000, "sink_error": error });
    let result = format!("\"mail\":{{\"card\":\"{text}\"}}");
    let given = format!(
        "HSET event.workers w '2 token 1767225600000'
         LPUSH event.worker:w.0:object work:flight
         LPUSH event.worker:w.0:event '{event}'
         SET event.worker:w.0:event.id 11
         SET work:flight:event.worker w.0
         HSET work:flight:event.handled id 11 handler:mail '' result:mail '{result}'
         SET event.worker:w:lease 'token host 4242 1767225600000' EX 3600
         SET event.worker:w:status '{status}'
         SET next.event.id 100"
    );
    redis.console().await.add(&given).await;
}
