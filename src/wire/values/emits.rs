//! The events that a handler has emitted or scheduled, in the form that the scripts read
//! (`lua/values/emits.lua`).

/// An emitted or scheduled event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmitEntry<'a> {
    /// The object.
    pub object: &'a [u8],
    /// The event.
    pub event: &'a [u8],
    /// The schedule; `None` if the event is pushed at once.
    pub later: Option<Later<'a>>,
}

/// The number of emitted events that take as long as one scheduled event.
pub const SCHEDULE_EVENTS: usize = 2;

/// The schedule of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Later<'a> {
    /// The key of the schedule.
    pub key: &'a [u8],
    /// The treatment of an existing schedule with this key.
    pub mode: LaterMode,
    /// The time at which the event is due.
    pub due: Due,
}

/// The treatment of an existing schedule of the object with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaterMode {
    /// Replace event and time.
    Replace,
    /// Replace the event.
    KeepTime,
    /// Change nothing.
    KeepFirst,
    /// Cancel it. There is no event, and the time has no meaning.
    Cancel,
}

/// The time at which a scheduled event is due, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A time since the epoch.
    At(u64),
    /// A time after the step that schedules the event.
    After(u64),
}

impl LaterMode {
    fn letter(self) -> char {
        match self {
            Self::Replace => 'r',
            Self::KeepTime => 't',
            Self::KeepFirst => 'f',
            Self::Cancel => 'c',
        }
    }
}

/// The events that one handler has emitted for an event.
#[derive(Debug, Clone, Default)]
pub struct Emits {
    events: usize,
    bytes: usize,
    text: Vec<u8>,
}

impl Emits {
    /// Adds an event for an object.
    pub fn push(&mut self, object: &[u8], event: &[u8]) {
        self.events += 1;
        self.bytes += object.len() + event.len();
        self.text
            .extend_from_slice(format!("{} {} ", object.len(), event.len()).as_bytes());
        self.text.extend_from_slice(object);
        self.text.extend_from_slice(event);
    }

    /// Adds a scheduled event for an object. It counts as two events, because it takes more
    /// commands.
    pub fn push_later(&mut self, object: &[u8], event: &[u8], later: Later<'_>) {
        self.events += SCHEDULE_EVENTS;
        self.bytes += object.len() + event.len() + later.key.len();
        let due = match later.due {
            Due::At(ms) => format!("@{ms}"),
            Due::After(ms) => format!("+{ms}"),
        };
        let (key_bytes, mode) = (later.key.len(), later.mode.letter());
        // A program of an older version does not know the letter `s`, and stops reading there.
        self.text.extend_from_slice(
            format!("s{} {} {key_bytes} {mode}{due} ", object.len(), event.len()).as_bytes(),
        );
        self.text.extend_from_slice(object);
        self.text.extend_from_slice(event);
        self.text.extend_from_slice(later.key);
    }

    /// Adds the cancelling of an object's schedule. It counts as a scheduled event.
    pub fn push_cancel(&mut self, object: &[u8], key: &[u8]) {
        let (mode, due) = (LaterMode::Cancel, Due::At(0));
        self.push_later(object, b"", Later { key, mode, due });
    }

    /// Returns the number of events; a scheduled event counts as two.
    pub fn events(&self) -> usize {
        self.events
    }

    /// Returns the number of events in a value of the field `emit:ID`.
    pub(crate) fn events_in(value: &[u8]) -> usize {
        let number = value
            .split(|byte| *byte == b' ')
            .nth(1)
            .and_then(|number| std::str::from_utf8(number).ok());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Returns the number of bytes of the events, of their object names, and of the keys of
    /// schedules.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the value of the field `emit:ID`. `place` is the handler's position in the order of
    /// registration. If several handlers emit, their emits are pushed in the order of registration.
    pub fn value(&self, place: usize) -> Vec<u8> {
        [
            format!("{place} {} {} ", self.events, self.bytes).as_bytes(),
            &self.text,
        ]
        .concat()
    }

    /// Reads a value of the field `emit:ID`: the handler's place, and its events in their order.
    /// Returns `None` if the value is invalid.
    pub fn read(value: &[u8]) -> Option<(usize, Vec<EmitEntry<'_>>)> {
        fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
            let (text, behind) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
            *rest = &behind[1..];
            std::str::from_utf8(text).ok()
        }
        let number = |rest: &mut &[u8]| -> Option<usize> { word(rest)?.parse().ok() };
        let mut rest = value;
        let (place, events, _bytes) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let mut emits = Vec::new();
        while !rest.is_empty() {
            let is_later = rest.first() == Some(&b's');
            rest = &rest[usize::from(is_later)..];
            let (name_bytes, event_bytes) = (number(&mut rest)?, number(&mut rest)?);
            let later = if is_later {
                Some((number(&mut rest)?, mode_and_due(word(&mut rest)?)?))
            } else {
                None
            };
            let (object, behind) = rest.split_at_checked(name_bytes)?;
            let (event, behind) = behind.split_at_checked(event_bytes)?;
            let (key, behind) =
                behind.split_at_checked(later.map_or(0, |(key_bytes, _)| key_bytes))?;
            let later = later.map(|(_, (mode, due))| Later { key, mode, due });
            emits.push(EmitEntry {
                object,
                event,
                later,
            });
            rest = behind;
        }
        let counted: usize = emits
            .iter()
            .map(|entry| {
                if entry.later.is_some() {
                    SCHEDULE_EVENTS
                } else {
                    1
                }
            })
            .sum();
        (counted == events).then_some((place, emits))
    }
}

fn mode_and_due(text: &str) -> Option<(LaterMode, Due)> {
    let mut letters = text.chars();
    let (mode, sign) = (letters.next()?, letters.next()?);
    let ms = letters.as_str().parse().ok()?;
    let mode = [
        LaterMode::Replace,
        LaterMode::KeepTime,
        LaterMode::KeepFirst,
        LaterMode::Cancel,
    ]
    .into_iter()
    .find(|known| known.letter() == mode)?;
    match sign {
        '@' => Some((mode, Due::At(ms))),
        '+' => Some((mode, Due::After(ms))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut emits = Emits::default();
        emits.push(b"a 1", b"{} ");
        let later = Later {
            key: b"k 1",
            mode: LaterMode::KeepTime,
            due: Due::After(5),
        };
        emits.push_later(b"b", b"[]", later);
        emits.push("é".as_bytes(), b"");
        emits.push_cancel(b"c", b"k");
        let value = emits.value(7);
        let now = |object, event| EmitEntry {
            object,
            event,
            later: None,
        };
        let scheduled = EmitEntry {
            object: b"b",
            event: b"[]",
            later: Some(later),
        };
        let cancelled = EmitEntry {
            object: b"c",
            event: b"",
            later: Some(Later {
                key: b"k",
                mode: LaterMode::Cancel,
                due: Due::At(0),
            }),
        };
        let all = [
            now(b"a 1", b"{} "),
            scheduled,
            now("é".as_bytes(), b""),
            cancelled,
        ];
        assert_eq!(Emits::read(&value), Some((7, all.to_vec())));
        assert_eq!((emits.events(), emits.bytes()), (6, 16));
        assert_eq!(Emits::read(&Emits::default().value(0)), Some((0, vec![])));
        for end in 0..value.len() {
            assert_eq!(Emits::read(&value[..end]), None, "{end}");
        }
    }
}
