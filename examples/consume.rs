//! A consumer: reads envelopes, one per line, from standard input. Applies each object's events in
//! order, once each.
//!
//!     seriatim worker --name w --sink stdout | cargo run --example consume
//!     cat a.ndjson b.ndjson | cargo run --example consume -- --first-seen
//!
//! Lines may come twice and, from several files, in any order. An early event is kept until its
//! predecessor is applied. "Applying" here means printing. The exit code is 1 if events are left
//! whose predecessors never came.

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
        let Some(line) = lines.next_line().await? else { break };
        let envelope = Envelope::parse(line.as_bytes()).with_context(|| format!("line {number}"))?;
        let object = envelope.object.as_ref();
        // A consumer with bounded memory would refuse an early event here, so that it is sent again
        // later.
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

/// Applies the kept events of an object that are next. Each applied event may make another one
/// next.
async fn apply_all(gate: &mut Gate, object: &str, kept: &mut Vec<Kept>, counts: &mut Counts) -> anyhow::Result<()> {
    kept.sort_by_key(|event| event.id);
    let mut still_early = Vec::new();
    for event in kept.drain(..) {
        match gate.check(object, event.id, event.prev).await? {
            Verdict::Apply => {
                println!("{object} {} {}", event.id, event.event);
                // Recorded after the effect, not before: after a crash in between, the event is
                // applied twice rather than never.
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
