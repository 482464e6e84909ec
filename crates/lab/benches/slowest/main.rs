//! Measures the slowest call of each script: the time during which Redis does nothing else.
//!
//!     cargo bench --bench slowest [-- [--wide] [--default] [FILTER]]
//!
//! Each case builds a worst state in a private Redis, and calls the script as the program does. The
//! time of the call is read from the server's SLOWLOG. Before the call, Redis gets memory at hand, because
//! the time for new pages belongs to the machine. The exit code is 1 if a time is above its
//! bound: 10 ms with the default settings of a worker, 25 ms with the largest settings. `--wide`
//! makes the bounds five times as large, for machines that others use at the same time, as in CI.
//! With `--default` the largest settings are not measured. A case without settings has one time.

#[path = "../../../../tests/support/mod.rs"]
mod support;

mod advance;
mod groups;
mod leases;
mod operator;
mod rules;
mod schedules;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use world::{Case, Settings, World};

/// The bounds in ms, and the factor that `--wide` applies to them.
const BOUND_DEFAULT_MS: f64 = 10.0;
const BOUND_LARGEST_MS: f64 = 25.0;
const WIDE: f64 = 5.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wide = if args.iter().any(|arg| arg == "--wide") {
        WIDE
    } else {
        1.0
    };
    let filter = args.iter().find(|arg| !arg.starts_with("--"));
    let only_default = args.iter().any(|arg| arg == "--default");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cases = [
        advance::cases(),
        groups::cases(),
        rules::cases(),
        leases::cases(),
        schedules::cases(),
        operator::cases(),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    println!("| script | worst state | default settings, ms | largest settings, ms |");
    println!("|---|---|---|---|");
    let mut too_slow = false;
    for case in cases {
        if filter.is_some_and(|filter| {
            !format!("{} {}", case.script, case.state).contains(filter.as_str())
        }) {
            continue;
        }
        // With `--wide`, the first time within the bound is enough: a wide bound needs no exact
        // figure.
        let bound_ms = |settings: &Settings| {
            if settings.is_largest {
                BOUND_LARGEST_MS
            } else {
                BOUND_DEFAULT_MS
            }
        };
        let enough = |settings: &Settings| {
            if wide > 1.0 {
                Duration::from_secs_f64(bound_ms(settings) * wide / 1e3)
            } else {
                Duration::ZERO
            }
        };
        let measured = |settings: &Settings| {
            runtime
                .block_on(World::least(&case, settings, enough(settings)))
                .as_secs_f64()
                * 1e3
        };
        let settings = Settings::default();
        let default = measured(&settings);
        // Without settings, the state would be the same again.
        let largest = match (only_default, settings.is_read.get()) {
            (true, _) => 0.0,
            (false, false) => default,
            (false, true) => measured(&Settings {
                is_largest: true,
                ..Settings::default()
            }),
        };
        let slow = default > (BOUND_DEFAULT_MS + case.more_ms) * wide
            || largest > (BOUND_LARGEST_MS + case.more_ms) * wide;
        let mark = if slow { " **above**" } else { "" };
        println!(
            "| `{}` | {} | {default:.1} | {largest:.1}{mark} |",
            case.script, case.state
        );
        too_slow |= slow;
    }
    if too_slow {
        eprintln!(
            "a call is above its bound: {BOUND_DEFAULT_MS} ms with default settings, {BOUND_LARGEST_MS} ms with the largest, times {wide}"
        );
    }
    ExitCode::from(u8::from(too_slow))
}
