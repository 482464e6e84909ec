//! The overview: figures, charts, and the things that need somebody.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::Stats;
use seriatim_console::shown;

use crate::dashboard::Dashboard;
use crate::dashboard::html::chart::Chart;
use crate::dashboard::html::format::{count, link, name, number, object, text};
use crate::dashboard::html::{Frame, Update, table};
use crate::dashboard::live::{Sample, Snapshot};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// The duration from which a delivery counts as hanging, and a wait as long, in ms.
const LONG_MS: u64 = 60_000;
/// The most prefixes that are shown, and the most rows of one kind of thing that needs somebody.
const PREFIXES: usize = 20;
const NEEDS: usize = 5;

/// `GET /`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let (content, update) = match asked.user.may_all(Right::View) {
        Ok(()) => {
            let snapshot = app.live.snapshot().await;
            (
                html! { h1 { "Overview" } (parts(&app.base, &snapshot)) },
                Update::Stream("/live"),
            )
        }
        Err(_) => {
            let content = html! {
                h1 { "Overview" }
                p { "You may see only some objects. The figures of all objects are for users without prefixes. Search for an object, or open one of the lists." }
            };
            (content, Update::No)
        }
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/",
        title: "Overview",
        update,
        forms: None,
    }
    .around(&content))
}

/// Returns the parts of the page that change.
pub(in crate::dashboard) fn parts(base: &str, snapshot: &Snapshot) -> Markup {
    let stats = snapshot.stats.as_ref();
    html! {
        div data-part="figures" {
            @match stats {
                Ok(stats) => (figures(base, stats, &snapshot.samples)),
                Err(error) => p.problem role="alert" { (error) },
            }
            @if snapshot.every.as_secs() > 1 {
                p { "There are many slots, so these figures are read every " (snapshot.every.as_secs()) " s." }
            }
        }
        h2 { "What needs somebody" }
        // Without figures, the page must neither keep an old list nor lack the part for a new one.
        div data-part="needs" { @if let Ok(stats) = stats { (needs(base, stats)) } @else { p { "Unknown, because there are no figures." } } }
        h2 { "Last 5 minutes" }
        div.charts data-part="charts" { (charts(&snapshot.samples)) }
        div.columns {
            div {
                h2 { "Longest queues under work" }
                div data-part="queues" { (queues(base, snapshot)) }
            }
            div {
                h2 { "Queued events by prefix" }
                div data-part="prefixes" { (prefixes(base, snapshot)) }
            }
        }
    }
}

fn figures(base: &str, stats: &Stats, samples: &[Option<Sample>]) -> Markup {
    let rate = samples
        .iter()
        .rev()
        .flatten()
        .next()
        .and_then(|sample| sample.rate);
    let alive = stats.workers.iter().filter(|worker| worker.alive).count() as u64;
    let oldest = stats
        .oldest_waiting_ms
        .map_or_else(|| "unknown".to_owned(), waiting);
    let held = &stats.held;
    let tile = |value: String, what: &str, target: Option<String>| {
        html! { li { b { (value) } span { @if let Some(target) = target { a href=(target) { (what) } } @else { (what) } } } }
    };
    let to = |path: &str, query: &[(&str, &str)]| Some(link(base, path, query));
    html! {
        ul.figures {
            (tile(rate.map_or_else(|| "–".to_owned(), |rate| number(rate.round() as u64)), "events taken per second", None))
            (tile(oldest, "oldest waiting", None))
            (tile(number(stats.markers), "markers waiting", None))
            @if stats.groups.waiting > 0 { (tile(number(stats.groups.waiting), "groups waiting", None)) }
            (tile(number(stats.events_in_flight), "events in flight", to("/workers", &[])))
            (tile(number(held.total), "objects held", to("/held", &[])))
            (tile(number(held.due), "of these due", to("/held", &[("why", "due")])))
            (tile(number(held.until_released), "wait for an operator", to("/held", &[("why", "operator")])))
            (tile(number(stats.paused), "objects paused", to("/paused", &[])))
            (tile(number(stats.rules.in_force), "rules in force", to("/rules", &[])))
            (tile(number(stats.dead_letters), "dead letters", to("/dead", &[])))
            (tile(number(stats.schedules.total), "schedules", to("/schedules", &[])))
            (tile(number(alive), "worker processes", to("/workers", &[])))
        }
    }
}

/// Returns the age of the oldest waiting marker, the same in the figures and in the chart.
fn waiting(ms: u64) -> String {
    if ms == 0 {
        "none".to_owned()
    } else {
        shown::duration(ms)
    }
}

