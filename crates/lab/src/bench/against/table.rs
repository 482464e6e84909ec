//! The output: a table in Markdown, or one JSON object with every sample.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table as Grid, presets};
use serde::Serialize;

use super::rows::{RUST, Row};
use crate::bench::figures::{Figure, Samples};
use crate::bench::report::{One, short};
use crate::statistics::median;

/// The figures of a row in JSON.
const FIGURES: [Figure; 9] = [
    Figure::EnqueueBulk,
    Figure::EnqueueBulkCpu,
    Figure::DrainBulk,
    Figure::DrainBulkCpu,
    Figure::LatencyP50,
    Figure::LatencyP99,
    Figure::BytesQueued,
    Figure::OutOfOrder,
    Figure::Handled,
];

/// The results of a run.
pub(super) struct Table<'a, S> {
    pub(super) settings: &'a S,
    pub(super) versions: BTreeMap<&'static str, String>,
    pub(super) events: usize,
    pub(super) slow_events: usize,
    pub(super) rows: &'a [&'a Row],
    pub(super) samples: &'a Samples,
}

#[derive(Serialize)]
struct OfRow<'a> {
    events: usize,
    figures: BTreeMap<&'static str, OfFigure<'a>>,
}

#[derive(Serialize)]
struct OfFigure<'a> {
    unit: &'static str,
    #[serde(flatten)]
    one: One<'a>,
}

impl<S: Serialize> Table<'_, S> {
    /// Returns the name of each row, and its number of events.
    fn names(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let rows = self
            .rows
            .iter()
            .map(|row| (row.name, row.events(self.events)));
        std::iter::once((RUST, self.events)).chain(rows)
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        #[derive(Serialize)]
        struct All<'a, S> {
            settings: &'a S,
            versions: &'a BTreeMap<&'static str, String>,
            systems: BTreeMap<&'static str, OfRow<'a>>,
        }
        let of = |name, events| OfRow {
            events,
            figures: FIGURES
                .into_iter()
                .map(|figure| {
                    let one = One::of(self.samples.of(figure, name));
                    (
                        figure.key(),
                        OfFigure {
                            unit: figure.unit(),
                            one,
                        },
                    )
                })
                .collect(),
        };
        let all = All {
            settings: self.settings,
            versions: &self.versions,
            systems: self
                .names()
                .map(|(name, events)| (name, of(name, events)))
                .collect(),
        };
        Ok(serde_json::to_string(&all)? + "\n")
    }

    pub(super) fn markdown(&self) -> anyhow::Result<String> {
        let mut grid = Grid::new();
        grid.load_preset(presets::ASCII_MARKDOWN);
        grid.set_header([
            "",
            "enqueue, events/s",
            "drain, events/s",
            "p50, ms",
            "p99, ms",
            "Redis CPU, µs",
            "bytes",
            "out of order",
        ]);
        for (name, _) in self.names() {
            let of = |figure| median(self.samples.of(figure, name)).unwrap_or(f64::NAN);
            let cpu = of(Figure::EnqueueBulkCpu) + of(Figure::DrainBulkCpu);
            grid.add_row([
                name.to_owned(),
                short(of(Figure::EnqueueBulk)),
                short(of(Figure::DrainBulk)),
                short(of(Figure::LatencyP50)),
                short(of(Figure::LatencyP99)),
                short(cpu),
                short(of(Figure::BytesQueued)),
                self.out_of_order(name),
            ]);
        }
        for column in grid.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut out = grid.to_string();
        let fewer: Vec<String> = self
            .names()
            .filter(|(_, events)| *events < self.events)
            .map(|(name, events)| format!("{name} {events}"))
            .collect();
        let fewer = match fewer.is_empty() {
            true => String::new(),
            false => format!(" ({})", fewer.join(", ")),
        };
        writeln!(
            out,
            "\n\nEvents queued and drained: {}{fewer}.",
            self.events
        )?;
        writeln!(
            out,
            "CPU (of enqueue and drain) and bytes are per event. Handlers note key and number; those of\n\
             {} further events take up to 2 ms. Out of order: the handler begins before that of the\n\
             preceding event of its key has ended, of all events and repetitions.",
            self.slow_events
        )?;
        let versions: Vec<String> = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        writeln!(out, "Versions: {}.", versions.join(", "))?;
        Ok(out)
    }

    /// Returns the number of events out of order, and if there are any, that of all handled events.
    fn out_of_order(&self, name: &'static str) -> String {
        let sum = |figure| self.samples.of(figure, name).iter().sum::<f64>();
        match sum(Figure::OutOfOrder) {
            0.0 => "0".to_owned(),
            wrong => format!("{wrong} of {}", sum(Figure::Handled)),
        }
    }
}
