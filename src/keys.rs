//! Every Redis key, spelled in one place, for Rust and for Lua.
//!
//! A key is a prefix, then the name of its object, worker or projection, then a fixed suffix. The
//! prefix is empty without a namespace and `{NS:p}:` with one, so that all keys of one partition
//! share a cluster slot.
//!
//! Two different (kind, name) pairs never share a key, for these reasons:
//!
//! - The text after the last colon shows the kind.
//! - Kinds of objects and kinds of workers have different suffixes.
//! - Shared keys have no colon.
//! - Without a namespace, a name must not begin with `{`; [`Keys::object`] checks that.

use crate::event::{NameError, ObjectName};

/// The first part of a worker's key, after the prefix.
pub(crate) const WORKER: &str = "event.worker:";
/// The first part of a projection's key, after the prefix.
const PROJECTION: &str = "event.projection.";

/// Returns names and texts for the table of keys that every script has:
///
/// - `WORKER`, `PROJECTION`: the first parts of the keys of workers and projections
/// - `events`, `worker_event`, `event_projection_lease`: the suffix after the object, the worker
///   id, or the projection's name
/// - `objects_held`: a whole key without its prefix
pub(crate) fn for_lua() -> impl Iterator<Item = (&'static str, &'static str)> {
    let kinds = [OBJECT_KINDS, WORKER_KINDS, PROJECTION_KINDS, SHARED_KINDS].into_iter().flatten().copied();
    [("WORKER", WORKER), ("PROJECTION", PROJECTION)].into_iter().chain(kinds)
}

/// The longest namespace, in bytes.
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

/// The use of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "worker"), allow(dead_code))]
enum Role {
    /// Workers use the key. An object with such a key is not idle.
    Work,
    /// The key may remain of an idle object; `forget` deletes the key.
    Remains,
    /// Only producers use the key.
    Producer,
}

/// A kind of key.
#[cfg_attr(not(feature = "worker"), allow(dead_code))]
struct Kind {
    name: &'static str,
    redis_type: &'static str,
    role: Role,
    spelling: &'static str,
}

/// Returns the Redis type of a kind of key, as `TYPE` replies: `list`, `string`, `zset`, `hash` or
/// `stream`. Returns `None` if the kind does not exist.
pub fn type_of(kind: &str) -> Option<&'static str> {
    let mut all = [OBJECTS, WORKERS, PROJECTIONS, SHARED].into_iter().flatten();
    all.find(|known| known.name == kind).map(|known| known.redis_type)
}

/// Returns whether `kind` is a kind of worker key that belongs to a process, not to one of its slots.
#[cfg(feature = "worker")]
pub fn is_of_process(kind: &str) -> bool {
    matches!(kind, "worker_lease" | "worker_status")
}

/// Returns whether `kind` is a kind of object key that scripts read.
#[cfg(feature = "worker")]
pub(crate) fn is_read_of_object(kind: &str) -> bool {
    OBJECTS.iter().any(|known| known.name == kind && matches!(known.role, Role::Work | Role::Remains))
}

