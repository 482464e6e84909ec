//! The event log, newest rows first, and its projections.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::LogEntry;

use super::object::status;
use super::{ROWS, after, event, name_of, parameter};
use crate::console::shown;
use crate::dashboard::Dashboard;
use crate::dashboard::html::format::{link, moment, number, object, text};
use crate::dashboard::html::{Frame, Update, growing_table, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// The most new rows that a page keeps while it follows the log.
const FOLLOWED_ROWS_MAX: usize = 500;
const STATUSES: [&str; 5] = ["", "completed", "completed_with_errors", "dead", "cancelled"];

/// The rows that are shown.
#[derive(Debug, Clone, Default)]
pub(in crate::dashboard) struct Filter {
    /// The escaped name of the object; empty: all objects.
    object: String,
    /// The word of the status; empty: any status.
    status: String,
}

impl Filter {
    pub(in crate::dashboard) fn read(asked: &Asked) -> Result<Self, Problem> {
        let (object, status) = (parameter(asked, "object")?, parameter(asked, "status")?);
        if !STATUSES.contains(&status.as_str()) {
            return Err(Problem::bad_request(format!("the parameter status: {status:?} is not a status")));
        }
        Ok(Self { object: seriatim::escape::name(&name_of(&object)?).into_owned(), status })
    }

    pub(in crate::dashboard) fn has(&self, row: &LogEntry) -> bool {
        let is_object = self.object.is_empty() || row.object_escaped.as_deref().unwrap_or(&row.object) == self.object;
        is_object && (self.status.is_empty() || row.status.as_str() == self.status)
    }
}

/// `GET /log?object=…&status=…&follow=…`.
pub(in crate::dashboard) async fn show(State(app): State<Arc<Dashboard>>, asked: Asked) -> Result<Response, Problem> {
    let filter = Filter::read(&asked)?;
    let is_following = !parameter(&asked, "follow")?.is_empty();
    let page = app.looks.log(&asked.user, true, after(&asked)?.as_ref(), 2 * ROWS).await?;
    let rows: Vec<&LogEntry> = page.rows.iter().filter(|row| filter.has(row)).collect();
    let projections = match asked.user.may_all(Right::View) {
        // The figures of the overview have the projections. A look of its own costs far more.
        Ok(()) => app.live.snapshot().await.stats.as_ref().map_or_else(|_| Vec::new(), |stats| stats.projections.clone()),
        Err(_) => Vec::new(),
    };
    let query = [("object", filter.object.as_str()), ("status", filter.status.as_str())];
    let content = html! {
        h1 { "Event log" }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/log" } {
            label { "Object " input name="object" value=(filter.object); }
            label { "Status " select name="status" { @for word in STATUSES { option value=(word) selected[word == filter.status] { @if word.is_empty() { "any" } @else { (word.replace('_', " ")) } } } } }
            button type="submit" { "Show" }
            button type="submit" name="follow" value="true" { "Follow" }
        }
        @if is_following {
            p { "New rows come at the top, at most 100 per second. " a href=(link(&app.base, "/log", &query)) { "Stop following" } }
            div data-part="skipped" {}
            (growing_table("New rows", &HEADS, "new", FOLLOWED_ROWS_MAX))
            h2 { "Rows before" }
        }
        @if rows.is_empty() { p { "None on this page." } } @else { (table("Event log", &HEADS, &html! { @for entry in &rows { (row(&app.base, entry)) } })) }
        @if let Some(looked_at) = page.looked_at { p { "Looked at " (number(looked_at)) " rows for this page." } }
        (next_page(&app.base, "/log", &query, page.next.as_ref().map(|next| next.as_str())))
        @if !projections.is_empty() {
            h2 { "Projections" }
            (table("Projections", &["Projection", "State", "Behind", "Missed", "Last row"], &html! {
                @for projection in &projections {
                    tr {
                        td data-label="Projection" { (text(&projection.name, 64)) }
                        td data-label="State" { @if projection.running { span.mark.good { "running" } } @else { span.mark.bad { "not running" } } }
                        td.number data-label="Behind" { (number(projection.lag)) }
                        td.number data-label="Missed" { (number(projection.missed)) }
                        td data-label="Last row" { (text(&projection.log_id, 40)) }
                    }
                }
            }))
        }
    };
    let stream = format!("/log/stream?{}", link("", "", &query).trim_start_matches('?'));
    let update = if is_following { Update::Stream(&stream) } else { Update::No };
    Ok(Frame { app: &app, user: &asked.user, current: "/log", title: "Event log", update }.around(&content))
}

const HEADS: [&str; 6] = ["Over", "Object", "Id, prev", "Status", "Attempts", "Event"];

fn row(base: &str, entry: &LogEntry) -> Markup {
    html! {
        tr {
            td data-label="Over" { (moment(entry.finalized_ms)) @if let Some(taken) = entry.taken_ms { br; "took " (shown::duration(entry.finalized_ms.saturating_sub(taken))) } }
            td data-label="Object" { (object(base, entry.object_escaped.as_deref().unwrap_or(&entry.object))) }
            td.id data-label="Id, prev" { @if let Some(id) = entry.id { (id) } @else { "–" } br; @if let Some(prev) = entry.prev { (prev) } @else { "–" } }
            td data-label="Status" { (status(&entry.status)) @if let Some(error) = &entry.error { br; (text(error, 300)) } }
            td.number data-label="Attempts" { @if let Some(attempts) = entry.attempts { (attempts) } @else { "–" } }
            td data-label="Event" { (event(&entry.event, entry.event_bytes)) }
        }
    }
}

/// Returns the parts with new rows. `skipped`: the number of rows that were too many; `None` if
/// their number is not known.
pub(in crate::dashboard) fn new_rows(base: &str, rows: &[LogEntry], skipped: Option<u64>) -> Markup {
    html! {
        div data-part="skipped" {
            @match skipped {
                Some(0) => {}
                Some(skipped) => { p { (number(skipped)) " rows were skipped in this second." } }
                None => { p { "Rows come too fast: some were skipped." } }
            }
        }
        @if !rows.is_empty() { table { tbody data-part="new" { @for entry in rows.iter().rev() { (row(base, entry)) } } } }
    }
}
