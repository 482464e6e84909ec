//! The places of the connections of a listener: a new connection always gets one, and an older
//! connection gives way to it.
//!
//! A connection belongs to a *stranger* until a request of a known user has come on it. Strangers
//! give way to new connections, so that nobody can hold all places without a token. Of two strangers
//! the one whose last request, or whose beginning, is longer ago gives way. If an address has more
//! than its part of the places, the strangers of this address give way first.
//!
//! A connection of a user never gives way to a stranger. Users together cannot take the places that
//! are kept for strangers, because each connection begins as one. One user has at most a part of the
//! places of all users, and so have all users together who may only view. A connection without a
//! request under way gives way to a further one of its user; if all places are taken, to one of a
//! user with fewer connections.
//!
//! Cost per connection: less than 1 KiB, and a time that grows with the logarithm of their number. A
//! request on a known connection takes no lock that connections share: it only counts in the
//! [`Seat`]. So the order of the connections may be old. A connection that shall give way is looked at
//! first, and if it has had requests since then, it gets its right place in the order.

mod groups;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::http::StatusCode;
use hyper::body::{Body, Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use self::groups::{Groups, Turn};
use super::connections::Peer;
use super::problem::Problem;
use super::users::User;

/// The numbers of connections that are allowed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    all: usize,
    /// Of all users together. The rest is for strangers.
    known: usize,
    of_user: usize,
    /// Of all users together who may only view.
    of_viewers: usize,
    /// Of the strangers of one address, before they give way first.
    of_address: usize,
}

impl Limits {
    fn new(all: usize, has_users: bool) -> Self {
        let known = all.saturating_sub((all / 8).max(1)).max(1);
        let part = if has_users {
            (known * 3 / 4).max(1)
        } else {
            known
        };
        Self {
            all: all.max(known + 1),
            known,
            of_user: part,
            of_viewers: part,
            of_address: (all / 16).max(1),
        }
    }
}

/// The place from which a connection comes: an address, or an IPv6 network with 64 bits, which
/// usually belongs to one machine. `None`: a socket in the file system.
type Origin = Option<IpAddr>;

/// Returns the origin of a peer.
pub(crate) fn origin(peer: Peer) -> Origin {
    match peer {
        Peer::Ip(IpAddr::V6(address)) => {
            Some(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into())
        }
        Peer::Ip(address) => Some(address),
        Peer::Unix => None,
    }
}

/// The user of a connection, and whether this user may only view.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: Arc<str>,
    is_viewer: bool,
}

/// The most users who are asked for an idle connection that gives way, those with the most first.
const GIVERS_MAX: usize = 16;
/// In [`Seat::requests`]: the connection gives way, and no request may begin.
const GONE: usize = 1 << (usize::BITS - 1);

/// The state of a connection that its requests change.
struct Seat {
    /// The table of these places has the seat until its [`Permit`] is dropped.
    places: Places,
    id: u64,
    origin: Origin,
    /// `None`: a stranger.
    user: Mutex<Option<Known>>,
    /// The number of requests under way, and the bit [`GONE`].
    requests: AtomicUsize,
    /// The beginning of the connection, or the last begin or end of a request.
    last: AtomicU64,
    /// Whether the connection is in its set of [`Table::idle`]. It may be there although it has a
    /// request under way. If it is not there, the end of its last request adds it.
    is_listed: AtomicBool,
    evicted: CancellationToken,
}

impl Seat {
    fn user(&self) -> MutexGuard<'_, Option<Known>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Connection {
    seat: Arc<Seat>,
    /// Its turn in the order of strangers or of idle connections. It may be older than `last`.
    turn: Turn,
}

struct Table {
    limits: Limits,
    connections: HashMap<u64, Connection>,
    strangers: Groups<Origin>,
    /// The connections of users; their order does not count.
    users: Groups<Arc<str>>,
    /// The connections of each user that may have no request under way, the oldest first. Each user with
    /// connections has an entry.
    idle: HashMap<Arc<str>, BTreeSet<Turn>>,
    viewers: usize,
    /// The number of connections that have given way since the last call of [`Places::gone`].
    gone: u64,
}

impl Table {
    fn add(&mut self, connection: Connection) {
        let (turn, id) = (connection.turn, connection.seat.id);
        match &*connection.seat.user() {
            None => self.strangers.add(&connection.seat.origin, turn),
            Some(user) => {
                self.users.add(&user.name, (0, id));
                self.idle.entry(user.name.clone()).or_default().insert(turn);
                self.viewers += usize::from(user.is_viewer);
            }
        }
        self.connections.insert(id, connection);
    }

