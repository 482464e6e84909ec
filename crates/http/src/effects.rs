//! Answers with effects: what a receiver asks for with the success of an event.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use seriatim::event::Event;
use seriatim::handlers::{Effects, Stored};
use seriatim::sink::{Context, Delivered};
use tokio::time::timeout;

/// The type of an answer with effects, without parameters.
const TYPE: &str = "application/vnd.seriatim+json";
/// Maximum number of bytes of such an answer.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// The reason why an answer has no valid effects.
pub(super) enum NoEffects {
    /// The answer did not end in time, or its connection has ended.
    Unfinished,
    Wrong(String),
}

/// Returns whether the answer says that it has effects.
pub(super) fn are_in(response: &Response) -> bool {
    let value = response.headers().get(CONTENT_TYPE);
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let name = text.split(';').next().unwrap_or("");
    name.trim().eq_ignore_ascii_case(TYPE)
}

/// Reads the effects of an answer, within this time.
pub(super) async fn read(response: &mut Response, limit: Duration) -> Result<Effects, NoEffects> {
    let mut text = Vec::new();
    let all = async {
        while let Some(chunk) = response.chunk().await.map_err(|_| NoEffects::Unfinished)? {
            if text.len() + chunk.len() > BYTES_MAX {
                return Err(NoEffects::Wrong(format!(
                    "it has more than {BYTES_MAX} bytes"
                )));
            }
            text.extend_from_slice(&chunk);
        }
        Ok(())
    };
    timeout(limit, all)
        .await
        .unwrap_or(Err(NoEffects::Unfinished))?;
    Effects::parse(&text).map_err(|error| NoEffects::Wrong(error.to_string()))
}

/// Stores the effects of an event. `before`: the number of delivered events before it.
pub(super) async fn store(
    effects: &Effects,
    event: &Event,
    before: usize,
    stored: &Stored,
    cx: &Context,
) -> Delivered {
    match stored.handler(event.clone(), cx).succeed(effects).await {
        Ok(()) => Delivered::so_far(before + 1),
        Err(stop) => Delivered::stopped(before, stop),
    }
}
