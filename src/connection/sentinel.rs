//! Sentinels: they know which server is the master of a service.
//!
//! A single Sentinel may be cut off from the others and still name a master that was replaced. So a
//! majority of the Sentinels in the URL must name the same address.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult};
use tokio::time::timeout;

use super::PatientConnection;
use super::errors::describe;
use super::url::host_and_port;

/// Longest wait for the reply of one Sentinel, including the time to connect.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The Sentinels of a service.
#[derive(Debug, Clone)]
pub(super) struct Sentinels {
    /// Host and port of each Sentinel.
    pub(super) hosts: Vec<(String, u16)>,
    /// The name under which the Sentinels know the master.
    pub(super) service: String,
}

/// Address of the master that the Sentinels name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Master {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&address(&self.host, self.port))
    }
}

/// Reads the map of announced addresses to reachable addresses.
///
/// # Errors
/// The reason, for people.
pub(super) fn map(pairs: &[(String, String)]) -> Result<HashMap<Master, Master>, String> {
    let read = |text: &str| host_and_port(text).map(|(host, port)| Master { host, port });
    let mut map = HashMap::new();
    for (announced, reachable) in pairs {
        if map.insert(read(announced)?, read(reachable)?).is_some() {
            return Err(format!(
                "{announced} has two reachable addresses; map it once"
            ));
        }
    }
    Ok(map)
}

/// The reply of one Sentinel.
enum SentinelReply {
    /// The configuration epoch of the service, which grows with each failover, and the master.
    Master(u64, Master),
    /// The Sentinel does not know the service.
    Unknown(String),
    Failed(String),
}

impl Sentinels {
    /// Returns the master that a majority of the Sentinels names, and the highest epoch in the
    /// answers of this majority. `connect` opens a connection to one Sentinel.
    pub(super) async fn master<C, F>(&self, connect: C) -> RedisResult<(u64, Master)>
    where
        C: Fn(String, u16) -> F,
        F: Future<Output = RedisResult<PatientConnection>>,
    {
        let mut asked: FuturesUnordered<_> = self
            .hosts
            .iter()
            .map(|(host, port)| {
                let opened = connect(host.clone(), *port);
                async move {
                    let answer = timeout(PATIENCE, self.ask(opened))
                        .await
                        .unwrap_or_else(|_| {
                            SentinelReply::Failed("no reply within 1 s".to_owned())
                        });
                    (address(host, *port), answer)
                }
            })
            .collect();
        let mut named: HashMap<Master, (usize, u64)> = HashMap::new();
        let (mut unknown, mut failed) = (Vec::new(), Vec::new());
        while let Some((sentinel, answer)) = asked.next().await {
            match answer {
                SentinelReply::Master(epoch, master) => {
                    let (count, highest) = named.entry(master.clone()).or_default();
                    (*count, *highest) = (*count + 1, epoch.max(*highest));
                    if *count > self.hosts.len() / 2 {
                        return Ok((*highest, master));
                    }
                }
                SentinelReply::Unknown(known) => unknown.push(format!("{sentinel} knows {known}")),
                SentinelReply::Failed(error) => failed.push(format!("{sentinel}: {error}")),
            }
        }
        Err(self.no_majority(&named, &unknown, &failed))
    }

    async fn ask(
        &self,
        opened: impl Future<Output = RedisResult<PatientConnection>>,
    ) -> SentinelReply {
        let failed = |error: &RedisError| {
            let text = describe(error);
            let is_login = ["NOAUTH", "WRONGPASS", "AuthenticationFailed"]
                .iter()
                .any(|word| text.contains(word));
            SentinelReply::Failed(
                text + if is_login {
                    " (--sentinel-user and --sentinel-password-file are for the Sentinels)"
                } else {
                    ""
                },
            )
        };
        let mut conn = match opened.await {
            Ok(conn) => conn,
            Err(error) => return failed(&error),
        };
        // The epoch is asked for before the address. If a failover ends between the two replies,
        // the new address comes with the old epoch, which is too low. In the reverse order, the old
        // address would come with the new epoch.
        let mut about = redis::cmd("SENTINEL");
        about.arg("MASTER").arg(&self.service);
        let about: RedisResult<HashMap<String, String>> = about.query_async(&mut conn).await;
        let epoch = match about {
            Ok(about) => match about
                .get("config-epoch")
                .and_then(|epoch| epoch.parse().ok())
            {
                Some(epoch) => epoch,
                None => return SentinelReply::Failed("its reply has no config-epoch".to_owned()),
            },
            Err(error) if error.to_string().contains("No such master") => {
                return SentinelReply::Unknown(services(&mut conn).await);
            }
            Err(error) if error.to_string().contains("unknown command") => {
                return SentinelReply::Failed(
                    "this is no Sentinel; its default port is 26379".to_owned(),
                );
            }
            Err(error) => return failed(&error),
        };
        let mut address = redis::cmd("SENTINEL");
        address.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let address: RedisResult<Option<(String, u16)>> = address.query_async(&mut conn).await;
        match address {
            Ok(Some((host, port))) => SentinelReply::Master(epoch, Master { host, port }),
            Ok(None) => SentinelReply::Unknown(services(&mut conn).await),
            Err(error) => failed(&error),
        }
    }

    fn no_majority(
        &self,
        named: &HashMap<Master, (usize, u64)>,
        unknown: &[String],
        failed: &[String],
    ) -> RedisError {
        let (of, service) = (self.hosts.len(), &self.service);
        let others = |names: &[String]| {
            names
                .iter()
                .map(|text| format!("; {text}"))
                .collect::<String>()
        };
        let (kind, text) = if unknown.len() > of / 2 {
            (
                io::ErrorKind::InvalidInput,
                format!("the Sentinels know no service {service}{}", others(unknown)),
            )
        } else if named.len() > 1 {
            (
                io::ErrorKind::NotConnected,
                format!(
                    "the Sentinels do not agree on the master of {service}: a failover may be under way"
                ),
            )
        } else {
            let replied = of - failed.len();
            let why =
                format!("no majority of the Sentinels of {service} replied ({replied} of {of})");
            (
                io::ErrorKind::NotConnected,
                format!("{why}{}{}", others(failed), others(unknown)),
            )
        };
        io::Error::new(kind, text).into()
    }
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub(super) fn address(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Returns the names of the services that a Sentinel knows, or `no service`.
pub(super) async fn services(conn: &mut impl ConnectionLike) -> String {
    let mut masters = redis::cmd("SENTINEL");
    masters.arg("MASTERS");
    let masters: RedisResult<Vec<HashMap<String, String>>> = masters.query_async(conn).await;
    let mut names: Vec<_> = masters
        .unwrap_or_default()
        .into_iter()
        .filter_map(|mut master| master.remove("name"))
        .collect();
    names.sort_unstable();
    names.truncate(10);
    if names.is_empty() {
        "no service".to_owned()
    } else {
        names.join(", ")
    }
}
