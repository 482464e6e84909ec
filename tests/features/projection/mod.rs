//! Projections fold the rows of the event log into a state. Each row is applied once, even if the
//! process is killed.

mod store;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use seriatim::ScriptError;
use seriatim::control::LogEntry;
use seriatim::keys::Keys;
use seriatim::projection::{
    Gaps, NameError, Position, Projection, ProjectionError, RedisStore, RedisStoreError, Runner,
    STATE_BYTES_MAX, Saved, Store,
};

use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::{Redis, assert_matches, control};

const LEASE: Duration = Duration::from_secs(600);

/// A projection whose state is the ids of all rows, in the order in which they were applied.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ids(Vec<u64>);

impl Projection for Ids {
    fn apply(&mut self, entry: &LogEntry) {
        self.0.extend(entry.id);
    }
}

type Ran = Runner<Ids, RedisStore<MultiplexedConnection>>;

async fn store(redis: &Redis) -> RedisStore<MultiplexedConnection> {
    RedisStore::new(redis.connect().await, redis.keys().clone(), "ids").expect("a name")
}

async fn open(redis: &Redis, gaps: Gaps) -> Result<Ran, ProjectionError> {
    Runner::open(store(redis).await, redis.control().await, LEASE, gaps).await
}

/// Adds rows with these ids to the log.
async fn log(state: &mut State, ids: impl IntoIterator<Item = u64>) {
    let mut fill = redis::pipe();
    for id in ids {
        fill.cmd("XADD")
            .arg(state.keys.event_log())
            .arg(&["*", "status", "completed", "id"])
            .arg(id)
            .ignore();
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("logged");
}

/// Runs steps until no row is left. Returns the number of rows applied.
async fn catch_up(runner: &mut Ran) -> usize {
    let mut applied = 0;
    loop {
        let stepped = runner.step().await.expect("a step");
        applied += stepped.applied;
        if stepped.lag == 0 {
            return applied;
        }
    }
}

/// Returns the state of the projection, which must be loaded.
fn state_of<S: Store>(runner: &Runner<Ids, S>) -> &Ids {
    runner.projection().expect("the state is the saved one")
}

fn ids(range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.collect()
}

/// Rows are applied in order, page after page. A second process continues at the saved position.
#[tokio::test]
async fn a_projection_applies_the_log_in_order_and_goes_on_where_it_was() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=250).await;
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    let stepped = runner.step().await.expect("a step");
    assert_eq!((stepped.applied, stepped.lag), (100, 150));
    assert_eq!(catch_up(&mut runner).await, 150);
    assert_eq!(runner.step().await.expect("a step").applied, 0);
    runner.close().await.expect("closed");
    log(&mut state, 251..=260).await;
    let mut runner = open(&redis, Gaps::Refuse)
        .await
        .expect("opened again at once");
    assert_eq!(catch_up(&mut runner).await, 10);
    assert_eq!(state_of(&runner).0, ids(1..=260));
    assert_eq!((runner.position().rows, runner.position().missed), (260, 0));
}

/// A rebuild from the first row of the log gives the same state.
#[tokio::test]
async fn a_projection_is_rebuilt_from_the_start() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=120).await;
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    catch_up(&mut runner).await;
    runner.rebuild().await.expect("begun anew");
    assert_eq!(
        (runner.projection(), runner.position()),
        (Some(&Ids::default()), &Position::default())
    );
    assert_eq!(catch_up(&mut runner).await, 120);
    assert_eq!(state_of(&runner).0, ids(1..=120));
    runner.close().await.expect("closed");
    // A saved state that cannot be read prevents opening, but does not prevent a rebuild.
    let key = redis.keys().event_projection("ids");
    state.run("SET", &[&key, "no JSON"]).await;
    let refused = open(&redis, Gaps::Refuse).await.err();
    assert_matches!(refused, Some(ProjectionError::State(_)));
    redis
        .console()
        .await
        .run::<u64>(&["DEL", &redis.keys().event_projection_lease("ids")])
        .await;
    let mut runner: Ran = Runner::anew(store(&redis).await, state.control(), LEASE, Gaps::Refuse)
        .await
        .expect("anew");
    assert_eq!(catch_up(&mut runner).await, 120);
}

