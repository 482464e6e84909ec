//! Names that may be objects of a namespace. A process without a namespace drops and reports them,
//! and changes none of their keys.

use seriatim::control::By;
use seriatim::keys::Keys;
use seriatim::wire::Renewed;
use seriatim::wire::operator::{Settle, Settled, dead};

use crate::scene::{ATTACH, BOUNDS, Scene, bounds};

const FOREIGN: &str = "{shop:0}:work:1";
/// The namespace `shop` has an object that its worker `w` owns. The same worker id exists without a
/// namespace. The keys are spelled in full.
const SHOP: &str = "
    SET {shop:0}:work:1:event.worker w.0; LPUSH {shop:0}:event.worker:w.0:object work:1
    LPUSH {shop:0}:event.worker:w.0:event 1; SET {shop:0}:event.worker:w.0:event.id 1
    SET {shop:0}:next.event.id 1; LPUSH {shop:0}:work:1:events 2
    LPUSH {shop:0}:objects.with.events work:1; SET {shop:0}:work:1:last.event.id 1
";

/// Returns a scene without a namespace, beside the keys of `shop`.
async fn scene() -> Scene {
    let scene = Scene::under(Keys::new()).await;
    scene.add(SHOP).await;
    scene
}

/// Asserts that the next call drops the foreign name, reports it once, and returns no event of it.
async fn dropped(scene: &Scene) {
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), [""; 0]);
    let why = "foreign: it may be an object of another namespace, so its marker is dropped";
    assert_eq!(answer.texts(), [format!("{FOREIGN}: {why}")]);
    for key in [
        "objects.with.events",
        "event.worker:w.0:object",
        "event.worker:w.1:object",
    ] {
        assert_eq!(scene.at(key).await, "nil", "{key}");
    }
}

/// Asserts that nothing of `shop` has changed since these keys were given.
async fn unchanged(scene: &Scene) {
    let changes = scene.changes().await;
    assert!(
        !changes.iter().any(|line| line.starts_with("{shop")),
        "{changes:?}"
    );
}

/// Story: a raw producer pushed `{shop:0}:work:1` as a marker, outside of any namespace. A worker
/// without a namespace claimed it, and drained the real queue of namespace `shop`. Now the name is
/// dropped, on every way into a script.
#[tokio::test]
async fn an_object_of_a_namespace_is_not_claimed_without_it() {
    for given in [
        format!("LPUSH objects.with.events {FOREIGN} {FOREIGN}"),
        // A pop has moved the foreign name to a free slot.
        format!("LPUSH objects.with.events {FOREIGN}; pop w.0"),
        // The foreign name is among the held objects.
        format!("ZADD objects.held 0 {FOREIGN}"),
    ] {
        let scene = scene().await;
        scene.add(&given).await;
        dropped(&scene).await;
        unchanged(&scene).await;
    }
}

/// A pop has moved the name of an object of another namespace to a busy slot. The name goes back to
/// the markers, and the next call drops it.
#[tokio::test]
async fn a_stray_of_a_namespace_is_dropped() {
    let scene = scene().await;
    scene
        .add(&format!("LPUSH event.worker:w.0:object {FOREIGN}"))
        .await;
    scene.advance(BOUNDS, |call| call.look(0)).await;
    let markers = scene.at("objects.with.events").await;
    assert_eq!(markers, format!("[{FOREIGN}]"));
    dropped(&scene).await;
    unchanged(&scene).await;
    scene
        .add(&format!("LPUSH event.worker:w.1:object {FOREIGN}"))
        .await;
    let (strays, lost) = (1, Vec::new());
    assert_eq!(
        scene.renew("token-1").await,
        Renewed::Renewed { strays, lost }
    );
    dropped(&scene).await;
    unchanged(&scene).await;
    scene
        .add(&format!("LPUSH event.worker:w.0:object {FOREIGN}"))
        .await;
    scene.detach("token-1").await.expect("an answer");
    scene.attach(&ATTACH).await;
    dropped(&scene).await;
    unchanged(&scene).await;
}

/// A slot lost the reply with its batch. Its list also has a name of another namespace, whose owner
/// has the same worker id there.
#[tokio::test]
async fn a_lost_batch_is_of_no_object_of_a_namespace() {
    let scene = scene().await;
    scene
        .add(&format!(
            "own w.0 work:2 1 3; LPUSH event.worker:w.0:object {FOREIGN}"
        ))
        .await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["work:2"]);
    unchanged(&scene).await;
}

/// A pop has moved the name to the only free slot, and the object has no owner. So it looks as most
/// objects that a pop has moved.
#[tokio::test]
async fn a_popped_foreign_object_without_an_owner_is_dropped() {
    let scene = scene().await;
    let given = "DEL {shop:0}:work:1:event.worker; LPUSH event.worker:w.0:object {shop:0}:work:1";
    scene.add(given).await;
    dropped(&scene).await;
    unchanged(&scene).await;
}

/// A call reads no more markers than it has claims at first. The foreign name behind the claimed
/// object keeps its marker, so only the call that drops this marker reports it.
#[tokio::test]
async fn a_foreign_name_is_reported_only_when_its_marker_is_dropped() {
    let scene = scene().await;
    scene
        .add(&format!(
            "emit work:2 1; LPUSH objects.with.events {FOREIGN}"
        ))
        .await;
    let answer = scene.free(0..2, bounds(|b| b.claims = 1)).await;
    assert_eq!((answer.objects(), answer.texts()), (vec!["work:2"], vec![]));
    assert_eq!(
        scene.at("objects.with.events").await,
        format!("[{FOREIGN}]")
    );
}

/// A dead letter that names an object of another namespace stays. A retry would push its event into
/// the queue of the other namespace.
#[tokio::test]
async fn a_dead_letter_of_a_namespace_is_not_retried_without_it() {
    let scene = scene().await;
    let letter = format!("id 1 prev 0 object {FOREIGN} event 1 error no attempts 0");
    scene.add(&format!("XADD events.dead 1-1 {letter}")).await;
    let by = By {
        who: "ada",
        why: "",
    };
    let mut conn = scene.conn().await;
    let settled = dead(&mut conn, &scene.keys, by, Settle::Retry, &["1-1"]).await;
    assert_eq!(settled.expect("an answer"), [Settled::Unreadable]);
    scene.changed("").await;
}

/// With a namespace a brace has no meaning: the object is claimed like any other.
#[tokio::test]
async fn with_a_namespace_a_name_may_begin_with_a_brace() {
    let scene = Scene::given("emit {work}:1 1").await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["{work}:1"]);
}
