//! The program starts. Its other tests are in the top-level folder `tests`.
//!
//! Cargo builds the program for an integration test of its own package. The tests in the top-level
//! folder are those of the library, and start this program. So `--test program` has to be one of the
//! tests of a run that starts the program.

use std::process::Command;

fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_seriatim"))
        .args(args)
        .output()
        .expect("the program runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn it_says_its_name_and_version() {
    assert_eq!(
        printed(&["--version"]),
        concat!("seriatim ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn the_help_lists_the_commands() {
    let help = printed(&["--help"]);
    let commands = [
        "worker",
        "emit",
        "serve",
        "dashboard",
        "verify",
        "demo",
        "bench",
    ];
    for command in commands {
        assert!(
            help.lines()
                .any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}: {help}"
        );
    }
}
