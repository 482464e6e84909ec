//! Options that every command shares: which Redis, which namespace, how to log.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::ValueEnum;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo as _};
use seriatim::keys::Keys;
use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure};

/// How long a command of ours waits for a connection and for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Where Redis is: redis://[user:password@]host[:port][/db] or unix:///path
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS",
        default_value = "redis://127.0.0.1:6379",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) redis: String,
    /// Keep all keys under {NAMESPACE:0}: so that several systems can share one Redis
    #[arg(long, global = true, env = "SERIATIM_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// How much to log on standard error: error, warn, info, debug, trace, or a tracing filter
    #[arg(long, global = true, env = "SERIATIM_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
    /// How log lines are written
    #[arg(long, global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl Global {
    /// Logs go to standard error: standard output belongs to results.
    pub(crate) fn init_logs(&self) {
        let filter = EnvFilter::try_new(&self.log).unwrap_or_else(|_| EnvFilter::new("info"));
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).init(),
            LogFormat::Json => logs.json().init(),
        }
    }

    /// The keys of the namespace.
    pub(crate) fn keys(&self) -> anyhow::Result<Keys> {
        Keys::maybe_namespace(self.namespace.as_deref()).map_err(|error| Failure::with(Exit::Input, error))
    }

    /// The Redis URL without user and password, for messages.
    pub(crate) fn redis_shown(&self) -> String {
        match self.redis.as_str().into_connection_info() {
            Ok(info) => info.addr().to_string(),
            Err(_) => "the URL given".to_owned(),
        }
    }

    /// One connection, for commands that ask and answer.
    pub(crate) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = Client::open(self.redis.as_str()).map_err(|error| {
            // The error's own text may hold the URL, and with it the password.
            let kind = error.category().to_owned();
            Failure::with(
                Exit::Input,
                format!("--redis is not a Redis URL ({kind}); it looks like redis://host:6379 or unix:///path"),
            )
        })?;
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(|error| {
            let shown = self.redis_shown();
            Failure::with(
                Exit::Redis,
                format!("cannot connect to Redis at {shown}: {error}; is it running? --redis or SERIATIM_REDIS names another"),
            )
        })
    }
}