/// Only one process runs a projection. A process that has lost the projection can no longer write,
/// however late its write comes.
#[tokio::test]
async fn one_process_runs_a_projection_and_who_has_lost_it_writes_nothing() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=5).await;
    let mut first = open(&redis, Gaps::Refuse).await.expect("opened");
    let refused = open(&redis, Gaps::Refuse).await.err();
    assert_matches!(refused, Some(ProjectionError::Lost));
    redis
        .console()
        .await
        .run::<u64>(&["DEL", &redis.keys().event_projection_lease("ids")])
        .await;
    assert_matches!(
        first.step().await,
        Err(ProjectionError::Lost),
        "its lease is over"
    );
    let mut second = open(&redis, Gaps::Refuse).await.expect("opened");
    catch_up(&mut second).await;
    log(&mut state, 6..=6).await;
    assert_matches!(first.step().await, Err(ProjectionError::Lost));
    assert_matches!(first.rebuild().await, Err(ProjectionError::Lost));
    first.close().await.expect("nothing to give back");
    catch_up(&mut second).await;
    assert_eq!(state_of(&second).0, ids(1..=6));
    redis
        .console()
        .await
        .run::<u64>(&["DEL", &redis.keys().event_projection_lease("ids")])
        .await;
    assert_matches!(
        second.step().await,
        Err(ProjectionError::Lost),
        "also with nothing to do"
    );
}

/// Story: a running projection whose lease was deleted ended, although no other process had its name. It
/// takes the name again, and applies no row twice.
#[tokio::test]
async fn a_running_projection_takes_its_name_again() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=5).await;
    let (runner, console) = (
        open(&redis, Gaps::Refuse).await.expect("opened"),
        redis.console().await,
    );
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(runner.run(Duration::from_millis(5), async { drop(stopped.await) }));
    let keys = redis.keys();
    let saved = async |rows: &str| {
        let value: Option<String> = console
            .run(&["HGET", &keys.event_projections(), "ids"])
            .await;
        value
            .filter(|value| value.starts_with(&format!("{rows} ")))
            .map(drop)
    };
    crate::support::until("the first rows are saved", PATIENCE, async || {
        saved("5").await
    })
    .await;
    console
        .run::<u64>(&["DEL", &keys.event_projection_lease("ids")])
        .await;
    log(&mut state, 6..=9).await;
    crate::support::until("the other rows are saved", PATIENCE, async || {
        saved("9").await
    })
    .await;
    stop.send(()).expect("it runs");
    assert_eq!(
        running.await.expect("no panic").expect("it goes on").0,
        ids(1..=9)
    );
}

/// Story: after a refused save, `projection()` was once a page ahead of `position()`. Programs that
/// used both showed rows twice or too early. Now there is no state until it is loaded again.
#[tokio::test]
async fn after_an_error_there_is_no_state_beyond_the_position() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=5).await;
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    catch_up(&mut runner).await;
    log(&mut state, 6..=9).await;
    let lease = redis.keys().event_projection_lease("ids");
    state.run("SET", &[&lease, "another process"]).await;
    assert_matches!(runner.step().await, Err(ProjectionError::Lost));
    assert_eq!((runner.projection(), runner.position().rows), (None, 5));
    assert_matches!(runner.rebuild().await, Err(ProjectionError::Lost));
    assert_eq!((runner.projection(), runner.position().rows), (None, 5));
    redis.console().await.run::<u64>(&["DEL", &lease]).await;
    assert_eq!(catch_up(&mut runner).await, 4);
    assert_eq!(
        (state_of(&runner).0.clone(), runner.position().rows),
        (ids(1..=9), 9)
    );
}

