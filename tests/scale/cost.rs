//! The time that Redis takes, and whether it is within a bound although the host is slow.

use std::time::{Duration, Instant};

use crate::support::console::Console;

/// Returns the time that Redis has worked on commands of clients, in µs, and the longest of the
/// last commands.
pub(crate) async fn worked(console: &Console) -> (u64, u64) {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    // The time of EVALSHA already contains the time of the commands in its script.
    let commands = stats
        .lines()
        .filter(|line| !line.starts_with("cmdstat_config") && !line.starts_with("cmdstat_info"));
    let in_scripts = ["cmdstat_xinfo", "cmdstat_type:"];
    let commands =
        commands.filter(|line| !in_scripts.iter().any(|command| line.starts_with(command)));
    let us = commands
        .filter_map(|line| {
            line.split_once("usec=")?
                .1
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum();
    let slow: Vec<redis::Value> = console.run(&["SLOWLOG", "GET", "-1"]).await;
    let time = |entry: &redis::Value| match entry {
        redis::Value::Array(parts) => parts
            .get(2)
            .and_then(|us| redis::from_redis_value_ref::<u64>(us).ok()),
        _ => None,
    };
    (us, slow.iter().filter_map(time).max().unwrap_or(0))
}

/// Adds rows of a stream and keys, about 5 MB, with the prefix `ARGV[1]`.
const FILL: &str = "
    for n = 1, 2000 do redis.call('XADD', ARGV[1] .. 'rows', '*', 'id', n, 'event', string.rep('x', 200)) end
    for n = 1, 20000 do redis.call('SET', ARGV[1] .. n, n) end";

/// Reads rows and keys that lie far apart. So the speed of the memory counts, as in what is measured.
const WORK: &str = "
    local sum = #redis.call('XREVRANGE', ARGV[1] .. 'rows', '+', '-', 'COUNT', '300')
    for n = 1, 500 do sum = sum + #redis.call('GET', ARGV[1] .. n * 37 % 20000 + 1) end
    return tostring(sum)";

/// Returns how many times slower Redis is now than on a quiet machine, at least 1. Other processes, also
/// of other guests of the same host, can slow it down for minutes.
pub(crate) async fn slowness(console: &Console) -> f64 {
    slowness_after(console, Duration::ZERO, 21).await
}

/// Returns how many times slower than on a quiet machine Redis is now if it rests before each piece of
/// work. After a rest of a second, the same work took four times as long on a quiet machine. So work
/// that is done once per second is compared with work that is done as rarely.
pub(crate) async fn slowness_of_rare_work(console: &Console) -> f64 {
    slowness_after(console, Duration::from_secs(1), 5).await
}

async fn slowness_after(console: &Console, rest: Duration, times: usize) -> f64 {
    const PREFIX: &str = "{slowness}:";
    // The time of this work on a quiet machine, µs.
    const QUIET: f64 = 800.0;
    let _: Option<String> = console.run(&["EVAL", FILL, "0", PREFIX]).await;
    let mut works = Vec::new();
    for _ in 0..times {
        tokio::time::sleep(rest).await;
        let began = Instant::now();
        let _: Option<String> = console.run(&["EVAL", WORK, "0", PREFIX]).await;
        works.push(began.elapsed());
    }
    let remove = "
        for n = 1, 20000 do redis.call('DEL', ARGV[1] .. n) end
        redis.call('DEL', ARGV[1] .. 'rows')";
    let _: Option<String> = console.run(&["EVAL", remove, "0", PREFIX]).await;
    works.sort_unstable();
    let slowness = (works[works.len() / 2].as_secs_f64() * 1e6 / QUIET).max(1.0);
    println!("Redis is {slowness:.1} times slower than on a quiet machine");
    slowness
}

/// Returns whether a time is within its bound, which is that of a quiet machine. A longer time is compared
/// with the bound on this machine as slow as it is now.
pub(crate) async fn within(console: &Console, us: u64, bound_us: u64) -> bool {
    us <= bound_us || us as f64 <= bound_us as f64 * slowness(console).await
}

/// The least of several times, and whether one of them is within its bound. Each time is compared with
/// the speed of the host at once, because this speed changes within seconds.
#[derive(Debug)]
pub(crate) struct Least {
    pub(crate) us: u64,
    bound_us: u64,
    is_rare: bool,
    pub(crate) is_within: bool,
}

impl Least {
    pub(crate) fn within(bound_us: u64) -> Self {
        Self {
            us: u64::MAX,
            bound_us,
            is_rare: false,
            is_within: false,
        }
    }

    /// The bound of work that is done once per second.
    pub(crate) fn rarely_within(bound_us: u64) -> Self {
        Self {
            is_rare: true,
            ..Self::within(bound_us)
        }
    }

    pub(crate) async fn add(&mut self, console: &Console, us: u64) {
        self.us = self.us.min(us);
        if self.is_within || us <= self.bound_us {
            self.is_within = true;
            return;
        }
        let slowness = if self.is_rare {
            slowness_of_rare_work(console).await
        } else {
            slowness(console).await
        };
        self.is_within = us as f64 <= self.bound_us as f64 * slowness;
    }
}

/// Makes the server log all commands that take at least this long from now on, µs.
pub(crate) async fn log_commands(console: &Console, us: u64) {
    let slower = ("slowlog-log-slower-than", &*us.to_string());
    for (name, value) in [slower, ("slowlog-max-len", "100000")] {
        console.run::<()>(&["CONFIG", "SET", name, value]).await;
    }
    console.run::<()>(&["SLOWLOG", "RESET"]).await;
}
