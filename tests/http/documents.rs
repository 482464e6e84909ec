//! The documents of the HTTP API: the OpenAPI description, and the examples of docs/http.md.

use std::collections::BTreeSet;
use std::process::Command;

use crate::serving::Serving;
use crate::support::{Redis, without_spaces};

/// Tests that the description has exactly the routes of the server, with their methods.
#[tokio::test]
async fn the_description_has_the_routes_of_the_server() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let document = serving.get("/v1/openapi.json").await;
    assert_eq!(document.content_type, "application/json");
    let document = document.json();
    assert_eq!(document["openapi"], "3.1.0");
    let described: BTreeSet<String> = document["paths"]
        .as_object()
        .expect("paths")
        .keys()
        .cloned()
        .collect();
    let sources = [
        include_str!("../../crates/web/src/serve/mod.rs"),
        include_str!("../../crates/web/src/serve/view.rs"),
    ];
    let source = without_spaces(&sources.concat());
    let mut routed = BTreeSet::new();
    for part in source.split(".route(\"").skip(1) {
        routed.insert(part.split('"').next().expect("a path").to_owned());
    }
    for part in source.split("inboth(\"").skip(1) {
        let rest = part.split('"').next().expect("a path");
        routed.insert(format!("/v1/objects/{{object}}{rest}"));
        routed.insert(format!("/v1/object{rest}"));
    }
    assert_eq!(described, routed);
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let target = path
            .replace("{object}", "a")
            .replace("{key}", "k")
            .replace("{id}", "1-1");
        for method in ["get", "post", "put", "delete", "patch"] {
            let request =
                serving.request(method.to_uppercase().parse().expect("a method"), &target);
            let answer =
                crate::serving::answer(request.header("content-type", "application/json")).await;
            assert_eq!(
                answer.status == 405,
                methods.get(method).is_none(),
                "{method} {path}: {answer:?}"
            );
        }
    }
    // Every reference of the description leads to a part of it.
    for reference in document.to_string().split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

/// Runs the `curl` examples of docs/http.md, in their order, against a server.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_document_work() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let document = include_str!("../../docs/http.md");
    let mut examples = Vec::new();
    for block in document.split("```sh\n").skip(1) {
        let block = block.split("```").next().expect("a block");
        examples.extend(
            block
                .replace("\\\n", " ")
                .lines()
                .filter(|line| line.starts_with("curl "))
                .map(str::to_owned),
        );
    }
    assert!(examples.len() >= 8, "{examples:?}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(
        dir.path().join("events.ndjson"),
        "{\"object\":\"work:1\",\"event\":{\"type\":\"moved\"}}\n",
    )
    .expect("written");
    for example in examples {
        assert!(example.contains("http://127.0.0.1:8080/"), "{example}");
        let command = example
            .replace("http://127.0.0.1:8080", &serving.url)
            .replacen("curl ", "curl -sS --fail-with-body ", 1);
        let output = tokio::task::block_in_place(|| {
            Command::new("sh")
                .args(["-c", &command])
                .current_dir(dir.path())
                .output()
        });
        let output = output.expect("it runs");
        let (out, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{example}\n{out}\n{errors}");
        assert!(!out.contains("\"status\":4"), "{example}\n{out}");
    }
}
