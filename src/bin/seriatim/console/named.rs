//! Object names on the command line. They are escaped as in every output, so that a name can be
//! copied from an output.

use std::borrow::Cow;

use seriatim::escape;
use seriatim::keys::Keys;

use crate::console::exit::{Exit, Failure};
use crate::console::shown;

/// Returns the bytes of an object name that is given as an argument.
pub(crate) fn object(keys: &Keys, text: &str) -> anyhow::Result<Vec<u8>> {
    let name = escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("object name {error}")))?;
    keys.found(&name).map_err(|error| shown::failure(error.into()))?;
    Ok(name)
}

/// Returns the form of an object name in outputs: the escaped form if there is one, and otherwise
/// the name.
pub(crate) fn shown<'a>(object: &'a str, escaped: Option<&'a str>) -> &'a str {
    escaped.unwrap_or(object)
}

/// Returns whether an object is the one that `--object` selects. Without `--object`, every object
/// is selected. `wanted` is in the form of outputs.
pub(crate) fn is_wanted(wanted: Option<&str>, object: &str, escaped: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| wanted == shown(object, escaped))
}

/// Returns the bytes of the name in `--object`. Does not check whether the name is valid.
pub(crate) fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("--object: {error}")))
}

/// Returns a name from an argument in the form of outputs. The argument may have written the same
/// name with other escapes.
pub(crate) fn canonical(text: Option<&str>) -> anyhow::Result<Option<String>> {
    Ok(text.map(bytes).transpose()?.map(|name| Cow::into_owned(escape::name(&name))))
}
