//! The configuration file. It is TOML, and its values stand for flags of the command line.
//!
//! Keys at the top are options of every command. Each command has a table with its flags;
//! `[dead.list]` is the table of the command `dead list`. The value of a flag comes from the first
//! place that has it: the command line, the environment variable of the flag, the file, the
//! default.
//!
//! The values of the file are inserted as words into the command line. So the same parsers check
//! them.

mod words;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::nearest;
use toml::de::{DeTable, DeValue};

pub(crate) use words::{is_set, named_file, plain_switches};

/// The largest configuration file, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
/// Flags that a file cannot have.
const NEVER: [&str; 3] = ["config", "help", "version"];

/// A configuration file that was read. All its keys are valid.
pub(crate) struct File {
    path: PathBuf,
    /// The keys of the file with their values, in the order of the file.
    settings: Vec<Setting>,
}

/// One key of the file.
pub(crate) struct Setting {
    /// The command that has the flag, as its words, e.g. `dead`, `list`; empty for an option of
    /// every command.
    pub(crate) commands: Vec<String>,
    /// The name of the flag, without hyphens before it.
    pub(crate) flag: String,
    /// The line in the file, from 1.
    pub(crate) line: usize,
    /// The values, as texts of the command line. A switch that is off has no value.
    pub(crate) values: Vec<String>,
    /// Whether the flag is a switch, without a value on the command line.
    is_switch: bool,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, is longer than 1 MiB, or is not TOML. Or it has a key that is not a
    /// flag, or a value of a wrong type. The error names the file, and if possible the line and the
    /// key.
    pub(crate) fn read(path: &Path, root: &Command) -> anyhow::Result<Self> {
        let shown = path.display();
        let cannot = |reason: &dyn std::fmt::Display| {
            Failure::with(
                Exit::Input,
                format!("cannot read the configuration {shown}: {reason}"),
            )
        };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(|error| cannot(&error))?;
        file.take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| cannot(&error))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(cannot(&"it is longer than 1 MiB"));
        }
        let text = String::from_utf8(bytes).map_err(|error| cannot(&error.utf8_error()))?;
        let mut reader = Reader {
            text: &text,
            settings: Vec::new(),
        };
        let table = DeTable::parse(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| reader.line(span.start));
            Failure::with(
                Exit::Input,
                format!("{shown}:{line}: {}", error.message().replace('\n', ", ")),
            )
        })?;
        reader
            .table(table.get_ref(), root, &[])
            .map_err(|Fault { line, what }| {
                Failure::with(Exit::Input, format!("{shown}:{line}: {what}"))
            })?;
        let mut settings = reader.settings;
        settings.sort_by_key(|setting| setting.line);
        Ok(Self {
            path: path.to_owned(),
            settings,
        })
    }

    /// Returns the settings, in the order of the file.
    pub(crate) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns the place of a line: `FILE:LINE`.
    pub(crate) fn place(&self, setting: &Setting) -> String {
        format!("{}:{}", self.path.display(), setting.line)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The reader of one file. It collects the settings of all tables.
struct Reader<'a> {
    text: &'a str,
    settings: Vec<Setting>,
}

struct Fault {
    line: usize,
    what: String,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self
            .text
            .bytes()
            .take(at)
            .filter(|&byte| byte == b'\n')
            .count()
    }

    /// Reads the table of a command. Tables are nested at most as deep as the commands.
    fn table(
        &mut self,
        table: &DeTable<'_>,
        command: &Command,
        commands: &[String],
    ) -> Result<(), Fault> {
        for (key, value) in table {
            let line = self.line(key.span().start);
            let fault = |what: String| Fault { line, what };
            let name: &str = key.get_ref();
            if let DeValue::Table(inner) = value.get_ref() {
                let inner_command = find_command(command, name)
                    .ok_or_else(|| fault(no_command(name, command, commands)))?;
                let path: Vec<String> = commands.iter().cloned().chain([name.to_owned()]).collect();
                self.table(inner, inner_command, &path)?;
                continue;
            }
            let flag = find_flag(command, name, commands).map_err(fault)?;
            let is_switch = !flag.get_action().takes_values();
            let values = values_of(value.get_ref(), flag, is_switch)
                .map_err(|what| fault(format!("{name}: {what}")))?;
            self.settings.push(Setting {
                commands: commands.to_vec(),
                flag: name.to_owned(),
                line,
                values,
                is_switch,
            });
        }
        Ok(())
    }
}

