//! The rights that actions need.

use seriatim::control::rules::{Kind, Selector};

use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// Checks that the user may set or lift a rule of this kind for this selector. A rule needs the
/// right `pause` for all objects of the selector. A block also needs the right `operate`.
pub(crate) fn may_rule(user: &User, kind: Kind, selector: &Selector) -> Result<(), Problem> {
    if kind == Kind::Block {
        user.may_some(Right::Operate)?;
    }
    match selector.as_str() {
        "*" => user.may_all(Right::Pause),
        // The selector `work:*` is for all objects whose names begin with `work:`. So one of the
        // user's prefixes must cover all these names.
        one => user.may(
            Right::Pause,
            one.strip_suffix('*').unwrap_or(one).as_bytes(),
        ),
    }
}
