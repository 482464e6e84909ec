//! The events that the demo emits: lines of a file, or generated events. They are split by object
//! into one file per producer.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::lines::{Fields, Lines};

/// Number of objects from which the object of each generated event is drawn. In 25,000 events about
/// 2,000 of these objects appear.
const OBJECTS: usize = 2_200;

/// The input, ready for two producers.
pub(super) struct Input {
    pub(super) producers: [PathBuf; 2],
    /// Number of events of each producer.
    pub(super) shares: [u64; 2],
    pub(super) objects: u64,
}

impl Input {
    pub(super) fn events(&self) -> u64 {
        self.shares.iter().sum()
    }
}

/// The two files of the producers while they are written. All events of one object go to one file,
/// because two producers would emit them in an undefined order.
struct Split {
    files: [BufWriter<File>; 2],
    input: Input,
    versions: HashMap<String, u64>,
}

impl Split {
    fn into(dir: &Path) -> anyhow::Result<Self> {
        let producers = [1, 2].map(|n| dir.join(format!("producer-{n}.ndjson")));
        let open = |path: &PathBuf| {
            File::create(path)
                .map(BufWriter::new)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        let files = [open(&producers[0])?, open(&producers[1])?];
        Ok(Self {
            files,
            input: Input {
                producers,
                shares: [0; 2],
                objects: 0,
            },
            versions: HashMap::new(),
        })
    }

    /// Counts the next event of the object. Returns the number of its events, including this one.
    fn version(&mut self, object: &str) -> u64 {
        if let Some(version) = self.versions.get_mut(object) {
            *version += 1;
            return *version;
        }
        self.versions.insert(object.to_owned(), 1);
        1
    }

    fn push(&mut self, object: &str, event: &[u8]) -> anyhow::Result<()> {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        let producer = (hasher.finish() % 2) as usize;
        let file = &mut self.files[producer];
        write!(
            file,
            "{{\"object\":{},\"event\":",
            serde_json::to_string(object)?
        )?;
        file.write_all(event)?;
        file.write_all(b"}\n")?;
        self.input.shares[producer] += 1;
        Ok(())
    }

    fn done(self) -> anyhow::Result<Input> {
        for mut file in self.files {
            file.flush()?;
        }
        Ok(Input {
            objects: self.versions.len() as u64,
            ..self.input
        })
    }
}

/// Reads the events of a file.
pub(super) fn from_file(path: &Path, fields: &Fields, dir: &Path) -> anyhow::Result<Input> {
    let mut split = Split::into(dir)?;
    let mut lines = Lines::open(path)?;
    let name = lines.name().to_owned();
    while let Some(line) = lines.next_line()? {
        if line.text.trim_ascii().is_empty() {
            continue;
        }
        let read = fields.of(line.text);
        let (object, event) = read.map_err(|error| {
            Failure::with(
                Exit::Input,
                format!("{name}:{} is not an input line: {error:#}", line.number),
            )
        })?;
        split.version(&object);
        split.push(&object, event)?;
    }
    if split.versions.is_empty() {
        return Err(Failure::with(Exit::Input, format!("{name} has no events")));
    }
    split.done()
}

/// Generates events. Their objects are skewed: the n-th most frequent object has about 1/n of the
/// events of the most frequent one.
pub(super) fn generated(events: u64, seed: u64, dir: &Path) -> anyhow::Result<Input> {
    let mut split = Split::into(dir)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut shares: Vec<f64> = Vec::with_capacity(OBJECTS);
    let mut sum = 0.0;
    for rank in 1..=OBJECTS {
        sum += 1.0 / rank as f64;
        shares.push(sum);
    }
    for _ in 0..events {
        let drawn = random.f64() * sum;
        let rank = shares
            .partition_point(|share| *share <= drawn)
            .min(OBJECTS - 1);
        // The rank is mixed into a number, so that the most frequent objects do not have the lowest
        // numbers.
        let object = format!("work:{}", (rank as u64 * 1_009) % OBJECTS as u64 + 1);
        let version = split.version(&object);
        let change = [
            "title.changed",
            "price.changed",
            "stock.counted",
            "note.added",
        ][(random.u64(..4)) as usize];
        let event = format!(
            "{{\"type\":\"{change}\",\"version\":{version},\"value\":{}}}",
            random.u64(..100_000)
        );
        split.push(&object, event.as_bytes())?;
    }
    split.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_events_again_and_no_object_is_split() {
        let dirs = [0; 2].map(|_| tempfile::tempdir().expect("a directory"));
        let [one, other] = dirs
            .each_ref()
            .map(|dir| generated(25_000, 7, dir.path()).expect("generated"));
        assert_eq!(one.events(), 25_000);
        assert!(
            (1_900..2_100).contains(&one.objects),
            "{} objects",
            one.objects
        );
        let objects = |path: &Path| -> std::collections::HashSet<String> {
            let text = std::fs::read_to_string(path).expect("text");
            text.lines()
                .map(|line| {
                    Fields::plain()
                        .of(line.as_bytes())
                        .expect("an input line")
                        .0
                })
                .collect()
        };
        assert!(objects(&one.producers[0]).is_disjoint(&objects(&one.producers[1])));
        for (one, other) in one.producers.iter().zip(&other.producers) {
            assert_eq!(
                std::fs::read(one).expect("text"),
                std::fs::read(other).expect("text")
            );
        }
    }
}
