//! A limit of objects in hand, kept by eight processes that are killed, paused, displaced and
//! restarted. The receiver judges by its own times. `SERIATIM_IN_HAND_SECONDS` sets the length of the
//! run, and `SERIATIM_IN_HAND_SEED` repeats its choices.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::control::By;
use seriatim::control::shares::Share;
use tokio::time::Instant;

use crate::receiver::{Receiver, Reply};
use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::{Redis, control, until};

const BY: By<'static> = By {
    who: "ada",
    why: "",
};
const PROCESSES: u64 = 8;
const IN_HAND_MAX: usize = 5;
const TAKES: Duration = Duration::from_millis(40);
const LEASE: Duration = Duration::from_millis(900);
/// The time in which a process notices that it was fenced. Until then it may finish a request.
const NOTICED: Duration = Duration::from_millis(1500);
/// The least mean number of objects in hand while objects wait.
const USED_MIN: f64 = 4.5;

/// Lua that queues objects with one event each, and their markers.
const FILL: &str = r"
for n = tonumber(ARGV[2]), tonumber(ARGV[3]) do
    redis.call('LPUSH', ARGV[1] .. 'a:' .. n .. ':events', n)
    redis.call('LPUSH', ARGV[1] .. 'objects.with.events', 'a:' .. n)
end";

/// A worker process. `paused`: the time since when it is paused.
struct Worker {
    process: Process,
    name: u64,
    paused: Option<Instant>,
}

struct Scene<'a> {
    redis: &'a Redis,
    receiver: &'a Receiver,
    /// The number of processes started so far. Each sends to a target of its own.
    starts: u64,
    /// By target: the times in which its process may be fenced, but may not have noticed it.
    fenced: HashMap<String, Vec<(Instant, Instant)>>,
}

impl Scene<'_> {
    fn start(&mut self, name: u64) -> (Worker, String) {
        self.starts += 1;
        let target = format!("/{}", self.starts);
        let lease = format!("{}ms", LEASE.as_millis());
        let options = [
            "--lease",
            &lease,
            "--concurrency",
            "3",
            "--grace",
            "1s",
            "--takeover",
            "--retry",
            "fixed:100ms",
        ];
        let process = Process::start(
            self.redis,
            &format!("w{name}"),
            &self.receiver.url(&target),
            &options,
        );
        (
            Worker {
                process,
                name,
                paused: None,
            },
            target,
        )
    }
}

/// A generator of choices (xorshift) that a seed repeats.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")),
    )
}

async fn waiting(console: &Console) -> u64 {
    console.number(&console.keys.event_groups_waiting()).await
}

/// Samples the objects in hand while objects wait. Returns the mean, and the highest number.
async fn sample(console: &Console, end: Instant) -> (f64, u64) {
    let (mut sum, mut samples, mut most) = (0, 0u64, 0);
    while Instant::now() < end {
        let in_hand: u64 = console
            .run(&["ZCARD", &console.keys.objects_in_hand()])
            .await;
        if waiting(console).await > 0 {
            sum += in_hand;
            samples += 1;
        }
        most = most.max(in_hand);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (sum as f64 / samples.max(1) as f64, most)
}

/// Disturbs the processes until `end`.
async fn disturb(scene: &mut Scene<'_>, choices: &mut Choices, end: Instant) -> Vec<Worker> {
    let mut workers: Vec<(Worker, String)> = (0..PROCESSES).map(|name| scene.start(name)).collect();
    let mut down: Vec<(u64, Instant)> = Vec::new();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100 + choices.below(300))).await;
        let now = Instant::now();
        for (name, _) in down
            .extract_if(.., |(_, at)| *at <= now)
            .collect::<Vec<_>>()
        {
            workers.push(scene.start(name));
        }
        for (worker, target) in &mut workers {
            if let Some(since) = worker.paused.filter(|since| now - *since > LEASE * 2) {
                worker.process.go_on();
                worker.paused = None;
                scene
                    .fenced
                    .entry(target.clone())
                    .or_default()
                    .push((since, Instant::now() + NOTICED));
            }
        }
        if workers.is_empty() {
            continue;
        }
        let at = choices.below(workers.len() as u64) as usize;
        let later = now + Duration::from_millis([0, 1500][choices.below(2) as usize]);
        match choices.below(5) {
            0 | 1 => {
                let (mut worker, _) = workers.swap_remove(at);
                worker.process.kill();
                down.push((worker.name, later));
            }
            2 if workers[at].0.paused.is_none() => {
                workers[at].0.process.pause();
                workers[at].0.paused = Some(now);
            }
            // Another process takes over the name.
            3 => {
                let (worker, target) = workers.swap_remove(at);
                let name = worker.name;
                scene
                    .fenced
                    .entry(target)
                    .or_default()
                    .push((worker.paused.unwrap_or(now), now + NOTICED * 2));
                workers.push(scene.start(name));
                if worker.paused.is_some() {
                    worker.process.go_on();
                }
                // It notices that it was fenced, and ends. At the latest it is killed here.
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            4 if workers[at].0.paused.is_none() => {
                let (mut worker, _) = workers.swap_remove(at);
                worker.process.terminate();
                worker.process.ended().await;
                down.push((worker.name, later));
            }
            _ => {}
        }
    }
    for (worker, target) in &workers {
        if let Some(since) = worker.paused {
            worker.process.go_on();
            scene
                .fenced
                .entry(target.clone())
                .or_default()
                .push((since, Instant::now() + NOTICED));
        }
    }
    let running: Vec<u64> = workers.iter().map(|(worker, _)| worker.name).collect();
    let missing = (0..PROCESSES)
        .filter(|name| !running.contains(name))
        .collect::<Vec<_>>();
    missing
        .into_iter()
        .for_each(|name| workers.push(scene.start(name)));
    workers.into_iter().map(|(worker, _)| worker).collect()
}

