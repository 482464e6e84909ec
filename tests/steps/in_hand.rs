//! Calls of the process `w` of a scene for a batch that it has in hand.

use seriatim::wire::{self, FINISHED, Finished, Handled, ScriptError, SlotBatch};

use crate::scene::Scene;

/// The worker `w.0` owns `work:1`, with its events 5, 6 and 7 in flight.
pub(crate) const IN_HAND: &str = "own w.0 work:1 5 1 2 3";

/// Returns this batch.
pub(crate) fn batch() -> SlotBatch<'static> {
    SlotBatch {
        name: "w",
        token: "token-1",
        slot: 0,
        object: b"work:1",
        tag: "5".parse().expect("a tag"),
    }
}

/// Returns the success of a handler without a result. `emits`: their field, and their value.
pub(crate) fn finished<'a>(
    id: u64,
    field: &'a str,
    emits: Option<(&'a str, &'a [u8])>,
) -> Finished<'a> {
    Finished {
        id,
        field,
        value: FINISHED,
        emits,
        result: None,
    }
}

/// Records a success, or reads the record, for the batch.
pub(crate) async fn asked(scene: &Scene, finished: Option<Finished<'_>>) -> Handled {
    let reply = try_asked(scene, batch(), finished).await;
    reply.expect("an answer")
}

/// Makes such a call for another batch. It may fail.
pub(crate) async fn try_asked(
    scene: &Scene,
    batch: SlotBatch<'_>,
    finished: Option<Finished<'_>>,
) -> Result<Handled, ScriptError> {
    wire::handled(&mut scene.conn().await, &scene.keys, &batch, finished).await
}
