//! The command line program: arguments, output and exit codes.

#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod against;
mod alerts;
mod bench;
mod config;
mod control;
mod cron;
mod defaults;
mod deploy;
mod effects;
mod emit;
mod examples;
mod exec;
mod exec_chaos;
mod history;
mod hostile_names;
mod limit;
mod lists;
mod metrics;
mod options;
mod pages;
mod probes;
mod repair;
mod round_trip;
mod schedule;
mod settings;
mod share;
mod status;
mod stop;
mod verify;
mod watch;
mod watchdog;
