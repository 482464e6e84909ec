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
//! The first request of a lane opens a connection. Other requests wait until the receiver has had
//! the time to tell its limit. Otherwise each of them would open a connection of its own, and most
//! of these would be closed again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Version;
use tokio::sync::Notify;
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

/// The requests under way, by receiver. A receiver without a request has no entry.
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
}

/// A place for one request. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    streams: &'a Streams,
    origin: Arc<str>,
    pub(super) lane: usize,
    is_sent: bool,
    /// Whether this request opens the first connection of its lane.
    is_opening: bool,
}

/// A request that waits for a place.
struct Waiter<'a>(&'a Streams, Arc<str>);

impl Load {
    fn limit(&self, is_secure: bool, now: Instant) -> usize {
        match self.version {
            // Without TLS, HTTP/2 is not used. Over HTTP/1 each request has its own connection.
            _ if !is_secure => usize::MAX,
            Some(version) if version != Version::HTTP_2 => usize::MAX,
            _ => self.limit.filter(|(_, until)| now < *until).map_or(STREAMS, |(limit, _)| limit),
        }
    }

    /// Takes a place in the first lane that has one. Returns the lane, and whether the request opens
    /// its first connection.
    fn take(&mut self, is_secure: bool, now: Instant, client: impl Fn(usize) -> u64) -> Option<(usize, bool)> {
        let limit = self.limit(is_secure, now);
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let client = client(number);
            if lane.client != client {
                (lane.client, lane.is_opening, lane.opened, lane.has_answered) = (client, false, None, false);
            }
            if lane.taken >= limit {
                continue;
            }
            let is_open = lane.has_answered || lane.opened.is_some_and(|at| now.duration_since(at) >= OPENS);
            let opens = !is_open && limit != usize::MAX;
            if opens && lane.is_opening {
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
    pub(super) async fn place(&self, origin: &Arc<str>, is_secure: bool, client: impl Fn(usize) -> u64) -> Place<'_> {
        let mut waiter = None;
        loop {
            let freed = {
                let mut all = self.all();
                let load = all.entry(origin.clone()).or_default();
                if let Some((lane, is_opening)) = load.take(is_secure, Instant::now(), &client) {
                    drop(all);
                    drop(waiter);
                    return Place { streams: self, origin: origin.clone(), lane, is_sent: false, is_opening };
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

    /// Changes the load of a receiver, and forgets it if it is empty.
    fn change(&self, origin: &Arc<str>, change: impl FnOnce(&mut Load)) {
        let mut all = self.all();
        let Some(load) = all.get_mut(origin) else { return };
        change(load);
        if load.waiting == 0 && load.lanes.iter().all(|lane| lane.taken == 0) {
            all.remove(origin);
        }
    }
}

impl Place<'_> {
    /// Records that the request is sent.
    pub(super) fn sent(&mut self) {
        self.is_sent = true;
        self.streams.change(&self.origin, |load| {
            let lane = &mut load.lanes[self.lane];
            lane.sent += 1;
            if self.is_opening {
                lane.opened = lane.opened.or_else(|| Some(Instant::now()));
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

    /// Records that this request is not sent, although it has waited for a while. Returns whether
    /// the cause is that the lane is full: then the request needs another place.
    pub(super) fn is_full(&self) -> bool {
        let mut is_full = false;
        self.streams.change(&self.origin, |load| {
            let sent = load.lanes[self.lane].sent;
            is_full = load.version == Some(Version::HTTP_2) && sent > 0;
            if is_full {
                load.limit = Some((sent, Instant::now() + LIMIT_FOR));
            }
        });
        is_full
    }
}

impl Drop for Place<'_> {
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

    async fn place(streams: &Streams) -> Place<'_> {
        streams.place(&origin(), true, |_| 1).await
    }

    /// Fills this number of lanes with requests that are sent and have no answer.
    async fn fill(streams: &Streams, lanes: usize) -> Vec<Place<'_>> {
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
        assert_eq!(lanes, (0..LANES * STREAMS).map(|n| n / STREAMS).collect::<Vec<_>>());
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
        assert!(futures_util::poll!(&mut waiting).is_pending(), "the first one is not sent yet");
        first.sent();
        first.answered(Version::HTTP_2);
        assert_eq!(waiting.await.lane, 0);
        let began = Instant::now();
        let mut renewed = streams.place(&origin(), true, |_| 2).await;
        renewed.sent();
        let second = streams.place(&origin(), true, |_| 2).await;
        assert!((OPENS..2 * OPENS).contains(&began.elapsed()) && second.lane == 0, "{:?}", began.elapsed());
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
        assert!(!queued.is_full(), "nothing is known yet");
        sent[0].answered(Version::HTTP_2);
        assert!(queued.is_full());
        drop(queued);
        assert_eq!(place(&streams).await.lane, 1);
        tokio::time::advance(LIMIT_FOR).await;
        assert_eq!(place(&streams).await.lane, 0);
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
