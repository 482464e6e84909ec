//! A script that Redis can run in two ways: as a function of a library (`FCALL`), or as a script
//! (`EVALSHA`). Both ways run the same body, with the same keys and arguments.
//!
//! A function keeps its Lua values from call to call; a script makes them anew in each call. But a
//! server may refuse libraries: the Redis user lacks the right, Redis is out of memory, or the
//! server knows no functions. Then the worker calls the script.
//!
//! A library is named by the hash of its text, because Redis finds a function by its name only. So
//! versions work side by side, and nobody ever replaces a library. A library stays on its server,
//! on replicas and in snapshots until an operator deletes it.
//!
//! A process may die at any point: a loaded library without a call has no effect.

use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;
use tracing::info;

use crate::connection::errors::{describe, is_outage};
use crate::failpoints::{self, around};
use crate::wire::lua::Script;

/// The time after which a library is tried again that Redis has refused for lack of memory.
const AGAIN: Duration = Duration::from_secs(60);
/// The number of such times after which a library is tried again that Redis has refused for another
/// reason, such as a missing right.
const LASTING: u32 = 60;
/// Number of digits of the hash in the name of a library.
const HASH_DIGITS: usize = 12;
/// The speed of Lua's collector for all functions of the server, in percent of the speed at which
/// memory is taken. Lua's default is 200. After every 50 calls, Redis lets the collector work. These
/// calls were the slowest ones of an idle server, and half of the speed halves that work. With less
/// than 100, the collector may never end a cycle (Lua 5.1 Reference Manual, 2.10).
const COLLECTOR_SPEED: u32 = 100;
/// The beginning of the name of every library.
pub(crate) const PREFIX: &str = "seriatim_";

/// The reason of a refusal if the user may not call functions.
pub(crate) const DENIED: &str = "the Redis user may not use FCALL";

/// A script with its library.
pub(crate) struct Library {
    /// Made at its first use, because most servers run the function.
    script: LazyLock<Script, Box<dyn FnOnce() -> Script + Send>>,
    /// The name of the library.
    name: String,
    /// The name of its one function.
    function: String,
    text: String,
}

impl Library {
    /// Returns the library of a body. The body is Lua text that, run as the body of a function,
    /// returns `function(keys, argv)`. `flags` are the flags of the script, separated by commas.
    pub(crate) fn new(script: &str, flags: &'static str, body: String) -> Self {
        let unnamed = Self::text(script, "", flags, &body);
        let hash = redis::Script::new(&unnamed).get_hash()[..HASH_DIGITS].to_owned();
        let text = Self::text(script, &hash, flags, &body);
        let eval = move || {
            Script::of_text(format!(
                "#!lua flags={flags}\nreturn (function()\n{body}\nend)()(KEYS, ARGV)\n"
            ))
        };
        Self {
            script: LazyLock::new(Box::new(eval)),
            name: format!("{PREFIX}{hash}"),
            function: format!("{script}_{hash}"),
            text,
        }
    }

    /// Returns the text of a library. While a server loads a library, some servers give Lua no
    /// `string`, `math`, `redis.call` and `pcall`. So the first call runs the body.
    fn text(script: &str, hash: &str, flags: &str, body: &str) -> String {
        let flags: Vec<_> = flags.split(',').map(|flag| format!("'{flag}'")).collect();
        format!(
            "#!lua name={PREFIX}{hash}\n\
             local function make()\n\
             pcall(function() collectgarbage('setstepmul', {COLLECTOR_SPEED}) end)\n\
             {body}\nend\n\
             local made\n\
             redis.register_function{{ function_name = '{script}_{hash}', flags = {{ {} }}, \
             callback = function(keys, argv)\n\
             made = made or make()\n\
             return made(keys, argv)\n\
             end }}\n",
            flags.join(", ")
        )
    }

    /// Returns the name of the library.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins a call in this way. The one key tells a Redis cluster which node runs the call. The
    /// caller appends the arguments.
    pub(crate) fn begin(&self, way: Way, key: &str) -> Cmd {
        match way {
            Way::Function => {
                let mut cmd = redis::cmd("FCALL");
                cmd.arg(&self.function).arg(1).arg(key);
                cmd
            }
            Way::Script => self.script.with_key(key),
        }
    }

