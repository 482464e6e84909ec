//! Every route with every role and every method: the status, and that a refusal changes nothing.

mod roles;
mod tables;

use reqwest::Method;

use self::roles::Dashes;
use self::tables::{ACTS, ACTS_ON_ALL, Object, READS, Right, routes_of_the_source};
use super::rig::{Scene, reply, token};

#[tokio::test]
async fn each_role_reads_what_it_may() {
    let dashes = Dashes::start().await;
    let before = dashes.scene.dump().await;
    for role in dashes.roles() {
        for (_, target, needs) in READS {
            for of in ["work", "user"] {
                let target = target
                    .replace("{}", of)
                    .replace("WORK", &dashes.scene.dead[0]);
                let expected = role.reads(needs, of);
                for method in [Method::GET, Method::HEAD] {
                    let found = reply(role.known(role.dash.request(method.clone(), &target))).await;
                    assert_eq!(
                        found.status, expected,
                        "{method} {target} as {}: {found:?}",
                        role.name
                    );
                    let policy = found.header("content-security-policy");
                    let is_guarded = policy.starts_with("default-src 'none'");
                    // With `no-referrer`, the forms would have the origin `null`.
                    assert_eq!(found.header("referrer-policy"), "same-origin");
                    let is_quiet = found.header("x-content-type-options") == "nosniff"
                        && !found.header("cache-control").is_empty();
                    assert!(is_guarded && is_quiet, "{method} {target}: {found:?}");
                }
                let page = reply(role.known(role.dash.page(&target))).await;
                assert_eq!(page.status, expected, "{target} as {}", role.name);
                let kind = match target.starts_with("/v1/") {
                    true => "application/problem+json",
                    false => "text/html",
                };
                let is_of_kind = page.header("content-type").starts_with(kind);
                assert!(expected == 200 || is_of_kind, "{page:?}");
            }
        }
    }
    assert_eq!(dashes.scene.dump().await, before, "reads change nothing");
}

#[tokio::test]
async fn each_route_has_only_its_methods() {
    let dashes = Dashes::start().await;
    let before = dashes.scene.dump().await;
    let source = routes_of_the_source();
    let roles = dashes.roles();
    for role in [&roles[0], &roles[8]] {
        for (path, methods) in &source {
            let target = path.replace("{object}", "work:held").replace("{id}", "1-1");
            for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                let method: Method = method.parse().expect("a method");
                if method == Method::POST && methods.contains(&"post") {
                    continue;
                }
                let request = role.dash.request(method.clone(), &target);
                let request = request
                    .header("sec-fetch-site", "same-origin")
                    .header("content-type", "application/x-www-form-urlencoded")
                    .body("act=drop-all&reason=1");
                let found = reply(role.known(request)).await;
                let expected = if role.is_known() || target == "/login" {
                    405
                } else {
                    401
                };
                assert_eq!(
                    found.status, expected,
                    "{method} {target} as {}: {found:?}",
                    role.name
                );
            }
        }
        for (target, status) in [
            ("/act", 405),
            ("/object/search", 405),
            ("/job/stop", 405),
            ("/logout", 405),
            ("/nothing", 404),
            ("/v1/nothing", 404),
        ] {
            let found = reply(role.known(role.dash.request(Method::GET, target))).await;
            assert_eq!(
                found.status,
                if role.is_known() { status } else { 401 },
                "GET {target} as {}: {found:?}",
                role.name
            );
        }
    }
    assert_eq!(dashes.scene.dump().await, before);
}

