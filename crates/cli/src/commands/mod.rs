//! The commands. Each command has one file or folder, with its arguments, its output and its exit
//! codes.
//!
//! Each command reads its arguments, calls the library, and prints the result. The commands `serve`
//! and `dashboard` are in `seriatim-web`, and `demo` and `bench` are in `seriatim-lab`.

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
mod listing;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod repair;
pub(crate) mod rules;
pub(crate) mod schedule;
pub(crate) mod script;
pub(crate) mod share;
pub(crate) mod stats;
pub(crate) mod token;
pub(crate) mod verify;
pub(crate) mod worker;

use clap::Subcommand;
use seriatim::control::rules::Kind;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_lab::{bench, demo};
use seriatim_web::{dashboard, serve};

/// Makes the enum of commands from a list. An entry has the name, the arguments, and the function
/// that runs the command. It may have one more parameter for this function, which goes between the
/// arguments and the global options.
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

            /// Makes the checks that the parsers of single flags cannot make. Does not connect and
            /// creates no file.
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
    Dashboard(dashboard::Args) => dashboard::run;
    Exporter(exporter::Args) => exporter::run;
    Healthcheck(healthcheck::Args) => healthcheck::run;
    Token(token::Args) => token::run;
    Verify(verify::Args) => verify::run;
    Check(check::Args) => check::run;
    Repair(repair::Args) => repair::run;
    Doctor(doctor::Args) => doctor::run;
    Stats(stats::Args) => stats::run;
    Inspect(inspect::Args) => inspect::run;
    Dead(dead::Args) => dead::run;
    Held(held::Args) => held::run;
    /// Pause objects: workers do not claim them until `resume`
    ///
    /// Emits continue, and deliveries in flight finish. Pauses and blocks are lifted separately: an
    /// object waits as long as it is under any of them.
    Pause(rules::Set) => rules::set, Kind::Pause;
    /// Lift a pause: workers claim its objects again
    ///
    /// Objects that are under another pause or block still wait.
    Resume(rules::Lift) => rules::lift, Kind::Pause;
    /// Block objects, as an operator: workers do not claim them until `unblock`
    ///
    /// A block works like a pause, but only `unblock` lifts it; `resume` does not.
    Block(rules::Set) => rules::set, Kind::Block;
    /// Lift a block: workers claim its objects again
    ///
    /// Objects that are under another pause or block still wait.
    Unblock(rules::Lift) => rules::lift, Kind::Block;
    Rules(rules::List) => rules::list;
    Limit(limit::Args) => limit::run;
    Share(share::Args) => share::run;
    Actions(actions::Args) => actions::run;
    Log(log::Args) => log::run;
    Forget(forget::Args) => forget::run;
    Config(config::Args) => config::run;
    Completions(completions::Args) => completions::run;
    Man(man::Args) => man::run;
    Script(script::Args) => script::run;
    Demo(demo::Args) => demo::run;
    Bench(bench::Args) => bench::run;
}
