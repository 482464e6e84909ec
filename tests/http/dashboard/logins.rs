//! Logins: tokens, sessions, the one-time link, and failed logins.

use std::time::Duration;

use super::rig::{Dash, Scene, USERS, path, reply, token, users, write_users};
use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

#[tokio::test]
async fn a_session_lasts_until_the_logout() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let status = async |cookie: &str| {
        reply(dash.page("/rules").header("cookie", cookie))
            .await
            .status
    };
    let asked = reply(dash.page("/held?why=retry&prefix=a%20b")).await;
    assert!(
        asked.status == 401
            && asked
                .text
                .contains("value=\"/held?why=retry&amp;prefix=a%20b\""),
        "{asked:?}"
    );
    let begun = reply(dash.form(
        "/login",
        &[("token", " token-of-viewer\n"), ("next", "/held?why=retry")],
    ))
    .await;
    assert_eq!(
        (begun.status, begun.header("location")),
        (303, "/held?why=retry")
    );
    let set = begun.header("set-cookie");
    assert!(
        set.contains("; HttpOnly; SameSite=Strict")
            && set.contains("; Path=/;")
            && !set.contains("Secure"),
        "{set}"
    );
    let cookie = begun.cookie();
    assert!(cookie.len() > 50 && !set.contains("token-of"), "{set}");
    let other = dash.log_in(&token("operator")).await;
    assert_eq!((status(&cookie).await, status(&other).await), (200, 200));
    assert!(
        reply(
            dash.page("/rules")
                .header("cookie", format!("a=b; {cookie}"))
        )
        .await
        .text
        .contains("<b>viewer</b>")
    );
    // A forged cookie, one of another name, and a part of one.
    let (name, value) = cookie.split_once('=').expect("a cookie");
    let forged = format!("{name}={}", "A".repeat(value.len()));
    for bad in [
        forged.as_str(),
        &format!("other={value}"),
        &cookie[..cookie.len() - 1],
        &format!("{name}="),
        &format!("{name}=token-of-viewer"),
    ] {
        assert_eq!(status(bad).await, 401, "{bad}");
    }
    let out = reply(dash.form("/logout", &[]).header("cookie", &cookie)).await;
    assert_eq!((out.status, out.header("location")), (303, "/login"));
    assert!(out.header("set-cookie").contains("Max-Age=0"), "{out:?}");
    assert_eq!((status(&cookie).await, status(&other).await), (401, 200));
}

