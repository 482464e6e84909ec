//! The invariants ("Invariants" in `docs/design.md`), read off a live Redis by number.
//!
//! The system moves while it is looked at. So the walk over the keys only finds *suspicions*; each
//! is looked at again, alone, by a script that reads all it needs in one atomic step, and only what
//! is broken there is reported. A violation that heals between the two is none; in a system at
//! rest, nothing is missed.
//!
//! No atomic step could look through all markers: Redis would stand still meanwhile. Objects that
//! nothing seems to cover are therefore gathered, searched for in steps, and looked at again. A
//! producer pushes a marker with each event, and a worker that takes one changes the queue or the
//! last id. If both are as they were before the search, what the search did not find is not there.
//! Otherwise it is searched for again, up to three times.
//!
//! Memory: the violations reported, 8 bytes for each marker and each object with events, up to 32
//! MiB of either, and 4,096 objects to be searched for; beyond that the check goes on and only
//! takes longer. Besides, all registered names.

use std::collections::{HashMap, HashSet};

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};

use super::names::{self, Walk as Names, Which, slots_in};
pub use super::report::{CheckReport, Invariant, LookedAt, NOT_READABLE, NotReadable, Subject, Violation};
use super::scan::{Scan, Seen};
use super::{ControlError, reply};
use crate::escape;
use crate::event::{NameError, ObjectName};
use crate::keys::{self, Keys};
use crate::wire;

/// How many violations [`check`] reports one by one; all are counted.
pub const VIOLATIONS_MAX: usize = 100;

/// How many subjects one call of the script looks at: some 10 microseconds each, in which Redis
/// does nothing else.
const SUBJECTS_PER_CALL: usize = 32;

/// How many markers one call reads.
const MARKERS_PER_CALL: usize = 1000;

/// How much is remembered of what was seen, in entries of 8 bytes.
const SEEN_MAX: usize = 4 << 20;

/// How many objects that nothing seems to cover are searched for at once.
const UNCOVERED_MAX: usize = 4096;

/// How often an object is searched for whose events come and go meanwhile.
const SEARCHES_MAX: usize = 3;

/// How many pages more than there were at the beginning a search reads. Behind them it gives up:
/// the markers grow faster than they can be read.
const PAGES_MORE_MAX: usize = 1000;

/// Reads the invariants off a live Redis; reports at most [`VIOLATIONS_MAX`] one by one.
///
/// # Errors
/// [`ControlError`] if Redis cannot be asked. Broken invariants and keys of wrong types are no
/// errors: they are in the report.
pub async fn check<C: ConnectionLike>(conn: &mut C, keys: &Keys) -> Result<CheckReport, ControlError> {
    check_up_to(conn, keys, VIOLATIONS_MAX).await
}

/// The same with another limit for the violations that are reported one by one.
///
/// # Errors
/// As [`check`].
pub async fn check_up_to<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    violations_max: usize,
) -> Result<CheckReport, ControlError> {
    let mut walk = Walk {
        keys,
        conn,
        violations_max,
        covered: Seen::new(SEEN_MAX),
        broken: Seen::new(SEEN_MAX),
        named: Seen::new(SEEN_MAX),
        names: HashMap::new(),
        taken: None,
        uncovered: HashMap::new(),
        pending: Vec::new(),
        report: CheckReport {
            looked_at: LookedAt::default(),
            violations_total: 0,
            violations: Vec::new(),
            not_readable: NOT_READABLE,
        },
    };
    walk.look_at(Kind::Shared, Vec::new()).await?;
    // Events move from markers to workers' lists: read in this order, few objects are missed in
    // both.
    walk.markers().await?;
    walk.workers().await?;
    walk.objects().await?;
    walk.held(keys.objects_held()).await?;
    walk.held(keys.objects_paused()).await?;
    walk.flush().await?;
    walk.settle().await?;
    Ok(walk.report)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Object,
    Worker,
    Name,
    Shared,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Worker => "worker",
            Self::Name => "name",
            Self::Shared => "shared",
        }
    }

    fn subject(self, name: &[u8]) -> Subject {
        let name = escape::name(name).into_owned();
        match self {
            Self::Object => Subject::Object(name),
            Self::Worker => Subject::Worker(name),
            Self::Name => Subject::Name(name),
            Self::Shared => Subject::Shared,
        }
    }
}

