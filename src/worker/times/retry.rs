//! The retry policies: the waits of a failed event between its attempts, the most attempts, and the
//! event's fate when all attempts are used up.
//!
//! A policy has no state. The number of failures is in Redis, in the tag of the batch, so the
//! number survives the process that counted.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::worker::times::growing_wait::spread;

/// The range of a wait.
const WAIT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
/// The largest limit of attempts.
const ATTEMPTS_MAX: u32 = 1_000_000;
/// The default of [`RetryPolicy::jitter`].
const JITTER_DEFAULT: u8 = 50;

/// The rule for an event whose delivery fails with
/// [`Stop::Transient`](crate::sink::Stop::Transient).
///
/// On the command line, a policy is written as the name of a preset, or as a backoff with or
/// without a limit:
///
/// ```
/// use seriatim::worker::RetryPolicy;
///
/// let policy: RetryPolicy = "fixed:5m,attempts=3,then=dead-letter".parse()?;
/// assert_eq!(policy, RetryPolicy::FIXED_5M_2);
/// let endless: RetryPolicy = "exponential:100ms..1m".parse()?;
/// assert_eq!(endless, RetryPolicy::default());
/// # Ok::<(), seriatim::worker::RetryError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The waits between attempts.
    pub backoff: Backoff,
    /// The limit of attempts; `None`: no limit.
    pub limit: Option<Limit>,
    /// The width of the range from which each wait is drawn at random, in percent of the wait: 0 to
    /// 100, default 50. So objects that failed at the same time do not come back at the same time.
    /// With 0 the waits are exact.
    pub jitter: u8,
    /// The fate of a rejected event ([`Stop::Rejected`](crate::sink::Stop::Rejected)). Default: a
    /// dead letter.
    pub rejected: UsedUp,
}

/// The waits of an object between two attempts of its event, each 1 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// The same wait after each failure, on average. The range of the policy's `jitter` lies around
    /// this wait: with 50 %, the actual wait is a random time between 75 % and 125 % of it.
    Fixed(Duration),
    /// A wait that doubles from `min` up to `max`. The range of the policy's `jitter` lies below
    /// this wait: with 50 %, the actual wait is a random time between half of it and the whole.
    Exponential {
        /// The wait after the first failure.
        min: Duration,
        /// The longest wait; at least `min`.
        max: Duration,
    },
}

/// The limit of an event's attempts, and the event's fate after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The number of attempts, the first one included. 1 to 1,000,000.
    pub attempts: u32,
    /// The fate of the event after the last attempt has failed.
    pub then: UsedUp,
}

/// The fate of an event whose attempts are used up, that was rejected, or that has killed too many
/// workers. The event's error is stored in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedUp {
    /// The event goes to the dead letters. The object's next event follows.
    DeadLetter,
    /// The event is completed with errors: `event.log` gets the event with its error. The object's
    /// next event follows.
    CompleteWithErrors,
    /// The object is held until an operator releases it or skips the event.
    Hold,
}

impl RetryPolicy {
    /// `fixed-5m-2`: two retries, five minutes apart, then a dead letter.
    pub const FIXED_5M_2: Self = Self::of(
        Backoff::Fixed(Duration::from_secs(300)),
        Some(Limit {
            attempts: 3,
            then: UsedUp::DeadLetter,
        }),
    );

    /// `scheduler`: at most 100 attempts; then the event is completed with errors. The wait before
    /// attempt n is a random time between half and all of min(120 s, 20 s · 2^(n−2)).
    pub const SCHEDULER: Self = Self::of(
        Backoff::Exponential {
            min: Duration::from_secs(20),
            max: Duration::from_secs(120),
        },
        Some(Limit {
            attempts: 100,
            then: UsedUp::CompleteWithErrors,
        }),
    );

    /// `minute`: once a minute, for ever.
    pub const MINUTE: Self = Self::of(Backoff::Fixed(Duration::from_secs(60)), None);

    const DEFAULT: Self = Self::of(
        Backoff::Exponential {
            min: Duration::from_millis(100),
            max: Duration::from_secs(60),
        },
        None,
    );

    /// The named policies.
    pub const PRESETS: &[(&str, Self)] = &[
        ("default", Self::DEFAULT),
        ("fixed-5m-2", Self::FIXED_5M_2),
        ("scheduler", Self::SCHEDULER),
        ("minute", Self::MINUTE),
    ];

    const fn of(backoff: Backoff, limit: Option<Limit>) -> Self {
        Self {
            backoff,
            limit,
            jitter: JITTER_DEFAULT,
            rejected: UsedUp::DeadLetter,
        }
    }

