//! Server-sent events: the figures of the overview, and new rows of the event log.
//!
//! The user is looked up again before every message. So a stream ends within about a second after the
//! user has logged out, or is no longer in the users file. It also ends after ten minutes; the browser
//! then begins a new one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::Dashboard;
use super::pages;
use crate::listen::asked::Asked;
use crate::listen::connections::Peer;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::Page;
use seriatim::control::{Cursor, LogEntry};

/// The longest time of a stream.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The time between two looks at the log, and the most rows of a message.
const LOG_EVERY: Duration = Duration::from_secs(1);
const LOG_ROWS_MAX: usize = 100;
/// The most pages of rows that a stream skips in one look. If more rows come, the stream goes on at
/// the end of the log.
const LOG_PAGES_MAX: usize = 3;

/// `GET /live`: new contents of the overview.
pub(super) async fn live(
    State(app): State<Arc<Dashboard>>,
    Extension(peer): Extension<Peer>,
    asked: Asked,
) -> Result<Response, Problem> {
    asked.user.may_all(Right::View)?;
    let permit = permit(&app.streams)?;
    let until = Instant::now() + TIME_MAX;
    let shown = app.live.watch();
    let messages = stream::unfold((app, shown, permit, asked), move |(app, mut shown, permit, asked)| async move {
        tokio::select! {
            changed = timeout_at(until, shown.changed()) => drop(changed.ok()?.ok()?),
            () = app.stop.cancelled() => return None,
        }
        app.access.user(peer, &asked.headers)?.may_all(Right::View).ok()?;
        let snapshot = shown.borrow_and_update().clone()?;
        let html = pages::overview::parts(&app.base, &snapshot).into_string();
        Some((message(&html), (app, shown, permit, asked)))
    });
    Ok(response(messages))
}

/// The state of a stream of log rows.
struct Following {
    app: Arc<Dashboard>,
    peer: Peer,
    headers: HeaderMap,
    after: Cursor,
    filter: pages::log::Filter,
    _permits: [OwnedSemaphorePermit; 2],
}

/// `GET /log/stream`: new rows of the event log.
pub(super) async fn log(
    State(app): State<Arc<Dashboard>>,
    Extension(peer): Extension<Peer>,
    asked: Asked,
) -> Result<Response, Problem> {
    let filter = pages::log::Filter::read(&asked)?;
    let after = app.looks.log_end(&asked.user).await?;
    let (permit, follower) = (permit(&app.streams)?, permit(&app.followers)?);
    let until = Instant::now() + TIME_MAX;
    let following = Following { app, peer, headers: asked.headers, after, filter, _permits: [permit, follower] };
    let messages = stream::unfold(following, move |mut following| async move {
        let waited = tokio::select! {
            () = sleep(LOG_EVERY) => Instant::now() < until,
            () = following.app.stop.cancelled() => false,
        };
        if !waited {
            return None;
        }
        let user = following.app.access.user(following.peer, &following.headers)?;
        let (rows, skipped) = following.next(&user).await.ok()?;
        let html = pages::log::new_rows(&following.app.base, &rows, skipped).into_string();
        Some((message(&html), following))
    });
    Ok(response(messages))
}

impl Following {
    /// Reads the rows that have come since the last look. Returns the newest of them, and the number
    /// of the others; `None` if their number is not known.
    async fn next(&mut self, user: &User) -> Result<(Vec<LogEntry>, Option<u64>), Problem> {
        let (mut rows, mut skipped) = (Vec::new(), 0);
        for _ in 0..LOG_PAGES_MAX {
            let page: Page<LogEntry> = self.app.looks.log(user, false, Some(&self.after), LOG_ROWS_MAX).await?;
            if let Some(last) = page.last {
                self.after = last;
            }
            rows.extend(page.rows.into_iter().filter(|row| self.filter.has(row)));
            let too_many = rows.len().saturating_sub(LOG_ROWS_MAX);
            skipped += rows.drain(..too_many).len() as u64;
            if page.next.is_none() {
                return Ok((rows, Some(skipped)));
            }
        }
        self.after = self.app.looks.log_end(user).await?;
        Ok((rows, None))
    }
}

fn permit(streams: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Problem> {
    streams.clone().try_acquire_owned().map_err(|_| {
        let detail = "too many pages are updated already; this page can be loaded again by hand";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(10)
    })
}

/// Returns a message with these lines.
fn message(html: &str) -> Bytes {
    let mut message = String::with_capacity(html.len() + 16);
    for line in html.split(['\r', '\n']) {
        message.push_str("data: ");
        message.push_str(line);
        message.push('\n');
    }
    message.push('\n');
    message.into()
}

fn response(messages: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt as _;
    let mut response = Response::new(Body::from_stream(messages.map(Ok::<_, Infallible>)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_a_line_of_data_for_each_line() {
        assert_eq!(message("<p>\na\r</p>"), "data: <p>\ndata: a\ndata: </p>\n\n");
    }
}
