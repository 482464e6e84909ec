//! Describes the parts and the use of a share.

use seriatim::control::shares::{SelectorShare, ShareFigures};

use crate::shown;

/// Describes the parts of a share on one line.
pub fn parts(share: &SelectorShare) -> String {
    let burst = share
        .burst
        .map_or_else(String::new, |burst| format!(", burst {burst}"));
    let parts = [
        share.weight.map(|weight| format!("weight {weight}")),
        share
            .priority
            .map(|priority| format!("priority {}", priority.word())),
        share
            .in_flight
            .map(|objects| format!("at most {objects} in hand")),
        share.rate.map(|rate| format!("at most {rate}/s{burst}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Describes the names that wait for a share.
pub fn waiting(figures: &ShareFigures) -> String {
    let names = figures
        .waiting
        .map_or_else(|| "?".to_owned(), |names| names.to_string());
    let oldest = figures.oldest_ms.map_or_else(String::new, |ms| {
        format!(", the oldest for {}", shown::duration(ms))
    });
    let plural = if figures.waiting == Some(1) { "" } else { "s" };
    format!("{names} name{plural}{oldest}")
}

/// Describes how far a share is used.
pub fn usage(figures: &ShareFigures) -> String {
    let count =
        |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let in_flight = figures
        .share
        .in_flight
        .map_or_else(String::new, |most| format!(" of {most}"));
    let events = figures
        .taken_per_second
        .map_or_else(|| "?".to_owned(), |events| format!("{events:.1}"));
    let rate = figures
        .share
        .rate
        .map_or_else(String::new, |most| format!(" of {most}"));
    format!(
        "{}{in_flight} in hand, {events}{rate} events/s, {} events taken",
        count(figures.in_hand),
        count(figures.taken)
    )
}
