//! Finds settings of Redis that break a guarantee, and says how to change them. It only reads the
//! settings.

use redis::RedisError;
use redis::aio::ConnectionLike;

use super::{Control, ControlError};
use crate::connection::errors::is_broken;

/// The oldest supported version of Redis.
const VERSION_MIN: (u32, u32) = (7, 0);
/// Longest silence of a replica that gives no warning, in seconds. A replica reports to its master
/// once a second.
const LAG_SECONDS_MAX: u64 = 5;
/// Largest number of bytes by which a replica may be behind its master without a warning.
const BEHIND_BYTES_MAX: u64 = 16 << 20;
/// Used if the save points cannot be read: if Redis has had unsaved writes for this long, it has no
/// save points.
const UNSAVED_SECONDS: u64 = 2 * 60 * 60;

impl Control {
    /// Returns warnings about the server, one sentence each: a `maxmemory-policy` that evicts keys,
    /// no persistence, a version older than 7.0, replicas without `min-replicas-to-write`. If the
    /// server does not tell one of these settings, as some managed servers do, or if the user may not
    /// use `INFO`, a warning says that the setting is unknown.
    ///
    /// If the append-only file is off, reads the save points with `CONFIG GET save`. A user without
    /// the right to this command gets the warning about persistence only if the server has had no
    /// snapshot for two hours. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Redis`] if the connection fails.
    pub async fn warnings(&self) -> Result<Vec<String>, ControlError> {
        Ok(read(&mut self.connection())
            .await?
            .map_or_else(|| vec![INFO_DENIED.to_owned()], |info| info.warnings()))
    }

    /// Returns the [`warnings`](Self::warnings). If they cannot be read, a warning says so.
    pub async fn known_warnings(&self) -> Vec<String> {
        self.warnings()
            .await
            .unwrap_or_else(|error| vec![format!("the settings of Redis are unknown: {error}")])
    }
}

/// The warning for a user who may not use `INFO`.
pub(super) const INFO_DENIED: &str =
    "the settings of Redis are unknown: INFO is not allowed; grant +info";

/// The settings of a server. Managed servers leave out some fields of `INFO`, and often have no
/// `CONFIG`. A setting that is absent is unknown, and never counts as good.
pub(super) struct Info {
    text: String,
    /// The value of `maxmemory-policy`; none if the server does not tell it.
    policy: Option<String>,
    /// The save points; none if they were not needed, or if the user may not read them.
    saves: Option<String>,
    /// The value of `min-replicas-to-write`; none if it is 0, or if the user may not read it.
    min_replicas: Option<u64>,
}

/// Reads the settings. Returns `None` if the user may not use `INFO`.
pub(super) async fn read(conn: &mut impl ConnectionLike) -> Result<Option<Info>, ControlError> {
    let text: Result<String, RedisError> = redis::cmd("INFO").query_async(conn).await;
    let text = match text {
        Ok(text) => text,
        // Without a password the user may use no command at all, and the connection says so.
        Err(error) if error.code().is_some_and(|code| code != "NOAUTH") => return Ok(None),
        Err(error) => return Err(ControlError::redis("INFO")(error)),
    };
    let mut info = Info {
        text,
        policy: None,
        saves: None,
        min_replicas: None,
    };
    info.policy = match info.field("maxmemory_policy") {
        Some(policy) => Some(policy.to_owned()),
        None => setting(conn, "maxmemory-policy")
            .await?
            .filter(|policy| !policy.is_empty()),
    };
    if info.field("aof_enabled") == Some("0") {
        info.saves = setting(conn, "save").await?;
    }
    if info.field("min_slaves_good_slaves").is_some() {
        info.min_replicas = setting(conn, "min-replicas-to-write")
            .await?
            .and_then(|replicas| replicas.parse().ok());
    }
    Ok(Some(info))
}

/// Reads one setting with `CONFIG GET`. Returns `None` if the server does not tell it: the user may
/// not use the command, or the server does not have it.
async fn setting(
    conn: &mut impl ConnectionLike,
    name: &str,
) -> Result<Option<String>, ControlError> {
    let pair: Result<Vec<String>, RedisError> = redis::cmd("CONFIG")
        .arg(&["GET", name])
        .query_async(conn)
        .await;
    match pair {
        Ok(pair) => Ok(pair.into_iter().nth(1)),
        Err(error) if is_broken(&error) || error.is_timeout() => {
            Err(ControlError::redis("CONFIG GET")(error))
        }
        Err(_) => Ok(None),
    }
}

