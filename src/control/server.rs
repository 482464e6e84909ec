//! Warns of Redis settings that break the promise, and names the remedy. Only reads settings.

use redis::RedisError;

use super::{Control, ControlError};

/// The oldest supported version.
const VERSION_MIN: (u32, u32) = (7, 0);
/// If Redis has had unsaved writes for this long, it has no save points.
const UNSAVED_SECONDS: u64 = 2 * 60 * 60;

impl Control {
    /// Returns warnings about the server, one sentence each: an evicting `maxmemory-policy`, no
    /// persistence, a version older than 7.0. Empty if the user may not use `INFO`, or the server
    /// has renamed it.
    ///
    /// If the append-only file is off, reads the save points with `CONFIG GET save`. A user without
    /// that right is warned only if the server has had no snapshot for two hours. Only reads; may
    /// be called again.
    ///
    /// # Errors
    /// [`ControlError::Redis`] if the connection failed.
    pub async fn warnings(&self) -> Result<Vec<String>, ControlError> {
        let mut conn = self.connection();
        let info: Result<String, RedisError> = redis::cmd("INFO").query_async(&mut conn).await;
        let info = match info {
            Ok(info) => info,
            Err(error) if error.code().is_some() => return Ok(Vec::new()),
            Err(error) => return Err(ControlError::redis("INFO")(error)),
        };
        let mut saves = None;
        if field(&info, "aof_enabled") == Some("0") {
            let mut ask = redis::cmd("CONFIG");
            let points: Result<Vec<String>, RedisError> = ask.arg(&["GET", "save"]).query_async(&mut conn).await;
            saves = points.ok().and_then(|pair| pair.into_iter().nth(1));
        }
        Ok(found(&info, saves.as_deref()))
    }
}

/// Returns the warnings for these fields. `saves`: the save points, if they may be read.
fn found(info: &str, saves: Option<&str>) -> Vec<String> {
    let mut warnings = Vec::new();
    let version = field(info, "redis_version").unwrap_or_default();
    let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
    if let (Some(major), Some(minor)) = (parts.next(), parts.next())
        && (major, minor) < VERSION_MIN
    {
        warnings.push(format!("Redis is version {version}, older than 7.0: the scripts need 7.0 or Valkey; upgrade it"));
    }
    if let Some(policy) = field(info, "maxmemory_policy")
        && policy != "noeviction"
    {
        let harm = "at maxmemory, Redis deletes events, ids or leases";
        warnings.push(format!("maxmemory-policy is {policy}: {harm}; run CONFIG SET maxmemory-policy noeviction"));
    }
    let number = |name| field(info, name).and_then(|value| value.parse::<u64>().ok());
    let is_unsaved = match saves {
        Some(points) => points.trim().is_empty(),
        None => {
            number("rdb_saves") == Some(0)
                && number("rdb_changes_since_last_save") > Some(0)
                && number("uptime_in_seconds") > Some(UNSAVED_SECONDS)
        }
    };
    if field(info, "aof_enabled") == Some("0") && is_unsaved {
        let harm = "a restart of Redis loses every queued event";
        warnings.push(format!("persistence is off (no append-only file, no save points): {harm}; run CONFIG SET appendonly yes"));
    }
    warnings
}

/// Returns the value of a field of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "redis_version:7.0.15\r\nuptime_in_seconds:90000\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrdb_saves:0\r\n\
                         rdb_changes_since_last_save:5\r\n";

    #[test]
    fn each_setting_has_its_warning() {
        assert_eq!(found(SOUND, None), Vec::<String>::new());
        assert_eq!(found("", None), Vec::<String>::new());
        for (from, to, saves, begin) in [
            ("redis_version:7.0.15", "redis_version:6.2.14", None, "Redis is version 6.2.14"),
            ("noeviction", "allkeys-lru", None, "maxmemory-policy is allkeys-lru"),
            ("noeviction", "volatile-ttl", None, "maxmemory-policy is volatile-ttl"),
            ("aof_enabled:1", "aof_enabled:0", Some(""), "persistence is off"),
            ("aof_enabled:1", "aof_enabled:0", None, "persistence is off"),
        ] {
            let warnings = found(&SOUND.replace(from, to), saves);
            assert!(warnings.len() == 1 && warnings[0].starts_with(begin), "{to}: {warnings:?}");
        }
        for (from, to, saves) in [
            ("redis_version:7.0.15", "redis_version:7.2.4\r\nvalkey_version:9.1.2", None),
            ("redis_version:7.0.15", "redis_version:10.0.0", None),
            ("aof_enabled:1", "aof_enabled:0", Some("3600 1 300 100")),
            ("aof_enabled:1\r\nrdb_saves:0", "aof_enabled:0\r\nrdb_saves:1", None),
        ] {
            assert_eq!(found(&SOUND.replace(from, to), saves), Vec::<String>::new(), "{to}");
        }
    }
}
