//! The places for requests on the connections to receivers.
//!
//! Over HTTP/2, requests to one receiver share a connection, and the receiver limits the number of
//! requests on it at a time. The HTTP client queues further requests, without a sign. So there are
//! several *lanes*, each with its own connections, and each lane has at most as many requests as
//! one connection takes. A further request waits for a place.
//!
//! The client does not tell the limit of a receiver. So a lane has [`STREAMS`] places at first. If a
//! request in a lane is not sent although other requests in this lane are, the lane has as many
//! places as requests are sent.
//!
//! The client compares a request with the limit by the number of open streams. It takes the bodies of
//! several requests before it opens the stream of the first one, so it could take more bodies than
//! the receiver allows streams. Such a request would seem to be sent, and would wait. So the client
//! gets one request of a lane at a time: each request waits for its [`Turn`]. Its body has the turn,
//! and the client drops the body when the stream is open.
//!
//! The first request of a lane opens a connection. Other requests wait until the receiver has had
//! the time to tell its limit. Otherwise each of them would open a connection of its own, and most
//! of these would be closed again. Until the first answer, it is not known whether the receiver
//! speaks HTTP/2. So until then, a lane has at most one request that is not sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Version;
use tokio::sync::{Mutex as TurnMutex, Notify, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

/// Number of lanes.
pub(super) const LANES: usize = 8;
/// Number of places of a lane, until a lower limit of the receiver is known. Most servers allow 100
/// requests or more.
const STREAMS: usize = 100;
/// The time after the first request in which a receiver tells its limit, if it does not answer
/// earlier.
const OPENS: Duration = Duration::from_millis(100);
/// The time for which a lower limit counts.
const LIMIT_FOR: Duration = Duration::from_secs(60);

/// The requests under way, by receiver. A receiver without a request has an entry only as long as a
/// lower limit counts.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<Arc<str>, Load>>);

#[derive(Debug, Default)]
struct Load {
    lanes: [Lane; LANES],
    /// The HTTP version of the last answer.
    version: Option<Version>,
    /// The limit of a lane, and the time until which it counts.
    limit: Option<(usize, Instant)>,
    /// The requests that wait for a place.
    waiting: usize,
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Lane {
    /// Number of places in use.
    taken: usize,
    /// Number of requests that are sent and not over.
    sent: usize,
    /// The number of the lane's client. A new client has new connections.
    client: u64,
    /// Whether a request opens the first connection of this client.
    is_opening: bool,
    /// The time at which the first request was sent.
    opened: Option<Instant>,
    /// Whether the receiver has answered over this client.
    has_answered: bool,
    /// Locked as long as the client has a request that is not sent.
    turn: Arc<TurnMutex<()>>,
}

/// The turn of a request in its lane. The next request has its turn when this value is dropped.
#[derive(Debug, Default)]
pub(super) struct Turn {
    _lock: Option<OwnedMutexGuard<()>>,
}

/// A place for one request. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    streams: &'a Streams,
    origin: Arc<str>,
    pub(super) lane: usize,
    is_secure: bool,
    is_sent: bool,
    /// Whether this request opens the first connection of its lane.
    is_opening: bool,
}

/// A request that waits for a place.
struct Waiter<'a>(&'a Streams, Arc<str>);

impl Load {
    /// Returns whether nothing about the receiver needs to be remembered.
    fn is_over(&self) -> bool {
        let is_idle = self.waiting == 0 && self.lanes.iter().all(|lane| lane.taken == 0);
        is_idle && self.limit.is_none_or(|(_, until)| Instant::now() >= until)
    }

    fn limit(&self, is_secure: bool) -> usize {
        match self.version {
            // Without TLS, HTTP/2 is not used. Over HTTP/1 each request has its own connection.
            _ if !is_secure => usize::MAX,
            Some(version) if version != Version::HTTP_2 => usize::MAX,
            _ => self
                .limit
                .filter(|(_, until)| Instant::now() < *until)
                .map_or(STREAMS, |(limit, _)| limit),
        }
    }

    /// Takes a place in the first lane that has one. Returns the lane, and whether the request opens
    /// its first connection.
    fn take(&mut self, is_secure: bool, client: impl Fn(usize) -> u64) -> Option<(usize, bool)> {
        let limit = self.limit(is_secure);
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let client = client(number);
            if lane.client != client {
                (lane.client, lane.is_opening, lane.opened, lane.has_answered) =
                    (client, false, None, false);
            }
            if lane.taken >= limit {
                continue;
            }
            let is_open = lane.has_answered || lane.opened.is_some_and(|at| at.elapsed() >= OPENS);
            let opens = !is_open && limit != usize::MAX;
            // A request that is not sent may wait for a stream, or for a connection over HTTP/1.
            let is_unclear =
                limit != usize::MAX && self.version.is_none() && lane.taken > lane.sent;
            if is_unclear || opens && lane.is_opening {
                return None;
            }
            lane.is_opening = opens;
            lane.taken += 1;
            return Some((number, opens));
        }
        None
    }
}

