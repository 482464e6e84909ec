//! A consumer. It reads envelopes, one per line, from standard input. It applies the events of each
//! object in order, and each event once.
//!
//!     seriatim worker --name w --sink stdout | cargo run --example consume
//!     cat a.ndjson b.ndjson | cargo run --example consume -- --first-seen
//!
//! A line may come twice. If the lines are from several files, they may come in any order. An early
//! event is kept until its predecessor is applied. To apply an event means here to print it. At the
//! end the exit code is 1 if there are early events whose predecessors never came.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::Context as _;
use seriatim::consume::{Envelope, Gate, Start, Verdict};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// An event that came too early.
struct Kept {
    id: u64,
    prev: u64,
    event: String,
}

#[derive(Default)]
struct Counts {
    applied: u64,
    duplicates: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let start = match std::env::args().nth(1).as_deref() {
        None => Start::Origin,
        Some("--first-seen") => Start::FirstSeen,
        Some(other) => anyhow::bail!("unknown option {other}; there is --first-seen"),
    };
    let mut gate = Gate::new(start);
    let mut early: HashMap<String, Vec<Kept>> = HashMap::new();
    let mut counts = Counts::default();

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    for number in 1.. {
        let Some(line) = lines.next_line().await? else {
            break;
        };
        let envelope =
            Envelope::parse(line.as_bytes()).with_context(|| format!("line {number}"))?;
        let object = envelope.object.as_ref();
        // A consumer with bounded memory would not keep an early event. It would refuse the event
        // here, so that the worker sends it again later.
        let kept = early.entry(object.to_owned()).or_default();
        kept.push(Kept {
            id: envelope.id,
            prev: envelope.prev,
            event: envelope.event.get().to_owned(),
        });
        apply_all(&mut gate, object, kept, &mut counts)
            .await
            .with_context(|| format!("line {number}"))?;
        if kept.is_empty() {
            early.remove(object);
        }
    }

    let left: usize = early.values().map(Vec::len).sum();
    eprintln!(
        "{} applied, {} duplicates, {left} still early",
        counts.applied, counts.duplicates
    );
    Ok(if left == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Applies each kept event that is the object's next event. After that, another kept event may be
/// the next one.
async fn apply_all(
    gate: &mut Gate,
    object: &str,
    kept: &mut Vec<Kept>,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    kept.sort_by_key(|event| event.id);
    let mut still_early = Vec::new();
    for event in kept.drain(..) {
        match gate.check(object, event.id, event.prev).await? {
            Verdict::Apply => {
                println!("{object} {} {}", event.id, event.event);
                // The event is recorded as applied only after its effect. So if the program crashes
                // between the two, the event is applied twice. In the other order it would never be
                // applied.
                gate.applied(object, event.id, event.prev).await?;
                counts.applied += 1;
            }
            Verdict::Duplicate => counts.duplicates += 1,
            Verdict::Early => still_early.push(event),
        }
    }
    *kept = still_early;
    Ok(())
}