    /// Checks the ranges of the waits, of the attempts and of the jitter.
    ///
    /// # Errors
    /// A sentence about the value that is out of range.
    pub fn validate(&self) -> Result<(), &'static str> {
        let waits = match self.backoff {
            Backoff::Fixed(wait) => [wait, wait],
            Backoff::Exponential { min, max } => [min, max],
        };
        if !waits.iter().all(|wait| WAIT.contains(wait)) {
            return Err("a wait must be 1 ms to 24 h");
        } else if waits[0] > waits[1] {
            return Err("the longest wait must be at least the first one");
        } else if self.jitter > 100 {
            return Err("the jitter must be 0 to 100 percent");
        }
        match self.limit {
            Some(limit) if !(1..=ATTEMPTS_MAX).contains(&limit.attempts) => {
                Err("it must be 1 to 1000000 attempts")
            }
            _ => Ok(()),
        }
    }

    /// Returns the event's fate if this number of failures uses up its attempts.
    pub(crate) fn used_up(&self, failures: u32) -> Option<UsedUp> {
        self.limit
            .filter(|limit| failures >= limit.attempts)
            .map(|limit| limit.then)
    }

    /// Returns a wait for an object whose sink asked for this wait: this wait, or up to half of the
    /// jitter longer.
    pub(crate) fn at_least(&self, wait: Duration) -> Duration {
        spread(wait, 1.0, 1.0 + f64::from(self.jitter.min(100)) / 200.0)
    }

    /// Returns the wait after this number of failures.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let width = f64::from(self.jitter.min(100)) / 100.0;
        match self.backoff {
            Backoff::Fixed(wait) => spread(wait, 1.0 - width / 2.0, 1.0 + width / 2.0),
            Backoff::Exponential { min, max } => spread(
                min.saturating_mul(1 << failures.saturating_sub(1).min(30))
                    .min(max),
                1.0 - width,
                1.0,
            ),
        }
    }
}

/// Retries after 100 ms, doubling to 1 minute with jitter, for ever.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl UsedUp {
    const WORDS: [(&str, Self); 3] = [
        ("dead-letter", Self::DeadLetter),
        ("complete-with-errors", Self::CompleteWithErrors),
        ("hold", Self::Hold),
    ];
}

/// The word is not one of hold, dead-letter and complete-with-errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("then={0} is invalid; write hold, dead-letter or complete-with-errors")]
pub struct UsedUpError(String);

impl FromStr for UsedUp {
    type Err = UsedUpError;

    fn from_str(word: &str) -> Result<Self, UsedUpError> {
        let known = Self::WORDS.iter().find(|(name, _)| *name == word);
        known
            .map(|(_, then)| *then)
            .ok_or_else(|| UsedUpError(word.to_owned()))
    }
}

impl fmt::Display for UsedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            Self::WORDS
                .iter()
                .find(|(_, then)| then == self)
                .map_or("", |(word, _)| word),
        )
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backoff {
            Backoff::Fixed(wait) => write!(f, "fixed:{}", Time(wait))?,
            Backoff::Exponential { min, max } => {
                write!(f, "exponential:{}..{}", Time(min), Time(max))?
            }
        }
        if self.jitter != JITTER_DEFAULT {
            write!(f, ",jitter={}", self.jitter)?;
        }
        if let Some(Limit { attempts, then }) = self.limit {
            write!(f, ",attempts={attempts},then={then}")?;
        }
        match self.rejected {
            UsedUp::DeadLetter => Ok(()),
            then => write!(f, ",rejected={then}"),
        }
    }
}

/// The text is not a valid retry policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{spec:?} is no retry policy: {why}; write default, fixed-5m-2, scheduler, minute, fixed:5m or exponential:100ms..1m, \
     and append ,attempts=10,then=dead-letter (or complete-with-errors, or hold) to end the attempts, ,rejected=hold (or \
     complete-with-errors, or dead-letter) for rejected events, ,jitter=0 for exact waits"
)]
pub struct RetryError {
    /// The text.
    pub spec: String,
    /// The mistake in the text.
    pub why: String,
}

impl FromStr for RetryPolicy {
    type Err = RetryError;

    fn from_str(spec: &str) -> Result<Self, RetryError> {
        let policy =
            read(spec).and_then(|policy| policy.validate().map(|()| policy).map_err(str::to_owned));
        policy.map_err(|why| RetryError {
            spec: spec.to_owned(),
            why,
        })
    }
}

