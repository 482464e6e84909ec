//! Many emits in one request (a stream): `POST /v1/events`. The body has a line
//! `{"object":…,"event":…}` for each event, and each line gets an answer.
//!
//! Lines are emitted in batches, in their order. While a batch is emitted, the next batch is read.
//! If a line of an object fails, later lines of this object are not emitted, so that none overtakes
//! the failed line. An error that concerns all objects ends the answers. So does a line that cannot
//! be parsed, because its object is unknown. The memory of a stream is bounded: two batches and the
//! hashes of failed objects. The memory of all streams is bounded by [`super::request::Room`] and
//! the number of streams.

use std::collections::HashSet;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::future::{Either, select};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use seriatim::event::Json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::{App, emit, errors};
use crate::listen::asked::Asked;
use crate::listen::fair::Taken;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// The most lines of a batch.
const LINES_MAX: usize = seriatim::emit::CHUNK_EVENTS_MAX;
/// The number of bytes from which on a batch takes no further line.
const BATCH_BYTES_MAX: usize = seriatim::emit::CHUNK_BYTES_MAX;
/// The longest wait for the next line.
const LINE_TIME_MAX: Duration = Duration::from_secs(60);
/// The most objects with a failed line in a stream. One more such object ends the answers.
const FAILED_MAX: usize = 1000;
/// The most streams at a time.
pub(super) const STREAMS_MAX: usize = 1000;
/// The most batches of answers that wait for a client to read them.
const ANSWERS_MAX: usize = 2;

/// The content of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    object: String,
    #[serde(borrow)]
    event: &'a RawValue,
}

/// The lines of a batch, each with its number in the body.
struct Batch {
    lines: Vec<(u64, Checked)>,
    _taken: Option<Taken>,
}

/// A checked line: its object and its event, or the reason why this user cannot emit for this
/// object.
type Checked = Result<(String, Bytes), Problem>;

/// The objects with a failed line. Only hashes of their names are stored, because names may be
/// long. If two names have the same hash, lines of an object without a failed line are refused as
/// well.
#[derive(Default)]
struct Failed {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Failed {
    fn has(&self, object: &str) -> bool {
        !self.hashes.is_empty() && self.hashes.contains(&self.hasher.hash_one(object))
    }

