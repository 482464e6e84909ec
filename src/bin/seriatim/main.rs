//! `seriatim`: events of many producers, one at a time and in order per object, through Redis.
#![forbid(unsafe_code)]
// `println!` panics if nobody reads standard output, `eprintln!` if standard error is closed.
// `shown` does neither.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod commands;
mod console;
mod demo;
mod private;
mod random;

use std::process::ExitCode;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _, Parser};

use crate::commands::Command;
use crate::console::exit::{self, Exit, Failure};
use crate::console::global::Global;
use crate::console::shown;

/// Serializes the events of many producers, per object, through Redis.
///
/// Producers emit events for objects (`work:1`). Workers send the events of each object to a sink,
/// one after another, in the order of the emits. Each event has an id and the id of its
/// predecessor. If a worker crashes, other workers continue its events.
#[derive(Debug, Parser)]
#[command(name = "seriatim", version, max_term_width = 100, after_long_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(usage) if usage.use_stderr() && asks_for_json() => {
            shown::tell_in_json();
            return exit::report(&bad_usage(&usage));
        }
        Err(usage) => usage.exit(),
    };
    // The workers of a bench do not log their start and stop.
    cli.global.init_logs(if matches!(cli.command, Command::Bench(_)) { "warn" } else { "info" });
    // The provider of cryptography for TLS. No other can be installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&anyhow::anyhow!("cannot start the runtime: {error}")),
    };
    let done = runtime.block_on(cli.command.run(&cli.global));
    // A blocking read of standard input cannot be cancelled. It must not keep a finished program
    // alive.
    runtime.shutdown_background();
    match done {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error),
    }
}

/// Parses the command line. An empty environment variable counts as unset. The variable of a flag
/// is one of the usual words for true and false.
fn parse() -> Result<Cli, clap::Error> {
    let is_empty = |arg: &Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let from_env = |arg: Arg| match arg.get_env() {
        Some(_) if is_empty(&arg) => arg.env(Resettable::<OsStr>::Reset),
        // 1, true, yes, on, y, t, and 0, false, no, off, n, f, in any case.
        Some(_) if matches!(arg.get_action(), ArgAction::SetTrue) => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    };
    let mut command = Cli::command().mut_args(from_env).mut_subcommands(|command| command.mut_args(from_env));
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns whether an invalid command line asks for JSON lines.
fn asks_for_json() -> bool {
    let words: Vec<_> = std::env::args_os().collect();
    let two = words.windows(2).any(|pair| pair[0] == "--log-format" && pair[1] == "json");
    two || words.iter().any(|word| word == "--log-format=json")
}

/// Returns the error of the command line, without the usage text.
fn bad_usage(error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let words: Vec<&str> = what.strip_prefix("error: ").unwrap_or(what).split_whitespace().collect();
    Failure::with(Exit::Input, words.join(" ") + "; --help shows the usage")
}
