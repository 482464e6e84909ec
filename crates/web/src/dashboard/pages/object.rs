//! One object: why it waits, its queue, its rules, its chain of events, its schedules, and the
//! actions on it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::chain::ChainPage;
use seriatim::control::inspect::Standing;
use seriatim::control::rules::{Kind, Selector};
use seriatim::control::{Action, EventStatus, Inspection, RowEvent, ScheduledEvent};
use seriatim_console::shares::parts;
use seriatim_console::shown;

use super::{ROWS, after, event, may_operate, name_of, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms, Input};
use crate::dashboard::html::format::{
    LINKED_BYTES_MAX, count, lines, link, moment, name, number, sentence, text, time,
};
use crate::dashboard::html::{Frame, Update, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// The number of schedules and of actions that are shown.
const SCHEDULES: usize = 20;
const ACTIONS: usize = 10;

/// `GET /object?name=…`: `name` is the escaped name.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let escaped = parameter(&asked, "name")?;
    if escaped.is_empty() {
        return Err(Problem::bad_request(
            "the request names no object: add ?name=NAME",
        ));
    }
    let bytes = name_of(&escaped)?;
    let escaped = seriatim::escape::name(&bytes).into_owned();
    let (looks, user, cursor) = (&app.looks, &asked.user, after(&asked)?);
    let object = looks.inspection(user, &bytes).await?;
    let chain = looks.chain(user, &bytes, cursor.as_ref(), ROWS).await?;
    // Further pages have only further events.
    let (schedules, actions) = match cursor {
        Some(_) => (Vec::new(), Vec::new()),
        None => {
            let schedules = match object.schedules {
                0 => Vec::new(),
                _ => {
                    looks
                        .schedules_of(user, &bytes, None, SCHEDULES)
                        .await?
                        .rows
                }
            };
            (
                schedules,
                looks.actions_of(user, &bytes, None, ACTIONS, 1).await?.rows,
            )
        }
    };
    let place = cursor.as_ref().map_or("", |cursor| cursor.as_str());
    let back = link("", "/object", &[("name", &escaped), ("after", place)]);
    let content = html! {
        h1 { "Object " (name(&escaped)) }
        @if cursor.is_none() {
            div data-part="state" { (state(&app, &object)) }
            div data-part="search" { (search(&forms, &app.base, &escaped, &back, &object)) }
            (acts(&forms, user, &bytes, &escaped, &object, &back))
            div data-part="next" { (next_event(&object)) }
        }
        h2 { "Events, newest first" }
        div data-part="chain" { (events(&app, &forms, user, &escaped, &back, &object, &chain)) }
        @if !schedules.is_empty() {
            h2 { "Schedules" }
            (schedule_rows(&forms, user, &bytes, &escaped, &back, &schedules, object.now_ms))
            @if object.schedules > schedules.len() as u64 { p { (number(object.schedules)) " schedules in all." } }
        }
        @if cursor.is_none() {
            h2 { "What operators did" }
            @if !actions.is_empty() { (action_rows(&actions, object.now_ms)) }
            p { "The page looks at the newest 32 actions on all objects. " a href=(link(&app.base, "/actions", &[("object", &escaped)])) { "Look further back" } }
        }
    };
    let update = if cursor.is_none() {
        Update::Every(5)
    } else {
        Update::No
    };
    let title = format!("Object {}", shown::middle_cut(&escaped, 60));
    Ok(Frame {
        app: &app,
        user,
        current: "",
        title: &title,
        update,
        forms: Some(&forms),
    }
    .around(&content))
}

fn word(standing: Standing) -> (&'static str, &'static str) {
    match standing {
        Standing::Unknown => ("unknown", ""),
        Standing::Idle => ("idle", ""),
        Standing::Owned => ("in work", "good"),
        Standing::OwnerGone => ("its worker is gone", "bad"),
        Standing::Held => ("held", "warn"),
        Standing::Paused => ("paused", "warn"),
        Standing::Blocked => ("blocked", "warn"),
        Standing::Taken => ("taken", "good"),
        Standing::Marked => ("waiting", ""),
        Standing::Uncovered => ("broken", "bad"),
        Standing::Unclear => ("unclear", "warn"),
        _ => ("other", ""),
    }
}

