//! `seriatim script`.

use seriatim::wire;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::shown;

/// Print the text of a Lua script that producers call
///
/// For clients in other languages, which call it by EVALSHA and EVAL (docs/protocol.md).
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    script: Script,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Script {
    /// Queues events at most once per idempotency key, and within limits
    Emit,
    /// Ends an event that has a key and waits for a retry or an operator
    Cancel,
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let text = match args.script {
        Script::Emit => wire::emit_text(),
        Script::Cancel => wire::cancel_text(),
    };
    shown::print_bytes(text.as_bytes())?;
    Ok(Exit::Done)
}
