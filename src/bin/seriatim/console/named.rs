//! Object names on the command line: escaped, as every output shows them, and read back.

use std::borrow::Cow;

use seriatim::escape;
use seriatim::keys::Keys;

use crate::console::exit::{Exit, Failure};
use crate::console::shown;

/// The bytes of the name that an argument gives.
pub(crate) fn object(keys: &Keys, text: &str) -> anyhow::Result<Vec<u8>> {
    let name = escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("object name {error}")))?;
    keys.found(&name).map_err(|error| shown::failure(error.into()))?;
    Ok(name)
}

/// What a name looks like in outputs, given the escaped form if that differs.
pub(crate) fn shown<'a>(object: &'a str, escaped: Option<&'a str>) -> &'a str {
    escaped.unwrap_or(object)
}

/// Whether an object is the one that `--object` names, if any; both in the form that outputs show.
pub(crate) fn is_wanted(wanted: Option<&str>, object: &str, escaped: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| wanted == shown(object, escaped))
}

/// The bytes of the name that `--object` gives, also where no object can have it.
pub(crate) fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    escape::unescaped(text).map_err(|error| Failure::with(Exit::Input, format!("--object: {error}")))
}

/// The form that outputs show of the name that an argument gives: an argument may spell an escape
/// in another way.
pub(crate) fn canonical(text: Option<&str>) -> anyhow::Result<Option<String>> {
    Ok(text.map(bytes).transpose()?.map(|name| Cow::into_owned(escape::name(&name))))
}
