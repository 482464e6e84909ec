//! A sink that records all deliveries, and treats each event as the test says.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink, Stop};
use tokio::sync::Semaphore;

use super::console::PATIENCE;
use super::until;

/// One event in a delivery to the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub worker: String,
    pub token: String,
    pub object: String,
    pub id: u64,
    pub prev: u64,
    pub payload: Vec<u8>,
    /// Attempts of the first event of the batch, from the context.
    pub attempts: u32,
    pub crashes: u32,
    /// Number of events in the batch, and the position of this event.
    pub batch: usize,
    pub at: usize,
    /// Number of earlier deliveries of this id.
    pub before: usize,
}

impl Offer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// The sink's treatment of an event.
pub enum Act {
    /// The event is sent.
    Send,
    /// The sink stops here.
    Stop(Stop),
    /// The sink panics here.
    Panic,
    /// The delivery waits until the gate is open; then the event is sent.
    Wait(Gate),
    /// The delivery waits until the gate is open; then the sink stops here.
    WaitThenStop(Gate, Stop),
    /// The event is sent, but the delivery waits until the gate is open.
    SendThenWait(Gate),
}

/// A gate that stops deliveries until it is opened. Once open, it stays open.
#[derive(Clone)]
pub struct Gate(Arc<(Semaphore, AtomicUsize)>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new((Semaphore::new(0), AtomicUsize::new(0))))
    }

    pub fn open(&self) {
        self.0.0.close();
    }

    /// Waits until this many deliveries have reached the gate.
    pub async fn until_reached(&self, deliveries: usize) {
        until(
            &format!("{deliveries} deliveries stand at the gate"),
            PATIENCE,
            async || (self.0.1.load(Ordering::SeqCst) >= deliveries).then_some(()),
        )
        .await;
    }

    /// Waits until the gate is open.
    pub async fn pass(&self) {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        // An error means that the gate is open.
        let _ = self.0.0.acquire().await;
    }
}

type Rule = Box<dyn Fn(&Offer) -> Act + Send + Sync>;

/// A recording sink. Clones share their records.
#[derive(Clone)]
pub struct Recorder(Arc<(Rule, Mutex<Log>)>);

#[derive(Default)]
struct Log {
    offered: Vec<Offer>,
    sent: Vec<Offer>,
    times: HashMap<u64, usize>,
    busy: HashSet<String>,
    overlaps: Vec<String>,
}

/// A delivery under way. It counts as ended when this value is dropped, even if the delivery was
/// cancelled.
struct Busy<'a>(&'a Recorder, String);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.log().busy.remove(&self.1);
    }
}

impl Recorder {
    /// Returns a sink that sends everything.
    pub fn new() -> Self {
        Self::with(|_| Act::Send)
    }

    /// Returns a sink that treats each event by this rule.
    pub fn with(rule: impl Fn(&Offer) -> Act + Send + Sync + 'static) -> Self {
        Self(Arc::new((Box::new(rule), Mutex::default())))
    }

    /// Returns all deliveries, in order.
    pub fn offered(&self) -> Vec<Offer> {
        self.log().offered.clone()
    }

    /// Returns all sent events.
    pub fn sent(&self) -> Vec<Offer> {
        self.log().sent.clone()
    }

    /// Returns the sent events of one object, as text.
    pub fn sent_of(&self, object: &str) -> Vec<String> {
        self.log()
            .sent
            .iter()
            .filter(|offer| offer.object == object)
            .map(Offer::text)
            .collect()
    }

    /// Waits until this many events were sent.
    pub async fn until_sent(&self, events: usize) {
        until(&format!("{events} events are sent"), PATIENCE, async || {
            (self.log().sent.len() >= events).then_some(())
        })
        .await;
    }

    /// Waits until this many events were delivered to the sink.
    pub async fn until_offered(&self, events: usize) {
        until(
            &format!("{events} events are offered"),
            PATIENCE,
            async || (self.log().offered.len() >= events).then_some(()),
        )
        .await;
    }

    /// Returns the objects that were in two deliveries at the same time.
    pub fn overlaps(&self) -> Vec<String> {
        self.log().overlaps.clone()
    }

    /// Applies the receiver's rule to the sent events. Returns the applied events of each object:
    /// (id, event). Fails if an event is early, or if one id was given to two events.
    pub fn applied(&self) -> HashMap<String, Vec<(u64, String)>> {
        let mut applied: HashMap<String, Vec<(u64, String)>> = HashMap::new();
        let mut ids: HashMap<u64, (String, String)> = HashMap::new();
        for offer in self.sent() {
            let event = (offer.object.clone(), offer.text());
            if let Some(other) = ids.insert(offer.id, event.clone()) {
                assert_eq!(other, event, "the id {} was given twice", offer.id);
            }
            let of_object = applied.entry(offer.object.clone()).or_default();
            let last = of_object.last().map_or(0, |(id, _)| *id);
            assert!(offer.prev <= last, "early, last is {last}: {offer:?}");
            if last < offer.id {
                of_object.push((offer.id, offer.text()));
            }
        }
        applied
    }

    /// Returns the applied events of one object, without the ids.
    pub fn applied_of(&self, object: &str) -> Vec<String> {
        self.applied()
            .remove(object)
            .unwrap_or_default()
            .into_iter()
            .map(|(_, event)| event)
            .collect()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.1.lock().expect("the recorder does not panic")
    }

    fn note(&self, batch: &Batch, cx: &Context, at: usize) -> Offer {
        let event = batch.events().nth(at).expect("an event of the batch");
        let mut log = self.log();
        let times = log.times.entry(event.id).or_default();
        let offer = Offer {
            worker: cx.worker.to_string(),
            token: cx.token.to_string(),
            object: event.object.to_string(),
            id: event.id,
            prev: event.prev,
            payload: event.payload.to_vec(),
            attempts: cx.attempts,
            crashes: cx.crashes,
            batch: batch.len(),
            at,
            before: *times,
        };
        *times += 1;
        log.offered.push(offer.clone());
        offer
    }

    fn busy(&self, object: &str) -> Busy<'_> {
        let mut log = self.log();
        if !log.busy.insert(object.to_owned()) {
            log.overlaps.push(object.to_owned());
        }
        Busy(self, object.to_owned())
    }
}

#[async_trait]
impl Sink for Recorder {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let _busy = self.busy(batch.object().as_str());
        for at in 0..batch.len() {
            let offer = self.note(batch, cx, at);
            match (self.0.0)(&offer) {
                Act::Send => self.log().sent.push(offer),
                Act::Stop(stop) => return Delivered::stopped(at, stop),
                Act::Panic => panic!("boom"),
                Act::Wait(gate) => {
                    gate.pass().await;
                    self.log().sent.push(offer);
                }
                Act::WaitThenStop(gate, stop) => {
                    gate.pass().await;
                    return Delivered::stopped(at, stop);
                }
                Act::SendThenWait(gate) => {
                    self.log().sent.push(offer);
                    gate.pass().await;
                }
            }
        }
        Delivered::all()
    }
}
