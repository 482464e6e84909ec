//! Pauses and blocks. Workers claim no further event of an object that is under such a rule. A rule
//! is for all objects, for a prefix, or for one object.
//!
//! Producers can still emit, and events in flight finish. A rule takes effect with the next step of
//! any worker. When the rule is lifted or past its end, workers wake its objects, some in each
//! step, and then delete the rule. Pauses and blocks differ only in who sets them: a user sets
//! pauses, an operator sets blocks. A pause and a block may be set for the same objects, and each
//! of them is lifted separately.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis::{RedisResult, Value};
use serde::Serialize;

use super::{Control, ControlError, reply};
use crate::escape;
use crate::event::{DUE_MAX, NameError, ObjectName};
use crate::wire::operator::{self, RuleStep};
pub use crate::wire::operator::{By, Ruled};
use crate::wire::values::RuleValue;

/// Maximum number of rules at the same time. To pause more objects, use rules for prefixes.
pub const RULES_MAX: u64 = 1000;

/// Maximum number of colons in the prefix of a rule. Each colon costs one more lookup for every
/// object that a worker claims.
pub const COLONS_MAX: usize = 8;

/// Longest time after which a rule can end by itself: a hundred years, with leap years.
pub const FOR_MAX: Duration = DUE_MAX;

/// The kind of a rule. Blocks sort before pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Set by an operator.
    Block,
    /// Set by a user.
    Pause,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Pause => "pause",
        }
    }
}

/// The objects of a rule: `*` for all, `PREFIX:*` for names that begin with `PREFIX:`, or the name
/// of one object. A prefix has at most [`COLONS_MAX`] colons.
///
/// Parsing refuses a text with a star in another place, or with a blank at the beginning or end.
/// Such a text would match only an object of exactly this name, which is rarely intended.
/// [`Selector::exact`] accepts such a name. An object whose name is `*`, or ends with `:*`, cannot
/// be selected alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Selector(String);

/// The reason why text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text is not a valid object name, or no valid object name begins with it.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The prefix has more than [`COLONS_MAX`] colons.
    #[error(
        "{0:?} has too many colons: the prefix of a rule ends at one of the first {COLONS_MAX} colons of a name"
    )]
    Colons(String),
    /// The text has a star that is neither the whole text nor the end of it after a colon. A rule for
    /// the object of this very name needs [`Selector::exact`].
    #[error(
        "{0:?} has a star elsewhere than at the end behind a colon; write `*` for all objects, or a prefix as in work:*"
    )]
    Star(String),
    /// A blank at the beginning or the end. A rule for the object of this very name needs
    /// [`Selector::exact`].
    #[error("{0:?} begins or ends with a blank; leave it out")]
    Blank(String),
    /// The text should name one object, but it selects many objects.
    #[error(
        "{0:?} is the selector of many objects: the object of this very name cannot be meant alone"
    )]
    Many(String),
}

impl Selector {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the [escaped](crate::escape::name) form, which the commands print and take.
    pub fn escaped(&self) -> Cow<'_, str> {
        escape::name(&self.0)
    }

    /// Selects only the object of exactly this name. Accepts names with a star or a blank, which
    /// parsing refuses as a probable mistake.
    ///
    /// # Errors
    /// [`SelectorError::Name`] for an invalid object name; [`SelectorError::Many`] for `*` and
    /// names that end with `:*`.
    pub fn exact(name: &str) -> Result<Self, SelectorError> {
        if name == "*" || name.ends_with(":*") {
            return Err(SelectorError::Many(name.to_owned()));
        }
        ObjectName::new(name)?;
        Ok(Self(name.to_owned()))
    }

    /// Returns the selector of an existing rule, so that the rule can be lifted. An older version
    /// of seriatim may have set rules whose selectors [`FromStr`] refuses.
    ///
    /// # Errors
    /// [`SelectorError::Name`] if no rule can have this selector.
    pub fn existing(text: &str) -> Result<Self, SelectorError> {
        match text.strip_suffix(":*") {
            _ if text == "*" => {}
            Some(prefix) => drop(ObjectName::new(format!("{prefix}:"))?),
            None => drop(ObjectName::new(text)?),
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let selector = Self::existing(text)?;
        let rest = if text == "*" {
            ""
        } else {
            text.strip_suffix(":*").unwrap_or(text)
        };
        if rest.contains('*') {
            Err(SelectorError::Star(text.to_owned()))
        } else if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
            Err(SelectorError::Blank(text.to_owned()))
        } else if text.ends_with(":*") && text.matches(':').count() > COLONS_MAX {
            Err(SelectorError::Colons(text.to_owned()))
        } else {
            Ok(selector)
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Rule {
    /// Kind of the rule.
    pub kind: Kind,
    /// Objects of the rule.
    pub selector: Selector,
    /// Whether the rule holds objects. If not, the rule is lifted or past its end, and workers wake
    /// its objects.
    pub in_force: bool,
    /// User or operator who set the rule.
    pub actor: String,
    /// Reason that this actor gave for the rule.
    pub reason: String,
    /// Time at which the rule was set, ms since the epoch.
    pub set_ms: u64,
    /// Time at which the rule ends by itself, ms since the epoch; none if it has no end.
    pub end_ms: Option<u64>,
}

impl Rule {
    /// Parses a field and a value of `event.rules`; none if they are invalid.
    pub(super) fn of(field: &[u8], value: &[u8], now_ms: u64) -> Option<Self> {
        let (kind, selector) = field.split_at_checked(b"pause ".len())?;
        let kind = match kind {
            b"block " => Kind::Block,
            b"pause " => Kind::Pause,
            _ => return None,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let rule = RuleValue::read(value)?;
        Some(Self {
            kind,
            selector: Selector(text(selector)),
            in_force: rule.is_in_force(now_ms),
            actor: text(&rule.who),
            reason: text(&rule.why),
            set_ms: rule.set_ms,
            end_ms: rule.end_ms,
        })
    }
}

/// The form for people: the kind, and the escaped selector.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.selector.escaped())
    }
}

/// Checks the time after which a rule ends by itself.
///
/// # Errors
/// [`ControlError::RuleTime`] for less than 1 ms and more than [`FOR_MAX`].
pub fn check_for(after: Duration) -> Result<(), ControlError> {
    let is_valid = after >= Duration::from_millis(1) && after <= FOR_MAX;
    if is_valid {
        Ok(())
    } else {
        Err(ControlError::RuleTime)
    }
}

/// All rules at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rules {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The rules: first the blocks, then the pauses, each kind sorted by selector.
    pub rules: Vec<Rule>,
}

