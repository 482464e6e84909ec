//! The final output of the bench: a table that is 80 columns wide, or one JSON object with every
//! sample.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::figures::{Figure, Samples};
use super::raw::Raw;
use super::redis_benchmark::Lpush;
use super::seriatim::Seriatim;
use super::streams::Streams;
use super::system::System as _;
use crate::statistics::{median, ratio, spread};

/// The systems, in the order of the report.
const SYSTEMS: [&str; 3] = [Seriatim::NAME, Streams::NAME, Raw::NAME];

/// The results, the settings and the measured Redis.
#[derive(Serialize)]
pub(super) struct Report<'a, S> {
    pub(super) settings: &'a S,
    pub(super) redis: Redis,
    pub(super) objects_used: u64,
    #[serde(serialize_with = "figures")]
    pub(super) figures: &'a Samples,
    #[serde(serialize_with = "redis_benchmark")]
    pub(super) redis_benchmark: (&'a Lpush, &'a Samples),
}

#[derive(Serialize)]
pub(super) struct Redis {
    pub(super) version: String,
    pub(super) private: bool,
}

#[derive(Serialize)]
pub(super) struct One<'a> {
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    repetitions: &'a [f64],
}

impl<'a> One<'a> {
    pub(super) fn of(repetitions: &'a [f64]) -> Self {
        let spread = spread(repetitions);
        Self {
            median: median(repetitions),
            min: spread.map(|it| it.0),
            max: spread.map(|it| it.1),
            repetitions,
        }
    }
}

#[derive(Serialize)]
struct OfFigure<'a> {
    unit: &'static str,
    #[serde(flatten)]
    systems: BTreeMap<&'static str, One<'a>>,
    seriatim_to_streams: Option<f64>,
    seriatim_to_raw: Option<f64>,
}

fn figures<S: serde::Serializer>(samples: &&Samples, serializer: S) -> Result<S::Ok, S::Error> {
    let of = |figure: Figure| {
        let systems = SYSTEMS
            .iter()
            .filter(|system| !samples.of(figure, system).is_empty());
        let ours = samples.of(figure, Seriatim::NAME);
        OfFigure {
            unit: figure.unit(),
            systems: systems
                .map(|system| (*system, One::of(samples.of(figure, system))))
                .collect(),
            seriatim_to_streams: ratio(ours, samples.of(figure, Streams::NAME)),
            seriatim_to_raw: ratio(ours, samples.of(figure, Raw::NAME)),
        }
    };
    serializer.collect_map(
        samples
            .figures()
            .into_iter()
            .map(|figure| (figure.key(), of(figure))),
    )
}

fn redis_benchmark<S: serde::Serializer>(
    (lpush, samples): &(&Lpush, &Samples),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Row<'a> {
        Run {
            unit: &'static str,
            #[serde(flatten)]
            lpush: One<'a>,
            streams_enqueue_bulk_to_lpush: Option<f64>,
            streams_drain_bulk_to_lpush: Option<f64>,
        },
        Not {
            why: &'static str,
        },
    }
    let value = match &lpush.per_second {
        Ok(rates) => Row::Run {
            unit: "requests/s",
            lpush: One::of(rates),
            streams_enqueue_bulk_to_lpush: ratio(
                samples.of(Figure::EnqueueBulk, Streams::NAME),
                rates,
            ),
            streams_drain_bulk_to_lpush: ratio(samples.of(Figure::DrainBulk, Streams::NAME), rates),
        },
        Err(why) => Row::Not { why },
    };
    value.serialize(serializer)
}

impl<S: Serialize> Report<'_, S> {
    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    pub(super) fn table(&self) -> anyhow::Result<String> {
        let samples = self.figures;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["", "", "", "median", "min..max", "/streams", "/raw"]);
        for figure in samples.figures() {
            let ours = samples.of(figure, Seriatim::NAME);
            let mut first = true;
            for system in SYSTEMS {
                let values = samples.of(figure, system);
                let (Some(middle), Some((min, max))) = (median(values), spread(values)) else {
                    continue;
                };
                let to = |other| {
                    if system == Seriatim::NAME {
                        ratio(ours, samples.of(figure, other))
                    } else {
                        None
                    }
                };
                let times =
                    |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
                let (title, unit) = if first {
                    (figure.title(), figure.unit())
                } else {
                    ("", "")
                };
                first = false;
                table.add_row([
                    title.to_owned(),
                    unit.to_owned(),
                    system.to_owned(),
                    short(middle),
                    format!("{}..{}", short(min), short(max)),
                    times(to(Streams::NAME)),
                    times(to(Raw::NAME)),
                ]);
            }
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 1));
            if at >= 3 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines: Vec<String> = table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let mut out = lines.join("\n");
        writeln!(
            out,
            "\n\n/streams and /raw: seriatim divided by them, the median over the repetitions"
        )?;
        self.lpush(&mut out)?;
        Ok(out)
    }

    fn lpush(&self, out: &mut String) -> anyhow::Result<()> {
        let lpush = self.redis_benchmark.0;
        let rates = match &lpush.per_second {
            Ok(rates) => rates,
            Err(why) => return Ok(writeln!(out, "redis-benchmark: {why}")?),
        };
        let Some(middle) = median(rates) else {
            return Ok(());
        };
        writeln!(
            out,
            "redis-benchmark -t lpush -P 64 -d {}: {} requests/s",
            lpush.payload_bytes,
            short(middle)
        )?;
        let of = |figure| ratio(self.figures.of(figure, Streams::NAME), rates);
        for (what, ratio) in [
            ("bulk enqueue", of(Figure::EnqueueBulk)),
            ("drain after bulk", of(Figure::DrainBulk)),
        ] {
            if let Some(ratio) = ratio {
                writeln!(out, "  {what} of streams: {ratio:.2} of that")?;
            }
        }
        Ok(())
    }
}

/// Formats a number with three significant digits: `1.23M`, `448k`, `12.3k`, `512`, `1.91`,
/// `0.140`.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        abs if abs >= 999_500.0 => (value / 1e6, "M"),
        abs if abs >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        abs if abs >= 99.95 => 0,
        abs if abs >= 9.995 => 1,
        abs if abs >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn three_digits_count() {
        let shown = [
            1_234_567.0,
            999_600.0,
            448_321.0,
            12_345.0,
            999.6,
            512.3,
            99.96,
            12.34,
            1.914,
            0.1404,
            0.0,
        ]
        .map(short);
        assert_eq!(
            shown,
            [
                "1.23M", "1.00M", "448k", "12.3k", "1.00k", "512", "100", "12.3", "1.91", "0.140",
                "0.000"
            ]
        );
    }
}
