//! Line charts as SVG, made by the server, so that they need no script.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::format::number;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 60.0;

/// One series: a value for each second, oldest first; `None` if nobody has looked in this second.
pub(in crate::dashboard) struct Chart<'a> {
    pub(in crate::dashboard) title: &'a str,
    pub(in crate::dashboard) values: &'a [Option<f64>],
    /// Formats a value for people.
    pub(in crate::dashboard) text: fn(f64) -> String,
}

impl Chart<'_> {
    /// Returns the chart, and the same figures as a table for people who cannot see the chart.
    pub(in crate::dashboard) fn figure(&self) -> Markup {
        let known: Vec<f64> = self.values.iter().flatten().copied().collect();
        let highest = known.iter().copied().fold(0.0, f64::max);
        let last = self.values.iter().rev().flatten().next().copied();
        let label = match last {
            None => format!("{}, last 5 minutes: no figures yet", self.title),
            Some(last) => {
                format!(
                    "{}, last 5 minutes: now {}, at most {}",
                    self.title,
                    (self.text)(last),
                    (self.text)(highest)
                )
            }
        };
        html! {
            figure.chart {
                figcaption { (self.title) " " b { @if let Some(last) = last { ((self.text)(last)) } @else { "–" } } }
                svg viewBox="0 0 300 60" preserveAspectRatio="none" role="img" aria-label=(label) {
                    path d=(PreEscaped(self.path(highest))) {}
                }
                details {
                    summary { "Figures" }
                    table {
                        caption { (self.title) }
                        thead { tr { th scope="col" { "Seconds ago" } th scope="col" { "Value" } } }
                        tbody {
                            @for (at, value) in self.values.iter().enumerate().rev().step_by(30) {
                                tr { td { (number((self.values.len() - 1 - at) as u64)) } td { @if let Some(value) = value { ((self.text)(*value)) } @else { "–" } } }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns the path of the line. A gap in the values is a gap in the line.
    fn path(&self, highest: f64) -> String {
        let mut path = String::new();
        let (step, top) = (
            WIDTH / (self.values.len().max(2) - 1) as f64,
            highest.max(f64::MIN_POSITIVE),
        );
        let mut is_drawing = false;
        for (at, value) in self.values.iter().enumerate() {
            let Some(value) = value else {
                is_drawing = false;
                continue;
            };
            let word = if is_drawing { 'L' } else { 'M' };
            let (x, y) = (
                at as f64 * step,
                HEIGHT - 1.0 - (value / top).clamp(0.0, 1.0) * (HEIGHT - 2.0),
            );
            let _ = write!(path, "{word}{x:.1} {y:.1}");
            is_drawing = true;
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_values_is_a_gap_in_the_line() {
        let values = [Some(0.0), Some(10.0), None, Some(5.0)];
        let chart = Chart {
            title: "Rate",
            values: &values,
            text: |value| format!("{value}/s"),
        };
        assert_eq!(chart.path(10.0), "M0.0 59.0L100.0 1.0M300.0 30.0");
        let html = chart.figure().into_string();
        assert!(html.contains("now 5/s, at most 10/s"), "{html}");
        let none = Chart {
            title: "Rate",
            values: &[],
            text: |value| format!("{value}"),
        };
        assert!(
            none.path(0.0).is_empty() && none.figure().into_string().contains("no figures yet")
        );
    }
}
