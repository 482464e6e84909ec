//! A limit of the queues.

/// The value of a limit in `event.limits`: `QUEUED MARKERS SET_MS WHO_BYTES WHO WHY`, without a
/// space between WHO and WHY. The field of the value in the hash is the selector of the limit, `*`
/// or `PREFIX:*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitValue {
    /// The most events queued for an object; `None`: any number.
    pub queued_max: Option<u64>,
    /// The most markers; `None`: any number.
    pub markers_max: Option<u64>,
    /// The time at which the limit was set, in ms since the epoch.
    pub set_ms: u64,
    /// The actor who set the limit.
    pub who: Vec<u8>,
    /// The reason why the limit was set.
    pub why: Vec<u8>,
}

impl LimitValue {
    /// Reads a value. Returns `None` if the value is invalid.
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(5, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
        let (queued, markers, set_ms) = (number()?, number()?, number()?);
        let who_bytes = usize::try_from(number()?).ok()?;
        let (who, why) = parts.next()?.split_at_checked(who_bytes)?;
        let some = |number: u64| (number > 0).then_some(number);
        Some(Self {
            queued_max: some(queued),
            markers_max: some(markers),
            set_ms,
            who: who.to_owned(),
            why: why.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read() {
        let limit = LimitValue::read(b"10 0 1700 3 adawhy not").expect("a limit");
        assert_eq!(
            (limit.queued_max, limit.markers_max, limit.set_ms),
            (Some(10), None, 1700)
        );
        assert_eq!(
            (&limit.who[..], &limit.why[..]),
            (&b"ada"[..], &b"why not"[..])
        );
        for value in [&b""[..], b"1 2 3", b"1 2 3 9 ada", b"x 2 3 0 "] {
            assert_eq!(LimitValue::read(value), None);
        }
    }
}
