//! Environment variables that look like those of this program.

use clap::Command;

use crate::nearest;
use crate::shown::{self, Level};

const PREFIX: &str = "SERIATIM_";
/// The minimum similarity at which a variable is probably misspelled.
const ALIKE: f64 = 0.85;
/// An option that gives no hint: the tests of this project have a variable with this name, and run the
/// program.
const SEED: &str = "seed";
/// A variable that no flag has.
const SERVER: &str = "SERIATIM_REDIS_SERVER";

/// Warns of each variable that is not known, but similar to a known one, or to an option that has no
/// variable: it has no effect. Other unknown variables may belong to another program, e.g. the address
/// of a service that Kubernetes sets.
pub fn warn(root: &Command) {
    let mut known = Known::default();
    known.variables.push(SERVER.to_owned());
    known.collect(root);
    for (name, _) in std::env::vars_os() {
        if let Some(hint) = name.to_str().and_then(|name| known.hint(name)) {
            shown::tell(Level::Warn, &hint);
        }
    }
}

/// The variables of the program, and its options that have none.
#[derive(Default)]
struct Known {
    variables: Vec<String>,
    /// The options without a variable, e.g. `lease`.
    options: Vec<String>,
}

impl Known {
    /// Returns the warning of a variable that probably should have an effect, but has none.
    fn hint(&self, name: &str) -> Option<String> {
        let words = name.strip_prefix(PREFIX)?;
        // Kubernetes sets such variables for a service, e.g. for one named seriatim-redis.
        let of_service =
            name.ends_with("_PORT") || name.contains("_PORT_") || name.contains("_SERVICE_");
        if of_service || self.variables.iter().any(|known| known == name) {
            return None;
        }
        // The words behind the common beginning are compared, because the beginning alone makes any
        // two variables similar.
        let known = self.variables.iter();
        let known = known.filter_map(|known| known.strip_prefix(PREFIX));
        let meant = match nearest::nearest(words, known, ALIKE) {
            Some(meant) => format!("did you mean {PREFIX}{meant}?"),
            None => {
                let option = words.to_ascii_lowercase().replace('_', "-");
                let options = self.options.iter().map(String::as_str);
                let option = nearest::nearest(&option, options, ALIKE)?;
                format!(
                    "the option --{option} has no variable: write it on the command line, or in the file of --config"
                )
            }
        };
        Some(format!(
            "the environment variable {name} is unknown and has no effect; {meant}"
        ))
    }

    /// Collects the options of a command and of its subcommands.
    fn collect(&mut self, command: &Command) {
        for arg in command.get_arguments() {
            match (arg.get_env().and_then(|name| name.to_str()), arg.get_long()) {
                (Some(variable), _) => self.variables.push(variable.to_owned()),
                (None, Some(option)) if option != SEED => self.options.push(option.to_owned()),
                _ => {}
            }
        }
        command
            .get_subcommands()
            .for_each(|inner| self.collect(inner));
    }
}

#[cfg(test)]
mod tests {
    use super::Known;

    #[test]
    fn a_misspelled_variable_is_recognized() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let known = Known {
            variables: names(&[
                "SERIATIM_REDIS",
                "SERIATIM_NAMESPACE",
                "SERIATIM_EVENT_LOG_KEEP",
            ]),
            options: names(&["lease", "batch", "group-depth"]),
        };
        for (name, found) in [
            ("SERIATIM_NAMESPCE", "did you mean SERIATIM_NAMESPACE?"),
            ("SERIATIM_REDIS_URL", "did you mean SERIATIM_REDIS?"),
            (
                "SERIATIM_EVENTLOG_KEEP",
                "did you mean SERIATIM_EVENT_LOG_KEEP?",
            ),
            ("SERIATIM_LEESE", "the option --lease has no variable"),
            ("SERIATIM_LEASE", "the option --lease has no variable"),
            ("SERIATIM_BATHC", "the option --batch has no variable"),
            (
                "SERIATIM_GROUP_DEPTH",
                "the option --group-depth has no variable",
            ),
            ("SERIATIM_NAMESPACE", ""),
            ("SERIATIM_REDIS_PORT", ""),
            ("SERIATIM_SEED", ""),
            ("SERIATIM_PORT_8080_TCP_ADDR", ""),
            ("SERIATIM_SERVICE_HOST", ""),
            ("LEASE", ""),
        ] {
            let hint = known.hint(name).unwrap_or_default();
            let expected = format!("{name} is unknown and has no effect; {found}");
            match found {
                "" => assert_eq!(hint, "", "{name}"),
                _ => assert!(hint.contains(&expected), "{name}: {hint}"),
            }
        }
    }
}
