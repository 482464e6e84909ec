//! Fail points: before and after every command that a worker sends to Redis, and before and after
//! every delivery to the sink.
//!
//! Only the feature `failpoints` compiles fail points in, and no release has that feature. Without
//! it, `no_failpoints` has macros that expand to the bare calls. The variable `FAILPOINTS` sets the action of each
//! point, in the syntax of the crate `fail`, e.g.
//! `FAILPOINTS='advance.after=2*off->1*return(abort)'`. The program calls
//! `fail::FailScenario::setup`. The points are `open info connect load attach renew adopt promote
//! advance handled detach pop wait deliver`, each with `.before` and `.after`. [`Action`] lists the
//! values of `return`.
//!
//! With the feature `failpoints`, the variable `SERIATIM_LUA_DIR` names another directory for the
//! scripts. So `scripts/mutants` can try changed scripts without a new build. The variable
//! `SERIATIM_SCRIPTS` sets the default of the setting `Scripts`, so that all tests can run in one
//! way.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

/// Puts a call to Redis between two fail points. The result is a future with the same output as the
/// call.
macro_rules! around {
    ($point:literal, $call:expr) => {
        $crate::failpoints::at(
            [concat!($point, ".before"), concat!($point, ".after")],
            $call,
        )
    };
}

/// Puts a delivery between two fail points. `$failed` makes the result of a failed delivery. It
/// gets an error text, and whether the sink is unavailable.
macro_rules! delivery {
    ($call:expr, $failed:expr) => {
        $crate::failpoints::at_delivery($call, $failed)
    };
}

pub(crate) use {around, delivery};

use redis::RedisError;
use tracing::warn;

/// Delay of a reply that counts as lost. It is longer than the response timeout of the tests.
const LOST: Duration = Duration::from_millis(400);
/// Length of the pause of the action `delay`. It is longer than a lease in the tests.
const DELAY: Duration = Duration::from_millis(600);

/// The action of a fail point: a value of `return`.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// `pass`: the point only writes a log line.
    Pass,
    /// `error`: the connection breaks. At a point before the call, the call does not run; at a
    /// point after it, the call has run.
    Error,
    /// `lost`: there is no reply, and later a timeout. At a point before the call, the request
    /// is lost; at a point after it, the reply is lost.
    Lost,
    /// `delay`: the process pauses until its lease has ended.
    Delay,
    /// `abort`: the process dies.
    Abort,
    /// `unavailable`: the sink is unavailable. At a point of a command, it acts like `error`.
    Unavailable,
}

impl Action {
    fn of(word: Option<&str>) -> Option<Self> {
        Some(match word? {
            "pass" => Self::Pass,
            "error" => Self::Error,
            "lost" => Self::Lost,
            "delay" => Self::Delay,
            "abort" => Self::Abort,
            "unavailable" => Self::Unavailable,
            _ => return None,
        })
    }
}

/// The error that a fail point returns.
enum Fault {
    Io(io::ErrorKind),
    Unavailable,
}

impl From<Fault> for RedisError {
    fn from(fault: Fault) -> Self {
        let kind = match fault {
            Fault::Io(kind) => kind,
            Fault::Unavailable => io::ErrorKind::ConnectionRefused,
        };
        io::Error::new(kind, "fail point").into()
    }
}

async fn reach(point: &'static str) -> Result<(), Fault> {
    let Some(word) = fail::eval(point, |word| word) else {
        return Ok(());
    };
    let Some(action) = Action::of(word.as_deref()) else {
        warn!(point, ?word, "fail point: not an action");
        return Ok(());
    };
    warn!(point, ?action, "fail point");
    match action {
        Action::Pass => Ok(()),
        Action::Error => Err(Fault::Io(io::ErrorKind::ConnectionReset)),
        Action::Lost => {
            tokio::time::sleep(LOST).await;
            Err(Fault::Io(io::ErrorKind::TimedOut))
        }
        Action::Delay => {
            tokio::time::sleep(DELAY).await;
            Ok(())
        }
        Action::Abort => std::process::abort(),
        Action::Unavailable => Err(Fault::Unavailable),
    }
}

/// Puts a call between two fail points: see the macro `around`.
pub(crate) async fn at<T, E: From<RedisError>>(
    [before, after]: [&'static str; 2],
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    reach(before).await.map_err(RedisError::from)?;
    let reply = call.await;
    reach(after).await.map_err(RedisError::from)?;
    reply
}

/// Puts a delivery between two fail points: see the macro `delivery`.
pub(crate) async fn at_delivery<T>(
    call: impl Future<Output = T>,
    failed: impl Fn(String, bool) -> T,
) -> T {
    let stopped = |fault| match fault {
        Fault::Io(kind) => failed(format!("fail point: {kind}"), false),
        Fault::Unavailable => failed("fail point".to_owned(), true),
    };
    if let Err(fault) = reach("deliver.before").await {
        return stopped(fault);
    }
    let delivered = call.await;
    match reach("deliver.after").await {
        Ok(()) => delivered,
        Err(fault) => stopped(fault),
    }
}

/// Returns the text of a script from its file in `SERIATIM_LUA_DIR`. If the variable or the
/// file is absent, returns the compiled text.
pub(crate) fn lua(file: &str, compiled: &'static str) -> Cow<'static, str> {
    let there =
        std::env::var_os("SERIATIM_LUA_DIR").map(|dir| std::path::Path::new(&dir).join(file));
    match there.and_then(|path| std::fs::read_to_string(path).ok()) {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(compiled),
    }
}

/// Returns the variable `SERIATIM_SCRIPTS`: the default of the setting `Scripts`, for tests.
pub(crate) fn scripts() -> Option<String> {
    std::env::var("SERIATIM_SCRIPTS").ok()
}