    fn add(&mut self, object: &str) {
        self.hashes.insert(self.hasher.hash_one(object));
    }
}

/// `POST /v1/events`.
pub(super) async fn emit_lines(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Emit)?;
    if emit::idempotency_key(&asked.headers)?.is_some() {
        return Err(Problem::bad_request(
            "Idempotency-Key is for a single event, not for lines",
        ));
    }
    let streams = app.streams.take(&asked.user, 1).ok_or_else(|| {
        let detail = format!(
            "{} has too many streams already, or all users together have {STREAMS_MAX}: nothing was done",
            asked.user.name
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
    })?;
    let (answers, answered) = mpsc::channel::<Bytes>(ANSWERS_MAX);
    let lines = Lines {
        body: body.into_data_stream(),
        rest: BytesMut::new(),
        taken: None,
        number: 0,
        line_until: Instant::now() + LINE_TIME_MAX,
        line_bytes: app.body_bytes,
        end: None,
    };
    tokio::spawn(async move {
        run(app, asked.user, lines, answers).await;
        drop(streams);
    });
    let answers = stream::unfold(answered, |mut answered| async {
        answered
            .recv()
            .await
            .map(|bytes| (Ok::<_, Infallible>(bytes), answered))
    });
    Ok((
        StatusCode::OK,
        [(CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(answers),
    )
        .into_response())
}

/// Emits all lines of a stream. Ends early if nobody reads the answers.
async fn run(app: Arc<App>, user: User, mut lines: Lines, answers: mpsc::Sender<Bytes>) {
    let mut failed = Failed::default();
    let mut batch = lines.batch(&app, &user).await;
    while let Some(present) = batch {
        // The batch is emitted and its answers are sent while the next batch is read. So the
        // answers do not wait for the next batch, which may take long to come.
        let answered = async {
            let sent = send(&app, present, &mut failed).await;
            answers.send(sent.text.into()).await.is_ok() && !sent.is_over
        };
        // If no further answer may be sent, this function ends, and no more lines are read.
        let next = match select(Box::pin(answered), Box::pin(lines.batch(&app, &user))).await {
            Either::Left((true, reading)) => reading.await,
            Either::Left((false, _)) => return,
            Either::Right((next, answered)) => match answered.await {
                true => next,
                false => return,
            },
        };
        if app.stop.is_cancelled()
            && let Some((number, _)) = next.as_ref().and_then(|next| next.lines.first())
        {
            let _ = answers.send(last(*number, &stopping()).into()).await;
            return;
        }
        batch = next;
    }
    if let Some((number, problem)) = lines.end.take() {
        let _ = answers.send(last(number, &problem).into()).await;
    }
}

fn stopping() -> Problem {
    let detail = "the server stops: this line and all after it are not emitted";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail)
}

fn last(number: u64, problem: &Problem) -> Vec<u8> {
    let mut text = Vec::new();
    tell(&mut text, number, problem);
    text
}

/// The answers to a batch. `is_over`: whether no further batch may be emitted.
struct Answers {
    text: Vec<u8>,
    is_over: bool,
}

/// Emits a batch. Returns the answers to its lines. `failed`: the objects with a failed line; this
/// call may add objects.
async fn send(app: &App, batch: Batch, failed: &mut Failed) -> Answers {
    // For each line of the batch: the problem if the line is not sent to Redis, and `None` if it is
    // sent.
    let mut unsent = Vec::with_capacity(batch.lines.len());
    let mut events: Vec<(String, Json)> = Vec::with_capacity(batch.lines.len());
    for (_, line) in &batch.lines {
        unsent.push(match line {
            Ok((object, _)) if failed.has(object) => Some(Problem::new(
                StatusCode::FAILED_DEPENDENCY,
                "earlier-line",
                "an earlier line of this object is not emitted, and this one must not overtake it",
            )),
            Ok((object, event)) => {
                events.push((object.clone(), Json::new(event.clone())));
                None
            }
            // Every line of this object is refused, so no later line can overtake this one.
            Err(problem) => Some(problem.clone()),
        });
    }
    let sent = app.emitter.emit_many(events).await;
    let error = sent.err();
    let stopped = error.as_ref().and_then(|error| error.stopped);
    let mut answers = Answers {
        text: Vec::with_capacity(batch.lines.len() * 32),
        is_over: stopped.is_some(),
    };
    let mut position = 0;
    for ((number, line), unsent) in batch.lines.iter().zip(unsent) {
        let problem = unsent.or_else(|| {
            let (at, object) = (position, line.as_ref().map_or("", |(object, _)| object));
            position += 1;
            let mut of_object = error.iter().flat_map(|error| &error.failed);
            match (
                of_object.find(|one| one.object == *object && at >= one.first),
                stopped,
            ) {
                (Some(one), _) => {
                    failed.add(object);
                    Some(errors::emit(&one.error))
                }
                (None, Some(stopped)) if at >= stopped => {
                    let first = error.as_ref().and_then(|error| error.failed.first());
                    let detail = first
                        .map_or_else(|| "Redis is away".to_owned(), |one| one.error.to_string());
                    Some(Problem::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "redis",
                        format!("not sent: {detail}"),
                    ))
                }
                _ => None,
            }
        });
        match problem {
            None => {
                // Writing to a Vec cannot fail.
                let _ = writeln!(answers.text, "{{\"line\":{number},\"status\":202}}");
            }
            Some(problem) => tell(&mut answers.text, *number, &problem),
        }
    }
    if failed.hashes.len() > FAILED_MAX && !answers.is_over {
        let number = batch.lines.last().map_or(1, |(number, _)| number + 1);
        let detail = format!(
            "lines of more than {FAILED_MAX} objects failed: this line and all after it are not emitted"
        );
        tell(
            &mut answers.text,
            number,
            &Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", detail),
        );
        answers.is_over = true;
    }
    answers
}

/// Appends the answer to a line that is not emitted. The answer is a problem document with the line
/// number.
fn tell(text: &mut Vec<u8>, number: u64, problem: &Problem) {
    #[derive(serde::Serialize)]
    struct Answer<'a> {
        line: u64,
        #[serde(flatten)]
        problem: &'a Problem,
    }
    let _ = serde_json::to_writer(
        &mut *text,
        &Answer {
            line: number,
            problem,
        },
    );
    text.push(b'\n');
}

/// Reads the lines of a body.
struct Lines {
    body: BodyDataStream,
    /// The bytes that are read but not yet part of a batch. `taken`: the bytes of the
    /// [`super::request::Room`] that they use.
    rest: BytesMut,
    taken: Option<Taken>,
    /// The number of the last line read. The first line has the number 1.
    number: u64,
    /// The time until which the next line must have come.
    line_until: Instant,
    line_bytes: usize,
    /// Set if no further line is emitted: the number of the first line that is not emitted, and the
    /// reason.
    end: Option<(u64, Problem)>,
}

