//! Limits of connections, streams and actions under way.

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::rig::{Dash, Scene, USERS, path, token, users};
use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// Begins a request on a connection of its own, and waits for its status.
async fn begun(dash: &Dash, target: &str) -> (TcpStream, String) {
    begun_as(dash, target, "viewer").await
}

async fn begun_as(dash: &Dash, target: &str, name: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(dash.address()).await.expect("connected");
    let head = format!(
        "GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        token(name)
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("an answer");
    (stream, String::from_utf8_lossy(&status[9..]).into_owned())
}

#[tokio::test]
async fn there_are_at_most_100_streams() {
    let (_scene, dash) = Scene::with_dash().await;
    let mut streams = Vec::new();
    for number in 0..100 {
        // One user has at most 75 streams, and so have all users who may only view.
        let name = if number < 75 { "viewer" } else { "operator" };
        let (stream, status) = begun_as(
            &dash,
            if number % 2 == 0 {
                "/log/stream"
            } else {
                "/live"
            },
            name,
        )
        .await;
        assert_eq!(status, "200", "stream {number}");
        streams.push(stream);
        let found = dash.page_as("viewer", "/live");
        assert!(
            number != 74 || found.await.status == 503,
            "the viewer has its part"
        );
    }
    for (target, name) in [("/live", "operator"), ("/log/stream", "pauser")] {
        let found = dash.page_as(name, target).await;
        assert_eq!(found.status, 503, "{found:?}");
        assert!(!found.header("retry-after").is_empty(), "{found:?}");
    }
    assert_eq!(
        dash.page_as("viewer", "/").await.status,
        200,
        "pages are still served"
    );
    drop(streams);
    until("there is room for a stream", PATIENCE, async || {
        (begun(&dash, "/live").await.1 == "200").then_some(())
    })
    .await;
}

/// Tests that slow clients do not stop the others, and that the oldest of them give way.
#[tokio::test]
async fn there_are_at_most_256_connections() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let mut kept = Vec::new();
    for number in 0..256 + 50 {
        let mut stream = TcpStream::connect(dash.address()).await.expect("connected");
        let part: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nhost: loc",
            _ => b"POST /login HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\ntoken=",
        };
        stream.write_all(part).await.expect("sent");
        kept.push(stream);
    }
    let (_last, status) = begun(&dash, "/rules").await;
    assert_eq!(status, "200");
    // A whole head counts as a sign of life, so only those without one are the oldest for sure.
    for (number, stream) in kept[..51]
        .iter_mut()
        .enumerate()
        .filter(|(number, _)| number % 3 != 2)
    {
        let mut nothing = [0];
        let read = timeout(PATIENCE, stream.read(&mut nothing))
            .await
            .expect("it is closed");
        assert_eq!(read.unwrap_or(0), 0, "{number}");
    }
}