/// Rows that were trimmed before they were applied are never skipped silently. The step returns an
/// error with their number, or counts them.
#[tokio::test]
async fn rows_trimmed_away_unseen_are_told() {
    let (redis, mut state) = Redis::start().with_state().await;
    let trim = ["MAXLEN", "=", "10"];
    log(&mut state, 1..=50).await;
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    catch_up(&mut runner).await;
    log(&mut state, 51..=55).await;
    let key = redis.keys().event_log();
    state
        .run("XTRIM", &[&[key.as_str()], &trim[..]].concat())
        .await;
    // The trimmed rows had already been applied, so no row is missed.
    assert_eq!(catch_up(&mut runner).await, 5);
    log(&mut state, 56..=80).await;
    state
        .run("XTRIM", &[&[key.as_str()], &trim[..]].concat())
        .await;
    for _ in 0..2 {
        let gap = runner.step().await;
        assert_matches!(gap, Err(ProjectionError::Gap { missed: 15 }));
    }
    runner.close().await.expect("closed");
    let mut runner = open(&redis, Gaps::Count).await.expect("opened");
    assert_eq!(catch_up(&mut runner).await, 10);
    assert_eq!((runner.position().missed, runner.position().rows), (15, 80));
    assert_eq!(state_of(&runner).0, [ids(1..=55), ids(71..=80)].concat());
    // All remaining rows are trimmed before they are applied.
    log(&mut state, 81..=82).await;
    state.run("XTRIM", &[&key, "MAXLEN", "0"]).await;
    assert_eq!(catch_up(&mut runner).await, 0);
    assert_eq!((runner.position().missed, runner.position().rows), (17, 82));
    runner.rebuild().await.expect("begun anew");
    catch_up(&mut runner).await;
    assert_eq!(runner.position().missed, 82);
}

/// If the log was deleted, or rows were deleted by hand, it is no longer the log that the
/// projection has read. The step returns an error.
#[tokio::test]
async fn a_log_that_is_another_one_is_told() {
    for delete in [true, false] {
        let (redis, mut state) = Redis::start().with_state().await;
        log(&mut state, 1..=5).await;
        let mut runner = open(&redis, Gaps::Count).await.expect("opened");
        catch_up(&mut runner).await;
        let key = redis.keys().event_log();
        if delete {
            state.run("DEL", &[&key]).await;
            log(&mut state, 6..=8).await;
        } else {
            log(&mut state, 6..=8).await;
            let rows: Vec<(String, Vec<String>)> =
                redis.console().await.run(&["XRANGE", &key, "-", "+"]).await;
            state.run("XDEL", &[&key, &rows[6].0]).await;
        }
        let stepped = runner.step().await;
        assert_matches!(
            stepped,
            Err(ProjectionError::OtherLog { .. }),
            "{delete}: {stepped:?}"
        );
    }
}

/// `run` applies new rows until it is stopped, and then releases the name of the projection.
#[tokio::test]
async fn a_projection_runs_until_it_is_stopped() {
    let (redis, mut state) = Redis::start().with_state().await;
    let console = redis.console().await;
    let runner = open(&redis, Gaps::Refuse).await.expect("opened");
    let stop = tokio_util::sync::CancellationToken::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move {
        runner
            .run(Duration::from_millis(5), stopped.cancelled())
            .await
    });
    for rows in [150, 300] {
        log(&mut state, rows - 149..=rows).await;
        crate::support::until("all rows are applied", PATIENCE, async || {
            (rows_applied(&console).await == rows).then_some(())
        })
        .await;
    }
    stop.cancel();
    let Ids(applied) = running.await.expect("no panic").expect("stopped");
    assert_eq!(applied, ids(1..=300));
    assert_eq!(
        state_of(&open(&redis, Gaps::Refuse).await.expect("free")).0,
        applied
    );
}

/// Another process can take the name of a projection when its lease has ended. Each step renews the
/// lease.
#[tokio::test]
async fn each_step_keeps_the_name_for_a_lease() {
    let (redis, mut state) = Redis::start().with_state().await;
    let console = redis.console().await;
    let lease = redis.keys().event_projection_lease("ids");
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    for written in [false, true] {
        if written {
            log(&mut state, [1]).await;
        }
        let _: u64 = console.run(&["PEXPIRE", &lease, "30000"]).await;
        runner.step().await.expect("a step");
        let left: i64 = console.run(&["PTTL", &lease]).await;
        assert!(left > 500_000, "{left}");
    }
    drop(runner);
    let _: u64 = console.run(&["PEXPIRE", &lease, "1"]).await;
    let gone = || async { (console.run::<u64>(&["EXISTS", &lease]).await == 0).then_some(()) };
    crate::support::until("its lease is over", PATIENCE, gone).await;
    open(&redis, Gaps::Refuse).await.expect("opened");
    assert!(console.run::<i64>(&["PTTL", &lease]).await > 500_000);
}