/// Returns the list of things that need somebody.
fn needs(base: &str, stats: &Stats) -> Markup {
    let mut needs: Vec<Markup> = Vec::new();
    if is_unused(stats) {
        needs.push(html! { "Nothing was ever queued here. If this is not a new system, the command has a wrong " code { "--namespace" } " or " code { "--redis" } "." });
    }
    let alive = stats.workers.iter().any(|worker| worker.alive);
    let waits = stats.markers > 0 || stats.held.due > 0;
    if !alive && waits {
        needs.push(html! { "No worker process is running, and objects wait." });
    }
    if let Some(ms) = stats.oldest_waiting_ms.filter(|ms| *ms >= LONG_MS) {
        needs.push(html! { "The oldest marker that a worker could take has waited for " (shown::duration(ms)) ": the workers are too slow, or too few." });
    }
    if stats.held.until_released > 0 {
        let target = link(base, "/held", &[("why", "operator")]);
        needs.push(html! { a href=(target) { (count(stats.held.until_released, "object")) } " waiting for an operator." });
    }
    if stats.held.overdue_ms >= LONG_MS {
        needs.push(html! { "The first due object has been due for " (shown::duration(stats.held.overdue_ms)) "." });
    }
    let worker = |name: &str| html! { a href=(link(base, "/worker", &[("name", name)])) { (text(name, 64)) } };
    let status = || {
        stats
            .workers
            .iter()
            .filter_map(|worker| Some((worker, worker.status.as_ref()?)))
    };
    for (found, status) in status()
        .filter(|(_, status)| status.sink_down_ms.is_some())
        .take(NEEDS)
    {
        let down = shown::duration(status.sink_down_ms.unwrap_or(0));
        needs.push(html! { "The sink of " (worker(&found.name)) " has been unavailable for " (down) ": " (text(&status.sink_error, 200)) });
    }
    let longest = status().filter_map(|(found, status)| Some((found, status.longest.as_ref()?)));
    let mut longest: Vec<_> = longest
        .filter(|(_, longest)| longest.since_ms >= LONG_MS)
        .collect();
    longest.sort_by_key(|(_, longest)| std::cmp::Reverse(longest.since_ms));
    for (found, longest) in longest.into_iter().take(NEEDS) {
        let escaped = seriatim::escape::name(&longest.object).into_owned();
        needs.push(html! {
            "Event " (longest.id) " of " (object(base, &escaped)) " has been in delivery for "
            (shown::duration(longest.since_ms)) " by " (worker(&found.name)) "."
        });
    }
    // The processes that are gone for longest come first. An unknown time is 0.
    let mut gone: Vec<_> = stats
        .workers
        .iter()
        .filter(|worker| !worker.alive && worker.events_in_flight > 0)
        .collect();
    gone.sort_by_key(|worker| worker.last_seen_ms);
    for dead in gone.into_iter().take(NEEDS) {
        needs.push(html! {
            "The process of " (worker(&dead.name)) " is gone, and " (number(dead.events_in_flight)) " of its events wait for a takeover."
            @if dead.last_seen_ms > 0 { " It was last seen " (shown::duration(stats.now_ms.saturating_sub(dead.last_seen_ms))) " ago." }
        });
    }
    for projection in stats
        .projections
        .iter()
        .filter(|projection| !projection.running || projection.missed > 0)
        .take(NEEDS)
    {
        needs.push(html! {
            "The projection " (text(&projection.name, 64))
            @if projection.running { " has missed " (number(projection.missed)) " rows." } @else { " is not running, and is " (number(projection.lag)) " rows behind." }
        });
    }
    for key in stats.unreadable.iter().take(NEEDS) {
        needs.push(html! { "The key " code { (text(key, 80)) } " has a wrong type. " a href=(link(base, "/check", &[])) { "Check" } " shows more." });
    }
    html! {
        @if needs.is_empty() { p.good { "Nothing." } } @else { ul.needs { @for need in needs { li { (need) } } } }
    }
}

/// Returns whether Redis has no trace of this namespace.
fn is_unused(stats: &Stats) -> bool {
    stats.last_id == 0
        && stats.workers.is_empty()
        && stats.markers + stats.held.total + stats.dead_letters + stats.schedules.total == 0
        && stats.unreadable.is_empty()
}

