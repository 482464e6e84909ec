//! Pauses and blocks: how they are set, lifted and listed, which objects they hold, and that all
//! objects continue afterwards.
#![allow(unreachable_pub)]

mod asked;
mod commands;
mod cost;
mod counted;
mod processes;
mod workers;

use std::time::Duration;

use crate::support::control;
use redis::aio::MultiplexedConnection;
use seriatim::control::By;
use seriatim::control::rules::{Kind, Ruled, Selector};
use seriatim::keys::Keys;

const ADA: By<'static> = By {
    who: "ada@host",
    why: "not now",
};

fn selector(text: &str) -> Selector {
    text.parse().expect("a selector")
}

async fn set(conn: &MultiplexedConnection, keys: &Keys, kind: Kind, text: &str) -> Ruled {
    control(conn, keys)
        .set_rule(ADA, kind, &selector(text), None)
        .await
        .expect("set")
}

async fn set_for(
    conn: &MultiplexedConnection,
    keys: &Keys,
    kind: Kind,
    text: &str,
    after: Duration,
) -> Ruled {
    control(conn, keys)
        .set_rule(ADA, kind, &selector(text), Some(after))
        .await
        .expect("set")
}

async fn lift(conn: &MultiplexedConnection, keys: &Keys, kind: Kind, text: &str) -> Ruled {
    control(conn, keys)
        .lift_rule(ADA, kind, &selector(text))
        .await
        .expect("lifted")
}
