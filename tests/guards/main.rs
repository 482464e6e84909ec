//! Tests of guards inside the scripts. Real processes never reach these guards, because other
//! guards stop them earlier. So the tests call the scripts directly.

mod awaited;
mod batches;
mod bounds;
mod cancel;
mod check;
mod claims;
mod clock;
mod connect;
mod cron;
mod damage;
mod dead;
mod foreign;
mod forget;
mod groups;
mod ids;
mod in_hand;
mod inspect;
mod leases;
mod library;
mod limits;
mod limits_stopped;
mod lists;
mod log;
mod looks;
mod lost;
mod marks;
mod moments;
mod named;
mod names;
mod operators;
mod owners;
mod paused;
mod popped;
mod promote;
mod rates;
mod references;
mod repair;
mod reports;
mod rooms;
#[path = "../support/scene.rs"]
mod scene;
mod settled;
#[path = "../support/state.rs"]
mod state;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
mod suspects;
mod turns;
mod values;
