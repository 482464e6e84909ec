//! Environment variables that look like those of this program.

use clap::Command;

use crate::nearest;
use crate::shown::{self, Level};

const PREFIX: &str = "SERIATIM_";
/// The minimum similarity at which a variable is probably misspelled.
const ALIKE: f64 = 0.85;
/// A variable that no flag has.
const SERVER: &str = "SERIATIM_REDIS_SERVER";

/// Warns of each variable that is not known, but similar to a known one: it is probably misspelled,
/// and has no effect. Other unknown variables may belong to another program, e.g. the address of a
/// service that Kubernetes sets.
pub fn warn(root: &Command) {
    let mut known = vec![SERVER.to_owned()];
    collect(root, &mut known);
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if let Some(meant) = meant(name, &known) {
            let what = format!(
                "the environment variable {name} is unknown and has no effect; did you mean {meant}?"
            );
            shown::tell(Level::Warn, &what);
        }
    }
}

/// Returns the known variable that was probably meant by a name; none if the name is known itself.
fn meant(name: &str, known: &[String]) -> Option<String> {
    // Kubernetes sets such variables for a service, e.g. for one named seriatim-redis.
    let of_service =
        name.ends_with("_PORT") || name.contains("_PORT_") || name.contains("_SERVICE_");
    if of_service || known.iter().any(|known| known == name) {
        return None;
    }
    // The words behind the common beginning are compared, because the beginning alone makes any two
    // variables similar.
    let words = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
    nearest::nearest(name.strip_prefix(PREFIX)?, words, ALIKE).map(|word| format!("{PREFIX}{word}"))
}

/// Collects the variables of the flags of a command and of its subcommands.
fn collect(command: &Command, known: &mut Vec<String>) {
    let variables = command
        .get_arguments()
        .filter_map(|arg| arg.get_env()?.to_str());
    known.extend(variables.map(str::to_owned));
    command
        .get_subcommands()
        .for_each(|inner| collect(inner, known));
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn a_misspelled_variable_is_recognized() {
        let known = [
            "SERIATIM_REDIS",
            "SERIATIM_NAMESPACE",
            "SERIATIM_EVENT_LOG_KEEP",
        ]
        .map(str::to_owned);
        for (name, found) in [
            ("SERIATIM_NAMESPCE", Some("SERIATIM_NAMESPACE")),
            ("SERIATIM_REDIS_URL", Some("SERIATIM_REDIS")),
            ("SERIATIM_EVENTLOG_KEEP", Some("SERIATIM_EVENT_LOG_KEEP")),
            ("SERIATIM_NAMESPACE", None),
            ("SERIATIM_REDIS_PORT", None),
            ("SERIATIM_SEED", None),
            ("SERIATIM_PORT_8080_TCP_ADDR", None),
            ("SERIATIM_SERVICE_HOST", None),
        ] {
            assert_eq!(meant(name, &known).as_deref(), found, "{name}");
        }
    }
}
