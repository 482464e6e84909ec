//! Names on the command line: of objects, of cron jobs, keys of schedules, prefixes and selectors.
//! They are escaped as in every output, so that a name can be copied from an output.

use std::borrow::Cow;

use seriatim::control::rules::{Selector, SelectorError};
use seriatim::escape;
use seriatim::keys::Keys;

use crate::exit::{Exit, Failure};
use crate::shown;

/// Returns the bytes of an object name that is given as an argument.
pub fn object(keys: &Keys, text: &str) -> anyhow::Result<Vec<u8>> {
    let name = escape::unescaped(text)
        .map_err(|error| Failure::with(Exit::Input, format!("object name {error}")))?;
    keys.found(&name)
        .map_err(|error| shown::failure(error.into()))?;
    Ok(name)
}

/// Returns the text that an escaped argument stands for. Its bytes must be UTF-8.
pub fn text(escaped: &str) -> Result<String, String> {
    let bytes = escape::unescaped(escaped).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| format!("{escaped:?} does not stand for a text in UTF-8"))
}

/// Checks the prefix of names, not escaped. Refuses a star at its end, as the selector of a rule has it:
/// no object would probably match.
pub fn check_prefix(prefix: &[u8]) -> Result<(), String> {
    match prefix.strip_suffix(b"*") {
        Some(bare) => Err(format!(
            "a prefix has no star at its end; write {:?}",
            escape::name(bare)
        )),
        None => Ok(()),
    }
}

/// Parses the escaped selector of a new rule, limit or share.
pub fn selector(escaped: &str) -> Result<Selector, String> {
    text(escaped)?
        .parse()
        .map_err(|error: SelectorError| error.to_string())
}

/// Parses the escaped selector of an existing rule, limit or share.
pub fn existing_selector(escaped: &str) -> Result<Selector, String> {
    Selector::existing(&text(escaped)?).map_err(|error| error.to_string())
}

/// Returns the form of an object name in outputs: the escaped form if there is one, and otherwise
/// the name.
pub fn shown<'a>(object: &'a str, escaped: Option<&'a str>) -> &'a str {
    escaped.unwrap_or(object)
}

/// Returns whether an object is the one that `--object` selects. Without `--object`, every object
/// is selected. `wanted` is in the form of outputs.
pub fn is_wanted(wanted: Option<&str>, object: &str, escaped: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| wanted == shown(object, escaped))
}

/// Returns the bytes of the name in `--object`. Does not check whether the name is valid.
pub fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    escape::unescaped(text)
        .map_err(|error| Failure::with(Exit::Input, format!("--object: {error}")))
}

/// Returns a name from an argument in the form of outputs. The argument may have written the same
/// name with other escapes.
pub fn canonical(text: Option<&str>) -> anyhow::Result<Option<String>> {
    Ok(text
        .map(bytes)
        .transpose()?
        .map(|name| Cow::into_owned(escape::name(&name))))
}
