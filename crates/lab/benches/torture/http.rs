//! The HTTP receiver, to which one worker sends. Faults let it throttle, refuse some objects, or
//! answer some requests too late.
//!
//! The receiver records each event in the history before it answers the request. A refused request
//! has no effect. A late request may have its effect after the worker has sent the event again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::value::RawValue;
use seriatim::consume::Envelope;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::history::History;
use crate::random::{Draw as _, Random};
use crate::receiver::name_in;

/// Time limit of the worker's requests.
pub(crate) const TIMEOUT: &str = "1s";
/// Time before a late answer. It is longer than `TIMEOUT`.
const STALL: Duration = Duration::from_millis(1500);
/// Number of parts of the objects, and of the ids. A refusal is for one part of the objects, and late
/// answers are for one part of the ids.
const PARTS: u64 = 5;

/// The state of the receiver during a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// All requests are answered with 429 and `Retry-After`.
    Throttles,
    /// Requests of one part of the objects are answered with this status.
    Refuses { status: u16, part: u64 },
    /// Requests whose first id is in this part are answered after the time limit. Half of these
    /// requests have their effect only then.
    Stalls { part: u64 },
}

impl Bad {
    pub(crate) fn refuses(random: &mut Random) -> Self {
        Self::Refuses {
            status: [403, 404, 503][random.below(3) as usize],
            part: random.below(PARTS),
        }
    }

    pub(crate) fn stalls(random: &mut Random) -> Self {
        Self::Stalls {
            part: random.below(PARTS),
        }
    }

    fn concerns(self, request: &Request) -> bool {
        match self {
            Self::Throttles => true,
            Self::Refuses { part, .. } => {
                request.object.bytes().map(u64::from).sum::<u64>() % PARTS == part
            }
            Self::Stalls { part } => request.id % PARTS == part,
        }
    }
}

/// The events of one request. All are of one object.
struct Request {
    object: String,
    /// The id of the first event.
    id: u64,
    /// Id, `prev` and name of each event.
    events: Vec<(u64, u64, String)>,
    /// Whether the receiver must end its work at a time that the request names.
    has_deadline: bool,
}

impl Request {
    /// Parses a list of envelopes, or one envelope.
    fn parse(body: &[u8], has_deadline: bool) -> anyhow::Result<Self> {
        let envelopes: Vec<&RawValue> = match body.first() {
            Some(b'[') => serde_json::from_slice(body)?,
            _ => vec![serde_json::from_slice(body)?],
        };
        let (mut object, mut events) = (String::new(), Vec::new());
        for envelope in envelopes {
            let envelope = Envelope::parse(envelope.get().as_bytes())?;
            ensure!(
                events.is_empty() || envelope.object == object,
                "one request has events of two objects"
            );
            events.push((envelope.id, envelope.prev, name_in(envelope.event.get())?));
            object = envelope.object.to_string();
        }
        let id = events.first().context("a request without events")?.0;
        Ok(Self {
            object,
            id,
            events,
            has_deadline,
        })
    }
}

pub(crate) struct HttpReceiver {
    pub(crate) port: u16,
    history: Arc<History>,
    /// The faults that are set now. A fault that is set twice is in the list twice.
    bad: Mutex<Vec<Bad>>,
    pub(crate) requests: AtomicU64,
    /// Number of requests that met a fault.
    pub(crate) met: AtomicU64,
    /// The first invalid request.
    invalid: Mutex<Option<String>>,
}

impl HttpReceiver {
    /// Listens on a free port, and serves until the process ends.
    pub(crate) async fn start(history: Arc<History>) -> anyhow::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (bad, requests, met, invalid) = Default::default();
        let receiver = Arc::new(Self {
            port,
            history,
            bad,
            requests,
            met,
            invalid,
        });
        let serving = Arc::clone(&receiver);
        tokio::spawn(async move {
            loop {
                // An accept fails e.g. if the process has too many open files. The worker tries again.
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let receiver = Arc::clone(&serving);
                tokio::spawn(async move { receiver.serve(BufReader::new(stream)).await });
            }
        });
        Ok(receiver)
    }

    /// Sets the fault, and removes it after `time`. Returns whether a request met any fault meanwhile.
    pub(crate) async fn hold(&self, bad: Bad, time: Duration) -> bool {
        let before = self.met.load(Ordering::Relaxed);
        lock(&self.bad).push(bad);
        sleep(time).await;
        let mut all = lock(&self.bad);
        all.iter()
            .position(|other| *other == bad)
            .map(|at| all.swap_remove(at));
        self.met.load(Ordering::Relaxed) > before
    }

    /// Prints the number of requests. Returns whether all were valid.
    pub(crate) fn judge(&self) -> bool {
        let [requests, met] =
            [&self.requests, &self.met].map(|count| count.load(Ordering::Relaxed));
        println!("HTTP receiver: {requests} requests, {met} of them met a fault");
        let invalid = lock(&self.invalid);
        if let Some(error) = &*invalid {
            println!("INVALID REQUEST: {error}");
        }
        invalid.is_none()
    }

    /// Answers the requests of one connection, until the connection ends.
    async fn serve(&self, mut stream: BufReader<TcpStream>) -> Option<()> {
        loop {
            let (body, has_deadline) = read(&mut stream).await?;
            let answer = match Request::parse(&body, has_deadline) {
                Ok(request) => self.answer(&request).await,
                Err(error) => {
                    lock(&self.invalid).get_or_insert_with(|| {
                        format!("{error:#}: {}", String::from_utf8_lossy(&body))
                    });
                    "500 Internal Server Error\r\n".to_owned()
                }
            };
            let answer = format!("HTTP/1.1 {answer}content-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
    }

    /// Returns the status line and the headers of the answer.
    async fn answer(&self, request: &Request) -> String {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let met = lock(&self.bad)
            .iter()
            .copied()
            .find(|bad| bad.concerns(request));
        self.met
            .fetch_add(u64::from(met.is_some()), Ordering::Relaxed);
        match met {
            Some(Bad::Throttles) => "429 Too Many Requests\r\nretry-after: 1\r\n".to_owned(),
            Some(Bad::Refuses { status, .. }) => format!("{status} Refused\r\n"),
            Some(Bad::Stalls { .. }) => {
                let is_late = !request.has_deadline && (request.id / PARTS).is_multiple_of(2);
                if is_late {
                    sleep(STALL).await;
                    self.record(request);
                } else {
                    self.record(request);
                    sleep(STALL).await;
                }
                "200 OK\r\n".to_owned()
            }
            None => {
                self.record(request);
                "200 OK\r\n".to_owned()
            }
        }
    }

    fn record(&self, request: &Request) {
        for (id, prev, name) in &request.events {
            self.history
                .came("receive", &request.object, *id, *prev, name);
        }
    }
}

/// Reads one request. Returns its body, and whether it names a deadline; `None` if the connection has
/// ended.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<(Vec<u8>, bool)> {
    let (mut length, mut has_deadline, mut line) = (0, false, String::new());
    loop {
        line.clear();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let Some((name, value)) = line.split_once(':') else {
            // The request line has no colon: its target is a path.
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "seriatim-deadline" => has_deadline = true,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((body, has_deadline))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
