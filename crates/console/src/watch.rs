//! The option `--watch`: shows the output of a command again and again.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use humantime::{format_duration, format_rfc3339_seconds};
use seriatim::control::Control;
use seriatim::escape;
use tokio::time::{Instant, sleep_until};

use crate::exit::Exit;
use crate::global::Global;
use crate::{shown, units};

/// The option of commands that show a state, which changes.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// Show the output again and again until Ctrl-C: every second, or at the interval TIME, 100ms
    /// to 1h
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = units::time(text)?;
    let range = Duration::from_millis(100)..=Duration::from_secs(60 * 60);
    if range.contains(&every) {
        Ok(every)
    } else {
        Err("it must be 100ms to 1h".to_owned())
    }
}

impl Watch {
    /// Returns the handle with which the command looks at Redis. With `--watch`, the handle
    /// connects again after an outage.
    pub async fn control(&self, global: &Global) -> anyhow::Result<Control> {
        match self.watch {
            None => global.control().await,
            Some(_) => {
                let control = Control::connect(global.server())
                    .await
                    .map_err(shown::failure)?;
                Ok(control.with_keys(global.keys()?))
            }
        }
    }

    /// Prints the text that `look` returns: once, or with `--watch` again and again. With
    /// `--watch`, a terminal is cleared before each text.
    ///
    /// If the first look fails, its error is returned. After a first success, an error of a later
    /// look is shown in place of the text, and the looks go on.
    pub async fn print(
        &self,
        mut look: impl AsyncFnMut() -> anyhow::Result<String>,
    ) -> anyhow::Result<Exit> {
        let mut text = look().await?;
        let Some(every) = self.watch else {
            shown::print(&text)?;
            return Ok(Exit::Done);
        };
        let is_terminal = stdout().is_terminal();
        let mut at = Instant::now();
        loop {
            let page = match is_terminal {
                // The escape sequences clear the screen and move to its top.
                true => format!("\x1b[2J\x1b[H{}{}", head(every), escape::lines(&text)),
                false => escape::lines(&text).to_string(),
            };
            if !shown::print_bytes(page.as_bytes())? {
                return Ok(Exit::Done);
            }
            // If printing and looking took longer than the interval, the next look begins at once.
            at = (at + every).max(Instant::now());
            sleep_until(at).await;
            text = match look().await {
                Ok(text) => text,
                Err(error) if is_terminal => format!("{error}\n"),
                Err(error) => {
                    shown::tell(shown::Level::Error, &error.to_string());
                    String::new()
                }
            };
        }
    }
}

fn head(every: Duration) -> String {
    format!(
        "{}, each {}; Ctrl-C ends\n\n",
        format_rfc3339_seconds(std::time::SystemTime::now()),
        format_duration(every)
    )
}
