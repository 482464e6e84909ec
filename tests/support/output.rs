//! Runs of the program `seriatim` by a test, and what it prints.

use std::process::{Command, Output};

use serde_json::Value;

use super::Redis;

/// The words of a command line.
pub trait Words {
    /// Returns the words.
    fn words(&self) -> Vec<String>;
}

/// Single quotes hold a word with blanks together.
impl Words for str {
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (at, part) in self.split('\'').enumerate() {
            match at % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }
}

impl Words for String {
    fn words(&self) -> Vec<String> {
        self.as_str().words()
    }
}

impl Words for [&str] {
    fn words(&self) -> Vec<String> {
        self.iter().map(|word| (*word).to_owned()).collect()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(&self) -> Vec<String> {
        self[..].words()
    }
}

impl Words for Vec<&str> {
    fn words(&self) -> Vec<String> {
        self[..].words()
    }
}

impl Redis {
    /// Returns the program with these arguments. Its Redis and its namespace are those of the test.
    pub fn command(&self, arguments: &(impl Words + ?Sized)) -> Command {
        let mut command = command_at(self.url(), &["--namespace", self.namespace()]);
        command.args(arguments.words());
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &(impl Words + ?Sized)) -> Output {
        self.command(arguments).output().expect("the program runs")
    }

    /// Runs the program. Returns its exit code.
    pub fn exits(&self, arguments: &(impl Words + ?Sized)) -> Option<i32> {
        self.run(arguments).status.code()
    }

    /// Runs the program, which succeeds without a message. Returns what it has printed.
    #[track_caller]
    pub fn prints(&self, arguments: &(impl Words + ?Sized)) -> String {
        printed(&self.run(arguments))
    }

    /// Runs the program, which succeeds. Returns its standard output, but not its messages.
    #[track_caller]
    pub fn stdout(&self, arguments: &(impl Words + ?Sized)) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs the program, which ends with exit code 2. Returns its message.
    #[track_caller]
    pub fn refuses(&self, arguments: &(impl Words + ?Sized)) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// Runs the program, which succeeds and prints a JSON value. Returns the value.
    #[track_caller]
    pub fn json(&self, arguments: &(impl Words + ?Sized)) -> Value {
        serde_json::from_str(&self.prints(arguments)).expect("JSON")
    }

    /// Runs the program, which succeeds and prints lines of JSON. Returns their values.
    #[track_caller]
    pub fn json_lines(&self, arguments: &(impl Words + ?Sized)) -> Vec<Value> {
        json_lines(&self.prints(arguments))
    }
}

/// Returns the program with these arguments. Its Redis is at this URL.
pub fn command_at(url: &str, arguments: &(impl Words + ?Sized)) -> Command {
    let mut command = Command::new(super::program());
    command
        .args(["--redis", url])
        .args(arguments.words())
        .env_remove("SERIATIM_REDIS")
        .env_remove("SERIATIM_NAMESPACE");
    command
}

/// Returns what a program has printed that has succeeded. It has printed no error.
#[track_caller]
pub fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Returns the values in lines of JSON.
#[track_caller]
pub fn json_lines(printed: &str) -> Vec<Value> {
    let lines = printed.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}
