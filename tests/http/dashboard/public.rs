//! `--public-url`: the links, forms, redirects and cookies behind a proxy that keeps the path of the
//! URL, or removes it.

use rstest::rstest;

use super::rig::{Dash, Scene, USERS, path, reply, users};
use crate::support::Redis;

const PUBLIC: &str = "https://ops.example/queue";

/// Returns the values of the attributes of a page that name a URL.
fn urls(page: &str) -> Vec<String> {
    let attributes = [" href=\"", " src=\"", " action=\"", " data-stream=\""];
    attributes
        .iter()
        .flat_map(|attribute| page.split(attribute).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .map(str::to_owned)
        .collect()
}

#[rstest]
#[case::kept("/queue")]
#[case::removed("")]
#[tokio::test]
async fn all_links_have_the_path_of_the_public_url(#[case] before: &str) {
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(
        &scene.redis,
        &["--users", path(&file), "--public-url", PUBLIC],
    )
    .await;
    assert_eq!(dash.out(), format!("{PUBLIC}/\n"));
    let page = |target: &str| {
        dash.page(&format!("{before}{target}"))
            .header("host", "ops.example")
    };
    let form = |target: &str, fields: &[(&str, &str)]| {
        dash.foreign_form(&format!("{before}{target}"), fields)
            .header("host", "ops.example")
            .header("origin", "https://ops.example")
    };
    let asked = reply(page("/held?why=retry")).await;
    assert!(
        asked.status == 401
            && asked
                .text
                .contains("name=\"next\" value=\"/held?why=retry\""),
        "{asked:?}"
    );
    let begun = reply(form(
        "/login",
        &[("token", "token-of-operator"), ("next", "/held?why=retry")],
    ))
    .await;
    assert_eq!(
        (begun.status, begun.header("location")),
        (303, "/queue/held?why=retry")
    );
    let set = begun.header("set-cookie");
    assert!(
        set.contains("; Path=/queue;") && set.ends_with("; Secure"),
        "{set}"
    );
    let cookie = begun.cookie();
    let targets = [
        "/",
        "/object?name=work:held",
        "/held",
        "/paused",
        "/dead",
        "/workers",
        "/worker?name=w",
        "/rules",
        "/schedules",
        "/cron",
        "/log?follow=true",
        "/actions",
        "/check",
        "/login",
    ];
    for target in targets {
        let found = reply(page(target).header("cookie", &cookie)).await;
        let urls = urls(&found.text);
        assert!(
            found.status == 200 && urls.len() >= 4,
            "{target}: {found:?}"
        );
        for url in urls {
            let is_own = url.starts_with("/queue/") || url == "#content" || url.is_empty();
            assert!(
                is_own && !url.starts_with("/queue/queue"),
                "{target}: {url}"
            );
        }
    }
    let style = reply(page("/style.css")).await;
    assert!(style.status == 200 && style.header("content-type").starts_with("text/css"));
    let fields = [
        ("act", "release"),
        ("row", "- work:held"),
        ("reason", "because"),
        ("back", "/held"),
    ];
    let act = reply(form("/act", &fields).header("cookie", &cookie)).await;
    assert!(
        act.status == 303 && act.header("location").starts_with("/queue/job?id="),
        "{act:?}"
    );
    let job = reply(
        page(
            act.header("location")
                .strip_prefix("/queue")
                .expect("a path"),
        )
        .header("cookie", &cookie),
    )
    .await;
    assert!(
        job.status == 200 && job.text.contains("<a href=\"/queue/held\">Back</a>"),
        "{job:?}"
    );
    let check = reply(form("/check", &[]).header("cookie", &cookie)).await;
    assert_eq!(
        (check.status, check.header("location")),
        (303, "/queue/check")
    );
    let out = reply(form("/logout", &[]).header("cookie", &cookie)).await;
    assert_eq!((out.status, out.header("location")), (303, "/queue/login"));
    assert!(
        out.header("set-cookie").contains("; Path=/queue;"),
        "{out:?}"
    );
    // Another site of the same proxy is another origin.
    let other = dash
        .foreign_form("/login", &[("token", "token-of-operator")])
        .header("host", "ops.example");
    for origin in [
        "https://ops.example:8443",
        "https://example",
        "https://queue.ops.example",
    ] {
        let request = other
            .try_clone()
            .expect("a request")
            .header("origin", origin);
        assert_eq!(reply(request).await.status, 403, "{origin}");
    }
}

#[tokio::test]
async fn only_the_whole_path_is_removed() {
    let (redis, file) = (Redis::start(), users(&USERS));
    let dash = Dash::start(&redis, &["--users", path(&file), "--public-url", PUBLIC]).await;
    for (target, status) in [
        ("/queue", 200),
        ("/queue/", 200),
        ("/queue?a=b", 400),
        ("/queue/rules", 200),
        ("/rules", 200),
        ("/queue/queue/rules", 404),
        ("/queues/rules", 404),
        ("/queue//evil.example", 404),
        ("/queue/healthz", 200),
        ("/queue/v1/rules", 200),
    ] {
        let found = dash.page_as("viewer", target).await;
        assert_eq!(found.status, status, "{target}: {found:?}");
    }
    assert_eq!(
        reply(dash.page("/queue/rules").header("host", "example"))
            .await
            .status,
        421
    );
}

#[tokio::test]
async fn a_public_url_is_in_the_link() {
    let redis = Redis::start();
    let dash = Dash::start(&redis, &["--public-url", "https://ops.example/queue/"]).await;
    let token = dash.link_token();
    assert_eq!(dash.out(), format!("{PUBLIC}/link?token={token}\n"));
    let page = reply(
        dash.page(&format!("/queue/link?token={token}"))
            .header("host", "ops.example"),
    )
    .await;
    assert!(
        page.status == 200 && page.text.contains("action=\"/queue/login\""),
        "{page:?}"
    );
    let login = dash
        .form("/queue/login", &[("token", &token)])
        .header("host", "ops.example");
    assert_eq!(reply(login).await.header("location"), "/queue/");
    // Without a path, the links begin at the root.
    let root = Dash::start(&redis, &["--public-url", "http://ops.example:8080"]).await;
    let set = reply(root.form("/login", &[("token", &root.link_token())])).await;
    assert!(
        set.header("set-cookie").contains("; Path=/;")
            && !set.header("set-cookie").contains("Secure"),
        "{set:?}"
    );
}
