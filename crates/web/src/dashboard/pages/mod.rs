//! The pages: one file for each.
//!
//! Each page makes one or a few reads of [`Looks`](crate::operator::Looks), which checks the rights
//! of the user. Buttons for actions that the user may not do are left out; `acts` checks the rights
//! again.

pub(super) mod actions;
pub(super) mod check;
pub(super) mod cron;
pub(super) mod dead;
pub(super) mod held;
pub(super) mod log;
pub(super) mod object;
pub(super) mod overview;
pub(super) mod paused;
pub(super) mod rules;
pub(super) mod schedules;
pub(super) mod worker;
pub(super) mod workers;

use maud::{Markup, html};
use seriatim::control::{Cursor, RowEvent};
use seriatim_console::named;

use super::Dashboard;
use super::html::format::{lines, number, text};
use super::html::{next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::Page;

/// The number of rows of a page.
const ROWS: usize = 50;

fn after(asked: &Asked) -> Result<Option<Cursor>, Problem> {
    Ok(asked
        .query("after")?
        .filter(|after| !after.is_empty())
        .map(Cursor::from))
}

/// Returns a parameter; an absent one is empty.
fn parameter(asked: &Asked, name: &str) -> Result<String, Problem> {
    Ok(asked.query(name)?.unwrap_or_default())
}

/// Returns whether the user may act on at least some objects.
fn may_operate(user: &User) -> bool {
    user.may_some(Right::Operate).is_ok()
}

/// Returns the bytes of an escaped name in a parameter.
fn name_of(escaped: &str) -> Result<Vec<u8>, Problem> {
    seriatim::escape::unescaped(escaped)
        .map_err(|error| Problem::bad_request(format!("the name: {error}")))
}

/// Returns the bytes of an escaped prefix in a parameter.
fn prefix_of(escaped: &str) -> Result<Vec<u8>, Problem> {
    let prefix = name_of(escaped)?;
    named::check_prefix(&prefix)
        .map_err(|why| Problem::bad_request(format!("the prefix: {why}")))?;
    Ok(prefix)
}

/// Returns a list: its table, and the link to its next page.
fn listed<T>(
    (app, path, query): (&Dashboard, &str, &[(&str, &str)]),
    (caption, heads): (&str, &[&str]),
    page: &Page<T>,
    row: impl Fn(&T) -> Markup,
) -> Markup {
    html! {
        @if page.rows.is_empty() { p { "None on this page." } }
        @else { (table(caption, heads, &html! { @for one in &page.rows { (row(one)) } })) }
        (next_page(&app.base, path, query, page.next.as_ref()))
    }
}

/// Returns an event: its beginning, and the whole text behind a button if it is long.
fn event(event: &RowEvent) -> Markup {
    const BEGINNING_CHARS: usize = 120;
    let (bytes, whole_bytes) = (event.bytes(), event.whole_bytes());
    let whole = String::from_utf8_lossy(bytes);
    let beginning = text(&whole, BEGINNING_CHARS);
    html! {
        @if bytes.is_empty() {
            "–"
        } @else if beginning == *whole && whole_bytes.is_none() {
            code { (beginning) }
        } @else {
            details {
                summary { code { (beginning) } }
                pre tabindex="0" aria-label="Event" { (lines(&whole)) }
                @if let Some(all) = whole_bytes {
                    p { "The first " (number(bytes.len() as u64)) " of " (number(all)) " bytes." }
                }
            }
        }
    }
}