    /// Makes a call. If the server does not know the library or the script, loads it first. If the
    /// server refuses the library, calls the script, unless the setting demands the function.
    ///
    /// Cancellation: a call that was sent may still run.
    pub(crate) async fn call(
        &self,
        conn: &mut impl ConnectionLike,
        ways: &Ways,
        cmd: &Cmd,
    ) -> Result<Value, RedisError> {
        if Way::of(cmd) == Way::Script {
            return self.script.call(conn, cmd).await;
        }
        match self.call_function(conn, cmd).await {
            Ok(reply) => {
                ways.ran(cmd);
                Ok(reply)
            }
            Err(Failed::Other(error)) => Err(error),
            Err(Failed::Refused(error)) => {
                ways.refused(&error);
                if ways.setting == Scripts::Functions {
                    return Err(error);
                }
                self.script.call(conn, &self.as_script(cmd)).await
            }
        }
    }

    async fn call_function(
        &self,
        conn: &mut impl ConnectionLike,
        cmd: &Cmd,
    ) -> Result<Value, Failed> {
        match send(conn, cmd).await {
            Err(error) if is_unknown_function(&error) => {
                self.load(conn).await?;
                send(conn, cmd).await.map_err(|error| {
                    if is_unknown_function(&error) || is_refused_call(&error) {
                        Failed::Refused(error)
                    } else {
                        Failed::Other(error)
                    }
                })
            }
            Err(error) if is_refused_call(&error) => Err(Failed::Refused(error)),
            reply => reply.map_err(Failed::Other),
        }
    }

    /// Loads the library. Succeeds if the server has it.
    pub(crate) async fn load(&self, conn: &mut impl ConnectionLike) -> Result<(), Failed> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.text);
        match around!("load", send(conn, &load)).await {
            Err(error) if describe(&error).contains("already exists") => Ok(()),
            Err(error) if error.code().is_some() && !is_outage(&error) => {
                Err(Failed::Refused(error))
            }
            Err(error) => Err(Failed::Other(error)),
            Ok(_) => Ok(()),
        }
    }

    /// Returns whether the error says that the server has not run the call. Another try with
    /// [`call`](Self::call) can help.
    pub(crate) fn has_not_run(error: &RedisError) -> bool {
        error.code() == Some("NOSCRIPT") || is_unknown_function(error) || is_refused_call(error)
    }

    /// Returns the same call as a call of the script.
    fn as_script(&self, cmd: &Cmd) -> Cmd {
        let mut script = redis::cmd("EVALSHA");
        script.arg(self.script.hash());
        for arg in cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = arg {
                script.arg(bytes);
            }
        }
        script
    }
}

async fn send(conn: &mut impl ConnectionLike, cmd: &Cmd) -> Result<Value, RedisError> {
    conn.req_packed_command(cmd)
        .await
        .and_then(Value::extract_error)
}

/// Returns whether the server does not know the function. Redis has no code for this error.
fn is_unknown_function(error: &RedisError) -> bool {
    error.code() == Some("ERR") && describe(error).contains("Function not found")
}

/// Returns whether the server has no `FCALL`, or the user may not use it. The error names the
/// command in quotes: an error inside of the function does not.
fn is_refused_call(error: &RedisError) -> bool {
    let text = describe(error).to_ascii_lowercase();
    text.contains("'fcall'") && (text.contains("noperm") || text.contains("unknown command"))
}

/// A call of a function that failed.
pub(crate) enum Failed {
    /// The server refuses the function or its library. It may still run the script.
    Refused(RedisError),
    /// The connection failed, or the function did.
    Other(RedisError),
}

/// The setting: the ways in which a worker may run the script that commits and claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scripts {
    /// As a function if Redis accepts the library, and otherwise as a script.
    Auto,
    /// Only as a function. A worker does not start if Redis refuses the library.
    Functions,
    /// Only as a script.
    Eval,
}

impl Default for Scripts {
    fn default() -> Self {
        failpoints::scripts()
            .and_then(|word| word.parse().ok())
            .unwrap_or(Self::Auto)
    }
}

impl fmt::Display for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Functions => "functions",
            Self::Eval => "eval",
        })
    }
}

/// A text that is not a value of [`Scripts`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of auto, functions, eval")]
pub struct ScriptsError(String);

impl FromStr for Scripts {
    type Err = ScriptsError;

