//! The calls to Redis: the scripts through the library, and plain commands for producers,
//! operators, and the effects of time.

use std::sync::Arc;
use std::time::Duration;

use super::super::reference::NAMES;
use super::super::shares::{self, Share};
use redis::Value;
use seriatim::wire::operator::{
    self, CancelledSchedule, InHand, Released, RuleStep, Ruled, Settle, Settled, ShareDone,
    ShareParts, ShareStep, Skipped,
};
use seriatim::wire::values::Priority;
use seriatim::wire::{
    self, Advanced, Attached, CancelReply, ClaimFirst, Connect, Detached, EventLog, Finished,
    Handled, Renewed, ScriptError, Sent, SlotBatch,
};

use super::super::advance::Advance;
use super::super::reference::{self, FAR, Given, Reply, SENT_MS, result_of};
use super::super::schedules::{Mode, PENDING, PENDING_MS, awaited, member};
use super::super::world::{Call, Part};
use super::{AGE_MS, BY, DAY, LONG_AGO, Server};
use crate::support::sweep::sweep;

impl Server {
    /// Calls the script. Returns the reply, and the time until the next object is due.
    pub(super) async fn call(&mut self, call: &Call) -> Result<(Reply, Option<Duration>), String> {
        let (conn, keys) = (&mut self.conn, &self.keys);
        let reply = match call {
            Call::Advance(args) => match self.advance(args).await {
                Ok(reply) => return Ok(reply),
                Err(error) => Err(error),
            },
            Call::Attach(args) => {
                let args = wire::Attach {
                    name: args.name,
                    token: &args.token,
                    holder: args.holder,
                    lease: Duration::from_millis(args.lease_ms),
                    slots: args.slots,
                    displace: &args.displace,
                    before: &args.before,
                    crashes_max: args.crashes_max,
                    suspects: suspects(&args.room),
                };
                wire::attach(conn, keys, &args)
                    .await
                    .map(|attached| match attached {
                        Attached::Attached { kept, held, .. } => Reply::Attached { kept, held },
                        Attached::InUse { lease, .. } => Reply::InUse(lease),
                    })
            }
            Call::Renew {
                name,
                token,
                lease_ms,
                slots,
            } => {
                let lease = Duration::from_millis(*lease_ms);
                wire::renew(conn, keys, name, token, lease, *slots)
                    .await
                    .map(|renewed| match renewed {
                        Renewed::Renewed { strays, .. } => Reply::Renewed { strays },
                        Renewed::Lapsed => Reply::Lapsed,
                        Renewed::Fenced { lease } => Reply::Fenced(lease),
                    })
            }
            Call::Adopt { own, crashes_max } => sweep(conn, keys, own, *crashes_max, DAY)
                .await
                .map(|swept| Reply::Swept {
                    held: swept.held,
                    strays: swept.strays,
                    names: swept.names,
                }),
            Call::Detach { name, token } => {
                wire::detach(conn, keys, name, token)
                    .await
                    .map(|detached| match detached {
                        Detached::Detached { held, .. } => Reply::Detached { held },
                        Detached::Lapsed => Reply::Lapsed,
                        Detached::Fenced { lease } => Reply::Fenced(lease),
                    })
            }
            Call::Finish(args) => {
                let batch = SlotBatch {
                    name: args.name,
                    token: &args.token,
                    slot: args.slot,
                    object: &args.object,
                    tag: args.tag.into(),
                };
                let finished = args.finished.as_ref();
                let emits = finished.and_then(|(_, _, emits)| emits.as_ref());
                let emits = emits.map(|(field, emits)| (*field, emits.text()));
                let result = finished.and_then(|(id, field, _)| result_of(*id, field));
                let finished = finished.map(|(id, field, _)| Finished {
                    id: *id,
                    field,
                    value: wire::FINISHED,
                    emits: emits.as_ref().map(|(field, text)| (*field, &text[..])),
                    result: result
                        .as_ref()
                        .map(|(field, text)| (field.as_str(), text.as_bytes())),
                });
                wire::handled(conn, keys, &batch, finished)
                    .await
                    .map(|handled| match handled {
                        Handled::Kept {
                            id,
                            finished,
                            emitted,
                            results,
                        } => Reply::Kept(id, finished.into_keys().collect(), emitted, results),
                        Handled::Unpushed { id } => Reply::Unpushed(id),
                        Handled::Other => Reply::OtherBatch,
                        Handled::Lapsed => Reply::Lapsed,
                        Handled::Fenced { lease } => Reply::Fenced(lease),
                    })
            }
            Call::Sent(args) => {
                let batch = SlotBatch {
                    name: args.name,
                    token: &args.token,
                    slot: args.slot,
                    object: &args.object,
                    tag: args.tag.into(),
                };
                let limit = Duration::from_millis(SENT_MS) - wire::SENT_MARGIN;
                if args.is_over {
                    let over = wire::request_over(conn, keys, &args.object, args.request);
                    over.await.map(|()| Reply::Over)
                } else {
                    let sent = wire::sent(conn, keys, &batch, args.request, limit, args.highest);
                    sent.await.map(|sent| match sent {
                        Sent::Sent { number, .. } => Reply::Sent(number),
                        Sent::Earlier(_) => Reply::Earlier,
                        Sent::Other => Reply::OtherBatch,
                        Sent::Lapsed => Reply::Lapsed,
                        Sent::Fenced { lease } => Reply::Fenced(lease),
                    })
                }
            }
            Call::Settle { retry, serials } => {
                let settle = if *retry { Settle::Retry } else { Settle::Drop };
                let id = |serial| self.dead_ids.get(serial).map_or("1-1", String::as_str);
                let ids: Vec<&str> = serials.iter().map(id).collect();
                operator::dead(conn, keys, BY, settle, &ids)
                    .await
                    .map(|settled| {
                        let word = |settled| match settled {
                            Settled::Retried => "retried",
                            Settled::RetriedLate => "retried_late",
                            Settled::Dropped => "dropped",
                            Settled::Gone => "gone",
                            Settled::WrongType => "wrong_type",
                            _ => "unreadable",
                        };
                        Reply::Settled(settled.into_iter().map(word).collect())
                    })
            }
            Call::SetFree(object) => {
                operator::release(conn, keys, BY, object)
                    .await
                    .map(|released| match released {
                        Released::Released(why) => Reply::Released(why),
                        Released::NotHeld(owner) => Reply::NotHeld(owner),
                        Released::Paused => Reply::Paused,
                        Released::NoIds(why) => Reply::NoIds(why),
                    })
            }
            Call::Skip(object, expected) => operator::skip(conn, keys, BY, object, *expected)
                .await
                .map(|skipped| match skipped {
                    Skipped::Skipped { id, left, .. } => Reply::Skipped { id, left },
                    Skipped::NotHeld(owner) => Reply::NotHeld(owner),
                    Skipped::Paused => Reply::Paused,
                    Skipped::NoBatch(why) => Reply::NoBatch(why),
                    Skipped::NoIds(why) => Reply::NoIds(why),
                    Skipped::Other(id) => Reply::OtherHead(id),
                }),
            Call::CountInHand => self.count_in_hand().await.map(|_| Reply::Shared("counted")),
            Call::Share(prefix, share) => self.share(prefix, *share).await,
            Call::Rule(kind, selector, set) => {
                let step = match set {
                    Some(ends) => RuleStep::Set(ends.then(|| Duration::from_millis(FAR))),
                    None => RuleStep::Lift,
                };
                operator::rule(conn, keys, BY, step, kind, selector, 1000)
                    .await
                    .map(|ruled| {
                        Reply::Ruled(match ruled {
                            Ruled::New => "new",
                            Ruled::Again => "again",
                            Ruled::Revived => "revived",
                            Ruled::Lifted => "lifted",
                            Ruled::Lifting => "lifting",
                            Ruled::NotSet => "not set",
                            _ => "?",
                        })
                    })
            }
            Call::Connect {
                replication_id,
                highest,
                first_id,
                log,
            } => {
                let seen = Connect {
                    highest: *highest,
                    first_id: *first_id,
                    event_log: log.then(EventLog::default),
                };
                wire::connect(conn, keys, replication_id, seen)
                    .await
                    .map(|found| Reply::Connected {
                        changed: found.changed,
                        counter: found.counter,
                    })
            }
            Call::Promote { events, bytes } => wire::promote(conn, keys, *events, *bytes)
                .await
                .map(|promoted| Reply::Promoted {
                    events: promoted.events,
                    is_due: promoted.next_due.map(|due| due.is_zero()),
                    markers: promoted.markers,
                    names: promoted.names,
                    wrong: promoted
                        .wrong
                        .into_iter()
                        .map(|(key, _)| key.into())
                        .collect(),
                }),
            Call::CancelTaken(object, key) => self.cancel_taken(object, key).await,
            Call::CancelAs(object, key) => {
                operator::cancel(conn, keys, BY, object, key)
                    .await
                    .map(|cancelled| match cancelled {
                        CancelledSchedule::Cancelled { id } => {
                            Reply::CancelledAs("cancelled", id.unwrap_or(0), false)
                        }
                        CancelledSchedule::Running { id, rescheduled } => {
                            Reply::CancelledAs("running", id, rescheduled)
                        }
                        _ => Reply::CancelledAs("absent", 0, false),
                    })
            }
            Call::Forget(names) => {
                let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                wire::forget(conn, keys, &names).await.map(Reply::Forgot)
            }
            Call::ForgetAs(name) => operator::forget(conn, keys, BY, name)
                .await
                .map(|forgot| Reply::Forgot(vec![forgot])),
            plain => {
                self.plain(plain).await;
                Ok(Reply::Done)
            }
        };
        match reply {
            Ok(reply) => Ok((reply, None)),
            Err(ScriptError::Counter(text)) => Ok((Reply::Counter(text), None)),
            Err(error) if error.is_wrong_type() => Ok((Reply::WrongType, None)),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn share(&mut self, prefix: &[u8], share: Option<Share>) -> Result<Reply, ScriptError> {
        let step = match share {
            None => ShareStep::Remove,
            Some(Share {
                weight,
                class,
                in_flight,
                burst,
            }) => {
                let counted_since = self.count_in_hand().await?;
                let priority = class.map(|class| {
                    [Priority::High, Priority::Normal, Priority::Low][(class + 1) as usize]
                });
                let (weight, rate) = (weight.map(u64::from), burst.map(|_| shares::RATE));
                ShareStep::Set {
                    counted_since,
                    parts: ShareParts {
                        weight,
                        priority,
                        in_flight,
                        rate,
                        burst,
                    },
                }
            }
        };
        let selector = shares::selector(prefix);
        let done = operator::share(&mut self.conn, &self.keys, BY, &selector, step).await?;
        Ok(Reply::Shared(match done {
            ShareDone::New => "new",
            ShareDone::Again => "again",
            ShareDone::Removed => "removed",
            ShareDone::NotSet => "not set",
            _ => "?",
        }))
    }

    /// Makes workers count the objects in hand, and counts those that slots own already. Returns the time
    /// since when they are counted.
    async fn count_in_hand(&mut self) -> Result<u64, ScriptError> {
        let since = operator::count_in_hand(&mut self.conn, &self.keys, BY).await?;
        let slots: Vec<String> = NAMES
            .iter()
            .flat_map(|name| (0..4).map(move |slot| format!("{name}.{slot}")))
            .collect();
        operator::in_hand(&mut self.conn, &self.keys, since, InHand::Slots(&slots)).await?;
        let mut after = Vec::new();
        loop {
            let look = InHand::Members {
                after: &after,
                count: 2,
            };
            match operator::in_hand(&mut self.conn, &self.keys, since, look).await? {
                Some(last) if !last.is_empty() => after = last,
                _ => return Ok(since),
            }
        }
    }

    async fn cancel_taken(&mut self, object: &[u8], key: &str) -> Result<Reply, ScriptError> {
        let taken: Option<String> = redis::cmd("GET")
            .arg(self.key(object, ":event.key"))
            .query_async(&mut self.conn)
            .await?;
        let id = taken.as_deref().and_then(|taken| taken.split(' ').next());
        let id = id.unwrap_or_default().to_owned();
        let reply = wire::cancel(&self.keys, object, key, &id, true)
            .query_async(&mut self.conn)
            .await?;
        Ok(match CancelReply::read(&reply) {
            Ok(CancelReply::Cancelled) => Reply::Cancelled("cancelled"),
            Ok(CancelReply::Running) => Reply::Cancelled("running"),
            Ok(_) => Reply::Cancelled("absent"),
            Err(error) => return Err(error.into()),
        })
    }

    async fn advance(&mut self, args: &Advance) -> Result<(Reply, Option<Duration>), ScriptError> {
        let bounds = wire::Bounds {
            batch: args.batch,
            batch_bytes: args.batch_bytes,
            reply_bytes: args.reply_bytes,
            claims: args.claims,
            markers: args.markers,
            forget_after: (args.forget_ms > 0).then(|| Duration::from_millis(args.forget_ms)),
            group_depth: usize::from(args.has_groups),
            suspects: suspects(&args.room),
        };
        let from = if args.from_held {
            ClaimFirst::Held
        } else {
            ClaimFirst::Markers
        };
        let mut call = wire::Advance::beyond(
            &self.keys,
            args.name,
            &args.token,
            bounds,
            from,
            args.highest,
            &Arc::default(),
        );
        if args.log {
            call.log(EventLog::default());
        }
        for (slot, reported) in &args.slots {
            match reported {
                Some(reported) => {
                    if reported.handled {
                        call.handled(*slot);
                    }
                    call.report_taken(*slot, &reported.report(), Duration::from_millis(AGE_MS));
                }
                None => call.free(*slot),
            }
        }
        args.looks.iter().for_each(|slot| call.look(*slot));
        Ok(match wire::advance(&mut self.conn, &call).await? {
            Advanced::Ok {
                next_due,
                more,
                unsorted,
                from,
                mut batches,
                quarantined,
            } => {
                batches.sort_by_key(|batch| batch.slot);
                let given = batches.into_iter().map(|batch| Given {
                    slot: batch.slot,
                    object: batch.object,
                    tag: batch.tag.to_string(),
                    prev: batch.prev,
                    events: batch.events,
                });
                let advanced = reference::Advanced {
                    due: None,
                    more,
                    unsorted,
                    from_held: from == ClaimFirst::Held,
                    batches: given.collect(),
                    quarantined,
                };
                (Reply::Advanced(advanced), next_due)
            }
            Advanced::Lapsed => (Reply::Lapsed, None),
            Advanced::Fenced { lease } => (Reply::Fenced(lease), None),
        })
    }

    /// Sends the plain commands of a producer or an operator, or those that simulate an effect of
    /// time.
    pub(super) async fn plain(&mut self, call: &Call) {
        let markers = self.keys.objects_with_events();
        match call {
            Call::Emit(pushes) => {
                let mut pipe = redis::pipe();
                for (object, events) in pushes {
                    let events: Vec<&[u8]> = events.iter().map(|event| &event[..]).collect();
                    pipe.cmd("LPUSH")
                        .arg(self.key(object, ":events"))
                        .arg(events);
                    pipe.cmd("LPUSH").arg(&markers).arg(&object[..]);
                }
                // The commands are not in a transaction. An error is allowed, because some
                // schedules make the queue's type wrong.
                let _ = pipe.query_async::<Value>(&mut self.conn).await;
            }
            Call::Marker(object) => drop(self.run("LPUSH", &[markers.as_bytes(), object]).await),
            Call::Mark(ms, is_known) => {
                let (ms, mark) = (ms.to_string(), format!("\0t{ms}"));
                if *is_known {
                    let marks = self.keys.event_marks();
                    let add = [marks.as_bytes(), ms.as_bytes(), ms.as_bytes()];
                    self.run("ZADD", &add).await;
                }
                let add = [markers.as_bytes(), mark.as_bytes()];
                self.run("LPUSH", &add).await;
            }
            Call::Schedule {
                object,
                key,
                due,
                event,
                mode,
            } => {
                let (set, due) = (self.keys.events_scheduled(), due.to_string());
                let put = if *mode == Mode::KeepFirst {
                    "HSETNX"
                } else {
                    "HSET"
                };
                let hash = self.key(object, ":events.scheduled");
                self.run(put, &[&hash, key.as_bytes(), event]).await;
                let mut add: Vec<&[u8]> = vec![set.as_bytes()];
                add.extend((*mode != Mode::Replace).then_some(&b"NX"[..]));
                let member = member(object, key);
                add.extend([due.as_bytes(), &member]);
                self.run("ZADD", &add).await;
                if let Some(awaited) = awaited(object, key) {
                    let (end, ms) = (self.key(&awaited, ":event.end"), PENDING_MS.to_string());
                    let set = [&end, PENDING.as_bytes(), b"PX", ms.as_bytes()];
                    self.run("SET", &set).await;
                }
            }
            Call::Cancel(object, key) => {
                let hash = self.key(object, ":events.scheduled");
                self.run("HDEL", &[&hash, key.as_bytes()]).await;
                let set = self.keys.events_scheduled();
                let member = member(object, key);
                self.run("ZREM", &[set.as_bytes(), &member]).await;
            }
            Call::Pop(w) => {
                let to = self.keys.worker_object(w);
                let args = [markers.as_bytes(), to.as_bytes(), b"RIGHT", b"LEFT"];
                self.run("LMOVE", &args).await;
            }
            Call::Expire(name) => {
                let lease = self.keys.worker_lease(name);
                self.run("DEL", &[lease.as_bytes()]).await;
            }
            Call::Lose(counter) => {
                let key = self.keys.next_event_id();
                match counter {
                    Some(counter) => {
                        let counter = counter.to_string();
                        self.run("SET", &[key.as_bytes(), counter.as_bytes()]).await
                    }
                    None => self.run("DEL", &[key.as_bytes()]).await,
                };
            }
            Call::Day(name) => {
                let workers = self.keys.event_workers();
                let field = [workers.as_bytes(), name.as_bytes()];
                if let Value::BulkString(value) = self.run("HGET", &field).await {
                    let text = String::from_utf8_lossy(&value).into_owned();
                    let (rest, _) = text.rsplit_once(' ').expect("slots, token, time");
                    let text = format!("{rest} {LONG_AGO}");
                    self.run("HSET", &[field[0], field[1], text.as_bytes()])
                        .await;
                }
            }
            Call::Release(names) => {
                let held = self.keys.objects_held();
                let mut args: Vec<&[u8]> = vec![held.as_bytes(), b"XX"];
                args.extend(names.iter().flat_map(|name| [&b"0"[..], name]));
                self.run("ZADD", &args).await;
            }
            Call::Fade(object) => {
                let key = self.key(object, ":last.event.id");
                if matches!(self.run("PTTL", &[&key]).await, Value::Int(1..)) {
                    self.run("DEL", &[&key]).await;
                }
            }
            Call::Look => {
                let blocked = self.keys.event_groups_blocked();
                if let Value::Array(members) =
                    self.run("ZRANGE", &[blocked.as_bytes(), b"0", b"-1"]).await
                {
                    for member in members {
                        let Value::BulkString(member) = member else {
                            unreachable!("a member is a text")
                        };
                        self.run("ZADD", &[blocked.as_bytes(), b"XX", b"0", &member])
                            .await;
                    }
                }
            }
            Call::EndRule(field) => {
                let rules = self.keys.event_rules();
                if let Value::BulkString(value) = self.run("HGET", &[rules.as_bytes(), field]).await
                {
                    let text = String::from_utf8_lossy(&value).into_owned();
                    let (set, rest) = text.split_once(' ').expect("numbers");
                    let (_, rest) = rest.split_once(' ').expect("numbers");
                    let ended = format!("{set} 1 {rest}");
                    self.run("HSET", &[rules.as_bytes(), field, ended.as_bytes()])
                        .await;
                    if self.run("HGET", &[rules.as_bytes(), b"next"]).await
                        != Value::BulkString(b"0".to_vec())
                    {
                        self.run("HSET", &[rules.as_bytes(), b"next", b"1"]).await;
                    }
                }
            }
            Call::Wrong(object, Part::LastText) => {
                let last = self.key(object, ":last.event.id");
                self.run("SET", &[&last, b"1e5"]).await;
            }
            Call::Wrong(object, part) => {
                let key = self.key(object, suffix(*part));
                self.run("DEL", &[&key]).await;
                self.run("HSET", &[&key, b"wrong", b"type"]).await;
            }
            Call::Heal(object) => {
                for part in [
                    Part::Queue,
                    Part::Last,
                    Part::Held,
                    Part::HeldId,
                    Part::Errors,
                ] {
                    let key = self.key(object, suffix(part));
                    if self.run("TYPE", &[&key]).await == Value::SimpleString("hash".to_owned())
                        || part == Part::Last
                            && self.run("GET", &[&key]).await == Value::BulkString(b"1e5".to_vec())
                    {
                        self.run("DEL", &[&key]).await;
                    }
                }
            }
            script => unreachable!("{script:?} is a script's"),
        }
    }
}

/// Returns the limits of suspects for the library. A suspect above the limits is put off to the far
/// future.
fn suspects(room: &reference::Room) -> wire::Suspects {
    let mut suspects = wire::Suspects::of(room.crashes_max, room.settles).put_off(FAR);
    room.in_hand
        .iter()
        .for_each(|crashes| suspects.has(*crashes));
    suspects
}

fn suffix(part: Part) -> &'static str {
    match part {
        Part::Queue => ":events",
        Part::Last | Part::LastText => ":last.event.id",
        Part::Owner => ":event.worker",
        Part::Held => ":events.held",
        Part::HeldId => ":events.held.id",
        Part::Errors => ":event.errors",
    }
}
