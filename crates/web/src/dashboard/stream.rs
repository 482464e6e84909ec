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
use seriatim::control::Cursor;
use tokio::time::{Instant, timeout_at};

use super::Dashboard;
use super::follow::{Follower, KEPT_ROWS, News, Position};
use super::pages;
use super::pages::log::LeftOut;
use crate::listen::asked::Asked;
use crate::listen::connections::Peer;
use crate::listen::fair::{Fair, Taken};
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::shows;

/// The longest time of a stream.
const TIME_MAX: Duration = Duration::from_secs(600);
/// The most rows of a message with log rows. The first message of a stream may have more.
const LOG_ROWS_MAX: usize = 100;
/// A page may have been read after the last look, so the log may end before its position for a look
/// or two. After more looks, Redis has lost rows.
const LOOKS_AHEAD_MAX: usize = 2;

/// `GET /live`: new contents of the overview.
pub(super) async fn live(
    State(app): State<Arc<Dashboard>>,
    Extension(peer): Extension<Peer>,
    asked: Asked,
) -> Result<Response, Problem> {
    asked.user.may_all(Right::View)?;
    let permit = permit(&app.streams, &asked.user)?;
    let until = Instant::now() + TIME_MAX;
    let shown = app.live.watch();
    let messages = stream::unfold(
        (app, shown, permit, asked),
        move |(app, mut shown, permit, asked)| async move {
            tokio::select! {
                changed = timeout_at(until, shown.changed()) => drop(changed.ok()?.ok()?),
                () = app.stop.cancelled() => return None,
            }
            app.access
                .user(peer, &asked.headers)?
                .may_all(Right::View)
                .ok()?;
            let snapshot = shown.borrow_and_update().clone()?;
            let html = pages::overview::parts(&app.base, &snapshot).into_string();
            Some((message(&html, None), (app, shown, permit, asked)))
        },
    );
    Ok(response(messages))
}

/// The state of a stream of log rows.
struct Following {
    app: Arc<Dashboard>,
    peer: Peer,
    headers: HeaderMap,
    filter: pages::log::Filter,
    follower: Follower,
    position: Position,
    /// The most rows of the next message.
    rows_max: usize,
    /// The looks at which the log ended before the position.
    looks_ahead: usize,
    _permit: Taken,
}

/// `GET /log/stream?object=…&status=…&after=…`: new rows of the event log. The first message comes at once. It
/// has the rows after the position in `Last-Event-ID` or `after`, as far as they are kept.
pub(super) async fn log(
    State(app): State<Arc<Dashboard>>,
    Extension(peer): Extension<Peer>,
    asked: Asked,
) -> Result<Response, Problem> {
    let filter = pages::log::Filter::read(&asked)?;
    let after = asked.query("after")?.filter(|after| !after.is_empty());
    // A browser that connects again sends the id of the last message.
    let last = asked
        .headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok())
        .map(str::to_owned);
    asked.user.may_some(Right::View)?;
    let view = pages::log::follow_view(&asked.user);
    let after = app
        .looks
        .cursors()
        .open(&view, last.or(after).map(Cursor::from).as_ref())
        .await?;
    let after = after
        .map(|after| after.as_str().parse::<Position>())
        .transpose()?;
    let permit = permit(&app.streams, &asked.user)?;
    let (follower, end) = app.followed.follow().await?;
    let (until, position, rows_max) = (Instant::now() + TIME_MAX, after.unwrap_or(end), KEPT_ROWS);
    let headers = asked.headers;
    let following = Following {
        app,
        peer,
        headers,
        filter,
        follower,
        position,
        rows_max,
        looks_ahead: 0,
        _permit: permit,
    };
    let messages = stream::unfold(
        (following, true),
        move |(mut following, is_first)| async move {
            if !is_first {
                let stop = following.app.stop.clone();
                let has_looked = tokio::select! {
                    looked = timeout_at(until, following.follower.next_look()) => looked.unwrap_or(false),
                    () = stop.cancelled() => false,
                };
                if !has_looked {
                    return None;
                }
            }
            let user = following
                .app
                .access
                .user(following.peer, &following.headers)?;
            let html = following.next(&user).ok()?;
            let position = Some(following.position.to_string().into());
            let position = following
                .app
                .looks
                .cursors()
                .seal(&pages::log::follow_view(&user), position)
                .await
                .ok()?;
            let message = message(&html, position.as_ref().map(Cursor::as_str));
            Some((message, (following, false)))
        },
    );
    Ok(response(messages))
}

impl Following {
    /// Returns the part with the rows that have come since the last message.
    fn next(&mut self, user: &User) -> Result<String, Problem> {
        user.may_some(Right::View)?;
        let News {
            mut rows,
            passed_over,
            is_ahead,
        } = self.app.followed.after(&mut self.position);
        self.looks_ahead = if is_ahead { self.looks_ahead + 1 } else { 0 };
        let is_lost = self.looks_ahead > LOOKS_AHEAD_MAX;
        if is_lost {
            self.position = self.app.followed.end();
        }
        rows.retain(|row| {
            let escaped = row.object_escaped.as_deref();
            shows(user, &row.object, escaped)
                && self.filter.has(escaped.unwrap_or(&row.object), &row.status)
        });
        let too_many = rows
            .len()
            .saturating_sub(std::mem::replace(&mut self.rows_max, LOG_ROWS_MAX));
        rows.drain(..too_many);
        let left_out = LeftOut {
            too_many: too_many as u64,
            passed_over,
            is_lost,
            has_numbers: !user.is_limited(),
        };
        Ok(pages::log::new_rows(rows.iter().map(|row| row.html.as_str()), &left_out).into_string())
    }
}

fn permit(streams: &Fair, user: &User) -> Result<Taken, Problem> {
    streams.take(user, 1).ok_or_else(|| {
        let detail = "too many pages are updated already; this page can be loaded again by hand";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(10)
    })
}

/// Returns a message with these lines, and with this id.
fn message(html: &str, id: Option<&str>) -> Bytes {
    let mut message = String::with_capacity(html.len() + 64);
    if let Some(id) = id {
        message.push_str("id: ");
        message.push_str(id);
        message.push('\n');
    }
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
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_an_id_and_a_line_of_data_for_each_line() {
        assert_eq!(
            message("<p>\na\r</p>", None),
            "data: <p>\ndata: a\ndata: </p>\n\n"
        );
        assert_eq!(message("<p>", Some("1-0.7")), "id: 1-0.7\ndata: <p>\n\n");
    }
}