    fn take(&mut self, id: u64) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        match &*connection.seat.user() {
            None => self
                .strangers
                .remove(&connection.seat.origin, connection.turn),
            Some(user) => {
                if let Some(idle) = self.idle.get_mut(&user.name) {
                    idle.remove(&connection.turn);
                }
                self.users.remove(&user.name, (0, id));
                if self.users.size(&user.name) == 0 {
                    self.idle.remove(&user.name);
                }
                self.viewers -= usize::from(user.is_viewer);
            }
        }
        Some(connection)
    }

    fn evict(&mut self, id: u64) {
        if let Some(connection) = self.take(id) {
            connection.seat.requests.fetch_or(GONE, Ordering::SeqCst);
            connection.seat.evicted.cancel();
            self.gone += 1;
        }
    }

    /// Adds a connection without a request under way to those of its user, if it is not there.
    fn list(&mut self, seat: &Seat) {
        let (Some(connection), Some(user)) = (self.connections.get_mut(&seat.id), &*seat.user())
        else {
            return;
        };
        if !seat.is_listed.swap(true, Ordering::SeqCst)
            && let Some(idle) = self.idle.get_mut(&user.name)
        {
            connection.turn = (seat.last.load(Ordering::SeqCst), seat.id);
            idle.insert(connection.turn);
        }
    }

    /// Returns the stranger that gives way.
    fn stranger(&mut self) -> Option<u64> {
        loop {
            let (turn, id) = match self.strangers.largest() {
                Some((size, origin)) if *size > self.limits.of_address => {
                    self.strangers.oldest_of(origin)?
                }
                _ => *self.strangers.all.first()?,
            };
            let connection = self.connections.get_mut(&id)?;
            let last = connection.seat.last.load(Ordering::SeqCst);
            if last == turn {
                return Some(id);
            }
            connection.turn = (last, id);
            self.strangers
                .renew(&connection.seat.origin, (turn, id), (last, id));
        }
    }

    /// Returns the connection without a request under way, of this user, that gives way. None can begin
    /// on it any more. `only_viewing`: only if it may only view.
    fn idle_of(&mut self, user: &Arc<str>, only_viewing: bool) -> Option<u64> {
        let idle = self.idle.get_mut(user)?;
        loop {
            let (turn, id) = *idle.first()?;
            let connection = self.connections.get_mut(&id)?;
            let seat = &connection.seat;
            if only_viewing && !seat.user().as_ref().is_some_and(|known| known.is_viewer) {
                return None;
            }
            // In this order, and that of the end of a request: either this sees the end, or the end sees
            // that the connection is not listed.
            seat.is_listed.store(false, Ordering::SeqCst);
            let last = seat.last.load(Ordering::SeqCst);
            if seat.requests.load(Ordering::SeqCst) != 0 {
                idle.remove(&(turn, id));
                continue;
            }
            seat.is_listed.store(true, Ordering::SeqCst);
            if last != turn {
                idle.remove(&(turn, id));
                idle.insert((last, id));
                connection.turn = (last, id);
            } else if seat
                .requests
                .compare_exchange(0, GONE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                return Some(id);
            }
        }
    }

    /// Makes room for one more connection of this user. Returns whether there is room.
    fn has_room(&mut self, user: &Known) -> bool {
        let own = self.users.size(&user.name);
        let is_own_full = own >= self.limits.of_user;
        let are_viewers_full = user.is_viewer && self.viewers >= self.limits.of_viewers;
        let are_all_full = self.users.all.len() >= self.limits.known;
        if !is_own_full && !are_viewers_full && !are_all_full {
            return true;
        }
        let larger = self.users.sizes.iter().rev();
        let mut givers: Vec<_> = larger
            .take_while(|(size, _)| !is_own_full && *size > own)
            .take(GIVERS_MAX)
            .map(|(_, name)| name.clone())
            .collect();
        givers.push(user.name.clone());
        for giver in givers {
            if let Some(idle) = self.idle_of(&giver, are_viewers_full) {
                self.evict(idle);
                return true;
            }
        }
        false
    }
}

/// The places of all connections. Clones share them.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    turns: AtomicU64,
    /// When this token is cancelled, all connections end at once.
    cut: CancellationToken,
    table: Mutex<Table>,
}

