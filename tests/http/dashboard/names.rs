//! Names and prefixes in forms are escaped, as they are on the pages.

use super::rig::{Dash, Scene, USERS, held, path, users};

/// The page of held objects listed the objects of an escaped prefix, but *Release all* took the same
/// text as the prefix itself. It released no object, or others than those on the page.
#[tokio::test]
async fn release_all_takes_the_prefix_of_the_list() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    for object in ["a\nb:1", "a\nb:2", "a\\nb:3"] {
        held(&scene.redis, object, 5, "inf", "{}", "no").await;
    }
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    let list = dash.page_as("operator", "/held?prefix=a%5Cnb").await;
    assert!(
        list.text.contains("nb:1") && list.text.contains("nb:2") && !list.text.contains("nb:3"),
        "{}",
        list.text
    );
    let act = async |prefix: &str| {
        let form = [
            ("act", "release-all"),
            ("prefix", prefix),
            ("reason", "because"),
        ];
        dash.post_as("operator", "/act", &form).await
    };
    let begun = act("a\\nb").await;
    let result = dash.page_as("operator", begun.header("location")).await;
    assert!(result.text.contains("<b>2</b> done"), "{}", result.text);
    let actions = scene
        .control
        .actions(None, 10)
        .await
        .expect("the actions")
        .actions;
    let [release] = &actions
        .iter()
        .filter(|one| one.action == "release")
        .collect::<Vec<_>>()[..]
    else {
        panic!("{actions:?}")
    };
    let many = release.many.as_ref().expect("many objects");
    let mut ends = [&many.first[..], &many.last];
    ends.sort_unstable();
    assert_eq!(
        (&release.object[..], many.count, ends),
        ("a\nb*", 2, ["a\nb:1", "a\nb:2"])
    );
    let page = dash.page_as("operator", "/actions").await.text;
    assert!(page.contains("2 done, from a\\nb:"), "{page}");
    for invalid in ["a\\q", "\\xff"] {
        let refused = act(invalid).await;
        assert!(
            refused.status == 400 && refused.text.contains("nothing was done"),
            "{invalid}: {refused:?}"
        );
    }
}

/// Story: the page of `C:\new` showed the name as `C:\\new`. A rule set from there, or typed as it is
/// shown, was for another object whose name has two backslashes.
#[tokio::test]
async fn a_rule_for_a_name_as_the_pages_show_it_is_for_this_object() {
    let (scene, dash) = Scene::with_dash().await;
    let (name, shown) = (r"C:\new", r"C:\\new");
    let get = async |target: &str| dash.page_as("operator", target).await;
    let page = get(r"/object?name=C:%5C%5Cnew").await.text;
    assert!(
        page.contains(&format!("name=\"selector\" value=\"{shown}\"")),
        "{page}"
    );
    for (set, lift) in [("pause", "resume"), ("block", "unblock")] {
        let set_form = [("act", set), ("selector", shown), ("reason", "because")];
        assert_eq!(
            dash.post_as("operator", "/act", &set_form).await.status,
            303
        );
        let rules = scene.control.rules().await.expect("the rules").rules;
        assert!(
            rules
                .iter()
                .any(|rule| rule.selector.as_str() == name && rule.in_force),
            "{rules:?}"
        );
        let page = get("/rules").await.text;
        assert!(
            page.contains(&format!("name=\"selector\" value=\"{shown}\"")),
            "{page}"
        );
        let lift_form = [("act", lift), ("selector", shown), ("reason", "because")];
        assert_eq!(
            dash.post_as("operator", "/act", &lift_form).await.status,
            303
        );
        let rules = scene.control.rules().await.expect("the rules").rules;
        assert!(
            rules
                .iter()
                .all(|rule| rule.selector.as_str() != name || !rule.in_force),
            "{rules:?}"
        );
    }
}
