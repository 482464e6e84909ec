//! `seriatim dashboard`: pages that show the system, and let operators act.
//!
//! - `access`: the users, and the checks of every request
//! - `live`: the figures of the overview, shared by all viewers
//! - `pages`: one file for each page
//! - `acts`: the actions of an operator
//! - `html`: the parts that all pages share
//! - `form`: the body of a form
//! - `assets`: the stylesheet, the script and the icon
//! - `stream`: server-sent events
//! - `follow`: new rows of the event log, shared by all pages that follow it
//!
//! All reads and actions go through [`Control`]. The process keeps nothing that is not in Redis, apart
//! from sessions, charts, and the results of the last actions. If it dies, users log in again.

mod access;
mod acts;
mod assets;
mod follow;
mod form;
mod html;
mod live;
mod pages;
mod stream;

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, Request, State};
use axum::http::{HeaderName, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use seriatim::control::Control;
use seriatim::event::Pointer;
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::notify::Notices;
use seriatim_console::reach::Reached;
use seriatim_console::shown;
use seriatim_console::stop::stop_signals;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::access::{Access, PublicUrl, Settings, Trust, TrustedPeer};
use self::acts::Jobs;
use self::follow::Followed;
use self::live::Live;
use crate::listen::fair::Fair;
use crate::listen::hosts::Hosts;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, parse_right};
use crate::listen::{ListenArgs, probes};
use crate::operator::{Cursors, Hidden, Looks};
use crate::serve::view;

/// Module name for log filters.
const LOG: &str = "seriatim::dashboard";
/// The options with which it may listen on any address, for an error.
const GUARDS: &str = "name a users file with --users, or a proxy that logs users in with --trust-header and --trust-from";
/// The most bytes of an event on a page.
const EVENT_BYTES_MAX: usize = 4096;
/// The most streams of events to browsers, of all users together.
const STREAMS_MAX: usize = 100;

/// Serve a dashboard: pages that show the system, and let operators act
///
/// On an address of this machine, the command prints a link for the login; the link works once. For
/// other addresses it needs a users file (--users), or a proxy that tells the name of the user
/// (--trust-header). The pages show each object with the reason why it waits. Every action asks for
/// a reason; `seriatim actions` shows it with the name of the user. The command reads the
/// users file and the certificate again when they change, and at SIGHUP. docs/dashboard.md describes
/// the pages.
#[derive(Debug, clap::Args)]
#[command(mut_arg("listen", |arg| arg.default_value("127.0.0.1:8480")))]
#[command(mut_arg("connections", |arg| arg.default_value("256")))]
#[command(mut_arg("grace", |arg| arg.default_value("5s")))]
#[command(mut_arg("users", |arg| arg.help(
    "The file with the users and their rights, as for `serve`. Users log in with their tokens. It is read again when it changes"
)))]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    /// The URL under which browsers reach the dashboard through a proxy: https://HOST/PATH
    #[arg(long, env = "SERIATIM_PUBLIC_URL", value_name = "URL")]
    public_url: Option<PublicUrl>,
    /// Accept the name of the user in this header, e.g. X-Forwarded-User. The proxy must remove the
    /// header from the requests of its clients
    #[arg(long, value_name = "NAME", requires = "trust_from")]
    trust_header: Option<HeaderName>,
    /// Accept the header of --trust-header only from this peer: an address, a network as 10.0.0.0/8,
    /// or `unix` for a socket; may be given more than once
    #[arg(long, value_name = "PEER", requires = "trust_header")]
    trust_from: Vec<TrustedPeer>,
    /// The rights of users whom the header names, separated by commas: view, pause, operate
    #[arg(long, value_name = "RIGHT,…", default_value = "view", value_delimiter = ',', value_parser = parse_right)]
    trust_rights: Vec<Right>,
    /// Let all users only look
    #[arg(long)]
    read_only: bool,
    /// Hide the part of each event at this JSON pointer, e.g. /card/number; may be given more than
    /// once. Errors and results that repeat the part do not show it either
    #[arg(long, value_name = "POINTER")]
    hide: Vec<Pointer>,
    /// Hide all events, results of handlers and texts of errors
    #[arg(long)]
    hide_events: bool,
}