fn read(spec: &str) -> Result<RetryPolicy, String> {
    let mut parts = spec.split(',');
    let first = parts.next().unwrap_or_default();
    let mut policy = match (
        RetryPolicy::PRESETS.iter().find(|(name, _)| *name == first),
        first.split_once(':'),
    ) {
        (Some((_, preset)), _) => *preset,
        (None, Some(("fixed", wait))) => RetryPolicy::of(Backoff::Fixed(time(wait)?), None),
        (None, Some(("exponential", waits))) => {
            let (min, max) = waits
                .split_once("..")
                .ok_or("an exponential backoff has two waits, MIN..MAX")?;
            RetryPolicy::of(
                Backoff::Exponential {
                    min: time(min)?,
                    max: time(max)?,
                },
                None,
            )
        }
        _ => return Err("it does not begin with a backoff".to_owned()),
    };
    let (mut attempts, mut then, mut jitter, mut rejected) = (None, None, None, None);
    let fate = |name: &str, word: &str| {
        word.parse::<UsedUp>()
            .map_err(|_| format!("{name}={word} is invalid"))
    };
    for part in parts {
        match part.split_once('=') {
            Some(("attempts", n)) if attempts.is_none() => {
                attempts = Some(
                    n.parse()
                        .map_err(|_| format!("attempts={n} is not a number"))?,
                );
            }
            Some(("then", word)) if then.is_none() => then = Some(fate("then", word)?),
            Some(("rejected", word)) if rejected.is_none() => {
                rejected = Some(fate("rejected", word)?)
            }
            Some(("jitter", percent)) if jitter.is_none() => {
                let number = percent
                    .parse()
                    .map_err(|_| format!("jitter={percent} is not a number of percent"))?;
                jitter = Some(number);
            }
            _ => return Err(format!("{part:?} is unknown")),
        }
    }
    policy.limit = match (attempts, then) {
        (None, None) => policy.limit,
        (Some(attempts), Some(then)) => Some(Limit { attempts, then }),
        _ => return Err("attempts= and then= go together".to_owned()),
    };
    policy.jitter = jitter.unwrap_or(policy.jitter);
    policy.rejected = rejected.unwrap_or(policy.rejected);
    Ok(policy)
}

/// The units of time with their milliseconds, longest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Reads a duration: 250ms, 5s, 1m30s.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 250ms, 5s or 1m30s");
    let (mut left, mut ms) = (text, 0u64);
    while !left.is_empty() {
        let digits = left.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, rest) = left.split_at(digits);
        let (unit, rest) = rest.split_at(
            rest.find(|c: char| c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let (_, unit_ms) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        let part = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(*unit_ms))
            .ok_or_else(wrong)?;
        ms = ms.checked_add(part).ok_or_else(wrong)?;
        left = rest;
    }
    if text.is_empty() {
        Err(wrong())
    } else {
        Ok(Duration::from_millis(ms))
    }
}

