//! The forms of actions. Each asks for a reason, which is recorded with the action.
//!
//! If a form is refused, the answer is its page again: the form is open, has the values that were typed,
//! and the error beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use maud::{Markup, html};
use uuid::Uuid;

use super::format::text;
use crate::dashboard::Dashboard;
use crate::dashboard::form::Form;
use crate::listen::problem::Problem;

/// The most characters of a subject in the name of a button.
const SUBJECT_CHARS: usize = 80;
/// The most characters of a reason.
pub(in crate::dashboard) const REASON_CHARS_MAX: usize = 500;
/// The field with the value that makes a form act once.
pub(in crate::dashboard) const ONCE: &str = "once";
/// The header with this value, if the script asks for the new contents of a page. So the forms of the
/// page stay as they are.
const ONCE_HEADER: &str = "seriatim-once";

/// Returns whether a value can be that of a page.
pub(in crate::dashboard) fn is_once(value: &str) -> bool {
    value.len() == 32
        && value
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The values that the forms of a page need.
pub(in crate::dashboard) struct Forms {
    base: String,
    /// The value of this page, random for each time that a browser loads the page.
    once: String,
    refused: Option<Refused>,
}

/// A form that was refused.
struct Refused {
    form: Form,
    status: StatusCode,
    why: String,
    /// Whether a form of the page has shown the error.
    is_shown: AtomicBool,
}

impl FromRequestParts<Arc<Dashboard>> for Forms {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<Dashboard>) -> Result<Self, Problem> {
        let kept = parts
            .headers
            .get(ONCE_HEADER)
            .and_then(|value| value.to_str().ok())
            .filter(|value| is_once(value));
        Ok(Self {
            base: app.base.clone(),
            once: kept.map_or_else(new_once, str::to_owned),
            refused: None,
        })
    }
}

fn new_once() -> String {
    Uuid::new_v4().simple().to_string()
}

impl Forms {
    /// Returns the values for the page of a form that was refused. A refused form has not used its
    /// value up.
    pub(in crate::dashboard) fn refused(base: &str, form: Form, problem: &Problem) -> Self {
        let once = form
            .one(ONCE)
            .ok()
            .flatten()
            .filter(|once| is_once(once))
            .unwrap_or_else(new_once);
        let (status, why) = (problem.status(), problem.detail().to_owned());
        Self {
            base: base.to_owned(),
            once,
            refused: Some(Refused {
                form,
                status,
                why,
                is_shown: AtomicBool::new(false),
            }),
        }
    }

    pub(in crate::dashboard) fn once(&self) -> &str {
        &self.once
    }

    /// Returns the status of the page.
    pub(in crate::dashboard) fn status(&self) -> StatusCode {
        self.refused
            .as_ref()
            .map_or(StatusCode::OK, |refused| refused.status)
    }

    pub(in crate::dashboard) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns the error of a form that is not on the page any more.
    pub(in crate::dashboard) fn error_elsewhere(&self) -> Option<&str> {
        self.refused
            .as_ref()
            .filter(|refused| !refused.is_shown.load(Ordering::Relaxed))
            .map(|refused| refused.why.as_str())
    }

    /// Returns the values that were typed into this form, if it was refused. The first form that fits
    /// is this form.
    pub(in crate::dashboard) fn typed(&self, is_it: impl Fn(&Form) -> bool) -> Typed<'_> {
        let found = self.refused.as_ref().filter(|refused| is_it(&refused.form));
        Typed(found.filter(|refused| !refused.is_shown.swap(true, Ordering::Relaxed)))
    }

    /// Returns the beginning of a form of an action: its hidden fields. `back`: the page to which the
    /// result leads back.
    pub(in crate::dashboard) fn hidden(&self, back: &str) -> Markup {
        html! {
            input type="hidden" name=(ONCE) value=(self.once) autocomplete="off";
            input type="hidden" name="back" value=(back);
        }
    }

    /// Returns the path to which forms of actions are sent.
    pub(in crate::dashboard) fn action(&self) -> String {
        format!("{}/act", self.base)
    }

    /// Returns the box that selects a row.
    pub(in crate::dashboard) fn row_box(&self, value: &str, subject: &str) -> Markup {
        let is_checked = self
            .refused
            .as_ref()
            .is_some_and(|refused| refused.form.all("row").any(|row| row == value));
        html! { input type="checkbox" name="row" value=(value) checked[is_checked] aria-label={ "Select " (subject) }; }
    }
}