/// The parts that all requests use.
struct Dashboard {
    control: Control,
    looks: Looks,
    access: Access,
    live: Live,
    followed: Followed,
    jobs: Jobs,
    checks: pages::check::Checks,
    streams: Fair,
    /// The path before all paths of this server; empty without `--public-url`.
    base: String,
    /// The address of Redis, without secrets.
    redis: String,
    namespace: Option<String>,
    /// The URL at which a browser of this machine reaches the server.
    url: String,
    reached: Reached,
    stop: CancellationToken,
}

impl Dashboard {
    /// Returns the link with this token.
    fn link(&self, token: &str) -> String {
        format!("{}/link?token={token}", self.url)
    }
}

impl FromRef<Arc<Dashboard>> for Looks {
    fn from_ref(app: &Arc<Dashboard>) -> Self {
        app.looks.clone()
    }
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let mut stopping = stop_signals()?;
    let redis = global.route()?.address();
    let keys = global.keys()?;
    let listening = args
        .listen
        .open_unguarded(
            args.listen.has_users() || args.trust_header.is_some(),
            GUARDS,
        )
        .await?;
    let first = listening.addresses().next().unwrap_or_default().to_owned();
    if listening.users().is_none()
        && args.trust_header.is_none()
        && !first.starts_with("http")
        && args.public_url.is_none()
    {
        let what = "a link cannot lead to a socket: give --users FILE, or --trust-header NAME with --trust-from unix";
        return Err(Failure::with(Exit::Input, what));
    }
    let control = Control::unconnected(global.server())
        .map_err(shown::failure)?
        .with_keys(keys);
    let control = control.with_event_bytes_max(EVENT_BYTES_MAX);
    let reached = Reached::default();
    reached.first(control.now_ms()).await?;
    let waiting = {
        let (reached, control) = (reached.clone(), control.clone());
        async move { reached.until(async || control.now_ms().await).await }
    };
    let public_hosts = args.public_url.iter().map(|url| url.host.as_str());
    let settings = Settings {
        hosts: Hosts::new(args.listen.hosts().chain(public_hosts)),
        users: listening.users().cloned(),
        trust: args.trust_header.map(|header| Trust {
            header,
            from: args.trust_from,
            rights: args.trust_rights,
        }),
        public_url: args.public_url.clone(),
        is_secured: listening.is_secured(),
        is_read_only: args.read_only,
        cookie_word: first
            .rsplit_once(':')
            .map_or("socket", |(_, port)| port)
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect(),
    };
    let (access, token) = Access::new(settings)?;
    let url = match &args.public_url {
        Some(url) => format!("{}{}", url.origin, url.path),
        None => first,
    };
    let stop = CancellationToken::new();
    // With --read-only the Redis user may lack the right to write.
    let cursors = Cursors::new(control.clone(), !args.read_only);
    let looks = Looks::new(
        control.clone(),
        Arc::new(Hidden::new(args.hide, args.hide_events)),
        cursors,
    );
    let base = args.public_url.map(|url| url.path).unwrap_or_default();
    let app = Arc::new(Dashboard {
        live: Live::new(control.clone(), looks.clone()),
        followed: Followed::new(looks.clone(), base.clone()),
        looks,
        control,
        access,
        jobs: Jobs::default(),
        checks: pages::check::Checks::default(),
        streams: Fair::among(STREAMS_MAX, listening.has_users()),
        base,
        redis,
        namespace: global.namespace.clone(),
        url,
        reached,
        stop: stop.clone(),
    });
    let line = match &token {
        Some(token) => app.link(token),
        None => format!("{}/", app.url),
    };
    if !shown::print(&format!("{line}\n"))? && token.is_some() {
        return Err(Failure::with(
            Exit::Broken,
            "nobody reads standard output, so nobody sees the link; give --users FILE instead",
        ));
    }
    let serving = listening.serve(routes(&app), stop.clone());
    tokio::pin!(serving, waiting);
    let mut notices = Notices::begin();
    notices.tell(true, false);
    tokio::select! {
        served = &mut serving => served?,
        failed = &mut waiting => failed?,
        () = app.live.run() => {}
        () = app.followed.run() => {}
        () = stopping.next() => {
            notices.tell(true, true);
            stop.cancel();
            tokio::select! {
                served = &mut serving => served?,
                () = stopping.next() => {}
            }
            let actions = app.jobs.under_way();
            if actions > 0 {
                warn!(target: LOG, actions, "stopped before these actions have ended; `seriatim actions` shows the steps that are done");
            }
        }
    }
    Ok(Exit::Done)
}

