//! Options of every command: the Redis, the namespace, the logs.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use redis::{AsyncConnectionConfig, RedisError};
use seriatim::Server;
use seriatim::connection::url::{UrlError, host_and_port};
use seriatim::connection::{PatientConnection, Route, RouteError};
use seriatim::control::Control;
use seriatim::keys::Keys;
use tracing_subscriber::EnvFilter;

use crate::describe::describe;
use crate::exit::{Exit, Failure};
use crate::logs::{Fields, JsonLines};

/// Maximum wait of a command for a connection, and for one reply.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Read flags from this TOML file. Options of every command are at its top, and the flags of
    /// one command are in a table, e.g. [worker]. A flag on the command line or an environment
    /// variable has priority over the file
    #[arg(long, global = true, env = "SERIATIM_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address of Redis: host[:port], redis://[user:password@]host[:port][/db], rediss://… for
    /// TLS, unix:///path, or redis-sentinel://host[:port],host[:port]/SERVICE for the master that
    /// these Sentinels name
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS",
        default_value = "redis://127.0.0.1:6379",
        value_name = "URL",
        hide_env_values = true
    )]
    pub redis: String,
    /// Read the password from this file at each connection to Redis, so that the password can
    /// change
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS_PASSWORD_FILE",
        value_name = "FILE"
    )]
    pub redis_password_file: Option<PathBuf>,
    /// Accept certificates from the authorities in this PEM file [default: those of the system]
    #[arg(long, global = true, env = "SERIATIM_REDIS_CA", value_name = "FILE")]
    pub redis_ca: Option<PathBuf>,
    /// Send the client certificate in this PEM file to the server
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS_CERT",
        value_name = "FILE",
        requires = "redis_key"
    )]
    pub redis_cert: Option<PathBuf>,
    /// The PEM file with the private key for --redis-cert
    #[arg(
        long,
        global = true,
        env = "SERIATIM_REDIS_KEY",
        value_name = "FILE",
        requires = "redis_cert"
    )]
    pub redis_key: Option<PathBuf>,
    /// The user for the Sentinels; the user and the password in --redis are for the master
    #[arg(
        long,
        global = true,
        env = "SERIATIM_SENTINEL_USER",
        value_name = "USER"
    )]
    pub sentinel_user: Option<String>,
    /// Read the password for the Sentinels from this file
    #[arg(
        long,
        global = true,
        env = "SERIATIM_SENTINEL_PASSWORD_FILE",
        value_name = "FILE"
    )]
    pub sentinel_password_file: Option<PathBuf>,
    /// Connect to REACHABLE if the Sentinels announce ANNOUNCED, both HOST:PORT; may be given more
    /// than once, for servers with another address from here (NAT, containers). The environment
    /// variable has a list with commas
    #[arg(
        long,
        global = true,
        env = "SERIATIM_SENTINEL_MAP",
        value_name = "ANNOUNCED=REACHABLE",
        value_delimiter = ',',
        value_parser = sentinel_map
    )]
    pub sentinel_map: Vec<(String, String)>,
    /// Put all keys under {NAMESPACE:0}: so that several systems can share one Redis
    #[arg(long, global = true, env = "SERIATIM_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// The level of log lines on standard error: error, warn, info, debug, trace, or a tracing
    /// filter [default: info; bench and demo: warn]
    #[arg(long, global = true, env = "SERIATIM_LOG", value_name = "FILTER", value_parser = filter)]
    pub log: Option<String>,
    /// The format of log lines and messages on standard error
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Parses ANNOUNCED=REACHABLE.
fn sentinel_map(text: &str) -> Result<(String, String), String> {
    let (announced, reachable) = text
        .split_once('=')
        .ok_or("write ANNOUNCED=REACHABLE, e.g. 10.0.0.1:6379=redis.example:16379")?;
    for address in [announced, reachable] {
        host_and_port(address)?;
    }
    Ok((announced.to_owned(), reachable.to_owned()))
}

