//! `seriatim man`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;

/// Write the manual pages of all commands into a directory
///
/// A build of a package runs e.g.: seriatim man target/man
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An existing directory
    directory: PathBuf,
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let directory = args.directory;
    clap_mangen::generate_to(crate::Cli::command(), &directory)
        .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
    Ok(Exit::Done)
}