fn charts(samples: &[Option<Sample>]) -> Markup {
    let series = |get: fn(&Sample) -> Option<f64>| -> Vec<Option<f64>> {
        samples
            .iter()
            .map(|sample| sample.as_ref().and_then(get))
            .collect()
    };
    let whole = |value: f64| number(value.round() as u64);
    let seconds = |value: f64| waiting((value * 1000.0).round() as u64);
    type Line<'a> = (&'a str, Vec<Option<f64>>, fn(f64) -> String);
    let charts: [Line<'_>; 6] = [
        (
            "Events taken per second",
            series(|sample| sample.rate),
            whole,
        ),
        ("Oldest waiting", series(|sample| sample.oldest), seconds),
        (
            "Markers waiting",
            series(|sample| Some(sample.waiting)),
            whole,
        ),
        (
            "Events in flight",
            series(|sample| Some(sample.in_flight)),
            whole,
        ),
        ("Objects held", series(|sample| Some(sample.held)), whole),
        ("Dead letters", series(|sample| Some(sample.dead)), whole),
    ];
    html! { @for (title, values, text) in &charts { (Chart { title, values, text: *text }.figure()) } }
}

fn queues(base: &str, snapshot: &Snapshot) -> Markup {
    let Some(queues) = &snapshot.queues else {
        return html! { p { "Not read yet." } };
    };
    let longest = || queues.objects.iter().filter(|row| row.queued > 0);
    if longest().next().is_none() {
        return html! { p { "No object in hand has further events." } };
    }
    let rows = html! {
        @for row in longest() {
            tr {
                td data-label="Object" { (object(base, row.object_escaped.as_deref().unwrap_or(&row.object))) }
                td.number data-label="Queued" { (number(row.queued)) }
                td data-label="Worker" { (text(&row.worker, 40)) }
            }
        }
    };
    html! {
        (table("Longest queues under work", &["Object", "Queued", "Worker"], &rows))
        @if queues.more_slots { p { "Only " (number(queues.slots_read)) " slots were looked at; there are more." } }
    }
}

fn prefixes(base: &str, snapshot: &Snapshot) -> Markup {
    let Some((depth, age)) = &snapshot.depth else {
        return html! { p { "The count is under way. It takes at most 1 % of Redis' time." } };
    };
    let rows = html! {
        @for row in depth.by_prefix.iter().take(PREFIXES) {
            tr {
                td data-label="Prefix" { @if row.prefix.is_empty() { "(others)" } @else { (name(&seriatim::escape::name(&row.prefix))) } }
                td.number data-label="Objects" { (number(row.objects)) }
                td.number data-label="Events" { (number(row.events)) }
            }
        }
    };
    html! {
        p {
            (number(depth.events_queued)) " events of " (number(depth.objects_with_events)) " objects, counted "
            (shown::duration((age.as_secs() * 1000).max(1000))) " ago."
        }
        @if !depth.by_prefix.is_empty() { (table("Queued events by prefix", &["Prefix", "Objects", "Events"], &rows)) }
        @if let Some(longest) = depth.top.first() {
            p { "The longest queue: " (object(base, longest.object_escaped.as_deref().unwrap_or(&longest.object))) " with " (number(longest.events)) " events." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_and_chart_agree_about_the_oldest() {
        for (ms, text) in [(0, "none"), (850, "850 ms")] {
            let mut stats = Stats::default();
            stats.oldest_waiting_ms = Some(ms);
            let samples = [Some(Sample {
                oldest: Some(ms as f64 / 1000.0),
                ..Sample::default()
            })];
            assert!(
                figures("", &stats, &samples)
                    .into_string()
                    .contains(&format!("<b>{text}</b><span>oldest waiting"))
            );
            assert!(
                charts(&samples)
                    .into_string()
                    .contains(&format!("Oldest waiting <b>{text}</b>"))
            );
        }
    }

    #[test]
    fn an_unused_namespace_needs_somebody() {
        let mut stats = Stats::default();
        assert!(needs("", &stats).into_string().contains("--namespace"));
        stats.last_id = 1;
        assert_eq!(
            needs("", &stats).into_string(),
            "<p class=\"good\">Nothing.</p>"
        );
    }

    #[test]
    fn a_process_that_is_gone_has_the_time_since_it_was_seen() {
        let gone = |name: &str, last_seen_ms| {
            let mut worker = seriatim::control::stats::NameStats::default();
            (worker.name, worker.events_in_flight, worker.last_seen_ms) =
                (name.to_owned(), 3, last_seen_ms);
            worker
        };
        let mut stats = Stats::default();
        (stats.last_id, stats.now_ms, stats.workers) = (
            1,
            200_000,
            vec![gone("late", 190_000), gone("early", 80_000)],
        );
        let found = needs("", &stats).into_string();
        let (early, late) = (
            found.find("It was last seen 2 min ago"),
            found.find("It was last seen 10.0 s ago"),
        );
        assert!(early.is_some() && early < late, "{found}");
    }
}
