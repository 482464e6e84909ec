//! The fields of a handler in the ledger (`OBJ:event.handled`).

/// The names of the fields, and what the values of one handler need.
pub(super) struct HandlerFields {
    /// `handler:ID`: the handler has finished.
    pub(super) finished: String,
    /// `emit:ID`: the events that it has emitted.
    pub(super) emits: String,
    /// `result:ID`: its result.
    pub(super) result: String,
    /// The beginning of the value of `result`: the id as JSON, and a colon.
    pub(super) member: String,
    /// The handler's place among all that are registered, from 0.
    pub(super) place: usize,
}

impl HandlerFields {
    pub(super) fn of(id: &str, place: usize) -> Self {
        Self {
            finished: format!("handler:{id}"),
            emits: format!("emit:{id}"),
            result: format!("result:{id}"),
            member: format!("{}:", serde_json::Value::from(id)),
            place,
        }
    }
}
