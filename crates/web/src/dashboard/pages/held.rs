//! Held objects, by due time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::HeldObject;
use seriatim::control::held::{HeldFilter, WaitsFor};

use super::{ROWS, after, may_operate, parameter, prefix_of};
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms, Input, rows_form};
use crate::dashboard::html::format::{LINKED_BYTES_MAX, link, number, object, text, time};
use crate::dashboard::html::{Frame, Update, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// The choices of the filter: the word in the query, the text, and the condition.
const WHYS: [(&str, &str, Option<WaitsFor>); 9] = [
    ("", "any reason", None),
    ("due", "due now", None),
    ("operator", "an operator", Some(WaitsFor::Operator)),
    ("retry", "a retry", Some(WaitsFor::Retry)),
    (
        "unknown",
        "a worker that knows its event",
        Some(WaitsFor::Unknown),
    ),
    ("takeover", "a takeover", Some(WaitsFor::Takeover)),
    ("stop", "a stopped worker", Some(WaitsFor::Stop)),
    ("yield", "its turn", Some(WaitsFor::Yield)),
    (
        "released",
        "a free worker, released",
        Some(WaitsFor::Released),
    ),
];

pub(super) fn waits_for(waits_for: WaitsFor) -> &'static str {
    match waits_for {
        WaitsFor::Rule => "a rule",
        other => WHYS
            .iter()
            .find(|(.., condition)| *condition == Some(other))
            .map_or("other", |(_, text, _)| text),
    }
}

/// `GET /held?why=…&prefix=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let (why, prefix) = (parameter(&asked, "why")?, parameter(&asked, "prefix")?);
    let found = WHYS.iter().find(|(word, ..)| *word == why);
    let (.., condition) = found.ok_or_else(|| {
        Problem::bad_request(format!("the parameter why: {why:?} is not a reason"))
    })?;
    let prefix_bytes = prefix_of(&prefix)?;
    let which = HeldFilter {
        prefix: &prefix_bytes,
        waits_for: *condition,
        due: why == "due",
    };
    let page = app
        .looks
        .held(&asked.user, &which, after(&asked)?.as_ref(), ROWS)
        .await?;
    let place = parameter(&asked, "after")?;
    let back = link(
        "",
        "/held",
        &[("why", &why), ("prefix", &prefix), ("after", &place)],
    );
    let now_ms = page.now_ms.unwrap_or(0);
    let next = page.next.as_ref();
    let content = html! {
        h1 { "Held objects" }
        p { "Sorted by due time. Objects that wait for an operator come last." }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/held" } {
            label { "Waits for " select name="why" { @for (word, text, _) in WHYS { option value=(word) selected[*word == *why] { (text) } } } }
            label { "Name begins with " input name="prefix" value=(prefix); }
            button type="submit" { "Show" }
        }
        (list(&app, &forms, &asked, &page.rows, now_ms, &back))
        @if let Some(looked_at) = page.looked_at.filter(|looked| *looked > page.rows.len() as u64) {
            p { "Looked at " (number(looked_at)) " objects for this page." }
        }
        (next_page(&app.base, "/held", &[("why", &why), ("prefix", &prefix)], next))
        @if may_operate(&asked.user) { (release_all(&forms, &asked, &prefix, &prefix_bytes, &back)) }
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/held",
        title: "Held objects",
        update: Update::No,
        forms: Some(&forms),
    }
    .around(&content))
}

fn list(
    app: &Dashboard,
    forms: &Forms,
    asked: &Asked,
    objects: &[HeldObject],
    now_ms: u64,
    back: &str,
) -> Markup {
    if objects.is_empty() {
        return html! { p { "None on this page." } };
    }
    let may = may_operate(&asked.user);
    let rows = html! {
        @for row in objects {
            @let escaped = row.object_escaped.as_deref().unwrap_or(&row.object);
            tr {
                @if may { td data-label="Select" { @if escaped.len() <= LINKED_BYTES_MAX { (forms.row_box(&row_value(row, escaped), &text(escaped, 80))) } } }
                td data-label="Object" { (object(&app.base, escaped)) }
                td data-label="Waits for" { (waits_for(row.waits_for)) @if let Some(wait) = &row.waits_for_share { br; (text(&wait.to_string(), 300)) } }
                td data-label="Due" { @if let Some(due) = row.due_ms { (time(due, now_ms)) } @else if row.at_once { "at once" } @else { "–" } }
                td data-label="Event" { @if let Some(id) = row.id { (id) } @else { "–" } }
                td.number data-label="Attempts" { (row.attempts) @if row.crashes > 0 { ", " (row.crashes) " crashes" } }
                td.number data-label="In batch" { (number(row.events)) }
                td data-label="Reason" { (text(&row.why, 300)) }
            }
        }
    };
    let heads = [
        "Select",
        "Object",
        "Waits for",
        "Due",
        "Event",
        "Attempts",
        "In batch",
        "Reason",
    ];
    let table = table(
        "Held objects",
        if may { &heads } else { &heads[1..] },
        &rows,
    );
    let acts: &[(&str, &str)] = if may {
        &[("release", "Release"), ("skip", "Skip the first events")]
    } else {
        &[]
    };
    rows_form(forms, back, acts, &table)
}

fn row_value(row: &HeldObject, escaped: &str) -> String {
    row.id
        .map_or_else(|| format!("- {escaped}"), |id| format!("{id} {escaped}"))
}

/// Returns the form that releases all held objects with the prefix. `prefix`: its escaped form.
fn release_all(
    forms: &Forms,
    asked: &Asked,
    prefix: &str,
    prefix_bytes: &[u8],
    back: &str,
) -> Markup {
    let may = match prefix_bytes {
        [] => asked.user.may_all(Right::Operate),
        bytes => asked.user.may(Right::Operate, bytes),
    };
    let subject = if prefix.is_empty() {
        "held objects".to_owned()
    } else {
        format!("held objects {prefix}*")
    };
    let note = html! { "This releases all " (text(&subject, 120)) ", whatever they wait for, in steps of 100. It can be stopped." };
    let only = Input::Check {
        name: "until_released",
        label: "only those that wait for an operator",
    };
    let inputs = &[Input::Note(note), only];
    html! {
        @if may.is_ok() {
            div.acts { (ActForm { forms, act: "release-all", label: "Release all", subject: &subject, fields: &[("prefix", prefix)], inputs, back }.markup()) }
        }
    }
}
