//! Does each action on each page, as a person does it, and finds it in the recorded actions with
//! the name of the person and the reason.

use rstest::rstest;
use seriatim::control::{Action, Control};
use seriatim::escape;

use crate::axe::axe;
use crate::dashboard::{Dashboard, Users};
use crate::driver::{Driver, scrolls_sideways};
use crate::element::button_path;
use crate::filled::{Filled, HOSTILE};
use crate::pages::named;
use crate::person::{Hand, Person, field_path, row_path};
use crate::support::proxy::Proxy;
use crate::support::{Redis, control};

/// A dashboard over a filled Redis, and a browser in which Ada is logged in.
struct Desk {
    _filled: Filled,
    dashboard: Dashboard,
    driver: Driver,
    operator: Control,
    hand: Hand,
    _users: Users,
}

impl Desk {
    async fn start(hand: Hand, scripts: bool) -> Self {
        let filled = Filled::start().await;
        let users = Users::new(&[("ada", "view,pause,operate")]);
        let dashboard = Dashboard::start(&filled.redis, &users.arguments()).await;
        let driver = Driver::start().await;
        driver.resize(1280, 800).await;
        driver.allow_scripts(scripts).await;
        dashboard.log_in_with(&driver, users.token("ada")).await;
        let operator = control(&filled.redis.connect().await, filled.redis.keys());
        Self {
            _filled: filled,
            dashboard,
            driver,
            operator,
            hand,
            _users: users,
        }
    }

    fn person(&self) -> Person<'_> {
        Person {
            driver: &self.driver,
            hand: self.hand,
        }
    }

    async fn open(&self, target: &str) {
        self.driver.open(&self.dashboard.url(target)).await;
    }

    async fn open_object(&self, name: &str) {
        self.open(&named("/object", name.as_bytes())).await;
    }

    /// Returns the recorded actions with this reason, newest first. Ada has done each of them.
    async fn recorded(&self, reason: &str) -> Vec<Action> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self
                .operator
                .actions(after.as_ref(), 32)
                .await
                .expect("the actions");
            found.extend(
                page.actions
                    .into_iter()
                    .filter(|action| action.why == reason),
            );
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(found.iter().all(|action| action.who == "ada"), "{found:#?}");
        found
    }

    /// Fails if the page with the result does not say that all was done, or if other actions than
    /// these were recorded. `subjects`: objects, or selectors of rules.
    async fn assert_did(&self, action: &str, subjects: &[&str], reason: &str) {
        let page = self.driver.page_text().await;
        let recorded = self.recorded(reason).await;
        let summary = format!("{} done, 0 not done", subjects.len());
        assert!(
            page.contains(&summary),
            "{action}: {summary:?} is not in {page}\n{recorded:#?}"
        );
        assert!(
            recorded.iter().all(|one| one.action == action),
            "{action}: {recorded:#?}"
        );
        let mut seen: Vec<_> = recorded
            .iter()
            .map(|one| one.object_escaped.as_deref().unwrap_or(&one.object))
            .collect();
        let mut subjects = subjects.to_vec();
        seen.sort_unstable();
        subjects.sort_unstable();
        assert_eq!(seen, subjects, "{action}");
    }
}

/// Returns a reason that no other action has.
fn because(what: &str) -> String {
    format!("{what}: \"<b>it's</b>\" & so on")
}

