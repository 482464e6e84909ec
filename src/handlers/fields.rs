//! The fields of a handler in the ledger (`OBJ:event.handled`).

/// The names of a handler's fields in the ledger, and the fixed parts of their values.
pub(super) struct HandlerFields {
    /// `handler:ID`; this field says that the handler has finished.
    pub(super) finished: String,
    /// `emit:ID`; this field has the handler's emits.
    pub(super) emits: String,
    /// `result:ID`; this field has the handler's result.
    pub(super) result: String,
    /// The first part of the value of `result`: the handler's id as JSON, and a colon.
    pub(super) member: String,
    /// The handler's position in the order of registration, from 0.
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