/// Returns the state as a sentence, with the figures behind it.
fn state(app: &Dashboard, object: &Inspection) -> Markup {
    let (standing, class) = word(object.standing);
    let hidden = app.looks.hides();
    html! {
        p.why { span class={ "mark " (class) } { (standing) } ": " (sentence(&object.why)) "." }
        dl.pairs {
            dt { "Queued" } dd { (count(object.events_queued, "event")) }
            @if object.events_in_flight > 0 { dt { "In flight" } dd { (count(object.events_in_flight, "event")) } }
            @if object.events_held > 0 { dt { "Held batch" } dd { (count(object.events_held, "event")) } }
            @if let Some(owner) = &object.owner { dt { "Owner" } dd { (text(owner, 80)) } }
            @if let Some(due) = object.due_ms { dt { "Due" } dd { (time(due, object.now_ms)) } }
            @if object.at_once { dt { "Due" } dd { "at once" } }
            @if let Some(tries) = &object.tries {
                dt { "Attempts" } dd { (tries.attempts) " failed, " (number(tries.crashes)) " ended by a crash" ", handed out " (count(tries.handouts, "time")) " before" }
            }
            @if let Some(before) = object.markers_before { dt { "In line" } dd { (number(before)) " markers before it" } }
            @if let (Some(group), Some(before)) = (&object.group, object.group_before) {
                dt { "In line" }
                dd { (number(before)) " names before it in the group " (text(&seriatim::escape::name(group), 64)) "; " (number(object.groups_waiting)) " groups wait" }
            }
            @if object.markers_beyond { dt { "In line" } dd { "more than 10 000 markers before it" } }
            @if let Some(waits) = object.waits_ms { dt { "Waits" } dd { "for at least " (shown::duration(waits)) } }
            @if let Some(last) = object.last_event_id { dt { "Last delivered" } dd { "event " (last) } }
            @if let Some(why) = &object.held_why { dt { "Held because" } dd { (lines(why)) } }
            @for rule in &object.rules {
                dt { @if rule.kind == Kind::Block { "Block" } @else { "Pause" } }
                dd {
                    (text(rule.selector.as_str(), 120)) ", set by " (text(&rule.actor, 64)) " " (time(rule.set_ms, object.now_ms))
                    @if let Some(end) = rule.end_ms { ", ends " (time(end, object.now_ms)) }
                    @if !rule.in_force { ", being lifted" }
                    @if !rule.reason.is_empty() { ": " (text(&rule.reason, 300)) }
                }
            }
            @for share in &object.shares { dt { "Share" } dd { (text(&share.selector, 120)) ": " (parts(share)) } }
            @if !object.wrong_types.is_empty() { dt { "Wrong types" } dd.bad { (text(&object.wrong_types.join(", "), 300)) } }
            @if hidden { dt { "Hidden" } dd { "parts of events, by an option of this dashboard" } }
        }
        @if !object.errors.is_empty() {
            h2 { "Failed attempts" }
            (table("Failed attempts", &["Attempt", "Time", "Error"], &html! {
                @for failed in &object.errors {
                    tr {
                        td data-label="Attempt" { (failed.attempt) }
                        td data-label="Time" { (time(failed.at_ms, object.now_ms)) }
                        td data-label="Error" { (lines(&failed.error)) }
                    }
                }
            }))
        }
    }
}

/// Returns the button for a search of all slots, if the page has read only some of them.
fn search(forms: &Forms, base: &str, escaped: &str, back: &str, object: &Inspection) -> Markup {
    let is_part = object.searched.is_some_and(|searched| !searched.all);
    let is_open = matches!(object.standing, Standing::Unclear | Standing::Marked)
        && object.markers_before.is_none();
    html! {
        @if is_part && is_open {
            form method="post" action={ (base) "/object/search" } {
                input type="hidden" name="object" value=(escaped);
                (forms.hidden(back))
                button type="submit" { "Search all slots" }
            }
        }
    }
}

