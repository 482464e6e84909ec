//! A person who acts: reaches the buttons and fields of a page by mouse, or by keyboard alone.

use crate::driver::Driver;
use crate::element::{Key, button_path, literal};

/// Most presses of Tab on one page.
const TABS_MAX: usize = 400;

/// The device with which the person works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hand {
    Mouse,
    Keyboard,
}

/// A person at a browser.
pub(crate) struct Person<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) hand: Hand,
}

/// The XPath of the form that is open.
const OPEN: &str = "//details[contains(@class, 'act')][@open]";

impl Person<'_> {
    /// Presses a button, or follows a link. Waits until the page is loaded if a page opens.
    pub(crate) async fn push(&self, path: &str) {
        let driver = self.driver;
        match self.hand {
            Hand::Mouse => driver.click(&driver.find_path(path).await).await,
            Hand::Keyboard => {
                self.tab_to(path).await;
                driver.press(Key::Enter).await;
            }
        }
    }

    /// Selects a row.
    pub(crate) async fn tick(&self, path: &str) {
        match self.hand {
            Hand::Mouse => self.driver.click(&self.driver.find_path(path).await).await,
            Hand::Keyboard => {
                self.tab_to(path).await;
                self.driver.press(Key::Space).await;
            }
        }
    }

    /// Writes a text into an empty field.
    pub(crate) async fn write(&self, path: &str, text: &str) {
        match self.hand {
            Hand::Mouse => {
                self.driver
                    .fill(&self.driver.find_path(path).await, text)
                    .await
            }
            Hand::Keyboard => {
                self.tab_to(path).await;
                self.driver.type_text(text).await;
            }
        }
    }

    /// Opens the form behind a button, fills it, and sends it. `fields`: labels and texts.
    pub(crate) async fn act(&self, button: &str, fields: &[(&str, &str)], reason: &str) {
        self.push(&button_path(button)).await;
        for (label, text) in fields {
            self.write(&format!("{OPEN}{}", field_path(label)), text)
                .await;
        }
        self.write(&format!("{OPEN}{}", field_path("Reason")), reason)
            .await;
        self.push(&format!("{OPEN}//button[@type='submit']")).await;
        self.result().await;
    }

    /// Gives the reason for the selected rows, and presses the button for them.
    pub(crate) async fn act_on_rows(&self, button: &str, reason: &str) {
        let rows = "//fieldset[contains(@class, 'bulk')]";
        self.write(&format!("{rows}{}", field_path("Reason")), reason)
            .await;
        self.push(&format!(
            "{rows}//button[normalize-space()={}]",
            literal(button)
        ))
        .await;
        self.result().await;
    }

    /// Waits for the page with the result.
    pub(crate) async fn result(&self) {
        self.driver.wait_for_path("/job").await;
        self.driver.wait_for_text("The action has ended").await;
    }

    async fn tab_to(&self, path: &str) {
        // The element is looked up at each press: an update of the page may replace it.
        self.driver.find_path(path).await;
        self.driver
            .tab_to(path, TABS_MAX, async |active| {
                self.driver.is_at(active, path).await
            })
            .await;
    }
}

/// Returns the XPath of the field whose label has this text.
pub(crate) fn field_path(label: &str) -> String {
    format!(
        "//label[text()[normalize-space()={}]]//input",
        literal(label)
    )
}

/// Returns the XPath of the box that selects the row with this text in its name.
pub(crate) fn row_path(subject: &str) -> String {
    format!(
        "//input[@name='row'][@aria-label={}]",
        literal(&format!("Select {subject}"))
    )
}
