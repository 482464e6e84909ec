//! Requests of other sites, foreign hosts, and bodies that are no forms.

use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};

use super::rig::{Dash, Scene, USERS, path, reply, token, users};

const ACT: [(&str, &str); 3] = [("act", "drop-all"), ("reason", "because"), ("object", "")];

#[tokio::test]
async fn only_known_hosts_are_answered() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(
        &scene.redis,
        &["--users", path(&file), "--host", "ops.example"],
    )
    .await;
    let before = scene.dump().await;
    for host in [
        "evil.example",
        "ops.example.evil.example",
        "127.0.0.1.nip.io",
        "",
    ] {
        for target in [
            "/",
            "/login",
            "/link?token=1",
            "/style.css",
            "/v1/stats",
            "/nothing",
        ] {
            let found = reply(
                dash.page(target)
                    .bearer_auth(token("operator"))
                    .header("host", host),
            )
            .await;
            assert_eq!(found.status, 421, "{host:?} {target}: {found:?}");
        }
        let act = dash
            .form("/act", &ACT)
            .bearer_auth(token("operator"))
            .header("host", host);
        assert_eq!(reply(act).await.status, 421, "{host:?}");
        assert_eq!(
            reply(dash.page("/healthz").header("host", host))
                .await
                .status,
            200,
            "{host:?}"
        );
    }
    for host in ["localhost", "ops.example", "OPS.example:8480", "[::1]:8480"] {
        assert_eq!(
            reply(
                dash.page("/rules")
                    .bearer_auth(token("operator"))
                    .header("host", host)
            )
            .await
            .status,
            200,
            "{host}"
        );
    }
    assert_eq!(scene.dump().await, before);
}

