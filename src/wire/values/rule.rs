//! A pause or a block.

/// The value of a rule in `event.rules`: `SET_MS END_MS LIFTED WHO_BYTES CURSOR_BYTES `, then WHO,
/// CURSOR and WHY without spaces between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleValue {
    /// The time at which the rule was set, in ms since the epoch.
    pub set_ms: u64,
    /// The time at which the rule ends by itself, in ms since the epoch; `None`: never.
    pub end_ms: Option<u64>,
    /// Whether the rule is lifted and workers are waking its objects.
    pub lifted: bool,
    /// The actor who set the rule.
    pub who: Vec<u8>,
    /// The position of the wake: the objects up to this name have been woken.
    pub cursor: Vec<u8>,
    /// The reason why the rule was set.
    pub why: Vec<u8>,
}

impl RuleValue {
    /// Reads a value. Returns `None` if the value is invalid.
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(6, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
        let (set_ms, end_ms, lifted) = (number()?, number()?, number()?);
        let (who_bytes, cursor_bytes) = (
            usize::try_from(number()?).ok()?,
            usize::try_from(number()?).ok()?,
        );
        let (who, rest) = parts.next()?.split_at_checked(who_bytes)?;
        let (cursor, why) = rest.split_at_checked(cursor_bytes)?;
        Some(Self {
            set_ms,
            end_ms: (end_ms > 0).then_some(end_ms),
            lifted: lifted != 0,
            who: who.to_owned(),
            cursor: cursor.to_owned(),
            why: why.to_owned(),
        })
    }

    /// Returns the value as stored.
    pub fn text(&self) -> Vec<u8> {
        let (end_ms, lifted) = (self.end_ms.unwrap_or(0), u8::from(self.lifted));
        let numbers = format!(
            "{} {end_ms} {lifted} {} {} ",
            self.set_ms,
            self.who.len(),
            self.cursor.len()
        );
        [numbers.as_bytes(), &self.who, &self.cursor, &self.why].concat()
    }

    /// Returns whether the rule holds objects at this time.
    pub fn is_in_force(&self, now_ms: u64) -> bool {
        !self.lifted && self.end_ms.is_none_or(|end_ms| end_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_is_printed() {
        for value in [
            &b"5 0 0 3 0 adawhy not"[..],
            b"5 9 1 0 4 a\0 bthe reason",
            b"5 0 0 0 0 ",
        ] {
            assert_eq!(RuleValue::read(value).expect("a rule").text(), value);
        }
        for value in [
            &b""[..],
            b"5 0 0 3 0",
            b"5 0 0 9 0 ada",
            b"x 0 0 0 0 ",
            b"5 0 0 0 9 ada",
        ] {
            assert_eq!(RuleValue::read(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_rule_holds_until_its_end_or_until_it_is_lifted() {
        let rule = RuleValue {
            set_ms: 5,
            end_ms: Some(9),
            lifted: false,
            who: vec![],
            cursor: vec![],
            why: vec![],
        };
        assert!(rule.is_in_force(8) && !rule.is_in_force(9));
        assert!(
            RuleValue {
                end_ms: None,
                ..rule.clone()
            }
            .is_in_force(9)
        );
        assert!(
            !RuleValue {
                lifted: true,
                ..rule
            }
            .is_in_force(8)
        );
    }
}