impl Control {
    /// Sets a rule. The rule is in force until it is lifted or until the time `after` has passed (1
    /// ms to [`FOR_MAX`]). The rule takes effect with the next step of
    /// any worker process, within a second. If the rule already exists, its end, actor and reason
    /// are replaced. The step is recorded in the [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// [`ControlError::Rules`] if there are [`RULES_MAX`] rules already. [`ControlError::Name`] for
    /// an invalid object name, and [`ControlError::RuleTime`] for a time out of range. Other errors if Redis cannot be asked or forbids it.
    pub async fn set_rule(
        &self,
        by: By<'_>,
        kind: Kind,
        selector: &Selector,
        after: Option<Duration>,
    ) -> Result<Ruled, ControlError> {
        after.map_or(Ok(()), check_for)?;
        self.rule_step(by, RuleStep::Set(after), kind, selector)
            .await
    }

    /// Lifts a rule. The call itself only marks the rule as lifted. Workers then wake the objects
    /// of the rule, some in each step, even if one of the workers dies meanwhile. Objects under
    /// another rule stay paused. Returns [`Ruled::NotSet`] if there is no such rule. The step is
    /// recorded in the [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. Dropping the future does not undo the
    /// step.
    ///
    /// # Errors
    /// As [`Control::set_rule`].
    pub async fn lift_rule(
        &self,
        by: By<'_>,
        kind: Kind,
        selector: &Selector,
    ) -> Result<Ruled, ControlError> {
        self.rule_step(by, RuleStep::Lift, kind, selector).await
    }

    async fn rule_step(
        &self,
        by: By<'_>,
        step: RuleStep,
        kind: Kind,
        selector: &Selector,
    ) -> Result<Ruled, ControlError> {
        let (text, keys) = (selector.as_str(), &self.keys);
        if text != "*" {
            keys.object(if text.ends_with(":*") {
                &text[..text.len() - 1]
            } else {
                text
            })?;
        }
        match operator::rule(
            &mut self.connection(),
            keys,
            by,
            step,
            kind.word(),
            text.as_bytes(),
            RULES_MAX,
        )
        .await?
        {
            Ruled::TooMany(rules) => Err(ControlError::Rules(rules)),
            ruled => Ok(ruled),
        }
    }

    /// Reads all rules; there are at most [`RULES_MAX`]. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `event.rules` is not a hash.
    pub async fn rules(&self) -> Result<Rules, ControlError> {
        const WHAT: &str = "event.rules";
        let mut conn = self.connection();
        let now_ms = reply::now_ms(&mut conn).await?;
        let mut ask = redis::cmd("HGETALL");
        let answer: RedisResult<Vec<(Vec<u8>, Vec<u8>)>> = ask
            .arg(self.keys.event_rules())
            .query_async(&mut conn)
            .await;
        let fields = answer.map_err(ControlError::redis(WHAT))?;
        let mut rules: Vec<Rule> = fields
            .iter()
            .filter_map(|(field, value)| Rule::of(field, value, now_ms))
            .collect();
        rules.sort();
        Ok(Rules { now_ms, rules })
    }
}

/// Maximum number of selectors that one call of [`Control::count_paused`] counts.
pub const COUNTED_MAX: usize = 250;

