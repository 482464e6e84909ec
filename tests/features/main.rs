//! Tests of the features, one module for each feature.

#[path = "../../examples/handlers.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;
#[path = "../support/scene.rs"]
mod scene;
#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod awaited;
mod cases;
mod check;
mod claims;
mod cron;
mod dead;
mod deploys;
mod figures;
mod forget;
mod gate;
mod grouped;
mod groups;
mod handle;
mod handlers;
mod held;
mod limits;
mod log;
mod looks;
mod marks;
mod plain;
mod projection;
mod retry;
mod rules;
mod schedule;
mod share_ages;
mod share_figures;
mod share_limits;
mod shares;
mod sink_file;
mod sink_stdout;
mod suspects;
mod testing;
mod testing_drain;
mod under_work;
mod workers;
