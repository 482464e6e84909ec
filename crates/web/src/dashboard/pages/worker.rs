//! One worker name and its slots.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::html;

use super::workers::{longest, process, sink};
use super::{after, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::format::{number, object, text};
use crate::dashboard::html::{Frame, Update, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// The number of slots of a page.
const SLOTS: usize = 128;

/// `GET /worker?name=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let name = parameter(&asked, "name")?;
    let found = app
        .looks
        .worker(&asked.user, &name, after(&asked)?.as_ref(), SLOTS)
        .await?;
    let worker = &found.worker;
    let rows = html! {
        @for slot in &found.slots {
            tr {
                td.number data-label="Slot" { (slot.slot) }
                td data-label="Object" {
                    @if slot.objects.is_empty() { "–" }
                    @for found in &slot.objects { (object(&app.base, found.object_escaped.as_deref().unwrap_or(&found.object))) " " }
                    @if slot.objects_not_shown > 0 { "and " (number(slot.objects_not_shown)) " more" }
                }
                @if let Some(batch) = &slot.batch {
                    td.id data-label="First event" { @if let Some(id) = batch.id { (id) } @else { "–" } }
                    td.number data-label="Events" { (number(batch.events)) }
                    td data-label="Tries" { (batch.tries.attempts) " failed, " (batch.tries.crashes) " crashes, handed out " (batch.tries.handouts) " times before" }
                } @else {
                    td.id data-label="First event" { "–" }
                    td.number data-label="Events" { "0" }
                    td data-label="Tries" { "–" }
                }
            }
        }
    };
    let content = html! {
        h1 { "Worker " (text(&worker.name, 64)) }
        div data-part="worker" {
            dl.pairs {
                dt { "Process" } dd { (process(worker)) }
                dt { "Slots" } dd { (number(worker.slots.into())) }
                dt { "Sink" } dd { (sink(worker)) }
                dt { "Longest delivery" } dd { (longest(&app, worker)) }
                @if let Some(status) = &worker.status {
                    dt { "Since its start" } dd {
                        (number(status.delivered)) " delivered, " (number(status.rejected)) " rejected, "
                        (number(status.completed_with_errors)) " completed with errors, " (number(status.transient)) " failed for now"
                    }
                }
            }
            (table("Slots", &["Slot", "Object", "First event", "Events", "Tries"], &rows))
        }
        (next_page(&app.base, "/worker", &[("name", &name)], found.next.as_ref()))
    };
    let title = format!("Worker {}", text(&worker.name, 64));
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/workers",
        title: &title,
        update: Update::Every(5),
        forms: None,
    }
    .around(&content))
}
