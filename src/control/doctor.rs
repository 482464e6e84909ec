//! Examines whether a Redis server is fit for seriatim: its version, settings, replicas and clock,
//! and the rights of the user.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::RedisError;
use serde::Serialize;

use super::server::{self, Info};
use super::{Control, ControlError, cron};
use crate::connection::errors::describe;
use crate::wire::{self, ADVANCE, LIBRARIES, Rights, ScriptError};

/// Largest difference between the clock of Redis and the clock of this process that gives no
/// warning.
const CLOCK_MAX: Duration = Duration::from_secs(1);
/// Longest round trip that gives no warning.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(20);
/// Number of round trips measured.
const ROUND_TRIPS: usize = 5;

/// Largest number of libraries of other versions that are listed.
const OLD_MAX: usize = 20;

/// The result of one examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Subject of the examination, one or two words.
    pub what: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// Description of the finding. It includes advice if the verdict is not [`Verdict::Good`].
    pub text: String,
}

/// The verdict on one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The subject is as it should be.
    Good,
    /// The subject works, but another setting is advised.
    Warning,
    /// The subject breaks a guarantee, or does not work.
    Wrong,
    /// The subject could not be examined.
    Unknown,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self {
            what,
            verdict,
            text: text.into(),
        }
    }
}

impl Control {
    /// Examines the server and the rights of the user. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Redis`] if the connection fails.
    pub async fn examine(&self) -> Result<Vec<Finding>, ControlError> {
        let mut findings = Vec::new();
        let mut conn = self.connection();
        match server::read(&mut conn).await? {
            Some(info) => findings.extend(of_info(&info)),
            None => findings.push(Finding::new(
                "settings",
                Verdict::Unknown,
                server::INFO_DENIED,
            )),
        }
        let rights = wire::rights(&mut conn, &self.keys).await;
        let may_call = matches!(rights, Ok(Rights::All { functions: true }));
        findings.push(match rights {
            Ok(Rights::All { .. }) => Finding::new(
                "rights",
                Verdict::Good,
                "the user has all rights of a worker",
            ),
            Ok(Rights::Lacks(command)) => Finding::new(
                "rights",
                Verdict::Wrong,
                format!(
                    "a worker needs {command}: docs/protocol.md, \"Permissions\", lists all rights"
                ),
            ),
            Err(ScriptError::Redis(error)) if error.code().is_none() => {
                return Err(ControlError::redis("a script")(error));
            }
            Err(error) => Finding::new(
                "rights",
                Verdict::Wrong,
                format!("no script can run: {error}"),
            ),
        });
        findings.extend(self.functions(may_call).await?);
        findings.push(self.transactions().await?);
        findings.push(self.blocking().await?);
        findings.extend(self.namespace().await?);
        let mut trips = Vec::new();
        let mut clock = None;
        for _ in 0..ROUND_TRIPS {
            let began = (Instant::now(), SystemTime::now());
            let time: Result<(u64, u64), RedisError> =
                redis::cmd("TIME").query_async(&mut conn).await;
            match time {
                Ok((seconds, us)) => {
                    clock = Some(offset(
                        Duration::new(seconds, us as u32 * 1000),
                        began.1,
                        began.0.elapsed(),
                    ))
                }
                Err(error) if error.code().is_some() => {
                    findings.push(Finding::new("clock", Verdict::Unknown, describe(&error)));
                    break;
                }
                Err(error) => return Err(ControlError::redis("TIME")(error)),
            }
            trips.push(began.0.elapsed());
        }
        findings.extend(clock.map(of_clock));
        findings.extend(self.of_cron().await?);
        trips.sort_unstable();
        findings.extend(trips.get(trips.len() / 2).map(|trip| of_round_trip(*trip)));
        Ok(findings)
    }
}

impl Control {
    /// Returns a finding if cron jobs do not fire because Redis' clock was ahead.
    async fn of_cron(&self) -> Result<Option<Finding>, ControlError> {
        let now_ms = self.now_ms().await?;
        match cron::ahead(&mut self.connection(), &self.keys, now_ms).await {
            Ok(Some(0) | None) => Ok(None),
            Ok(Some(jobs)) => Ok(Some(Finding::new(
                "cron",
                Verdict::Wrong,
                format!(
                    "{jobs} cron jobs do not fire, because Redis' clock was ahead: `seriatim cron list` names them; run \
                     `seriatim cron pause` and `seriatim cron resume` for each"
                ),
            ))),
            Err(error) if error.code().is_some() => Ok(Some(Finding::new(
                "cron",
                Verdict::Unknown,
                describe(&error),
            ))),
            Err(error) => Err(ControlError::redis("events.cron.last")(error)),
        }
    }