/// The rights that docs/protocol.md lists for a projection are enough.
#[tokio::test]
async fn the_rights_in_the_document_are_enough() {
    let (redis, mut state) = Redis::own(&[]).with_state().await;
    log(&mut state, 1..=3).await;
    redis.set_documented_user("projection", "projection").await;
    let conn = redis.connect_as("projection").await;
    let store = RedisStore::new(conn.clone(), redis.keys().clone(), "ids").expect("a name");
    let mut runner: Ran = Runner::open(store, control(&conn, redis.keys()), LEASE, Gaps::Refuse)
        .await
        .expect("opened");
    for _ in 0..2 {
        catch_up(&mut runner).await;
    }
    runner.rebuild().await.expect("begun anew");
    assert_eq!(catch_up(&mut runner).await, 3);
    runner.close().await.expect("closed");
}

#[tokio::test]
async fn a_name_is_one_word() {
    let redis = Redis::start();
    for wrong in ["", "a.b", "a:b", &"x".repeat(65)] {
        let store = RedisStore::new(redis.connect().await, redis.keys().clone(), wrong);
        assert_eq!(store.err(), Some(NameError(wrong.to_owned())));
    }
}

/// The statistics show how many rows a projection is behind.
#[tokio::test]
async fn the_lag_is_in_the_statistics() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=150).await;
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    runner.step().await.expect("a step");
    let seen = state.control().stats().await.expect("stats").projections;
    assert_eq!(
        (
            seen[0].name.as_str(),
            seen[0].lag,
            seen[0].missed,
            seen[0].running
        ),
        ("ids", 50, 0, true)
    );
    assert_eq!(seen[0].log_id, runner.position().log_id);
    runner.close().await.expect("closed");
    let shown = Command::new(crate::support::program())
        .args([
            "--redis",
            redis.url(),
            "--namespace",
            redis.namespace(),
            "stats",
        ])
        .output()
        .expect("the program runs");
    let shown = String::from_utf8(shown.stdout).expect("UTF-8");
    assert!(
        shown.contains("projection    ids: 50 rows behind, not running"),
        "{shown}"
    );
}

/// A store whose saves fail or hang, some before and some after they have saved.
struct Failing {
    store: RedisStore<MultiplexedConnection>,
    calls: Arc<AtomicUsize>,
}

impl Store for Failing {
    type Error = RedisStoreError;

    async fn open(
        &mut self,
        token: &str,
        lease: Duration,
    ) -> Result<Option<Saved>, RedisStoreError> {
        self.store.open(token, lease).await
    }

    async fn save(
        &mut self,
        token: &str,
        lease: Duration,
        position: &Position,
        state: &[u8],
    ) -> Result<bool, RedisStoreError> {
        let wrong = || Err(ScriptError::Counter("no".to_owned()).into());
        match self.calls.fetch_add(1, Ordering::SeqCst) % 5 {
            0 => wrong(),
            1 => {
                self.store.save(token, lease, position, state).await?;
                wrong()
            }
            2 => std::future::pending().await,
            3 => {
                self.store.save(token, lease, position, state).await?;
                std::future::pending().await
            }
            _ => self.store.save(token, lease, position, state).await,
        }
    }

    async fn keep(&mut self, token: &str, lease: Duration) -> Result<bool, RedisStoreError> {
        self.store.keep(token, lease).await
    }

    async fn close(&mut self, token: &str) -> Result<(), RedisStoreError> {
        self.store.close(token).await
    }
}

/// A save fails or is given up, whether or not it has saved. The runner continues from the saved
/// state. No row is missing or applied twice.
#[tokio::test]
async fn a_save_of_unknown_effect_applies_no_row_twice() {
    let (redis, mut state) = Redis::start().with_state().await;
    log(&mut state, 1..=650).await;
    let failing = Failing {
        store: store(&redis).await,
        calls: Arc::default(),
    };
    let calls = Arc::clone(&failing.calls);
    let mut runner: Runner<Ids, _> = Runner::open(failing, state.control(), LEASE, Gaps::Refuse)
        .await
        .expect("opened");
    loop {
        // The test gives up a step that hangs.
        let step = tokio::time::timeout(Duration::from_millis(300), runner.step()).await;
        assert!(
            !matches!(step, Ok(Err(ProjectionError::Lost))),
            "nobody else has it"
        );
        if matches!(step, Ok(Ok(stepped)) if stepped.applied == 0) {
            break;
        }
    }
    assert!(calls.load(Ordering::SeqCst) > 5);
    assert_eq!(state_of(&runner).0, ids(1..=650));
}

