//! The worker processes.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::stats::NameStats;
use seriatim_console::shown;

use super::{ROWS, after};
use crate::dashboard::Dashboard;
use crate::dashboard::html::format::{link, number, object, quantile, text};
use crate::dashboard::html::{Frame, Update, next_page, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// `GET /workers`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let page = app
        .looks
        .workers(&asked.user, after(&asked)?.as_ref(), ROWS)
        .await?;
    let rows = html! { @for worker in &page.workers { (row(&app, worker)) } };
    let heads = [
        "Name",
        "Process",
        "Slots",
        "In flight",
        "Events/s",
        "Delivery p50, p99",
        "Sink",
        "Longest delivery",
    ];
    let content = html! {
        h1 { "Worker processes" }
        div data-part="workers" {
            p { (number(page.registered)) " names are registered. Names with a process or with work come first." }
            @if page.workers.is_empty() { p { "None on this page." } } @else { (table("Worker processes", &heads, &rows)) }
        }
        (next_page(&app.base, "/workers", &[], page.next.as_ref()))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/workers",
        title: "Worker processes",
        update: Update::Every(5),
        forms: None,
    }
    .around(&content))
}

fn row(app: &Dashboard, worker: &NameStats) -> Markup {
    let status = worker.status.as_ref();
    let minute = status.map(|status| &status.minute);
    html! {
        tr {
            td data-label="Name" { a.row-link href=(link(&app.base, "/worker", &[("name", &worker.name)])) { (text(&worker.name, 64)) } }
            td data-label="Process" { (process(worker)) }
            td data-label="Slots" { (number(worker.slots_busy)) " of " (number(worker.slots.into())) " busy" }
            td.number data-label="In flight" { (number(worker.events_in_flight)) }
            td.number data-label="Events/s" { @if let Some(rate) = minute.and_then(|minute| minute.delivered.saturating_mul(1000).checked_div(minute.ms)) { (number(rate)) } @else { "–" } }
            td data-label="p50, p99" { @if let Some(minute) = minute { (quantile(minute.delivery.p50_us)) ", " (quantile(minute.delivery.p99_us)) } @else { "–" } }
            td data-label="Sink" { (sink(worker)) }
            td data-label="Longest" { (longest(app, worker)) }
        }
    }
}

/// Returns the process of a name: whether it lives, its host and its process id.
pub(super) fn process(worker: &NameStats) -> Markup {
    html! {
        @if worker.alive { span.mark.good { "alive" } }
        @else if worker.events_in_flight > 0 { span.mark.bad { "gone, with work" } }
        @else { span.mark { "gone" } }
        @if let (Some(pid), Some(host)) = (&worker.pid, &worker.host) {
            ", " (text(pid, 20)) " on " (text(host.split('/').next().unwrap_or_default(), 40))
        }
        @if let Some(status) = &worker.status { ", version " (text(&status.version, 20)) }
        @if let Some(ttl) = worker.lease_ttl_ms { ", lease " (shown::duration(ttl)) }
    }
}

pub(super) fn sink(worker: &NameStats) -> Markup {
    let Some(status) = &worker.status else {
        return html! { "–" };
    };
    html! {
        (text(&status.sink, 60))
        @match (status.sink_down_ms, status.sink_up_ms) {
            (Some(down), _) => { " " span.mark.bad { "down" } " for " (shown::duration(down)) ": " (text(&status.sink_error, 200)) }
            (None, Some(up)) => { " " span.mark.good { "up" } " for " (shown::duration(up)) }
            _ => {}
        }
    }
}

pub(super) fn longest(app: &Dashboard, worker: &NameStats) -> Markup {
    html! {
        @if let Some(longest) = worker.status.as_ref().and_then(|status| status.longest.as_ref()) {
            (object(&app.base, &seriatim::escape::name(&longest.object))) ", event " (longest.id) ", " (shown::duration(longest.since_ms))
        } @else { "–" }
    }
}