/// Headers that tell the origin of a form. `OWN` stands for the own origin.
#[rstest]
#[case::cross_site(&[("sec-fetch-site", "cross-site")])]
#[case::same_site(&[("sec-fetch-site", "same-site")])]
#[case::none(&[("sec-fetch-site", "none")])]
#[case::own_origin_from_a_foreign_site(&[("sec-fetch-site", "cross-site"), ("origin", "OWN")])]
#[case::twice_the_site(&[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin")])]
#[case::foreign_origin(&[("origin", "http://evil.example")])]
#[case::no_origin(&[("origin", "null")])]
#[case::another_port(&[("origin", "http://127.0.0.1:1")])]
#[case::longer(&[("origin", "OWN.evil.example")])]
#[case::twice_the_origin(&[("origin", "OWN"), ("origin", "OWN")])]
#[case::nothing(&[])]
#[tokio::test]
async fn other_sites_cannot_act(#[case] headers: &[(&'static str, &str)]) {
    let (scene, dash) = Scene::with_dash().await;
    let (before, cookie) = (scene.dump().await, dash.log_in(&token("operator")).await);
    for (target, fields) in [
        ("/act", &ACT[..]),
        ("/check", &[]),
        ("/job/stop", &[("id", "1")]),
        ("/logout", &[]),
        ("/login", &[("token", "token-of-operator")]),
    ] {
        let mut request = dash.foreign_form(target, fields).header("cookie", &cookie);
        for (name, value) in headers {
            request = request.header(*name, value.replace("OWN", &dash.url));
        }
        let found = reply(request).await;
        assert_eq!(found.status, 403, "{target} {headers:?}: {found:?}");
        assert!(
            found
                .text
                .contains("another site has sent this request: nothing was done"),
            "{found:?}"
        );
        assert!(!found.headers.contains_key("set-cookie"), "{found:?}");
    }
    assert_eq!(scene.dump().await, before);
    // The session goes on, because the logout was refused.
    assert_eq!(
        reply(dash.page("/rules").header("cookie", &cookie))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn its_own_pages_and_programs_with_a_token_act() {
    let (_scene, dash) = Scene::with_dash().await;
    let cookie = dash.log_in(&token("operator")).await;
    let act = [
        ("act", "release"),
        ("row", "- work:held"),
        ("reason", "because"),
    ];
    let own = dash
        .foreign_form("/act", &act)
        .header("cookie", &cookie)
        .header("origin", &dash.url);
    assert_eq!(reply(own).await.status, 303);
    assert_eq!(
        reply(dash.form("/act", &act).header("cookie", &cookie))
            .await
            .status,
        303
    );
    assert_eq!(
        reply(
            dash.foreign_form("/act", &act)
                .bearer_auth(token("operator"))
        )
        .await
        .status,
        303
    );
    // A wrong token is no user.
    assert_eq!(
        reply(dash.foreign_form("/act", &act).bearer_auth("wrong"))
            .await
            .status,
        401
    );
    assert_eq!(reply(dash.form("/act", &act)).await.status, 401);
    // A token that is not a bearer token is none.
    let basic = dash
        .form("/act", &act)
        .basic_auth("operator", Some(token("operator")));
    assert_eq!(reply(basic).await.status, 401);
}

#[tokio::test]
async fn a_body_must_be_a_form_of_bounded_size() {
    let (scene, dash) = Scene::with_dash().await;
    let before = scene.dump().await;
    for kind in [
        "application/json",
        "text/plain",
        "multipart/form-data; boundary=a",
        "application/x-www-form-urlencoded-not",
    ] {
        for target in ["/act", "/check", "/login", "/logout", "/job/stop"] {
            let request = dash
                .request(reqwest::Method::POST, target)
                .header("content-type", kind)
                .bearer_auth(token("operator"));
            let found = reply(
                request
                    .header("sec-fetch-site", "same-origin")
                    .body("act=drop-all&reason=1"),
            )
            .await;
            assert_eq!(found.status, 415, "{target} {kind}: {found:?}");
        }
    }
    let long = "x".repeat(1024 * 1024);
    let most = "x".repeat(64 * 1024);
    for (target, long) in [
        ("/act", &long),
        ("/check", &most),
        ("/login", &most),
        ("/job/stop", &most),
    ] {
        let form = dash
            .form(
                target,
                &[("act", "drop-all"), ("reason", "1"), ("long", long)],
            )
            .bearer_auth(token("operator"));
        // The server does not read the rest of the body, so the connection cannot be used again.
        let found = reply(form.header("connection", "close")).await;
        assert_eq!(found.status, 413, "{target}: {found:?}");
    }
    for (fields, why) in [
        (&[("act", "drop-all")][..], "the field reason is missing"),
        (
            &[("act", "drop-all"), ("reason", " ")],
            "1 to 500 characters",
        ),
        (
            &[("act", "drop-all"), ("reason", &long[..501])],
            "1 to 500 characters",
        ),
        (
            &[("act", "drop-all"), ("act", "retry-all"), ("reason", "1")],
            "the field act is there twice",
        ),
        (
            &[("act", "drop-everything"), ("reason", "1")],
            "is not an action",
        ),
        (&[("act", "drop"), ("reason", "1")], "no row is selected"),
    ] {
        let found = dash.post_as("operator", "/act", fields).await;
        assert!(
            found.status == 400
                && found.text.contains(why)
                && found.text.contains("nothing was done"),
            "{why}: {found:?}"
        );
    }
    let rows: Vec<(&str, &str)> = [("act", "drop"), ("reason", "1")]
        .into_iter()
        .chain(std::iter::repeat_n(("row", "1-1"), 51))
        .collect();
    let found = dash.post_as("operator", "/act", &rows).await;
    assert!(
        found.status == 400 && found.text.contains("51 rows are selected"),
        "{found:?}"
    );
    assert_eq!(scene.dump().await, before);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_refused_in_time() {
    let (_scene, dash) = Scene::with_dash().await;
    let begun = Instant::now();
    let mut stream = TcpStream::connect(dash.address()).await.expect("connected");
    let head = format!(
        "POST /act HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\nact=",
        token("operator")
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 408");
    assert!(
        (9..14).contains(&begun.elapsed().as_secs()),
        "{:?}",
        begun.elapsed()
    );
    // A user who is not known does not need to send a body.
    let mut stream = TcpStream::connect(dash.address()).await.expect("connected");
    let head = head.replace(&token("operator"), "wrong");
    stream.write_all(head.as_bytes()).await.expect("sent");
    tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut status))
        .await
        .expect("an answer at once")
        .expect("read");
    assert_eq!(&status, b"HTTP/1.1 401");
}
