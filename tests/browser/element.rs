//! Elements of a page: finding, reading and using them.

use serde_json::{Value, json};

use crate::driver::{Driver, as_text};

/// The member that holds the id of an element, fixed by WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// An element of the page that was there when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element(pub(crate) String);

/// A key that has no character, and the space bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Tab,
    /// Shift and Tab.
    TabBack,
    Enter,
    Space,
}

impl Key {
    /// Returns the code points by which WebDriver names the keys that are pressed together.
    fn codes(self) -> &'static [&'static str] {
        match self {
            Self::Tab => &["\u{e004}"],
            Self::TabBack => &["\u{e008}", "\u{e004}"],
            Self::Enter => &["\u{e007}"],
            Self::Space => &[" "],
        }
    }
}

impl Driver {
    /// Waits for an element, by a CSS selector.
    pub(crate) async fn find(&self, css: &str) -> Element {
        self.wait_for(&format!("there is {css}"), async || {
            self.find_all(css).await.into_iter().next()
        })
        .await
    }

    /// Returns all elements of a CSS selector; none if there are none now.
    pub(crate) async fn find_all(&self, css: &str) -> Vec<Element> {
        self.elements("css selector", css).await
    }

    /// Waits for the element whose own text is this text.
    pub(crate) async fn find_text(&self, text: &str) -> Element {
        let text = literal(text);
        self.find_path(&format!("//body//*[text()[normalize-space()={text}]]"))
            .await
    }

    /// Waits for the field with this label.
    pub(crate) async fn find_label(&self, label: &str) -> Element {
        let label = literal(label);
        let fields = "self::input or self::select or self::textarea";
        let by_id = format!("//*[{fields}][@id=//label[normalize-space()={label}]/@for]");
        let inside = format!("//label[text()[normalize-space()={label}]]//*[{fields}]");
        self.find_path(&format!(
            "{by_id} | {inside} | //*[{fields}][@aria-label={label}]"
        ))
        .await
    }

    /// Waits for the button with this text.
    pub(crate) async fn find_button(&self, text: &str) -> Element {
        self.find_path(&button_path(text)).await
    }

    /// Returns whether an XPath leads to this element now.
    pub(crate) async fn is_at(&self, element: &Element, path: &str) -> bool {
        self.elements("xpath", path).await.first() == Some(element)
    }

    /// Waits for the link with this text.
    pub(crate) async fn find_link(&self, text: &str) -> Element {
        self.find_path(&format!("//a[normalize-space()={}]", literal(text)))
            .await
    }

    /// Waits for an element, by an XPath.
    pub(crate) async fn find_path(&self, path: &str) -> Element {
        self.wait_for(&format!("there is {path}"), async || {
            self.elements("xpath", path).await.into_iter().next()
        })
        .await
    }

    async fn elements(&self, using: &str, value: &str) -> Vec<Element> {
        let found = self
            .post("/elements", json!({ "using": using, "value": value }))
            .await;
        found
            .as_array()
            .expect("elements")
            .iter()
            .map(element)
            .collect()
    }

    /// Returns the element that has the focus.
    pub(crate) async fn active(&self) -> Element {
        element(&self.get("/element/active").await)
    }

    /// Clicks an element. If this opens a page, waits until the page is loaded.
    pub(crate) async fn click(&self, element: &Element) {
        self.post(&format!("/element/{}/click", element.0), json!({}))
            .await;
    }

    /// Replaces the text of a field.
    pub(crate) async fn fill(&self, element: &Element, text: &str) {
        self.post(&format!("/element/{}/clear", element.0), json!({}))
            .await;
        self.post(
            &format!("/element/{}/value", element.0),
            json!({ "text": text }),
        )
        .await;
    }

    /// Presses and releases a key. It goes to the element that has the focus.
    pub(crate) async fn press(&self, key: Key) {
        let step = |kind: &str, code: &&str| json!({ "type": kind, "value": code });
        let down = key.codes().iter().map(|code| step("keyDown", code));
        let up = key.codes().iter().rev().map(|code| step("keyUp", code));
        self.keys(down.chain(up).collect()).await;
    }

    /// Types a text into the element that has the focus, key by key.
    pub(crate) async fn type_text(&self, text: &str) {
        let keys = text.chars().flat_map(|key| {
            let key = key.to_string();
            [
                json!({ "type": "keyDown", "value": key }),
                json!({ "type": "keyUp", "value": key }),
            ]
        });
        self.keys(keys.collect()).await;
    }

    async fn keys(&self, steps: Vec<Value>) {
        // The browser drops keys until it has painted the page for the first time, which may be after
        // the page is loaded. A person presses no key before that.
        let painted = "return performance.getEntriesByName('first-contentful-paint').length > 0";
        self.wait_for("the page is painted", async || {
            self.execute(painted, &[]).await.as_bool()?.then_some(())
        })
        .await;
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": steps });
        self.post("/actions", json!({ "actions": [keyboard] }))
            .await;
    }

    /// Presses Tab until the element with the focus fits, at most `presses_max` times. Returns the
    /// element.
    pub(crate) async fn tab_to(
        &self,
        what: &str,
        presses_max: usize,
        fits: impl AsyncFn(&Element) -> bool,
    ) -> Element {
        for _ in 0..presses_max {
            self.press(Key::Tab).await;
            let active = self.active().await;
            if fits(&active).await {
                return active;
            }
        }
        panic!("no {what} within {presses_max} presses of Tab");
    }

    /// Returns the text of an element, as the person sees it.
    pub(crate) async fn text(&self, element: &Element) -> String {
        as_text(&self.get(&format!("/element/{}/text", element.0)).await)
    }

    /// Returns the name of an element for a screen reader.
    pub(crate) async fn name(&self, element: &Element) -> String {
        as_text(
            &self
                .get(&format!("/element/{}/computedlabel", element.0))
                .await,
        )
    }

    /// Returns the role of an element for a screen reader, e.g. `button`.
    pub(crate) async fn role(&self, element: &Element) -> String {
        as_text(
            &self
                .get(&format!("/element/{}/computedrole", element.0))
                .await,
        )
    }

    /// Returns an attribute of an element.
    pub(crate) async fn attribute(&self, element: &Element, name: &str) -> Option<String> {
        let value = self
            .get(&format!("/element/{}/attribute/{name}", element.0))
            .await;
        value.as_str().map(str::to_owned)
    }
}

fn element(value: &Value) -> Element {
    Element(
        value[ELEMENT]
            .as_str()
            .unwrap_or_else(|| panic!("no element: {value}"))
            .to_owned(),
    )
}

/// Returns the XPath of the button with this text.
pub(crate) fn button_path(text: &str) -> String {
    let text = literal(text);
    let named = format!("normalize-space()={text} or @aria-label={text}");
    format!("//button[{named}] | //summary[{named}] | //input[@type='submit'][@value={text}]")
}

/// Returns a text as a literal of XPath. XPath 1.0 has no escapes, so a text with both kinds of
/// quotes is put together from parts.
pub(crate) fn literal(text: &str) -> String {
    if !text.contains('\'') {
        return format!("'{text}'");
    }
    let parts: Vec<_> = text.split('\'').map(|part| format!("'{part}'")).collect();
    format!("concat({})", parts.join(", \"'\", "))
}
