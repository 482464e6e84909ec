//! What a handler has emitted, as the scripts read it (`lua/lib/emits.lua`).

/// What one handler has emitted for an event.
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

    /// How many events.
    pub fn events(&self) -> usize {
        self.events
    }

    /// The bytes of their objects' names and of the events themselves.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of the field `emit:ID`. `place` is the handler's among those that are registered: in that order is pushed what several have emitted.
    pub fn value(&self, place: usize) -> Vec<u8> {
        [format!("{place} {} {} ", self.events, self.bytes).as_bytes(), &self.text].concat()
    }
}