impl Info {
    fn warnings(&self) -> Vec<String> {
        let known = [
            self.too_old(),
            self.evicts(),
            self.forgets(),
            self.accepts_alone(),
        ];
        let unknown = [
            self.unknown_version(),
            self.unknown_policy(),
            self.unknown_persistence(),
        ];
        known.into_iter().chain(unknown).flatten().collect()
    }

    /// Returns a warning if the server does not tell its version.
    pub(super) fn unknown_version(&self) -> Option<String> {
        let version = self.field("redis_version").and_then(version);
        version.is_none().then(|| {
            unknown(
                "the version",
                "redis_version of INFO",
                "it must be at least 7.0, or Valkey",
            )
        })
    }

    /// Returns a warning if the server does not tell whether it deletes keys.
    pub(super) fn unknown_policy(&self) -> Option<String> {
        let advice = "it must be noeviction; any other one deletes events, ids or leases";
        self.policy.is_none().then(|| {
            unknown(
                "maxmemory-policy",
                "neither INFO nor CONFIG GET has it",
                advice,
            )
        })
    }

    /// Returns a warning if the server does not tell whether it writes to its disk.
    pub(super) fn unknown_persistence(&self) -> Option<String> {
        let advice = "without an append-only file, a restart of Redis loses queued events";
        let has_saves = self.saves.is_some() || self.number("rdb_saves").is_some();
        match self.field("aof_enabled") {
            Some("1") => None,
            Some("0") if has_saves => None,
            Some("0") => Some(unknown(
                "persistence",
                "the append-only file is off, and nothing tells of save points",
                advice,
            )),
            _ => Some(unknown("persistence", "INFO has no aof_enabled", advice)),
        }
    }

    /// Returns the policy for a full memory, if the server tells it.
    pub(super) fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns a warning if the version of the server is too old.
    pub(super) fn too_old(&self) -> Option<String> {
        let text = self.field("redis_version")?;
        (version(text)? < VERSION_MIN)
            .then(|| format!("Redis is version {text}, older than 7.0: the scripts need 7.0 or Valkey; upgrade it"))
    }

    /// Returns a warning if the server deletes keys when its memory is full.
    pub(super) fn evicts(&self) -> Option<String> {
        let policy = self.policy().filter(|policy| *policy != "noeviction")?;
        let harm = "at maxmemory, Redis deletes events, ids or leases";
        Some(format!(
            "maxmemory-policy is {policy}: {harm}; run CONFIG SET maxmemory-policy noeviction"
        ))
    }

    /// Returns a warning if the server has no persistence.
    pub(super) fn forgets(&self) -> Option<String> {
        let is_unsaved = match &self.saves {
            Some(points) => points.trim().is_empty(),
            None => {
                self.number("rdb_saves") == Some(0)
                    && self.number("rdb_changes_since_last_save") > Some(0)
                    && self.number("uptime_in_seconds") > Some(UNSAVED_SECONDS)
            }
        };
        let harm = "a restart of Redis loses every queued event";
        (self.field("aof_enabled") == Some("0") && is_unsaved)
            .then(|| format!("persistence is off (no append-only file, no save points): {harm}; run CONFIG SET appendonly yes"))
    }

    /// Returns a warning if the server is a master with replicas that accepts writes even if no
    /// replica has them.
    pub(super) fn accepts_alone(&self) -> Option<String> {
        // INFO has this field only if both settings, min-replicas-to-write and
        // min-replicas-max-lag, are above 0.
        let is_set = self.field("min_slaves_good_slaves").is_some();
        let is_master = self.field("role") != Some("slave");
        let replicas = self
            .number("connected_slaves")
            .filter(|replicas| *replicas > 0 && is_master && !is_set)?;
        let harm = "after a failover, the old master goes on to accept events that are lost";
        Some(format!(
            "min-replicas-to-write is 0, with {replicas} attached: {harm}; run CONFIG SET min-replicas-to-write 1 and CONFIG SET \
             min-replicas-max-lag 2"
        ))
    }

    /// Returns an error text if the server is a master that refuses writes, because too few
    /// replicas are in reach.
    pub(super) fn lacks_replicas(&self) -> Option<String> {
        let good = self.number("min_slaves_good_slaves")?;
        // INFO has this field only if the setting is above 0. So without any replica in reach, every
        // write is refused, whatever the setting is.
        let wanted = match self.min_replicas {
            Some(wanted) if wanted > good => wanted.to_string(),
            None if good == 0 => "set".to_owned(),
            _ => return None,
        };
        Some(format!(
            "min-replicas-to-write is {wanted}, but {good} are in reach: every write is refused (NOREPLICAS)"
        ))
    }