/// Parses a filter of `tracing-subscriber`. A part that is a single word must be a level:
/// `tracing-subscriber` would accept any other word as the name of a module.
fn filter(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level =
        |word: &str| word.is_empty() || LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let bare = text
        .split(',')
        .map(str::trim)
        .find(|part| !part.contains(['=', '[', ']', '{', '}']) && !is_level(part));
    if let Some(word) = bare {
        return Err(format!(
            "{word:?} is not a level; write one of {}, or MODULE=LEVEL",
            LEVELS.join(", ")
        ));
    }
    EnvFilter::try_new(text)
        .map_err(|error| format!("{error}; write info, or MODULE=LEVEL,MODULE=LEVEL"))?;
    Ok(text.to_owned())
}

impl Global {
    /// Starts the logs. They go to standard error, because standard output is for results.
    pub fn init_logs(&self, default: &str) {
        let filter = EnvFilter::try_new(self.log.as_deref().unwrap_or(default))
            .unwrap_or_else(|_| EnvFilter::new(default));
        // A log line that cannot be written must not cause a panic.
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => logs
                .fmt_fields(Fields)
                .with_ansi(std::io::stderr().is_terminal())
                .init(),
            LogFormat::Json => {
                crate::shown::tell_in_json();
                logs.json().with_writer(|| JsonLines).init();
            }
        }
    }

    /// Returns the keys of the namespace.
    pub fn keys(&self) -> anyhow::Result<Keys> {
        Keys::maybe_namespace(self.namespace.as_deref())
            .map_err(|error| Failure::with(Exit::Input, error))
    }

    /// Returns the server that the options name.
    pub fn server(&self) -> Server {
        let mut server = Server::new(&self.redis);
        if let Some(path) = &self.redis_password_file {
            server = server.password_file(path);
        }
        if let Some(path) = &self.redis_ca {
            server = server.ca_file(path);
        }
        if let (Some(certificate), Some(key)) = (&self.redis_cert, &self.redis_key) {
            server = server.identity_files(certificate, key);
        }
        for (announced, reachable) in &self.sentinel_map {
            server = server.sentinel_map(announced, reachable);
        }
        if let Some(user) = &self.sentinel_user {
            server = server.sentinel_user(user);
        }
        match &self.sentinel_password_file {
            Some(path) => server.sentinel_password_file(path),
            None => server,
        }
    }

    /// Checks the options of the connection, and returns them. Call this before anything else
    /// begins, so that wrong options are reported first.
    pub fn route(&self) -> anyhow::Result<Route> {
        Route::new(&self.server(), PATIENCE).map_err(|error| {
            let text = match error {
                RouteError::Url(reason) => format!("--redis: {}", UrlError { reason }),
                RouteError::Tls(reason) => format!("TLS to Redis is not possible: {reason}"),
                RouteError::Sentinels(reason) => format!("--sentinel-map: {reason}"),
            };
            Failure::with(Exit::Input, text)
        })
    }

    /// Opens one connection to Redis, for commands that read.
    pub async fn connect(&self) -> anyhow::Result<PatientConnection> {
        let route = self.route()?;
        open(&route)
            .await
            .map_err(|error| cannot_connect(&route, &error))
    }

    /// Connects to Redis. Returns the handle for commands that read the state or act as an
    /// operator.
    pub async fn control(&self) -> anyhow::Result<Control> {
        let keys = self.keys()?;
        Ok(Control::new(self.connect().await?).with_keys(keys))
    }
}

/// Opens a connection for commands that read.
pub async fn open(route: &Route) -> Result<PatientConnection, RedisError> {
    route
        .open_to_read(AsyncConnectionConfig::new(), PATIENCE, PATIENCE)
        .await
}

/// Returns the error of a failed connection attempt.
pub fn cannot_connect(route: &Route, error: &RedisError) -> anyhow::Error {
    Failure::with(
        Exit::Redis,
        format!(
            "cannot connect to Redis at {}: {}",
            route.address(),
            describe(error)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_modules_with_levels() {
        for good in [
            "info",
            "WARN",
            "seriatim=debug",
            "info,redis=off",
            "",
            "[span{a=1}]=trace",
        ] {
            assert_eq!(filter(good).as_deref(), Ok(good));
        }
        for bad in ["verbose", "info,verbose", "foo=bar=baz", "seriatim=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
