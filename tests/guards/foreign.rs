//! Names that may be objects of a namespace. A process without a namespace drops and reports them,
//! and changes none of their keys.

use seriatim::control::By;
use seriatim::keys::Keys;
use seriatim::wire::operator::{Settle, Settled, dead};
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst, Renewed};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, LEASE, ask, attach, attached, objects, pop};

const FOREIGN: &str = "{shop:0}:work:1";

/// Namespace `shop` with an object that its worker `w` owns. The same worker id exists without a
/// namespace.
struct Scene {
    /// The state without a namespace.
    state: State,
    shop: State,
}

impl Scene {
    async fn new(redis: &Redis) -> Self {
        let mut conn = redis.connect().await;
        attach(&mut conn, &Keys::new(), "token-1", "").await;
        let keys = Keys::with_namespace("shop").expect("a namespace");
        let mut shop = State::new(redis.connect().await, keys);
        shop.own("w.0", "work:1", 1, &["1"]).await;
        shop.emit("work:1", "2").await;
        shop.delivered("work:1", 1).await;
        Self {
            state: State::new(conn, Keys::new()),
            shop,
        }
    }

    /// Returns all keys of `shop` with their stored values.
    async fn of_shop(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut keys: Vec<String> = redis::cmd("KEYS")
            .arg("{shop:0}:*")
            .query_async(&mut self.shop.conn)
            .await
            .expect("KEYS");
        keys.sort_unstable();
        let mut all = Vec::new();
        for key in keys {
            let value = redis::cmd("DUMP")
                .arg(&key)
                .query_async(&mut self.shop.conn)
                .await
                .expect("DUMP");
            all.push((key, value));
        }
        assert_eq!(all.len(), 8, "{all:?}");
        all
    }

