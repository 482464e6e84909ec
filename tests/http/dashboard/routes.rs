//! Every route with every role and every method: the status, and that a refusal changes nothing.

use std::collections::BTreeMap;

use reqwest::{Method, RequestBuilder};

use crate::support::without_spaces;

use super::rig::{Dash, Scene, USERS, path, reply, token, users};

/// The requirement of a route that only reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// No user, and no known host.
    Probe,
    /// No user.
    Nobody,
    /// A user.
    User,
    /// The right `view` for some objects.
    Some,
    /// The right `view` for all objects.
    All,
    /// The right `operate` for all objects.
    Operate,
    /// The right `view` for the object that the target names. `{}` stands for `work` or `user`.
    Object,
}
use Needs::{All, Nobody, Object, Operate, Probe, Some as SomeObjects, User};

/// The routes that only read: the path in the source, the target, and the requirement.
const READS: [(&str, &str, Needs); 48] = [
    ("/", "/", SomeObjects),
    ("/live", "/live", All),
    ("/object", "/object?name={}:held", Object),
    ("/held", "/held", SomeObjects),
    ("/paused", "/paused", SomeObjects),
    ("/dead", "/dead", SomeObjects),
    ("/dead", "/dead?object={}:dead", Object),
    ("/workers", "/workers", All),
    ("/worker", "/worker?name=w", All),
    ("/rules", "/rules", SomeObjects),
    ("/schedules", "/schedules", SomeObjects),
    ("/cron", "/cron", SomeObjects),
    ("/log", "/log", SomeObjects),
    ("/log/stream", "/log/stream", SomeObjects),
    ("/actions", "/actions", All),
    ("/check", "/check", All),
    ("/job", "/job?id=1", User),
    ("/login", "/login", Nobody),
    ("/link", "/link?token=1", Nobody),
    ("/style.css", "/style.css", Nobody),
    ("/script.js", "/script.js", Nobody),
    ("/icon.svg", "/icon.svg", Nobody),
    ("/healthz", "/healthz", Probe),
    ("/readyz", "/readyz", Probe),
    ("/v1/objects/{object}", "/v1/objects/{}:held", Object),
    ("/v1/object", "/v1/object?object={}:held", Object),
    (
        "/v1/objects/{object}/schedule",
        "/v1/objects/{}:later/schedule",
        Object,
    ),
    (
        "/v1/object/schedule",
        "/v1/object/schedule?object={}:later",
        Object,
    ),
    (
        "/v1/objects/{object}/chain",
        "/v1/objects/{}:done/chain",
        Object,
    ),
    (
        "/v1/object/chain",
        "/v1/object/chain?object={}:done",
        Object,
    ),
    ("/v1/stats", "/v1/stats", All),
    ("/v1/schedule", "/v1/schedule", SomeObjects),
    ("/v1/held", "/v1/held", SomeObjects),
    ("/v1/paused", "/v1/paused", SomeObjects),
    ("/v1/dead", "/v1/dead", SomeObjects),
    ("/v1/dead", "/v1/dead?object={}:dead", Object),
    // For a letter of a foreign object the answer is 404, see `prefixes_bind_what_a_user_sees`.
    ("/v1/dead/{id}", "/v1/dead/WORK", SomeObjects),
    ("/v1/rules", "/v1/rules", SomeObjects),
    ("/v1/shares", "/v1/shares", SomeObjects),
    ("/v1/actions", "/v1/actions", All),
    ("/v1/log", "/v1/log", SomeObjects),
    ("/v1/log", "/v1/log?newest=true", SomeObjects),
    ("/v1/cron", "/v1/cron", SomeObjects),
    ("/v1/workers", "/v1/workers", All),
    ("/v1/worker", "/v1/worker?name=w", All),
    ("/v1/queues", "/v1/queues", All),
    ("/v1/depth", "/v1/depth", All),
    ("/v1/check", "/v1/check", Operate),
];

/// The routes that take a form.
const FORMS: [&str; 6] = [
    "/object/search",
    "/check",
    "/act",
    "/job/stop",
    "/login",
    "/logout",
];

/// The right that an action needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Pause,
    Operate,
}

/// An action: its word, the fields of its form, and the right that it needs.
type Act = (&'static str, &'static [(&'static str, &'static str)], Right);

