//! `seriatim verify`.

use crate::exit::Exit;

/// (being written)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
