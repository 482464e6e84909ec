//! Converts errors of emits into problem documents.

use axum::http::StatusCode;
use seriatim::EmitError;
use seriatim::event::EventError;

use crate::listen::problem::Problem;

/// The time after which a client may try again, in seconds.
const TRY_AGAIN_S: u64 = 1;

/// Returns the problem document for a failed emit or schedule.
pub(super) fn emit(error: &EmitError) -> Problem {
    match error {
        EmitError::Full { .. } => {
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "full", error).retry_after(TRY_AGAIN_S)
        }
        EmitError::KeyReused { .. } => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", error)
        }
        EmitError::Event(EventError::TooLarge { .. }) | EmitError::TooLarge { .. } => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", error)
        }
        EmitError::Name(_) | EmitError::Event(_) | EmitError::Key(_) | EmitError::Due(_) => {
            Problem::bad_request(error)
        }
        EmitError::WrongType { .. } => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "wrong-type", error)
        }
        error if error.is_unknown() => {
            Problem::new(StatusCode::GATEWAY_TIMEOUT, "outcome-unknown", error)
        }
        error => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "redis", error).retry_after(TRY_AGAIN_S)
        }
    }
}