/// The fields of each action. `{}` stands for `work` or `user`, or, if the object is not named, for
/// all objects.
const ACTS: [Act; 16] = [
    ("pause", &[("selector", "{}:1")], Right::Pause),
    (
        "pause",
        &[("selector", "{}:*"), ("for", "1h")],
        Right::Pause,
    ),
    ("resume", &[("selector", "{}:1")], Right::Pause),
    ("resume", &[("selector", "{}:*")], Right::Pause),
    ("block", &[("selector", "{}:*")], Right::Operate),
    ("unblock", &[("selector", "{}:*")], Right::Operate),
    ("skip", &[("row", "7 {}:held")], Right::Operate),
    ("release", &[("row", "- {}:retry")], Right::Operate),
    ("release-all", &[("prefix", "{}:")], Right::Operate),
    ("retry", &[("row", "{}-dead")], Right::Operate),
    ("drop", &[("row", "{}-dead")], Right::Operate),
    ("retry-all", &[("object", "{}:dead")], Right::Operate),
    ("drop-all", &[("object", "{}:dead")], Right::Operate),
    ("forget", &[("object", "{}:idle")], Right::Operate),
    (
        "cancel",
        &[("object", "{}:later"), ("key", "later")],
        Right::Operate,
    ),
    (
        "release",
        &[("row", "- {}:a"), ("row", "- {}:b")],
        Right::Operate,
    ),
];

/// The actions on all objects.
const ACTS_ON_ALL: [Act; 10] = [
    ("pause", &[("selector", "*")], Right::Pause),
    ("resume", &[("selector", "*")], Right::Pause),
    ("block", &[("selector", "*")], Right::Operate),
    ("unblock", &[("selector", "*")], Right::Operate),
    ("release-all", &[], Right::Operate),
    ("retry-all", &[], Right::Operate),
    ("drop-all", &[], Right::Operate),
    ("run-cron", &[("name", "work-nightly")], Right::Operate),
    ("pause-cron", &[("name", "work-nightly")], Right::Operate),
    ("resume-cron", &[("name", "work-nightly")], Right::Operate),
];

/// Returns the text up to the parenthesis that closes the call.
fn argument(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth < 0
    });
    &text[..end.unwrap_or(text.len())]
}

/// Returns the methods of each route in the source.
fn routes_of_the_source() -> BTreeMap<String, Vec<&'static str>> {
    let sources = [
        include_str!("../../../crates/web/src/dashboard/mod.rs"),
        include_str!("../../../crates/web/src/serve/view.rs"),
    ];
    let constants = [("probes::HEALTH", "/healthz"), ("probes::READY", "/readyz")];
    let mut found = BTreeMap::new();
    for source in sources {
        // `route(path, …)` is in a loop over the files.
        // The method `route` of other types has no parameters.
        let others = ["path,", ")"];
        for route in without_spaces(source)
            .split(".route(")
            .skip(1)
            .filter(|route| !others.iter().any(|other| route.starts_with(other)))
        {
            let (path, rest) = route.split_once(',').expect("a path and a handler");
            let handlers = argument(rest);
            let constant = constants
                .iter()
                .find(|(name, _)| *name == path)
                .map(|(_, path)| *path);
            let path = constant
                .unwrap_or_else(|| path.trim_matches('"'))
                .to_owned();
            let methods = ["get", "post"].into_iter().filter(|method| {
                handlers.starts_with(&format!("{method}("))
                    || handlers.contains(&format!(").{method}("))
            });
            assert!(
                found.insert(path.clone(), methods.collect()).is_none(),
                "{path} is there twice"
            );
        }
    }
    let assets = without_spaces(include_str!("../../../crates/web/src/dashboard/assets.rs"));
    let files = assets.split("(\"/").skip(1);
    let names = files.filter_map(|file| file.split('"').next());
    found.extend(names.map(|name| (format!("/{name}"), vec!["get"])));
    found
}