/// The child process of `a_projection_killed_at_any_point_applies_each_row_once`. It runs until it
/// is killed.
#[tokio::test]
#[ignore = "the child of a_projection_killed_at_any_point_applies_each_row_once"]
async fn child() {
    let (Ok(url), Ok(namespace)) = (
        std::env::var("PROJECTION_URL"),
        std::env::var("PROJECTION_NAMESPACE"),
    ) else {
        return;
    };
    let keys = Keys::with_namespace(&namespace).expect("a namespace");
    let client = redis::Client::open(url).expect("a URL");
    let conn = client
        .get_multiplexed_async_connection_with_config(&crate::support::patient())
        .await
        .expect("connected");
    let store = RedisStore::new(conn.clone(), keys.clone(), "ids").expect("a name");
    let mut runner: Ran = Runner::open(store, control(&conn, &keys), LEASE, Gaps::Refuse)
        .await
        .expect("opened");
    loop {
        if runner.step().await.expect("a step").applied == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn rows_applied(console: &Console) -> u64 {
    let position: Option<String> = console
        .run(&["HGET", &console.keys.event_projections(), "ids"])
        .await;
    position
        .and_then(|text| Position::of(&text))
        .map_or(0, |position| position.rows)
}

/// A process that runs the projection is killed again and again, at varying points, while rows are
/// written. The state has each row once, in order.
#[tokio::test]
async fn a_projection_killed_at_any_point_applies_each_row_once() {
    let (redis, mut state) = Redis::start().with_state().await;
    let console = redis.console().await;
    let (mut written, mut killed) = (0, 0);
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().expect("the test"))
            .args(["projection::child", "--exact", "--ignored", "--nocapture"])
            .env("PROJECTION_URL", redis.url())
            .env("PROJECTION_NAMESPACE", redis.namespace())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test runs");
        // The number of rows before the kill varies from round to round, and so does the point of
        // the kill.
        let until_rows = written + 40 * round + 1;
        log(&mut state, written + 1..=written + 700).await;
        written += 700;
        crate::support::until("some rows are applied", PATIENCE, async || {
            (rows_applied(&console).await >= until_rows).then_some(())
        })
        .await;
        child.kill().expect("killed");
        child.wait().expect("reaped");
        killed += usize::from(rows_applied(&console).await < written);
        // Ends the lease of the dead process at once.
        console
            .run::<u64>(&["DEL", &redis.keys().event_projection_lease("ids")])
            .await;
    }
    let mut runner = open(&redis, Gaps::Refuse).await.expect("opened");
    catch_up(&mut runner).await;
    assert_eq!(state_of(&runner).0, ids(1..=written));
    println!("{killed} of 12 were killed in the middle");
    assert!(killed > 0, "none was killed in the middle");
}

/// A state that is too large is refused. Redis runs no other command while it writes a state, so
/// hundreds of megabytes would stop all work.
#[tokio::test]
async fn a_state_that_is_too_large_is_refused_and_the_one_before_stays() {
    let redis = Redis::start();
    let mut store = store(&redis).await;
    let lease = Duration::from_secs(10);
    store.open("t", lease).await.expect("opened");
    let largest = vec![b'1'; STATE_BYTES_MAX];
    assert!(
        store
            .save("t", lease, &Position::default(), &largest)
            .await
            .expect("saved")
    );
    let too_large = vec![b'2'; STATE_BYTES_MAX + 1];
    let refused = store
        .save("t", lease, &Position::default(), &too_large)
        .await
        .expect_err("it is too large");
    assert_eq!(
        refused.to_string(),
        "the state of the projection has 4194305 bytes, RedisStore keeps 4194304 at most; keep it in a Store of your own"
    );
    let saved = store
        .open("t", lease)
        .await
        .expect("opened")
        .expect("nobody else has it");
    assert!(saved.state == Some(largest));
}