fn find_command<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    command
        .get_subcommands()
        .find(|inner| inner.get_name() == name && name != "help")
}

/// Returns the flags that the file may have in the table of this command. With an empty `commands`,
/// returns the options of every command, which are at the top of the file.
pub(crate) fn flags<'a>(
    command: &'a Command,
    commands: &[String],
) -> impl Iterator<Item = &'a Arg> {
    let is_root = commands.is_empty();
    let here = move |arg: &&Arg| arg.is_global_set() == is_root && !arg.is_positional();
    command
        .get_arguments()
        .filter(here)
        .filter(|arg| arg.get_long().is_some_and(|long| !NEVER.contains(&long)))
}

fn find_flag<'a>(command: &'a Command, name: &str, commands: &[String]) -> Result<&'a Arg, String> {
    let flag = flags(command, commands).find(|arg| arg.get_long() == Some(name));
    flag.ok_or_else(|| {
        if NEVER.contains(&name) {
            return format!("{name} cannot be in a file");
        }
        let is_global = command
            .get_arguments()
            .any(|arg| arg.is_global_set() && arg.get_long() == Some(name));
        match is_global {
            true => {
                format!("{name} is an option of every command; write it above the first [table]")
            }
            false if find_command(command, name).is_some() => {
                format!(
                    "{name} is a command; write its flags in a table [{}]",
                    joined(commands, name)
                )
            }
            false => unknown(name, command, commands),
        }
    })
}

/// Returns the error text for a key that is not a flag.
fn unknown(name: &str, command: &Command, commands: &[String]) -> String {
    let hint = hint(
        name,
        flags(command, commands)
            .filter_map(Arg::get_long)
            .chain(inner(command)),
    );
    match commands {
        [] => format!("{name} is no option of every command{hint}"),
        _ => format!(
            "{name} is no flag of `seriatim {}`{hint}",
            commands.join(" ")
        ),
    }
}

/// Returns the error text for a table that is not a command.
fn no_command(name: &str, command: &Command, commands: &[String]) -> String {
    format!(
        "[{}] is no command{}",
        joined(commands, name),
        hint(name, inner(command))
    )
}

fn inner(command: &Command) -> impl Iterator<Item = &str> {
    command
        .get_subcommands()
        .map(Command::get_name)
        .filter(|&name| name != "help")
}

/// Returns the text that suggests the most similar known word, if any.
fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest::hint(&name.replace('_', "-"), known)
}

/// Returns the name of a table or key with the tables around it.
pub(crate) fn joined(commands: &[String], name: &str) -> String {
    commands
        .iter()
        .map(String::as_str)
        .chain([name])
        .collect::<Vec<_>>()
        .join(".")
}

/// Returns the values of a key, as texts for the command line.
fn values_of(value: &DeValue<'_>, flag: &Arg, is_switch: bool) -> Result<Vec<String>, String> {
    match value {
        DeValue::Boolean(on) if is_switch => Ok(if *on {
            vec!["true".to_owned()]
        } else {
            Vec::new()
        }),
        _ if is_switch => Err("write true or false".to_owned()),
        DeValue::Array(values) if matches!(flag.get_action(), ArgAction::Append) => {
            values.iter().map(|value| scalar(value.get_ref())).collect()
        }
        DeValue::Array(_) => Err("write one value, not a list".to_owned()),
        value => scalar(value).map(|value| vec![value]),
    }
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(on) => Ok(on.to_string()),
        DeValue::Datetime(time) => Ok(time.to_string()),
        DeValue::Integer(_) => Err("write the number in decimal".to_owned()),
        DeValue::Array(_) | DeValue::Table(_) => {
            Err("write a text, a number, true or false".to_owned())
        }
    }
}