/// Returns the names of lists of keys in the scripts, each with its text, a Lua table:
///
/// - `OBJECT_TYPES`, `SHARED_TYPES`: pairs of suffix and type, of the keys that workers need
/// - `OBJECT_REMAINS`: the suffixes of the keys that may remain of an idle object
pub(crate) fn lists_for_lua() -> [(&'static str, String); 3] {
    let types = |kinds: &[Kind]| {
        let used = kinds.iter().filter(|kind| matches!(kind.role, Role::Work | Role::Remains));
        used.map(|kind| format!("{{ '{}', '{}' }}", kind.spelling, kind.redis_type)).collect::<Vec<_>>().join(", ")
    };
    let remains = OBJECTS.iter().filter(|kind| kind.role == Role::Remains).map(|kind| format!("'{}'", kind.spelling));
    let remains = remains.collect::<Vec<_>>().join(", ");
    [("OBJECT_TYPES", types(OBJECTS)), ("SHARED_TYPES", types(SHARED)), ("OBJECT_REMAINS", remains)]
        .map(|(name, items)| (name, format!("{{ {items} }}")))
}

/// Generates from one list the functions that spell keys, and the tables of all kinds. The scripts
/// get their keys from the same tables. An entry is a Redis type, a [`Role`], a name, and the
/// spelling.
macro_rules! keys {
    (
        objects { $($(#[$odoc:meta])* $otype:ident $orole:ident $oname:ident = $osuffix:literal,)* }
        workers { $($(#[$wdoc:meta])* $wtype:ident $wrole:ident $wname:ident = $wsuffix:literal,)* }
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
            $($(#[$pdoc])* pub fn $pname(&self, name: &str) -> String {
                [&self.prefix, PROJECTION, name, $psuffix].concat()
            })*
            $($(#[$sdoc])* pub fn $sname(&self) -> String {
                [&self.prefix, $skey].concat()
            })*
        }

        /// The suffix of every kind of object key, with the kind's name.
        pub const OBJECT_KINDS: &[(&str, &str)] = &[$((stringify!($oname), $osuffix),)*];
        /// The suffix of every kind of worker key, with the kind's name.
        pub const WORKER_KINDS: &[(&str, &str)] = &[$((stringify!($wname), $wsuffix),)*];
        /// The suffix of every kind of projection key, with the kind's name.
        pub const PROJECTION_KINDS: &[(&str, &str)] = &[$((stringify!($pname), $psuffix),)*];
        /// Every shared key without its prefix, with the kind's name.
        pub const SHARED_KINDS: &[(&str, &str)] = &[$((stringify!($sname), $skey),)*];

        const OBJECTS: &[Kind] = &[$(keys!(@kind $otype $orole $oname $osuffix),)*];
        const WORKERS: &[Kind] = &[$(keys!(@kind $wtype $wrole $wname $wsuffix),)*];
        const PROJECTIONS: &[Kind] = &[$(keys!(@kind $ptype $prole $pname $psuffix),)*];
        const SHARED: &[Kind] = &[$(keys!(@kind $stype $srole $sname $skey),)*];
    };
    (@kind $type:ident $role:ident $name:ident $spelling:literal) => {
        Kind { name: stringify!($name), redis_type: stringify!($type), role: Role::$role, spelling: $spelling }
    };
}

keys! {
    objects {
        /// List: queued events; pushed at the head, taken from the tail.
        list Work events = ":events",
        /// String: the id of the object's last delivered event.
        string Remains last_event_id = ":last.event.id",
        /// String: the owner, a worker id, or `held`.
        string Work event_worker = ":event.worker",
        /// String: the object's state, if the producer keeps it here.
        string Producer data = ":data",
        /// List: the batch of a held object.
        list Work events_held = ":events.held",
        /// String: the tag of the held batch, and the reason of the hold.
        string Work events_held_id = ":events.held.id",
        /// Hash: the handler progress of the event at the head of the batch.
        hash Remains event_handled = ":event.handled",
        /// List: the failures of the event at the head of the batch, newest first: `MS ATTEMPT
        /// ERROR`.
        list Remains event_errors = ":event.errors",
        /// String: the id and the key of an event of a schedule with a key that a slot has taken,
        /// while it is in hand or held. The value has no meaning once the object's last id is as
        /// high as this id.
        string Remains event_key = ":event.key",
        /// Hash: the object's schedules, key to event. Their times are in `events.scheduled`.
        hash Work events_scheduled_of = ":events.scheduled",
    }
    workers {
        /// List: the objects that this worker has taken off the marker list.
        list Work worker_object = ":object",
        /// List: the worker's batch; the oldest event at the tail.
        list Work worker_event = ":event",
        /// String: the tag of the batch: id of its first event, hand-outs, attempts and crashes,
        /// without trailing zeros.
        string Work worker_event_id = ":event.id",
        /// String with a time to live: `token host pid start` of the process that runs this name.
        string Work worker_lease = ":lease",
        /// String with a time to live: the status of that process, JSON. No script uses it.
        string Work worker_status = ":status",
    }
    projections {
        /// String: the state of a projection. Names of projections have no dot and no colon, so
        /// this key differs from all others.
        string Work event_projection = "",
        /// String with a time to live: the token of the process that runs the projection.
        string Work event_projection_lease = ".lease",
    }
    shared {
        /// List: the markers.
        list Work objects_with_events = "objects.with.events",
        /// Sorted set: the times of the marks that no worker has met yet, in ms, and with the member
        /// `met` the time of the last mark that was met.
        zset Work event_marks = "event.marks",
        /// Sorted set: held objects by due time in ms.
        zset Work objects_held = "objects.held",
        /// Sorted set: objects held by a rule, all scores 0.
        zset Work objects_paused = "objects.paused",
        /// String: the last id given.
        string Work next_event_id = "next.event.id",
        /// Hash: worker name to slots, last token, and last sign of life in ms since the epoch.
        hash Work event_workers = "event.workers",
        /// Sorted set: names of workers that are alive or have something in their slots, by the
        /// time of the next look at them in ms.
        zset Work event_workers_watched = "event.workers.watched",
        /// Sorted set: names of workers that have neither a lease nor anything in their slots, by
        /// the time of the next look at them in ms.
        zset Work event_workers_departed = "event.workers.departed",
        /// Stream: dead letters.
        stream Work events_dead = "events.dead",
        /// Sorted set: the schedules of all objects by due time in ms. A member is the object, a
        /// line feed, and the key of the schedule.
        zset Work events_scheduled = "events.scheduled",
        /// Sorted set with one member: present if a worker must look for due schedules now.
        zset Work events_scheduled_wake = "events.scheduled.wake",
        /// Hash: the number of promoted events by lateness. A field is the upper bound in ms.
        hash Work events_scheduled_lateness = "events.scheduled.lateness",
        /// Hash: the cron jobs, by name.
        hash Work events_cron = "events.cron",
        /// Sorted set: the names of the cron jobs that are not paused, by the time of the next tick
        /// in ms.
        zset Work events_cron_next = "events.cron.next",
        /// Hash: cron job to the time up to which its ticks are handled, and the time of its last
        /// run, in ms.
        hash Work events_cron_last = "events.cron.last",
        /// Hash: pauses and blocks.
        hash Work event_rules = "event.rules",
        /// Hash: limits of the queues, by selector.
        hash Work event_limits = "event.limits",
        /// Hash: idempotency keys of emits, each with a digest of its events. A field is the
        /// object, a line feed, and the key.
        hash Work events_emitted = "events.emitted",
        /// Sorted set: the same fields, by the end of their time in ms.
        zset Work events_emitted_ends = "events.emitted.ends",
        /// Stream: finalized events. With the log off: only events completed with errors, about the
        /// last thousand.
        stream Work event_log = "event.log",
        /// Hash: projection name to the number of rows up to its position, the number of rows that
        /// it missed, and the id of the last row.
        hash Work event_projections = "event.projections",
        /// Stream: the actions of operators, about the last thousand.
        stream Work operator_actions = "operator.actions",
        /// Hash: schema version, partitions, replication id.
        hash Work meta = "seriatim.meta",
    }
}

impl Keys {
    /// Returns the keys without a namespace: the names of the plain algorithm.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the keys of a namespace: 1 to 64 of `A-Z a-z 0-9 _ . -`.
    ///
    /// # Errors
    /// [`NamespaceError`] if the namespace is invalid.
    pub fn with_namespace(namespace: &str) -> Result<Self, NamespaceError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || !namespace.bytes().all(allowed) {
            return Err(NamespaceError(namespace.to_owned()));
        }
        Ok(Self { prefix: format!("{{{namespace}:0}}:") })
    }

    /// Returns the keys of a namespace, or the keys without one.
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
    #[cfg(all(feature = "traces", feature = "worker"))]
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.prefix.strip_prefix('{')?.strip_suffix(":0}:")
    }

    /// Checks an object's name found in Redis, written by any producer. Any bytes are allowed, but
    /// the name must not be empty. Without a namespace it must not begin with a brace.
    ///
    /// # Errors
    /// [`NameError::Empty`] and [`NameError::Brace`].
    pub fn found<'a>(&self, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<&'a [u8], NameError> {
        let name = name.as_ref();
        match name.first() {
            None => Err(NameError::Empty),
            Some(b'{') if self.prefix.is_empty() => Err(NameError::Brace(crate::escape::name(name).into_owned())),
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
            .map(|(kind, suffix)| (format!("{kind} {name}"), [keys.prefix(), name, suffix].concat()))
            .collect();
        if worker {
            all.extend(
                WORKER_KINDS
                    .iter()
                    .map(|(kind, suffix)| (format!("{kind} {name}"), [keys.prefix(), WORKER, name, suffix].concat())),
            );
        }
        all.extend(SHARED_KINDS.iter().map(|(kind, key)| ((*kind).to_owned(), [keys.prefix(), key].concat())));
        all
    }

    #[test]
    fn keys_are_those_of_the_algorithm() {
        let keys = Keys::new();
        assert_eq!(keys.events("work:1"), "work:1:events");
        assert_eq!(keys.worker_event_id("a.3"), "event.worker:a.3:event.id");
        let keys = Keys::with_namespace("shop").expect("a valid namespace");
        assert_eq!(keys.objects_with_events(), "{shop:0}:objects.with.events");
    }

    #[test]
    fn a_bad_namespace_is_refused() {
        for bad in ["", "a b", "a:b", "{a}", &"x".repeat(65)] {
            assert!(Keys::with_namespace(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Tests that no two (kind, name) pairs share a key, even if names are made of parts of
        /// other keys.
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
