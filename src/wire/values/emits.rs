//! The events that a handler has emitted, in the form that the scripts read (`lua/lib/emits.lua`).

/// An object's name, and an event for it.
type ObjectAndEvent<'a> = (&'a [u8], &'a [u8]);

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
        self.text.extend_from_slice(format!("{} {} ", object.len(), event.len()).as_bytes());
        self.text.extend_from_slice(object);
        self.text.extend_from_slice(event);
    }

    /// Returns the number of events.
    pub fn events(&self) -> usize {
        self.events
    }

    /// Returns the number of events in a value of the field `emit:ID`.
    pub(crate) fn events_in(value: &[u8]) -> usize {
        let number = value.split(|byte| *byte == b' ').nth(1).and_then(|number| std::str::from_utf8(number).ok());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Returns the bytes of the object names and of the events.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the value of the field `emit:ID`. `place` is the handler's position in the order of
    /// registration. The emits of several handlers are pushed in that order.
    pub fn value(&self, place: usize) -> Vec<u8> {
        [format!("{place} {} {} ", self.events, self.bytes).as_bytes(), &self.text].concat()
    }

    /// Reads a value of the field `emit:ID`: the handler's place, and each object's name with its
    /// event. Returns `None` if the value is invalid.
    pub fn read(value: &[u8]) -> Option<(usize, Vec<ObjectAndEvent<'_>>)> {
        let mut rest = value;
        let number = |rest: &mut &[u8]| -> Option<usize> {
            let (text, behind) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
            *rest = &behind[1..];
            std::str::from_utf8(text).ok()?.parse().ok()
        };
        let (place, events, _bytes) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let mut emits = Vec::new();
        while !rest.is_empty() {
            let (name_bytes, event_bytes) = (number(&mut rest)?, number(&mut rest)?);
            let (object, behind) = rest.split_at_checked(name_bytes)?;
            let (event, behind) = behind.split_at_checked(event_bytes)?;
            emits.push((object, event));
            rest = behind;
        }
        (emits.len() == events).then_some((place, emits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut emits = Emits::default();
        emits.push(b"a 1", b"{} ");
        emits.push("é".as_bytes(), b"");
        let value = emits.value(7);
        assert_eq!(Emits::read(&value), Some((7, vec![(&b"a 1"[..], &b"{} "[..]), ("é".as_bytes(), &b""[..])])));
        assert_eq!(Emits::read(&Emits::default().value(0)), Some((0, vec![])));
        for end in 0..value.len() {
            assert_eq!(Emits::read(&value[..end]), None, "{end}");
        }
    }
}