    /// Returns a text if the server has replicas, but does not tell how far they are behind.
    pub(super) fn unknown_replicas(&self) -> Option<String> {
        let Some(count) = self.number("connected_slaves") else {
            return Some(unknown(
                "replicas",
                "INFO has no connected_slaves",
                "without one, the loss of the machine loses all events",
            ));
        };
        let advice = "a failover to a late replica loses what it lacks";
        let is_told =
            self.number("master_repl_offset").is_some() && self.replicas().count() as u64 >= count;
        (count > 0 && !is_told).then(|| {
            unknown(
                "the state of the replicas",
                &format!("{count} are attached"),
                advice,
            )
        })
    }

    /// Returns the name and the fields of each replica in `INFO`.
    fn replicas(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| {
            let (number, rest) = line.trim().strip_prefix("slave")?.split_once(':')?;
            number.parse::<u32>().is_ok().then_some(rest)
        })
    }

    /// Returns a warning if a replica is not attached, or is behind its master.
    pub(super) fn late_replica(&self) -> Option<String> {
        let offset = self.number("master_repl_offset")?;
        self.replicas().find_map(|rest| {
            let value = |field: &str| rest.split(',').find_map(|part| part.strip_prefix(field)?.strip_prefix('='));
            let number = |field: &str| value(field)?.parse::<u64>().ok();
            let replica = format!("the replica {}:{}", value("ip")?, value("port")?);
            let state = value("state")?;
            let (lag, behind) = (number("lag")?, offset.saturating_sub(number("offset")?));
            if state != "online" {
                return Some(format!("{replica} is not attached yet ({state}): look at its log if this lasts"));
            }
            let advice = "look at the link and the load of the replica; a failover to it loses what it lacks";
            if lag > LAG_SECONDS_MAX {
                return Some(format!("{replica} has last answered {lag} s ago: {advice}"));
            }
            (behind > BEHIND_BYTES_MAX).then(|| format!("{replica} is {} MiB behind: {advice}", behind >> 20))
        })
    }

    /// Returns an error text if the server cannot write to its disk.
    pub(super) fn failed_to_write(&self) -> Option<String> {
        let fields = [
            "aof_last_write_status",
            "rdb_last_bgsave_status",
            "aof_last_bgrewrite_status",
        ];
        let failed = fields
            .into_iter()
            .find(|name| self.field(name) == Some("err"))?;
        Some(format!(
            "{failed} is err: look at the disk and the log of Redis"
        ))
    }

    /// Returns the value of a field of `INFO`; none if the field is absent or empty.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let value = self
            .text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }
}

/// Returns major and minor version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map_while(|part| part.parse::<u32>().ok());
    Some((parts.next()?, parts.next()?))
}