#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_keyboard(Hand::Keyboard, true)]
#[case::by_mouse_without_scripts(Hand::Mouse, false)]
#[case::by_keyboard_without_scripts(Hand::Keyboard, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn each_action_on_the_page_of_an_object(#[case] hand: Hand, #[case] scripts: bool) {
    let desk = Desk::start(hand, scripts).await;
    let person = desk.person();
    let name = |state: &str, text: usize| format!("{state}:{}", HOSTILE[text]);

    let held = name("operator", 0);
    desk.open_object(&held).await;
    person
        .act(&format!("Release {held}"), &[], &because("release"))
        .await;
    desk.assert_did("release", &[&held], &because("release"))
        .await;
    // The page of the object has this action, and none of other objects.
    desk.open_object(&held).await;
    let actions = desk
        .driver
        .find_all("[aria-label='What operators did'] tbody tr")
        .await;
    assert_eq!(actions.len(), 1);
    let action = desk.driver.text(&actions[0]).await;
    assert!(
        action.contains("ada") && action.contains(&because("release")),
        "{action}"
    );

    let held = name("operator", 1);
    desk.open_object(&held).await;
    person
        .act(
            &format!("Skip the first event {held}"),
            &[],
            &because("skip"),
        )
        .await;
    desk.assert_did("skip", &[&held], &because("skip")).await;

    for (button, action, text) in [("Retry", "retry", 3), ("Drop", "drop", 4)] {
        let dead = name("dead", text);
        let letters = desk
            .operator
            .dead_letters_of(dead.as_bytes(), true, None, 1)
            .await
            .expect("letters")
            .letters;
        desk.open_object(&dead).await;
        // A dead letter of 1 MiB ends the first page.
        person.push("//a[@rel='next']").await;
        person
            .act(
                &format!("{button} {}", letters[0].dead_id),
                &[],
                &because(button),
            )
            .await;
        desk.assert_did(action, &[&dead], &because(button)).await;
    }

    // The name and the key have a direction mark, so the page shows their escaped forms.
    let (later, key) = (name("later", 2), escape::name(HOSTILE[2]));
    desk.open_object(&later).await;
    person
        .act(&format!("Cancel {key}"), &[], &because("cancel"))
        .await;
    desk.assert_did("cancel", &[&escape::name(&later)], &because("cancel"))
        .await;
    assert_eq!(
        desk.recorded(&because("cancel")).await[0].key.as_deref(),
        Some(HOSTILE[2])
    );

    let done = name("done", 4);
    desk.open_object(&done).await;
    person
        .act(&format!("Forget {done}"), &[], &because("forget"))
        .await;
    desk.assert_did("forget", &[&done], &because("forget"))
        .await;

    let ruled = name("retry", 5);
    for (set, lift) in [("Pause", "Resume"), ("Block", "Unblock")] {
        desk.open_object(&ruled).await;
        let end = [("Ends after, e.g. 1h (empty: until it is lifted)", "1h")];
        person
            .act(&format!("{set} {ruled}"), &end, &because(set))
            .await;
        desk.assert_did(&set.to_lowercase(), &[&ruled], &because(set))
            .await;
        let rules = desk.operator.rules().await.expect("the rules").rules;
        assert!(
            rules
                .iter()
                .any(|rule| rule.selector.as_str() == ruled && rule.end_ms.is_some()),
            "{rules:#?}"
        );
        desk.open_object(&ruled).await;
        person
            .act(&format!("{lift} {ruled}"), &[], &because(lift))
            .await;
        desk.assert_did(&lift.to_lowercase(), &[&ruled], &because(lift))
            .await;
    }
}

#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_keyboard(Hand::Keyboard, true)]
#[case::by_mouse_without_scripts(Hand::Mouse, false)]
#[case::by_keyboard_without_scripts(Hand::Keyboard, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn each_action_on_the_lists(#[case] hand: Hand, #[case] scripts: bool) {
    let desk = Desk::start(hand, scripts).await;
    let person = desk.person();

    for (button, action, rows) in [
        ("Release", "release", ["many:50", "many:51"]),
        ("Skip the first events", "skip", ["many:52", "many:53"]),
    ] {
        desk.open("/held?prefix=many%3A5").await;
        for row in rows {
            person.tick(&row_path(row)).await;
        }
        person.act_on_rows(button, &because(button)).await;
        desk.assert_did(action, &rows, &because(button)).await;
        let results = desk.driver.find_all("#result tbody tr").await;
        assert_eq!(results.len(), 2);
        for (result, row) in results.iter().zip(rows) {
            let text = desk.driver.text(result).await;
            assert!(text.contains(row) && text.contains("done"), "{text}");
        }
    }

    desk.open("/held?prefix=operator%3A").await;
    person
        .push(&button_path("Release all held objects operator:*"))
        .await;
    person.tick("//input[@name='until_released']").await;
    person
        .write(
            "//details[@open]//input[@name='reason']",
            &because("release all"),
        )
        .await;
    person
        .push("//details[@open]//button[@type='submit']")
        .await;
    person.result().await;
    // An action on all that match has one record.
    let released = desk.recorded(&because("release all")).await;
    let counts: Vec<_> = released
        .iter()
        .map(|one| one.many.as_ref().map(|many| many.count as usize))
        .collect();
    assert_eq!(counts, [Some(HOSTILE.len())], "{released:#?}");

    for (button, action, object) in [("Retry", "retry", HOSTILE[5]), ("Drop", "drop", HOSTILE[6])] {
        let object = format!("dead:{object}");
        let letters = desk
            .operator
            .dead_letters_of(object.as_bytes(), true, None, 1)
            .await
            .expect("letters")
            .letters;
        // The newest dead letter has 1 MiB, which ends the first page.
        desk.open("/dead?order=oldest").await;
        person
            .tick(&row_path(&format!(
                "the dead letter {} of {object}",
                letters[0].dead_id
            )))
            .await;
        person.act_on_rows(button, &because(button)).await;
        desk.assert_did(action, &[&object], &because(button)).await;
    }
    let dead = format!("dead:{}", HOSTILE[4]);
    for (button, action, object, count) in [
        ("Retry all", "retry", "raw:1", 3),
        ("Drop all", "drop", &dead, 1),
    ] {
        desk.open(&format!("/dead?object={object}")).await;
        person
            .act(
                &format!("{button} dead letters of {object}"),
                &[],
                &because(button),
            )
            .await;
        let recorded = desk.recorded(&because(button)).await;
        let counts: Vec<_> = recorded
            .iter()
            .map(|one| one.many.as_ref().map(|many| many.count))
            .collect();
        assert_eq!(counts, [Some(count)], "{button}: {recorded:#?}");
        assert!(
            recorded
                .iter()
                .all(|one| one.action == action && one.object == object),
            "{button}: {recorded:#?}"
        );
    }
}

