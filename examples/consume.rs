//! A consumer: reads envelopes, one a line, from standard input, and applies each object's events
//! in order, once each.
//!
//!     seriatim worker --name w --sink stdout | cargo run --example consume
//!     cat a.ndjson b.ndjson | cargo run --example consume -- --first-seen
//!
//! Lines may come twice and, from several files, in any order: an event that is early is kept until
//! its turn comes. "Applying" here means printing it. Exit code 1 if events are left whose
//! predecessors never came.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::Context as _;
use seriatim::consume::{Envelope, Gate, Start, Verdict};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// An event that came before its turn.
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
        let Some(line) = lines.next_line().await? else { break };
        let envelope = Envelope::parse(line.as_bytes()).with_context(|| format!("line {number}"))?;
        let object = envelope.object.as_ref();
        // A consumer with a bound on its memory would refuse an early event here and have it sent
        // again later.
        let kept = early.entry(object.to_owned()).or_default();
        kept.push(Kept { id: envelope.id, prev: envelope.prev, event: envelope.event.get().to_owned() });
        apply_all(&mut gate, object, kept, &mut counts).await.with_context(|| format!("line {number}"))?;
        if kept.is_empty() {
            early.remove(object);
        }
    }

    let left: usize = early.values().map(Vec::len).sum();
    eprintln!("{} applied, {} duplicates, {left} still early", counts.applied, counts.duplicates);
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Applies what can be applied of an object's events: one that is applied may be what others have
/// waited for.
async fn apply_all(gate: &mut Gate, object: &str, kept: &mut Vec<Kept>, counts: &mut Counts) -> anyhow::Result<()> {
    kept.sort_by_key(|event| event.id);
    let mut still_early = Vec::new();
    for event in kept.drain(..) {
        match gate.check(object, event.id, event.prev).await? {
            Verdict::Apply => {
                println!("{object} {} {}", event.id, event.event);
                // After the effect, not before: a crash in between applies the event twice rather
                // than never.
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
