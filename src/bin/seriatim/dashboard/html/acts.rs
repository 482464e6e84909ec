//! The forms of actions. Each asks for a reason, which is recorded with the action.

use maud::{Markup, html};

use super::format::text;

/// The most characters of a subject in the name of a button.
const SUBJECT_CHARS: usize = 80;
/// The most characters of a reason.
pub(in crate::dashboard) const REASON_CHARS_MAX: usize = 500;

/// The form of one action, behind a button that opens it.
pub(in crate::dashboard) struct ActForm<'a> {
    pub(in crate::dashboard) base: &'a str,
    /// The word of the action, see `dashboard/acts`.
    pub(in crate::dashboard) act: &'a str,
    /// The text on the button.
    pub(in crate::dashboard) label: &'a str,
    /// The subject, for the heading of the form and for screen readers.
    pub(in crate::dashboard) subject: &'a str,
    pub(in crate::dashboard) fields: &'a [(&'a str, &'a str)],
    /// Further inputs.
    pub(in crate::dashboard) inputs: Markup,
    /// The page to which the result leads back.
    pub(in crate::dashboard) back: &'a str,
}

impl ActForm<'_> {
    pub(in crate::dashboard) fn markup(&self) -> Markup {
        html! {
            details.act {
                summary { (self.label) span.hidden { " " (text(self.subject, SUBJECT_CHARS)) } }
                form.stack method="post" action={ (self.base) "/act" } {
                    input type="hidden" name="act" value=(self.act);
                    @for (name, value) in self.fields { input type="hidden" name=(name) value=(value); }
                    input type="hidden" name="back" value=(self.back);
                    (self.inputs)
                    (reason())
                    button type="submit" { (self.label) }
                }
            }
        }
    }
}

/// Returns the input for the reason.
pub(in crate::dashboard) fn reason() -> Markup {
    html! { label { "Reason " input name="reason" required maxlength=(REASON_CHARS_MAX) autocomplete="off"; } }
}

/// Returns a form around the rows of a table. `acts`: the word and the text of each button; they act
/// on the selected rows.
pub(in crate::dashboard) fn rows_form(base: &str, back: &str, acts: &[(&str, &str)], table: &Markup) -> Markup {
    html! {
        @if acts.is_empty() {
            (table)
        } @else {
            form method="post" action={ (base) "/act" } {
                input type="hidden" name="back" value=(back);
                (table)
                fieldset.bulk {
                    legend { "Selected rows, at most 50" }
                    (reason())
                    div.buttons {
                        @for (act, label) in acts { button type="submit" name="act" value=(act) { (label) } }
                    }
                }
            }
        }
    }
}

/// Returns the box that selects a row.
pub(in crate::dashboard) fn row_box(value: &str, subject: &str) -> Markup {
    html! { input type="checkbox" name="row" value=(value) aria-label={ "Select " (subject) }; }
}
