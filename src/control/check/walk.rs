//! The walk over markers, groups, workers, objects and held objects. The walk collects the subjects
//! of the check.

use redis::Value;
use redis::aio::ConnectionLike;

use super::super::cron::problem_of_clock;
use super::super::names::{Walk as Names, slots_in};
use super::super::scan::{Dedup, Scan};
use super::super::{ControlError, reply};
use super::report::{CheckReport, Invariant};
use super::script::Kind;
use super::state::{Name, SEEN_MAX, Walk};
use crate::event::NameError;
use crate::keys;
use crate::wire::operator;
use crate::wire::values::Mark;

/// Number of subjects per call of the script. Each subject blocks Redis for about 10 microseconds.
const SUBJECTS_PER_CALL: usize = 32;

/// Number of schedules that one HSCAN is to return.
const SCHEDULES_PER_CALL: usize = 4;

impl<C: ConnectionLike> Walk<'_, C> {
    /// Walks over all keys and returns the report.
    pub(super) async fn run(mut self) -> Result<CheckReport, ControlError> {
        self.walk().await?;
        Ok(self.report)
    }

    /// Walks over all keys.
    pub(super) async fn walk(&mut self) -> Result<(), ControlError> {
        self.look_at(Kind::Shared, Vec::new()).await?;
        // Objects move from markers to the lists of groups, and from both to the lists of workers.
        // So the walk reads the markers first, then groups, and misses few objects in all places.
        self.markers().await?;
        self.grouped().await?;
        self.workers().await?;
        self.objects().await?;
        self.set(self.keys.objects_held(), Kind::Object, b"")
            .await?;
        self.set(self.keys.objects_paused(), Kind::Object, b"")
            .await?;
        self.in_hand().await?;
        self.set(self.keys.events_scheduled(), Kind::Schedule, b"")
            .await?;
        self.cron_jobs().await?;
        self.set(self.keys.events_cron_next(), Kind::Cron, b"")
            .await?;
        self.flush().await?;
        self.settle().await
    }

    async fn markers(&mut self) -> Result<(), ControlError> {
        let (total, mut from) = (self.count_markers().await?, 0);
        // If a marker moves to another page meanwhile, the walk may miss it. That only adds a
        // suspicion.
        while from < total
            && let Some(page) = self.page_of_markers(from).await?
        {
            from += page.len();
            for object in page.iter().filter(|name| Mark::read(name).is_none()) {
                self.report.looked_at.markers += 1;
                self.look_at_name(object, false);
                self.covered.insert(object);
            }
        }
        Ok(())
    }

    async fn grouped(&mut self) -> Result<(), ControlError> {
        for group in self.groups().await? {
            self.report.looked_at.groups += 1;
            let mut from = 0;
            while let Some(page) = self.page_of_group(&group, from).await? {
                from += page.len();
                for object in page.iter().filter(|name| Mark::read(name).is_none()) {
                    self.report.looked_at.grouped += 1;
                    self.look_at_name(object, false);
                    self.covered.insert(object);
                }
            }
        }
        Ok(())
    }

    async fn workers(&mut self) -> Result<(), ControlError> {
        let mut walk = Names::all();
        while let Some(page) = walk.next(self.conn, self.keys).await? {
            let alive = self.alive(&page).await?;
            for ((name, value), is_alive) in page.into_iter().zip(alive) {
                let slots = slots_in(&value).unwrap_or(0);
                if self
                    .names
                    .insert(name.clone(), Name { slots, is_alive })
                    .is_some()
                {
                    continue;
                }
                self.report.looked_at.names += 1;
                self.report.looked_at.workers += u64::from(slots);
                self.look_at(Kind::Name, name.clone().into_bytes()).await?;
                for slot in 0..if is_alive { slots } else { 0 } {
                    self.look_at(Kind::Worker, format!("{name}.{slot}").into_bytes())
                        .await?;
                }
            }
        }
        self.flush().await
    }

    /// Returns for each name of the page whether it has a lease.
    async fn alive(&mut self, page: &[(String, String)]) -> Result<Vec<bool>, ControlError> {
        if page.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for (name, _) in page {
            pipe.cmd("EXISTS").arg(self.keys.worker_lease(name));
        }
        pipe.query_async(self.conn)
            .await
            .map_err(ControlError::redis("the leases"))
    }

    async fn objects(&mut self) -> Result<(), ControlError> {
        let mut scan = Scan::new(self.keys, "");
        let mut strangers = Dedup::new(SEEN_MAX);
        while let Some(page) = scan.next(self.conn).await? {
            let mut here = Dedup::new(page.len());
            let mut delivered = Vec::new();
            for key in &page {
                match classify(key) {
                    Some(Found::Object { name, kind }) => {
                        self.count(kind);
                        if kind == "last_event_id" {
                            delivered.push((name, key.as_slice()));
                            continue;
                        }
                        if kind == "events_scheduled_of"
                            && !matches!(self.keys.found(name), Err(NameError::Brace(_)))
                        {
                            self.schedules_of(name).await?;
                        }
                        if here.insert(name) {
                            self.look_at(Kind::Object, name.to_vec()).await?;
                        }
                    }
                    Some(Found::Worker { id }) if !self.is_alive(id) && strangers.insert(id) => {
                        let is_stranger = !self.is_registered(id);
                        self.report.looked_at.workers += u64::from(is_stranger);
                        if let Some(mender) = self.mender.as_mut().filter(|_| is_stranger) {
                            mender.keep_stranger(id);
                        }
                        self.look_at(Kind::Worker, id.to_vec()).await?;
                    }
                    Some(Found::Worker { .. }) => self.report.looked_at.keys += 1,
                    Some(Found::Group { name }) => {
                        self.report.looked_at.keys += 1;
                        self.look_at(Kind::Group, name.to_vec()).await?;
                    }
                    None => {}
                }
            }
            self.delivered(&delivered).await?;
        }
        Ok(())
    }

    /// Looks at the schedules of an object.
    async fn schedules_of(&mut self, object: &[u8]) -> Result<(), ControlError> {
        let hash = [self.keys.prefix().as_bytes(), object, b":events.scheduled"].concat();
        let mut cursor = 0_u64;
        loop {
            let mut ask = redis::cmd("HSCAN");
            // The number is small, because the reply also has the events of the schedules.
            ask.arg(&hash)
                .arg(cursor)
                .arg("COUNT")
                .arg(SCHEDULES_PER_CALL);
            let (next, page): (u64, Vec<Vec<u8>>) = match ask.query_async(self.conn).await {
                Ok(page) => page,
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(()),
                Err(error) => return Err(ControlError::redis("the schedules of an object")(error)),
            };
            for pair in page.chunks(2) {
                self.look_at(Kind::Schedule, [object, b"\n", &pair[0]].concat())
                    .await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn cron_jobs(&mut self) -> Result<(), ControlError> {
        let mut cursor = 0;
        loop {
            let page = operator::crons(
                self.conn,
                self.keys,
                operator::CronQuery::All(cursor, SUBJECTS_PER_CALL),
            )
            .await;
            let (now_ms, next, jobs) = match page {
                Err(error) if error.is_wrong_type() => return Ok(()),
                page => page?,
            };
            for job in jobs {
                self.report.looked_at.cron_jobs += 1;
                // A paused job has no next tick.
                let problem = (!job.next.is_empty())
                    .then(|| problem_of_clock(&job.last, now_ms))
                    .flatten();
                if let Some(what) = problem {
                    self.violation(Invariant::I9, Kind::Cron.subject(&job.name), what);
                }
                self.look_at(Kind::Cron, job.name).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
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

    /// Checks objects whose only key is the last id, as it is for most objects. Reads the ids of
    /// many objects at once.
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
        let ids: Vec<Value> = ask
            .query_async(self.conn)
            .await
            .map_err(ControlError::redis(WHAT))?;
        let given = ids.last().and_then(reply::number).unwrap_or(0);
        for ((object, _), id) in objects.iter().zip(&ids) {
            // For a key of a wrong type, MGET returns no value, as for an absent key. The script
            // can tell the two apart.
            if reply::number(id).is_none_or(|id| id > given) {
                self.look_at(Kind::Object, object.to_vec()).await?;
            }
        }
        Ok(())
    }

    /// Looks at the objects that count as in hand.
    pub(super) async fn in_hand(&mut self) -> Result<(), ControlError> {
        self.set(self.keys.objects_in_hand(), Kind::Object, b":")
            .await
    }

    /// Looks at the members of a sorted set, without the `ending` of each.
    async fn set(&mut self, set: String, kind: Kind, ending: &[u8]) -> Result<(), ControlError> {
        let mut cursor = 0_u64;
        loop {
            let mut ask = redis::cmd("ZSCAN");
            ask.arg(&set)
                .arg(cursor)
                .arg("COUNT")
                .arg(SUBJECTS_PER_CALL);
            let (next, mut page): (u64, Vec<Vec<u8>>) = match ask.query_async(self.conn).await {
                Ok(page) => page,
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(()),
                Err(error) => return Err(ControlError::redis("a sorted set")(error)),
            };
            for member in page
                .iter_mut()
                .step_by(2)
                .filter(|member| member.ends_with(ending))
            {
                member.truncate(member.len() - ending.len());
            }
            if self.mender.is_some() && kind == Kind::Object {
                // The check finds nothing wrong with an object that waits for an operator because of a
                // lost key.
                let ours = page
                    .into_iter()
                    .step_by(2)
                    .filter(|name| !matches!(self.keys.found(name), Err(NameError::Brace(_))));
                let members = ours.map(|name| (kind, name)).collect();
                self.mend(members, "unknown").await?;
                cursor = next;
                if cursor == 0 {
                    return Ok(());
                }
                continue;
            }
            for member in page.chunks(2) {
                match kind {
                    Kind::Schedule => self.report.looked_at.schedules += 1,
                    Kind::Object if ending.is_empty() => self.report.looked_at.objects_held += 1,
                    _ => {}
                }
                self.look_at(kind, member[0].clone()).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn look_at(&mut self, kind: Kind, name: Vec<u8>) -> Result<(), ControlError> {
        if kind == Kind::Object {
            self.look_at_name(&name, true);
            if matches!(self.keys.found(&name), Err(NameError::Brace(_))) {
                // The object's keys belong to another program.
                return Ok(());
            }
        }
        self.pending.push((kind, name));
        if self.pending.len() >= SUBJECTS_PER_CALL {
            self.flush().await
        } else {
            Ok(())
        }
    }
}

/// The object, the group or the worker to which a key belongs.
enum Found<'a> {
    Group { name: &'a [u8] },
    Object { name: &'a [u8], kind: &'static str },
    Worker { id: &'a [u8] },
}

fn classify(key: &[u8]) -> Option<Found<'_>> {
    let ending = key.iter().rposition(|byte| *byte == b':')?;
    let (name, suffix) = key.split_at(ending);
    let kind_of = |kinds: &'static [(&'static str, &'static str)]| {
        kinds
            .iter()
            .find(|(_, ending)| ending.as_bytes() == suffix)
            .map(|(kind, _)| *kind)
    };
    if let Some(kind) = kind_of(keys::OBJECT_KINDS) {
        // No invariant concerns the other kinds of keys.
        return keys::is_read_of_object(kind).then_some(Found::Object { name, kind });
    }
    if let Some(name) = name.strip_prefix(keys::GROUP.as_bytes())
        && kind_of(keys::GROUP_KINDS).is_some()
    {
        return Some(Found::Group { name });
    }
    let id = name.strip_prefix(keys::WORKER.as_bytes())?;
    kind_of(keys::WORKER_KINDS)
        .filter(|kind| !keys::is_of_process(kind))
        .map(|_| Found::Worker { id })
}