    fn from_str(text: &str) -> Result<Self, ScriptsError> {
        match text {
            "auto" => Ok(Self::Auto),
            "functions" => Ok(Self::Functions),
            "eval" => Ok(Self::Eval),
            other => Err(ScriptsError(other.to_owned())),
        }
    }
}

/// The way in which a call runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Way {
    /// As a function of a library, with `FCALL`.
    #[default]
    Function,
    /// As a script, with `EVALSHA`.
    Script,
}

impl Way {
    fn of(cmd: &Cmd) -> Self {
        match cmd.args_iter().next() {
            Some(redis::Arg::Simple(b"FCALL")) => Self::Function,
            _ => Self::Script,
        }
    }

    /// Returns the word for the way, as in [`Scripts`].
    pub fn word(self) -> &'static str {
        match self {
            Self::Function => "functions",
            Self::Script => "eval",
        }
    }
}

/// The ways that a worker process may use, and the last refusal of the server. All connections of
/// the process share this value.
#[derive(Debug)]
pub struct Ways {
    setting: Scripts,
    /// The time after which a library is tried again that was refused for lack of memory.
    interval: Duration,
    refusal: Mutex<Option<Refusal>>,
}

/// A refusal of the function or its library.
#[derive(Debug)]
struct Refusal {
    reason: String,
    /// The time of the next try; `None`: the next new connection tells whether the user may call
    /// functions.
    again_at: Option<Instant>,
}

impl Default for Ways {
    fn default() -> Self {
        Self::new(Scripts::default())
    }
}

impl Ways {
    /// Returns the ways of a process with this setting.
    pub fn new(setting: Scripts) -> Self {
        Self::with_interval(setting, AGAIN)
    }

    /// Returns the ways of a process that tries a library again after this time, for tests.
    pub fn with_interval(setting: Scripts, interval: Duration) -> Self {
        Self {
            setting,
            interval,
            refusal: Mutex::default(),
        }
    }

    /// Returns the setting.
    pub fn setting(&self) -> Scripts {
        self.setting
    }

    /// Returns the way of a new call. If the time of the next try has come, this call is that try.
    pub(crate) fn of_call(&self) -> Way {
        match self.setting {
            Scripts::Functions => Way::Function,
            Scripts::Eval => Way::Script,
            Scripts::Auto => match &mut *self.refusal() {
                None => Way::Function,
                Some(Refusal {
                    again_at: Some(at), ..
                }) if *at <= Instant::now() => {
                    *at = Instant::now() + self.interval;
                    Way::Function
                }
                Some(_) => Way::Script,
            },
        }
    }

    /// Returns the way in use.
    pub fn way(&self) -> Way {
        match self.setting {
            Scripts::Functions => Way::Function,
            Scripts::Eval => Way::Script,
            Scripts::Auto if self.refusal().is_none() => Way::Function,
            Scripts::Auto => Way::Script,
        }
    }

    /// Records a new connection, and whether its user may call functions. The connection may lead to
    /// another server, so an earlier answer counts no longer.
    pub(crate) fn connected(&self, may_call: bool) {
        let mut refusal = self.refusal();
        if !may_call {
            self.refuse(&mut refusal, DENIED.to_owned(), None);
        } else if refusal
            .as_ref()
            .is_some_and(|refusal| refusal.again_at.is_none())
        {
            *refusal = None;
        }
    }

    /// Records that the server has run this call. After a call of the function no refusal is left.
    pub(crate) fn ran(&self, cmd: &Cmd) {
        if Way::of(cmd) == Way::Function {
            *self.refusal() = None;
        }
    }

    /// Records that the server refuses the function.
    fn refused(&self, error: &RedisError) {
        // The library may also have disappeared between its load and the call.
        let may_end = error.code() == Some("OOM") || is_unknown_function(error);
        let wait = self.interval * if may_end { 1 } else { LASTING };
        self.refuse(
            &mut self.refusal(),
            describe(error),
            Some(Instant::now() + wait),
        );
    }

    fn refuse(&self, refusal: &mut Option<Refusal>, reason: String, again_at: Option<Instant>) {
        let is_new = refusal
            .as_ref()
            .is_none_or(|before| before.reason != reason);
        if is_new && self.setting == Scripts::Auto {
            info!(
                reason,
                "Redis refuses function libraries: it runs scripts instead"
            );
        }
        *refusal = Some(Refusal { reason, again_at });
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