/// Prints a duration in the form that [`time`] reads. Fractions of a millisecond are left out.
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ms = self.0.as_millis();
        if ms == 0 {
            return f.write_str("0s");
        }
        for (unit, unit_ms) in UNITS {
            let n = ms / u128::from(unit_ms);
            if n > 0 {
                write!(f, "{n}{unit}")?;
            }
            ms %= u128::from(unit_ms);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    /// Asserts that every wait after this number of failures lies between half of `full` and
    /// `full`.
    fn assert_wait(policy: RetryPolicy, failures: u32, full: Duration) {
        for _ in 0..50 {
            let wait = policy.wait(failures);
            assert!(
                wait <= full && wait >= full / 2,
                "{policy} after {failures}: {wait:?}"
            );
        }
    }

    /// Tests the waits and the ends of the presets.
    #[test]
    fn the_presets_are_what_their_names_say() {
        for (failures, ms) in [
            (1, 100),
            (2, 200),
            (3, 400),
            (10, 51_200),
            (11, 60_000),
            (u32::MAX, 60_000),
        ] {
            assert_wait(RetryPolicy::default(), failures, Duration::from_millis(ms));
        }
        assert_eq!(RetryPolicy::default().used_up(u32::MAX), None);
        // The wait before attempt n is the wait after n - 1 failures.
        for n in 2..=100u32 {
            assert_wait(
                RetryPolicy::SCHEDULER,
                n - 1,
                secs((20u64 << (n - 2).min(20)).min(120)),
            );
            assert_eq!(RetryPolicy::SCHEDULER.used_up(n - 1), None);
        }
        assert_eq!(
            RetryPolicy::SCHEDULER.used_up(100),
            Some(UsedUp::CompleteWithErrors)
        );
        let fixed = RetryPolicy::FIXED_5M_2;
        let exact = RetryPolicy { jitter: 0, ..fixed };
        assert_eq!((exact.wait(1), exact.wait(2)), (secs(300), secs(300)));
        assert_eq!(
            (fixed.used_up(2), fixed.used_up(3)),
            (None, Some(UsedUp::DeadLetter))
        );
        assert_eq!(RetryPolicy::MINUTE.used_up(1000), None);
    }

    /// 3,000 objects failed together under `fixed:15s`, and 2,998 of them came back in one second.
    #[test]
    fn waits_are_spread_unless_that_is_turned_off() {
        for (spec, from_ms, to_ms) in [
            ("fixed:15s", 11_250, 18_750),
            ("scheduler", 60_000, 120_000),
            ("fixed:15s,jitter=100", 7500, 22_500),
        ] {
            let policy: RetryPolicy = spec.parse().expect(spec);
            let mut seconds = std::collections::BTreeMap::new();
            for _ in 0..3000 {
                let wait = policy.wait(5);
                assert!(
                    (from_ms..=to_ms).contains(&wait.as_millis()),
                    "{spec}: {wait:?}"
                );
                *seconds.entry(wait.as_secs()).or_insert(0) += 1;
            }
            let most = seconds.values().max();
            assert!(most <= Some(&600), "{spec}: {seconds:?}");
            let exact = RetryPolicy {
                jitter: 0,
                ..policy
            };
            assert_eq!(exact.wait(5), exact.wait(5));
        }
    }

    /// A sink asks for the same wait for many objects, e.g. by `Retry-After`. No wait is shorter.
    #[test]
    fn waits_that_a_sink_asks_for_are_spread_too() {
        let (asked, policy) = (secs(30), RetryPolicy::default());
        let waits: Vec<_> = (0..3000).map(|_| policy.at_least(asked)).collect();
        assert!(
            waits
                .iter()
                .all(|wait| (asked..=asked.mul_f64(1.25)).contains(wait)),
            "{:?}",
            waits.iter().max()
        );
        let mut seconds = std::collections::BTreeMap::new();
        waits
            .iter()
            .for_each(|wait| *seconds.entry(wait.as_secs()).or_insert(0) += 1);
        assert!(seconds.values().all(|waits| *waits <= 600), "{seconds:?}");
        assert_eq!(
            RetryPolicy {
                jitter: 0,
                ..policy
            }
            .at_least(asked),
            asked
        );
    }

    #[test]
    fn a_preset_is_found_by_its_name() {
        for (name, policy) in RetryPolicy::PRESETS {
            assert_eq!(name.parse::<RetryPolicy>().as_ref(), Ok(policy));
            policy.validate().expect("valid");
        }
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_reason() {
        for (spec, why) in [
            ("", "it does not begin with a backoff"),
            ("hourly", "it does not begin with a backoff"),
            ("fixed:", "\"\" is not a time"),
            ("fixed:5", "\"5\" is not a time"),
            ("fixed:5 m", "is not a time"),
            ("fixed:18446744073709551615d", "is not a time"),
            ("fixed:0s", "a wait must be 1 ms to 24 h"),
            ("fixed:25h", "a wait must be 1 ms to 24 h"),
            ("exponential:1s", "two waits"),
            ("exponential:2s..1s", "at least the first"),
            ("fixed:1s,attempts=3", "go together"),
            ("fixed:1s,then=hold", "go together"),
            ("fixed:1s,attempts=0,then=hold", "1 to 1000000"),
            (
                "fixed:1s,attempts=x,then=hold",
                "attempts=x is not a number",
            ),
            ("fixed:1s,attempts=1,then=drop", "then=drop is invalid"),
            ("fixed:1s,rejected=drop", "rejected=drop is invalid"),
            (
                "fixed:1s,rejected=hold,rejected=hold",
                "\"rejected=hold\" is unknown",
            ),
            ("fixed:1s,jitter=101", "0 to 100 percent"),
            ("fixed:1s,jitter=no", "jitter=no is not a number"),
            ("minute,then=hold", "go together"),
            (
                "fixed:1s,attempts=1,then=hold,attempts=2",
                "\"attempts=2\" is unknown",
            ),
        ] {
            let error = spec.parse::<RetryPolicy>().expect_err(spec).to_string();
            assert!(
                error.contains(why) && error.contains("write default"),
                "{spec}: {error}"
            );
        }
    }

    fn fates() -> impl Strategy<Value = UsedUp> {
        prop::sample::select(vec![
            UsedUp::DeadLetter,
            UsedUp::CompleteWithErrors,
            UsedUp::Hold,
        ])
    }

    proptest! {
        #[test]
        fn a_policy_is_what_its_text_says(
            ms in 1u64..86_400_000,
            more in prop::option::of(0u64..1_000_000),
            limit in prop::option::of((1u32..1_000_000, fates())),
            jitter in 0u8..=100,
            rejected in fates(),
        ) {
            let wait = Duration::from_millis(ms);
            let backoff = match more {
                None => Backoff::Fixed(wait),
                Some(more) => Backoff::Exponential { min: wait, max: Duration::from_millis((ms + more).min(86_400_000)) },
            };
            let limit = limit.map(|(attempts, then)| Limit { attempts, then });
            let policy = RetryPolicy { backoff, limit, jitter, rejected };
            prop_assert_eq!(policy.to_string().parse::<RetryPolicy>(), Ok(policy));
        }
    }
}