fn next_event(object: &Inspection) -> Markup {
    html! {
        @if let Some(next) = &object.next_event {
            h2 { "Next event" }
            p {
                @if let Some(id) = next.id { "Id " (id) ", " } @else { "No id yet, " }
                (number(next.bytes)) " bytes"
                @if (next.text.len() as u64) < next.bytes { ", the beginning" }
            }
            pre tabindex="0" aria-label="Next event" { (lines(&next.text)) }
        }
        @if let Some(kept) = &object.kept_results {
            h2 { "Results that handlers have stored" }
            pre tabindex="0" aria-label="Results" { (lines(kept.results.as_deref().unwrap_or("hidden, or too long"))) }
        }
        @if let Some(report) = &object.report {
            h2 { "Report of the handlers" }
            @if let Some(progress) = &report.progress {
                p { "Event " (report.id) ", " (time(report.at_ms, object.now_ms)) }
                pre tabindex="0" aria-label="Progress" { (lines(progress)) }
            }
            @if !report.log.is_empty() {
                (table("Log lines", &["Time", "Line"], &html! {
                    @for line in &report.log {
                        tr {
                            td data-label="Time" { (time(line.at_ms, object.now_ms)) }
                            td data-label="Line" { (text(&line.text, 1000)) }
                        }
                    }
                }))
            }
        }
    }
}

/// Returns the actions that the user may do now.
fn acts(
    forms: &Forms,
    user: &User,
    bytes: &[u8],
    escaped: &str,
    object: &Inspection,
    back: &str,
) -> Markup {
    if escaped.len() > LINKED_BYTES_MAX {
        return html! { p { "The name is too long for actions here; the commands of " code { "seriatim" } " take it." } };
    }
    let may = |right| user.may(right, bytes).is_ok();
    let is_held = object.standing == Standing::Held;
    let batch = object
        .next_event
        .as_ref()
        .and_then(|next| next.id)
        .filter(|_| is_held && object.events_held > 0);
    let row = format!("- {escaped}");
    let row_with_id = batch
        .map(|id| format!("{id} {escaped}"))
        .unwrap_or_default();
    let form = |act, label, fields: &[(&str, &str)], inputs: &[Input<'_>]| {
        ActForm {
            forms,
            act,
            label,
            subject: escaped,
            fields,
            inputs,
            back,
        }
        .markup()
    };
    let has_rule = |kind| {
        object.rules.iter().any(|rule| {
            rule.kind == kind && rule.selector.as_str().as_bytes() == bytes && rule.in_force
        })
    };
    // Rules are for valid names. The name `*` or `work:*` is the selector of many objects, so a rule for
    // it concerns others than this object.
    let is_plain = std::str::from_utf8(bytes).is_ok_and(|name| Selector::exact(name).is_ok());
    html! {
        div.acts {
            @if may(Right::Operate) && is_held { (form("release", "Release", &[("row", &row)], &[])) }
            @if let (true, Some(id)) = (may(Right::Operate), batch) {
                (form("skip", "Skip the first event", &[("row", &row_with_id)], &[Input::Note(html! { "Event " (id) " becomes a dead letter. The object goes on with its next event." })]))
            }
            @if may(Right::Pause) && is_plain {
                @if has_rule(Kind::Pause) { (form("resume", "Resume", &[("selector", escaped)], &[])) }
                @else { (form("pause", "Pause", &[("selector", escaped), ("exact", "true")], &[Input::END])) }
            }
            @if may(Right::Pause) && may(Right::Operate) && is_plain {
                @if has_rule(Kind::Block) { (form("unblock", "Unblock", &[("selector", escaped)], &[])) }
                @else { (form("block", "Block", &[("selector", escaped), ("exact", "true")], &[Input::END])) }
            }
            @if may(Right::Operate) && object.standing == Standing::Idle && object.last_event_id.is_some() {
                (form("forget", "Forget", &[("object", escaped)], &[Input::Note(html! { "The id of its last event is deleted. Its next event has prev 0." })]))
            }
        }
    }
}

