//! What a server is: a master, a replica or a Sentinel; and where to connect instead.

use std::collections::HashMap;
use std::io;

use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult, Value};

use super::errors::told;

/// Checks that a server which Sentinels name is a master by now.
///
/// # Errors
/// It is a replica, or does not reply to `ROLE`.
pub(super) async fn must_be_master(conn: &mut impl ConnectionLike) -> RedisResult<()> {
    match role(conn).await? {
        Role::Master => Ok(()),
        Role::Replica(of) => {
            let text = format!("the Sentinels name a server that is still a replica of {of}: a failover is under way");
            Err(io::Error::new(io::ErrorKind::NotConnected, text).into())
        }
    }
}

enum Role {
    Master,
    /// The address of its master.
    Replica(String),
}

async fn role(conn: &mut impl ConnectionLike) -> RedisResult<Role> {
    let reply: Vec<Value> = redis::cmd("ROLE").query_async(conn).await?;
    let text = |at: usize| reply.get(at).and_then(|value| redis::from_redis_value::<String>(value.clone()).ok());
    match (text(0).as_deref(), text(1), text(2)) {
        (Some("slave"), Some(host), Some(port)) => Ok(Role::Replica(format!("{host}:{port}"))),
        _ => Ok(Role::Master),
    }
}

/// Checks that a server is no replica and no Sentinel. `here`: its address; `scheme`: that of its
/// URL. Needs no right beyond `HELLO`, with which a connection with RESP3 begins.
///
/// # Errors
/// It is another kind of server; the error names the right URL if the server tells it.
pub async fn must_accept_writes(conn: &mut impl ConnectionLike, here: &str, scheme: &str) -> RedisResult<()> {
    let about: HashMap<String, Value> = redis::cmd("HELLO").query_async(conn).await?;
    let is = |field: &str, text: &str| matches!(about.get(field), Some(value) if redis::from_redis_value::<String>(value.clone()).is_ok_and(|found| found == text));
    if is("mode", "sentinel") {
        return Err(sentinel(conn, here, scheme).await);
    }
    if is("role", "replica") {
        let error = io::Error::new(
            io::ErrorKind::NotConnected,
            format!("READONLY this server accepts no writes{}", master(conn, scheme).await),
        );
        return Err(error.into());
    }
    Ok(())
}

async fn sentinel(conn: &mut impl ConnectionLike, here: &str, scheme: &str) -> RedisError {
    let services = super::sentinel::services(conn).await;
    let service = services.split(", ").next().filter(|_| services != "no service").unwrap_or("SERVICE");
    io::Error::new(io::ErrorKind::InvalidInput, format!("this is a Sentinel; use {scheme}-sentinel://{here}/{service}")).into()
}

async fn master(conn: &mut impl ConnectionLike, scheme: &str) -> String {
    match role(conn).await {
        Ok(Role::Replica(of)) => format!("; this is a replica, its master is {scheme}://{of}"),
        _ => "; this is a replica: use the URL of its master".to_owned(),
    }
}

/// Adds to the error of a call where to connect instead, if the server is a replica or a Sentinel.
/// `here`: the address of the server; `scheme`: that of its URL.
pub async fn elsewhere(conn: &mut impl ConnectionLike, error: RedisError, here: &str, scheme: &str) -> RedisError {
    let is_replica = error.code() == Some("READONLY") || error.to_string().contains("READONLY");
    if is_replica {
        return io::Error::new(io::ErrorKind::NotConnected, told(&error) + &master(conn, scheme).await).into();
    }
    if error.to_string().contains("unknown command") {
        let services = super::sentinel::services(conn).await;
        if services != "no service" {
            return sentinel(conn, here, scheme).await;
        }
    }
    error
}
