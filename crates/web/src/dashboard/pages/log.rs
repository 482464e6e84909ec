//! The event log, newest rows first, and its projections.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, PreEscaped, html};
use seriatim::control::{EventStatus, LogEntry};
use seriatim_console::shown;

use super::object::status;
use super::{ROWS, after, event, name_of, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::follow::Position;
use crate::dashboard::html::format::{link, moment, number, object, text};
use crate::dashboard::html::{Frame, Update, cut_note, growing_table, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::View;

/// The most new rows that a page keeps while it follows the log.
const FOLLOWED_ROWS_MAX: usize = 500;
const STATUSES: [&str; 5] = [
    "",
    "completed",
    "completed_with_errors",
    "dead",
    "cancelled",
];

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
            return Err(Problem::bad_request(format!(
                "the parameter status: {status:?} is not a status"
            )));
        }
        Ok(Self {
            object: seriatim::escape::name(&name_of(&object)?).into_owned(),
            status,
        })
    }

    /// Returns whether a row with this escaped name and this status is shown.
    pub(in crate::dashboard) fn has(&self, object: &str, status: &EventStatus) -> bool {
        (self.object.is_empty() || object == self.object)
            && (self.status.is_empty() || status.as_str() == self.status)
    }
}

/// `GET /log?object=…&status=…&follow=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let filter = Filter::read(&asked)?;
    let is_following = !parameter(&asked, "follow")?.is_empty();
    let page = app
        .looks
        .log(&asked.user, true, after(&asked)?.as_ref(), 2 * ROWS)
        .await?;
    let rows: Vec<&LogEntry> = page
        .rows
        .iter()
        .filter(|row| {
            filter.has(
                row.object_escaped.as_deref().unwrap_or(&row.object),
                &row.status,
            )
        })
        .collect();
    let projections = match asked.user.may_all(Right::View) {
        // The figures of the overview have the projections. A look of its own costs far more.
        Ok(()) => app
            .live
            .snapshot()
            .await
            .stats
            .as_ref()
            .map_or_else(|_| Vec::new(), |stats| stats.projections.clone()),
        Err(_) => Vec::new(),
    };
    let query = [
        ("object", filter.object.as_str()),
        ("status", filter.status.as_str()),
    ];
    let content = html! {
        h1 { "Event log" }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/log" } {
            label { "Object " input name="object" value=(filter.object); }
            label { "Status " select name="status" { @for word in STATUSES { option value=(word) selected[word == filter.status] { @if word.is_empty() { "any" } @else { (word.replace('_', " ")) } } } } }
            button type="submit" { "Show" }
            button type="submit" name="follow" value="true" { "Follow" }
        }
        @if is_following {
            p { "New rows come at the top, at most 100 per second. A line says if others were passed over. " a href=(link(&app.base, "/log", &query)) { "Stop following" } }
            (growing_table("New rows", &HEADS, "new", FOLLOWED_ROWS_MAX))
            h2 { "Rows before" }
        }
        @if rows.is_empty() { p { "None on this page." } } @else { (table("Event log", &HEADS, &html! { @for entry in &rows { (row(&app.base, entry)) } })) }
        @if let Some(looked_at) = page.looked_at { p { "Looked at " (number(looked_at)) " rows for this page." } }
        (cut_note(page.is_cut))
        (next_page(&app.base, "/log", &query, page.next.as_ref()))
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
    // The stream begins at the end of the log at the moment at which these rows were read.
    let end = page
        .log_end
        .and_then(|(end, written)| Position::new(&end, written));
    let end = end.map(|end| end.to_string().into());
    let end = app
        .looks
        .cursors()
        .seal(&follow_view(&asked.user), end)
        .await?
        .map(|end| end.to_string())
        .unwrap_or_default();
    let stream = link(
        "",
        "/log/stream",
        &[query[0], query[1], ("after", end.as_str())],
    );
    let update = if is_following {
        Update::Stream(&stream)
    } else {
        Update::No
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/log",
        title: "Event log",
        update,
        forms: None,
    }
    .around(&content))
}

/// Returns the view to which a position of a followed log belongs.
pub(in crate::dashboard) fn follow_view(user: &User) -> View {
    View::new(user, "follow", &[])
}

const HEADS: [&str; 6] = ["Over", "Object", "Id, prev", "Status", "Attempts", "Event"];

pub(in crate::dashboard) fn row(base: &str, entry: &LogEntry) -> Markup {
    html! {
        tr {
            td data-label="Over" { (moment(entry.finalized_ms)) @if let Some(taken) = entry.taken_ms { br; "took " (shown::duration(entry.finalized_ms.saturating_sub(taken))) } }
            td data-label="Object" { (object(base, entry.object_escaped.as_deref().unwrap_or(&entry.object))) }
            td.id data-label="Id, prev" { @if let Some(id) = entry.id { (id) } @else { "–" } br; @if let Some(prev) = entry.prev { (prev) } @else { "–" } }
            td data-label="Status" { (status(&entry.status)) @if let Some(error) = &entry.error { br; (text(error, 300)) } }
            td.number data-label="Attempts" { @if let Some(attempts) = entry.attempts { (attempts) } @else { "–" } }
            td data-label="Event" { (event(&entry.event)) }
        }
    }
}

/// The rows that a message leaves out.
#[derive(Debug)]
pub(in crate::dashboard) struct LeftOut {
    /// Rows of the filter that are more than a message has.
    pub(in crate::dashboard) too_many: u64,
    /// Rows of all objects that were not read, or are not kept any more.
    pub(in crate::dashboard) passed_over: u64,
    /// Whether Redis has lost rows.
    pub(in crate::dashboard) is_lost: bool,
    /// Whether the user may see the numbers of rows of all objects.
    pub(in crate::dashboard) has_numbers: bool,
}

/// Returns the part with new rows, newest first. `rows`: HTML of the rows, oldest first.
pub(in crate::dashboard) fn new_rows<'a>(
    rows: impl DoubleEndedIterator<Item = &'a str>,
    left_out: &LeftOut,
) -> Markup {
    html! {
        table {
            tbody data-part="new" {
                @for row in rows.rev() { (PreEscaped(row)) }
                @if left_out.too_many > 0 { (mark(&html! { (number(left_out.too_many)) " rows were passed over here: they came too fast." })) }
                @if left_out.passed_over > 0 && !left_out.has_numbers { (mark(&html! { "Rows were passed over here." })) }
                @else if left_out.passed_over > 0 { (mark(&html! { (number(left_out.passed_over)) " rows of the whole log were passed over here." })) }
                @if left_out.is_lost { (mark(&html! { "Redis has lost rows here. New ones follow." })) }
            }
        }
    }
}

fn mark(text: &Markup) -> Markup {
    html! { tr { td colspan=(HEADS.len()) { strong { (text) } } } }
}