#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_keyboard(Hand::Keyboard, true)]
#[case::by_mouse_without_scripts(Hand::Mouse, false)]
#[case::by_keyboard_without_scripts(Hand::Keyboard, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn each_action_on_rules_schedules_and_cron_jobs(#[case] hand: Hand, #[case] scripts: bool) {
    let desk = Desk::start(hand, scripts).await;
    let person = desk.person();

    for (set, lift, selector) in [
        ("Pause", "Resume", "later:*"),
        ("Block", "Unblock", "<b>\"'&:*"),
    ] {
        desk.open("/rules").await;
        person
            .write(
                "//form[@class='stack'][.//button[@value='pause']]//input[@name='selector']",
                selector,
            )
            .await;
        person
            .write(
                "//form[@class='stack'][.//button[@value='pause']]//input[@name='for']",
                "2h",
            )
            .await;
        person
            .write(
                "//form[@class='stack'][.//button[@value='pause']]//input[@name='reason']",
                &because(set),
            )
            .await;
        person.push(&button_path(set)).await;
        person.result().await;
        desk.assert_did(&set.to_lowercase(), &[selector], &because(set))
            .await;
        desk.open("/rules").await;
        person
            .act(&format!("{lift} {selector}"), &[], &because(lift))
            .await;
        desk.assert_did(&lift.to_lowercase(), &[selector], &because(lift))
            .await;
    }

    let key = HOSTILE[1];
    desk.open("/schedules").await;
    person
        .act(&format!("Cancel {key}"), &[], &because("cancel"))
        .await;
    desk.assert_did("cancel", &[&format!("later:{key}")], &because("cancel"))
        .await;
    assert_eq!(
        desk.recorded(&because("cancel")).await[0].key.as_deref(),
        Some(key)
    );

    for (button, action, job) in [
        ("Run now", "cron-run", HOSTILE[3]),
        ("Pause", "cron-pause", HOSTILE[4]),
        ("Resume", "cron-resume", HOSTILE[0]),
    ] {
        desk.open("/cron").await;
        person
            .act(&format!("{button} {job}"), &[], &because(action))
            .await;
        let recorded = desk.recorded(&because(action)).await;
        assert_eq!(recorded.len(), 1, "{button}: {recorded:#?}");
        assert_eq!(
            (recorded[0].action.as_str(), recorded[0].cron.as_deref()),
            (action, Some(job)),
            "{button}"
        );
    }
}

/// Tests an action of many steps: the page shows how far it is, and the button stops it.
#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_keyboard_without_scripts(Hand::Keyboard, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn an_action_of_many_steps_can_be_stopped(#[case] hand: Hand, #[case] scripts: bool) {
    const LETTERS: usize = 2000;
    /// The number of dead letters that one step drops.
    const STEP: u64 = 32;
    let (redis, console) = Redis::own(&[]).with_console().await;
    let mut letters = redis::pipe();
    for _ in 0..LETTERS {
        let letter = [
            "id", "1", "prev", "0", "object", "work:1", "event", "1", "error", "no", "attempts",
            "1",
        ];
        letters
            .cmd("XADD")
            .arg(console.keys.events_dead())
            .arg("*")
            .arg(&letter)
            .ignore();
    }
    letters
        .query_async::<()>(&mut redis.connect().await)
        .await
        .expect("added");
    let proxy = Proxy::before(&redis);
    let users = Users::new(&[("ada", "view,pause,operate")]);
    let dashboard =
        Dashboard::start_at(&proxy.url(), Some(redis.namespace()), &users.arguments()).await;
    let driver = Driver::start().await;
    driver.allow_scripts(scripts).await;
    dashboard.log_in_with(&driver, users.token("ada")).await;
    let person = Person {
        driver: &driver,
        hand,
    };
    driver.open(&dashboard.url("/dead")).await;
    person.push(&button_path("Drop all dead letters")).await;
    person
        .write(
            "//details[@open]//input[@name='reason']",
            &because("drop all"),
        )
        .await;
    // Each step waits for the slow link, so the action is under way for long.
    proxy.slow_down(8 * 1024);
    person
        .push("//details[@open]//button[@type='submit']")
        .await;
    driver.wait_for_path("/job").await;
    let left = async || {
        console
            .run::<u64>(&["XLEN", &console.keys.events_dead()])
            .await
    };
    driver
        .wait_for("the page shows the progress", async || {
            if !scripts {
                driver.open(&driver.url().await).await;
            }
            let text = driver.page_text().await;
            (text.contains("is under way: ") && !text.contains("under way: 0 done")).then_some(())
        })
        .await;
    person.push(&button_path("Stop")).await;
    driver.wait_for_text("The action has stopped").await;
    proxy.slow_down(0);
    let kept = left().await;
    assert!(kept > 0 && kept < LETTERS as u64, "{kept}");
    driver.open(&dashboard.url("/dead")).await;
    // A step that was on its way to Redis at the stop still takes effect.
    let least = kept.saturating_sub(STEP);
    assert!(
        left().await >= least,
        "more than one step came after the stop"
    );
    let operator = control(&redis.connect().await, redis.keys());
    let actions = operator
        .actions(None, 1)
        .await
        .expect("the actions")
        .actions;
    assert_eq!(
        (
            actions[0].action.as_str(),
            actions[0].who.as_str(),
            actions[0].why.as_str()
        ),
        ("drop", "ada", &*because("drop all"))
    );
    assert!(
        left().await >= least,
        "more than one step came after the stop"
    );
}

