//! The header of a trusted proxy, and addresses on which the dashboard does not start.

use rstest::rstest;

use super::rig::{Dash, Scene, path, refused, reply, token, users};
use crate::serving::client_of;
use crate::support::Redis;

const HEADER: &str = "x-forwarded-user";

#[tokio::test]
async fn the_header_counts_only_from_a_trusted_peer_and_once() {
    let scene = Scene::start().await;
    let trusted = Dash::start(
        &scene.redis,
        &[
            "--trust-header",
            "X-Forwarded-User",
            "--trust-from",
            "127.0.0.1",
        ],
    )
    .await;
    let page = reply(trusted.page("/rules").header(HEADER, "ada")).await;
    assert!(
        page.status == 200 && page.text.contains("<b>ada</b> (view)"),
        "{page:?}"
    );
    let twice = trusted
        .page("/rules")
        .header(HEADER, "ada")
        .header(HEADER, "ada");
    assert_eq!(reply(twice).await.status, 401);
    for bad in ["", " ", "ada eve", "#ada", &"a".repeat(65), "ada\tb"] {
        assert_eq!(
            reply(trusted.page("/rules").header(HEADER, bad))
                .await
                .status,
            401,
            "{bad:?}"
        );
    }
    // There is no login, and the hint says why.
    let login = reply(trusted.page("/rules")).await;
    assert!(
        login.status == 401 && login.text.contains("has not come through the proxy"),
        "{login:?}"
    );
    assert_eq!(
        reply(trusted.form("/login", &[("token", "")])).await.status,
        401
    );
    let untrusted = Dash::start(
        &scene.redis,
        &[
            "--trust-header",
            "X-Forwarded-User",
            "--trust-from",
            "10.0.0.0/8",
            "--trust-from",
            "unix",
        ],
    )
    .await;
    assert_eq!(
        reply(untrusted.page("/rules").header(HEADER, "ada"))
            .await
            .status,
        401
    );
    let act = untrusted.form("/act", &[("act", "drop-all"), ("reason", "because")]);
    assert_eq!(reply(act.header(HEADER, "ada")).await.status, 401);
    assert!(
        scene
            .control
            .actions(None, 10)
            .await
            .expect("the actions")
            .actions
            .iter()
            .all(|action| action.who == "test")
    );
}

/// Tests that users of the file and users of the proxy have their own rights.
#[tokio::test]
async fn a_proxy_and_a_users_file_work_together() {
    let (scene, file) = (
        Scene::start().await,
        users(&[("operator", "view,pause,operate")]),
    );
    let options = [
        "--trust-header",
        HEADER,
        "--trust-from",
        "127.0.0.1",
        "--users",
        path(&file),
    ];
    let dash = Dash::start(&scene.redis, &options).await;
    let act = [("act", "pause"), ("selector", "a"), ("reason", "because")];
    assert_eq!(
        reply(dash.form("/act", &act).header(HEADER, "ada"))
            .await
            .status,
        403
    );
    assert_eq!(dash.post_as("operator", "/act", &act).await.status, 303);
    // The header has priority, because the proxy has checked the user.
    let both = dash
        .form("/act", &act)
        .bearer_auth(token("operator"))
        .header(HEADER, "ada");
    assert_eq!(reply(both).await.status, 403);
}

#[tokio::test]
async fn a_proxy_can_use_a_socket() {
    let (scene, dir) = (
        Scene::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    let socket = dir.path().join("dashboard.sock");
    let address = format!("unix:{}", socket.display());
    let options = [
        "--listen",
        &address,
        "--trust-header",
        HEADER,
        "--trust-from",
        "unix",
        "--trust-rights",
        "view,pause",
    ];
    let _dash = Dash::start(&scene.redis, &options).await;
    let client = client_of(|client| client.unix_socket(socket.clone()));
    let page = |name: &str| {
        reply(
            client
                .get("http://localhost/rules")
                .header(HEADER, name)
                .header("accept", "text/html"),
        )
    };
    assert!(page("ada").await.text.contains("<b>ada</b> (view, pause)"));
    assert_eq!(page("").await.status, 401);
}

#[rstest]
#[case::all_addresses(&["--listen", "0.0.0.0:0"], "can be reached from other machines: name a users file with --users, or a proxy that logs users in with --trust-header and --trust-from; or listen on this machine only, e.g. --listen 127.0.0.1:")]
#[case::the_second_address(&["--listen", "127.0.0.1:0", "--listen", "[::]:0"], "can be reached from other machines")]
#[case::a_public_url_is_no_login(&["--listen", "0.0.0.0:0", "--public-url", "https://ops.example"], "can be reached from other machines")]
#[case::a_socket(&["--listen", "unix:SOCKET"], "--users")]
#[case::a_header_from_everybody(&["--trust-header", "X-User"], "--trust-from")]
#[case::no_header(&["--trust-from", "127.0.0.1"], "--trust-header")]
#[case::no_network(&["--trust-header", "X-User", "--trust-from", "10.0.0.0/40"], "write an address, a network")]
#[case::no_right(&["--trust-header", "X-User", "--trust-from", "unix", "--trust-rights", "all"], "is not a right")]
#[case::no_url(&["--public-url", "ops.example"], "https://HOST/PATH")]
#[case::no_users(&["--users", "/nonexistent"], "No such file")]
#[case::no_pointer(&["--hide", "card"], "--hide")]
fn a_dashboard_without_a_guard_does_not_start(#[case] options: &[&str], #[case] why: &str) {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let options: Vec<&str> = options
        .iter()
        .map(|option| {
            if *option == "unix:SOCKET" {
                socket.as_str()
            } else {
                option
            }
        })
        .collect();
    let (code, text) = refused(&redis, &options);
    assert_eq!(
        (code, text.contains(why)),
        (Some(2), true),
        "{options:?}: {text}"
    );
    assert!(!text.contains("panicked"), "{text}");
}
