//! The marks of a run: whether workers have pushed marks, and have met them among the markers.

use std::collections::BTreeSet;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;

/// The member of `event.marks` whose score is the time of the mark that was met last.
const MET: &str = "met";

/// The marks seen so far. All times are times of Redis, in ms.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    began_ms: u64,
    /// Marks that waited at some look.
    pushed: BTreeSet<u64>,
    /// Time of the mark that was met last.
    met_ms: u64,
}

impl Marks {
    /// Begins at the present time of Redis.
    pub(crate) async fn begin(conn: &mut MultiplexedConnection) -> anyhow::Result<Self> {
        let (seconds, us): (u64, u64) = redis::cmd("TIME").query_async(conn).await?;
        Ok(Self {
            began_ms: seconds * 1000 + us / 1000,
            ..Self::default()
        })
    }

    /// Reads `event.marks`. A mark that a worker meets between two looks is not seen, so call this
    /// more often than once per second.
    pub(crate) async fn look(&mut self, conn: &mut MultiplexedConnection) -> anyhow::Result<()> {
        let mut members = redis::cmd("ZRANGE");
        members
            .arg(Keys::new().event_marks())
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES");
        for (member, score) in members.query_async::<Vec<(String, f64)>>(conn).await? {
            match member.parse() {
                Ok(mark) => drop(self.pushed.insert(mark)),
                Err(_) if member == MET => self.met_ms = score as u64,
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Prints how many marks were seen. Returns whether workers have pushed and met marks since the
    /// beginning.
    pub(crate) fn judge(&self) -> bool {
        let pushed: Vec<_> = self
            .pushed
            .iter()
            .filter(|mark| **mark >= self.began_ms)
            .collect();
        let met = pushed.iter().filter(|mark| ***mark <= self.met_ms).count();
        let last = self.met_ms.saturating_sub(self.began_ms);
        println!(
            "marks: {} seen, {met} of them met; the last one {last} ms after the start",
            pushed.len()
        );
        let passed = met > 0 && self.met_ms > self.began_ms;
        if !passed {
            println!("NO MARKS: the workers have not pushed marks, or have not met them");
        }
        passed
    }
}
