//! Checks the role of a server. If the server is a replica or a Sentinel, the error names the right
//! URL.

use std::collections::HashMap;
use std::io;

use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult, Value};

use super::errors::describe;

/// Checks that the server named by the Sentinels is a master.
///
/// # Errors
/// The server is a replica, or does not reply to `ROLE`.
pub(super) async fn must_be_master(conn: &mut impl ConnectionLike) -> RedisResult<()> {
    match role(conn).await? {
        Role::Master => Ok(()),
        Role::Unknown(word) => {
            let text = format!(
                "the Sentinels name a server that does not tell whether it is a master (ROLE returned {word:?})"
            );
            Err(io::Error::new(io::ErrorKind::NotConnected, text).into())
        }
        Role::Replica(of) => {
            let text = format!(
                "the Sentinels name a server that is still a replica of {of}: a failover is under way"
            );
            Err(io::Error::new(io::ErrorKind::NotConnected, text).into())
        }
    }
}

enum Role {
    Master,
    /// A replica; the value is the address of its master.
    Replica(String),
    /// The reply has another word, or none.
    Unknown(String),
}

async fn role(conn: &mut impl ConnectionLike) -> RedisResult<Role> {
    let reply: Vec<Value> = redis::cmd("ROLE").query_async(conn).await?;
    let text = |at: usize| {
        reply
            .get(at)
            .and_then(|value| redis::from_redis_value::<String>(value.clone()).ok())
    };
    match (text(0).as_deref(), text(1), text(2)) {
        (Some("slave"), Some(host), Some(port)) => Ok(Role::Replica(format!("{host}:{port}"))),
        (Some("master"), _, _) => Ok(Role::Master),
        (word, _, _) => Ok(Role::Unknown(word.unwrap_or_default().to_owned())),
    }
}

/// Checks that a server is no replica and no Sentinel. `here` is the address of the server, and
/// `scheme` the scheme of its URL. The user needs no right, because every user may send `HELLO`. A
/// proxy in front of Redis may not know `HELLO`; then nothing is checked.
///
/// # Errors
/// The server is a replica or a Sentinel. The error names the right URL if the server tells it.
pub async fn must_accept_writes(
    conn: &mut impl ConnectionLike,
    here: &str,
    scheme: &str,
) -> RedisResult<()> {
    let about: HashMap<String, Value> = match redis::cmd("HELLO").query_async(conn).await {
        Ok(about) => about,
        Err(error) if is_unknown(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    if is(&about, "mode", "sentinel") {
        return Err(sentinel(conn, here, scheme).await);
    }
    if is(&about, "role", "replica") {
        let error = io::Error::new(
            io::ErrorKind::NotConnected,
            format!(
                "READONLY this server accepts no writes{}",
                master(conn, scheme).await
            ),
        );
        return Err(error.into());
    }
    Ok(())
}

/// Checks that a server is no Sentinel.
///
/// # Errors
/// The server is a Sentinel. The error names the right URL.
pub(super) async fn must_be_no_sentinel(
    conn: &mut impl ConnectionLike,
    here: &str,
    scheme: &str,
) -> RedisResult<()> {
    let about: RedisResult<HashMap<String, Value>> = redis::cmd("HELLO").query_async(conn).await;
    match about {
        Ok(about) if is(&about, "mode", "sentinel") => Err(sentinel(conn, here, scheme).await),
        // A proxy in front of Redis may not know HELLO. Such an error is ignored.
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether the server does not know `HELLO`. Without a login, Redis also refuses `HELLO`,
/// and that error counts.
fn is_unknown(error: &RedisError) -> bool {
    error.code().is_some_and(|code| code != "NOAUTH")
}

fn is(about: &HashMap<String, Value>, field: &str, text: &str) -> bool {
    let value = about
        .get(field)
        .cloned()
        .map(redis::from_redis_value::<String>);
    value.is_some_and(|value| value.is_ok_and(|value| value == text))
}

async fn sentinel(conn: &mut impl ConnectionLike, here: &str, scheme: &str) -> RedisError {
    let services = super::sentinel::services(conn).await;
    let service = services
        .split(", ")
        .next()
        .filter(|_| services != "no service")
        .unwrap_or("SERVICE");
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("this is a Sentinel; use {scheme}-sentinel://{here}/{service}"),
    )
    .into()
}

async fn master(conn: &mut impl ConnectionLike, scheme: &str) -> String {
    match role(conn).await {
        Ok(Role::Replica(of)) => format!("; this is a replica, its master is {scheme}://{of}"),
        _ => "; this is a replica: use the URL of its master".to_owned(),
    }
}

/// Adds the right URL to the error of a call, if the server is a replica or a Sentinel. `here` is
/// the address of the server, and `scheme` the scheme of its URL.
pub async fn elsewhere(
    conn: &mut impl ConnectionLike,
    error: RedisError,
    here: &str,
    scheme: &str,
) -> RedisError {
    let is_replica = error.code() == Some("READONLY") || error.to_string().contains("READONLY");
    if is_replica {
        return io::Error::new(
            io::ErrorKind::NotConnected,
            describe(&error) + &master(conn, scheme).await,
        )
        .into();
    }
    if error.to_string().contains("unknown command") {
        let services = super::sentinel::services(conn).await;
        if services != "no service" {
            return sentinel(conn, here, scheme).await;
        }
    }
    error
}
