//! Options of every command: the Redis, the namespace, the logs.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::ValueEnum;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisError};
use seriatim::connection::url::connection_info;
use seriatim::control::Control;
use seriatim::keys::Keys;
use tracing_subscriber::EnvFilter;

use crate::console::exit::{Exit, Failure};
use crate::console::logs::{Fields, JsonLines};
use crate::console::told::told;

/// Maximum wait of a command for a connection, and for one reply.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// The address of Redis: host[:port], redis://[user:password@]host[:port][/db] or unix:///path
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS",
        default_value = "redis://127.0.0.1:6379",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) redis: String,
    /// Put all keys under {NAMESPACE:0}: so that several systems can share one Redis
    #[arg(long, global = true, env = "SERIATIM_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// The level of log lines on standard error: error, warn, info, debug, trace, or a tracing
    /// filter [default: info; bench: warn]
    #[arg(long, global = true, env = "SERIATIM_LOG", value_name = "FILTER", value_parser = filter)]
    pub(crate) log: Option<String>,
    /// The format of log lines and messages on standard error
    #[arg(long, global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Parses a filter of `tracing-subscriber`. A single word must be a level; `tracing-subscriber`
/// would accept it as the name of a module.
fn filter(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| word.is_empty() || LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let bare = text.split(',').map(str::trim).find(|part| !part.contains(['=', '[', ']', '{', '}']) && !is_level(part));
    if let Some(word) = bare {
        return Err(format!("{word:?} is not a level; write one of {}, or MODULE=LEVEL", LEVELS.join(", ")));
    }
    EnvFilter::try_new(text).map_err(|error| format!("{error}; write info, or MODULE=LEVEL,MODULE=LEVEL"))?;
    Ok(text.to_owned())
}

impl Global {
    /// Starts the logs. They go to standard error, because standard output is for results.
    pub(crate) fn init_logs(&self, default: &str) {
        let filter = EnvFilter::try_new(self.log.as_deref().unwrap_or(default)).unwrap_or_else(|_| EnvFilter::new(default));
        // A log line that cannot be written must not cause a panic.
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => logs.fmt_fields(Fields).with_ansi(std::io::stderr().is_terminal()).init(),
            LogFormat::Json => {
                crate::console::shown::tell_in_json();
                logs.json().with_writer(|| JsonLines).init();
            }
        }
    }

    /// Returns the keys of the namespace.
    pub(crate) fn keys(&self) -> anyhow::Result<Keys> {
        Keys::maybe_namespace(self.namespace.as_deref()).map_err(|error| Failure::with(Exit::Input, error))
    }

    /// Parses the Redis URL. Called before anything else begins.
    pub(crate) fn connection_info(&self) -> anyhow::Result<ConnectionInfo> {
        connection_info(&self.redis).map_err(|error| Failure::with(Exit::Input, format!("--redis: {error}")))
    }

    /// Returns one connection, for commands that read.
    pub(crate) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        self.connection_info()?;
        self.try_connect().await.map_err(|error| self.cannot_connect(&error))
    }

    /// Returns the handle for commands that read the system or act as an operator.
    pub(crate) async fn control(&self) -> anyhow::Result<Control> {
        let keys = self.keys()?;
        Ok(Control::new(self.connect().await?).with_keys(keys))
    }

    /// Does the same as `connect`, but returns the error of Redis.
    pub(crate) async fn try_connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let client = Client::open(connection_info(&self.redis).map_err(std::io::Error::other)?)?;
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Returns the error of a failed connection attempt.
    pub(crate) fn cannot_connect(&self, error: &RedisError) -> anyhow::Error {
        let address = self.connection_info().map_or_else(|_| "?".to_owned(), |info| info.addr().to_string());
        Failure::with(Exit::Redis, format!("cannot connect to Redis at {address}: {}", told(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_modules_with_levels() {
        for good in ["info", "WARN", "seriatim=debug", "info,redis=off", "", "[span{a=1}]=trace"] {
            assert_eq!(filter(good).as_deref(), Ok(good));
        }
        for bad in ["verbose", "info,verbose", "foo=bar=baz", "seriatim=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
