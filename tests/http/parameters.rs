//! Parameters of queries and fields of forms: a route takes those that are described, and refuses all
//! others.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;

use crate::dashboard::rig::Scene;
use crate::serving::{Answer, Serving, answer};
use crate::support::Redis;

const UNKNOWN: &str = "is not a parameter of this route";

fn detail(answer: &Answer) -> String {
    answer.json()["detail"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Returns the names of the parameters of the query in the description of an operation.
fn described(document: &Value, path: &Value, operation: &Value) -> BTreeSet<String> {
    let lists = [&path["parameters"], &operation["parameters"]];
    let parameters = lists.into_iter().filter_map(Value::as_array).flatten();
    let whole = parameters.map(|one| match one["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("a parameter"),
        None => one,
    });
    whole
        .filter(|one| one["in"] == "query")
        .map(|one| one["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// Tries every name of a parameter with every route.
#[tokio::test]
async fn a_route_takes_exactly_the_parameters_of_its_description() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let document: Value =
        serde_json::from_str(include_str!("../../crates/web/src/serve/openapi.json"))
            .expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let operations: Vec<(&str, &str, BTreeSet<String>)> = paths
        .iter()
        .flat_map(|(path, methods)| {
            methods
                .as_object()
                .expect("methods")
                .iter()
                .map(move |one| (path, methods, one))
        })
        .filter(|(_, _, (method, _))| *method != "parameters")
        .map(|(path, methods, (method, operation))| {
            (&**path, &**method, described(&document, methods, operation))
        })
        .collect();
    let names: BTreeSet<&String> = operations.iter().flat_map(|(.., names)| names).collect();
    assert!(operations.len() > 40 && names.len() > 10, "{operations:?}");
    for (path, method, known) in &operations {
        let target = path
            .replace("{object}", "a")
            .replace("{key}", "k")
            .replace("{id}", "1-1");
        for name in names.iter().map(|name| name.as_str()).chain(["zz"]) {
            if *path == "/v1/check" && known.contains(name) {
                continue;
            }
            let method: Method = method.to_uppercase().parse().expect("a method");
            let request = serving.request(method.clone(), &format!("{target}?{name}=1"));
            let found = answer(
                request
                    .header("content-type", "application/json")
                    .body("{}"),
            )
            .await;
            let is_refused = found.status == 400 && detail(&found).contains(UNKNOWN);
            assert_eq!(
                is_refused,
                !known.contains(name),
                "{method} {path} {name}: {found:?}"
            );
            assert_ne!(found.status, 500, "{method} {path} {name}: {found:?}");
        }
        for name in known {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let request = serving.request(method.clone(), &format!("{target}?{name}x=1"));
            let request = request.header("content-type", "application/json");
            let message = detail(&answer(request.body("{}")).await);
            let meant = format!("did you mean {name}?");
            assert!(message.contains(&meant), "{method} {path}: {message}");
        }
    }
}

/// Story: `POST …/events?part=true` queued the wrapper as the event, because `part` was ignored. So
/// were `limt`, `prefx` and `reson`.
#[tokio::test]
async fn a_misspelled_parameter_is_refused_with_the_one_that_was_meant() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let refused = |found: Answer, name: &str, meant: &str| {
        assert_eq!(found.problem(), (400, "invalid".to_owned()));
        let detail = detail(&found);
        assert!(
            detail.contains(&format!("{name:?}"))
                && detail.contains(&format!("did you mean {meant}?")),
            "{detail}"
        );
    };
    let body = "{\"event\":{\"type\":\"a\"},\"subevents\":[]}";
    refused(
        serving
            .post("/v1/objects/work:1/events?part=true", body)
            .await,
        "part",
        "parts",
    );
    let console = redis.console().await;
    assert_eq!(
        console.list(&redis.keys().events("work:1")).await,
        Vec::<String>::new()
    );
    refused(serving.get("/v1/held?limt=5").await, "limt", "limit");
    refused(serving.get("/v1/held?prefx=work:").await, "prefx", "prefix");
    serving
        .post("/v1/rules", "{\"kind\":\"pause\",\"selector\":\"work:*\"}")
        .await;
    refused(
        serving
            .delete("/v1/rules?kind=pause&selector=work:*&reson=why")
            .await,
        "reson",
        "reason",
    );
    assert_eq!(
        serving.get("/v1/rules").await.json()["rules"][0]["in_force"],
        true
    );
    let none = serving.get("/v1/stats?window=1h").await;
    assert!(
        none.status == 400 && detail(&none).contains("takes no parameters"),
        "{none:?}"
    );
    let member = serving
        .post(
            "/v1/rules",
            "{\"kind\":\"pause\",\"selector\":\"a\",\"reson\":\"why\"}",
        )
        .await;
    assert!(
        member.status == 400
            && detail(&member).contains("reson")
            && detail(&member).contains("`reason`"),
        "{member:?}"
    );
}

#[tokio::test]
async fn pages_and_forms_refuse_what_they_do_not_know() {
    let (scene, dash) = Scene::with_dash().await;
    for (target, meant) in [
        ("/held?prefx=a", "prefix"),
        ("/dead?objct=a", "object"),
        ("/log?statu=dead", "status"),
        ("/object?nme=a", "name"),
        ("/v1/log?newst=true", "newest"),
        ("/login?nxt=a", ""),
        ("/?zz=1", ""),
        ("/live?zz=1", ""),
        ("/paused?prefx=a", "prefix"),
        ("/schedules?aftr=a", "after"),
        ("/cron?zz=1", ""),
        ("/workers?zz=1", ""),
        ("/worker?nme=a", "name"),
        ("/rules?zz=1", ""),
        ("/actions?zz=1", ""),
        ("/check?zz=1", ""),
        ("/job?zz=1", ""),
        ("/log/stream?statu=dead", "status"),
    ] {
        let found = dash.page_as("operator", target).await;
        let name = target.split(['?', '=']).nth(1).expect("a parameter");
        assert!(
            found.status == 400 && found.text.contains(name) && found.text.contains(meant),
            "{target}: {found:?}"
        );
    }
    // A misspelled condition would release all objects.
    let form = [
        ("act", "release-all"),
        ("prefix", ""),
        ("until_relesed", "true"),
        ("reason", "because"),
    ];
    let found = dash.post_as("operator", "/act", &form).await;
    assert!(
        found.status == 400 && found.text.contains("until_released"),
        "{found:?}"
    );
    let actions = scene
        .control
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    assert!(
        actions.iter().all(|one| one.action != "release"),
        "{actions:?}"
    );
}

/// Story: `a%zz` named the object `a%zz`, although who writes so has misspelled an escape.
#[tokio::test]
async fn a_misspelled_escape_is_refused() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    for target in [
        "/v1/objects/a%zz",
        "/v1/objects/a%2",
        "/v1/objects/100%",
        "/v1/dead?object=a%zz",
        "/v1/objects/a?zz=%",
    ] {
        let found = serving.get(target).await;
        assert_eq!(found.problem(), (400, "invalid".to_owned()), "{target}");
        assert!(
            detail(&found).contains("without two hexadecimal digits"),
            "{target}: {found:?}"
        );
    }
    let sound = serving.get("/v1/objects/100%25").await;
    assert_eq!(sound.status, 200, "{sound:?}");
}