#[test]
fn the_tables_have_every_route() {
    let mut table: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, ..) in READS {
        table.insert(path.to_owned(), vec!["get"]);
    }
    for path in FORMS {
        table.entry(path.to_owned()).or_default().push("post");
    }
    assert_eq!(routes_of_the_source(), table);
    let source = include_str!("../../../crates/web/src/dashboard/acts/wanted.rs");
    let (_, words) = source
        .split_once("match form.needed(\"act\")?")
        .expect("the actions");
    let (words, _) = words
        .split_once("is not an action")
        .expect("the end of the actions");
    let arms = words
        .lines()
        .filter_map(|line| line.split_once("=>"))
        .map(|(arm, _)| arm)
        .filter(|arm| arm.starts_with("            "));
    let in_source: Vec<&str> = arms
        .flat_map(|arm| arm.split('"').skip(1).step_by(2))
        .filter(|word| !word.is_empty())
        .collect();
    for word in &in_source {
        assert!(
            ACTS.iter().chain(&ACTS_ON_ALL).any(|(act, ..)| act == word),
            "{word} is not in the tables"
        );
    }
    assert!(in_source.len() >= 15, "{in_source:?}");
}

/// The requests of one role: the name, whether it has `view`, `pause` and `operate`, and whether it
/// has them for all objects.
struct Role<'a> {
    name: &'static str,
    dash: &'a Dash,
    rights: [bool; 3],
    has_all: bool,
    login: Login,
}

enum Login {
    Nobody,
    Token(String),
    Header(&'static str),
}

impl Role<'_> {
    fn known(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.login {
            Login::Nobody => request,
            Login::Token(token) => request.bearer_auth(token),
            Login::Header(name) => request.header("x-forwarded-user", *name),
        }
    }

    fn is_known(&self) -> bool {
        !matches!(self.login, Login::Nobody)
    }

    /// Returns the status of a page. `of`: the prefix of the object.
    fn reads(&self, needs: Needs, of: &str) -> u16 {
        let view = self.rights[0];
        match needs {
            Probe | Nobody => 200,
            _ if !self.is_known() => 401,
            // There is no such job.
            User => 404,
            SomeObjects if view => 200,
            All if view && self.has_all => 200,
            Operate if self.rights[2] && self.has_all => 200,
            Object if view && (self.has_all || of == "work") => 200,
            _ => 403,
        }
    }

    /// Returns whether the role may do an action. `of`: the prefix of the object; empty: all objects.
    fn may(&self, right: Right, of: &str) -> bool {
        let has = match right {
            Right::Pause => self.rights[1],
            Right::Operate => self.rights[2],
        };
        has && (self.has_all || of == "work")
    }
}

/// The dashboards of the roles.
struct Dashes {
    scene: Scene,
    _users: tempfile::NamedTempFile,
    users: Dash,
    read_only: Dash,
    behind_proxy: Dash,
}

impl Dashes {
    async fn start() -> Self {
        let (scene, file) = (Scene::start().await, users(&USERS));
        let trusting = [
            "--trust-header",
            "X-Forwarded-User",
            "--trust-from",
            "127.0.0.0/8",
            "--trust-rights",
            "view,pause",
        ];
        Self {
            users: Dash::start(&scene.redis, &["--users", path(&file)]).await,
            read_only: Dash::start(&scene.redis, &["--users", path(&file), "--read-only"]).await,
            behind_proxy: Dash::start(&scene.redis, &trusting).await,
            _users: file,
            scene,
        }
    }