/// Tests that the action after 16 actions under way is refused, and that these can be stopped.
#[tokio::test]
async fn there_are_at_most_16_actions_under_way() {
    let (mut scene, dash) = Scene::with_dash().await;
    let form = [("act", "pause"), ("selector", "a"), ("reason", "because")];
    assert_eq!(dash.post_as("operator", "/act", &form).await.status, 303);
    let pid =
        Pid::from_raw(i32::try_from(scene.redis.server().pid()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::STOP).expect("stopped");
    let many = (0..24).map(|_| dash.post_as("operator", "/act", &form));
    let found = futures_util::future::join_all(many).await;
    let begun: Vec<_> = found
        .iter()
        .filter(|found| found.status == 303)
        .map(|found| found.header("location").to_owned())
        .collect();
    let refused: Vec<_> = found.iter().filter(|found| found.status == 503).collect();
    let job = dash.page_as("operator", &begun[0]).await;
    let stopped = dash
        .post_as(
            "operator",
            "/job/stop",
            &[("id", begun[0].rsplit('=').next().expect("an id"))],
        )
        .await;
    let ended = dash.page_as("operator", stopped.header("location")).await;
    kill_process(pid, Signal::CONT).expect("continued");
    assert_eq!((begun.len(), refused.len()), (16, 8), "{found:?}");
    assert!(
        refused
            .iter()
            .all(|found| found.text.contains("nothing was done")
                && !found.header("retry-after").is_empty()),
        "{refused:?}"
    );
    assert!(
        job.text.contains("under way") && job.text.contains("action=\"/job/stop\""),
        "{job:?}"
    );
    assert!(ended.text.contains("stopped"), "{ended:?}");
    until("there is room for an action", PATIENCE, async || {
        (dash.post_as("operator", "/act", &form).await.status == 303).then_some(())
    })
    .await;
    // A stop says that it cuts an action off.
    kill_process(pid, Signal::STOP).expect("stopped");
    assert_eq!(dash.post_as("operator", "/act", &form).await.status, 303);
    let itself = Pid::from_raw(i32::try_from(dash.pid()).expect("a pid")).expect("a pid");
    kill_process(itself, Signal::TERM).expect("the signal is sent");
    until("it has told of the action", PATIENCE, async || {
        dash.log()
            .contains("before these actions have ended")
            .then_some(())
    })
    .await;
    kill_process(pid, Signal::CONT).expect("continued");
}

/// Story: 16 searches of a user who may only view made all actions of operators 503 for 30 s, and 200
/// searches pushed the results of their actions out.
#[tokio::test]
async fn searches_of_a_viewer_stop_no_action() {
    let (mut scene, dash) = Scene::with_dash().await;
    let act = [("act", "pause"), ("selector", "a"), ("reason", "because")];
    let result = dash.post_as("operator", "/act", &act).await;
    let search = |name: &'static str| dash.post_as(name, "/object/search", &[("object", "work:1")]);
    let pid =
        Pid::from_raw(i32::try_from(scene.redis.server().pid()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::STOP).expect("stopped");
    let found = futures_util::future::join_all((0..24).map(|_| search("viewer"))).await;
    let statuses: Vec<_> = found.iter().map(|found| found.status).collect();
    let acted = dash.post_as("operator", "/act", &act).await.status;
    let searched = search("operator").await.status;
    kill_process(pid, Signal::CONT).expect("continued");
    assert_eq!(
        statuses.iter().filter(|status| **status == 303).count(),
        4,
        "{statuses:?}"
    );
    assert_eq!((acted, searched), (303, 303));
    until("the searches have ended", PATIENCE, async || {
        (search("viewer").await.status == 303).then_some(())
    })
    .await;
    for _ in 0..250 {
        until("there is room for a search", PATIENCE, async || {
            (search("viewer").await.status == 303).then_some(())
        })
        .await;
    }
    let job = dash.page_as("operator", result.header("location")).await;
    assert!(job.status == 200 && job.text.contains("ended"), "{job:?}");
}

/// Tests that the result of an action on all rows says why it has left objects out.
#[tokio::test]
async fn an_action_on_all_rows_says_why_objects_are_left_out() {
    let (_scene, dash) = Scene::with_dash().await;
    for is_again in [false, true] {
        let form = [("act", "release-all"), ("reason", "because")];
        let begun = dash.post_as("operator", "/act", &form).await;
        let ended = dash.page_as("operator", begun.header("location")).await;
        assert!(
            ended.text.contains("ended")
                && (!is_again || ended.text.contains("they were due already")),
            "{ended:?}"
        );
    }
}

/// Story: the page of an object named `*` had a button that lifts the pause of all objects.
#[tokio::test]
async fn the_name_of_a_selector_has_no_buttons_for_rules() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let all = [("act", "pause"), ("selector", "*"), ("reason", "because")];
    assert_eq!(dash.post_as("operator", "/act", &all).await.status, 303);
    for (name, has_buttons) in [
        ("*", false),
        ("work:*", false),
        ("work:1", true),
        ("a*b", true),
    ] {
        let found = dash
            .page_as("operator", &format!("/object?name={name}"))
            .await;
        let has = ["pause", "resume", "block", "unblock"].iter().any(|act| {
            found
                .text
                .contains(&format!("name=\"act\" value=\"{act}\""))
        });
        assert_eq!((found.status, has), (200, has_buttons), "{name}: {found:?}");
    }
}

/// Tests that the page of an object searches only some of many slots, and that a search of all slots
/// finds the worker.
#[tokio::test]
async fn all_slots_are_searched_in_steps() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let (console, keys) = (redis.console().await, redis.keys());
    for n in 0..5 {
        let name = format!("w{n}");
        let _: u64 = console
            .run(&["HSET", &keys.event_workers(), &name, "250 token 0"])
            .await;
        let _: u64 = console
            .run(&["ZADD", &keys.event_workers_watched(), &n.to_string(), &name])
            .await;
    }
    let _: u64 = console
        .run(&["HSET", &keys.meta(), "names.indexed", "1"])
        .await;
    let _: u64 = console
        .run(&["LPUSH", &keys.worker_object("w4.249"), "far"])
        .await;
    for object in ["far", "lost", "waiting"] {
        let _: u64 = console.run(&["LPUSH", &keys.events(object), "1"]).await;
    }
    let _: u64 = console
        .run(&["LPUSH", &keys.objects_with_events(), "waiting"])
        .await;
    let dash = Dash::start(&redis, &["--users", path(&file)]).await;
    let get = async |target: &str| dash.page_as("viewer", target).await;
    for (object, result) in [
        ("far", "a worker has taken it: w4.249"),
        ("lost", "no worker has taken it: I1 is broken"),
    ] {
        let page = get(&format!("/object?name={object}")).await.text;
        let finding = "Not found in 384 slots of 2 worker names";
        assert!(
            page.to_lowercase().contains(&finding.to_lowercase())
                && page.contains("action=\"/object/search\""),
            "{page}"
        );
        let found = dash
            .post_as("viewer", "/object/search", &[("object", object)])
            .await;
        assert_eq!(found.status, 303, "{found:?}");
        let job = until("the search has ended", PATIENCE, async || {
            Some(get(found.header("location")).await.text)
                .filter(|page| page.contains("The search has ended"))
        })
        .await;
        assert!(
            job.contains(result) && job.contains("slots of 5 worker names are read"),
            "{job}"
        );
    }
    let page = get("/object?name=waiting").await.text;
    assert!(
        page.contains("waits for a free worker") && !page.contains("/object/search"),
        "{page}"
    );
}
