//! `seriatim serve`: emits, schedules, looks and actions over HTTP.
//!
//! - `request`: the body of a request
//! - `errors`: the problem document of each error
//! - `emit`: one emit per request
//! - `stream`: many emits in one request, as lines
//! - `schedule`: schedules and tasks
//! - `view`: the routes that only read: objects, lists and figures of the system
//! - `operate`: the actions of an operator
//! - `shares`: shares of groups
//! - `bulk`: actions over many dead letters or held objects

mod bulk;
mod emit;
mod errors;
mod operate;
mod request;
mod schedule;
mod shares;
mod stream;
pub(crate) mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use request::Room;
use seriatim::Emitter;
use seriatim::control::Control;
use seriatim_console::exit::Exit;
use seriatim_console::global::Global;
use seriatim_console::notify::Notices;
use seriatim_console::reach::Reached;
use seriatim_console::replicas::Replicas;
use seriatim_console::stop::stop_signals;
use seriatim_console::{shown, units};
use tokio_util::sync::CancellationToken;

use crate::listen::asked::Asked;
use crate::listen::fair::Fair;
use crate::listen::problem::Problem;
use crate::listen::{ListenArgs, probes};
use crate::operator::{Cursors, Looks};

/// The description of the API, version 3.1 of OpenAPI.
const OPENAPI: &str = include_str!("openapi.json");

/// Serve emits, schedules, looks and actions over HTTP
///
/// This command is for programs without a Redis client. docs/http.md describes the routes;
/// /v1/openapi.json is their OpenAPI description. If Redis is away at the start, the server waits for
/// it, and /readyz is 503 until then. After SIGTERM or Ctrl-C the server finishes the
/// requests under way, and then stops. A second signal stops it at once. It reads the users
/// file and the certificate again when they change, and at SIGHUP.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    /// The most bytes of the body of a request: 1KiB to 64MiB. In a request with lines, each line
    /// has this limit
    #[arg(long, value_name = "BYTES", default_value = "2MiB", value_parser = body_bytes)]
    body_bytes: usize,
    #[command(flatten)]
    replicas: Replicas,
}

fn body_bytes(text: &str) -> Result<usize, String> {
    let found = units::bytes(text)?;
    if (1024..=64 << 20).contains(&found) {
        Ok(found)
    } else {
        Err("it must be 1KiB to 64MiB".to_owned())
    }
}

/// The parts that all requests use.
pub(crate) struct App {
    emitter: Emitter,
    control: Control,
    looks: Looks,
    body_bytes: usize,
    /// The limit of the memory for the bodies of all requests together.
    room: Room,
    /// The limit of the number of streams (requests with lines).
    streams: Fair,
    reached: Reached,
    /// The token is cancelled when the server stops. Then streams end.
    stop: CancellationToken,
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let mut stopping = stop_signals()?;
    // The files are read and the addresses are opened first, so that errors in them are reported
    // before anything is sent to Redis.
    let listening = args.listen.open().await?;
    let keys = global.keys()?;
    let emitter = args.replicas.emitter(global, keys.clone())?;
    let control = Control::unconnected(global.server())
        .map_err(shown::failure)?
        .with_keys(keys);
    let reached = Reached::default();
    reached.first(emitter.reach()).await?;
    let stop = CancellationToken::new();
    let has_users = listening.has_users();
    let streams = Fair::among(stream::STREAMS_MAX, has_users);
    let looks = Looks::new(
        control.clone(),
        Arc::default(),
        Cursors::new(control.clone(), true),
    );
    let waiting = {
        let (reached, emitter) = (reached.clone(), emitter.clone());
        async move { reached.until(async || emitter.reach().await).await }
    };
    let app = App {
        emitter,
        control,
        looks,
        body_bytes: args.body_bytes,
        room: Room::new(has_users),
        streams,
        reached,
        stop: stop.clone(),
    };
    let serving = listening.serve(routes(app), stop.clone());
    tokio::pin!(serving, waiting);
    let mut notices = Notices::begin();
    notices.tell(true, false);
    tokio::select! {
        served = &mut serving => served?,
        failed = &mut waiting => failed?,
        () = stopping.next() => {
            notices.tell(true, true);
            stop.cancel();
            tokio::select! {
                served = &mut serving => served?,
                () = stopping.next() => {}
            }
        }
    }
    Ok(Exit::Done)
}

impl FromRef<Arc<App>> for Looks {
    fn from_ref(app: &Arc<App>) -> Self {
        app.looks.clone()
    }
}

fn routes(app: App) -> Router {
    let both = |rest: &str| {
        [
            format!("/v1/objects/{{object}}{rest}"),
            format!("/v1/object{rest}"),
        ]
    };
    let mut router = view::routes()
        .route("/v1/events", post(stream::emit_lines))
        .route("/v1/dead/retry", post(bulk::retry))
        .route("/v1/dead/drop", post(bulk::drop_letters))
        .route("/v1/held/release", post(bulk::release))
        .route("/v1/dead/{id}/retry", post(operate::retry))
        .route("/v1/dead/{id}/drop", post(operate::drop_letter))
        .route(
            "/v1/rules",
            post(operate::set_rule).delete(operate::lift_rule),
        )
        .route("/v1/shares", post(shares::set).delete(shares::remove))
        .route("/v1/openapi.json", get(openapi))
        .route(
            probes::HEALTH,
            get(async || probes::answer(Ok::<(), &str>(()))),
        )
        .route(probes::READY, get(ready));
    for path in both("/events") {
        router = router.route(&path, post(emit::emit));
    }
    for path in both("/schedule") {
        // If the path has no object, the object and the key are parameters of the query, so this
        // path also has DELETE.
        let methods = post(schedule::schedule);
        let methods = if path.contains('{') {
            methods
        } else {
            methods.delete(schedule::cancel)
        };
        router = router.route(&path, methods);
    }
    for path in both("/tasks") {
        router = router.route(&path, post(schedule::post_task));
    }
    for path in both("/release") {
        router = router.route(&path, post(operate::release));
    }
    for path in both("/skip") {
        router = router.route(&path, post(operate::skip));
    }
    router
        .route(
            "/v1/objects/{object}/schedule/{key}",
            delete(schedule::cancel),
        )
        .fallback(async || {
            Problem::not_found("there is no such route; /v1/openapi.json lists them")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(
                axum::http::StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "the route does not have this method",
            )
        })
        // The default limit of axum is turned off, because the routes check `--body-bytes`
        // themselves.
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(app))
}

/// Returns the answer to the probe `/readyz`: 200, or 503 before the first answer of Redis and after
/// the first stop signal. A stopping server still answers probes until its requests have ended.
async fn ready(State(app): State<Arc<App>>) -> Response {
    probes::answer(if app.stop.is_cancelled() {
        Err("the server stops")
    } else {
        app.reached.ready()
    })
}

async fn openapi(_: Asked) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], OPENAPI)
}