/// A registered name.
#[derive(Debug, Clone, Copy)]
struct Name {
    slots: u32,
    /// Its slots are looked at one by one. Of a name without a lease, those that have something are
    /// met in the walk over the keys.
    is_alive: bool,
}

/// What the script says of one subject.
struct Finding {
    position: usize,
    word: String,
    what: String,
}

impl Finding {
    /// Whether it says that nothing covers the object, which only a search can confirm.
    fn is_of_cover(&self) -> bool {
        matches!(self.word.as_str(), "I1" | "foreign")
    }
}

/// The text of the finding that nothing covers the object; none if there is no such finding.
fn uncovered(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|finding| finding.is_of_cover()).map(|finding| finding.what.clone())
}

/// One walk over everything.
struct Walk<'a, C> {
    keys: &'a Keys,
    conn: &'a mut C,
    violations_max: usize,
    /// Objects that had a marker or were in a registered worker's list a moment ago.
    covered: Seen,
    /// Subjects with a violation, so that none counts twice.
    broken: Seen,
    /// Objects that were reported for their names.
    named: Seen,
    /// Registered names.
    names: HashMap<String, Name>,
    /// Objects in the lists of all registered workers, as they were when the first object seemed to
    /// be covered by nothing.
    taken: Option<Seen>,
    /// Objects that nothing seems to cover, each with the texts of the findings that say so.
    uncovered: HashMap<Vec<u8>, String>,
    /// Subjects that the next call of the script looks at.
    pending: Vec<(Kind, Vec<u8>)>,
    report: CheckReport,
}