/// Tests that a form that is refused comes back as it was, with the error beside it, and that it then
/// acts.
#[rstest]
#[case::by_mouse(Hand::Mouse, true)]
#[case::by_mouse_without_scripts(Hand::Mouse, false)]
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn a_refused_form_comes_back_as_it_was(#[case] hand: Hand, #[case] scripts: bool) {
    let desk = Desk::start(hand, scripts).await;
    let (person, driver) = (desk.person(), &desk.driver);
    let held = format!("operator:{}", HOSTILE[0]);
    desk.open_object(&held).await;
    person.push(&button_path(&format!("Release {held}"))).await;
    // A reason of blanks passes the checks of the browser.
    person
        .write("//details[@open]//input[@name='reason']", " ")
        .await;
    person
        .push("//details[@open]//button[@type='submit']")
        .await;
    driver
        .wait_for_text("the reason must have 1 to 500 characters")
        .await;
    assert!(
        !scrolls_sideways(driver).await
            && driver
                .find_all("main details.act[open] #refused")
                .await
                .len()
                == 1
    );
    let found = axe(driver).await;
    assert!(found.is_empty(), "{found:#?}");
    person
        .write("//details[@open]//input[@name='reason']", &because("again"))
        .await;
    person
        .push("//details[@open]//button[@type='submit']")
        .await;
    person.result().await;
    desk.assert_did("release", &[&held], &because("again"))
        .await;

    desk.open("/rules").await;
    person
        .write(
            &field_path("Objects: a name as the pages show it, a prefix as work:*, or * for all"),
            "typed:*",
        )
        .await;
    let end = field_path("Ends after, e.g. 1h (empty: until it is lifted)");
    let main = "//form[.//input[@name='selector'][not(@type='hidden')]]";
    person.write(&format!("{main}{end}"), "1 parsec").await;
    person
        .write(&format!("{main}{}", field_path("Reason")), &because("set"))
        .await;
    person
        .push(&format!("{main}//button[normalize-space()='Pause']"))
        .await;
    driver.wait_for_text("the time: ").await;
    for (name, value) in [
        ("selector", "typed:*"),
        ("for", "1 parsec"),
        ("reason", because("set").as_str()),
    ] {
        let field = driver
            .find_path(&format!("{main}//input[@name='{name}']"))
            .await;
        assert_eq!(
            driver.attribute(&field, "value").await.as_deref(),
            Some(value),
            "{name}"
        );
    }
    person.write(&format!("{main}{end}"), "1h").await;
    person
        .push(&format!("{main}//button[normalize-space()='Pause']"))
        .await;
    person.result().await;
    desk.assert_did("pause", &["typed:*"], &because("set"))
        .await;
}

/// Tests a double click on a button that sends a form.
#[tokio::test]
#[ignore = "needs Chromium; scripts/test-browser runs it"]
async fn a_form_that_is_sent_twice_acts_once() {
    let desk = Desk::start(Hand::Mouse, true).await;
    desk.open("/cron").await;
    let send = "const details = document.querySelector('main details.act'); details.open = true;
        const form = details.querySelector('form'); form.elements.reason.value = arguments[0];
        const body = new URLSearchParams(new FormData(form));
        return fetch(form.action, { method: 'POST', body }).then(() => { form.requestSubmit(); form.requestSubmit(); });";
    desk.driver
        .execute(send, &[serde_json::json!(because("twice"))])
        .await;
    desk.person().result().await;
    assert_eq!(desk.recorded(&because("twice")).await.len(), 1);
}
