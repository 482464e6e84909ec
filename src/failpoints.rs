//! Fail points: before and after every command that a worker sends to Redis, and before and after
//! every delivery to the sink.
//!
//! Only the feature `failpoints` compiles fail points in, and no release has that feature. Without
//! it, `no_failpoints` has macros that expand to the bare calls. The variable `FAILPOINTS` has the
//! faults of the process, separated by commas. Each has the form `POINT=ACTION[@N]`: the point is
//! passed N times before the action, and the action happens once. An example is
//! `FAILPOINTS='advance.after=abort@2'`. The points are `open info connect load attach renew adopt
//! promote advance handled detach pop wait deliver`, each with `.before` and `.after`. [`Action`]
//! lists the actions.
//!
//! With the feature `failpoints`, the variable `SERIATIM_LUA_DIR` names another directory for the
//! scripts. So `scripts/mutants` can try changed scripts without a new build. The variable
//! `SERIATIM_SCRIPTS` sets the default of the setting `Scripts`, so that all tests can run in one
//! way.

use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use redis::RedisError;
use tracing::warn;

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

/// Delay of a reply that counts as lost. It is longer than the response timeout of the tests.
const LOST: Duration = Duration::from_millis(400);
/// Length of the pause of the action `delay`. It is longer than a lease in the tests.
const DELAY: Duration = Duration::from_millis(600);
/// Time for which the action `block` blocks the thread. It is longer than the time after which a
/// process without signs of life is noticed in the tests.
const BLOCK: Duration = Duration::from_secs(6);

/// The faults that have not happened yet.
static FAULTS: LazyLock<Mutex<Vec<Fault>>> = LazyLock::new(|| {
    let faults = std::env::var("FAILPOINTS").unwrap_or_default();
    let faults = faults.split(',').filter(|text| !text.is_empty());
    let fault = |text| Fault::of(text).unwrap_or_else(|| panic!("FAILPOINTS: no fault: {text}"));
    Mutex::new(faults.map(fault).collect())
});

/// A fault of this process.
struct Fault {
    point: String,
    action: Action,
    /// Number of times that the point is passed before the action.
    passes: usize,
}

impl Fault {
    fn of(text: &str) -> Option<Self> {
        let (point, action) = text.split_once('=')?;
        let (action, passes) = action.split_once('@').unwrap_or((action, "0"));
        Some(Self {
            point: point.to_owned(),
            action: Action::of(action)?,
            passes: passes.parse().ok()?,
        })
    }
}

/// Returns the action that happens at this point now, if any.
fn action_at(point: &str) -> Option<Action> {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = faults.iter().position(|fault| fault.point == point)?;
    if faults[at].passes > 0 {
        faults[at].passes -= 1;
        return None;
    }
    Some(faults.remove(at).action)
}

/// The action of a fail point.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// `error`: the connection breaks. At a point before the call, the call does not run; at a
    /// point after it, the call has run.
    Error,
    /// `lost`: there is no reply, and later a timeout. At a point before the call, the request
    /// is lost; at a point after it, the reply is lost.
    Lost,
    /// `delay`: the process pauses until its lease has ended.
    Delay,
    /// `block`: the thread stands still.
    Block,
    /// `abort`: the process dies.
    Abort,
    /// `panic`: the call or the delivery panics.
    Panic,
    /// `unavailable`: the sink is unavailable. At a point of a command, it acts like `error`.
    Unavailable,
}

impl Action {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "error" => Self::Error,
            "lost" => Self::Lost,
            "delay" => Self::Delay,
            "block" => Self::Block,
            "abort" => Self::Abort,
            "panic" => Self::Panic,
            "unavailable" => Self::Unavailable,
            _ => return None,
        })
    }
}

/// The error that a fail point returns.
enum Failure {
    Io(io::ErrorKind),
    Unavailable,
}

impl From<Failure> for RedisError {
    fn from(failure: Failure) -> Self {
        let kind = match failure {
            Failure::Io(kind) => kind,
            Failure::Unavailable => io::ErrorKind::ConnectionRefused,
        };
        io::Error::new(kind, "fail point").into()
    }
}

async fn reach(point: &'static str) -> Result<(), Failure> {
    let Some(action) = action_at(point) else {
        return Ok(());
    };
    warn!(point, ?action, "fail point");
    match action {
        Action::Error => Err(Failure::Io(io::ErrorKind::ConnectionReset)),
        Action::Lost => {
            tokio::time::sleep(LOST).await;
            Err(Failure::Io(io::ErrorKind::TimedOut))
        }
        Action::Delay => {
            tokio::time::sleep(DELAY).await;
            Ok(())
        }
        Action::Block => {
            std::thread::sleep(BLOCK);
            Ok(())
        }
        Action::Abort => std::process::abort(),
        Action::Panic => panic!("fail point"),
        Action::Unavailable => Err(Failure::Unavailable),
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
    let stopped = |failure| match failure {
        Failure::Io(kind) => failed(format!("fail point: {kind}"), false),
        Failure::Unavailable => failed("fail point".to_owned(), true),
    };
    if let Err(failure) = reach("deliver.before").await {
        return stopped(failure);
    }
    let delivered = call.await;
    match reach("deliver.after").await {
        Ok(()) => delivered,
        Err(failure) => stopped(failure),
    }
}

/// Returns the text of a script from its file in `SERIATIM_LUA_DIR`. If the variable or the
/// file is absent, returns the compiled text. A text that was read is never freed.
pub(crate) fn lua(file: &str, compiled: &'static str) -> &'static str {
    let there =
        std::env::var_os("SERIATIM_LUA_DIR").map(|dir| std::path::Path::new(&dir).join(file));
    match there.and_then(|path| std::fs::read_to_string(path).ok()) {
        Some(text) => text.leak(),
        None => compiled,
    }
}

/// Returns the variable `SERIATIM_SCRIPTS`: the default of the setting `Scripts`, for tests.
pub(crate) fn scripts() -> Option<String> {
    std::env::var("SERIATIM_SCRIPTS").ok()
}