/// Returns the text for a setting that the server does not tell.
fn unknown(what: &str, why: &str, advice: &str) -> String {
    format!(
        "{what} is unknown, this server does not tell it ({why}): look at its settings, or ask its provider; {advice}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, saves: Option<&str>) -> Vec<String> {
        info(text, saves).warnings()
    }

    fn info(text: &str, saves: Option<&str>) -> Info {
        let mut info = Info {
            text: text.to_owned(),
            policy: None,
            saves: saves.map(str::to_owned),
            min_replicas: None,
        };
        info.policy = info.field("maxmemory_policy").map(str::to_owned);
        info
    }

    /// Story: a managed Redis tells no `maxmemory_policy`; this counted as good. With an empty one the
    /// text was "maxmemory-policy is :".
    #[test]
    fn a_setting_that_the_server_does_not_tell_is_unknown() {
        for (from, to, begin) in [
            (
                "maxmemory_policy:noeviction\r\n",
                "",
                "maxmemory-policy is unknown",
            ),
            (
                "maxmemory_policy:noeviction",
                "maxmemory_policy:",
                "maxmemory-policy is unknown",
            ),
            (
                "redis_version:7.0.15",
                "redis_version:",
                "the version is unknown",
            ),
            ("redis_version:7.0.15\r\n", "", "the version is unknown"),
            ("aof_enabled:1\r\n", "", "persistence is unknown"),
            ("aof_enabled:1", "aof_enabled:", "persistence is unknown"),
            (
                "aof_enabled:1\r\nrdb_saves:0\r\n",
                "aof_enabled:0\r\n",
                "persistence is unknown",
            ),
        ] {
            let warnings = found(&SOUND.replace(from, to), None);
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(begin),
                "{from} {to}: {warnings:?}"
            );
        }
        assert_eq!(found("", None).len(), 3);
        let replicas = |text: &str| info(text, None).unknown_replicas();
        assert_eq!(replicas("connected_slaves:0"), None);
        assert_eq!(
            replicas(
                "connected_slaves:1\r\nmaster_repl_offset:1\r\nslave0:ip=a,port=1,state=online,offset=1,lag=0"
            ),
            None
        );
        for text in [
            "",
            "connected_slaves:1\r\nslave0:ip=a,port=1",
            "connected_slaves:1\r\nmaster_repl_offset:1",
        ] {
            assert!(
                replicas(text).is_some_and(|text| text.contains("unknown")),
                "{text}"
            );
        }
        let refused = info("connected_slaves:1\r\nmin_slaves_good_slaves:0", None).lacks_replicas();
        assert!(refused.is_some_and(|text| text.contains("NOREPLICAS")));
        assert_eq!(
            info("min_slaves_good_slaves:1", None).lacks_replicas(),
            None
        );
    }

    const SOUND: &str = "redis_version:7.0.15\r\nuptime_in_seconds:90000\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrdb_saves:0\r\n\
                         rdb_changes_since_last_save:5\r\n";

    #[test]
    fn each_setting_has_its_warning() {
        assert_eq!(found(SOUND, None), Vec::<String>::new());
        for (from, to, saves, begin) in [
            (
                "redis_version:7.0.15",
                "redis_version:6.2.14",
                None,
                "Redis is version 6.2.14",
            ),
            (
                "noeviction",
                "allkeys-lru",
                None,
                "maxmemory-policy is allkeys-lru",
            ),
            (
                "noeviction",
                "volatile-ttl",
                None,
                "maxmemory-policy is volatile-ttl",
            ),
            (
                "aof_enabled:1",
                "aof_enabled:0",
                Some(""),
                "persistence is off",
            ),
            ("aof_enabled:1", "aof_enabled:0", None, "persistence is off"),
            (
                "aof_enabled:1",
                "aof_enabled:1\r\nconnected_slaves:2",
                None,
                "min-replicas-to-write is 0, with 2 attached",
            ),
        ] {
            let warnings = found(&SOUND.replace(from, to), saves);
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(begin),
                "{to}: {warnings:?}"
            );
        }
        for (from, to, saves) in [
            (
                "redis_version:7.0.15",
                "redis_version:7.2.4\r\nvalkey_version:9.1.2",
                None,
            ),
            ("redis_version:7.0.15", "redis_version:10.0.0", None),
            ("aof_enabled:1", "aof_enabled:0", Some("3600 1 300 100")),
            (
                "aof_enabled:1",
                "aof_enabled:1\r\nconnected_slaves:2\r\nmin_slaves_good_slaves:2",
                None,
            ),
            (
                "aof_enabled:1\r\nrdb_saves:0",
                "aof_enabled:0\r\nrdb_saves:1",
                None,
            ),
        ] {
            assert_eq!(
                found(&SOUND.replace(from, to), saves),
                Vec::<String>::new(),
                "{to}"
            );
        }
    }

    #[test]
    fn a_replica_that_is_late_is_told() {
        let late = |replicas: &str| {
            let text = format!(
                "role:master\r\nmaster_repl_offset:20000000\r\n{replicas}\r\nslave_read_only:1"
            );
            info(&text, None).late_replica()
        };
        let sound = "slave0:ip=10.0.0.2,port=6379,state=online,offset=19999000,lag=1";
        assert_eq!(late(sound), None);
        assert_eq!(late(""), None);
        for (other, text) in [
            (
                "slave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0",
                "10.0.0.3:6379 is not attached yet (wait_bgsave)",
            ),
            (
                "slave1:ip=10.0.0.3,port=6379,state=online,offset=19999000,lag=9",
                "10.0.0.3:6379 has last answered 9 s ago",
            ),
            (
                "slave1:ip=10.0.0.3,port=6379,state=online,offset=1,lag=1",
                "10.0.0.3:6379 is 19 MiB behind",
            ),
        ] {
            let found = late(&format!("{sound}\r\n{other}")).expect(other);
            assert!(found.contains(text), "{found}");
        }
    }
}