impl Streams {
    /// Waits for a place. `client`: returns the number of a lane's client. Cancellation safe.
    pub(super) async fn place(
        &self,
        origin: &Arc<str>,
        is_secure: bool,
        client: impl Fn(usize) -> u64,
    ) -> Permit<'_> {
        let mut waiter = None;
        loop {
            let freed = {
                let mut all = self.all();
                if !all.contains_key(origin) {
                    all.retain(|_, load| !load.is_over());
                }
                let load = all.entry(origin.clone()).or_default();
                if let Some((lane, is_opening)) = load.take(is_secure, &client) {
                    drop(all);
                    drop(waiter);
                    return Permit {
                        streams: self,
                        origin: origin.clone(),
                        lane,
                        is_secure,
                        is_sent: false,
                        is_opening,
                    };
                }
                waiter.get_or_insert_with(|| {
                    load.waiting += 1;
                    Waiter(self, origin.clone())
                });
                load.freed.clone()
            };
            let _ = timeout(OPENS, freed.notified()).await;
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, Load>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the load of a receiver, and forgets it if it is over.
    fn change(&self, origin: &Arc<str>, change: impl FnOnce(&mut Load)) {
        let mut all = self.all();
        let Some(load) = all.get_mut(origin) else {
            return;
        };
        change(load);
        if load.is_over() {
            all.remove(origin);
        }
    }
}

impl Permit<'_> {
    /// Waits until the client has sent the lane's request before this one. Returns none if the lane
    /// is full: then the request needs another place. Cancellation safe.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let turn = self.look(|load, lane, limit| {
            (limit != usize::MAX).then(|| load.lanes[lane].turn.clone())
        })?;
        let Some(turn) = turn else {
            return Some(Turn::default());
        };
        let turn = turn.lock_owned().await;
        self.look(|load, lane, limit| load.lanes[lane].sent < limit)?
            .then_some(Turn { _lock: Some(turn) })
    }

    /// Looks at the load of the receiver, the number of the lane, and the lane's limit.
    fn look<R>(&self, look: impl FnOnce(&Load, usize, usize) -> R) -> Option<R> {
        let all = self.streams.all();
        let load = all.get(&self.origin)?;
        Some(look(load, self.lane, load.limit(self.is_secure)))
    }

    /// Records that the request is sent.
    pub(super) fn sent(&mut self) {
        self.is_sent = true;
        self.streams.change(&self.origin, |load| {
            let lane = &mut load.lanes[self.lane];
            lane.sent += 1;
            if self.is_opening {
                lane.opened = lane.opened.or_else(|| Some(Instant::now()));
            }
            if load.version.is_none() {
                load.freed.notify_one();
            }
        });
    }

    /// Records the HTTP version of the answer.
    pub(super) fn answered(&self, version: Version) {
        self.streams.change(&self.origin, |load| {
            let is_first = !std::mem::replace(&mut load.lanes[self.lane].has_answered, true);
            if is_first || load.version != Some(version) {
                load.version = Some(version);
                load.freed.notify_waiters();
            }
        });
    }

    /// Records that this request is not sent, although it has waited for a while. Returns whether it
    /// needs another place, because the lane is full. `loses_time`: whether the request needs
    /// another place even if the lane is perhaps full, because its time limit has begun.
    pub(super) fn is_full(&self, loses_time: bool) -> bool {
        let mut is_full = false;
        self.streams.change(&self.origin, |load| {
            let sent = load.lanes[self.lane].sent;
            let may_be_full = self.is_secure && !self.is_opening && sent > 0;
            if may_be_full && load.version == Some(Version::HTTP_2) {
                load.limit = Some((sent, Instant::now() + LIMIT_FOR));
                is_full = true;
            }
            is_full |= may_be_full && load.version.is_none() && loses_time;
        });
        is_full
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.streams.change(&self.origin, |load| {
            let lane = &mut load.lanes[self.lane];
            lane.taken = lane.taken.saturating_sub(1);
            lane.sent = lane.sent.saturating_sub(usize::from(self.is_sent));
            if self.is_opening && !self.is_sent {
                lane.is_opening = false;
            }
            load.freed.notify_one();
        });
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.change(&self.1, |load| {
            load.waiting = load.waiting.saturating_sub(1);
            // The notice that this request got may be for another one.
            load.freed.notify_one();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Arc<str> {
        "https://host".into()
    }

    async fn place(streams: &Streams) -> Permit<'_> {
        streams.place(&origin(), true, |_| 1).await
    }

    /// Fills this number of lanes with requests that are sent and have no answer.
    async fn fill(streams: &Streams, lanes: usize) -> Vec<Permit<'_>> {
        let mut places = Vec::new();
        while places.len() < lanes * STREAMS {
            let mut place = place(streams).await;
            place.sent();
            places.push(place);
        }
        places
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_place() {
        let streams = Streams::default();
        let mut places = fill(&streams, LANES).await;
        let lanes: Vec<_> = places.iter().map(|place| place.lane).collect();
        assert_eq!(
            lanes,
            (0..LANES * STREAMS)
                .map(|n| n / STREAMS)
                .collect::<Vec<_>>()
        );
        let waiting = place(&streams);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(places.remove(250));
        assert_eq!(waiting.await.lane, 2);
        drop(places);
        assert!(streams.all().is_empty());
    }

    /// Tests that one request opens the connection of a lane, and that the others wait until this
    /// request is answered, or has been under way for a while, or has failed.
    #[tokio::test(start_paused = true)]
    async fn one_request_opens_a_connection() {
        let streams = Streams::default();
        let mut first = place(&streams).await;
        let waiting = place(&streams);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(
            futures_util::poll!(&mut waiting).is_pending(),
            "the first one is not sent yet"
        );
        first.sent();
        first.answered(Version::HTTP_2);
        assert_eq!(waiting.await.lane, 0);
        let began = Instant::now();
        let mut renewed = streams.place(&origin(), true, |_| 2).await;
        renewed.sent();
        let second = streams.place(&origin(), true, |_| 2).await;
        assert!(
            (OPENS..2 * OPENS).contains(&began.elapsed()) && second.lane == 0,
            "{:?}",
            began.elapsed()
        );
        drop((first, renewed, second));
        let failed = place(&streams).await;
        let waiting = place(&streams);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(failed);
        assert_eq!(waiting.await.lane, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_has_as_many_places_as_its_receiver_takes() {
        let streams = Streams::default();
        let mut sent = Vec::new();
        for _ in 0..10 {
            let mut place = place(&streams).await;
            place.sent();
            sent.push(place);
        }
        let queued = place(&streams).await;
        assert!(!queued.is_full(false), "nothing is known yet");
        sent[0].answered(Version::HTTP_2);
        assert!(queued.is_full(false));
        drop(queued);
        assert_eq!(place(&streams).await.lane, 1);
        tokio::time::advance(LIMIT_FOR).await;
        assert_eq!(place(&streams).await.lane, 0);
    }

    /// Tests that the requests of a lane go to the client one by one, that none has its turn in a full
    /// lane, and that a request whose time limit has begun does not wait for the first answer.
    #[tokio::test(start_paused = true)]
    async fn one_request_of_a_lane_is_not_sent() {
        let streams = Streams::default();
        let mut first = place(&streams).await;
        let turn = first.turn().await.expect("its turn");
        first.sent();
        tokio::time::advance(OPENS).await;
        let second = place(&streams).await;
        let waiting = place(&streams);
        tokio::pin!(waiting);
        assert!(
            futures_util::poll!(&mut waiting).is_pending(),
            "the version of HTTP is not known yet"
        );
        assert!(!second.is_full(false) && second.is_full(true));
        first.answered(Version::HTTP_2);
        let third = waiting.await;
        let (next, last) = (second.turn(), third.turn());
        tokio::pin!(next, last);
        assert!(
            futures_util::poll!(&mut next).is_pending()
                && futures_util::poll!(&mut last).is_pending()
        );
        drop(turn);
        let turn = next.await.expect("its turn");
        assert!(futures_util::poll!(&mut last).is_pending());
        assert!(second.is_full(false));
        drop(turn);
        assert!(last.await.is_none(), "the lane takes one request");
    }

    /// Tests that a lower limit is known to the next requests, although none was under way meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_lower_limit_is_remembered() {
        let streams = Streams::default();
        let mut first = place(&streams).await;
        first.sent();
        first.answered(Version::HTTP_2);
        let second = place(&streams).await;
        assert!(second.is_full(false));
        drop((first, second));
        let places = [place(&streams).await, place(&streams).await];
        assert_eq!(places.each_ref().map(|place| place.lane), [0, 1]);
        drop(places);
        let other: Arc<str> = "https://other".into();
        drop(streams.place(&other, true, |_| 1).await);
        assert!(streams.all().contains_key(&origin()), "the limit counts");
        tokio::time::advance(LIMIT_FOR).await;
        drop(streams.place(&other, true, |_| 1).await);
        assert!(streams.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn http_1_has_a_connection_for_each_request() {
        let streams = Streams::default();
        let mut places = fill(&streams, LANES).await;
        let waiting = place(&streams);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        places[0].answered(Version::HTTP_11);
        assert_eq!(waiting.await.lane, 0);
        let plain: Arc<str> = "http://host".into();
        for _ in 0..2 * LANES * STREAMS {
            places.push(streams.place(&plain, false, |_| 1).await);
        }
        assert!(places.last().is_some_and(|place| place.lane == 0));
    }
}