    fn roles(&self) -> Vec<Role<'_>> {
        let role = |name: &'static str, dash, rights, has_all, login| Role {
            name,
            dash,
            rights,
            has_all,
            login,
        };
        let user = |name: &'static str| Login::Token(token(name));
        vec![
            role("nobody", &self.users, [false; 3], false, Login::Nobody),
            role("emitter", &self.users, [false; 3], true, user("emitter")),
            role(
                "viewer",
                &self.users,
                [true, false, false],
                true,
                user("viewer"),
            ),
            role(
                "pauser",
                &self.users,
                [true, true, false],
                true,
                user("pauser"),
            ),
            role("bound", &self.users, [true; 3], false, user("bound")),
            role(
                "operator --read-only",
                &self.read_only,
                [true, false, false],
                true,
                user("operator"),
            ),
            role(
                "nobody of the proxy",
                &self.behind_proxy,
                [false; 3],
                false,
                Login::Nobody,
            ),
            role(
                "ada of the proxy",
                &self.behind_proxy,
                [true, true, false],
                true,
                Login::Header("ada"),
            ),
            // The last one, because the actions are done.
            role("operator", &self.users, [true; 3], true, user("operator")),
        ]
    }
}

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
                    let is_guarded = found
                        .header("content-security-policy")
                        .starts_with("default-src 'none'");
                    // With `no-referrer`, the forms would have the origin `null`.
                    assert_eq!(found.header("referrer-policy"), "same-origin");
                    let is_quiet = found.header("x-content-type-options") == "nosniff"
                        && !found.header("cache-control").is_empty();
                    assert!(is_guarded && is_quiet, "{method} {target}: {found:?}");
                }
                let page = reply(role.known(role.dash.page(&target))).await;
                assert_eq!(page.status, expected, "{target} as {}", role.name);
                let is_json = target.starts_with("/v1/");
                assert!(
                    expected == 200
                        || page.header("content-type").starts_with(if is_json {
                            "application/problem+json"
                        } else {
                            "text/html"
                        }),
                    "{page:?}"
                );
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
            for method in [
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE,
                Method::OPTIONS,
            ] {
                if method == Method::POST && methods.contains(&"post") {
                    continue;
                }
                let request = role
                    .dash
                    .request(method.clone(), &target)
                    .header("sec-fetch-site", "same-origin");
                let request = request
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
                let filled = |value: &str| {
                    if value == "{}-dead" {
                        of_dead(of)
                    } else {
                        value.replace("{}", of)
                    }
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
                let found =
                    reply(role.known(role.dash.form("/object/search", &[("object", &object)])))
                        .await;
                assert_eq!(
                    found.status, expected,
                    "a search for {of}:held as {}: {found:?}",
                    role.name
                );
            }
            let may_check = role.may(Right::Operate, "");
            if may_check == wanted {
                let found = reply(role.known(role.dash.form("/check", &[]))).await;
                assert_eq!(
                    found.status,
                    if may_check {
                        303
                    } else if role.is_known() {
                        403
                    } else {
                        401
                    },
                    "as {}",
                    role.name
                );
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
        let page = scene
            .control
            .actions(after.as_ref(), 32)
            .await
            .expect("the actions");
        actions.extend(page.actions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for (act, who) in [
        ("release", "bound"),
        ("skip", "bound"),
        ("pause", "ada"),
        ("forget", "bound"),
        ("retry", "bound"),
        ("block", "operator"),
    ] {
        let found: Vec<_> = actions
            .iter()
            .map(|action| {
                (
                    action.action.as_str(),
                    action.who.as_str(),
                    action.object.as_str(),
                )
            })
            .collect();
        assert!(
            actions
                .iter()
                .any(|action| action.action == act && action.who == who),
            "{act}: {found:?}"
        );
    }
}

/// Tests that a user with prefixes sees no row of other objects, and that a dead letter of another
/// object looks as one that does not exist.
#[tokio::test]
async fn prefixes_bind_what_a_user_sees() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    let get = |target: &str| reply(dash.page(target).bearer_auth(token("bound")));
    for list in [
        "/held",
        "/dead",
        "/schedules",
        "/cron",
        "/log",
        "/v1/held",
        "/v1/dead",
        "/v1/schedule",
        "/v1/cron",
        "/v1/log",
    ] {
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
    let (scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    let act = [
        ("act", "release"),
        ("row", "- work:held"),
        ("reason", "because"),
    ];
    let begun = reply(dash.form("/act", &act).bearer_auth(token("bound"))).await;
    let target = begun.header("location").to_owned();
    let id = target.strip_prefix("/job?id=").expect("an id").to_owned();
    assert_eq!(
        reply(dash.page(&target).bearer_auth(token("bound")))
            .await
            .status,
        200
    );
    for name in ["operator", "viewer"] {
        assert_eq!(
            reply(dash.page(&target).bearer_auth(token(name)))
                .await
                .status,
            404
        );
        assert_eq!(
            reply(
                dash.form("/job/stop", &[("id", &id)])
                    .bearer_auth(token(name))
            )
            .await
            .status,
            404
        );
    }
    assert_eq!(
        reply(
            dash.form("/job/stop", &[("id", &id)])
                .bearer_auth(token("bound"))
        )
        .await
        .status,
        303
    );
    assert_eq!(
        reply(dash.form("/job/stop", &[]).bearer_auth(token("bound")))
            .await
            .status,
        404
    );
}
