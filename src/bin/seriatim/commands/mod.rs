//! The commands: one file or folder each, with its arguments, its output and its exit codes.
//!
//! Each reads its arguments, calls the library, and prints. Only `demo`, `bench` and `serve` have
//! folders of their own, beside this one.

pub(crate) mod actions;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cron;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod emit;
pub(crate) mod exporter;
pub(crate) mod forget;
pub(crate) mod healthcheck;
pub(crate) mod held;
pub(crate) mod inspect;
pub(crate) mod limit;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod rules;
pub(crate) mod schedule;
pub(crate) mod stats;
pub(crate) mod token;
pub(crate) mod verify;
pub(crate) mod worker;

use clap::Subcommand;
use seriatim::control::rules::Kind;

use crate::console::exit::Exit;
use crate::console::global::Global;
use crate::{bench, demo, serve};

/// Makes the commands from a list: name, arguments, and the function that runs the command. The
/// list also has the parameters of that function between arguments and global options.
macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident($args:ty) => $run:path $(, $with:expr)?;)*) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$doc])* $name($args),)*
        }

        impl Command {
            pub(crate) async fn run(self, global: &Global) -> anyhow::Result<Exit> {
                match self {
                    $(Self::$name(args) => $run(args, $($with,)? global).await,)*
                }
            }

            /// Checks what the parsers of the flags cannot see. Opens nothing.
            pub(crate) fn check(&self, global: &Global) -> anyhow::Result<()> {
                match self {
                    Self::Worker(args) => args.check(global),
                    _ => Ok(()),
                }
            }
        }
    };
}

commands! {
    Worker(worker::Args) => worker::run;
    Emit(emit::Args) => emit::run;
    Schedule(schedule::Args) => schedule::run;
    Cron(cron::Args) => cron::run;
    Serve(serve::Args) => serve::run;
    Exporter(exporter::Args) => exporter::run;
    Healthcheck(healthcheck::Args) => healthcheck::run;
    Token(token::Args) => token::run;
    Verify(verify::Args) => verify::run;
    Check(check::Args) => check::run;
    Doctor(doctor::Args) => doctor::run;
    Stats(stats::Args) => stats::run;
    Inspect(inspect::Args) => inspect::run;
    Dead(dead::Args) => dead::run;
    Held(held::Args) => held::run;
    /// Pause objects: workers do not claim them until `resume`
    ///
    /// Emits continue, and deliveries in flight finish. Pauses and blocks are lifted separately: an
    /// object waits while it is under either.
    Pause(rules::Set) => rules::set, Kind::Pause;
    /// Lift a pause: workers wake the objects it was holding
    ///
    /// Objects under another rule stay.
    Resume(rules::Lift) => rules::lift, Kind::Pause;
    /// Block objects, as an operator: workers do not claim them until `unblock`
    ///
    /// A block works like a pause, but only `unblock` lifts it; `resume` does not.
    Block(rules::Set) => rules::set, Kind::Block;
    /// Lift a block: workers wake the objects it was holding
    ///
    /// Objects under another rule stay.
    Unblock(rules::Lift) => rules::lift, Kind::Block;
    Rules(rules::List) => rules::list;
    Limit(limit::Args) => limit::run;
    Actions(actions::Args) => actions::run;
    Log(log::Args) => log::run;
    Forget(forget::Args) => forget::run;
    Config(config::Args) => config::run;
    Completions(completions::Args) => completions::run;
    Man(man::Args) => man::run;
    Demo(demo::Args) => demo::run;
    Bench(bench::Args) => bench::run;
}
