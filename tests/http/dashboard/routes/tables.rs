//! The tables of routes and actions, and that the source has no others.

use std::collections::BTreeMap;

use crate::support::without_spaces;

/// The requirement of a route that only reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
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
pub(super) use Needs::{All, Nobody, Object, Operate, Probe, Some as SomeObjects, User};

/// The routes that only read: the path in the source, the target, and the requirement.
pub(super) const READS: [(&str, &str, Needs); 48] = [
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
pub(super) const FORMS: [&str; 6] = [
    "/object/search",
    "/check",
    "/act",
    "/job/stop",
    "/login",
    "/logout",
];

/// The right that an action needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Pause,
    Operate,
}

/// An action: its word, the fields of its form, and the right that it needs.
pub(super) type Act = (&'static str, &'static [(&'static str, &'static str)], Right);

/// The fields of each action. `{}` stands for `work` or `user`, or, if the object is not named, for
/// all objects.
pub(super) const ACTS: [Act; 16] = [
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
pub(super) const ACTS_ON_ALL: [Act; 10] = [
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
pub(super) fn routes_of_the_source() -> BTreeMap<String, Vec<&'static str>> {
    let sources = [
        include_str!("../../../../crates/web/src/dashboard/mod.rs"),
        include_str!("../../../../crates/web/src/serve/view.rs"),
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
    let assets = without_spaces(include_str!(
        "../../../../crates/web/src/dashboard/assets.rs"
    ));
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
    let source = include_str!("../../../../crates/web/src/dashboard/acts/wanted.rs");
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
