//! Handler progress of an event that was lost with a key: emits of its handlers are queued, and nothing
//! stays that stops the next event of the object.

use std::time::Duration;

use seriatim::wire::Advance;

use crate::scene::{BOUNDS, Scene, hold, result};

/// Story: a batch was lost, and the emits of a handler of its first event stayed. Each attempt of the
/// object's next event failed, because it could not keep emits of its own. Now the first failed
/// attempt pushes what was left.
#[tokio::test]
async fn a_failed_attempt_ends_the_progress_of_a_lost_event() {
    let scene = Scene::given("own w.0 work:1 7 1").await;
    scene
        .add("HSET work:1:event.handled id 5 h 1 emit:h '0 1 7 6 1 work:2x'")
        .await;
    let held = hold("7 0 1", Some(Duration::from_secs(60)), "retry: no");
    let fill = |call: &mut Advance| {
        call.handled(0);
        call.report(0, &result("work:1", "7", 0, held));
    };
    scene.advance(BOUNDS, fill).await;
    let changes = "
        event.worker:w.0: event = [x]; event.id = 8; object = [work:2]
        next.event.id = 8
        objects.held = <work:1: NOW+1m>
        work:1: event.errors = [NOW 1 no]; event.handled = nil; event.worker = held; events.held = [1]; events.held.id = 7 0 1 0 retry: no
        work:2: event.worker = w.0
    ";
    scene.changed(changes).await;
    scene.check().await;
}