impl<C: ConnectionLike> Walk<'_, C> {
    async fn markers(&mut self) -> Result<(), ControlError> {
        let (total, mut from) = (self.count_markers().await?, 0);
        // A marker that moves out of sight meanwhile only makes a suspicion more.
        while from < total
            && let Some(page) = self.page_of_markers(from).await?
        {
            from += page.len();
            self.report.looked_at.markers += page.len() as u64;
            for object in &page {
                self.look_at_name(object, false);
                self.covered.insert(object);
            }
        }
        Ok(())
    }

    async fn count_markers(&mut self) -> Result<usize, ControlError> {
        match redis::cmd("LLEN").arg(self.keys.objects_with_events()).query_async(self.conn).await {
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(0),
            total => total.map_err(ControlError::redis("the markers")),
        }
    }

    /// The markers from this place on; none behind the last one. Producers push before the first
    /// place, so what stays is not missed.
    async fn page_of_markers(&mut self, from: usize) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        let mut ask = redis::cmd("LRANGE");
        ask.arg(self.keys.objects_with_events()).arg(from).arg(from + MARKERS_PER_CALL - 1);
        match ask.query_async::<Vec<Vec<u8>>>(self.conn).await {
            Ok(page) => Ok(Some(page).filter(|page| !page.is_empty())),
            Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
            Err(error) => Err(ControlError::redis("the markers")(error)),
        }
    }

    async fn workers(&mut self) -> Result<(), ControlError> {
        let mut walk = Names::all(self.keys);
        while let Some(page) = walk.next(self.conn, self.keys).await? {
            let alive = self.alive(&page).await?;
            for ((name, value), is_alive) in page.into_iter().zip(alive) {
                let slots = slots_in(&value).unwrap_or(0);
                if self.names.insert(name.clone(), Name { slots, is_alive }).is_some() {
                    continue;
                }
                self.report.looked_at.names += 1;
                self.report.looked_at.workers += u64::from(slots);
                self.look_at(Kind::Name, name.clone().into_bytes()).await?;
                for slot in 0..if is_alive { slots } else { 0 } {
                    self.look_at(Kind::Worker, format!("{name}.{slot}").into_bytes()).await?;
                }
            }
        }
        self.flush().await
    }

    /// Which of these names have a lease.
    async fn alive(&mut self, page: &[(String, String)]) -> Result<Vec<bool>, ControlError> {
        if page.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for (name, _) in page {
            pipe.cmd("EXISTS").arg(self.keys.worker_lease(name));
        }
        pipe.query_async(self.conn).await.map_err(ControlError::redis("the leases"))
    }

    async fn objects(&mut self) -> Result<(), ControlError> {
        let mut scan = Scan::new(self.keys, "");
        let mut strangers = Seen::new(SEEN_MAX);
        while let Some(page) = scan.next(self.conn).await? {
            let mut here = Seen::new(page.len());
            let mut delivered = Vec::new();
            for key in &page {
                match classify(key) {
                    Some(Found::Object { name, kind }) => {
                        self.count(kind);
                        if kind == "last_event_id" {
                            delivered.push((name, key.as_slice()));
                        } else if here.insert(name) {
                            self.look_at(Kind::Object, name.to_vec()).await?;
                        }
                    }
                    Some(Found::Worker { id }) if !self.is_alive(id) && strangers.insert(id) => {
                        self.report.looked_at.workers += u64::from(!self.is_registered(id));
                        self.look_at(Kind::Worker, id.to_vec()).await?;
                    }
                    Some(Found::Worker { .. }) => self.report.looked_at.keys += 1,
                    None => {}
                }
            }
            self.delivered(&delivered).await?;
        }
        Ok(())
    }

    fn count(&mut self, kind: &str) {
        let looked_at = &mut self.report.looked_at;
        looked_at.keys += 1;
        match kind {
            "events" => looked_at.objects_with_events += 1,
            "event_worker" => looked_at.objects_owned += 1,
            "last_event_id" => looked_at.objects_delivered += 1,
            _ => {}
        }
    }

    /// The registered name whose worker this is.
    fn name_of(&self, worker: &[u8]) -> Option<Name> {
        let (name, slot) = std::str::from_utf8(worker).ok()?.rsplit_once('.')?;
        let slot: u32 = slot.parse().ok()?;
        self.names.get(name).copied().filter(|name| slot < name.slots)
    }

    fn is_registered(&self, worker: &[u8]) -> bool {
        self.name_of(worker).is_some()
    }

    fn is_alive(&self, worker: &[u8]) -> bool {
        self.name_of(worker).is_some_and(|name| name.is_alive)
    }

    /// Most objects have nothing but a last id: those are read many at once.
    async fn delivered(&mut self, objects: &[(&[u8], &[u8])]) -> Result<(), ControlError> {
        const WHAT: &str = "the last ids";
        if objects.is_empty() {
            return Ok(());
        }
        let mut ask = redis::cmd("MGET");
        for (_, key) in objects {
            ask.arg([self.keys.prefix().as_bytes(), key].concat());
        }
        ask.arg(self.keys.next_event_id());
        let ids: Vec<Value> = ask.query_async(self.conn).await.map_err(ControlError::redis(WHAT))?;
        let given = ids.last().and_then(reply::number).unwrap_or(0);
        for ((object, _), id) in objects.iter().zip(&ids) {
            // A wrong type reads as no value here; the script tells the two apart.
            if reply::number(id).is_none_or(|id| id > given) {
                self.look_at(Kind::Object, object.to_vec()).await?;
            }
        }
        Ok(())
    }

    async fn held(&mut self, set: String) -> Result<(), ControlError> {
        let mut cursor = 0_u64;
        loop {
            let mut ask = redis::cmd("ZSCAN");
            ask.arg(&set).arg(cursor).arg("COUNT").arg(SUBJECTS_PER_CALL);
            let (next, page): (u64, Vec<Vec<u8>>) = match ask.query_async(self.conn).await {
                Ok(page) => page,
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(()),
                Err(error) => return Err(ControlError::redis("the held objects")(error)),
            };
            for member in page.chunks(2) {
                self.report.looked_at.objects_held += 1;
                self.look_at(Kind::Object, member[0].clone()).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// A name that no worker works on is a violation, once. An empty marker only wakes.
    fn look_at_name(&mut self, name: &[u8], has_keys: bool) {
        let what = match (self.keys.found(name), ObjectName::from_bytes(name)) {
            (Err(NameError::Brace(_)), _) => {
                "it may be an object of another namespace, for without one no name begins with a brace: workers drop its markers"
                    .to_owned()
            }
            (Ok(_), Err(error)) if has_keys => {
                format!(
                    "{error}: workers hold such an object; skip its events, or have its producer emit them under another name"
                )
            }
            _ => return,
        };
        if self.named.insert(name) {
            self.violation(Invariant::Layout, Kind::Object.subject(name), what);
        }
    }

    fn violation(&mut self, invariant: Invariant, subject: Subject, what: String) {
        self.report.violations_total += 1;
        if self.report.violations.len() < self.violations_max {
            self.report.violations.push(Violation { invariant, subject, what });
        }
    }

    async fn look_at(&mut self, kind: Kind, name: Vec<u8>) -> Result<(), ControlError> {
        if kind == Kind::Object {
            self.look_at_name(&name, true);
            if matches!(self.keys.found(&name), Err(NameError::Brace(_))) {
                // Its keys are not ours.
                return Ok(());
            }
        }
        self.pending.push((kind, name));
        if self.pending.len() >= SUBJECTS_PER_CALL { self.flush().await } else { Ok(()) }
    }

    /// Looks at what is pending, then at each suspicion again, alone.
    async fn flush(&mut self) -> Result<(), ControlError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let findings = self.look(&pending, None).await?;
        let mut before = None;
        for position in findings.into_iter().map(|finding| finding.position) {
            if before.replace(position) == Some(position) {
                continue;
            }
            let Some(suspect) = pending.get(position.wrapping_sub(1)) else {
                return Err(ControlError::reply("lua/check.lua", format!("it names subject {position} of {}", pending.len())));
            };
            if !self.broken.contains(suspect) {
                self.confirm(suspect).await?;
            }
        }
        Ok(())
    }

    async fn confirm(&mut self, suspect: &(Kind, Vec<u8>)) -> Result<(), ControlError> {
        self.report.looked_at.suspicions += 1;
        let findings = self.look(std::slice::from_ref(suspect), Some("unknown")).await?;
        let Some(text) = uncovered(&findings) else { return self.report(suspect, findings) };
        self.uncovered.insert(suspect.1.clone(), text);
        if self.uncovered.len() >= UNCOVERED_MAX { self.settle().await } else { Ok(()) }
    }

    /// Searches all markers and lists for the objects that nothing seems to cover, then looks at
    /// each again.
    async fn settle(&mut self) -> Result<(), ControlError> {
        let mut texts = std::mem::take(&mut self.uncovered);
        let mut searches_left = SEARCHES_MAX;
        while !texts.is_empty() {
            searches_left -= 1;
            let found = self.search(&texts).await?;
            let mut changed = HashMap::new();
            for (object, text) in texts {
                let suspect = (Kind::Object, object);
                let hint = if found.contains(&suspect.1) { "covered" } else { "searched" };
                let findings = self.look(std::slice::from_ref(&suspect), Some(hint)).await?;
                match uncovered(&findings) {
                    // Events came or went, and maybe what covers it came with them. The last search
                    // counts, or nothing would be known of an object whose events change all the
                    // time.
                    Some(now) if now != text && searches_left > 0 => drop(changed.insert(suspect.1, now)),
                    _ => self.report(&suspect, findings)?,
                }
            }
            texts = changed;
        }
        Ok(())
    }

    fn report(&mut self, suspect: &(Kind, Vec<u8>), findings: Vec<Finding>) -> Result<(), ControlError> {
        for finding in findings {
            let invariant = match finding.word.as_str() {
                "I1" => Invariant::I1,
                "I2" => Invariant::I2,
                "I3" => Invariant::I3,
                "I4" => Invariant::I4,
                "I5" => Invariant::I5,
                "I6" => Invariant::I6,
                "layout" => Invariant::Layout,
                "foreign" => {
                    self.report.looked_at.foreign += 1;
                    continue;
                }
                other => return Err(ControlError::reply("lua/check.lua", format!("it finds {other:?}"))),
            };
            self.broken.insert(suspect);
            self.violation(invariant, suspect.0.subject(&suspect.1), finding.what);
        }
        Ok(())
    }

    /// Which of these objects have a marker, or are in the list of a registered worker. Markers
    /// first: from there they move to lists. All of them if the markers grow faster than they can
    /// be read: then nothing can be told.
    async fn search(&mut self, objects: &HashMap<Vec<u8>, String>) -> Result<HashSet<Vec<u8>>, ControlError> {
        let mut found = HashSet::new();
        let pages_max = self.count_markers().await? / MARKERS_PER_CALL + PAGES_MORE_MAX;
        let (mut from, mut pages) = (0, 0);
        while let Some(page) = self.page_of_markers(from).await? {
            from += page.len();
            pages += 1;
            if pages > pages_max {
                return Ok(objects.keys().cloned().collect());
            }
            found.extend(page.into_iter().filter(|object| objects.contains_key(object)));
        }
        let departed = match self.taken.take() {
            Some(seen) => seen,
            None => {
                let mut seen = Seen::new(SEEN_MAX);
                let mut walk = Names::all(self.keys);
                while let Some(page) = walk.next(self.conn, self.keys).await? {
                    let taken = names::taken(self.conn, self.keys, b"", &page).await?;
                    for (_, object) in &taken.objects {
                        seen.insert(object);
                    }
                }
                seen
            }
        };
        found.extend(objects.keys().filter(|object| departed.contains(object)).cloned());
        self.taken = Some(departed);
        let mut walk = Names::of(self.conn, self.keys, Which::Watched).await?;
        while let Some(page) = walk.next(self.conn, self.keys).await? {
            let taken = names::taken(self.conn, self.keys, b"", &page).await?;
            found.extend(taken.objects.into_iter().map(|(_, object)| object).filter(|object| objects.contains_key(object)));
        }
        Ok(found)
    }

    /// One call of the script. What registered workers have in their lists counts as covered from
    /// then on.
    async fn look(&mut self, subjects: &[(Kind, Vec<u8>)], hint: Option<&str>) -> Result<Vec<Finding>, ControlError> {
        const WHAT: &str = "lua/check.lua";
        let mut call = wire::CHECK.invoke();
        call.key(self.keys.event_workers());
        call.arg(self.keys.prefix());
        let mut all_registered = true;
        for (kind, name) in subjects {
            let known = if *kind == Kind::Object && self.covered.contains(name) { "covered" } else { "unknown" };
            let hint = hint.unwrap_or(known);
            all_registered &= *kind != Kind::Worker || self.is_registered(name);
            call.arg(kind.word()).arg(name.as_slice()).arg(hint);
        }
        let answer: RedisResult<Value> = call.invoke_async(self.conn).await;
        let answer = reply::after("looked", answer.map_err(ControlError::redis(WHAT))?);
        let answer = answer.map_err(|answer| ControlError::reply(WHAT, answer))?;
        let [findings, names] = <[Value; 2]>::try_from(answer)
            .map_err(|parts| ControlError::reply(WHAT, format!("{} parts after the first word", parts.len())))?;
        for name in reply::array(names).unwrap_or_default().iter().filter_map(reply::bytes) {
            self.look_at_name(&name, false);
            if all_registered {
                self.covered.insert(&name);
            }
        }
        let flat = reply::array(findings).ok_or_else(|| ControlError::reply(WHAT, "no findings"))?;
        let read = |three: &[Value]| {
            let position = usize::try_from(reply::number(&three[0])?).ok()?;
            Some(Finding { position, word: reply::text(&three[1])?, what: reply::text(&three[2])? })
        };
        let findings: Option<Vec<Finding>> = flat.chunks_exact(3).map(read).collect();
        findings.ok_or_else(|| ControlError::reply(WHAT, "a finding is not position, word and text"))
    }
}

/// What a key belongs to.
enum Found<'a> {
    Object { name: &'a [u8], kind: &'static str },
    Worker { id: &'a [u8] },
}

/// Kinds of object keys that can break an invariant. `data` is the frontend's own.
const OBJECT_KINDS_READ: &[&str] =
    &["events", "last_event_id", "event_worker", "events_held", "events_held_id", "event_handled", "event_errors"];

fn classify(key: &[u8]) -> Option<Found<'_>> {
    let ending = key.iter().rposition(|byte| *byte == b':')?;
    let (name, suffix) = key.split_at(ending);
    let kind_of = |kinds: &'static [(&'static str, &'static str)]| {
        kinds.iter().find(|(_, ending)| ending.as_bytes() == suffix).map(|(kind, _)| *kind)
    };
    if let Some(kind) = kind_of(keys::OBJECT_KINDS) {
        return OBJECT_KINDS_READ.contains(&kind).then_some(Found::Object { name, kind });
    }
    let id = name.strip_prefix(keys::WORKER.as_bytes())?;
    kind_of(keys::WORKER_KINDS).filter(|kind| *kind != "worker_lease").map(|_| Found::Worker { id })
}
