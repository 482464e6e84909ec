//! The command line of a program, without a shell.

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Access, access};

/// A program and its arguments.
///
/// The text form is split at blanks. A part in single or double quotes may have blanks; a backslash
/// outside of single quotes takes the next character as it is. Nothing else has a meaning, because no
/// shell reads the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
}

/// The reason why a text is not a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The text has no program.
    #[error("there is no command; write e.g. python3 handlers.py")]
    Empty,
    /// A quote or an escape has no end.
    #[error("a quote or a backslash has no end")]
    Unclosed,
    /// A part has a NUL, which no argument of a program can have.
    #[error("the command has a NUL character")]
    Nul,
}

impl FromStr for Command {
    type Err = CommandError;

    fn from_str(text: &str) -> Result<Self, CommandError> {
        if text.contains('\0') {
            return Err(CommandError::Nul);
        }
        let (mut parts, mut part, mut chars) = (Vec::new(), None::<String>, text.chars());
        let mut quote = None;
        while let Some(c) = chars.next() {
            match (quote, c) {
                (Some(q), c) if c == q => quote = None,
                (Some('\''), c) => part.get_or_insert_default().push(c),
                (_, '\\') => {
                    let next = chars.next().ok_or(CommandError::Unclosed)?;
                    part.get_or_insert_default().push(next);
                }
                (Some(_), c) => part.get_or_insert_default().push(c),
                (None, '\'' | '"') => {
                    quote = Some(c);
                    part.get_or_insert_default();
                }
                (None, c) if c.is_whitespace() => parts.extend(part.take()),
                (None, c) => part.get_or_insert_default().push(c),
            }
        }
        if quote.is_some() {
            return Err(CommandError::Unclosed);
        }
        parts.extend(part);
        let mut parts = parts.into_iter();
        let program = parts.next().filter(|program| !program.is_empty());
        Ok(Self {
            program: program.ok_or(CommandError::Empty)?,
            args: parts.collect(),
        })
    }
}

impl Command {
    /// Returns the path of the program, as a start finds it. Does not start it.
    ///
    /// # Errors
    /// If there is no such program, or this user cannot execute it.
    pub fn find(&self) -> io::Result<PathBuf> {
        if self.program.contains('/') {
            let path = PathBuf::from(&self.program);
            return is_program(&path).map(|()| path);
        }
        let dirs = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&dirs)
            .map(|dir| dir.join(&self.program))
            .find(|path| is_program(path).is_ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no directory of PATH has it"))
    }
}

fn is_program(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// The form without secrets: the arguments may have some.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        match self.args.is_empty() {
            true => Ok(()),
            false => f.write_str(" …"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_at_blanks_outside_of_quotes() {
        let parts = |text: &str| {
            let command: Command = text.parse().expect("a command");
            [vec![command.program], command.args].concat()
        };
        assert_eq!(parts("python3  a.py\t-v"), ["python3", "a.py", "-v"]);
        assert_eq!(
            parts(r#"'a b' "c 'd'" e\ f '' g"h"i"#),
            ["a b", "c 'd'", "e f", "", "ghi"]
        );
        assert_eq!(
            parts(r#"a "b\"c" 'd\e' $HOME *"#),
            ["a", "b\"c", "d\\e", "$HOME", "*"]
        );
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for (text, why) in [
            ("", CommandError::Empty),
            ("  ", CommandError::Empty),
            ("'' a", CommandError::Empty),
            ("a 'b", CommandError::Unclosed),
            ("a \\", CommandError::Unclosed),
            ("a\0b", CommandError::Nul),
        ] {
            assert_eq!(text.parse::<Command>(), Err(why), "{text:?}");
        }
    }

    #[test]
    fn a_program_is_found_as_a_start_finds_it() {
        let find = |text: &str| text.parse::<Command>().expect("a command").find();
        let sh = find("sh -c true").expect("a shell");
        assert!(sh.is_absolute() && find(&sh.display().to_string()).is_ok());
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (text, kind) in [
            ("no-such-program", io::ErrorKind::NotFound),
            ("/no/such/program", io::ErrorKind::NotFound),
            ("/", io::ErrorKind::IsADirectory),
            (
                &file.path().display().to_string(),
                io::ErrorKind::PermissionDenied,
            ),
        ] {
            let error = find(text).expect_err("no program");
            assert_eq!(error.kind(), kind, "{text}: {error}");
        }
    }

    #[test]
    fn no_argument_is_shown() {
        let shown = |text: &str| text.parse::<Command>().expect("a command").to_string();
        assert_eq!(shown("python3 a.py --key secret"), "python3 …");
        assert_eq!(shown("handlers"), "handlers");
    }
}
