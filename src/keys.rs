//! Every Redis key, spelled in one place, for Rust and for Lua.
//!
//! A key is a prefix, then the name of its object, worker or projection, then a fixed suffix.
//! Without a namespace, the prefix is empty. With a namespace, the prefix is `{NS:p}:`, where `p`
//! is the partition. So all keys of one partition share a slot of a Redis Cluster.
//!
//! Two keys of different kinds or with different names are never equal, for these reasons:
//!
//! - The text after the last colon shows the kind.
//! - Kinds of objects and kinds of workers have different suffixes.
//! - Shared keys have no colon.
//! - Without a namespace, a name must not begin with `{`. [`Keys::object`] checks this.

use crate::event::{NameError, ObjectName};

/// The first part of a worker's key, after the prefix.
pub(crate) const WORKER: &str = "event.worker:";
/// The first part of a group's key, after the prefix.
pub(crate) const GROUP: &str = "event.group:";
/// The first part of a projection's key, after the prefix.
const PROJECTION: &str = "event.projection.";

/// The pairs of a name and a text of a table of keys.
type Spellings = Vec<(&'static str, &'static str)>;

/// Returns the tables of keys that scripts have, by their names. A table has:
///
/// - `WORKER`, `GROUP`, `PROJECTION`: the first part of the keys of workers, groups and projections
/// - names like `events`, `worker_event` or `event_projection_lease`: the suffix that follows the
///   object, the worker id, or the projection's name
/// - names like `objects_held`: a whole key without its prefix
///
/// The keys of producers are in a table of their own, because a lookup in a large table takes longer, and
/// each call of a worker looks up many keys.
pub(crate) fn tables_for_lua() -> [(&'static str, Spellings); 2] {
    let parts = [
        ("WORKER", WORKER),
        ("GROUP", GROUP),
        ("PROJECTION", PROJECTION),
    ];
    let of_role = |is_wanted: fn(Role) -> bool| {
        let kinds = [OBJECTS, WORKERS, GROUPS, PROJECTIONS, SHARED];
        let wanted = kinds
            .into_iter()
            .flatten()
            .filter(move |kind| is_wanted(kind.role));
        wanted.map(|kind| (kind.name, kind.spelling))
    };
    let of_workers = of_role(|role| role != Role::Producer);
    let of_producers = of_role(|role| role == Role::Producer);
    [
        ("K", parts.into_iter().chain(of_workers).collect()),
        ("PRODUCER", of_producers.collect()),
    ]
}

/// Maximum length of the name of a namespace, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 64;

/// The namespace is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("namespace {0:?} is not 1 to {NAMESPACE_BYTES_MAX} of the characters A-Z a-z 0-9 _ . -")]
pub struct NamespaceError(pub String);

/// Spells the keys of one namespace and partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    prefix: String,
}

/// The programs that use a key, and whether an idle object may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Workers use the key. An object that has such a key is not idle.
    Work,
    /// The key may be left when an object is idle. `forget` deletes the key.
    Remains,
    /// The key ends by its time to live, so `forget` leaves it.
    Expires,
    /// Only producers read the key.
    Producer,
}

/// A kind of key.
struct Kind {
    name: &'static str,
    redis_type: &'static str,
    role: Role,
    spelling: &'static str,
}

/// Returns the Redis type of a kind of key, as the command `TYPE` names it: `list`, `string`,
/// `zset`, `hash` or `stream`. Returns `None` if the kind does not exist.
pub fn type_of(kind: &str) -> Option<&'static str> {
    let mut all = [OBJECTS, WORKERS, GROUPS, PROJECTIONS, SHARED]
        .into_iter()
        .flatten();
    all.find(|known| known.name == kind)
        .map(|known| known.redis_type)
}

/// Returns whether `kind` is a kind of worker key that belongs to a process, not to one of its
/// slots.
pub fn is_of_process(kind: &str) -> bool {
    matches!(kind, "worker_lease" | "worker_status" | "worker_reports")
}