    /// Examines in which way a worker would run the script that commits and claims. Lists the
    /// libraries of other versions, which nobody else deletes.
    async fn functions(&self, may_call: bool) -> Result<Vec<Finding>, ControlError> {
        const WHAT: &str = "functions";
        if !may_call {
            let text = "workers run scripts: the user may not use FCALL; docs/protocol.md, \"Permissions\", says who may have this right";
            return Ok(vec![Finding::new(WHAT, Verdict::Good, text)]);
        }
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST")
            .arg("LIBRARYNAME")
            .arg(format!("{LIBRARIES}*"));
        let listed: Result<Vec<HashMap<String, redis::Value>>, RedisError> =
            list.query_async(&mut self.connection()).await;
        let names: Vec<String> = match listed {
            Err(error) if error.code().is_none() => {
                return Err(ControlError::redis("FUNCTION LIST")(error));
            }
            Err(error) => {
                let text = format!(
                    "workers try a function first; old libraries are unknown: {}",
                    describe(&error)
                );
                return Ok(vec![Finding::new(WHAT, Verdict::Unknown, text)]);
            }
            Ok(listed) => listed
                .into_iter()
                .filter_map(|library| {
                    redis::from_redis_value(library.get("library_name")?.clone()).ok()
                })
                .collect(),
        };
        let ours = ADVANCE.name();
        let state = if names.iter().any(|name| name == ours) {
            "loaded"
        } else {
            "not loaded; the first worker loads it if it can"
        };
        let text = format!("workers run functions: the library {ours} is {state}");
        let others = names.iter().filter(|name| *name != ours).take(OLD_MAX);
        let others = others.map(|name| {
            let name = crate::escape::name(name.as_bytes());
            let text = format!(
                "the library {name} is of another version: if no worker of that version runs, delete it: FUNCTION DELETE {name}"
            );
            Finding::new(WHAT, Verdict::Warning, text)
        });
        Ok([Finding::new(WHAT, Verdict::Good, text)]
            .into_iter()
            .chain(others)
            .collect())
    }

    /// Examines whether transactions work. Each emit is a transaction.
    async fn transactions(&self) -> Result<Finding, ControlError> {
        let mut pipe = redis::pipe();
        pipe.cmd("MULTI").cmd("EXEC").ignore_errors();
        let answers: Vec<Result<redis::Value, RedisError>> = pipe
            .query_async(&mut self.connection())
            .await
            .map_err(ControlError::redis("MULTI"))?;
        let error = answers.into_iter().find_map(Result::err);
        Ok(of_command(
            "transactions",
            "emits are transactions, and MULTI and EXEC work",
            "MULTI",
            "emitters",
            error.as_ref(),
        ))
    }

    /// Examines whether commands that block work. Workers wait with them. The command waits 10 ms for
    /// a key that never exists, so it changes nothing.
    async fn blocking(&self) -> Result<Finding, ControlError> {
        let absent = [self.keys.prefix(), "seriatim.doctor"].concat();
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(&absent)
            .arg(&absent)
            .arg("RIGHT")
            .arg("LEFT")
            .arg("0.01");
        let waited: Result<redis::Value, RedisError> =
            wait.query_async(&mut self.connection()).await;
        let text = "workers wait with commands that block, and these work";
        match waited {
            Err(error) if error.code().is_none() => Err(ControlError::redis("BLMOVE")(error)),
            waited => Ok(of_command(
                "waits",
                text,
                "BLMOVE",
                "workers",
                waited.err().as_ref(),
            )),
        }
    }

    /// Examines whether the database has keys of other programs, if there is no namespace.
    async fn namespace(&self) -> Result<Option<Finding>, ControlError> {
        if !self.keys.prefix().is_empty() {
            return Ok(None);
        }
        match wire::foreign_key(&mut self.connection(), &self.keys).await {
            Ok(None) => Ok(None),
            Ok(Some(found)) => {
                let key = crate::escape::name(&found.key).into_owned();
                let text = format!(
                    "other programs have keys here ({key}), and there is no namespace: a list NAME:events of theirs is delivered as \
                     events once there is an emit for NAME; use --namespace, or a database of its own"
                );
                Ok(Some(Finding::new("namespace", Verdict::Warning, text)))
            }
            Err(error) if error.code().is_none() => Err(ControlError::redis("SCAN")(error)),
            Err(_) => Ok(Some(Finding::new(
                "namespace",
                Verdict::Unknown,
                "none, and SCAN is not allowed, so nothing tells of other keys",
            ))),
        }
    }
}

/// Returns the finding about a command that one kind of program needs.
fn of_command(
    what: &'static str,
    good: &str,
    command: &str,
    needed_by: &str,
    error: Option<&RedisError>,
) -> Finding {
    match error {
        None => Finding::new(what, Verdict::Good, good),
        Some(error) if error.code() == Some("NOPERM") => {
            let text = format!(
                "this user may not use {command}; that is right if {needed_by} use another user"
            );
            Finding::new(what, Verdict::Unknown, text)
        }
        Some(error) => {
            let text = format!(
                "{needed_by} need {command}, which fails: {}; a proxy in between may not know it",
                describe(error)
            );
            Finding::new(what, Verdict::Wrong, text)
        }
    }
}