impl Lines {
    /// Returns the next batch: the lines that have come, up to the limits of a batch. If no line
    /// has come, waits for one. Returns `None` if no further line is emitted.
    async fn batch(&mut self, app: &App, user: &User) -> Option<Batch> {
        let (mut lines, mut bytes, mut searched, mut is_over) = (Vec::new(), 0, 0, false);
        self.line_until = Instant::now() + LINE_TIME_MAX;
        while lines.len() < LINES_MAX && bytes < BATCH_BYTES_MAX && self.end.is_none() && !is_over {
            if let Some(at) = memchr::memchr(b'\n', &self.rest[searched..]) {
                let line = self.rest.split_to(searched + at + 1).freeze();
                searched = 0;
                bytes += self.add(&mut lines, &line, user, app);
                continue;
            }
            searched = self.rest.len();
            if searched > self.line_bytes {
                self.ends(too_long(self.line_bytes));
                break;
            }
            // Waits for bytes only if the batch has no line yet.
            let next = match lines.is_empty() {
                true => tokio::select! {
                    next = timeout_at(self.line_until, self.body.next()) => next,
                    () = app.stop.cancelled() => {
                        self.ends(stopping());
                        break;
                    }
                },
                false => match self.body.next().now_or_never() {
                    Some(next) => Ok(next),
                    None => break,
                },
            };
            match next {
                Ok(Some(Ok(part))) => match app.room.take(user, part.len()) {
                    Ok(taken) => {
                        self.rest.extend_from_slice(part.chunk());
                        match &mut self.taken {
                            Some(all) => all.merge(taken),
                            none => *none = Some(taken),
                        }
                    }
                    Err(problem) => self.ends(problem),
                },
                Ok(None) => {
                    // The last line may lack its line end.
                    let line = std::mem::take(&mut self.rest).freeze();
                    self.add(&mut lines, &line, user, app);
                    is_over = true;
                }
                Ok(Some(Err(error))) => self.ends(Problem::bad_request(format!(
                    "the body cannot be read: {error}"
                ))),
                Err(_) => {
                    let detail = "the next line did not come within 60 s";
                    self.ends(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", detail));
                }
            }
        }
        // The bytes of the batch's lines go with the batch. The bytes that are not yet in a batch
        // stay counted in `taken`.
        let kept = self.rest.len();
        let taken = self
            .taken
            .as_mut()
            .map(|all| all.split(all.amount().saturating_sub(kept)));
        (!lines.is_empty()).then_some(Batch {
            lines,
            _taken: taken,
        })
    }

    /// Records that the next line and all after it are not emitted.
    fn ends(&mut self, problem: Problem) {
        self.end = Some((self.number + 1, problem));
    }

    /// Adds a line to the batch, unless the line is empty. Returns the number of bytes of the line;
    /// 0 for an empty line.
    fn add(
        &mut self,
        lines: &mut Vec<(u64, Checked)>,
        line: &Bytes,
        user: &User,
        app: &App,
    ) -> usize {
        let is_part = line.is_empty();
        self.number += u64::from(!is_part);
        self.line_until = Instant::now() + LINE_TIME_MAX;
        if line.trim_ascii().is_empty() {
            return 0;
        }
        match checked(line, self.line_bytes, app, user) {
            Ok(checked) => lines.push((self.number, checked)),
            // The object of this line is unknown, so any later line could overtake it. So no
            // further line is emitted.
            Err(problem) => self.end = Some((self.number, problem)),
        }
        line.len()
    }
}

fn too_long(line_bytes: usize) -> Problem {
    let detail = format!(
        "the line has more than {line_bytes} bytes (--body-bytes): it and all after it are not emitted"
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
}

/// Checks a line. If this function returns an error, this line and all lines after it are not
/// emitted.
fn checked(line: &Bytes, line_bytes: usize, app: &App, user: &User) -> Result<Checked, Problem> {
    if line.len() > line_bytes {
        return Err(too_long(line_bytes));
    }
    let invalid = |error| {
        Problem::bad_request(format!(
            "the line is not valid: {error}: it and all after it are not emitted"
        ))
    };
    let parsed: Line<'_> = serde_json::from_slice(line).map_err(invalid)?;
    let may = user
        .may(Right::Emit, parsed.object.as_bytes())
        .and_then(|()| emit::name(app, parsed.object.as_bytes()).map(drop));
    Ok(may.map(|()| (parsed.object, line.slice_ref(parsed.event.get().as_bytes()))))
}