    async fn list(&mut self, key: &str) -> Vec<String> {
        redis::cmd("LRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .query_async(&mut self.state.conn)
            .await
            .expect("a list")
    }

    /// Asserts that the next call drops the foreign name, reports it `times` times, and returns no
    /// event of it.
    async fn dropped(&mut self, times: usize) {
        let answer = ask(&mut self.state, BOUNDS).await.expect("an answer");
        assert_eq!(objects(&answer), Vec::<&str>::new());
        let Advanced::Ok { quarantined, .. } = answer else {
            panic!("{answer:?}")
        };
        let why = "foreign: it may be an object of another namespace, so its marker is dropped";
        assert_eq!(
            quarantined,
            vec![(FOREIGN.to_owned(), why.to_owned()); times]
        );
        for key in [
            "objects.with.events",
            "event.worker:w.0:object",
            "event.worker:w.1:object",
        ] {
            assert_eq!(self.list(key).await, Vec::<String>::new(), "{key}");
        }
    }
}

/// Story: a raw producer pushed `{shop:0}:work:1` as a marker, outside of any namespace. A worker
/// without a namespace claimed it, and drained the real queue of namespace `shop`. Now the name is
/// dropped, on every way into a script.
#[tokio::test]
async fn an_object_of_a_namespace_is_not_claimed_without_it() {
    let redis = Redis::own(&[]);
    let mut scene = Scene::new(&redis).await;
    let before = scene.of_shop().await;
    scene
        .state
        .run("LPUSH", &["objects.with.events", FOREIGN, FOREIGN])
        .await;
    scene.dropped(1).await;
    // A pop has moved the foreign name to a free slot.
    scene
        .state
        .run("LPUSH", &["objects.with.events", FOREIGN])
        .await;
    pop(&mut scene.state, "w.0").await;
    scene.dropped(1).await;
    // The foreign name is among the held objects.
    scene
        .state
        .run("ZADD", &["objects.held", "0", FOREIGN])
        .await;
    scene.dropped(1).await;
    assert_eq!(scene.of_shop().await, before);
}

/// A pop has moved the name of an object of another namespace to a busy slot. The name goes back to
/// the markers, and the next call drops it.
#[tokio::test]
async fn a_stray_of_a_namespace_is_dropped() {
    let redis = Redis::own(&[]);
    let mut scene = Scene::new(&redis).await;
    let (before, keys) = (scene.of_shop().await, Keys::new());
    scene
        .state
        .run("LPUSH", &["event.worker:w.0:object", FOREIGN])
        .await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.look(0);
    wire::advance(&mut scene.state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(scene.list("objects.with.events").await, [FOREIGN]);
    scene.dropped(1).await;
    scene
        .state
        .run("LPUSH", &["event.worker:w.1:object", FOREIGN])
        .await;
    let renewed = wire::renew(&mut scene.state.conn, &keys, "w", "token-1", LEASE, 2)
        .await
        .expect("an answer");
    assert_eq!(
        renewed,
        Renewed::Renewed {
            strays: 1,
            lost: Vec::new()
        }
    );
    scene.dropped(1).await;
    scene
        .state
        .run("LPUSH", &["event.worker:w.0:object", FOREIGN])
        .await;
    wire::detach(&mut scene.state.conn, &keys, "w", "token-1")
        .await
        .expect("an answer");
    attach(&mut scene.state.conn, &keys, "token-1", "").await;
    scene.dropped(1).await;
    assert_eq!(scene.of_shop().await, before);
}

/// A slot lost the reply with its batch. Its list also has a name of another namespace, whose owner
/// has the same worker id there.
#[tokio::test]
async fn a_lost_batch_is_of_no_object_of_a_namespace() {
    let redis = Redis::own(&[]);
    let mut scene = Scene::new(&redis).await;
    let before = scene.of_shop().await;
    scene.state.own("w.0", "work:2", 1, &["3"]).await;
    scene
        .state
        .run("LPUSH", &["event.worker:w.0:object", FOREIGN])
        .await;
    let answer = ask(&mut scene.state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:2"]);
    assert_eq!(scene.of_shop().await, before);
}

/// A call reads no more markers than it has claims at first. The foreign name behind the claimed
/// object keeps its marker, so only the call that drops this marker reports it.
#[tokio::test]
async fn a_foreign_name_is_reported_only_when_its_marker_is_dropped() {
    let redis = Redis::own(&[]);
    let mut scene = Scene::new(&redis).await;
    scene.state.emit("work:2", "1").await;
    scene
        .state
        .run("LPUSH", &["objects.with.events", FOREIGN])
        .await;
    let answer = ask(
        &mut scene.state,
        Bounds {
            claims: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), ["work:2"]);
    let Advanced::Ok { quarantined, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(quarantined, []);
    assert_eq!(scene.list("objects.with.events").await, [FOREIGN]);
}

/// A dead letter that names an object of another namespace stays. A retry would push its event into
/// the queue of the other namespace.
#[tokio::test]
async fn a_dead_letter_of_a_namespace_is_not_retried_without_it() {
    let redis = Redis::own(&[]);
    let mut scene = Scene::new(&redis).await;
    let before = scene.of_shop().await;
    let letter = [
        "events.dead",
        "1-1",
        "id",
        "1",
        "prev",
        "0",
        "object",
        FOREIGN,
        "event",
        "1",
        "error",
        "no",
        "attempts",
        "0",
    ];
    scene.state.run("XADD", &letter).await;
    let by = By {
        who: "ada",
        why: "",
    };
    let settled = dead(
        &mut scene.state.conn,
        &Keys::new(),
        by,
        Settle::Retry,
        &["1-1"],
    )
    .await
    .expect("an answer");
    assert_eq!(settled, [Settled::Unreadable]);
    assert_eq!(scene.of_shop().await, before);
}

/// With a namespace a brace has no meaning: the object is claimed like any other.
#[tokio::test]
async fn with_a_namespace_a_name_may_begin_with_a_brace() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("{work}:1", "1").await;
    assert_eq!(
        objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
        ["{work}:1"]
    );
}
