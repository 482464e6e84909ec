//! `seriatim config`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction};
use serde::Serialize;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::secrets::{without_secrets, without_value};
use seriatim_console::shown;

use crate::config::{self, File};

/// Check the configuration file, and show what it sets
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(Check),
}

/// Check a configuration file: its keys, its values, and the ranges of the worker's settings. The
/// exit code is 2 if one of them is wrong
///
/// Shows each setting of the file, its value, and whether an environment variable replaces the
/// value. The command does not connect to Redis or to the sink.
#[derive(Debug, clap::Args)]
struct Check {
    /// The file to check [default: the file that --config names]
    file: Option<PathBuf>,
    /// For each command in the file, also show the flags that the file does not set, with their
    /// defaults
    #[arg(long)]
    all: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// One line of the output: a flag, its value, and the source of the value.
#[derive(Debug, Serialize)]
struct Line {
    setting: String,
    value: Vec<String>,
    from: String,
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let Command::Check(check) = args.command;
    let Some(path) = check.file.or_else(|| global.config.clone()) else {
        return Err(Failure::with(
            Exit::Input,
            "no file is given; write `seriatim config check FILE`, or set SERIATIM_CONFIG",
        ));
    };
    let root = crate::command();
    let file = File::read(&path, &root)?;
    let mut tables: Vec<&[String]> = file
        .settings()
        .iter()
        .map(|setting| setting.commands.as_slice())
        .collect();
    tables.push(&[]);
    tables.sort();
    tables.dedup();
    let mut out = String::new();
    for commands in tables {
        try_out(&file, commands)?;
        for line in lines(&file, commands, &root, check.all) {
            match check.json {
                true => writeln!(out, "{}", serde_json::to_string(&line)?)?,
                false => writeln!(
                    out,
                    "{} = {}\n    {}",
                    line.setting,
                    shown_value(&line),
                    line.from
                )?,
            }
        }
    }
    shown::print(&out)?;
    Ok(Exit::Done)
}

fn shown_value(line: &Line) -> String {
    if line.value.is_empty() {
        "(none)".to_owned()
    } else {
        line.value.join(", ")
    }
}

/// Parses a command with the flags of the file, as if the command line had only the command's name.
/// A required flag may be absent in the file, because the command line can still have it. If
/// `commands` is empty, parses `completions bash`, to check the options of every command.
fn try_out(file: &File, commands: &[String]) -> anyhow::Result<()> {
    const PLAIN: [&str; 2] = ["completions", "bash"];
    let plain = if commands.is_empty() { &PLAIN[..] } else { &[] };
    let command = commands
        .iter()
        .map(OsString::from)
        .chain(plain.iter().map(OsString::from));
    let bare: Vec<OsString> = ["seriatim".into()].into_iter().chain(command).collect();
    let (words, added) = file.complete(&bare, &crate::command());
    match crate::cli(&mut crate::command(), &words) {
        Ok(cli) => checked(&cli).map_err(|error| {
            let what = error.to_string();
            let flag = what
                .strip_prefix("--")
                .and_then(|what| what.split([' ', ':', ',']).next());
            let setting = added
                .iter()
                .find(|setting| Some(setting.flag.as_str()) == flag);
            let place =
                setting.map_or_else(|| in_table(file, commands), |setting| file.place(setting));
            Failure::with(Exit::Input, format!("{place}: {what}"))
        }),
        Err(error)
            if error.kind() == ErrorKind::MissingRequiredArgument
                && is_missing_anyway(&bare, &error) =>
        {
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Ok(()),
        Err(error) => {
            let text = crate::in_one_line(&error);
            Err(file.explain(&error, &text, &added).unwrap_or_else(|| {
                Failure::with(Exit::Input, format!("{}: {text}", in_table(file, commands)))
            }))
        }
    }
}

/// Makes the checks that the parsers of single flags cannot make, e.g. of ranges and of the
/// connection.
fn checked(cli: &crate::Cli) -> anyhow::Result<()> {
    cli.global.route()?;
    cli.global
        .keys()
        .map_err(|error| Failure::with(Exit::Input, format!("--namespace: {error}")))?;
    cli.command.check(&cli.global)
}

/// Returns the file and the name of the table, for an error whose line is not known.
fn in_table(file: &File, commands: &[String]) -> String {
    match commands {
        [] => file.path().display().to_string(),
        _ => format!("{}: [{}]", file.path().display(), commands.join(".")),
    }
}

/// Returns whether every missing argument would also be missing without the file. If not, a flag of
/// the file requires another flag, and that is an error of the file.
fn is_missing_anyway(bare: &[OsString], with_file: &clap::Error) -> bool {
    let missing = |error: &clap::Error| {
        error
            .get(clap::error::ContextKind::InvalidArg)
            .map(ToString::to_string)
    };
    crate::cli(&mut crate::command(), bare)
        .err()
        .is_some_and(|without| {
            let (with, without) = (
                missing(with_file).unwrap_or_default(),
                missing(&without).unwrap_or_default(),
            );
            with.split(", ")
                .all(|flag| without.split(", ").any(|other| other == flag))
        })
}

/// Returns the output lines for the flags of a command, in the order of `--help`.
fn lines(file: &File, commands: &[String], root: &clap::Command, all: bool) -> Vec<Line> {
    let Some(command) = commands
        .iter()
        .try_fold(root, |command, word| command.find_subcommand(word))
    else {
        return Vec::new();
    };
    let line = |flag: &Arg| {
        let name = flag.get_long()?;
        let setting = config::joined(commands, name);
        let in_file = file
            .settings()
            .iter()
            .find(|setting| setting.commands == commands && setting.flag == name);
        if in_file.is_none() && !all {
            return None;
        }
        let (value, from) = if config::is_set(flag) {
            let variable = flag.get_env().unwrap_or_default();
            let value = std::env::var_os(variable)
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let instead = in_file.map_or_else(String::new, |setting| {
                format!(", instead of {}", file.place(setting))
            });
            (
                vec![value],
                format!(
                    "environment variable {}{instead}",
                    variable.to_string_lossy()
                ),
            )
        } else if let Some(setting) = in_file {
            let is_off = !flag.get_action().takes_values() && setting.values.is_empty();
            (
                if is_off {
                    vec!["false".to_owned()]
                } else {
                    setting.values.clone()
                },
                file.place(setting),
            )
        } else {
            let values = flag
                .get_default_values()
                .iter()
                .map(|value| value.to_string_lossy().into_owned())
                .collect();
            let is_switch = matches!(flag.get_action(), ArgAction::SetTrue);
            (
                if is_switch {
                    vec!["false".to_owned()]
                } else {
                    values
                },
                "default".to_owned(),
            )
        };
        let shown = |value: String| {
            if name.ends_with("header") {
                without_value(&value)
            } else {
                without_secrets(&value)
            }
        };
        let value = value.into_iter().map(shown);
        Some(Line {
            setting,
            value: value.collect(),
            from,
        })
    };
    config::flags(command, commands).filter_map(line).collect()
}
