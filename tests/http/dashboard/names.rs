//! Names and prefixes in forms are escaped, as they are on the pages.

use super::rig::{Dash, Scene, USERS, held, path, reply, token, users};

/// The page of held objects listed the objects of an escaped prefix, but *Release all* took the same
/// text as the prefix itself. It released no object, or others than those on the page.
#[tokio::test]
async fn release_all_takes_the_prefix_of_the_list() {
    let (scene, file) = (Scene::start().await, users(&USERS));
    for object in ["a\nb:1", "a\nb:2", "a\\nb:3"] {
        held(&scene.redis, object, 5, "inf", "{}", "no").await;
    }
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    let list = reply(dash.page("/held?prefix=a%5Cnb").bearer_auth(token("operator"))).await;
    assert!(list.text.contains("nb:1") && list.text.contains("nb:2") && !list.text.contains("nb:3"), "{}", list.text);
    let act = async |prefix: &str| {
        let form = [("act", "release-all"), ("prefix", prefix), ("reason", "because")];
        reply(dash.form("/act", &form).bearer_auth(token("operator"))).await
    };
    let begun = act("a\\nb").await;
    let result = reply(dash.page(begun.header("location")).bearer_auth(token("operator"))).await;
    assert!(result.text.contains("<b>2</b> done"), "{}", result.text);
    let actions = scene.control.actions(None, 10).await.expect("the actions").actions;
    let [release] = &actions.iter().filter(|one| one.action == "release").collect::<Vec<_>>()[..] else { panic!("{actions:?}") };
    let many = release.many.as_ref().expect("many objects");
    let mut ends = [&many.first[..], &many.last];
    ends.sort_unstable();
    assert_eq!((&release.object[..], many.count, ends), ("a\nb*", 2, ["a\\nb:1", "a\\nb:2"]));
    let page = reply(dash.page("/actions").bearer_auth(token("operator"))).await.text;
    assert!(page.contains("2 done, from a\\nb:"), "{page}");
    for invalid in ["a\\q", "\\xff"] {
        let refused = act(invalid).await;
        assert!(refused.status == 400 && refused.text.contains("nothing was done"), "{invalid}: {refused:?}");
    }
}