/// Returns the time of this machine, in ms since the epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn routes(app: &Arc<Dashboard>) -> Router {
    let mut router = view::routes()
        .route("/", get(pages::overview::show))
        .route("/live", get(stream::live))
        .route("/object", get(pages::object::show))
        .route("/object/search", post(acts::search))
        .route("/held", get(pages::held::show))
        .route("/paused", get(pages::paused::show))
        .route("/dead", get(pages::dead::show))
        .route("/workers", get(pages::workers::show))
        .route("/worker", get(pages::worker::show))
        .route("/rules", get(pages::rules::show))
        .route("/schedules", get(pages::schedules::show))
        .route("/cron", get(pages::cron::show))
        .route("/log", get(pages::log::show))
        .route("/log/stream", get(stream::log))
        .route("/actions", get(pages::actions::show))
        .route("/check", get(pages::check::show).post(pages::check::run))
        .route("/act", post(acts::start))
        .route("/job", get(acts::job))
        .route("/job/stop", post(acts::stop))
        .route(
            "/login",
            get(access::login::show).post(access::login::log_in),
        )
        .route("/logout", post(access::login::log_out))
        .route("/link", get(access::login::link))
        .route(
            probes::HEALTH,
            get(async || probes::answer(Ok::<(), &str>(()))),
        )
        .route(probes::READY, get(ready));
    for path in assets::paths() {
        router = router.route(path, get(assets::file));
    }
    let router = router
        .fallback(async || Problem::not_found("there is no such page"))
        .method_not_allowed_fallback(async || {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "the page does not have this method",
            )
        })
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), access::check))
        .with_state(app.clone());
    match app.base.as_str() {
        "" => router,
        // A proxy may keep the path of the public URL, or remove it. So both forms are served.
        base => Router::new().fallback_service(router).layer(from_fn({
            let base = base.to_owned();
            move |request, next| without(base.clone(), request, next)
        })),
    }
}

/// Removes the path of the public URL from the beginning of the request's path.
async fn without(base: String, mut request: Request, next: Next) -> Response {
    let uri = request.uri();
    let whole = uri.path_and_query().map_or("", |whole| whole.as_str());
    if let Some(rest) = whole.strip_prefix(&base) {
        let rest = match rest.chars().next() {
            None => "/".to_owned(),
            Some('/') => rest.to_owned(),
            Some('?') => format!("/{rest}"),
            // Another path begins with the same letters.
            Some(_) => whole.to_owned(),
        };
        let mut parts = uri.clone().into_parts();
        match rest.parse() {
            Ok(path) => parts.path_and_query = Some(path),
            Err(_) => return Problem::bad_request("the path is invalid").into_response(),
        }
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    next.run(request).await
}

/// Returns the answer to the probe `/readyz`: 200, or 503 before the first answer of Redis and after
/// the first stop signal.
async fn ready(State(app): State<Arc<Dashboard>>) -> Response {
    probes::answer(if app.stop.is_cancelled() {
        Err("the server stops")
    } else {
        app.reached.ready()
    })
}
