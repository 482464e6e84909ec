//! The words of the command line, and the words that the configuration file adds to them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use seriatim_console::exit::{Exit, Failure};

use super::{File, Setting};

/// The environment variable that names the configuration file.
const VARIABLE: &str = "SERIATIM_CONFIG";

/// The commands, flags and arguments of a command line.
struct Said<'a> {
    /// The commands, each with the position of the word after it.
    commands: Vec<(&'a Command, usize)>,
    /// The flags with their values, if any.
    flags: HashMap<String, Option<OsString>>,
    /// The number of arguments without a flag.
    positionals: usize,
    /// The positions of all words of the form `--switch=true` or `--switch=false`, and whether the
    /// value is true.
    switched: Vec<(usize, bool)>,
}

impl<'a> Said<'a> {
    /// Finds the commands, the flags and the number of arguments in the words, as clap would. Every
    /// word after `--` is an argument.
    fn by(words: &[OsString], root: &'a Command) -> Self {
        let (mut command, mut said) = (
            root,
            Self {
                commands: Vec::new(),
                flags: HashMap::new(),
                positionals: 0,
                switched: Vec::new(),
            },
        );
        let mut rest = words.iter().enumerate().skip(1);
        while let Some((at, word)) = rest.next() {
            if word == "--" {
                said.positionals += rest.len();
                break;
            }
            let Some(flag) = word.to_str().and_then(|word| word.strip_prefix("--")) else {
                if let Some(inner) = command.find_subcommand(word) {
                    said.commands.push((inner, at + 1));
                    command = inner;
                } else {
                    said.positionals += 1;
                }
                continue;
            };
            let (name, mut value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (flag, None),
            };
            let takes_value = |arg: &Arg| {
                arg.get_long() == Some(name)
                    && arg.get_action().takes_values()
                    && !arg.is_require_equals_set()
            };
            if value.is_none() && command.get_arguments().any(takes_value) {
                value = rest.next().map(|(_, value)| value.clone());
            }
            let is_switch = |arg: &Arg| {
                arg.get_long() == Some(name) && matches!(arg.get_action(), ArgAction::SetTrue)
            };
            if let Some(is_on @ ("true" | "false")) =
                value.as_ref().and_then(|value| value.to_str())
                && command.get_arguments().any(is_switch)
            {
                said.switched.push((at, is_on == "true"));
            }
            said.flags.insert(name.to_owned(), value);
        }
        said
    }

    fn has(&self, arg: &Arg) -> bool {
        match (arg.get_long(), arg.get_index()) {
            (Some(long), _) => self.flags.contains_key(long),
            (None, at) => at.is_some_and(|at| at <= self.positionals),
        }
    }

    /// Returns whether an argument of the command line and this flag exclude each other. Clap may
    /// know this from either of the two.
    fn excludes(&self, flag: &Arg, command: &Command) -> bool {
        let excludes = |a: &Arg, b: &Arg| {
            command
                .get_arg_conflicts_with(a)
                .iter()
                .any(|arg| arg.get_id() == b.get_id())
        };
        command
            .get_arguments()
            .filter(|arg| self.has(arg))
            .any(|arg| excludes(arg, flag) || excludes(flag, arg))
    }
}

/// Returns the configuration file that `--config` or the environment variable names. With `--help`
/// or `--version` no file is read. For commands that use no setting, and for `config check FILE`,
/// the environment variable is ignored.
pub(crate) fn named_file(words: &[OsString], root: &Command) -> Option<PathBuf> {
    let said = Said::by(words, root);
    let is_short = |word: &OsString| word == "-h" || word == "-V";
    let mut flags = words.iter().take_while(|word| *word != "--");
    if ["help", "version"]
        .iter()
        .any(|flag| said.flags.contains_key(*flag))
        || flags.any(is_short)
    {
        return None;
    }
    let command = said.commands.first().map(|(command, _)| command.get_name());
    let needs_none = match command {
        Some("completions" | "healthcheck" | "help" | "token") => true,
        Some("config") => said.positionals > 0,
        _ => false,
    };
    match said.flags.get("config") {
        Some(path) => path.clone().map(PathBuf::from),
        None if needs_none => None,
        None => std::env::var_os(VARIABLE)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
    }
}

/// Returns the words with each switch in its plain form: replaces `--switch=true` by `--switch`,
/// and removes `--switch=false`.
pub(crate) fn plain_switches(words: &[OsString], root: &Command) -> Vec<OsString> {
    let said = Said::by(words, root);
    let mut words = words.to_vec();
    for (at, is_on) in said.switched.into_iter().rev() {
        match words[at].to_str().and_then(|word| word.split_once('=')) {
            Some((switch, _)) if is_on => words[at] = switch.into(),
            _ => drop(words.remove(at)),
        }
    }
    words
}

/// Returns whether the environment has a value for the flag. An empty variable counts as unset.
pub(crate) fn is_set(flag: &Arg) -> bool {
    flag.get_env()
        .and_then(std::env::var_os)
        .is_some_and(|value| !value.is_empty())
}

impl File {
    /// Adds the flags of the file to the words of a command line. Leaves out a flag that the
    /// command line or the environment already has, or that excludes another flag of the command
    /// line. Returns the words, and the settings that were added.
    pub(crate) fn complete(
        &self,
        words: &[OsString],
        root: &Command,
    ) -> (Vec<OsString>, Vec<&Setting>) {
        let said = Said::by(words, root);
        let (mut words, mut added) = (words.to_vec(), Vec::new());
        // The settings are inserted from the last one to the first one, so that the positions in
        // `said` that are still needed stay valid.
        for setting in self.settings.iter().rev() {
            let depth = setting.commands.len();
            let spoken = said
                .commands
                .iter()
                .take(depth)
                .map(|(command, _)| command.get_name());
            if depth > said.commands.len()
                || !spoken.eq(setting.commands.iter().map(String::as_str))
            {
                continue;
            }
            let (command, place) = depth
                .checked_sub(1)
                .map_or((root, 1), |last| said.commands[last]);
            let Some(flag) = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(&setting.flag))
            else {
                continue;
            };
            if said.has(flag) || is_set(flag) || said.excludes(flag, command) {
                continue;
            }
            words.splice(place..place, setting.words());
            added.push(setting);
        }
        (words, added)
    }

    /// Returns an error with the place in the file, if clap's error is about a value that the file
    /// has added.
    pub(crate) fn explain(
        &self,
        error: &clap::Error,
        text: &str,
        added: &[&Setting],
    ) -> Option<anyhow::Error> {
        let named = match error.get(ContextKind::InvalidArg)? {
            ContextValue::String(named) => named,
            ContextValue::Strings(all) => all.first()?,
            _ => return None,
        };
        let flag = named.strip_prefix("--")?.split([' ', '=', '[']).next()?;
        let setting = added.iter().find(|setting| setting.flag == flag)?;
        let text = text
            .split(" For more information")
            .next()
            .unwrap_or_default()
            .trim_end_matches(';');
        Some(Failure::with(
            Exit::Input,
            format!("{}: {text}", self.place(setting)),
        ))
    }
}

impl Setting {
    /// Returns the words of this setting for the command line. A value is in the same word as its
    /// flag (`--flag=value`), so that it cannot be taken for a flag.
    fn words(&self) -> Vec<OsString> {
        let flag = &self.flag;
        let word = |value: &String| {
            OsString::from(if self.is_switch {
                format!("--{flag}")
            } else {
                format!("--{flag}={value}")
            })
        };
        self.values.iter().map(word).collect()
    }
}
