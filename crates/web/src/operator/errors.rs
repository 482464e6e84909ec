//! Converts errors of the library into problem documents.

use axum::http::StatusCode;
use seriatim::control::ControlError;

use crate::listen::problem::Problem;

/// The time after which a client may try again, in seconds.
const TRY_AGAIN_S: u64 = 1;

/// Returns the problem document for a failed action of an operator. If the reply was lost, it says
/// that the outcome is unknown: Redis may have done the action.
pub(crate) fn action_problem(error: ControlError) -> Problem {
    let is_lost = match &error {
        ControlError::Redis { source, .. } => {
            let never_sent = source.is_connection_refusal();
            !never_sent
                && (source.is_io_error() || source.is_timeout() || source.is_connection_dropped())
        }
        ControlError::Reply { .. } => true,
        _ => false,
    };
    match is_lost {
        true => Problem::new(StatusCode::GATEWAY_TIMEOUT, "outcome-unknown", error),
        false => control_problem(error),
    }
}

/// Returns the problem document for an action of which some steps are done, and the last step has
/// failed. `so_far`: members with the results of the steps that are done.
pub(crate) fn part_problem(error: ControlError, so_far: serde_json::Value) -> Problem {
    let detail = format!("a part is done, and the last step failed: {error}");
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "partly-done", detail).with(so_far)
}

/// Returns the problem document for a failed request that only reads.
pub(crate) fn control_problem(error: ControlError) -> Problem {
    match &error {
        invalid if invalid.is_invalid_input() => Problem::bad_request(error),
        ControlError::Rules(_) | ControlError::Limits(_) | ControlError::Shares(_) => {
            Problem::new(StatusCode::CONFLICT, "too-many", error)
        }
        ControlError::Redis { .. } => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "redis", error).retry_after(TRY_AGAIN_S)
        }
        _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "redis", error),
    }
}