/// Returns the difference between the clock of Redis and the clock of this process. The time of
/// Redis is compared with the middle of the round trip that read it.
fn offset(redis: Duration, began: SystemTime, took: Duration) -> Duration {
    let here = began.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    redis.abs_diff(here)
}

fn of_clock(offset: Duration) -> Finding {
    let text = format!("differs by {offset:.1?} from the one here");
    match offset <= CLOCK_MAX {
        true => Finding::new("clock", Verdict::Good, text),
        false => Finding::new(
            "clock",
            Verdict::Warning,
            format!("{text}: set both by NTP; due times are those of Redis"),
        ),
    }
}

fn of_round_trip(trip: Duration) -> Finding {
    match trip <= ROUND_TRIP_MAX {
        true => Finding::new("round trip", Verdict::Good, format!("{trip:.1?}")),
        false => Finding::new(
            "round trip",
            Verdict::Warning,
            format!("{trip:.1?}: put the process nearer to Redis; an event takes two"),
        ),
    }
}

/// Returns the findings about the settings of the server.
fn of_info(info: &Info) -> Vec<Finding> {
    let mut findings = Vec::new();
    let product = info.field("server_name").unwrap_or("redis");
    let version = info
        .field("valkey_version")
        .or(info.field("redis_version"))
        .unwrap_or("of an unknown version");
    findings.push(match (info.too_old(), info.unknown_version()) {
        (Some(old), _) => Finding::new("version", Verdict::Wrong, old),
        (None, Some(unknown)) => Finding::new("version", Verdict::Unknown, unknown),
        (None, None) => Finding::new("version", Verdict::Good, format!("{product} {version}")),
    });
    findings.push(match info.field("role") {
        Some("slave") => {
            let address = info.field("master_host").zip(info.field("master_port"));
            let master = address.map_or_else(
                || "its master".to_owned(),
                |(host, port)| format!("its master, {host}:{port}"),
            );
            Finding::new(
                "role",
                Verdict::Wrong,
                format!("this is a replica: use the URL of {master}"),
            )
        }
        Some("master") => Finding::new("role", Verdict::Good, "master"),
        other => {
            let text = format!(
                "INFO says {}: check that this is the master",
                other.unwrap_or("nothing of the role")
            );
            Finding::new("role", Verdict::Unknown, text)
        }
    });
    if info.field("cluster_enabled") == Some("1") {
        let text = "this is a Redis Cluster: use --namespace, and the URL of the node that owns it; a failover needs a new URL";
        findings.push(Finding::new("cluster", Verdict::Warning, text));
    }
    findings.push(match (info.evicts(), info.policy()) {
        (Some(text), _) => Finding::new("memory", Verdict::Wrong, text),
        (None, Some(policy)) => Finding::new(
            "memory",
            Verdict::Good,
            format!("maxmemory-policy {policy}"),
        ),
        (None, None) => Finding::new(
            "memory",
            Verdict::Unknown,
            info.unknown_policy().unwrap_or_default(),
        ),
    });
    let unknown = info.unknown_persistence();
    findings.push(match info.forgets() {
        Some(text) => Finding::new("persistence", Verdict::Wrong, text),
        None if unknown.is_some() => {
            Finding::new("persistence", Verdict::Unknown, unknown.unwrap_or_default())
        }
        None if info.field("aof_enabled") == Some("1") => {
            Finding::new("persistence", Verdict::Good, "append-only file")
        }
        None => Finding::new(
            "persistence",
            Verdict::Warning,
            "snapshots only: a crash loses minutes; run CONFIG SET appendonly yes",
        ),
    });
    if let Some(error) = info.failed_to_write() {
        findings.push(Finding::new("disk", Verdict::Wrong, error));
    }
    let replicas = info.number("connected_slaves").unwrap_or_default();
    findings.push(
        match info
            .lacks_replicas()
            .map(|text| (Verdict::Wrong, text))
            .or(info.late_replica().map(|text| (Verdict::Warning, text)))
            .or(info.accepts_alone().map(|text| (Verdict::Warning, text)))
            .or(info.unknown_replicas().map(|text| (Verdict::Unknown, text)))
        {
            Some((verdict, text)) => Finding::new("replicas", verdict, text),
            None if replicas == 0 => Finding::new(
                "replicas",
                Verdict::Warning,
                "no replicas: the loss of this machine loses all queued events; see docs/failover.md",
            ),
            None => Finding::new("replicas", Verdict::Good, format!("{replicas} attached")),
        },
    );
    findings
}