impl Control {
    /// Counts for each of these selectors the paused objects that it selects: those that wait for
    /// this rule or for another one. Only the first [`COUNTED_MAX`] selectors are counted; the
    /// counts of the others are none. The counts may be of slightly different moments.
    ///
    /// Cost: one command for each selector, which takes O(log n) for n paused objects. The call
    /// only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked, or if `objects.paused` is not a sorted set.
    pub async fn count_paused(
        &self,
        selectors: &[&Selector],
    ) -> Result<Vec<Option<u64>>, ControlError> {
        const WHAT: &str = "objects.paused";
        let key = self.keys.objects_paused();
        let mut pipe = redis::pipe();
        // No MULTI: a user that only reads has no right to it, and a full Redis refuses it.
        for selector in selectors.iter().take(COUNTED_MAX) {
            match selector.as_str().strip_suffix(":*") {
                _ if selector.as_str() == "*" => pipe.cmd("ZCARD").arg(&key),
                // A semicolon is the byte after a colon. So the range has all names that begin with
                // the prefix and its colon.
                Some(prefix) => pipe
                    .cmd("ZLEXCOUNT")
                    .arg(&key)
                    .arg(format!("[{prefix}:"))
                    .arg(format!("({prefix};")),
                None => pipe
                    .cmd("ZLEXCOUNT")
                    .arg(&key)
                    .arg(format!("[{selector}"))
                    .arg(format!("[{selector}")),
            };
        }
        if selectors.is_empty() {
            return Ok(Vec::new());
        }
        let counts: Vec<u64> = pipe
            .query_async(&mut self.connection())
            .await
            .map_err(ControlError::redis(WHAT))?;
        let mut counts: Vec<Option<u64>> = counts.into_iter().map(Some).collect();
        counts.resize(selectors.len(), None);
        Ok(counts)
    }
}

/// Parses a rule from a part of the reply of `lua/inspect.lua`. The part has the length of the
/// rule's field in `event.rules`, a blank, that field, and its value.
pub(super) fn parse(value: &Value, now_ms: u64) -> Option<Rule> {
    let bytes = reply::bytes(value)?;
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let (field, value) = bytes.get(blank + 1..)?.split_at_checked(len)?;
    Rule::of(field, value, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_all_a_prefix_at_a_colon_or_one_object() {
        for good in ["*", "work:*", "a:b:*", "work:1", ":*", "two words"] {
            assert_eq!(good.parse::<Selector>().expect("a selector").as_str(), good);
            assert_eq!(Selector::existing(good).expect("a selector").as_str(), good);
        }
        assert!(format!("{}*", "a:".repeat(8)).parse::<Selector>().is_ok());
        assert!(matches!(
            format!("{}*", "a:".repeat(9)).parse::<Selector>(),
            Err(SelectorError::Colons(_))
        ));
        // Only a prefix has a limit of colons. The name of one object may have any number of them.
        assert!("a:".repeat(100).parse::<Selector>().is_ok());
        for bad in ["", "a\nb"] {
            let refused = [
                bad.parse::<Selector>(),
                Selector::exact(bad),
                Selector::existing(bad),
            ];
            assert!(
                refused
                    .iter()
                    .all(|refused| matches!(refused, Err(SelectorError::Name(_)))),
                "{bad:?}"
            );
        }
    }

    /// Story: `pause '*:1'`, `pause 'k:*:x'` and `pause 'work:1 '` were once read as names of
    /// objects. The commands paused no object, but reported success.
    #[test]
    fn a_star_or_a_blank_that_looks_like_a_slip_is_refused_unless_the_name_is_meant() {
        for name in ["*:1", "k:*:x", "work*", "w**", "work*1", "k:*:*"] {
            assert_eq!(
                name.parse::<Selector>(),
                Err(SelectorError::Star(name.to_owned()))
            );
        }
        for name in ["work:1 ", " work:1", "work:1\u{a0}", " work:*"] {
            assert_eq!(
                name.parse::<Selector>(),
                Err(SelectorError::Blank(name.to_owned()))
            );
        }
        for name in ["*:1", "k:*:x", "work:1 ", "work*"] {
            assert_eq!(Selector::exact(name).expect("a name").as_str(), name);
            assert_eq!(
                Selector::existing(name)
                    .expect("a rule may be there")
                    .as_str(),
                name
            );
        }
        for many in ["*", "work:*"] {
            assert_eq!(
                Selector::exact(many),
                Err(SelectorError::Many(many.to_owned()))
            );
        }
    }

    #[test]
    fn a_rule_is_read_back_with_blanks_and_any_bytes_in_its_texts() {
        let rule =
            Rule::of(b"pause work:*", b"17 90 0 8 3 ada hostx \0why not", 50).expect("a rule");
        assert_eq!(
            (
                rule.actor.as_str(),
                rule.reason.as_str(),
                rule.set_ms,
                rule.end_ms
            ),
            ("ada host", "why not", 17, Some(90))
        );
        assert!(rule.in_force && rule.to_string() == "pause work:*");
        assert!(
            !Rule::of(b"block *", b"17 50 0 0 0 ", 50)
                .expect("a rule")
                .in_force
        );
        assert!(
            !Rule::of(b"block *", b"17 0 1 0 0 ", 50)
                .expect("a rule")
                .in_force
        );
        for (field, value) in [
            (&b"next"[..], &b"0"[..]),
            (b"pause *", b"17 0 0 9 0 short"),
            (b"other *", b"17 0 0 0 0 "),
        ] {
            assert_eq!(Rule::of(field, value, 0), None);
        }
    }
}