/// Returns whether `kind` is a kind of object key that scripts read.
pub(crate) fn is_read_of_object(kind: &str) -> bool {
    OBJECTS
        .iter()
        .any(|known| known.name == kind && known.role != Role::Producer)
}

/// Returns lists of keys for the scripts. Each is a name, and a Lua table as text:
///
/// - `OBJECT_TYPES`, `SHARED_TYPES`: suffix and type of each key that workers use
/// - `OBJECT_REMAINS`: suffixes of the keys that may be left when an object is idle
pub(crate) fn lists_for_lua() -> [(&'static str, String); 3] {
    let types = |kinds: &[Kind]| {
        let used = kinds.iter().filter(|kind| kind.role != Role::Producer);
        used.map(|kind| format!("{{ '{}', '{}' }}", kind.spelling, kind.redis_type))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let remains = OBJECTS
        .iter()
        .filter(|kind| kind.role == Role::Remains)
        .map(|kind| format!("'{}'", kind.spelling));
    let remains = remains.collect::<Vec<_>>().join(", ");
    [
        ("OBJECT_TYPES", types(OBJECTS)),
        ("SHARED_TYPES", types(SHARED)),
        ("OBJECT_REMAINS", remains),
    ]
    .map(|(name, items)| (name, format!("{{ {items} }}")))
}

/// From one list of kinds, generates the functions that spell keys, and the tables of all kinds.
/// The scripts get their keys from these tables. An entry of the list is a Redis type, a [`Role`],
/// a name, and the spelling.
macro_rules! keys {
    (
        objects { $($(#[$odoc:meta])* $otype:ident $orole:ident $oname:ident = $osuffix:literal,)* }
        workers { $($(#[$wdoc:meta])* $wtype:ident $wrole:ident $wname:ident = $wsuffix:literal,)* }
        groups { $($(#[$gdoc:meta])* $gtype:ident $grole:ident $gname:ident = $gsuffix:literal,)* }
        projections { $($(#[$pdoc:meta])* $ptype:ident $prole:ident $pname:ident = $psuffix:literal,)* }
        shared { $($(#[$sdoc:meta])* $stype:ident $srole:ident $sname:ident = $skey:literal,)* }
    ) => {
        impl Keys {
            $($(#[$odoc])* pub fn $oname(&self, object: &str) -> String {
                [&self.prefix, object, $osuffix].concat()
            })*
            $($(#[$wdoc])* pub fn $wname(&self, worker: &str) -> String {
                [&self.prefix, WORKER, worker, $wsuffix].concat()
            })*
            $($(#[$gdoc])* pub fn $gname(&self, group: &str) -> String {
                [&self.prefix, GROUP, group, $gsuffix].concat()
            })*
            $($(#[$pdoc])* pub fn $pname(&self, name: &str) -> String {
                [&self.prefix, PROJECTION, name, $psuffix].concat()
            })*
            $($(#[$sdoc])* pub fn $sname(&self) -> String {
                [&self.prefix, $skey].concat()
            })*
        }

        /// The suffix of every kind of object key. Each is a pair of the kind's name and the
        /// suffix.
        pub const OBJECT_KINDS: &[(&str, &str)] = &[$((stringify!($oname), $osuffix),)*];
        /// The suffix of every kind of worker key. Each is a pair of the kind's name and the
        /// suffix.
        pub const WORKER_KINDS: &[(&str, &str)] = &[$((stringify!($wname), $wsuffix),)*];
        /// The suffix of every kind of group key. Each is a pair of the kind's name and the suffix.
        pub const GROUP_KINDS: &[(&str, &str)] = &[$((stringify!($gname), $gsuffix),)*];
        /// The suffix of every kind of projection key. Each is a pair of the kind's name and the
        /// suffix.
        pub const PROJECTION_KINDS: &[(&str, &str)] = &[$((stringify!($pname), $psuffix),)*];
        /// Every shared key without its prefix. Each is a pair of the kind's name and the key.
        pub const SHARED_KINDS: &[(&str, &str)] = &[$((stringify!($sname), $skey),)*];

        const OBJECTS: &[Kind] = &[$(keys!(@kind $otype $orole $oname $osuffix),)*];
        const WORKERS: &[Kind] = &[$(keys!(@kind $wtype $wrole $wname $wsuffix),)*];
        const GROUPS: &[Kind] = &[$(keys!(@kind $gtype $grole $gname $gsuffix),)*];
        const PROJECTIONS: &[Kind] = &[$(keys!(@kind $ptype $prole $pname $psuffix),)*];
        const SHARED: &[Kind] = &[$(keys!(@kind $stype $srole $sname $skey),)*];
    };
    (@kind $type:ident $role:ident $name:ident $spelling:literal) => {
        Kind { name: stringify!($name), redis_type: stringify!($type), role: Role::$role, spelling: $spelling }
    };
}

keys! {
    objects {
        /// List: the queue of the object. Events are pushed at the head and taken from the tail.
        list Work events = ":events",
        /// String: the id of the object's last delivered event.
        string Remains last_event_id = ":last.event.id",
        /// String: the owner of the object, which is a worker id or `held`.
        string Work event_worker = ":event.worker",
        /// String: the object's state, if the producer stores it in Redis.
        string Producer data = ":data",
        /// List: the batch of a held object.
        list Work events_held = ":events.held",
        /// String: the tag of the held batch, and the reason of the hold.
        string Work events_held_id = ":events.held.id",
        /// Hash: the handler progress of the event at the head of the batch.
        hash Remains event_handled = ":event.handled",
        /// List: the failures of the event at the head of the batch, newest first. An entry is
        /// `MS ATTEMPT ERROR`.
        list Remains event_errors = ":event.errors",
        /// String: `ID KEY` of an event of a schedule with a key, after a slot has taken the event.
        /// It is needed while the event is in hand or held. When the object's last id is as high as
        /// this id, the value has no meaning any more.
        string Remains event_key = ":event.key",
        /// String with a time to live: `NUMBER MS REQUEST`, the request with events of the object
        /// that may be open at a receiver. `MS` is the first time to live.
        string Expires event_sent = ":event.sent",
        /// Hash: the schedules of the object. A field is the key of a schedule, its value the
        /// event. The due times of schedules are in `events.scheduled`.
        hash Work events_scheduled_of = ":events.scheduled",
        /// String with a time to live: the end of an event whose producer awaits it, as JSON;
        /// `?SECONDS INBOX DIGEST` before. In place of the object stand its name, a line feed, and the name of the event.
        string Producer event_end = ":event.end",
        /// List with a time to live: an inbox, the keys of the ends that a process awaits. In place
        /// of the object stand a line feed and the name of the inbox.
        list Producer event_ends = ":event.ends",
    }
    workers {
        /// List: the object that this worker has taken. A late pop may have added further names.
        list Work worker_object = ":object",
        /// List: the worker's batch. The oldest event is at the tail.
        list Work worker_event = ":event",
        /// String: the tag of the batch: id of its first event, hand-outs, attempts and crashes,
        /// without trailing zeros; then a line feed and the object of the batch.
        string Work worker_event_id = ":event.id",
        /// List: a batch whose object is not known, because a key of the slot was deleted by hand or
        /// evicted: the tag, or `0`, and then the events. The oldest event is at the tail.
        list Work worker_lost = ":lost",
        /// String with a time to live: `token host pid start` of the process that runs this name.
        string Work worker_lease = ":lease",
        /// String with a time to live: the status of the process that runs this name, as JSON. No
        /// script uses this key.
        string Work worker_status = ":status",
        /// Hash with a time to live: the reports on the events that the process delivers, by slot, as
        /// JSON. No script uses this key.
        hash Work worker_reports = ":reports",
    }
    groups {
        /// List: the names of objects of the group that were grouped until the group has its turn.
        list Work group_waiting = ":waiting",
    }
    projections {
        /// String: the state of a projection. Names of projections have no dot and no colon, so
        /// this key differs from all other keys.
        string Work event_projection = "",
        /// String with a time to live: the token of the process that runs the projection.
        string Work event_projection_lease = ".lease",
    }
    shared {
        /// List: the markers.
        list Work objects_with_events = "objects.with.events",
        /// Sorted set: the groups with names that were grouped. The score is the number of objects
        /// claimed, by which the groups take turns.
        zset Work event_groups = "event.groups",
        /// String: the number of names that are grouped, without marks.
        string Work event_groups_waiting = "event.groups.waiting",
        /// Hash: the times of the names that are grouped, by group: `LAST OLDEST MARKS`. `OLDEST`:
        /// the names in the list are younger than this time, in ms. `LAST`: the time of the newest
        /// mark in the list. `MARKS`: the number of marks in the list.
        hash Work event_groups_times = "event.groups.times",
        /// String: the number of names, 0 to 15, that were taken in the present round. A round shares
        /// 16 names between priorities.
        string Work event_groups_turns = "event.groups.turns",
        /// Sorted set: the groups that wait for a limit. The score is the time of the next look in ms.
        zset Work event_groups_blocked = "event.groups.blocked",
        /// String: the time of the next look at groups that wait for events per second, in ms, and the
        /// name of the worker that looks.
        string Work event_groups_look = "event.groups.look",
        /// Sorted set: the times, in ms, of the marks that no worker has met yet. The member `met`
        /// has the time of the last mark that was met.
        zset Work event_marks = "event.marks",
        /// Sorted set: held objects by due time in ms.
        zset Work objects_held = "objects.held",
        /// Sorted set: objects that a rule holds. All scores are 0.
        zset Work objects_paused = "objects.paused",
        /// String: the last id given.
        string Work next_event_id = "next.event.id",
        /// Hash: the value for each worker name is its slots, its last token, and its last sign of
        /// life in ms since the epoch.
        hash Work event_workers = "event.workers",
        /// Sorted set: names of workers that have a lease or something in their slots. The score is
        /// the time of the next look at the name, in ms.
        zset Work event_workers_watched = "event.workers.watched",
        /// Sorted set: names of workers that have neither a lease nor anything in their slots. The
        /// score is the time of the next look at the name, in ms.
        zset Work event_workers_departed = "event.workers.departed",
        /// Stream: dead letters.
        stream Work events_dead = "events.dead",
        /// Sorted set: the schedules of all objects by due time in ms. A member is the object, a
        /// line feed, and the key of the schedule.
        zset Work events_scheduled = "events.scheduled",
        /// Sorted set with one member. The member is present if a worker must look for due
        /// schedules now.
        zset Work events_scheduled_wake = "events.scheduled.wake",
        /// Hash: the numbers of promoted events, by lateness. A field is the upper bound of a
        /// lateness in ms.
        hash Work events_scheduled_lateness = "events.scheduled.lateness",
        /// Hash: the cron jobs, by name.
        hash Work events_cron = "events.cron",
        /// Sorted set: the names of the cron jobs that are not paused. The score is the time of the
        /// next tick in ms.
        zset Work events_cron_next = "events.cron.next",
        /// Hash: the value for each cron job is the time up to which its ticks are handled, and the
        /// time of its last run, in ms.
        hash Work events_cron_last = "events.cron.last",
        /// Hash: pauses and blocks.
        hash Work event_rules = "event.rules",
        /// Hash: the limits of the queues. A field is the selector of a limit.
        hash Work event_limits = "event.limits",
        /// Hash: the shares of groups. A field is the selector of a share.
        hash Work event_shares = "event.shares",
        /// String: `MODE PARTS EPOCH`, what workers must know of all shares. It is absent if there is
        /// no share.
        string Work event_shares_summary = "event.shares.summary",
        /// Hash: the events that shares have taken. A field is the selector of a share.
        hash Work event_shares_used = "event.shares.used",
        /// Sorted set: the objects that slots own, each with a colon behind its name. All scores are 0.
        /// It is kept only while shares are set.
        zset Work objects_in_hand = "objects.in.hand",
        /// Hash: the idempotency keys of emits. A field is the object, a line feed, and the key.
        /// The value has a digest of the events.
        hash Work events_emitted = "events.emitted",
        /// Sorted set: the fields of `events.emitted`. The score is the time in ms at which the
        /// window of the idempotency key ends.
        zset Work events_emitted_ends = "events.emitted.ends",
        /// Stream: finalized events. If the log is off, it has only events completed with errors,
        /// about the last thousand.
        stream Work event_log = "event.log",
        /// Hash: the value for each projection is the number of rows up to its position, the number
        /// of rows that it has missed, and the id of the last row.
        hash Work event_projections = "event.projections",
        /// Stream: the actions of operators, about the last thousand.
        stream Work operator_actions = "operator.actions",
        /// Hash: settings and state of the namespace, e.g. the schema version, the partitions and
        /// the replication id.
        hash Work meta = "seriatim.meta",
    }
}

impl Keys {
    /// Returns the keys without a namespace. They have the names that the plain algorithm uses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the keys of a namespace. Its name has 1 to 64 of the characters `A-Z a-z 0-9 _ . -`.
    ///
    /// # Errors
    /// [`NamespaceError`] if the namespace is invalid.
    pub fn with_namespace(namespace: &str) -> Result<Self, NamespaceError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if namespace.is_empty()
            || namespace.len() > NAMESPACE_BYTES_MAX
            || !namespace.bytes().all(allowed)
        {
            return Err(NamespaceError(namespace.to_owned()));
        }
        Ok(Self {
            prefix: format!("{{{namespace}:0}}:"),
        })
    }

    /// Returns the keys of a namespace; for `None`, the keys without a namespace.
    ///
    /// # Errors
    /// [`NamespaceError`] if the namespace is invalid.
    pub fn maybe_namespace(namespace: Option<&str>) -> Result<Self, NamespaceError> {
        namespace.map_or_else(|| Ok(Self::new()), Self::with_namespace)
    }

    /// Returns the prefix of every key: empty, or `{NS:p}:`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the namespace.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.prefix.strip_prefix('{')?.strip_suffix(":0}:")
    }

    /// Returns the key of the list of a group. Its name may have any bytes.
    pub(crate) fn waiting_of(&self, group: &[u8]) -> Vec<u8> {
        let key = self.group_waiting("");
        let (start, end) = key.as_bytes().split_at(self.prefix.len() + GROUP.len());
        [start, group, end].concat()
    }

    /// Returns whether these keys may have this spelling. A key of another program may have it, too.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        let Some(key) = key.strip_prefix(self.prefix.as_bytes()) else {
            return false;
        };
        let begins = [WORKER, GROUP, PROJECTION]
            .iter()
            .any(|start| key.starts_with(start.as_bytes()));
        let is_shared = SHARED_KINDS.iter().any(|(_, name)| key == name.as_bytes());
        begins
            || is_shared
            || OBJECT_KINDS
                .iter()
                .any(|(_, end)| key.len() > end.len() && key.ends_with(end.as_bytes()))
    }

    /// Checks an object's name that was found in Redis. Any producer may have written it. Any bytes
    /// are allowed, but the name must not be empty. Without a namespace, the name must not begin
    /// with a brace.
    ///
    /// # Errors
    /// [`NameError::Empty`] and [`NameError::Brace`].
    pub fn found<'a>(&self, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<&'a [u8], NameError> {
        let name = name.as_ref();
        match name.first() {
            None => Err(NameError::Empty),
            Some(b'{') if self.prefix.is_empty() => {
                Err(NameError::Brace(crate::escape::name(name).into_owned()))
            }
            Some(_) => Ok(name),
        }
    }

    /// Checks an object's name for use under these keys.
    ///
    /// # Errors
    /// [`NameError`] with the first broken rule.
    pub fn object(&self, name: &str) -> Result<ObjectName, NameError> {
        let name = ObjectName::new(name)?;
        if self.prefix.is_empty() && name.as_str().starts_with('{') {
            return Err(NameError::Brace(name.as_str().to_owned()));
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn every_key(keys: &Keys, name: &str, worker: bool) -> Vec<(String, String)> {
        let mut all: Vec<_> = OBJECT_KINDS
            .iter()
            .map(|(kind, suffix)| {
                (
                    format!("{kind} {name}"),
                    [keys.prefix(), name, suffix].concat(),
                )
            })
            .collect();
        if worker {
            all.extend(WORKER_KINDS.iter().map(|(kind, suffix)| {
                (
                    format!("{kind} {name}"),
                    [keys.prefix(), WORKER, name, suffix].concat(),
                )
            }));
        }
        all.extend(
            SHARED_KINDS
                .iter()
                .map(|(kind, key)| ((*kind).to_owned(), [keys.prefix(), key].concat())),
        );
        all
    }

    #[test]
    fn keys_are_those_of_the_algorithm() {
        let keys = Keys::new();
        assert_eq!(keys.events("work:1"), "work:1:events");
        assert_eq!(keys.worker_event_id("a.3"), "event.worker:a.3:event.id");
        let keys = Keys::with_namespace("shop").expect("a valid namespace");
        assert_eq!(keys.objects_with_events(), "{shop:0}:objects.with.events");
        assert_eq!(
            keys.waiting_of(b"a:b"),
            keys.group_waiting("a:b").into_bytes()
        );
    }

    #[test]
    fn keys_of_other_programs_are_recognized() {
        let keys = Keys::new();
        for own in [
            "work:1:events",
            "event.worker:a.3:object",
            "objects.held",
            "event.group:a:waiting",
            "work:1:data",
        ] {
            assert!(keys.may_have(own.as_bytes()), "{own}");
        }
        for foreign in [
            "cart:1",
            "events",
            ":events",
            "session:events:1",
            "objects.holding",
        ] {
            assert!(!keys.may_have(foreign.as_bytes()), "{foreign}");
        }
        let keys = Keys::with_namespace("n").expect("valid");
        assert!(keys.may_have(b"{n:0}:work:1:events") && !keys.may_have(b"work:1:events"));
    }

    #[test]
    fn a_bad_namespace_is_refused() {
        for bad in ["", "a b", "a:b", "{a}", &"x".repeat(65)] {
            assert!(Keys::with_namespace(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Tests that two keys of different kinds or with different names are never equal, even if
        /// names are made of parts of other keys.
        #[test]
        fn no_two_kinds_share_a_key(
            names in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec![
                        "a", ":", "event.worker", "events", ":events", ":events.held", ":event.id", ":object", ":lease", "{", "}", "{n:0}:",
                        "objects.held", ":last.event.id", ".", "1",
                    ]),
                    1..6,
                ).prop_map(|parts| parts.concat()),
                1..6,
            ),
            worker in "[A-Za-z0-9_-]{1,8}\\.[0-9]{1,3}",
        ) {
            let mut seen: HashMap<String, String> = HashMap::new();
            for (space, keys) in [("none", Keys::new()), ("n", Keys::with_namespace("n").expect("valid"))] {
                let objects = names.iter().filter(|name| keys.object(name).is_ok()).map(|name| (name.as_str(), false));
                for (name, is_worker) in objects.chain([(worker.as_str(), true)]) {
                    for (what, key) in every_key(&keys, name, is_worker) {
                        let what = format!("{space} {what}");
                        if let Some(other) = seen.insert(key.clone(), what.clone()) {
                            prop_assert_eq!(other, what, "both are {}", key);
                        }
                    }
                }
            }
        }
    }
}