impl Places {
    /// Returns places for this number of connections. `has_users`: whether there can be several
    /// users.
    pub(super) fn new(all: usize, has_users: bool) -> Self {
        Self(Arc::new(Shared {
            turns: AtomicU64::new(0),
            cut: CancellationToken::new(),
            table: Mutex::new(Table {
                limits: Limits::new(all, has_users),
                connections: HashMap::new(),
                strangers: Groups::default(),
                users: Groups::default(),
                idle: HashMap::new(),
                viewers: 0,
                gone: 0,
            }),
        }))
    }

    /// Returns the place of a new connection. If all places are taken, a stranger gives way.
    pub(super) fn arrive(&self, peer: Peer) -> Permit {
        let mut table = self.lock();
        if table.connections.len() >= table.limits.all
            && let Some(stranger) = table.stranger()
        {
            table.evict(stranger);
        }
        let id = self.turn();
        let seat = Arc::new(Seat {
            places: self.clone(),
            id,
            origin: origin(peer),
            user: Mutex::new(None),
            requests: AtomicUsize::new(0),
            last: AtomicU64::new(id),
            is_listed: AtomicBool::new(true),
            // Each connection has a token of its own, because each poll of it takes the lock of the
            // token.
            evicted: self.0.cut.child_token(),
        });
        table.add(Connection {
            seat: seat.clone(),
            turn: (id, id),
        });
        drop(table);
        Permit {
            evicted: seat.evicted.clone(),
            door: Door(seat),
        }
    }

    /// Ends all connections at once.
    pub(super) fn cut(&self) {
        self.0.cut.cancel();
    }

    fn turn(&self) -> u64 {
        self.0.turns.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns the number of connections that have given way since the last call.
    pub(super) fn gone(&self) -> u64 {
        std::mem::take(&mut self.lock().gone)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection. It is given back when this value is dropped.
pub(super) struct Permit {
    pub(super) door: Door,
    /// The token is cancelled if the connection must end at once, e.g. to give way.
    pub(super) evicted: CancellationToken,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Door(seat) = &self.door;
        seat.places.lock().take(seat.id);
    }
}

/// A connection, for the code that finds out whose it is. Every request has it as an extension.
#[derive(Clone)]
pub(crate) struct Door(Arc<Seat>);

impl Door {
    /// Marks a request as under way, until the returned value is dropped. `None` if the connection
    /// has given way already.
    pub(super) fn begin(&self) -> Option<UnderWay> {
        let begun = self
            .0
            .requests
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |requests| {
                (requests & GONE == 0).then_some(requests + 1)
            });
        self.0.last.store(self.0.places.turn(), Ordering::SeqCst);
        begun.ok().map(|_| UnderWay(self.clone()))
    }

    /// Makes the connection one of this user, so that it does not give way to strangers.
    pub(crate) fn admit(&self, user: &User) -> Result<(), Problem> {
        let is_his = |known: &Known| known.name == user.name && known.is_viewer == user.is_viewer();
        if self.0.user().as_ref().is_some_and(is_his) {
            return Ok(());
        }
        let user = Known {
            name: user.name.clone(),
            is_viewer: user.is_viewer(),
        };
        let busy = |why| {
            let detail = format!("{why}: nothing was done");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
        };
        let mut table = self.0.places.lock();
        // A stranger can give way just when its first request has begun.
        if !table.connections.contains_key(&self.0.id) {
            return Err(busy("the connection has given way"));
        }
        if !table.has_room(&user) {
            return Err(busy(
                "there are too many connections with requests under way",
            ));
        }
        if let Some(mut connection) = table.take(self.0.id) {
            *self.0.user() = Some(user);
            self.0.is_listed.store(true, Ordering::SeqCst);
            connection.turn = (self.0.places.turn(), self.0.id);
            table.add(connection);
        }
        Ok(())
    }
}

/// A request under way.
pub(super) struct UnderWay(Door);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Door(seat) = &self.0;
        seat.last.store(seat.places.turn(), Ordering::SeqCst);
        let before = seat.requests.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && !seat.is_listed.load(Ordering::SeqCst) {
            seat.places.lock().list(seat);
        }
    }
}

/// The body of an answer. The request is under way until the body is sent.
pub(super) struct Answering<B> {
    body: B,
    _under_way: UnderWay,
}

impl<B> Answering<B> {
    pub(super) fn new(body: B, under_way: UnderWay) -> Self {
        Self {
            body,
            _under_way: under_way,
        }
    }
}

impl<B: Body + Unpin> Body for Answering<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
