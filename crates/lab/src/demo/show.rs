//! Shows the progress to a person: a line for each step of the demo, and two bars.

use std::fmt::Display;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use seriatim_console::shown;

/// Interval of progress lines if there is no terminal for bars.
const LINE_EVERY: Duration = Duration::from_secs(2);

pub(super) struct Show {
    bars: MultiProgress,
    emitted: ProgressBar,
    delivered: ProgressBar,
    terminal: bool,
    last_line: Instant,
}

impl Show {
    pub(super) fn new() -> Self {
        let bars = MultiProgress::new();
        let bar = |name: &'static str| {
            let style = ProgressStyle::with_template(
                "{msg:>10} {wide_bar:.cyan/blue} {human_pos:>9} / {human_len}",
            );
            bars.add(ProgressBar::no_length())
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_message(name)
        };
        let (emitted, delivered) = (bar("emitted"), bar("delivered"));
        Self {
            bars,
            emitted,
            delivered,
            terminal: std::io::stderr().is_terminal(),
            last_line: Instant::now(),
        }
    }

    /// Prints one line.
    pub(super) fn say(&self, what: &str) {
        // Without a terminal the bars are hidden, and would discard a text that is printed through
        // them.
        if self.terminal {
            let _ = self.bars.println(what);
        } else {
            shown::say(what);
        }
    }

    pub(super) fn progress(&mut self, emitted: u64, delivered: u64, events: u64) {
        for (bar, position) in [(&self.emitted, emitted), (&self.delivered, delivered)] {
            bar.set_length(events);
            bar.set_position(position);
        }
        if !self.terminal && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            shown::say(&format!(
                "  emitted {}, delivered {} of {}",
                number(emitted),
                number(delivered),
                number(events)
            ));
        }
    }

    /// Removes the bars from the screen.
    pub(super) fn end(&self) {
        let _ = self.bars.clear();
    }
}

/// Formats a number: `25,000`.
pub(super) fn number(n: u64) -> impl Display {
    indicatif::HumanCount(n)
}

/// Formats a count: `1 event`, `25,000 events`.
pub(super) fn count(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", number(n), if n == 1 { "" } else { "s" })
}

/// Formats seconds: `2.1 s`.
pub(super) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{seconds:.1} s")
    }
}