/// Tests that never more than five objects are in hand, that all five are used, and that nothing is
/// lost.
#[tokio::test(flavor = "multi_thread")]
async fn processes_that_die_keep_the_limit_of_objects_in_hand() {
    let seconds = number("SERIATIM_IN_HAND_SECONDS").unwrap_or(20);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_nanos() as u64;
    let seed = number("SERIATIM_IN_HAND_SEED").unwrap_or(nanos) | 1;
    println!("SERIATIM_IN_HAND_SEED={seed}, {seconds} s");
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    let conn = redis.connect().await;
    let share = Share::new().in_flight(IN_HAND_MAX as u64);
    control(&conn, redis.keys())
        .set_share(BY, &"a:*".parse().expect("a selector"), share)
        .await
        .expect("set");
    // Five objects at a time, each for at least the time of its delivery.
    let objects = IN_HAND_MAX as u128 * u128::from(seconds) * 1000 / TAKES.as_millis() + 100;
    let (first, last) = ("0".to_owned(), (objects - 1).to_string());
    let _: () = console
        .run(&["EVAL", FILL, "0", redis.keys().prefix(), &first, &last])
        .await;

    let receiver = Receiver::with(|_| Reply::Late(TAKES)).await;
    let mut scene = Scene {
        redis: &redis,
        receiver: &receiver,
        starts: 0,
        fenced: HashMap::new(),
    };
    let mut choices = Choices(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let ((mean, most), workers) = tokio::join!(
        sample(&console, end),
        disturb(&mut scene, &mut choices, end)
    );
    let (fenced, starts) = (std::mem::take(&mut scene.fenced), scene.starts);

    // The receiver's own times. A process that may be fenced does not count.
    let mut in_hand: Vec<(Instant, String, String)> = Vec::new();
    let (mut worst, mut requests) = (0, 0);
    for got in receiver.got() {
        let windows = fenced.get(&got.target);
        let is_fenced = windows.is_some_and(|windows| {
            windows
                .iter()
                .any(|(from, until)| (*from..=*until).contains(&got.at))
        });
        if is_fenced {
            continue;
        }
        requests += 1;
        in_hand.retain(|(end, ..)| *end > got.at);
        for (_, _, object, _) in got.events() {
            in_hand.retain(|(_, other, _)| *other != object);
            in_hand.push((got.at + TAKES, object, got.target.clone()));
        }
        worst = worst.max(in_hand.len());
        assert!(
            in_hand.len() <= IN_HAND_MAX,
            "{} objects are in hand: {in_hand:?}; fenced: {fenced:?}",
            in_hand.len()
        );
    }
    println!(
        "{starts} processes, {requests} requests: at most {worst} objects in the receiver, {most} in Redis, mean {mean:.2}"
    );
    assert!(
        most as usize <= IN_HAND_MAX && mean >= USED_MIN,
        "{most}, {mean}"
    );
    console.check().await;

    // Without the limit the rest comes soon.
    control(&conn, redis.keys())
        .remove_share(BY, &"a:*".parse().expect("a selector"))
        .await
        .expect("removed");
    receiver.behave(|_| Reply::Status(204));
    let events = objects as usize;
    until("all events are accepted", PATIENCE * 4, async || {
        (receiver.accepted() >= events).then_some(())
    })
    .await;
    assert_eq!(receiver.accepted(), events);
    for mut worker in workers {
        worker.process.terminate();
        worker.process.ended().await;
    }
    console.until_at_rest().await;
}
