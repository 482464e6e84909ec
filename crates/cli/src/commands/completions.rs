//! `seriatim completions`.

use clap_complete::Shell;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shown;

/// Print the completions of commands and flags for a shell
///
/// For bash: seriatim completions bash > /etc/bash_completion.d/seriatim
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "seriatim", &mut script);
    shown::print_bytes(&script)?;
    Ok(Exit::Done)
}
