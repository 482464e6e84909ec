//! `seriatim`: events of many producers, one at a time and in order per object, through Redis.
// `println!` panics if nobody reads standard output, and `eprintln!` panics if standard error is
// closed. So all output goes through the functions of `shown`, which do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod config;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _, Parser};
use seriatim_console::exit::{self, Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::{shown, variables};

use crate::commands::Command;

/// With this allocator `serve` needs a sixth less processor time than with that of glibc. Huge pages are
/// off (`no_thp`): with them idle connections needed two thirds more memory (in version 3 of mimalloc).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
        Err(Unparsed::Usage(usage)) if usage.use_stderr() && asks_for_json() => {
            shown::tell_in_json();
            return exit::report(&Failure::with(Exit::Input, in_one_line(&usage)));
        }
        Err(Unparsed::Usage(usage)) => usage.exit(),
        Err(Unparsed::File(error)) => {
            if asks_for_json() {
                shown::tell_in_json();
            }
            return exit::report(&error);
        }
    };
    // `bench` and `demo` log only warnings by default: the parts that they start must not log their
    // start and stop.
    cli.global.init_logs(
        if matches!(cli.command, Command::Bench(_) | Command::Demo(_)) {
            "warn"
        } else {
            "info"
        },
    );
    variables::warn(&Cli::command());
    // Installs the provider of cryptography for TLS. This cannot fail, because no other provider
    // was installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&anyhow::anyhow!("cannot start the runtime: {error}")),
    };
    let done = runtime.block_on(cli.command.run(&cli.global));
    // The runtime does not wait for blocking tasks. Otherwise a read of standard input, which
    // cannot be cancelled, would keep a finished program alive.
    runtime.shutdown_background();
    match done {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error),
    }
}

/// The reason why there is no command to run.
enum Unparsed {
    /// The command line is invalid, or asks for help or the version.
    Usage(clap::Error),
    /// The configuration file is wrong.
    File(anyhow::Error),
}

/// Parses the command line, with the flags of the configuration file.
fn parse() -> Result<Cli, Unparsed> {
    let mut command = command();
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(path) = config::named_file(&words, &command) else {
        let words = config::plain_switches(&words, &command);
        return cli(&mut command, &words).map_err(Unparsed::Usage);
    };
    let file = config::File::read(&path, &command).map_err(Unparsed::File)?;
    let (words, added) = file.complete(&words, &command);
    let words = config::plain_switches(&words, &command);
    cli(&mut command, &words).map_err(|error| {
        match file.explain(&error, &in_one_line(&error), &added) {
            Some(explained) => Unparsed::File(explained),
            None => Unparsed::Usage(error),
        }
    })
}

/// Returns clap's definition of the command line. An environment variable that is empty counts as
/// unset. The variable of a switch may have any of the usual words for true and false.
fn command() -> clap::Command {
    let from_env = |arg: Arg| match arg.get_env() {
        Some(_) if !config::is_set(&arg) => arg.env(Resettable::<OsStr>::Reset),
        // The words are 1, true, yes, on, y, t, and 0, false, no, off, n, f, in upper or lower
        // case.
        Some(_) if matches!(arg.get_action(), ArgAction::SetTrue) => {
            arg.value_parser(BoolishValueParser::new())
        }
        _ => arg,
    };
    let mut command = Cli::command()
        .mut_args(from_env)
        .mut_subcommands(|command| command.mut_args(from_env));
    command.build();
    command
}

fn cli(command: &mut clap::Command, words: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(command))
}

/// Returns whether the command line has `--log-format json`. It also works if clap has refused the
/// command line.
fn asks_for_json() -> bool {
    let words: Vec<_> = std::env::args_os().collect();
    let two = words
        .windows(2)
        .any(|pair| pair[0] == "--log-format" && pair[1] == "json");
    two || words.iter().any(|word| word == "--log-format=json")
}

/// Returns clap's error as one line, without the usage text.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let words: Vec<&str> = what
        .strip_prefix("error: ")
        .unwrap_or(what)
        .split_whitespace()
        .collect();
    words.join(" ") + "; --help shows the usage"
}
