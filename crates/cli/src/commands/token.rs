//! `seriatim token`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::shown;
use seriatim_web::listen::users;

/// Make tokens for the users of `serve`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    New(New),
}

/// Print a new token, and the line of the users file for it
///
/// The token is printed only now: the users file has only its hash.
#[derive(Debug, clap::Args)]
struct New {
    /// The name of the user, 1 to 64 bytes without spaces; it is recorded with the user's actions
    #[arg(value_parser = name)]
    name: String,
    /// The rights, separated by commas: emit, view, pause, operate
    #[arg(long, value_name = "RIGHT,…", default_value = "emit,view", value_parser = rights)]
    rights: String,
    /// Give the rights only for objects whose names begin with PREFIX, escaped as the commands print
    /// names; may be given more than once
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    prefix: Vec<String>,
}

fn name(text: &str) -> Result<String, String> {
    users::check_name(text).map(|()| text.to_owned())
}

fn prefix(text: &str) -> Result<String, String> {
    users::prefix_of(text).map(|_| text.to_owned())
}

fn rights(text: &str) -> Result<String, String> {
    text.split(',')
        .try_for_each(|word| users::parse_right(word).map(drop))
        .map(|()| text.to_owned())
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let Command::New(New {
        name,
        rights,
        prefix,
    }) = args.command;
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Failure::with(Exit::Broken, "the system has no random bytes"))?;
    let token = format!("seriatim_{}", URL_SAFE_NO_PAD.encode(bytes));
    let hash: String = users::hash(&token)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let prefixes: String = prefix.iter().map(|prefix| format!(" {prefix}")).collect();
    shown::print(&format!(
        "token  {token}\nline   {name} {hash} {rights}{prefixes}\n"
    ))?;
    Ok(Exit::Done)
}
