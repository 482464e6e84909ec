//! `seriatim emit`.

use crate::exit::Exit;
use crate::global::Global;

/// (being written)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _global: &Global) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