#[tokio::test]
async fn each_role_does_what_it_may() {
    let dashes = Dashes::start().await;
    let scene = &dashes.scene;
    let before = scene.dump().await;
    // First all requests that must be refused, then the others.
    for wanted in [false, true] {
        for role in dashes.roles() {
            let named = ACTS.iter().flat_map(|act| [("work", act), ("user", act)]);
            for (of, (act, fields, right)) in named.chain(ACTS_ON_ALL.iter().map(|act| ("", act))) {
                let may = role.may(*right, of);
                if may != wanted {
                    continue;
                }
                let of_dead = |of: &str| scene.dead[usize::from(of == "user")].clone();
                let filled = |value: &str| match value {
                    "{}-dead" => of_dead(of),
                    value => value.replace("{}", of),
                };
                let fields: Vec<(&str, String)> = fields
                    .iter()
                    .map(|(name, value)| (*name, filled(value)))
                    .collect();
                let mut form: Vec<(&str, &str)> = vec![("act", *act), ("reason", "because")];
                form.extend(fields.iter().map(|(name, value)| (*name, value.as_str())));
                let found = reply(role.known(role.dash.form("/act", &form))).await;
                // A letter of a foreign object, or one that is gone, does not exist.
                let is_letter = ["retry", "drop"].contains(act);
                let expected = match (role.is_known(), may) {
                    (false, _) => 401,
                    (_, true) if is_letter && found.status == 404 => 404,
                    (_, true) => 303,
                    (_, false) if is_letter && role.rights[2] => 404,
                    _ => 403,
                };
                assert_eq!(
                    found.status, expected,
                    "{form:?} as {}: {found:?}",
                    role.name
                );
            }
            for of in ["work", "user"] {
                let expected = match role.reads(Object, of) {
                    200 => 303,
                    refused => refused,
                };
                let object = format!("{of}:held");
                let form = role.dash.form("/object/search", &[("object", &object)]);
                let found = reply(role.known(form)).await;
                assert_eq!(
                    found.status, expected,
                    "a search for {of}:held as {}: {found:?}",
                    role.name
                );
            }
            let may_check = role.may(Right::Operate, "");
            if may_check == wanted {
                let found = reply(role.known(role.dash.form("/check", &[]))).await;
                let expected = match (may_check, role.is_known()) {
                    (true, _) => 303,
                    (false, true) => 403,
                    (false, false) => 401,
                };
                assert_eq!(found.status, expected, "as {}", role.name);
            }
        }
        if !wanted {
            assert_eq!(
                scene.dump().await,
                before,
                "a refused action changes nothing"
            );
        }
    }
    let (mut actions, mut after) = (Vec::new(), None);
    for _ in 0..10 {
        let page = scene.control.actions(after.as_ref(), 32).await;
        let page = page.expect("the actions");
        actions.extend(page.actions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let found: Vec<_> = actions
        .iter()
        .map(|action| (&*action.action, &*action.who, &*action.object))
        .collect();
    for (act, who) in [
        ("release", "bound"),
        ("skip", "bound"),
        ("pause", "ada"),
        ("forget", "bound"),
        ("retry", "bound"),
        ("block", "operator"),
    ] {
        let is_it = |action: &(&str, &str, &str)| (action.0, action.1) == (act, who);
        assert!(found.iter().any(is_it), "{act}: {found:?}");
    }
}

/// Tests that a user with prefixes sees no row of other objects, and that a dead letter of another
/// object looks as one that does not exist.
#[tokio::test]
async fn prefixes_bind_what_a_user_sees() {
    let (scene, dash) = Scene::with_dash().await;
    let get = |target: &str| dash.page_as("bound", target);
    let lists = "/held /dead /schedules /cron /log /v1/held /v1/dead /v1/schedule /v1/cron /v1/log";
    for list in lists.split(' ') {
        let found = get(list).await;
        assert!(
            found.text.contains("work")
                && !found.text.contains("user:")
                && !found.text.contains("user-"),
            "{list}: {}",
            found.text
        );
    }
    let foreign = get(&format!("/v1/dead/{}", scene.dead[1])).await;
    let absent = get("/v1/dead/1-1").await;
    assert_eq!((foreign.status, absent.status), (404, 404));
    assert_eq!(foreign.text.replace(&scene.dead[1], "1-1"), absent.text);
}

/// Tests that a result of an action is shown only to the user who has begun it, and that only this
/// user can stop it.
#[tokio::test]
async fn the_result_of_an_action_is_for_its_user() {
    let (_scene, dash) = Scene::with_dash().await;
    let act = [
        ("act", "release"),
        ("row", "- work:held"),
        ("reason", "because"),
    ];
    let begun = dash.post_as("bound", "/act", &act).await;
    let target = begun.header("location").to_owned();
    let id = target.strip_prefix("/job?id=").expect("an id").to_owned();
    let page = async |name| dash.page_as(name, &target).await.status;
    let stop = async |name: &str, fields: &[(&str, &str)]| {
        let form = dash.form("/job/stop", fields);
        reply(form.bearer_auth(token(name))).await.status
    };
    assert_eq!(page("bound").await, 200);
    for name in ["operator", "viewer"] {
        assert_eq!(page(name).await, 404);
        assert_eq!(stop(name, &[("id", &id)]).await, 404);
    }
    assert_eq!(stop("bound", &[("id", &id)]).await, 303);
    assert_eq!(stop("bound", &[]).await, 404);
}