/// Returns the chain: the events in hand first, then the finalized events.
fn events(
    app: &Dashboard,
    forms: &Forms,
    user: &User,
    escaped: &str,
    back: &str,
    object: &Inspection,
    chain: &ChainPage,
) -> Markup {
    let may = may_operate(user)
        && name_of(escaped).is_ok_and(|bytes| user.may(Right::Operate, &bytes).is_ok());
    let settle = |act, label, dead_id: &str| {
        ActForm {
            forms,
            act,
            label,
            subject: dead_id,
            fields: &[("row", dead_id)],
            inputs: &[],
            back,
        }
        .markup()
    };
    let in_hand = object
        .next_event
        .as_ref()
        .and_then(|next| Some((next.id?, next)));
    let rows = html! {
        @if let Some((id, next)) = in_hand {
            tr {
                td.id data-label="Id" { (id) }
                td.id data-label="Prev" { @if let Some(prev) = object.last_event_id { (prev) } @else { "0" } }
                td data-label="State" { span.mark.warn { @if object.events_held > 0 { "waiting" } @else { "in flight" } } }
                td.number data-label="Attempts" { @if let Some(tries) = &object.tries { (tries.attempts) } }
                td data-label="Taken" { "–" }
                td data-label="Over" { "–" }
                td data-label="Event" { (event(&RowEvent::new(next.text.clone().into_bytes(), Some(next.bytes)))) }
            }
        }
        @for row in &chain.rows {
            tr {
                td.id data-label="Id" { @if let Some(id) = row.id { (id) } @else { "–" } }
                td.id data-label="Prev" { @if let Some(prev) = row.prev { (prev) } @else { "–" } }
                td data-label="State" {
                    (status(&row.status))
                    @if let Some(dead_id) = &row.dead_id {
                        " " (dead_id)
                        @if may { div.buttons { (settle("retry", "Retry", dead_id.as_str())) (settle("drop", "Drop", dead_id.as_str())) } }
                    }
                    @if let Some(error) = &row.error { br; (text(error, 300)) }
                }
                td.number data-label="Attempts" { @if let Some(attempts) = row.attempts { (attempts) } @else { "–" } }
                td data-label="Taken" { @if let Some(taken) = row.taken_ms { (moment(taken)) } @else { "–" } }
                td data-label="Over" {
                    (moment(row.at_ms))
                    @if let Some(taken) = row.taken_ms { br; "took " (shown::duration(row.at_ms.saturating_sub(taken))) }
                }
                td data-label="Event" {
                    @if let Some(of) = &row.event { (event(of)) } @else { "–" }
                    @if let Some(results) = &row.results { details { summary { "Results" } pre tabindex="0" aria-label="Results" { (lines(results)) } } }
                }
            }
        }
    };
    html! {
        @if chain.rows.is_empty() && in_hand.is_none() {
            p { "None found." }
        } @else {
            (table("Events", &["Id", "Prev", "State", "Attempts", "Taken", "Over", "Event"], &rows))
        }
        p {
            "Looked at " (number(chain.log_rows)) " rows of the event log and " (number(chain.dead_letters)) " dead letters of all objects. "
            "The log has all events only if workers run with " code { "--event-log" } ". "
            @if let Some(next) = &chain.next { a href=(link(&app.base, "/object", &[("name", escaped), ("after", next.as_str())])) rel="next" { "Look further back" } }
        }
    }
}

pub(super) fn status(status: &EventStatus) -> Markup {
    let class = match status {
        EventStatus::Completed => "good",
        EventStatus::Dead => "bad",
        _ => "warn",
    };
    html! { span class={ "mark " (class) } { (text(&status.as_str().replace('_', " "), 40)) } }
}

fn schedule_rows(
    forms: &Forms,
    user: &User,
    bytes: &[u8],
    escaped: &str,
    back: &str,
    schedules: &[ScheduledEvent],
    now_ms: u64,
) -> Markup {
    let may = user.may(Right::Operate, bytes).is_ok();
    let rows = html! {
        @for row in schedules {
            @let key = row.key_escaped.as_deref().unwrap_or(&row.key);
            tr {
                td data-label="Key" { (text(key, 80)) }
                td data-label="Due" { @if row.queued { "queued" } @else if let Some(due) = row.due_ms { (time(due, now_ms)) } @else if row.at_once { "at once" } @else { "broken" } }
                td data-label="Event" { (event(&row.event)) }
                @if may {
                    td data-label="Action" {
                        (ActForm { forms, act: "cancel", label: "Cancel", subject: key, fields: &[("object", escaped), ("key", key)], inputs: &[], back }.markup())
                    }
                }
            }
        }
    };
    let heads: &[&str] = if may {
        &["Key", "Due", "Event", "Action"]
    } else {
        &["Key", "Due", "Event"]
    };
    table("Schedules", heads, &rows)
}

fn action_rows(actions: &[Action], now_ms: u64) -> Markup {
    let rows = html! {
        @for row in actions {
            tr {
                td data-label="Time" { (time(row.at_ms, now_ms)) }
                td data-label="Action" { (text(&row.action, 40)) }
                td data-label="Who" { (text(&row.who, 64)) }
                td data-label="Reason" { (text(&row.why, 300)) }
            }
        }
    };
    table(
        "What operators did",
        &["Time", "Action", "Who", "Reason"],
        &rows,
    )
}
