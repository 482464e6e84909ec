//! The shared parts of the tests that build one situation: one Redis, the checker, and plain
//! `MULTI` pushes.

use bytes::Bytes;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{self, Adopted, Bounds, Renewed};

use super::check::check;
use super::puppet::{CRASHES_MAX, Given, LEASE, Puppet, Slot, WIDE};
use super::run::DAY;
use super::state::{Name, State};
use super::world::{World, payload};
use crate::support::Redis;
use crate::support::console::Console;
use crate::support::sweep::sweep;

pub struct Rig {
    _redis: Redis,
    pub conn: MultiplexedConnection,
    pub keys: Keys,
    pub world: World,
}

impl Rig {
    pub async fn start() -> Self {
        let redis = Redis::start();
        Self {
            conn: redis.connect().await,
            keys: redis.keys().clone(),
            world: World::default(),
            _redis: redis,
        }
    }

    /// Returns a rig without a namespace, so its keys have no prefix. It needs a server of its own.
    pub async fn without_namespace() -> Self {
        let redis = Redis::own(&[]).empty();
        redis.begin_ids(&Keys::new());
        Self {
            conn: redis.connect().await,
            keys: Keys::new(),
            world: World::default(),
            _redis: redis,
        }
    }

    /// Returns a rig and its process `p`.
    pub async fn with_process(slots: usize) -> (Self, Puppet) {
        let mut rig = Self::start().await;
        let p = rig.process("p", slots).await;
        (rig, p)
    }

    /// Starts a process that is attached to this name. Its token follows from the name.
    pub async fn process(&mut self, name: &str, slots: usize) -> Puppet {
        let token = format!("token-of-{name}");
        Puppet::start(&mut self.conn, &self.keys, name, &token, slots).await
    }

    /// Pushes `count` events of `len` bytes with one marker, as a producer does.
    pub async fn emit(&mut self, object: &[u8], count: usize, len: usize) {
        let events: Vec<String> = self
            .push(object, count)
            .into_iter()
            .map(|number| payload(number, len))
            .collect();
        let queue = self.key(object, ":events");
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("LPUSH").arg(queue).arg(events);
        pipe.cmd("LPUSH")
            .arg(self.keys.objects_with_events())
            .arg(object);
        let _: () = pipe.query_async(&mut self.conn).await.expect("emit");
    }

    fn push(&mut self, object: &[u8], count: usize) -> Vec<u32> {
        self.world.push(&Name::copy_from_slice(object), count)
    }

    /// Runs a command that builds an unusual state, for example a marker without events, a name in
    /// a list, or a key of a wrong type.
    pub async fn redis<T: FromRedisValue>(&mut self, command: &str, args: &[&[u8]]) -> T {
        let mut cmd = redis::cmd(command);
        for arg in args {
            cmd.arg(*arg);
        }
        cmd.query_async(&mut self.conn)
            .await
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Runs commands, as [`Console::add`] does.
    pub async fn add(&self, commands: &str) {
        let console = Console::new(self.conn.clone(), self.keys.clone());
        console.add(commands).await;
    }

    /// Sets a string.
    pub async fn set(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.redis("SET", &[key.as_ref(), value.as_ref()]).await
    }

    pub async fn del(&mut self, key: impl AsRef<[u8]>) {
        self.redis("DEL", &[key.as_ref()]).await
    }

    /// Adds markers: with `LPUSH` as the newest ones, with `RPUSH` as the oldest ones.
    pub async fn mark(&mut self, push: &str, names: &[&[u8]]) {
        let markers = self.keys.objects_with_events();
        self.redis(push, &[&[markers.as_bytes()], names].concat())
            .await
    }

    /// Calls *advance* for all slots of a process.
    pub async fn advance(&mut self, puppet: &mut Puppet, bounds: Bounds) -> Given {
        puppet.advance(&mut self.conn, &self.keys, bounds).await
    }

    /// Renews the lease of a process.
    pub async fn renew(&mut self, puppet: &Puppet) -> Renewed {
        let (name, token, slots) = (&puppet.name, &puppet.token, puppet.slots.len());
        let renewed = wire::renew(&mut self.conn, &self.keys, name, token, LEASE, slots).await;
        renewed.expect("renew")
    }

    /// Sweeps as the process `q`.
    pub async fn adopt(&mut self) -> Adopted {
        let adopted = sweep(&mut self.conn, &self.keys, "q", CRASHES_MAX, DAY).await;
        adopted.expect("adopt")
    }

    /// Returns the key of an object. The name may be any bytes.
    pub fn key(&self, object: &[u8], suffix: &str) -> Vec<u8> {
        [self.keys.prefix().as_bytes(), object, suffix.as_bytes()].concat()
    }

    /// Moves a marker to a slot's list, as a pop does.
    pub async fn pop(&mut self, w: &str) -> Option<Bytes> {
        let (from, to) = (self.keys.objects_with_events(), self.keys.worker_object(w));
        self.redis::<Option<Vec<u8>>>(
            "LMOVE",
            &[from.as_bytes(), to.as_bytes(), b"RIGHT", b"LEFT"],
        )
        .await
        .map(Bytes::from)
    }

    pub async fn look(&mut self) -> State {
        State::read(&mut self.conn, self.keys.prefix()).await
    }

    /// Reads the state, and asserts the invariants.
    pub async fn sound(&mut self) -> State {
        let state = self.look().await;
        if let Err(broken) = check(&state, &mut self.world) {
            panic!("{broken}\n{state:?}");
        }
        state
    }

    /// Delivers all batches of the process to the receiver. The next call reports these results.
    pub fn deliver(&mut self, puppet: &mut Puppet) {
        for slot in &puppet.slots {
            if let Slot::Has(hand) = slot {
                self.world
                    .receive(hand, hand.events.len())
                    .unwrap_or_else(|broken| panic!("{broken}"));
            }
        }
        puppet.tell_done();
    }

    /// Ends the lease of a name.
    pub async fn expire(&mut self, name: &str) {
        self.del(self.keys.worker_lease(name)).await;
    }

    /// Makes a held object due at once.
    pub async fn release(&mut self, object: &[u8]) {
        let held = self.keys.objects_held();
        self.redis::<i64>("ZADD", &[held.as_bytes(), b"XX", b"0", object])
            .await;
    }

    /// Calls *advance* until no event is left. Checks the invariants after every call.
    pub async fn drain(&mut self, puppet: &mut Puppet) {
        for _ in 0..2000 {
            self.deliver(puppet);
            let given = self.advance(puppet, WIDE).await;
            self.sound().await;
            if given.slots.is_empty() && !given.more {
                assert!(
                    self.world.undone().is_empty(),
                    "neither delivered nor dead: {:?}",
                    self.world.undone()
                );
                return;
            }
        }
        panic!("not drained: {:?}", self.look().await);
    }
}
