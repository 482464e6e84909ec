//! Object names on the command line: escaped as in every output, and parsed back.

use std::borrow::Cow;

use seriatim::escape;
use seriatim::keys::Keys;

use crate::console::exit::{Exit, Failure};
use crate::console::shown;

/// Returns the bytes of the object name in an argument.
pub(crate) fn object(keys: &Keys, text: &str) -> anyhow::Result<Vec<u8>> {
    let name = escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("object name {error}")))?;
    keys.found(&name).map_err(|error| shown::failure(error.into()))?;
    Ok(name)
}

/// Returns the form of a name in outputs: the escaped form if it differs.
pub(crate) fn shown<'a>(object: &'a str, escaped: Option<&'a str>) -> &'a str {
    escaped.unwrap_or(object)
}

/// Returns whether an object is the one that `--object` selects, if given. Both are in the output
/// form.
pub(crate) fn is_wanted(wanted: Option<&str>, object: &str, escaped: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| wanted == shown(object, escaped))
}

/// Returns the bytes of the name in `--object`, even if no object can have this name.
pub(crate) fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("--object: {error}")))
}

/// Returns the output form of the name in an argument, because an argument may write an escape
/// differently.
pub(crate) fn canonical(text: Option<&str>) -> anyhow::Result<Option<String>> {
    Ok(text.map(bytes).transpose()?.map(|name| Cow::into_owned(escape::name(&name))))
}