/// The values that were typed into a form, and the error. There are none if the form was not refused.
pub(in crate::dashboard) struct Typed<'a>(Option<&'a Refused>);

impl Typed<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        self.0?.form.all(name).next()
    }

    fn error(&self) -> Markup {
        html! { @if let Some(refused) = self.0 { p.problem #refused role="alert" { (refused.why) } } }
    }

    /// Returns the error and the input for the reason.
    pub(in crate::dashboard) fn reason(&self) -> Markup {
        let describer = self.0.map(|_| "refused");
        html! {
            (self.error())
            label {
                "Reason "
                input name="reason" required maxlength=(REASON_CHARS_MAX) autocomplete="off" value=[self.value("reason")]
                    aria-describedby=[describer] autofocus[self.0.is_some()];
            }
        }
    }

    pub(in crate::dashboard) fn input(&self, input: &Input<'_>) -> Markup {
        html! {
            @match input {
                Input::Note(note) => p { (note) },
                Input::Text { name, label, is_required } => {
                    label { (label) " " input name=(name) required[*is_required] autocomplete="off" value=[self.value(name)]; }
                }
                Input::Check { name, label } => {
                    label.check { input type="checkbox" name=(name) value="true" checked[self.value(name).is_some()]; (label) }
                }
            }
        }
    }
}

/// A part of a form, before its reason.
pub(in crate::dashboard) enum Input<'a> {
    Note(Markup),
    Text {
        name: &'a str,
        label: &'a str,
        is_required: bool,
    },
    Check {
        name: &'a str,
        label: &'a str,
    },
}

impl Input<'_> {
    /// The input for the end of a rule.
    pub(in crate::dashboard) const END: Self = Self::Text {
        name: "for",
        label: "Ends after, e.g. 1h (empty: until it is lifted)",
        is_required: false,
    };
}

/// The form of one action, behind a button that opens it.
pub(in crate::dashboard) struct ActForm<'a> {
    pub(in crate::dashboard) forms: &'a Forms,
    /// The word of the action, see `dashboard/acts`.
    pub(in crate::dashboard) act: &'a str,
    /// The text on the button.
    pub(in crate::dashboard) label: &'a str,
    /// The subject, for the heading of the form and for screen readers.
    pub(in crate::dashboard) subject: &'a str,
    pub(in crate::dashboard) fields: &'a [(&'a str, &'a str)],
    /// Further inputs.
    pub(in crate::dashboard) inputs: &'a [Input<'a>],
    /// The page to which the result leads back.
    pub(in crate::dashboard) back: &'a str,
}

impl ActForm<'_> {
    pub(in crate::dashboard) fn markup(&self) -> Markup {
        let is_it = |form: &Form| {
            form.has("act", self.act)
                && self
                    .fields
                    .iter()
                    .all(|(name, value)| form.has(name, value))
        };
        let typed = self.forms.typed(is_it);
        html! {
            details.act open[typed.0.is_some()] {
                summary { (self.label) span.hidden { " " (text(self.subject, SUBJECT_CHARS)) } }
                form.stack method="post" action=(self.forms.action()) {
                    input type="hidden" name="act" value=(self.act);
                    @for (name, value) in self.fields { input type="hidden" name=(name) value=(value); }
                    (self.forms.hidden(self.back))
                    @for input in self.inputs { (typed.input(input)) }
                    (typed.reason())
                    button type="submit" { (self.label) }
                }
            }
        }
    }
}

/// Returns a form around the rows of a table. `acts`: the word and the text of each button; they act
/// on the selected rows.
pub(in crate::dashboard) fn rows_form(
    forms: &Forms,
    back: &str,
    acts: &[(&str, &str)],
    table: &Markup,
) -> Markup {
    let typed = forms.typed(|form| acts.iter().any(|(act, _)| form.has("act", act)));
    html! {
        @if acts.is_empty() {
            (table)
        } @else {
            form method="post" action=(forms.action()) {
                (forms.hidden(back))
                (table)
                fieldset.bulk {
                    legend { "Selected rows, at most 50" }
                    (typed.reason())
                    div.buttons {
                        @for (act, label) in acts { button type="submit" name="act" value=(act) { (label) } }
                    }
                }
            }
        }
    }
}
