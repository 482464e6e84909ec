//! Dead letters.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::DeadLetter;

use super::{ROWS, after, event, may_operate, name_of, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms, Input, rows_form};
use crate::dashboard::html::format::{link, moment, object, text};
use crate::dashboard::html::{Frame, Update, cut_note, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// `GET /dead?object=…&order=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let (wanted, order) = (parameter(&asked, "object")?, parameter(&asked, "order")?);
    let newest = match order.as_str() {
        "" | "newest" => true,
        "oldest" => false,
        other => {
            return Err(Problem::bad_request(format!(
                "the parameter order: {other:?} is not newest or oldest"
            )));
        }
    };
    let bytes = name_of(&wanted)?;
    let of = (!bytes.is_empty()).then_some(bytes.as_slice());
    let page = app
        .looks
        .dead_letters(&asked.user, of, newest, after(&asked)?.as_ref(), ROWS)
        .await?;
    let query = [("object", wanted.as_str()), ("order", order.as_str())];
    let place = parameter(&asked, "after")?;
    let back = link("", "/dead", &[query[0], query[1], ("after", &place)]);
    let content = html! {
        h1 { "Dead letters" }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/dead" } {
            label { "Object " input name="object" value=(wanted); }
            label { "Order " select name="order" { option value="newest" { "newest first" } option value="oldest" selected[!newest] { "oldest first" } } }
            button type="submit" { "Show" }
        }
        (list(&app, &forms, &asked, &page.rows, &back))
        @if of.is_some() && page.next.is_some() { p { "Each page looks at up to 250 dead letters of all objects, or at 1 MiB of them." } }
        (cut_note(page.is_cut))
        (next_page(&app.base, "/dead", &query, page.next.as_ref()))
        (all(&forms, &asked, of, &wanted, &back))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/dead",
        title: "Dead letters",
        update: Update::No,
        forms: Some(&forms),
    }
    .around(&content))
}

fn list(
    app: &Dashboard,
    forms: &Forms,
    asked: &Asked,
    letters: &[DeadLetter],
    back: &str,
) -> Markup {
    if letters.is_empty() {
        return html! { p { "None on this page." } };
    }
    let may = may_operate(&asked.user);
    let rows = html! {
        @for row in letters {
            @let escaped = row.object_escaped.as_deref().unwrap_or(&row.object);
            tr {
                @if may { td data-label="Select" { (forms.row_box(row.dead_id.as_str(), &format!("the dead letter {} of {}", row.dead_id, text(escaped, 80)))) } }
                td data-label="Object" { (object(&app.base, escaped)) }
                td data-label="Time" { (when(row)) }
                td.id data-label="Event id" { @if let Some(id) = row.id { (id) } @else { "–" } }
                td.number data-label="Attempts" { @if let Some(attempts) = row.attempts { (attempts) } @else { "–" } }
                td data-label="Error" { (text(&row.error, 400)) }
                td data-label="Event" { (event(&row.event)) }
            }
        }
    };
    let heads = [
        "Select", "Object", "Time", "Event id", "Attempts", "Error", "Event",
    ];
    let table = table(
        "Dead letters",
        if may { &heads } else { &heads[1..] },
        &rows,
    );
    let acts: &[(&str, &str)] = if may {
        &[("retry", "Retry"), ("drop", "Drop")]
    } else {
        &[]
    };
    rows_form(forms, back, acts, &table)
}

/// Returns the time at which the event became a dead letter: the first part of the id.
fn when(row: &DeadLetter) -> Markup {
    let ms = row
        .dead_id
        .as_str()
        .split('-')
        .next()
        .and_then(|ms| ms.parse().ok());
    html! { @if let Some(ms) = ms { (moment(ms)) } }
}

/// Returns the forms that retry or drop all dead letters, or those of one object.
fn all(forms: &Forms, asked: &Asked, of: Option<&[u8]>, wanted: &str, back: &str) -> Markup {
    let may = match of {
        None => asked.user.may_all(Right::Operate),
        Some(bytes) => asked.user.may(Right::Operate, bytes),
    };
    let subject = if of.is_none() {
        "dead letters".to_owned()
    } else {
        format!("dead letters of {}", text(wanted, 80))
    };
    let form = |act, label, warning: &str, more: &str| {
        let inputs = &[Input::Note(
            html! { (warning) " all " (subject) ", in steps of 32. It can be stopped." (more) },
        )];
        ActForm {
            forms,
            act,
            label,
            subject: &subject,
            fields: &[("object", wanted)],
            inputs,
            back,
        }
        .markup()
    };
    html! {
        @if may.is_ok() {
            div.acts {
                (form("retry-all", "Retry all", "This queues again", ""))
                (form("drop-all", "Drop all", "This deletes", " The page Actions shows their number, not their events."))
            }
        }
    }
}