#[tokio::test]
async fn the_session_of_a_removed_user_ends() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    let cookie = dash.log_in(&token("operator")).await;
    let viewer = dash.log_in(&token("viewer")).await;
    let page = async |cookie: &str| {
        reply(dash.page("/rules").header("cookie", cookie))
            .await
            .status
    };
    assert_eq!(page(&cookie).await, 200);
    write_users(&file, &[("viewer", "view"), ("pauser", "view")]);
    dash.read_again().await;
    assert_eq!((page(&cookie).await, page(&viewer).await), (401, 200));
    let act = [("act", "drop-all"), ("reason", "because")];
    assert_eq!(
        reply(dash.form("/act", &act).header("cookie", &cookie))
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn the_link_works_once_and_not_by_a_look() {
    let redis = Redis::start();
    let dash = Dash::start(&redis, &[]).await;
    let first = dash.link_token();
    assert_eq!(dash.out(), format!("{}/link?token={first}\n", dash.url));
    // A look at the link, and the token anywhere else, does not use it up.
    for target in [
        "/link",
        "/",
        "/login",
        "/rules",
        "/v1/stats",
        "/live",
        "/healthz",
    ] {
        let target = format!("{target}?token={first}");
        let found = reply(dash.page(&target)).await;
        let status = match target.split('?').next() {
            Some("/link" | "/healthz") => 200,
            // This page takes no parameter.
            Some("/login") => 400,
            _ => 401,
        };
        assert_eq!(found.status, status, "{target}");
        assert!(!found.headers.contains_key("set-cookie"), "{target}");
    }
    assert_eq!(
        reply(dash.page("/rules").bearer_auth(&first)).await.status,
        401
    );
    let by_query = dash.form(&format!("/login?token={first}"), &[]);
    assert_eq!(reply(by_query).await.status, 401);
    let begun = reply(dash.form("/login", &[("token", &first)])).await;
    assert_eq!((begun.status, begun.header("location")), (303, "/"));
    let cookie = begun.cookie();
    let page = reply(dash.page("/check").header("cookie", &cookie)).await;
    assert!(
        page.status == 200
            && page.text.contains("view, pause, operate")
            && page.text.contains("Check now"),
        "{page:?}"
    );
    until("the next link is printed", PATIENCE, async || {
        (dash.link_token() != first).then_some(())
    })
    .await;
    // Each failure waits a second, so that it is not refused as one too many.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let again = reply(dash.form("/login", &[("token", &first)])).await;
    assert!(
        again.status == 401
            && again.text.contains("was used already")
            && !again.headers.contains_key("set-cookie"),
        "{again:?}"
    );
    assert_eq!(
        reply(dash.form("/login", &[("token", &dash.link_token())]))
            .await
            .status,
        303
    );
    assert_eq!(
        reply(dash.page("/rules").header("cookie", &cookie))
            .await
            .status,
        200,
        "the first session goes on"
    );
    let log = dash.log();
    assert!(
        !log.contains(&first) && !log.contains(&dash.link_token()),
        "{log}"
    );
}

/// Tests that a login leads only to pages of this server.
#[tokio::test]
async fn a_login_leads_to_no_other_site() {
    let (_scene, dash) = Scene::with_dash().await;
    for bad in [
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        "evil.example",
        "/\t/evil.example",
        "\t//evil.example",
        "/\n/evil.example",
        "/a\r\nset-cookie: a=b",
        "/\u{0}/evil.example",
        "/held?prefix=é",
        "",
    ] {
        let found =
            reply(dash.form("/login", &[("token", "token-of-viewer"), ("next", bad)])).await;
        assert_eq!(
            (found.status, found.header("location")),
            (303, "/"),
            "{bad:?}"
        );
        // The page of a result leads back only to pages of this server.
        let act = [
            ("act", "release"),
            ("row", "- work:held"),
            ("reason", "because"),
            ("back", bad),
        ];
        let begun = dash.post_as("operator", "/act", &act).await;
        let job = dash.page_as("operator", begun.header("location")).await;
        let is_safe = bad.starts_with("/held");
        assert!(
            job.text.contains("<a href=\"/\">Back</a>") || is_safe,
            "{bad:?}: {}",
            job.text
        );
    }
    for good in [
        "/",
        "/held?why=retry",
        "/object?name=//evil.example",
        "/log?object=a%0Ab",
    ] {
        let found =
            reply(dash.form("/login", &[("token", "token-of-viewer"), ("next", good)])).await;
        assert_eq!((found.status, found.header("location")), (303, good));
    }
    // A form that needs a login is not repeated: after the login the browser goes to a page.
    let act = reply(dash.form("/act", &[("act", "drop-all"), ("reason", "because")])).await;
    assert!(
        act.status == 401 && act.text.contains("name=\"next\" value=\"\""),
        "{act:?}"
    );
}

#[tokio::test]
async fn wrong_tokens_are_slow_and_right_ones_are_never_refused() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let wrong = async || reply(dash.form("/login", &[("token", "wrong-token")])).await;
    let first = wrong().await;
    assert!(
        first.status == 401 && first.text.contains("The token is not known"),
        "{first:?}"
    );
    assert!(!first.text.contains("wrong-token"), "{first:?}");
    for _ in 0..20 {
        let next = wrong().await;
        assert_eq!(next.status, 429, "{next:?}");
        assert!(!next.header("retry-after").is_empty(), "{next:?}");
        dash.log_in(&token("viewer")).await;
    }
    until(
        "a wrong token is only unknown again",
        PATIENCE,
        async || {
            tokio::time::sleep(Duration::from_millis(1050)).await;
            (wrong().await.status == 401).then_some(())
        },
    )
    .await;
    assert!(!dash.log().contains("wrong-token"));
}

/// Tests that further logins of a user end the sessions of this user that were unused for the longest
/// time, and none of others.
#[tokio::test]
async fn a_user_has_at_most_100_sessions() {
    let redis = Redis::start();
    let dash = Dash::for_users(&redis).await;
    let other = dash.log_in(&token("operator")).await;
    let (first, second) = (
        dash.log_in(&token("viewer")).await,
        dash.log_in(&token("viewer")).await,
    );
    let status = async |cookie: &str| {
        reply(dash.page("/login/none").header("cookie", cookie))
            .await
            .status
    };
    for _ in 2..100 {
        dash.log_in(&token("viewer")).await;
    }
    assert_eq!(status(&first).await, 404, "the session is known");
    let last = dash.log_in(&token("viewer")).await;
    assert_eq!(
        (
            status(&first).await,
            status(&second).await,
            status(&last).await
        ),
        (404, 401, 404)
    );
    assert_eq!(status(&other).await, 404);
}
